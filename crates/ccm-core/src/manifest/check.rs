//! Static checks of a loaded manifest: control expressions, references and deferred expressions, and
//! restrictions of upstream's manifest schema.

use std::collections::HashSet;

use super::{AppliedBefore, Manifest, ProblemKind, Problems, UnmetReason};
use crate::model::TypeName;
use crate::model::document::{Mark, nearest};
use crate::model::id::Reference;
use crate::model::resource::locate::Part;
use crate::model::resource::{Properties, Resource};
use ccm_template::expand::{self, has_expressions};
use ccm_template::expr::{self, Expect, ExprError};

/// Reports problems that prevent a run: control expressions that don't compile, `require` of a
/// resource that is not declared before, here or outside, invalid references and modes.
pub(super) fn gates(
    manifest: &Manifest,
    applied_before: Option<&AppliedBefore<'_>>,
    problems: &mut Problems<'_>,
) {
    let is_outside = |item: &str| {
        let reference = Reference::parse(item);
        applied_before
            .zip(reference)
            .is_some_and(|(applied_before, reference)| applied_before(reference))
    };
    each(manifest, |resource, mark, earlier| {
        let mut report = Report::new(resource, mark, problems);
        if let Some(control) = &resource.common.control {
            for (key, code) in [("if", &control.manage_if), ("unless", &control.unless)] {
                if !code.is_empty()
                    && let Err(err) = expr::compile(code, Expect::Bool)
                {
                    report.expression(Part::Key("control", key), err);
                }
            }
        }
        for item in missing(&resource.common.require, earlier).filter(|it| !is_outside(it)) {
            report.unmet("require", item, manifest);
        }
        let invalid = |it: &&String| !is_reference(it) && !has_expressions(it);
        for item in resource.subscribe().iter().filter(invalid) {
            let part = Part::Item("subscribe", item);
            report.at(part, ProblemKind::Subscribe(item.clone()));
        }
        if let Properties::File(file) = &resource.properties
            && !has_mode_digits(&file.mode)
            && !has_expressions(&file.mode)
        {
            report.at(Part::Property("mode"), ProblemKind::Mode(file.mode.clone()));
        }
    });
}

/// Reports the problems of one resource.
struct Report<'r, 'p, 'a> {
    resource: &'r Resource,
    mark: Mark,
    problems: &'p mut Problems<'a>,
}

impl<'r, 'p, 'a> Report<'r, 'p, 'a> {
    fn new(resource: &'r Resource, mark: Mark, problems: &'p mut Problems<'a>) -> Self {
        Self {
            resource,
            mark,
            problems,
        }
    }

    /// Reports a problem at a part of the resource.
    fn at(&mut self, part: Part<'_>, kind: impl Into<ProblemKind>) {
        let mark = self.problems.find(self.mark, part);
        let label = Some(self.resource.label());
        let is_hidden = self.resource.common.sensitive;
        self.problems.report_resource(mark, label, is_hidden, kind);
    }

    /// Reports an invalid expression; that of a sensitive resource is not shown.
    fn expression(&mut self, part: Part<'_>, error: ExprError) {
        let is_hidden = self.resource.common.sensitive;
        self.at(part, if is_hidden { ExprError::Hidden } else { error });
    }

    /// Reports a reference in a property to a resource that is not declared before.
    fn unmet(&mut self, property: &str, reference: &str, manifest: &Manifest) {
        let reason = unmet_reason(reference, self.resource, manifest, self.problems);
        let kind = ProblemKind::Unmet {
            reference: reference.to_owned(),
            reason,
        };
        self.at(Part::Item(property, reference), kind);
    }
}

/// Returns why a resource cannot refer to another one.
fn unmet_reason(
    reference: &str,
    from: &Resource,
    manifest: &Manifest,
    problems: &Problems<'_>,
) -> UnmetReason {
    if let Some(reason) = declared_reason(reference, from, manifest, 0) {
        return reason;
    }
    if let Some(mark) = problems.invalid(reference) {
        return UnmetReason::Invalid { line: mark.line };
    }
    let nearest = nearest_label(&from.label(), reference, manifest);
    UnmetReason::Undefined { nearest }
}

/// Returns why a resource, by its number from 0, cannot refer to one without events. Which resources
/// nested manifests have is not known here.
pub(super) fn unapplied_reason(manifest: &Manifest, index: usize, reference: &str) -> UnmetReason {
    let Some(from) = manifest.resources.get(index) else {
        return UnmetReason::NotApplied { nearest: None };
    };
    declared_reason(reference, from, manifest, index).unwrap_or_else(|| UnmetReason::NotApplied {
        nearest: nearest_label(&from.label(), reference, manifest),
    })
}

/// Returns why a resource cannot refer to itself or to one that is declared after a number of others.
fn declared_reason(
    reference: &str,
    from: &Resource,
    manifest: &Manifest,
    skipped: usize,
) -> Option<UnmetReason> {
    if is_named(from, reference) {
        return Some(UnmetReason::Itself);
    }
    let mut resources = manifest.resources.iter().zip(&manifest.marks).skip(skipped);
    let (found, mark) = resources.find(|(resource, _)| is_named(resource, reference))?;
    let line = mark.line;
    Some(if depends_on(found, from, manifest) {
        UnmetReason::Cycle { line }
    } else {
        UnmetReason::Later { line }
    })
}

/// Returns the declared resource that is most similar to a reference of another one.
fn nearest_label(from: &str, reference: &str, manifest: &Manifest) -> Option<String> {
    let labels = manifest.resources.iter().map(|it| it.label());
    let labels: Vec<String> = labels
        .filter(|label| label != reference && label != from)
        .collect();
    let known: Vec<&str> = labels.iter().map(String::as_str).collect();
    nearest(reference, &known).map(str::to_owned)
}

/// Reports whether a reference means this resource.
fn is_named(resource: &Resource, reference: &str) -> bool {
    let common = &resource.common;
    Reference::parse(reference).is_some_and(|Reference { type_name, name }| {
        type_name == resource.type_name().as_str() && (name == common.name || name == common.alias)
    })
}

/// Reports whether a resource requires another one, directly or through others.
fn depends_on(resource: &Resource, target: &Resource, manifest: &Manifest) -> bool {
    let mut seen: HashSet<&str> = HashSet::new();
    let mut open: Vec<&Resource> = vec![resource];
    while let Some(resource) = open.pop() {
        let references = resource.common.require.iter().chain(resource.subscribe());
        for reference in references.filter(|it| seen.insert(it)) {
            if is_named(target, reference) {
                return true;
            }
            let resources = manifest.resources.iter();
            open.extend(resources.map(|it| &**it).find(|it| is_named(it, reference)));
        }
    }
    false
}

/// Reports whether a text is a reference: a type in lower case and a name.
fn is_reference(text: &str) -> bool {
    Reference::parse(text).is_some_and(|Reference { type_name, name }| {
        let is_type = |c: char| c.is_ascii_lowercase();
        !type_name.is_empty() && type_name.chars().all(is_type) && !name.is_empty()
    })
}

/// Reports whether a mode has three or four octal digits, or is empty.
fn has_mode_digits(mode: &str) -> bool {
    let digits = mode
        .strip_prefix("0o")
        .or_else(|| mode.strip_prefix("0O"))
        .unwrap_or(mode);
    matches!(digits.len(), 0 | 3 | 4)
}

/// Reports problems that would fail a resource during the run.
pub(super) fn deferred(manifest: &Manifest, problems: &mut Problems<'_>) {
    each(manifest, |resource, mark, earlier| {
        let mut report = Report::new(resource, mark, problems);
        for item in missing(resource.subscribe(), earlier) {
            report.unmet("subscribe", item, manifest);
        }
        for text in resource.deferred_texts() {
            match expand::scan(text) {
                Err(err) => report.expression(Part::Containing(text), err),
                Ok(spans) => {
                    for span in spans {
                        let code = text.get(span.inner).unwrap_or_default();
                        if let Err(err) = expr::compile(code, Expect::Any) {
                            report.expression(Part::Containing(code), err);
                        }
                    }
                }
            }
        }
    });
}

/// Resources declared so far.
#[derive(Default)]
struct Earlier<'m> {
    names: HashSet<(&'m str, &'m str)>,
    /// Whether there is a nested manifest, which may declare any resource.
    has_apply: bool,
    /// Types with a resource whose name is not known; see [`super::load_known`].
    unnamed: HashSet<&'m str>,
}

/// Visits every resource with its position and the resources declared before it.
fn each<'m>(manifest: &'m Manifest, mut visit: impl FnMut(&'m Resource, Mark, &Earlier<'m>)) {
    let mut earlier = Earlier::default();
    for (resource, mark) in manifest.resources.iter().zip(&manifest.marks) {
        visit(resource, *mark, &earlier);
        let type_name = resource.type_name();
        earlier.has_apply |= type_name == TypeName::Apply;
        for name in [&resource.common.name, &resource.common.alias] {
            earlier.names.insert((type_name.as_str(), name));
            if has_expressions(name) {
                earlier.unnamed.insert(type_name.as_str());
            }
        }
    }
}

/// Returns the references to resources that are not declared before.
fn missing<'r>(
    references: &'r [String],
    earlier: &'r Earlier<'_>,
) -> impl Iterator<Item = &'r str> {
    references
        .iter()
        .filter(|item| {
            !earlier.has_apply
                && !has_expressions(item)
                && Reference::parse(item).is_some_and(|r| {
                    let is_known = earlier.names.contains(&(r.type_name, r.name));
                    !is_known && !earlier.unnamed.contains(r.type_name)
                })
        })
        .map(String::as_str)
}
