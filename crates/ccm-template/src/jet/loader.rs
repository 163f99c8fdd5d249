//! Finds and parses the templates that a template names: extended, imported, included.
//!
//! Names are paths with `/` from the loader's root; a relative name starts beside the template
//! that has it. Where templates come from is the loader's business alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Options;
use super::ast::Unit;
use super::error::{Fault, Source, Span, Stage};
use super::parser;

/// Endings that a name may leave out.
const ENDINGS: [&str; 4] = ["", ".jet", ".html.jet", ".jet.html"];
/// How many templates may build on one another.
const MAX_LINEAGE: usize = 20;
/// The delimiters that Jet has when somebody asks for empty ones.
const JET_DELIMITERS: (&str, &str) = ("{{", "}}");

/// Why there is no such template.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShelfError {
    #[error("template {0} could not be found")]
    NotFound(String),
    #[error(transparent)]
    Parse(#[from] Fault),
}

/// The templates parsed so far, and how to get more.
pub(super) struct Shelf {
    options: Options,
    units: BTreeMap<String, Arc<Unit>>,
    lineage: usize,
}

impl Shelf {
    pub(super) fn new(options: Options) -> Self {
        Self {
            options,
            units: BTreeMap::new(),
            lineage: 0,
        }
    }

    pub(super) fn delimiters(&self) -> (&str, &str) {
        let Options { left, right, .. } = &self.options;
        let or = |given, own| if str::is_empty(given) { own } else { given };
        (or(left, JET_DELIMITERS.0), or(right, JET_DELIMITERS.1))
    }

    /// Returns the parsed form of a text.
    pub(super) fn parse(&mut self, name: &str, text: &[u8]) -> Result<Arc<Unit>, Fault> {
        let source = Arc::new(Source {
            name: join("/", name).into(),
            text: text.into(),
        });
        let refuse = |message| source.error(Stage::Parse, Span::default(), message);
        if u32::try_from(text.len()).is_err() {
            return Err(refuse("the template is larger than 4 GiB"));
        }
        if self.lineage >= MAX_LINEAGE {
            return Err(refuse("more than 20 templates build on one another"));
        }
        self.lineage += 1;
        let unit = parser::parse(source, self);
        self.lineage -= 1;
        unit.map(Arc::new)
    }

    /// Returns the template that `name` means inside the template `beside`, or why there is none.
    pub(super) fn sibling(&mut self, beside: &str, name: &str) -> Result<Arc<Unit>, ShelfError> {
        let path = join(parent(beside), name);
        self.find(&path)?.ok_or(ShelfError::NotFound(path))
    }

    /// Returns the template at an absolute path, if the loader has it.
    pub(super) fn find(&mut self, path: &str) -> Result<Option<Arc<Unit>>, Fault> {
        for ending in ENDINGS {
            let path = format!("{path}{ending}");
            if let Some(unit) = self.units.get(&path) {
                return Ok(Some(unit.clone()));
            }
            let text = self.options.loader.as_ref().and_then(|load| load(&path));
            if let Some(text) = text {
                let unit = self.parse(&path, &text)?;
                self.units.insert(path, unit.clone());
                return Ok(Some(unit));
            }
        }
        Ok(None)
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("/", |(parent, _)| parent)
}

/// Returns `name` as an absolute path without `.` and `..`; a relative one starts at `directory`.
pub(super) fn join(directory: &str, name: &str) -> String {
    let start = if name.starts_with('/') { "" } else { directory };
    let mut parts = Vec::new();
    for part in start.split('/').chain(name.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_absolute_and_clean_and_never_leave_the_root() {
        assert_eq!(join("/", "input"), "/input");
        assert_eq!(join("/a/b", "../c.jet"), "/a/c.jet");
        assert_eq!(join("/a", "/x/./y"), "/x/y");
        assert_eq!(join("/", "../../etc/passwd"), "/etc/passwd");
        assert_eq!(join(parent("/a/b.jet"), "./c"), "/a/c");
    }
}
