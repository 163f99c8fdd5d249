//! Refreshes that are pending: a resource changed, and what subscribes to it has not yet refreshed.
//!
//! The debt is on disk before the change is made, so that neither a crash nor a failed run loses
//! it; it is taken back if nothing changed, and settled once the subscriber came through. Within a
//! run the last event of a resource decides who refreshes; debts are for the runs after it. So what
//! failed half way refreshes nothing now, and its debt stays. At worst a subscriber refreshes once
//! too often. Without a file, nothing outlives the run.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use crate::manifest::Manifest;
use crate::model::id::Reference;
use crate::model::resource::Resource;
use crate::system::files::{self, Durability, FileError};

/// No list of debts is larger.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The resources of one manifest that must refresh, by `type#name`.
#[derive(Debug, Default)]
pub struct PendingRefreshes {
    file: Option<PathBuf>,
    labels: BTreeSet<String>,
    /// Those that earlier runs left.
    earlier: BTreeSet<String>,
    /// Those that this run leaves because what they depend on failed.
    left: BTreeSet<String>,
}

impl PendingRefreshes {
    /// Opens the debts of earlier runs; a file that does not exist holds none.
    pub fn open(file: &Path) -> Result<Self, FileError> {
        let labels: BTreeSet<String> = match files::read_to_string(file, MAX_BYTES) {
            Ok(text) => text.lines().map(str::to_owned).collect(),
            Err(err) if err.is_not_found() => BTreeSet::new(),
            Err(err) => return Err(err),
        };
        Ok(Self {
            file: Some(file.to_owned()),
            earlier: labels.clone(),
            labels,
            left: BTreeSet::new(),
        })
    }

    pub(super) fn contains(&self, label: &str) -> bool {
        self.labels.contains(label)
    }

    /// Reports whether an earlier run left a debt that is still open.
    pub(super) fn is_due(&self, label: &str) -> bool {
        self.contains(label) && self.earlier.contains(label)
    }

    /// Keeps debts for the next run, unless their subscribers refresh in this one.
    pub(super) fn leave(&mut self, labels: Vec<String>) {
        self.left.extend(labels);
    }

    /// Reports whether a debt is kept for the next run.
    pub(super) fn is_left(&self, label: &str) -> bool {
        self.left.contains(label)
    }

    /// Adds debts.
    pub(super) fn promise(&mut self, labels: &[String]) -> Result<(), FileError> {
        let before = self.labels.len();
        self.labels.extend(labels.iter().cloned());
        if self.labels.len() == before {
            return Ok(());
        }
        self.save()
    }

    /// Strikes debts out: they were paid, or never came to be.
    pub(super) fn settle(&mut self, labels: &[String]) -> Result<(), FileError> {
        let before = self.labels.len();
        for label in labels {
            self.labels.remove(label);
        }
        if self.labels.len() == before {
            return Ok(());
        }
        self.save()
    }

    fn save(&self) -> Result<(), FileError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        if self.labels.is_empty() {
            return files::remove(file);
        }
        let mut text = String::new();
        for label in &self.labels {
            text.push_str(label);
            text.push('\n');
        }
        files::write_private(file, text.as_bytes(), Durability::Complete)
    }
}

/// Who subscribes to what in one manifest.
#[derive(Debug, Default)]
pub(super) struct Subscribers(HashMap<(String, String), Vec<String>>);

impl Subscribers {
    pub(super) fn of(manifest: &Manifest) -> Self {
        let mut by_reference: HashMap<_, Vec<String>> = HashMap::new();
        for resource in &manifest.resources {
            for item in resource.subscribe() {
                if let Some(Reference { type_name, name }) = Reference::parse(item) {
                    let key = (type_name.to_owned(), name.to_owned());
                    by_reference.entry(key).or_default().push(resource.label());
                }
            }
        }
        Self(by_reference)
    }

    /// Returns the labels of what must refresh when this resource changes.
    pub(super) fn to(&self, resource: &Resource) -> Vec<String> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let type_name = resource.type_name().as_str();
        let names = [&resource.common.name, &resource.common.alias];
        names
            .into_iter()
            .filter(|name| !name.is_empty())
            .filter_map(|name| self.0.get(&(type_name.to_owned(), name.clone())))
            .flatten()
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_due_in_the_runs_after_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pending");
        let label = vec!["service#shopd".to_owned()];
        let mut pending = PendingRefreshes::open(&file).unwrap();
        pending.promise(&label).unwrap();
        assert!(!pending.is_due("service#shopd"));
        assert!(
            PendingRefreshes::open(&file)
                .unwrap()
                .is_due("service#shopd")
        );
    }

    #[test]
    fn a_debt_survives_the_process_and_goes_when_it_is_settled() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pending");
        let label = vec!["service#shopd".to_owned()];
        let mut pending = PendingRefreshes::open(&file).unwrap();
        pending.promise(&label).unwrap();
        let mut again = PendingRefreshes::open(&file).unwrap();
        assert!(again.contains("service#shopd"));
        again.settle(&label).unwrap();
        assert!(
            !PendingRefreshes::open(&file)
                .unwrap()
                .contains("service#shopd")
        );
        assert!(files::inspect(&file, false).unwrap().is_none());
    }
}
