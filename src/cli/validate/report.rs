//! Problems of a manifest in the formats of other programs: JSON, annotations of GitHub Actions,
//! SARIF.

use serde_json::{Value, json};

use super::super::CliError;
use ccm_value::diagnostic::{Diagnostic, Location};
use ccm_value::json as format;

/// Rule of all results in SARIF; problems have no identifiers of their own.
const RULE: &str = "ccm-validate";

/// Returns one JSON document.
pub(super) fn json(
    manifest: &str,
    resources: Option<usize>,
    problems: &[Diagnostic],
) -> Result<String, CliError> {
    let problems: Vec<Value> = problems.iter().map(problem).collect();
    pretty(&json!({
        "manifest": manifest,
        "valid": problems.is_empty(),
        "resources": resources,
        "problems": problems,
    }))
}

fn problem(problem: &Diagnostic) -> Value {
    let mut value = location(&problem.location);
    if let Some(entries) = value.as_object_mut() {
        entries.insert("message".into(), problem.message.clone().into());
        entries.insert("resource".into(), problem.subject.clone().into());
        entries.insert("help".into(), problem.help.clone().into());
        let notes = problem.notes.iter().map(|note| {
            let mut value = location(&note.location);
            if let Some(entries) = value.as_object_mut() {
                entries.insert("message".into(), note.message.clone().into());
            }
            value
        });
        entries.insert("notes".into(), notes.collect());
    }
    value
}

fn location(location: &Location) -> Value {
    let text = location.line.as_ref().map(|line| line.text.as_str());
    json!({
        "file": location.source,
        "line": location.mark.line,
        "column": location.mark.column,
        "source_line": text,
    })
}

/// Returns one `::error` command for each problem.
pub(super) fn github(problems: &[Diagnostic]) -> String {
    problems
        .iter()
        .map(|problem| {
            let place = file_location(problem);
            let mark = place.mark;
            let file = escape(&place.source)
                .replace(':', "%3A")
                .replace(',', "%2C");
            let position = match mark.line {
                0 => String::new(),
                line => format!(",line={line},col={}", mark.column),
            };
            format!(
                "::error file={file}{position},title=ccm validate::{}\n",
                escape(&full_text(problem))
            )
        })
        .collect()
}

/// Escapes the data of a workflow command.
fn escape(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

/// Returns the position in a file: a problem of rendered text has the position of its template.
fn file_location(problem: &Diagnostic) -> &Location {
    let origin = problem.notes.iter().find(|note| note.is_origin);
    origin.map_or(&problem.location, |note| &note.location)
}

/// Returns message, resource and suggestion as one text.
fn full_text(problem: &Diagnostic) -> String {
    let mut text = problem.message.clone();
    if let Some(subject) = &problem.subject {
        text.push_str(&format!(" ({subject})"));
    }
    if let Some(help) = &problem.help {
        text.push_str(&format!("\nhelp: {help}"));
    }
    text
}

/// Returns a SARIF log with one run.
pub(super) fn sarif(problems: &[Diagnostic]) -> Result<String, CliError> {
    let results: Vec<Value> = problems.iter().map(result).collect();
    pretty(&json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "ccm",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": [{
                    "id": RULE,
                    "shortDescription": {"text": "Problem of a manifest"},
                }],
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    }))
}

fn result(problem: &Diagnostic) -> Value {
    let place = file_location(problem);
    let mut physical = json!({ "artifactLocation": {"uri": uri(&place.source)} });
    if place.mark.line > 0 {
        let region = json!({"startLine": place.mark.line, "startColumn": place.mark.column.max(1)});
        if let Some(entries) = physical.as_object_mut() {
            entries.insert("region".into(), region);
        }
    }
    json!({
        "ruleId": RULE,
        "level": "error",
        "message": {"text": full_text(problem)},
        "locations": [{ "physicalLocation": physical }],
    })
}

/// Returns a path as a relative URI reference.
fn uri(path: &str) -> String {
    let mut uri = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                uri.push(char::from(byte));
            }
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

fn pretty(document: &Value) -> Result<String, CliError> {
    let text = format::pretty(document).map_err(CliError::failed)?;
    Ok(format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_and_separators_do_not_end_a_command() {
        let problem = Diagnostic {
            message: "50% of\nall".into(),
            location: Location {
                source: "a,b:c.yaml".into(),
                ..Location::default()
            },
            help: Some("x".into()),
            ..Diagnostic::default()
        };
        assert_eq!(
            github(&[problem]),
            "::error file=a%2Cb%3Ac.yaml,title=ccm validate::50%25 of%0Aall%0Ahelp: x\n"
        );
    }

    #[test]
    fn a_path_is_a_valid_uri() {
        assert_eq!(uri("my site/ä.yaml"), "my%20site/%C3%A4.yaml");
    }
}
