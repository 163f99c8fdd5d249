//! Data files: levels of a hierarchy that are files beside the document.
//!
//! An entry of `hierarchy.order` that ends with `.yaml`, `.yml` or `.json` names a file, relative to the
//! directory of the document. Only names are checked here; the caller reads the files.

use std::fmt;
use std::path::{Component, Path};

use super::error::HieraError;

/// Endings of entries that name a file.
const ENDINGS: [&str; 3] = [".yaml", ".yml", ".json"];

/// Path of a data file, relative to the directory of its document and inside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile(String);

impl DataFile {
    /// Reports whether an entry of the order, as written, names a file.
    pub(super) fn is_entry(entry: &str) -> bool {
        let is_ending = |ending: &str| {
            let stem = entry.strip_suffix(ending);
            stem.is_some_and(|stem| !stem.is_empty() && !stem.ends_with('/'))
        };
        ENDINGS.into_iter().any(is_ending)
    }

    /// Returns the data file of a name, which facts may be part of.
    pub(super) fn new(name: &str) -> Result<Self, HieraError> {
        let is_inside = |component: Component<'_>| {
            matches!(component, Component::Normal(_) | Component::CurDir)
        };
        match Path::new(name).components().all(is_inside) && !name.contains('\0') {
            true => Ok(Self(name.into())),
            false => Err(HieraError::DataFileOutside(name.into())),
        }
    }

    pub fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl fmt::Display for DataFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_with_the_ending_of_a_document_are_files() {
        for entry in ["a.yaml", "data/env/{{ Facts.env }}.yml", "x/y.json"] {
            assert!(DataFile::is_entry(entry), "{entry}");
        }
        for entry in [
            "role:web",
            "yaml",
            ".yaml",
            "env/.json",
            "a.yaml.d",
            "{{ Facts.file }}",
        ] {
            assert!(!DataFile::is_entry(entry), "{entry}");
        }
    }

    #[test]
    fn a_name_that_leaves_the_directory_is_refused() {
        for name in [
            "../a.yaml",
            "a/../../b.yaml",
            "a/../b.yaml",
            "/etc/a.yaml",
            "a\0.yaml",
        ] {
            assert_eq!(
                DataFile::new(name),
                Err(HieraError::DataFileOutside(name.into())),
                "{name}"
            );
        }
        for name in ["a.yaml", "./a.yaml", "a//b.yaml", "a/..b.yaml"] {
            DataFile::new(name).unwrap();
        }
    }
}
