//! Pending refreshes: subscribers that must refresh because a resource changed, kept across runs.
//!
//! A refresh is written to disk before the change is made, so that neither a crash nor a failed run
//! loses it. It is removed if nothing changed, or once the subscriber was applied. Within a run, the
//! last event of a resource decides which subscribers refresh; pending refreshes apply to later runs.
//! A resource that failed half way refreshes nothing in this run, and its subscribers stay pending. At
//! worst a subscriber refreshes once too often. Other processes may run the same manifest, so each change
//! applies to what is on disk now. Without a file, nothing is kept after the run.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use crate::manifest::Manifest;
use crate::model::id::Reference;
use crate::model::resource::Resource;
use crate::system::files::{self, Durability, FileError};

/// The maximum size of the file.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The resources of one manifest whose refresh is pending, by `type#name`.
#[derive(Debug, Default)]
pub struct PendingRefreshes {
    file: Option<PathBuf>,
    labels: BTreeSet<String>,
    /// Left pending by earlier runs.
    earlier: BTreeSet<String>,
    /// Kept for the next run because the resource they subscribe to failed.
    kept: BTreeSet<String>,
}

impl PendingRefreshes {
    /// Reads the refreshes left by earlier runs; a missing file holds none.
    pub fn open(file: &Path) -> Result<Self, FileError> {
        let labels = read(file)?;
        Ok(Self {
            file: Some(file.to_owned()),
            earlier: labels.clone(),
            labels,
            kept: BTreeSet::new(),
        })
    }

    pub(super) fn contains(&self, label: &str) -> bool {
        self.labels.contains(label)
    }

    /// Reports whether an earlier run left a refresh that is still pending.
    pub(super) fn is_due(&self, label: &str) -> bool {
        self.contains(label) && self.earlier.contains(label)
    }

    /// Keeps refreshes for the next run, unless their subscribers refresh in this one.
    pub(super) fn keep_for_next_run(&mut self, labels: Vec<String>) {
        self.kept.extend(labels);
    }

    /// Reports whether a refresh is kept for the next run.
    pub(super) fn is_kept_for_next_run(&self, label: &str) -> bool {
        self.kept.contains(label)
    }

    /// Adds refreshes and saves the file.
    pub(super) fn add(&mut self, labels: &[String]) -> Result<(), FileError> {
        let before = self.labels.len();
        self.labels.extend(labels.iter().cloned());
        if self.labels.len() == before {
            return Ok(());
        }
        self.update(|stored| stored.extend(labels.iter().cloned()))
    }

    /// Removes refreshes that were performed or are not needed, and saves the file.
    pub(super) fn remove(&mut self, labels: &[String]) -> Result<(), FileError> {
        let before = self.labels.len();
        self.labels.retain(|label| !labels.contains(label));
        if self.labels.len() == before {
            return Ok(());
        }
        self.update(|stored| stored.retain(|label| !labels.contains(label)))
    }

    /// Changes the file, which is created with its directory if need be.
    fn update(&self, change: impl FnOnce(&mut BTreeSet<String>)) -> Result<(), FileError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut stored = read(file)?;
        change(&mut stored);
        if stored.is_empty() {
            return files::remove(file);
        }
        if let Some(directory) = file.parent() {
            files::create_private_dir(directory)?;
        }
        let mut text = String::new();
        for label in &stored {
            text.push_str(label);
            text.push('\n');
        }
        files::write_private(file, text.as_bytes(), Durability::Complete)
    }
}

/// Reads the labels in a file; a missing one holds none.
fn read(file: &Path) -> Result<BTreeSet<String>, FileError> {
    match files::read_to_string(file, MAX_BYTES) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(err) if err.is_not_found() => Ok(BTreeSet::new()),
        Err(err) => Err(err),
    }
}

/// The subscribers of each resource of one manifest.
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

    /// Returns the labels of the resources that subscribe to this one.
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
    fn a_refresh_is_due_in_later_runs_only() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pending");
        let label = vec!["service#shopd".to_owned()];
        let mut pending = PendingRefreshes::open(&file).unwrap();
        pending.add(&label).unwrap();
        assert!(!pending.is_due("service#shopd"));
        assert!(
            PendingRefreshes::open(&file)
                .unwrap()
                .is_due("service#shopd")
        );
    }

    #[test]
    fn a_refresh_is_kept_on_disk_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pending");
        let label = vec!["service#shopd".to_owned()];
        let mut pending = PendingRefreshes::open(&file).unwrap();
        pending.add(&label).unwrap();
        let mut again = PendingRefreshes::open(&file).unwrap();
        assert!(again.contains("service#shopd"));
        again.remove(&label).unwrap();
        assert!(
            !PendingRefreshes::open(&file)
                .unwrap()
                .contains("service#shopd")
        );
        assert!(files::inspect(&file, false).unwrap().is_none());
    }
}
