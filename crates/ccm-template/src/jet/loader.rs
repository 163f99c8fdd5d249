//! Loading and parsing of the templates that a template refers to: extended, imported, included.
//!
//! Names are paths from the loader's root, separated by `/`; a relative name starts at the
//! directory of the template that contains it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Options;
use super::ast::ParsedTemplate;
use super::error::{Fault, Source, Span, Stage};
use super::parser;

/// File extensions that a name may omit.
const EXTENSIONS: [&str; 4] = ["", ".jet", ".html.jet", ".jet.html"];
/// Maximum number of templates that extend or import one another.
const MAX_ANCESTORS: usize = 20;
/// Jet's default delimiters, used when empty ones are given.
const JET_DELIMITERS: (&str, &str) = ("{{", "}}");

/// Error of loading a template.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("template {0} could not be found")]
    NotFound(String),
    #[error(transparent)]
    Parse(#[from] Fault),
}

/// Parsed templates by path, and the loader for more.
pub(super) struct TemplateCache {
    options: Options,
    units: BTreeMap<String, Arc<ParsedTemplate>>,
    depth: usize,
}

impl TemplateCache {
    pub(super) fn new(options: Options) -> Self {
        Self {
            options,
            units: BTreeMap::new(),
            depth: 0,
        }
    }

    pub(super) fn delimiters(&self) -> (&str, &str) {
        let Options { left, right, .. } = &self.options;
        let or = |given, own| if str::is_empty(given) { own } else { given };
        (or(left, JET_DELIMITERS.0), or(right, JET_DELIMITERS.1))
    }

    /// Parses a template.
    pub(super) fn parse(&mut self, name: &str, text: &[u8]) -> Result<Arc<ParsedTemplate>, Fault> {
        let source = Arc::new(Source {
            name: join("/", name).into(),
            text: text.into(),
        });
        let refuse = |message| source.error(Stage::Parse, Span::default(), message);
        if u32::try_from(text.len()).is_err() {
            return Err(refuse("the template is larger than 4 GiB"));
        }
        if self.depth >= MAX_ANCESTORS {
            return Err(refuse(
                "more than 20 templates extend or import one another",
            ));
        }
        self.depth += 1;
        let parsed = parser::parse(source, self);
        self.depth -= 1;
        parsed.map(Arc::new)
    }

    /// Returns the template `name`, relative to the template `relative_to`.
    pub(super) fn load_relative(
        &mut self,
        relative_to: &str,
        name: &str,
    ) -> Result<Arc<ParsedTemplate>, LoadError> {
        let path = join(parent(relative_to), name);
        self.find(&path)?.ok_or(LoadError::NotFound(path))
    }

    /// Returns the template at an absolute path; `None` if the loader does not have it.
    pub(super) fn find(&mut self, path: &str) -> Result<Option<Arc<ParsedTemplate>>, Fault> {
        for ending in EXTENSIONS {
            let path = format!("{path}{ending}");
            if let Some(parsed) = self.units.get(&path) {
                return Ok(Some(parsed.clone()));
            }
            let text = self.options.loader.as_ref().and_then(|load| load(&path));
            if let Some(text) = text {
                let parsed = self.parse(&path, &text)?;
                self.units.insert(path, parsed.clone());
                return Ok(Some(parsed));
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
