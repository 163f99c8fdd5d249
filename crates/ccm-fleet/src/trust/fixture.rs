//! For tests: a trust directory whose changes can be interrupted.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::{InitOptions, TrustDir, store_secret};
use crate::role_permissions::{AgentFeatures, FleetNames};
use ccm_core::system::files;
use ccm_value::secret::Secret;

pub(super) const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

/// A trust directory whose changes can be interrupted.
pub(super) struct Directory {
    _parent: tempfile::TempDir,
    pub(super) trust: TrustDir,
    /// Files that may change.
    changed: &'static [&'static str],
}

impl Directory {
    pub(super) fn new(changed: &'static [&'static str]) -> Self {
        let parent = tempfile::tempdir().unwrap();
        let options = InitOptions {
            names: FleetNames {
                prefix: "ccm".into(),
                collective: "default".parse().unwrap(),
            },
            listen: "127.0.0.1:4222".into(),
            hosts: vec!["localhost".into()],
            port: 4222,
            features: AgentFeatures::default(),
            tls: None,
        };
        let trust = TrustDir::init(&parent.path().join("trust"), &options, NOW).unwrap();
        Self {
            _parent: parent,
            trust,
            changed,
        }
    }

    fn files(&self) -> BTreeMap<&'static str, String> {
        let read = |name: &&'static str| {
            let text = std::fs::read_to_string(self.trust.at(name));
            Some((*name, text.ok()?))
        };
        self.changed.iter().filter_map(read).collect()
    }

    /// Runs a change, and takes back all of it except the files that were stored before it was
    /// interrupted.
    pub(super) fn interrupt(&mut self, stored: &[&str], change: impl FnOnce(&mut TrustDir)) {
        let before = self.files();
        change(&mut self.trust);
        for name in self.changed.iter().filter(|name| !stored.contains(name)) {
            match before.get(name) {
                Some(text) => {
                    store_secret(&self.trust.at(name), &Secret::new(text.clone())).unwrap();
                }
                None => files::remove(&self.trust.at(name)).unwrap(),
            }
        }
        self.trust = TrustDir::open(self.trust.path()).unwrap();
    }
}
