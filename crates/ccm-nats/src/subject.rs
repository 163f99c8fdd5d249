//! Subjects and bucket keys, as types; all of them are built here.
//!
//! A [`Subject`] is validated when it is created. [`Subjects`] builds the subjects and keys of one
//! collective.

pub mod choria;
mod enrolment;

use std::fmt;
use std::str::FromStr;

pub use enrolment::ENROLMENT_INBOX;

use super::NatsError;
use ccm_core::model::node::Token;
use ccm_core::model::run::RunOutcome;
use ccm_value::text::quote;

/// Default prefix of all subjects.
pub const DEFAULT_PREFIX: &str = "ccm.v1";

/// Maximum length of a subject; the server limits a protocol line to 4096 bytes.
const MAX_SUBJECT: usize = 1024;

/// The type token in the subject of a run summary.
const RUN: &str = "run";

/// A valid subject: tokens joined by dots, with or without wildcards.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject(String);

impl Subject {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reports whether the subject contains wildcards and can only be subscribed to.
    pub fn is_wildcard(&self) -> bool {
        self.0.split('.').any(|word| word == "*" || word == ">")
    }

    /// Reports whether a subject without wildcards matches this one.
    pub fn matches(&self, subject: &str) -> bool {
        let mut words = subject.split('.');
        for wanted in self.0.split('.') {
            match (wanted, words.next()) {
                (">", Some(_)) => return true,
                (_, None) => return false,
                ("*", Some(_)) => {}
                (wanted, Some(word)) if wanted == word => {}
                _ => return false,
            }
        }
        words.next().is_none()
    }
}

impl FromStr for Subject {
    type Err = NatsError;

    fn from_str(text: &str) -> Result<Self, NatsError> {
        let mut words = text.split('.').peekable();
        let mut is_valid = text.len() <= MAX_SUBJECT;
        while let Some(word) = words.next() {
            let is_last = words.peek().is_none();
            let is_plain = !word.is_empty()
                && !word
                    .contains(|c: char| c.is_whitespace() || c.is_control() || "*>".contains(c));
            is_valid &= is_plain || word == "*" || (word == ">" && is_last);
        }
        if is_valid {
            Ok(Self(text.into()))
        } else {
            Err(NatsError::Subject(text.into()))
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A request type of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Ensure,
    Status,
    Apply,
    Facts,
    Ping,
    Pause,
    Resume,
    Cancel,
    /// The assignment may have changed.
    Nudge,
}

impl Verb {
    pub const ALL: [Self; 9] = [
        Self::Ensure,
        Self::Status,
        Self::Apply,
        Self::Facts,
        Self::Ping,
        Self::Pause,
        Self::Resume,
        Self::Cancel,
        Self::Nudge,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ensure => "ensure",
            Self::Status => "status",
            Self::Apply => "apply",
            Self::Facts => "facts",
            Self::Ping => "ping",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
            Self::Nudge => "nudge",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// An unknown verb.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown verb {}", quote(.0))]
pub struct UnknownVerb(String);

impl FromStr for Verb {
    type Err = UnknownVerb;

    fn from_str(text: &str) -> Result<Self, UnknownVerb> {
        Self::ALL
            .into_iter()
            .find(|verb| verb.as_str() == text)
            .ok_or_else(|| UnknownVerb(text.into()))
    }
}

/// The subjects and keys of one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subjects {
    prefix: Subject,
    collective: Token,
}

impl Subjects {
    /// Returns the subjects below a prefix of one or more tokens without wildcards.
    pub fn new(prefix: &str, collective: Token) -> Result<Self, NatsError> {
        let checked: Subject = prefix.parse()?;
        // The rest of the subject must fit, too; node names have at most 253 bytes.
        if checked.is_wildcard() || prefix.len() > MAX_SUBJECT / 4 || prefix.starts_with('$') {
            return Err(NatsError::Prefix(prefix.into()));
        }
        Ok(Self {
            prefix: checked,
            collective,
        })
    }

    pub fn collective(&self) -> &Token {
        &self.collective
    }

    /// Returns the subject of a request to one node.
    pub fn node(&self, node: &Token, verb: Verb) -> Subject {
        self.below(&format!("node.{node}.{verb}"))
    }

    /// Returns the subject of a request to all nodes.
    pub fn all(&self, verb: Verb) -> Subject {
        self.below(&format!("all.{verb}"))
    }

    /// Returns the subject of a request to a group of nodes.
    pub fn group(&self, group: &Token, verb: Verb) -> Subject {
        self.below(&format!("group.{group}.{verb}"))
    }

    /// Returns the subject of a resource event. Invalid tokens, such as an unknown type, become
    /// `unknown`, so that no event is lost.
    pub fn event(&self, node: &Token, type_name: &str, outcome: &str) -> Subject {
        let (type_name, outcome) = (token_or_unknown(type_name), token_or_unknown(outcome));
        self.below(&format!("event.{node}.{type_name}.{outcome}"))
    }

    /// Returns the subject of a run summary.
    pub fn run_event(&self, node: &Token, outcome: RunOutcome) -> Subject {
        self.event(node, RUN, outcome.as_str())
    }

    /// Returns the filter for all events of the collective.
    pub fn events(&self) -> Subject {
        self.below("event.>")
    }

    /// Returns the filter for the events of a node, a type and an outcome, each optional.
    pub fn events_matching(
        &self,
        node: Option<&Token>,
        type_name: Option<&Token>,
        outcome: Option<&Token>,
    ) -> Subject {
        let [node, type_name, outcome] =
            [node, type_name, outcome].map(|word| word.map_or("*", Token::as_str));
        self.below(&format!("event.{node}.{type_name}.{outcome}"))
    }

    /// Returns the subject of the event stream: the events of all collectives below the prefix.
    pub fn event_stream(&self) -> Subject {
        Subject(format!("{}.*.event.>", self.prefix))
    }

    /// Returns the bucket key of a node.
    pub fn key(&self, node: &Token) -> String {
        format!("{}.{node}", self.collective)
    }

    /// Returns the key of the statements about signers.
    pub fn signers_key(&self) -> String {
        self.collective.to_string()
    }

    /// Returns the filter for the bucket keys of all nodes of the collective.
    pub fn all_keys(&self) -> String {
        format!("{}.*", self.collective)
    }

    /// Returns the node of a bucket key, if it is in this collective.
    pub fn parse_key(&self, key: &str) -> Option<Token> {
        let (collective, node) = key.split_once('.')?;
        (collective == self.collective.as_str()).then(|| node.parse().ok())?
    }

    /// Returns node, type and outcome of an event subject of this collective; the type of a run
    /// summary is `run`.
    pub fn parse_event(&self, subject: &str) -> Option<(Token, String, String)> {
        let rest = subject
            .strip_prefix(self.prefix.as_str())?
            .strip_prefix('.')?
            .strip_prefix(self.collective.as_str())?
            .strip_prefix(".event.")?;
        let mut words = rest.split('.');
        let (node, type_name, outcome) = (words.next()?, words.next()?, words.next()?);
        match words.next() {
            Some(_) => None,
            None => Some((node.parse().ok()?, type_name.into(), outcome.into())),
        }
    }

    /// Returns a subject below the prefix and collective; `rest` must be valid.
    fn below(&self, rest: &str) -> Subject {
        Subject(format!("{}.{}.{rest}", self.prefix, self.collective))
    }
}

/// Returns the text if it is a valid subject token, else `unknown`.
fn token_or_unknown(text: &str) -> &str {
    match text.parse::<Token>() {
        Ok(_) => text,
        Err(_) => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects() -> Subjects {
        Subjects::new(DEFAULT_PREFIX, "lab".parse().unwrap()).unwrap()
    }

    fn token(text: &str) -> Token {
        text.parse().unwrap()
    }

    #[test]
    fn subject_is_tokens_with_wildcards() {
        for valid in ["a", "a.b", "a.*.c", "a.>", "$SRV.PING", "*"] {
            assert_eq!(valid.parse::<Subject>().unwrap().as_str(), valid);
        }
        let long = "a".repeat(MAX_SUBJECT + 1);
        for bad in [
            "", ".", "a.", ".a", "a..b", "a b", "a.>.b", "a.b*", "a\r\nPUB", "a>", &long,
        ] {
            assert!(bad.parse::<Subject>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn subjects_have_the_documented_form() {
        let (all, node) = (subjects(), token("web1_example_net"));
        for (subject, text) in [
            (
                all.node(&node, Verb::Ensure),
                "ccm.v1.lab.node.web1_example_net.ensure",
            ),
            (all.all(Verb::Ping), "ccm.v1.lab.all.ping"),
            (
                all.group(&token("web"), Verb::Pause),
                "ccm.v1.lab.group.web.pause",
            ),
            (
                all.event(&node, "file", "changed"),
                "ccm.v1.lab.event.web1_example_net.file.changed",
            ),
            (
                all.run_event(&node, RunOutcome::Failed),
                "ccm.v1.lab.event.web1_example_net.run.failed",
            ),
            (all.events(), "ccm.v1.lab.event.>"),
            (
                all.events_matching(Some(&node), None, Some(&token("failed"))),
                "ccm.v1.lab.event.web1_example_net.*.failed",
            ),
            (all.event_stream(), "ccm.v1.*.event.>"),
        ] {
            assert_eq!(subject.as_str(), text);
            assert!(text.parse::<Subject>().is_ok());
        }
        assert_eq!(all.key(&node), "lab.web1_example_net");
    }

    #[test]
    fn longest_node_name_makes_a_valid_subject() {
        let name = format!("a{}", ".a".repeat(126)).parse().unwrap();
        let node = ccm_core::model::node::NodeName::token(&name);
        let subject = subjects().event(&node, "package", "changed");
        assert!(subject.as_str().parse::<Subject>().is_ok());
    }

    #[test]
    fn event_subject_is_parsed() {
        let all = subjects();
        let subject = all.event(&token("web1"), "file", "changed");
        let (node, type_name, outcome) = all.parse_event(subject.as_str()).unwrap();
        assert_eq!(
            (node.as_str(), &*type_name, &*outcome),
            ("web1", "file", "changed")
        );
        for other in [
            "ccm.v1.prod.event.web1.file.changed",
            "ccm.v1.lab.event.web1.file",
            "ccm.v1.lab.event.web1.file.changed.more",
            "ccm.v1.lab.node.web1.ping",
            "",
        ] {
            assert_eq!(all.parse_event(other), None, "{other}");
        }
    }

    #[test]
    fn event_with_an_invalid_type_has_a_subject() {
        let subject = subjects().event(&token("web1"), "a.b c", "stable");
        assert_eq!(subject.as_str(), "ccm.v1.lab.event.web1.unknown.stable");
    }

    #[test]
    fn wildcards_match() {
        let matches = |pattern: &str, subject: &str| {
            let pattern: Subject = pattern.parse().unwrap();
            pattern.matches(subject)
        };
        assert!(matches("a.b", "a.b"));
        assert!(matches("a.*", "a.b"));
        assert!(matches("a.>", "a.b.c"));
        for other in ["a", "a.b.c", "a.c", ""] {
            assert!(!matches("a.b", other), "{other}");
        }
        assert!(!matches("a.>", "a"));
        assert!(!matches("a.*", "a.b.c"));
    }

    #[test]
    fn node_key_is_parsed() {
        let all = subjects();
        assert_eq!(all.parse_key(&all.key(&token("web1"))), Some(token("web1")));
        assert_eq!(all.parse_key("prod.web1"), None);
        assert_eq!(all.parse_key("lab.a.b"), None);
    }

    #[test]
    fn invalid_prefixes_are_rejected() {
        for bad in ["", "a.*", "a.>", "a b", "$SYS", &"a".repeat(300)] {
            assert!(Subjects::new(bad, token("lab")).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn verbs_are_parsed() {
        for verb in Verb::ALL {
            assert_eq!(verb.as_str().parse(), Ok(verb));
        }
        assert_eq!(
            "Ensure".parse::<Verb>().unwrap_err().to_string(),
            "unknown verb \"Ensure\""
        );
    }
}
