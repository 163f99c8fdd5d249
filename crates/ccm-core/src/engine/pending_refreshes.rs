//! Pending refreshes: subscribers that must refresh because a resource changed, kept across runs.
//!
//! A refresh is written to disk before the change is made, so that neither a crash nor a failed run
//! loses it. It is removed if nothing changed, or once the subscriber was applied. Within a run, the
//! last event of a resource decides which subscribers refresh; pending refreshes apply to later runs.
//! A resource that failed half way refreshes nothing in this run, and its subscribers stay pending. At
//! worst a subscriber refreshes once too often. Without a file, nothing is kept after the run.
//!
//! What a nested manifest subscribes to is known once it is loaded. Until then its own label stands for
//! all its subscribers; [`PendingRefreshes::expand`] replaces it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::manifest::Manifest;
use crate::model::TypeName;
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
        let labels: BTreeSet<String> = match files::read_to_string(file, MAX_BYTES) {
            Ok(text) => text.lines().map(str::to_owned).collect(),
            Err(err) if err.is_not_found() => BTreeSet::new(),
            Err(err) => return Err(err),
        };
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
        self.save()
    }

    /// Removes refreshes that were performed or are not needed, and saves the file.
    pub(super) fn remove(&mut self, labels: &[String]) -> Result<(), FileError> {
        let before = self.labels.len();
        for label in labels {
            self.labels.remove(label);
        }
        if self.labels.len() == before {
            return Ok(());
        }
        self.save()
    }

    /// Replaces the refresh of a nested manifest, if pending, by those of its resources. They are due
    /// in this run if an earlier run left them.
    pub(super) fn expand(&mut self, child: &str, labels: Vec<String>) -> Result<(), FileError> {
        if self.is_due(child) {
            self.earlier.extend(labels.iter().cloned());
        }
        if !self.labels.remove(child) {
            return Ok(());
        }
        self.labels.extend(labels);
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

/// The subscriptions of the manifest being run and of those that contain it, innermost last.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Vec<ManifestSubscribers>);

#[derive(Debug)]
struct ManifestSubscribers {
    by_reference: HashMap<(String, String), Vec<String>>,
    /// Labels of the nested manifests that follow, the next one last.
    children: Vec<String>,
}

impl Subscribers {
    /// Adds the subscriptions of a manifest that is about to run.
    pub(super) fn enter(&mut self, manifest: &Manifest) {
        let mut by_reference: HashMap<_, Vec<String>> = HashMap::new();
        let mut children = Vec::new();
        for resource in &manifest.resources {
            for item in resource.subscribe() {
                if let Some(Reference { type_name, name }) = Reference::parse(item) {
                    let key = (type_name.to_owned(), name.to_owned());
                    by_reference.entry(key).or_default().push(resource.label());
                }
            }
            if resource.type_name() == TypeName::Apply {
                children.push(resource.label());
            }
        }
        children.reverse();
        self.0.push(ManifestSubscribers {
            by_reference,
            children,
        });
    }

    /// Removes the subscriptions of the innermost manifest after its run.
    pub(super) fn leave(&mut self) {
        self.0.pop();
    }

    /// Records that the next resource of the innermost manifest is about to be applied.
    pub(super) fn reach(&mut self, resource: &Resource) {
        if resource.type_name() == TypeName::Apply
            && let Some(manifest) = self.0.last_mut()
        {
            manifest.children.pop();
        }
    }

    /// Returns the labels of the resources that subscribe to this one, and of the nested manifests
    /// that follow: what those subscribe to is known once they are loaded.
    pub(super) fn to(&self, resource: &Resource) -> Vec<String> {
        let type_name = resource.type_name();
        let mut labels = Vec::new();
        for manifest in &self.0 {
            // Resources of a nested manifest add the manifests that follow it themselves.
            if type_name != TypeName::Apply {
                labels.extend(manifest.children.iter().cloned());
            }
            if manifest.by_reference.is_empty() {
                continue;
            }
            let names = [&resource.common.name, &resource.common.alias];
            for name in names.into_iter().filter(|name| !name.is_empty()) {
                let key = (type_name.as_str().to_owned(), name.clone());
                labels.extend(
                    manifest
                        .by_reference
                        .get(&key)
                        .into_iter()
                        .flatten()
                        .cloned(),
                );
            }
        }
        labels
    }
}

/// Returns the labels in a nested manifest that subscribe to resources outside of it for which
/// `is_changed` holds, and the labels of its own nested manifests.
pub(super) fn outside_subscribers(
    manifest: &Manifest,
    is_changed: impl Fn(Reference<'_>) -> bool,
) -> Vec<String> {
    let mut inside = HashSet::new();
    let mut labels = Vec::new();
    for resource in &manifest.resources {
        let type_name = resource.type_name();
        let is_due = |item: &String| {
            Reference::parse(item).is_some_and(|reference| {
                !inside.contains(&(reference.type_name, reference.name)) && is_changed(reference)
            })
        };
        if type_name == TypeName::Apply || resource.subscribe().iter().any(is_due) {
            labels.push(resource.label());
        }
        for name in [&resource.common.name, &resource.common.alias] {
            inside.insert((type_name.as_str(), name.as_str()));
        }
    }
    labels
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
