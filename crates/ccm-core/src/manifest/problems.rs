//! Collection of the problems of a manifest, each with its position and source line.
//!
//! The resources may be in the output of a template. Their problems are located there, with the
//! line of the template as a note.

use std::cell::OnceCell;

use super::error::{Problem, ProblemKind, TemplateError};
use crate::model::TypeName;
use crate::model::diagnostic::{Location, Note};
use crate::model::document::{Mark, Node, parse};
use crate::model::resource::locate::{Part, find_part};
use ccm_template::UnknownValue;

/// Problems of one manifest.
pub(super) struct Problems<'a> {
    source: &'a str,
    text: &'a str,
    /// Output of the template that renders the resources, if there is one.
    rendered: Option<ResourceText>,
    /// Document of the resources, parsed when the first position is searched.
    document: OnceCell<Option<Node>>,
    /// Labels and lines of resources that could not be read.
    invalid: Vec<(String, Mark)>,
    reported: ReportedProblems,
}

/// Reported problems, in the order of the text.
#[derive(Default)]
pub(super) struct ReportedProblems {
    pub(super) problems: Vec<Problem>,
    /// What could not be checked, because values are not known.
    pub(super) unchecked: Vec<Problem>,
}

/// Text that the resources are in: the manifest, or the output of its template.
#[derive(Clone, Debug, Default)]
pub(super) struct ResourceText {
    pub(super) name: String,
    pub(super) text: String,
    /// Template that the text was rendered by.
    origin: Option<TemplateOrigin>,
}

#[derive(Clone, Debug)]
struct TemplateOrigin {
    file: String,
    template: String,
    /// Position of the template's name in the manifest.
    used_at: Location,
}

impl<'a> Problems<'a> {
    pub(super) fn new(source: &'a str, text: &'a str) -> Self {
        Self {
            source,
            text,
            rendered: None,
            document: OnceCell::new(),
            invalid: Vec::new(),
            reported: ReportedProblems::default(),
        }
    }

    /// Returns the number of problems, including what could not be checked.
    pub(super) fn count(&self) -> usize {
        self.reported.problems.len() + self.reported.unchecked.len()
    }

    fn add(&mut self, problem: Problem) {
        match problem.unknown_value() {
            Some(_) => self.reported.unchecked.push(problem),
            None => self.reported.problems.push(problem),
        }
    }

    /// Sets the text that the resources are in: the output of a template, which is named at a position
    /// of the manifest.
    pub(super) fn set_rendered(&mut self, file: &str, template: String, text: String, mark: Mark) {
        self.rendered = Some(ResourceText {
            name: format!("output of {file}"),
            text,
            origin: Some(TemplateOrigin {
                file: file.to_owned(),
                template,
                used_at: Location::new(self.source, self.text, mark),
            }),
        });
    }

    /// Returns the text that the resources are in.
    pub(super) fn resource_text(&self) -> ResourceText {
        self.rendered.clone().unwrap_or_else(|| ResourceText {
            name: self.source.into(),
            text: self.text.into(),
            origin: None,
        })
    }

    /// Reports a problem of the manifest itself.
    pub(super) fn report(
        &mut self,
        mark: Mark,
        label: Option<String>,
        kind: impl Into<ProblemKind>,
    ) {
        let kind = kind.into();
        let mark = refine(self.text, mark, &kind);
        self.add(Problem {
            location: Location::new(self.source, self.text, mark),
            notes: Vec::new(),
            label,
            kind,
        });
    }

    /// Reports a problem of a resource; the source lines of sensitive ones are hidden.
    pub(super) fn report_resource(
        &mut self,
        mark: Mark,
        label: Option<String>,
        is_hidden: bool,
        kind: impl Into<ProblemKind>,
    ) {
        let kind = kind.into();
        let (mut location, mut notes) = match &self.rendered {
            None => {
                let mark = refine(self.text, mark, &kind);
                (Location::new(self.source, self.text, mark), Vec::new())
            }
            Some(rendered) => {
                let mark = refine(&rendered.text, mark, &kind);
                let location = Location::new(&rendered.name, &rendered.text, mark);
                (location, rendered.notes(mark))
            }
        };
        if is_hidden {
            location.line = None;
            notes.iter_mut().for_each(|note| note.location.line = None);
        }
        self.add(Problem {
            location,
            notes,
            label,
            kind,
        });
    }

    /// Reports a problem of the template that renders the resources.
    pub(super) fn report_template(
        &mut self,
        mark: Mark,
        file: &str,
        template: &str,
        error: TemplateError,
    ) {
        let manifest = Location::new(self.source, self.text, mark);
        let location = match &error {
            TemplateError::Render(err) => err.diagnostic(file, template.as_bytes()).location,
            _ => return self.report(mark, None, error),
        };
        self.add(Problem {
            location,
            notes: vec![Note {
                message: "used here".into(),
                location: manifest,
                is_origin: false,
            }],
            label: None,
            kind: error.into(),
        });
    }

    /// Records the names of resources that could not be read, for problems of references to them.
    pub(super) fn add_invalid(&mut self, type_name: TypeName, node: &Node) {
        let mut add = |name: &str, mark| self.invalid.push((format!("{type_name}#{name}"), mark));
        if let Some(name) = node.get("name").and_then(Node::text) {
            add(name, node.mark);
        }
        for item in node.items().unwrap_or_default() {
            for (key, _) in item.entries().unwrap_or_default() {
                add(key.text().map_or("", |text| &**text), key.mark);
            }
        }
    }

    pub(super) fn add_invalid_label(&mut self, label: String, mark: Mark) {
        self.invalid.push((label, mark));
    }

    /// Returns the position of a resource that could not be read.
    pub(super) fn invalid(&self, label: &str) -> Option<Mark> {
        let mut invalid = self.invalid.iter();
        invalid
            .find(|(known, _)| known == label)
            .map(|(_, mark)| *mark)
    }

    /// Returns the position of a part of the resource at a position, or the position of the resource.
    pub(super) fn find(&self, resource: Mark, part: Part<'_>) -> Mark {
        let text = self.rendered.as_ref().map_or(self.text, |it| &it.text);
        let document = self.document.get_or_init(|| parse(text).ok());
        let found = document
            .as_ref()
            .and_then(|it| find_part(it, resource, part));
        found.unwrap_or(resource)
    }

    /// Returns the problems in the order of the text.
    pub(super) fn finish(self) -> ReportedProblems {
        let mut reported = self.reported;
        // Stable, so that problems at the same position stay in the order of their discovery.
        for problems in [&mut reported.problems, &mut reported.unchecked] {
            problems.sort_by_key(|problem| {
                let is_rendered = problem.location.source != self.source;
                let Mark { line, column } = problem.location.mark;
                (is_rendered, line, column)
            });
        }
        reported
    }
}

/// Returns the position of a failed expression inside its property. An expression whose values are
/// not known is not wrong: its resource or section is what could not be checked.
fn refine(text: &str, mark: Mark, kind: &ProblemKind) -> Mark {
    if UnknownValue::in_chain(kind).is_some() {
        return mark;
    }
    let expression = kind.expression();
    expression
        .and_then(|error| error.mark_in(text, mark))
        .unwrap_or(mark)
}

impl ResourceText {
    /// Returns where a rendered line comes from; nothing for a text that is not rendered.
    pub(super) fn notes(&self, mark: Mark) -> Vec<Note> {
        let index = usize::try_from(mark.line.saturating_sub(1)).unwrap_or_default();
        let line = self.text.lines().nth(index).unwrap_or_default();
        self.origin.iter().map(|origin| origin.note(line)).collect()
    }
}

impl TemplateOrigin {
    /// Returns where a rendered line comes from: the line of the template if it can be recognized,
    /// otherwise the place in the manifest that names the template.
    fn note(&self, line: &str) -> Note {
        let location = match template_line(&self.template, line) {
            Some(index) => {
                let text = self.template.lines().nth(index).unwrap_or_default();
                let indent = text.chars().take_while(|c| c.is_whitespace()).count();
                let number = |number: usize| u32::try_from(number + 1).unwrap_or(u32::MAX);
                let mark = Mark {
                    line: number(index),
                    column: number(indent),
                };
                Location::new(&self.file, &self.template, mark)
            }
            None => self.used_at.clone(),
        };
        Note {
            message: "rendered by this template".into(),
            location,
            is_origin: true,
        }
    }
}

/// Returns the line of a template that best fits a rendered line: the one with most literal text
/// in common, if it is the only one.
fn template_line(template: &str, rendered: &str) -> Option<usize> {
    let mut best: Option<(usize, usize)> = None;
    let mut is_unique = false;
    for (index, line) in template.lines().enumerate() {
        let Some(length) = literal_match(line.trim(), rendered.trim()) else {
            continue;
        };
        match best {
            Some((_, known)) if known > length => {}
            Some((_, known)) if known == length => is_unique = false,
            _ => {
                best = Some((index, length));
                is_unique = true;
            }
        }
    }
    let (index, _) = best.filter(|(_, length)| is_unique && *length > 0)?;
    Some(index)
}

/// Returns the length of a template line's literal text, if it occurs in order in a rendered line.
fn literal_match(line: &str, rendered: &str) -> Option<usize> {
    let mut rest = rendered;
    let mut length = 0;
    let mut is_first = true;
    for part in line.split("[[").flat_map(|part| part.split("{{")) {
        let literal = match part.rsplit_once("]]").or_else(|| part.rsplit_once("}}")) {
            Some((_, literal)) => literal,
            None if is_first => part,
            None => "",
        };
        let at = rest.find(literal)?;
        if is_first && at > 0 {
            return None;
        }
        is_first = false;
        length += literal.trim().len();
        rest = rest.get(at + literal.len()..)?;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rendered_line_is_found_in_its_template() {
        let template = "[[ range i := Data.all ]]\n- exec:\n    name: [[ i.name ]]-x\n    nope: 1\n[[ end ]]\n";
        for (rendered, expected) in [
            ("    nope: 1", Some(3)),
            ("    name: web-x", Some(2)),
            ("    other: 1", None),
        ] {
            assert_eq!(template_line(template, rendered), expected, "{rendered}");
        }
    }

    #[test]
    fn a_line_that_fits_twice_is_not_guessed() {
        assert_eq!(template_line("- a: 1\n- a: 1\n", "- a: 1"), None);
    }
}
