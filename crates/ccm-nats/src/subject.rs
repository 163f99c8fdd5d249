//! Subjects as a type: every text that names a place on the bus is made here and nowhere else.
//!
//! A [`Subject`] is checked when it is made, so whoever holds one may publish or subscribe
//! without looking at it again. [`Subjects`] knows the layout of one collective; what is said on a
//! subject it does not know. Keys of buckets follow the same layout.

pub mod choria;

use std::fmt;
use std::str::FromStr;

use super::NatsError;
use ccm_core::model::node::Token;
use ccm_core::model::run::RunOutcome;
use ccm_value::text::quote;

/// The prefix of every subject, unless configured.
pub const DEFAULT_PREFIX: &str = "ccm.v1";

/// The longest subject; servers take 4096 bytes for a whole protocol line.
const MAX_SUBJECT: usize = 1024;

/// The word that stands for the type in the subject of a run's summary.
const RUN: &str = "run";

/// A subject that a server takes: words joined by dots, with or without wildcards.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject(String);

impl Subject {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it names more than one place, so that it can only be listened on.
    pub fn is_wildcard(&self) -> bool {
        self.0.split('.').any(|word| word == "*" || word == ">")
    }

    /// Whether a plain subject is this one, or one of those that its wildcards stand for.
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
        let mut is_good = text.len() <= MAX_SUBJECT;
        while let Some(word) = words.next() {
            let is_last = words.peek().is_none();
            let is_plain = !word.is_empty()
                && !word
                    .contains(|c: char| c.is_whitespace() || c.is_control() || "*>".contains(c));
            is_good &= is_plain || word == "*" || (word == ">" && is_last);
        }
        if is_good {
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

/// What a node can be asked for.
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
    /// Says that the assignment may have changed.
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

/// A word that is no verb.
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
    /// Returns the subjects below a prefix, which may hold several words but no wildcard.
    pub fn new(prefix: &str, collective: Token) -> Result<Self, NatsError> {
        let checked: Subject = prefix.parse()?;
        // What follows the prefix must fit, too; node names are at most 253 bytes.
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

    /// Returns where one node hears a verb.
    pub fn node(&self, node: &Token, verb: Verb) -> Subject {
        self.below(&format!("node.{node}.{verb}"))
    }

    /// Returns where every node hears a verb.
    pub fn all(&self, verb: Verb) -> Subject {
        self.below(&format!("all.{verb}"))
    }

    /// Returns where the nodes of a group hear a verb.
    pub fn group(&self, group: &Token, verb: Verb) -> Subject {
        self.below(&format!("group.{group}.{verb}"))
    }

    /// Returns where an event about a resource goes. Words that are none, such as a type that
    /// does not exist, become `unknown`: an event is never lost for its name.
    pub fn event(&self, node: &Token, type_name: &str, outcome: &str) -> Subject {
        let (type_name, outcome) = (word(type_name), word(outcome));
        self.below(&format!("event.{node}.{type_name}.{outcome}"))
    }

    /// Returns where the summary of a run goes.
    pub fn run_event(&self, node: &Token, outcome: RunOutcome) -> Subject {
        self.event(node, RUN, outcome.as_str())
    }

    /// Returns where all events of the collective can be heard.
    pub fn events(&self) -> Subject {
        self.below("event.>")
    }

    /// Returns where the events of one node can be heard.
    pub fn events_of(&self, node: &Token) -> Subject {
        self.below(&format!("event.{node}.>"))
    }

    /// Returns where the events of a node, of a type and with an outcome can be heard; whatever is
    /// not given may be anything.
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

    /// Returns what the stream of events listens on: every collective below the prefix.
    pub fn event_stream(&self) -> Subject {
        Subject(format!("{}.*.event.>", self.prefix))
    }

    /// Returns the key of a node in the buckets.
    pub fn key(&self, node: &Token) -> String {
        format!("{}.{node}", self.collective)
    }

    /// Returns the filter for the keys of every node of the collective.
    pub fn all_keys(&self) -> String {
        format!("{}.*", self.collective)
    }

    /// Returns the node whose key this is, if it is one of this collective.
    pub fn parse_key(&self, key: &str) -> Option<Token> {
        let (collective, node) = key.split_once('.')?;
        (collective == self.collective.as_str()).then(|| node.parse().ok())?
    }

    /// Returns node, type and outcome from the subject of an event of this collective; the type
    /// of a run's summary is `run`.
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

    /// Joins words that are already known to be good.
    fn below(&self, rest: &str) -> Subject {
        Subject(format!("{}.{}.{rest}", self.prefix, self.collective))
    }
}

/// Returns a text if it can be one word of a subject.
fn word(text: &str) -> &str {
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
    fn a_subject_is_words_with_wildcards_in_their_places() {
        for good in ["a", "a.b", "a.*.c", "a.>", "$SRV.PING", "*"] {
            assert_eq!(good.parse::<Subject>().unwrap().as_str(), good);
        }
        let long = "a".repeat(MAX_SUBJECT + 1);
        for bad in [
            "", ".", "a.", ".a", "a..b", "a b", "a.>.b", "a.b*", "a\r\nPUB", "a>", &long,
        ] {
            assert!(bad.parse::<Subject>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn each_address_has_its_subject() {
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
    fn a_longest_name_makes_a_good_subject() {
        let name = format!("a{}", ".a".repeat(126)).parse().unwrap();
        let node = ccm_core::model::node::NodeName::token(&name);
        let subject = subjects().event(&node, "package", "changed");
        assert!(subject.as_str().parse::<Subject>().is_ok());
    }

    #[test]
    fn the_subject_of_an_event_is_read_back() {
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
    fn an_event_with_an_odd_type_still_has_a_subject() {
        let subject = subjects().event(&token("web1"), "a.b c", "stable");
        assert_eq!(subject.as_str(), "ccm.v1.lab.event.web1.unknown.stable");
    }

    #[test]
    fn a_subject_matches_itself_and_what_its_wildcards_stand_for() {
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
    fn the_key_of_a_node_is_read_back() {
        let all = subjects();
        assert_eq!(all.parse_key(&all.key(&token("web1"))), Some(token("web1")));
        assert_eq!(all.parse_key("prod.web1"), None);
        assert_eq!(all.parse_key("lab.a.b"), None);
    }

    #[test]
    fn a_prefix_without_wildcards_is_wanted() {
        for bad in ["", "a.*", "a.>", "a b", "$SYS", &"a".repeat(300)] {
            assert!(Subjects::new(bad, token("lab")).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn every_verb_is_read_back() {
        for verb in Verb::ALL {
            assert_eq!(verb.as_str().parse(), Ok(verb));
        }
        assert_eq!(
            "Ensure".parse::<Verb>().unwrap_err().to_string(),
            "unknown verb \"Ensure\""
        );
    }
}
