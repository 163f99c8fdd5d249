//! The agent configuration of an enrolled node: the existing file with the settings of the fleet.
//!
//! Comments and other settings are kept. Settings that enrolment would change are conflicts, unless
//! they are in the block that an earlier enrolment wrote.

use std::path::Path;

use ccm_core::model::node::{NodeName, Token};
use ccm_value::document::{self, Node};
use ccm_value::value::Value;

use crate::config::{Config, ConfigError};

const BEGIN: &str =
    "# --- Enrolment, written by `ccm agent enroll`. The next enrolment replaces this part.";
const END: &str = "# --- End of enrolment";

/// Keys that enrolment sets, and `servers`, which it replaces by a context.
const KEYS: [&str; 7] = [
    "identity",
    "collective",
    "subject_prefix",
    "groups",
    "nats_context",
    "servers",
    "trust",
];

/// Why a configuration can't be written.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    #[error("the existing configuration sets {}", .0.join(", "))]
    Conflict(Vec<&'static str>),
    #[error("the existing configuration is not YAML")]
    NotYaml,
    #[error("the fleet sent an invalid trust section")]
    Trust,
    #[error("the configuration would be invalid: {0}")]
    Invalid(#[source] ConfigError),
}

/// Settings of an enrolled node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeSettings<'a> {
    pub(super) identity: &'a NodeName,
    pub(super) collective: &'a Token,
    pub(super) subject_prefix: &'a str,
    pub(super) groups: &'a [Token],
    pub(super) nats_context: &'a Path,
    /// The `trust` section, as YAML.
    pub(super) trust: &'a str,
}

impl NodeSettings<'_> {
    fn block(&self) -> Result<String, ConfigFileError> {
        let section = document::parse(self.trust).map_err(|_| ConfigFileError::Trust)?;
        let is_trust = section.entries().is_some_and(|entries| {
            let names = entries.iter().filter_map(|(name, _)| name.text());
            names.map(|name| &**name).eq(["trust"])
        });
        if !is_trust {
            return Err(ConfigFileError::Trust);
        }
        let groups: Vec<&str> = self.groups.iter().map(Token::as_str).collect();
        Ok(format!(
            "{BEGIN}\nidentity: {}\ncollective: {}\nsubject_prefix: {}\ngroups: [{}]\n\
             nats_context: {}\n{}\n{END}\n",
            self.identity,
            self.collective,
            self.subject_prefix,
            groups.join(", "),
            self.nats_context.display(),
            self.trust.trim_end(),
        ))
    }
}

/// Returns the existing configuration with the settings of the fleet. With `force`, settings that
/// differ are replaced.
pub(super) fn merge(
    existing: &str,
    settings: &NodeSettings<'_>,
    force: bool,
) -> Result<String, ConfigFileError> {
    let block = settings.block()?;
    let rest = without_block(existing);
    let invalid = |_| ConfigFileError::NotYaml;
    let (old, new) = (
        document::parse(&rest).map_err(invalid)?,
        document::parse(&block).map_err(invalid)?,
    );
    let conflicts = conflicts(&old, &new);
    if !conflicts.is_empty() && !force {
        return Err(ConfigFileError::Conflict(conflicts));
    }
    let rest = without_keys(&rest);
    let separator = if rest.trim().is_empty() { "" } else { "\n\n" };
    let merged = format!("{}{separator}{block}", rest.trim_end());
    Config::parse(&merged).map_err(ConfigFileError::Invalid)?;
    Ok(merged)
}

/// Returns the settings outside of the block of an earlier enrolment that would be replaced.
pub(super) fn replaced(existing: &str) -> Result<Vec<&'static str>, ConfigFileError> {
    let rest = without_block(existing);
    let old = document::parse(&rest).map_err(|_| ConfigFileError::NotYaml)?;
    let keys = ["nats_context", "servers", "trust"].into_iter();
    Ok(keys.filter(|key| old.get(key).is_some()).collect())
}

fn conflicts(old: &Node, new: &Node) -> Vec<&'static str> {
    let value = |node: &Node, key: &str| node.get(key).map(Node::to_value);
    let differs = |key: &&str| match value(old, key) {
        None | Some(Value::Null) => false,
        present => present != value(new, key),
    };
    KEYS.into_iter().filter(differs).collect()
}

/// Removes the block of an earlier enrolment.
fn without_block(text: &str) -> String {
    match text.split_once(BEGIN) {
        Some((before, rest)) => match rest.split_once(END) {
            Some((_, after)) => format!("{before}{}", after.trim_start_matches('\n')),
            None => before.to_owned(),
        },
        None => text.to_owned(),
    }
}

/// Removes the top-level keys that enrolment sets, with their values.
fn without_keys(text: &str) -> String {
    let mut kept = String::new();
    let mut is_skipping = false;
    for line in text.lines() {
        let is_nested = line.is_empty() || line.starts_with([' ', '\t', '-', ']', '}']);
        if !is_nested {
            let key = line.split_once(':').map(|(key, _)| key.trim_end());
            is_skipping = key.is_some_and(|key| KEYS.contains(&key));
        }
        if !is_skipping {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUST: &str = "# Signers.\ntrust:\n  signers:\n    - name: fleet\n      key: \
                         UABUTEEIXQBEB57L2N2V2M373ZFQQKDLORGEJN25BHDYNZQ2YSFOKERO\n";

    fn merged(existing: &str, groups: &[&str], force: bool) -> Result<String, ConfigFileError> {
        let groups: Vec<Token> = groups.iter().map(|name| name.parse().unwrap()).collect();
        let settings = NodeSettings {
            identity: &"web1.example.net".parse().unwrap(),
            collective: &Token::default_collective(),
            subject_prefix: "ccm.v1",
            groups: &groups,
            nats_context: Path::new("/etc/choria/ccm/nats-context.json"),
            trust: TRUST,
        };
        merge(existing, &settings, force)
    }

    #[test]
    fn comments_and_other_settings_are_kept() {
        let shipped = include_str!("../../../../packaging/agent.yaml");
        let text = merged(shipped, &["web"], false).unwrap();
        assert!(text.starts_with(shipped.trim_end()), "{text}");
        let config = Config::parse(&text).unwrap();
        assert_eq!(config.identity.as_str(), "web1.example.net");
        assert_eq!(config.groups.len(), 1);
        assert_eq!(config.trust.unwrap().signers.len(), 1);
        let path = Some("/etc/choria/ccm/nats-context.json".to_owned());
        assert_eq!(config.nats_context, path);
    }

    #[test]
    fn a_second_enrolment_replaces_the_first() {
        let first = merged("interval: 1m\n", &["web"], false).unwrap();
        assert_eq!(merged(&first, &["web"], false).unwrap(), first);
        let second = merged(&first, &["db"], false).unwrap();
        assert!(!second.contains("web]"), "{second}");
        assert!(replaced(&second).unwrap().is_empty());
    }

    #[test]
    fn settings_that_differ_are_conflicts_unless_forced() {
        let existing = "identity: other\nservers:\n- nats://a\n- nats://b\ntrust:\n  required: \
                        false\n\ninterval: 1m\n";
        let error = merged(existing, &[], false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the existing configuration sets identity, servers, trust"
        );
        let config = Config::parse(&merged(existing, &[], true).unwrap()).unwrap();
        assert!(config.servers.is_empty());
        assert_eq!(config.identity.as_str(), "web1.example.net");
        assert_eq!(config.interval.as_secs(), 60);
    }

    #[test]
    fn equal_settings_are_no_conflict() {
        let text = merged("identity: web1.example.net\n", &[], false).unwrap();
        assert_eq!(text.matches("identity:").count(), 1, "{text}");
    }

    #[test]
    fn a_trust_section_with_other_keys_is_rejected() {
        let settings = |trust| {
            NodeSettings {
                identity: &NodeName::localhost(),
                collective: &Token::default_collective(),
                subject_prefix: "ccm.v1",
                groups: &[],
                nats_context: Path::new("/c"),
                trust,
            }
            .block()
        };
        for bad in ["", "trust: {}\nmanifests: [/tmp/x]\n", "x: 1\n", "["] {
            assert!(settings(bad).is_err(), "{bad}");
        }
    }
}
