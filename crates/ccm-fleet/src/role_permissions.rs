//! NATS permissions of roles, from the templates in `packaging/nats`.
//!
//! The same templates become lines of a server configuration and templates of scoped signing keys.
//! A line with a list placeholder such as `@GROUP@` is repeated for each value; a line that ends
//! with `# with --flag` is used with that flag only.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use ccm_core::model::enrolment::NodeGrants;
use ccm_core::model::node::{NodeName, Token};
use ccm_nats::jwt::{Permissions, Responses, SubjectList};
use ccm_value::text::{parse_wait, quote};

const AGENT: &str = include_str!("../../../packaging/nats/agent.conf");
const OPERATOR: &str = include_str!("../../../packaging/nats/operator.conf");
const CONTROLLER: &str = include_str!("../../../packaging/nats/controller.conf");
const MONITOR: &str = include_str!("../../../packaging/nats/monitor.conf");
const ENROLL: &str = include_str!("../../../packaging/nats/enroll.conf");

/// A role of NATS users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Agent,
    Operator,
    Controller,
    Monitor,
    /// Nodes that are not enrolled yet.
    Enroll,
}

impl Role {
    pub const ALL: [Self; 5] = [
        Self::Agent,
        Self::Operator,
        Self::Controller,
        Self::Monitor,
        Self::Enroll,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Operator => "operator",
            Self::Controller => "controller",
            Self::Monitor => "monitor",
            Self::Enroll => "enroll",
        }
    }

    fn template(self) -> &'static str {
        match self {
            Self::Agent => AGENT,
            Self::Operator => OPERATOR,
            Self::Controller => CONTROLLER,
            Self::Monitor => MONITOR,
            Self::Enroll => ENROLL,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// An unknown role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown role {}: use agent, operator, controller or monitor", quote(.0))]
pub struct UnknownRole(String);

impl FromStr for Role {
    type Err = UnknownRole;

    /// Parses a role that users can be issued for.
    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == text && *role != Self::Enroll)
            .ok_or_else(|| UnknownRole(text.into()))
    }
}

/// Prefix and collective of the fleet that the permissions are for.
#[derive(Clone, Debug)]
pub struct FleetNames {
    pub prefix: String,
    pub collective: Token,
}

/// Optional features of agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentFeatures {
    /// Look up and watch registered services.
    pub registrations: bool,
    /// Publish events for Choria tools.
    pub choria_events: bool,
    /// Collectives in which nodes serve Choria's clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choria_server: Vec<Token>,
    /// Choria collective of the governors.
    pub governor_collective: Token,
}

impl Default for AgentFeatures {
    fn default() -> Self {
        Self {
            registrations: false,
            choria_events: false,
            choria_server: Vec::new(),
            governor_collective: Token::choria_collective(),
        }
    }
}

/// Returns the lines of a server configuration for the agent of a node.
pub fn agent_lines(
    fleet: &FleetNames,
    node: &NodeName,
    grants: &NodeGrants,
    features: &AgentFeatures,
) -> String {
    let token = node.token();
    let features = AgentFeatures {
        registrations: features.registrations || !grants.addresses.is_empty(),
        ..features.clone()
    };
    let lists = grants.lists();
    let inbox = format!("_INBOX_{token}");
    let names = (token.as_str(), node.as_str());
    let values = agent_values(fleet, &inbox, names, lists, &features);
    fill(AGENT, &values)
}

/// Returns the lines of a server configuration for a user with this inbox prefix.
pub fn user_lines(fleet: &FleetNames, role: Role, inbox: &str) -> String {
    fill(role.template(), &Values::new(fleet, inbox))
}

/// Returns the prefix of the reply subjects of users that are issued with JWTs. Users of different
/// roles may have the same name and still can't receive each other's replies.
pub fn inbox_prefix(role: Role, name: &str) -> String {
    format!("_INBOX_{}.{name}", role.as_str().to_uppercase())
}

/// Returns the template of a scoped signing key: names are those of the signed users.
pub fn scope(fleet: &FleetNames, role: Role, features: &AgentFeatures) -> Permissions {
    let values = match role {
        Role::Agent => {
            let tag = |name: &str| format!("{{{{tag({name})}}}}");
            let lists = NodeGrants::default().lists();
            let lists = lists.map(|(name, _)| (name, vec![tag(name)]));
            let (node, identity) = (tag("node"), tag("identity"));
            let inbox = inbox_prefix(role, &node);
            agent_values(fleet, &inbox, (&node, &identity), lists, features)
        }
        _ => {
            let name = "{{name()}}";
            let mut values = Values::new(fleet, &inbox_prefix(role, name));
            values.single.push(("@TOKEN@".into(), name.into()));
            values
        }
    };
    parse(&fill(role.template(), &values))
}

/// Returns the values for a node, given as one token of a subject and with its whole name.
fn agent_values(
    fleet: &FleetNames,
    inbox: &str,
    (node, identity): (&str, &str),
    lists: [(&'static str, Vec<String>); 5],
    features: &AgentFeatures,
) -> Values {
    let mut values = Values::new(fleet, inbox);
    let governors = features.governor_collective.to_string();
    let choria = features.choria_server.iter().map(Token::to_string);
    values.single.push(("@NODE@".into(), node.to_owned()));
    values.single.push(("@IDENTITY@".into(), identity.into()));
    values.single.push(("@GOVERNORS@".into(), governors));
    let lists = lists.map(|(name, list)| (format!("@{}@", name.to_uppercase()), list));
    values.lists = lists.into();
    values.lists.push(("@CHORIA@".into(), choria.collect()));
    let is_server = !features.choria_server.is_empty();
    values.flags = vec![
        ("registrations", features.registrations),
        ("choria-events", features.choria_events || is_server),
        ("choria-server", is_server),
    ];
    values
}

/// Values for the placeholders of a template.
struct Values {
    /// Placeholders with one value.
    single: Vec<(String, String)>,
    /// Placeholders with any number of values, one line each.
    lists: Vec<(String, Vec<String>)>,
    flags: Vec<(&'static str, bool)>,
}

impl Values {
    fn new(fleet: &FleetNames, inbox: &str) -> Self {
        let single = [
            ("@PREFIX@", fleet.prefix.as_str()),
            ("@COLLECTIVE@", fleet.collective.as_str()),
            ("@INBOX@", inbox),
        ];
        let single = single.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self {
            single: single.into(),
            lists: Vec::new(),
            flags: Vec::new(),
        }
    }
}

/// Returns the permissions that lines of a server configuration contain.
fn parse(lines: &str) -> Permissions {
    let mut permissions = Permissions::default();
    let mut list: Option<&mut SubjectList> = None;
    for line in lines.lines().map(str::trim) {
        if line.starts_with("publish:") {
            list = Some(&mut permissions.publish);
        } else if line.starts_with("subscribe:") {
            list = Some(&mut permissions.subscribe);
        } else if let Some(rest) = line.strip_prefix("allow_responses:") {
            permissions.resp = responses(rest);
        } else if let Some(list) = &mut list
            && let Some((subject, _)) = line.strip_prefix('"').and_then(|it| it.split_once('"'))
        {
            list.allow.push(subject.to_owned());
        }
    }
    permissions
}

/// Parses `{ max: 1, expires: "1h" }`.
fn responses(text: &str) -> Option<Responses> {
    let field = |name: &str| {
        let (_, rest) = text.split_once(&format!("{name}:"))?;
        let value = rest.split([',', '}']).next()?;
        Some(value.trim().trim_matches('"'))
    };
    Some(Responses {
        max: field("max")?.parse().ok()?,
        ttl: i64::try_from(parse_wait(field("expires")?).ok()?.as_nanos()).ok()?,
    })
}

/// Fills a template. The header comment, which explains the placeholders, is replaced by one that
/// names the inbox; comments above lines that are all omitted are omitted as well.
fn fill(template: &str, values: &Values) -> String {
    let single = |text: &str| {
        let mut text = text.to_owned();
        for (name, value) in &values.single {
            text = text.replace(name, value);
        }
        text
    };
    let mut out = single("# The NATS context of this user must set inbox_prefix to @INBOX@.\n");
    let body = template
        .lines()
        .skip_while(|line| line.starts_with('#') || line.is_empty());
    let mut comment = String::new();
    // Whether a line below the comment was read, printed or not.
    let mut is_used = false;
    for line in body {
        let text = line.trim_start();
        if is_used && !text.starts_with('"') {
            comment.clear();
        }
        if text.starts_with('#') {
            comment.push_str(&single(line));
            comment.push('\n');
            is_used = false;
            continue;
        }
        is_used = true;
        for line in expand(line, values) {
            out.push_str(&std::mem::take(&mut comment));
            out.push_str(&single(&line));
            out.push('\n');
        }
    }
    out
}

/// Expands one line of a template.
fn expand(line: &str, values: &Values) -> Vec<String> {
    let (line, flag) = match line.split_once(" # with --") {
        Some((line, flag)) => (line, Some(flag)),
        None => (line, None),
    };
    if let Some(flag) = flag
        && !values.flags.iter().any(|(name, on)| *name == flag && *on)
    {
        return Vec::new();
    }
    match values.lists.iter().find(|(name, _)| line.contains(name)) {
        Some((name, list)) => list.iter().map(|value| line.replace(name, value)).collect(),
        None => vec![line.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> FleetNames {
        FleetNames {
            prefix: "ccm.v1".into(),
            collective: "lab".parse().unwrap(),
        }
    }

    fn values() -> Values {
        let mut values = Values::new(&names(), "_INBOX_web1");
        values.single.push(("@NODE@".into(), "web1".into()));
        values.lists = vec![("@GROUP@".into(), vec!["a".into(), "b".into()])];
        values.flags = vec![("registrations", false)];
        values
    }

    #[test]
    fn lists_are_expanded_and_unused_lines_omitted() {
        let template = "# Opening.\n\nx: [\n  # Groups.\n  \"g.@GROUP@\"\n  # Services.\n  \
                        \"r\" # with --registrations\n  # Itself.\n  \"@NODE@\"\n  # None.\n  \
                        \"s\" # with --registrations\n]\n";
        let filled = fill(template, &values());
        assert_eq!(
            filled,
            "# The NATS context of this user must set inbox_prefix to _INBOX_web1.\n\
             x: [\n  # Groups.\n  \"g.a\"\n  \"g.b\"\n  # Itself.\n  \"web1\"\n]\n"
        );
    }

    #[test]
    fn all_placeholders_of_every_role_are_filled() {
        let features = AgentFeatures {
            registrations: true,
            choria_events: true,
            choria_server: vec!["ops".parse().unwrap()],
            ..AgentFeatures::default()
        };
        for role in Role::ALL {
            let scope = scope(&names(), role, &features);
            let subjects = [&scope.publish.allow, &scope.subscribe.allow];
            assert!(subjects.iter().all(|list| !list.is_empty()), "{role}");
            let mut subjects = subjects.into_iter().flatten();
            assert!(subjects.all(|subject| !subject.contains('@')), "{scope:?}");
        }
    }

    #[test]
    fn every_subject_of_a_template_is_in_the_scope() {
        let scope = scope(&names(), Role::Operator, &AgentFeatures::default());
        let lines = OPERATOR.lines().map(str::trim);
        let quoted = lines.filter(|line| line.starts_with('"')).count();
        let read = scope.publish.allow.len() + scope.subscribe.allow.len();
        assert_eq!(read, quoted);
        assert_eq!(scope.resp, None);
    }

    #[test]
    fn the_scope_of_agents_uses_tags() {
        let scope = scope(&names(), Role::Agent, &AgentFeatures::default());
        let has = |list: &[String], subject: &str| list.iter().any(|it| it == subject);
        assert!(has(&scope.publish.allow, "$KV.CCM_NODES.lab.{{tag(node)}}"));
        assert!(has(
            &scope.subscribe.allow,
            "ccm.v1.lab.group.{{tag(group)}}.*"
        ));
        assert!(has(&scope.subscribe.allow, "_INBOX_AGENT.{{tag(node)}}.>"));
        let hour = 3_600_000_000_000;
        assert_eq!(scope.resp, Some(Responses { max: 1, ttl: hour }));
        let all = format!("{scope:?}");
        assert!(!all.contains("REGISTRATION"), "{all}");
    }

    #[test]
    fn a_choria_server_has_the_subjects_of_its_collectives_only() {
        let features = AgentFeatures {
            choria_server: vec!["mcollective".parse().unwrap(), "ops".parse().unwrap()],
            ..AgentFeatures::default()
        };
        let node = "web1.lab".parse().unwrap();
        let lines = agent_lines(&names(), &node, &NodeGrants::default(), &features);
        let allowed = parse(&lines);
        for collective in ["mcollective", "ops"] {
            for subject in ["broadcast.agent.discovery", "node.web1.lab"] {
                let subject = format!("{collective}.{subject}");
                assert!(allowed.subscribe.allow.contains(&subject), "{subject}");
            }
            let reply = format!("{collective}.reply.>");
            assert!(allowed.publish.allow.contains(&reply), "{reply}");
        }
        // Its lifecycle events are those of a server.
        assert!(lines.contains("choria.lifecycle.event"), "{lines}");
        let lines = agent_lines(
            &names(),
            &node,
            &NodeGrants::default(),
            &AgentFeatures::default(),
        );
        for subject in ["choria.federation", ".reply.", ".broadcast."] {
            assert!(!lines.contains(subject), "{lines}");
        }
    }

    #[test]
    fn only_a_controller_may_create_consumers() {
        for template in [AGENT, OPERATOR, MONITOR, ENROLL] {
            let rules = template.lines().filter(|line| line.contains('"'));
            for rule in rules {
                assert!(!rule.contains("CONSUMER.CREATE"), "{rule}");
                assert!(!rule.contains("$JS.API.>"), "{rule}");
            }
        }
    }

    #[test]
    fn a_node_that_is_not_enrolled_can_only_send_requests() {
        let scope = scope(&names(), Role::Enroll, &AgentFeatures::default());
        assert_eq!(scope.publish.allow, ["ccm.v1.lab.enroll.{{name()}}"]);
        let inbox = format!("{}.{{{{name()}}}}.>", ccm_nats::subject::ENROLMENT_INBOX);
        assert_eq!(scope.subscribe.allow, [inbox]);
    }
}
