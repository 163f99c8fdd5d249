//! `ccm doctor` and `ccm fleet doctor`: each thing that can be wrong is broken for real, and named
//! with a remedy.

mod credentials;
mod fleet;
mod node;
mod unit;

use serde_json::Value;

use crate::support::{Outcome, TestEnv};

/// What a diagnosis printed.
pub(crate) struct Diagnosis {
    code: Option<i32>,
    document: Value,
}

impl Diagnosis {
    /// Reads what `--json` printed.
    pub(crate) fn read(outcome: &Outcome) -> Self {
        let document = serde_json::from_str(&outcome.stdout);
        Self {
            code: outcome.code,
            document: document.unwrap_or_else(|err| panic!("{err}: {outcome:?}")),
        }
    }

    /// Returns a check.
    fn check(&self, name: &str) -> &Value {
        let checks = self.document["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["name"] == name);
        found.unwrap_or_else(|| panic!("no check {name} in {:#}", self.document))
    }

    fn state(&self, name: &str) -> &str {
        self.check(name)["state"].as_str().unwrap()
    }

    /// Asserts the verdict about one thing: the state, what was found, and the remedy.
    pub(crate) fn assert(&self, name: &str, state: &str, found: &str, remedy: &str) {
        let check = self.check(name);
        let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
        assert_eq!(text("state"), state, "{check:#}");
        assert!(text("found").contains(found), "{check:#}");
        assert!(text("remedy").contains(remedy), "{check:#}");
        let wanted = i32::from(self.document["state"] == "failed");
        assert_eq!(self.code, Some(wanted), "{:#}", self.document);
    }

    /// Returns the names of checks that failed.
    fn failed(&self) -> Vec<&str> {
        let checks = self.document["checks"].as_array().unwrap().iter();
        let failed = checks.filter(|check| check["state"] == "failed");
        failed
            .map(|check| check["name"].as_str().unwrap())
            .collect()
    }
}

/// Diagnoses a node by its configuration file.
fn diagnose(env: &TestEnv, config: &str) -> Diagnosis {
    Diagnosis::read(&env.ccm(&["doctor", "--json", "--config", config]))
}
