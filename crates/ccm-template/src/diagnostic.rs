//! Diagnostics of templates: the position in the template and a suggestion, for the command line.
//!
//! The messages of the engines follow their originals, including the names of Go types; here these
//! are replaced by the names that documents use.

use crate::engines::RenderError;
use crate::error::TemplateError;
use crate::expr::ExprError;
use crate::jet::JetError;
use ccm_value::diagnostic::{Diagnostic, Location, SourceLine, find_after};
use ccm_value::document::Mark;

impl RenderError {
    /// Returns the error with its position in the template, whose file name and text are given.
    pub fn diagnostic(&self, file: &str, text: &[u8]) -> Diagnostic {
        let text = String::from_utf8_lossy(text);
        let location = match self {
            Self::Jet(err) => jet_location(err, file, &text),
            Self::Template(err) => {
                let end = mark(err.line, err.column);
                let opener = is_not_closed(err.message.as_str())
                    .then(|| unclosed(&text))
                    .flatten();
                Location::new(file, &text, opener.unwrap_or(end))
            }
            Self::NotText(_) | Self::Denied(_) => Location::without_line(file, Mark::default()),
        };
        Diagnostic {
            message: self.message(),
            location,
            help: self.suggestion(),
            ..Diagnostic::default()
        }
    }

    /// Returns the message without the position.
    pub fn message(&self) -> String {
        match self {
            Self::Jet(JetError { message, .. }) | Self::Template(TemplateError { message, .. }) => {
                match message.as_str() {
                    message if is_not_closed(message) => "a block or action is not closed".into(),
                    message => plain_types(message),
                }
            }
            Self::NotText(_) | Self::Denied(_) => self.to_string(),
        }
    }

    /// Returns a suggestion, as a clause in lower case.
    pub fn suggestion(&self) -> Option<String> {
        Some(match self {
            Self::Jet(JetError { message, .. }) => {
                let found = jet_suggestion(message.as_str());
                found
                    .unwrap_or("test the template alone, with `ccm template FILE --engine jet`")
                    .into()
            }
            Self::Template(TemplateError { message, .. }) => {
                let found = template_suggestion(message.as_str());
                found
                    .unwrap_or("test the template alone, with `ccm template FILE`")
                    .into()
            }
            Self::NotText(_) => "save the template as UTF-8".into(),
            Self::Denied(_) => return None,
        })
    }
}

impl ExprError {
    /// Returns the error with its position in a text with expressions, whose file name is given.
    pub fn diagnostic(&self, file: &str, text: &str) -> Diagnostic {
        let start = Mark { line: 1, column: 1 };
        let mark = self.mark_in(text, start).unwrap_or_default();
        Diagnostic {
            message: format!("invalid expression: {}", self.message()),
            location: Location::new(file, text, mark),
            help: Some(self.suggestion()),
            ..Diagnostic::default()
        }
    }

    /// Returns the position of the error in a text that contains the expression at or after a
    /// position.
    pub fn mark_in(&self, text: &str, from: Mark) -> Option<Mark> {
        let (code, column) = self.position()?;
        let found = find_after(text, from, code.trim_end())?;
        let skipped = u32::try_from(column.saturating_sub(1)).ok()?;
        Some(Mark {
            column: found.column.saturating_add(skipped),
            ..found
        })
    }
}

fn mark(line: usize, column: usize) -> Mark {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Mark {
        line: number(line),
        column: number(column),
    }
}

/// Returns the position of a Jet error; it may be in an included template.
fn jet_location(error: &JetError, file: &str, text: &str) -> Location {
    let mark = mark(error.line, error.column);
    let line = text.lines().nth(error.line.saturating_sub(1));
    let is_here = line.is_none_or(|line| line.trim_end() == &*error.excerpt);
    if is_here
        && is_not_closed(error.message.as_str())
        && let Some(opener) = unclosed_block(text, &JET)
    {
        return Location::new(file, text, opener);
    }
    Location {
        source: if is_here { file } else { &error.name }.into(),
        mark,
        line: Some(SourceLine::new(&error.excerpt, mark.column)),
    }
}

/// Reports whether a template ends inside a block or an action.
fn is_not_closed(message: &str) -> bool {
    [
        "EOF",
        "unexpected <end>",
        "unclosed",
        "unexpected end of input",
    ]
    .iter()
    .any(|words| message.contains(words))
}

/// Statements of an engine: their delimiters and the words that begin a block.
struct Statements {
    left: &'static str,
    right: &'static str,
    openers: &'static [&'static str],
}

const JET: Statements = Statements {
    left: "[[",
    right: "]]",
    openers: &["if", "range", "block", "try"],
};

const GO: Statements = Statements {
    left: "{{",
    right: "}}",
    openers: &["if", "range", "with", "block", "define"],
};

const JINJA: Statements = Statements {
    left: "{%",
    right: "%}",
    openers: &["if", "for", "block", "macro", "with", "filter", "call"],
};

/// Returns the position of a block or action of Go or Jinja that is not closed.
fn unclosed(text: &str) -> Option<Mark> {
    let jinja = unclosed_block(text, &JINJA);
    jinja.or_else(|| unclosed_block(text, &GO))
}

/// Returns the position of the action that is not closed, otherwise of the last block without its end.
fn unclosed_block(text: &str, statements: &Statements) -> Option<Mark> {
    let mut open: Vec<usize> = Vec::new();
    let mut at = 0;
    while let Some(found) = text.get(at..).and_then(|rest| rest.find(statements.left)) {
        let start = at + found;
        let inside = text.get(start + statements.left.len()..)?;
        let Some(length) = inside.find(statements.right) else {
            open.push(start);
            break;
        };
        let code = inside
            .get(..length)?
            .trim_start_matches(['-', '+'])
            .trim_start();
        let word = code.split(|c: char| !c.is_alphanumeric()).next();
        match word.unwrap_or_default() {
            word if statements.openers.contains(&word) => open.push(start),
            word if word.starts_with("end") => drop(open.pop()),
            _ => {}
        }
        at = start + statements.left.len() + length + statements.right.len();
    }
    let before = text.get(..open.pop()?)?;
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    Some(mark(line, column))
}

fn jet_suggestion(message: &str) -> Option<&'static str> {
    Some(match message {
        message if message.contains("EOF") => "close each block with [[ end ]]",
        message if message.contains("nil pointer") => {
            "check the name before the dot, or define the value"
        }
        message if message.contains("is not rangeable") => {
            "range over a list or a map, or over ints(1, N)"
        }
        message if message.contains("can't evaluate index") => {
            "only maps and lists have values inside: check what is before the last dot"
        }
        message if message.contains("no field or method") => {
            "check the name, or test it first with isset()"
        }
        message
            if message.contains("not available in current scope")
                || message.contains("identifier") =>
        {
            "use Data.NAME or Facts.NAME, or set the variable before"
        }
        message if message.contains("unexpected") => "check the syntax inside [[ … ]]",
        message if message.contains("expression") => "both sides must be numbers or texts",
        _ => return None,
    })
}

fn template_suggestion(message: &str) -> Option<&'static str> {
    Some(match message {
        message if message.contains("EOF") || message.contains("end of") => {
            "close each block with its end statement"
        }
        message if message.contains("undefined value") => "use Data.NAME or Facts.NAME",
        message if message.contains("not defined") || message.contains("unknown") => {
            "check the name of the function or variable"
        }
        message if message.contains("missing value") => "write an expression after the keyword",
        message if message.contains("unclosed") || message.contains("<end>") => {
            "close the action with }}"
        }
        _ => return None,
    })
}

/// Replaces the names of Go types and functions by the names that documents use.
pub(crate) fn plain_types(message: &str) -> String {
    // strconv.ParseInt: parsing ".txt": invalid syntax
    let number = message.strip_prefix("strconv.").and_then(|rest| {
        let (_, value) = rest.split_once(": parsing ")?;
        value.rsplit_once(": ")
    });
    if let Some((value, _)) = number {
        return format!("{value} is not a number");
    }
    const NAMES: [(&str, &str); 10] = [
        (
            "nil pointer evaluating interface {}.",
            "the value before the dot is not set: .",
        ),
        ("map[string]interface {}", "map"),
        ("map[string]any", "map"),
        ("[]interface {}", "list"),
        ("[]any", "list"),
        ("(type float64)", "(a number)"),
        ("(type int64)", "(a number)"),
        ("(type string)", "(text)"),
        ("(type bool)", "(true or false)"),
        ("interface {}", "any value"),
    ];
    let text = NAMES.iter().fold(message.to_owned(), |text, (go, plain)| {
        text.replace(go, plain)
    });
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        // A name of the author can be the same word as a type.
        let is_type = words.last().is_some_and(|before| {
            let before = before.trim_start_matches('(');
            matches!(before, "type" | "types" | "type:" | "to")
                || (before == "and" && text.contains("mismatched types"))
        });
        let name = word.trim_matches(['(', ')', ',', ':', '"']);
        let plain = match name {
            "int" | "int64" | "uint64" | "float64" => "number",
            "string" => "text",
            "bool" => "boolean",
            _ => name,
        };
        words.push(match is_type {
            true => word.replace(name, plain),
            false => word.to_owned(),
        });
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::{Template, render};
    use crate::{Engine, Env};

    fn diagnostic(engine: Engine, text: &str) -> Diagnostic {
        let template = Template {
            engine,
            name: "t",
            text: text.as_bytes(),
            left: "",
            right: "",
        };
        let error = render(template, &Env::default()).unwrap_err();
        error.diagnostic("site/t", text.as_bytes())
    }

    #[test]
    fn every_engine_reports_the_position_in_the_template() {
        for (engine, text, column) in [
            (Engine::Jet, "one\n  [[ range i := 3 ]]x[[ end ]]\n", 17),
            (Engine::Go, "one\n  {{ nope }}\n", 6),
            (Engine::Jinja, "one\n  {{ nope.x }}\n", 6),
        ] {
            let found = diagnostic(engine, text);
            let expected = Mark { line: 2, column };
            assert_eq!(found.location.mark, expected, "{engine:?}: {found:?}");
            assert_eq!(found.location.source, "site/t");
            assert_eq!(
                found.location.line.unwrap().text,
                text.lines().nth(1).unwrap()
            );
        }
    }

    #[test]
    fn types_of_go_are_not_named() {
        let found = diagnostic(Engine::Jet, "[[ range i := 3 ]]x[[ end ]]");
        assert!(!found.message.contains("float64"), "{found:?}");
        let found = diagnostic(Engine::Jet, "[[ 1 + \".txt\" ]]");
        assert_eq!(found.message, "\".txt\" is not a number");
        assert_eq!(
            plain_types("no x in map[string]interface {}"),
            "no x in map"
        );
    }

    #[test]
    fn types_of_go_have_plain_names() {
        for (message, plain) in [
            (
                "can't evaluate index number in type int",
                "can't evaluate index number in type number",
            ),
            (
                "nil pointer evaluating interface {}.x",
                "the value before the dot is not set: .x",
            ),
            (
                "type: \"string\" can't be converted to int64",
                "type: \"text\" can't be converted to number",
            ),
            (
                "len(): invalid value type float64",
                "len(): invalid value type number",
            ),
            (
                "invalid operation: + (mismatched types string and int)",
                "invalid operation: + (mismatched types text and number)",
            ),
            ("unknown name string", "unknown name string"),
            ("", ""),
        ] {
            assert_eq!(plain_types(message), plain);
        }
    }

    #[test]
    fn a_block_that_is_not_closed_is_shown_at_its_start() {
        for (engine, text, line, column) in [
            (Engine::Jet, "a\n  [[ if true ]]\nb\n", 2, 3),
            (
                Engine::Jet,
                "[[ range Data ]]\n[[ if true ]]x[[ end ]]\nb\n",
                1,
                1,
            ),
            (Engine::Go, "a\n{{ if true }}\nb\n", 2, 1),
            (Engine::Go, "a\nb {{ .Data.port\n", 2, 3),
            (Engine::Jinja, "a\n {%- if true %}\nb\n", 2, 2),
        ] {
            let found = diagnostic(engine, text);
            assert_eq!(found.location.mark, mark(line, column), "{text}: {found:?}");
            assert_eq!(found.message, "a block or action is not closed");
        }
    }

    #[test]
    fn an_expression_is_found_in_its_text() {
        let text = "a\nb {{ 1 + nope }}\n";
        let error = crate::expand::resolve_string(text, &Env::default(), &Default::default());
        let found = error.unwrap_err().diagnostic("f", text);
        assert_eq!(
            found.location.mark,
            Mark {
                line: 2,
                column: 10
            }
        );
    }
}
