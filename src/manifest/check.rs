//! What can be known to go wrong without running: gates that can't be evaluated, references to
//! nothing, expressions that don't compile.

use std::collections::HashSet;

use super::{Manifest, Problems};
use crate::model::TypeName;
use crate::model::document::Mark;
use crate::model::id::Reference;
use crate::model::resource::Resource;
use crate::template::expand;
use crate::template::expr::{self, Expect};

/// Reports what would end a run half way: control expressions that don't compile and requirements
/// that nothing before them meets.
pub(super) fn gates(manifest: &Manifest, problems: &mut Problems<'_>) {
    each(manifest, |resource, mark, earlier| {
        let mut report = |message: String| problems.report(mark, Some(resource.label()), message);
        if let Some(control) = &resource.common.control {
            for code in [&control.manage_if, &control.unless] {
                if !code.is_empty()
                    && let Err(err) = expr::compile(code, Expect::Bool)
                {
                    report(err.to_string());
                }
            }
        }
        for item in missing(&resource.common.require, earlier) {
            report(format!(
                "no events found for {item}: nothing before it is that"
            ));
        }
    });
}

/// Reports what would fail a resource once its turn comes.
pub(super) fn later(manifest: &Manifest, problems: &mut Problems<'_>) {
    each(manifest, |resource, mark, earlier| {
        let mut report = |message: String| problems.report(mark, Some(resource.label()), message);
        for item in missing(resource.subscribe(), earlier) {
            report(format!(
                "no events found for {item}: nothing before it is that"
            ));
        }
        for text in resource.deferred_texts() {
            match expand::scan(text) {
                Err(err) => report(err.to_string()),
                Ok(spans) => {
                    for span in spans {
                        let code = text.get(span.inner).unwrap_or_default();
                        if let Err(err) = expr::compile(code, Expect::Any) {
                            report(err.to_string());
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
