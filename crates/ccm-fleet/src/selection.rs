//! Node selection: resolves names, groups, facts and expressions to a list of nodes.
//!
//! Conditions are evaluated with [`ccm_core::filter`], the same code that nodes use, on what the
//! nodes last published (presence) and on labels, which operators set. Known nodes without presence
//! are listed as offline if the facts and groups that they stored, their name and their labels
//! satisfy the conditions. No request is sent.

use std::collections::{BTreeMap, BTreeSet};

use ccm_core::filter::{FilterError, Matcher, NodeAttributes};
use ccm_core::model::amount::Amount;
use ccm_core::model::envelope::{Compound, FactFilter, Filter};
use ccm_core::model::label::Labels;
use ccm_core::model::node::{NameError, NodeName, NodeStatus, StoredFacts, Token};
use ccm_core::system::Digest;
use ccm_template::env::Facts;
use ccm_value::Value;
use ccm_value::text::quote;

/// Conditions that nodes must meet. Without any condition all nodes are selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Any of these names, or `/regular expressions/`.
    pub nodes: Vec<String>,
    /// All of these groups.
    pub groups: Vec<String>,
    pub facts: Vec<FactFilter>,
    /// An expression over facts, labels, groups and the name.
    pub select: Option<String>,
    /// Random sample of this size.
    pub sample: Option<Amount>,
    /// Random seed: the same seed gives the same sample.
    pub seed: u64,
    /// Maximum number of nodes, in the order of their names.
    pub limit: Option<usize>,
}

impl Selection {
    /// Reports whether a sample or limit takes only some of the matching nodes. Offline nodes are
    /// never part of such a subset.
    pub fn is_subset(&self) -> bool {
        self.sample.is_some() || self.limit.is_some()
    }

    /// Reports whether there is no condition, sample or limit.
    pub fn is_everything(&self) -> bool {
        *self
            == Self {
                seed: self.seed,
                ..Self::default()
            }
    }

    /// Reports whether the names of nodes decide, not their groups, facts and labels.
    pub fn has_only_names(&self) -> bool {
        self.groups.is_empty() && self.facts.is_empty() && self.select.is_none()
    }

    /// Returns the selection as command-line flags, to be shown to people.
    pub fn to_flags(&self) -> Vec<String> {
        let mut flags: Vec<String> = Vec::new();
        flags.extend(self.nodes.iter().map(|it| format!("--node {it}")));
        flags.extend(self.groups.iter().map(|it| format!("--group {it}")));
        flags.extend(self.facts.iter().map(|it| format!("--fact {it}")));
        flags.extend(self.select.iter().map(|it| format!("--select {it}")));
        flags.extend(self.sample.iter().map(|it| format!("--sample {it}")));
        flags.extend(self.limit.iter().map(|it| format!("--limit {it}")));
        if flags.is_empty() {
            flags.push("--all".into());
        }
        flags
    }

    /// Returns the conditions as the filter that nodes evaluate.
    pub fn filter(&self) -> Filter {
        let expression = |code: &String| vec![Compound { expr: code.clone() }];
        Filter {
            identity: self.nodes.clone(),
            groups: self.groups.clone(),
            facts: self.facts.clone(),
            compound: self.select.iter().map(expression).collect(),
            ..Filter::default()
        }
    }
}

/// Parses a node name, or a `/regular expression/` over node names.
pub fn parse_name_or_pattern(text: &str) -> Result<String, NameError> {
    if !is_pattern(text) {
        text.parse::<NodeName>()?;
    }
    Ok(text.into())
}

fn is_pattern(text: &str) -> bool {
    text.len() > 1 && text.starts_with('/') && text.ends_with('/')
}

/// Why a selection is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error("line {line} of the node list: {cause}")]
    Name {
        line: usize,
        #[source]
        cause: NameError,
    },
    #[error("line {line} of the node list has no node name: {}", quote(.text))]
    NoName { line: usize, text: String },
}

/// The nodes of a selection. All lists are sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Online and selected.
    pub chosen: Vec<NodeName>,
    /// The paused ones among `chosen`.
    pub paused: Vec<NodeName>,
    /// Selected, but offline.
    pub offline: Vec<NodeName>,
    /// Named in the selection, but unknown.
    pub unknown: Vec<String>,
    /// The conditions could not be evaluated with the facts of these nodes. Not selected.
    pub undecided: Vec<(NodeName, FilterError)>,
}

impl Resolved {
    /// Returns all selected nodes, sorted by name. Offline nodes are never part of a subset.
    pub fn names(&self, selection: &Selection) -> Vec<NodeName> {
        let mut names = self.chosen.clone();
        if !selection.is_subset() {
            names.extend(self.offline.iter().cloned());
        }
        names.sort_unstable();
        names
    }
}

/// Nodes with facts that do not match a selection, or the reason why that could not be evaluated.
pub(super) type Rejected = BTreeMap<NodeName, Option<FilterError>>;

/// Resolves a selection among the nodes that are online, each with its status unless only names matter, and
/// those that are only known. If the conditions were evaluated before for all nodes with facts, `rejected`
/// has those that do not match.
pub(super) fn resolve<'a>(
    selection: &Selection,
    present: impl Iterator<Item = (&'a NodeName, Option<&'a NodeStatus>)>,
    known: &BTreeMap<NodeName, Labels>,
    stored_facts: &BTreeMap<NodeName, StoredFacts>,
    rejected: Option<&Rejected>,
) -> Result<Resolved, SelectionError> {
    let matcher = Matcher::new(&selection.filter())?;
    let mut resolved = Resolved::default();
    let statuses: BTreeMap<&NodeName, Option<&NodeStatus>> = present.collect();
    let matches = |name: &NodeName, groups: &[Token], facts: &Facts| {
        matcher.matches(&NodeAttributes {
            identity: name,
            groups,
            facts,
            labels: known.get(name).unwrap_or(Labels::none()),
        })
    };
    let matches_with_facts = |name: &NodeName, groups: &[Token], facts: &Value| match rejected {
        None => matches(name, groups, &Facts::Known(facts.clone())),
        Some(rejected) => match rejected.get(name) {
            None => Ok(true),
            Some(None) => Ok(false),
            Some(Some(error)) => Err(error.clone()),
        },
    };
    for (name, status) in &statuses {
        let (groups, facts) = match status {
            Some(status) => (status.groups.as_slice(), &status.facts),
            None => (&[][..], &Value::Null),
        };
        match matches_with_facts(name, groups, facts) {
            Ok(true) => resolved.chosen.push((*name).clone()),
            Ok(false) => {}
            Err(error) => resolved.undecided.push(((*name).clone(), error)),
        }
    }
    for name in known.keys().filter(|name| !statuses.contains_key(name)) {
        let result = match stored_facts.get(name) {
            Some(stored) => matches_with_facts(name, &stored.groups, &stored.facts),
            // Facts and groups of this node are unknown: an expression that needs them does not
            // match.
            None => Ok(matches(name, &[], &Facts::default()).unwrap_or(false)),
        };
        match result {
            Ok(true) => resolved.offline.push(name.clone()),
            Ok(false) => {}
            Err(error) => resolved.undecided.push((name.clone(), error)),
        }
    }
    resolved.undecided.sort_by(|a, b| a.0.cmp(&b.0));
    let is_unknown = |name: &&String| {
        !is_pattern(name)
            && !name.parse().is_ok_and(|name: NodeName| {
                statuses.contains_key(&name) || known.contains_key(&name)
            })
    };
    let unknown: BTreeSet<&String> = selection.nodes.iter().filter(is_unknown).collect();
    resolved.unknown = unknown.into_iter().cloned().collect();
    narrow(&mut resolved.chosen, selection);
    let is_paused = |name: &&NodeName| {
        let status = statuses.get(name).copied().flatten();
        status.is_some_and(|status| status.pause.is_some())
    };
    resolved.paused = resolved.chosen.iter().filter(is_paused).cloned().collect();
    Ok(resolved)
}

/// Applies the sample, then the limit.
fn narrow(chosen: &mut Vec<NodeName>, selection: &Selection) {
    if let Some(sample) = selection.sample {
        let count = sample.of(chosen.len());
        // The key depends only on the seed and the node name, so that other nodes that come or go
        // barely change the sample.
        let key = |name: &NodeName| {
            let text = format!("{} {name}", selection.seed);
            *Digest::of(text.as_bytes()).as_bytes()
        };
        chosen.sort_by_cached_key(key);
        chosen.truncate(count);
        chosen.sort_unstable();
    }
    if let Some(limit) = selection.limit {
        chosen.truncate(limit);
    }
}

/// Parses a list of nodes: one name per line, with `#` comments, or the JSON that `ccm fleet`
/// commands print, as one document or one per line. Returns each node once, in order of first
/// appearance.
pub fn parse_nodes(text: &str) -> Result<Vec<NodeName>, SelectionError> {
    let mut list = NodeList::default();
    if text.trim_start().starts_with(['[', '{'])
        && let Ok(document) = serde_json::from_str::<serde_json::Value>(text)
    {
        list.document(1, &document)?;
        return Ok(list.nodes);
    }
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let no_name = || SelectionError::NoName {
            line: number,
            text: line.chars().take(80).collect(),
        };
        let trimmed = line.trim();
        if trimmed.starts_with('{') {
            let document = serde_json::from_str(trimmed).map_err(|_| no_name())?;
            list.document(number, &document)?;
            continue;
        }
        let name = trimmed.split('#').next().unwrap_or_default().trim();
        if !name.is_empty() {
            list.name(number, name)?;
        }
    }
    Ok(list.nodes)
}

/// Collects nodes without duplicates.
#[derive(Default)]
struct NodeList {
    nodes: Vec<NodeName>,
    seen: BTreeSet<NodeName>,
}

impl NodeList {
    fn name(&mut self, line: usize, text: &str) -> Result<(), SelectionError> {
        let name: NodeName = text
            .parse()
            .map_err(|cause| SelectionError::Name { line, cause })?;
        if self.seen.insert(name.clone()) {
            self.nodes.push(name);
        }
        Ok(())
    }

    /// Adds the nodes of a document: a name, an object with `identity` or `node`, or a list of
    /// these, possibly under `nodes`.
    fn document(
        &mut self,
        line: usize,
        document: &serde_json::Value,
    ) -> Result<(), SelectionError> {
        use serde_json::Value;
        let list = match document {
            Value::Array(list) => Some(list),
            other => other.get("nodes").and_then(Value::as_array),
        };
        let nodes = list.map_or_else(|| std::slice::from_ref(document), Vec::as_slice);
        for node in nodes {
            let field = || node.get("identity").or_else(|| node.get("node"));
            let name = node.as_str().or_else(|| field().and_then(Value::as_str));
            let Some(name) = name else {
                let text = node.to_string().chars().take(80).collect();
                return Err(SelectionError::NoName { line, text });
            };
            self.name(line, name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::filter::parse_fact;
    use ccm_core::model::label::parse_label;
    use ccm_core::model::node::NODE_STATUS;

    fn status(name: &str, groups: &[&str], os: &str) -> NodeStatus {
        serde_json::from_value(serde_json::json!({
            "protocol": NODE_STATUS,
            "identity": name,
            "collective": "default",
            "groups": groups,
            "version": "1",
            "started": "2027-01-15T08:00:00Z",
            "timestamp": "2027-01-15T08:00:00Z",
            "beat": 30,
            "facts": {"os": os}
        }))
        .unwrap()
    }

    fn fleet() -> Vec<NodeStatus> {
        let mut paused = status("web2", &["web"], "debian");
        paused.pause = serde_json::from_value(serde_json::json!({
            "reason": "disk", "since": "2027-01-15T08:00:00Z"
        }))
        .unwrap();
        vec![
            paused,
            status("db1", &["db"], "fedora"),
            status("web1", &["web"], "debian"),
        ]
    }

    fn known() -> BTreeMap<NodeName, Labels> {
        let labels = |label: &str| [parse_label(label).unwrap()].into_iter().collect();
        [
            ("away1", labels("role=web")),
            ("away2", Labels::default()),
            ("db1", labels("role=web")),
        ]
        .map(|(name, labels)| (name.parse().unwrap(), labels))
        .into()
    }

    fn names(nodes: &[NodeName]) -> Vec<&str> {
        nodes.iter().map(NodeName::as_str).collect()
    }

    fn online(fleet: &[NodeStatus]) -> impl Iterator<Item = (&NodeName, Option<&NodeStatus>)> {
        fleet.iter().map(|node| (&node.identity, Some(node)))
    }

    fn resolve_in_fleet(selection: &Selection) -> Resolved {
        resolve(selection, online(&fleet()), &known(), &stored_facts(), None).unwrap()
    }

    /// Returns the stored facts of one of the offline nodes.
    fn stored_facts() -> BTreeMap<NodeName, StoredFacts> {
        let stored = StoredFacts::from(&status("away1", &["edge"], "debian"));
        [(stored.identity.clone(), stored)].into()
    }

    #[test]
    fn a_selection_is_shown_as_flags() {
        assert_eq!(Selection::default().to_flags(), ["--all"]);
        let selection = Selection {
            nodes: vec!["web1".into()],
            limit: Some(3),
            ..Selection::default()
        };
        assert_eq!(selection.to_flags(), ["--node web1", "--limit 3"]);
    }

    #[test]
    fn without_conditions_all_nodes_are_selected() {
        let resolved = resolve_in_fleet(&Selection::default());
        assert_eq!(names(&resolved.chosen), ["db1", "web1", "web2"]);
        assert_eq!(names(&resolved.paused), ["web2"]);
        assert_eq!(names(&resolved.offline), ["away1", "away2"]);
    }

    #[test]
    fn named_nodes_that_are_offline_or_unknown_are_listed() {
        let resolved = resolve_in_fleet(&Selection {
            nodes: ["web1", "away2", "typo", "No Name", "/^db/"]
                .map(Into::into)
                .into(),
            ..Selection::default()
        });
        assert_eq!(names(&resolved.chosen), ["db1", "web1"]);
        assert_eq!(names(&resolved.offline), ["away2"]);
        assert_eq!(resolved.unknown, ["No Name", "typo"]);
    }

    #[test]
    fn groups_and_facts_come_from_presence() {
        let resolved = resolve_in_fleet(&Selection {
            groups: vec!["web".into()],
            facts: vec![parse_fact("os=debian").unwrap()],
            ..Selection::default()
        });
        assert_eq!(names(&resolved.chosen), ["web1", "web2"]);
        assert_eq!(resolved.offline, []);
    }

    #[test]
    fn labels_also_select_offline_nodes() {
        let resolved = resolve_in_fleet(&Selection {
            facts: vec![parse_fact("label.role=web").unwrap()],
            ..Selection::default()
        });
        assert_eq!(names(&resolved.chosen), ["db1"]);
        assert_eq!(names(&resolved.offline), ["away1"]);
        let by_expression = resolve_in_fleet(&Selection {
            select: Some(r#"labels.role == "web""#.into()),
            ..Selection::default()
        });
        assert_eq!(by_expression, resolved);
    }

    #[test]
    fn a_node_whose_condition_fails_to_evaluate_is_listed_and_not_selected() {
        let resolved = resolve_in_fleet(&Selection {
            select: Some(r#"identity == "web1" || Facts.os > 3"#.into()),
            ..Selection::default()
        });
        assert_eq!(names(&resolved.chosen), ["web1"]);
        let undecided: Vec<&str> = resolved.undecided.iter().map(|it| it.0.as_str()).collect();
        // The facts of away1 are stored; those of away2 are unknown, so it does not match.
        assert_eq!(undecided, ["away1", "db1", "web2"]);
    }

    #[test]
    fn an_expression_that_does_not_compile_is_an_error() {
        let selection = Selection {
            select: Some("os ==".into()),
            ..Selection::default()
        };
        assert!(
            resolve(
                &selection,
                online(&[]),
                &BTreeMap::new(),
                &BTreeMap::new(),
                None
            )
            .is_err()
        );
    }

    #[test]
    fn a_sample_is_the_same_for_the_same_seed() {
        let fleet: Vec<NodeStatus> = (0..100)
            .map(|number| status(&format!("n{number}"), &[], "debian"))
            .collect();
        let sample = |seed, amount: &str, fleet: &[NodeStatus]| {
            let selection = Selection {
                sample: Some(amount.parse().unwrap()),
                seed,
                ..Selection::default()
            };
            let (known, stored) = (BTreeMap::new(), BTreeMap::new());
            resolve(&selection, online(fleet), &known, &stored, None)
                .unwrap()
                .chosen
        };
        let first = sample(7, "10%", &fleet);
        assert_eq!(first.len(), 10);
        assert!(first.is_sorted());
        let mut shuffled = fleet.clone();
        shuffled.reverse();
        assert_eq!(sample(7, "10", &shuffled), first);
        assert_ne!(sample(8, "10", &fleet), first);
        // Removing a node replaces only that node in the sample.
        let rest = fleet.iter().filter(|node| node.identity != first[0]);
        let rest: Vec<NodeStatus> = rest.cloned().collect();
        let again = sample(7, "10", &rest);
        assert!(first[1..].iter().all(|node| again.contains(node)));
    }

    #[test]
    fn a_limit_takes_the_first_names() {
        let resolved = resolve_in_fleet(&Selection {
            limit: Some(1),
            ..Selection::default()
        });
        assert_eq!(names(&resolved.chosen), ["db1"]);
        assert_eq!(resolved.paused, []);
    }

    #[test]
    fn a_node_list_is_lines_or_json() {
        let expected = ["web1.example.net", "db1"];
        for text in [
            "# mine\nweb1.example.net\n\n  db1  # the old one\nweb1.example.net\n",
            "{\"identity\":\"web1.example.net\",\"beat\":30}\n{\"node\":\"db1\"}\n",
            r#"["web1.example.net", {"identity": "db1"}]"#,
            "{\n\"nodes\": [{\"identity\": \"web1.example.net\"},\n \"db1\"]\n}",
        ] {
            assert_eq!(names(&parse_nodes(text).unwrap()), expected, "{text}");
        }
        assert_eq!(parse_nodes("").unwrap(), []);
    }

    #[test]
    fn an_invalid_line_of_a_node_list_is_reported() {
        for (text, error) in [
            (
                "a\nBad Name\n",
                "line 2 of the node list: invalid identity \"Bad Name\"",
            ),
            (
                "a\n{\"x\":1}\n",
                "line 2 of the node list has no node name: ",
            ),
            ("a\n{", "line 2 of the node list has no node name: \"{\""),
            ("[1]", "line 1 of the node list has no node name: \"1\""),
        ] {
            let found = parse_nodes(text).unwrap_err().to_string();
            assert!(found.starts_with(error), "{found}");
        }
    }

    #[test]
    fn an_offline_node_matches_by_its_stored_facts_and_groups() {
        let select = |code: &str| Selection {
            select: Some(code.into()),
            ..Selection::default()
        };
        let group = Selection {
            groups: vec!["edge".into()],
            ..Selection::default()
        };
        for selection in [
            select("Facts.os == 'debian' && Labels.role == 'web'"),
            group,
        ] {
            let resolved = resolve_in_fleet(&selection);
            assert_eq!(names(&resolved.offline), ["away1"], "{selection:?}");
            assert_eq!(resolved.undecided, []);
        }
    }
}
