//! Text form of diagnostics: message, position, source line with a caret, and suggestion.
//!
//! The only place that formats source lines. Forms for other programs are in `validate`.

use std::fmt::Write as _;

use ccm_value::diagnostic::{Diagnostic, Location};

/// Formats diagnostics, separated by empty lines.
pub(super) fn render_all(diagnostics: &[Diagnostic]) -> String {
    let texts: Vec<String> = diagnostics.iter().map(render).collect();
    texts.join("\n")
}

/// Formats one diagnostic as an error, with a final newline.
pub(super) fn render(diagnostic: &Diagnostic) -> String {
    render_as("error", diagnostic)
}

/// Formats one diagnostic of a severity, with a final newline.
pub(super) fn render_as(severity: &str, diagnostic: &Diagnostic) -> String {
    let mut out = format!("ccm: {severity}: {}", diagnostic.message);
    if let Some(subject) = &diagnostic.subject {
        let _ = write!(out, " ({subject})");
    }
    out.push('\n');
    let locations = diagnostic.notes.iter().map(|note| &note.location);
    let width = locations
        .chain([&diagnostic.location])
        .map(|location| location.mark.line.to_string().len())
        .max()
        .unwrap_or_default();
    write_location(&diagnostic.location, width, &mut out);
    for note in &diagnostic.notes {
        let _ = writeln!(out, "ccm: note: {}", note.message);
        write_location(&note.location, width, &mut out);
    }
    if let Some(help) = &diagnostic.help {
        let _ = writeln!(out, "{:width$} = help: {help}", "");
    }
    out
}

/// Writes a position and its source line; `width` is the width of line numbers.
fn write_location(location: &Location, width: usize, out: &mut String) {
    let _ = writeln!(out, "{:width$}--> {}", "", location);
    let Some(line) = &location.line else {
        return;
    };
    let number = location.mark.line;
    let _ = writeln!(out, "{:width$} |", "");
    let _ = writeln!(out, "{number:>width$} | {}", line.text);
    let _ = writeln!(out, "{:width$} | {:caret$}^", "", "", caret = line.caret);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_value::diagnostic::Note;
    use ccm_value::document::Mark;

    fn location(source: &str, text: &str, line: u32, column: u32) -> Location {
        Location::new(source, text, Mark { line, column })
    }

    #[test]
    fn the_caret_is_below_the_position() {
        let text = "a:\n  bb: cc\n";
        let diagnostic = Diagnostic {
            message: "unknown key \"bb\"".into(),
            subject: Some("file#/x".into()),
            location: location("m.yaml", text, 2, 3),
            notes: vec![Note {
                message: "rendered here".into(),
                location: location("t.jet", &"x\n".repeat(12), 11, 1),
                is_origin: true,
            }],
            help: Some("did you mean \"b\"?".into()),
        };
        assert_eq!(
            render(&diagnostic),
            "\
ccm: error: unknown key \"bb\" (file#/x)
  --> m.yaml:2:3
   |
 2 |   bb: cc
   |   ^
ccm: note: rendered here
  --> t.jet:11:1
   |
11 | x
   | ^
   = help: did you mean \"b\"?
"
        );
    }

    #[test]
    fn a_problem_of_the_whole_text_has_no_line() {
        let diagnostic = Diagnostic {
            message: "not UTF-8".into(),
            location: location("m.yaml", "x", 0, 0),
            ..Diagnostic::default()
        };
        assert_eq!(render(&diagnostic), "ccm: error: not UTF-8\n --> m.yaml\n");
    }
}
