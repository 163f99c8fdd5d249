//! What can be known to go wrong without running: gates that can't be evaluated, references to
//! nothing, expressions that don't compile, and what only manifests refuse, as upstream's schema
//! does.

use std::collections::HashSet;

use super::{Manifest, ProblemKind, Problems};
use crate::model::TypeName;
use crate::model::document::Mark;
use crate::model::id::Reference;
use crate::model::resource::{Properties, Resource};
use ccm_template::expand;
use ccm_template::expr::{self, Expect};

/// Reports what would end a run half way: control expressions that don't compile and requirements
/// that nothing before them meets.
pub(super) fn gates(manifest: &Manifest, problems: &mut Problems<'_>) {
    each(manifest, |resource, mark, earlier| {
        let mut report = |kind: ProblemKind| problems.report(mark, Some(resource.label()), kind);
        if let Some(control) = &resource.common.control {
            for code in [&control.manage_if, &control.unless] {
                if !code.is_empty()
                    && let Err(err) = expr::compile(code, Expect::Bool)
                {
                    report(err.into());
                }
            }
        }
        for item in missing(&resource.common.require, earlier) {
            report(ProblemKind::NothingBefore(item.into()));
        }
        for item in resource.subscribe().iter().filter(|it| !is_reference(it)) {
            report(ProblemKind::Subscribe(item.clone()));
        }
        if let Properties::File(file) = &resource.properties
            && !is_whole_mode(&file.mode)
        {
            report(ProblemKind::Mode(file.mode.clone()));
        }
    });
}

/// Reports whether a text can name a resource: a type in lower case and a name.
fn is_reference(text: &str) -> bool {
    Reference::parse(text).is_some_and(|Reference { type_name, name }| {
        let is_type = |c: char| c.is_ascii_lowercase();
        !type_name.is_empty() && type_name.chars().all(is_type) && !name.is_empty()
    })
}

/// Reports whether a mode says something of owner, group and others. None says nothing.
fn is_whole_mode(mode: &str) -> bool {
    let digits = mode
        .strip_prefix("0o")
        .or_else(|| mode.strip_prefix("0O"))
        .unwrap_or(mode);
    matches!(digits.len(), 0 | 3 | 4)
}

/// Reports what would fail a resource once its turn comes.
pub(super) fn later(manifest: &Manifest, problems: &mut Problems<'_>) {
    each(manifest, |resource, mark, earlier| {
        let mut report = |kind: ProblemKind| problems.report(mark, Some(resource.label()), kind);
        for item in missing(resource.subscribe(), earlier) {
            report(ProblemKind::NothingBefore(item.into()));
        }
        for text in resource.deferred_texts() {
            match expand::scan(text) {
                Err(err) => report(err.into()),
                Ok(spans) => {
                    for span in spans {
                        let code = text.get(span.inner).unwrap_or_default();
                        if let Err(err) = expr::compile(code, Expect::Any) {
                            report(err.into());
                        }
                    }
                }
            }
        }
    });
}

/// What has been declared so far.
#[derive(Default)]
struct Earlier<'m> {
    names: HashSet<(&'m str, &'m str)>,
    /// A nested manifest may declare anything.
    has_apply: bool,
}

/// Visits every resource with its place and what was declared before it.
fn each<'m>(manifest: &'m Manifest, mut visit: impl FnMut(&'m Resource, Mark, &Earlier<'m>)) {
    let mut earlier = Earlier::default();
    for (resource, mark) in manifest.resources.iter().zip(&manifest.marks) {
        visit(resource, *mark, &earlier);
        let type_name = resource.type_name();
        earlier.has_apply |= type_name == TypeName::Apply;
        for name in [&resource.common.name, &resource.common.alias] {
            earlier.names.insert((type_name.as_str(), name));
        }
    }
}

/// Returns the references that nothing earlier meets.
fn missing<'r>(
    references: &'r [String],
    earlier: &'r Earlier<'_>,
) -> impl Iterator<Item = &'r str> {
    references
        .iter()
        .filter(|item| {
            !earlier.has_apply
                && Reference::parse(item)
                    .is_some_and(|r| !earlier.names.contains(&(r.type_name, r.name)))
        })
        .map(String::as_str)
}
