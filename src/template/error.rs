//! Why a template did not render, and where: one shape for the engines that know an offset.
//!
//! Jet has its own, because its messages follow upstream's word by word; see `jet::error`.

/// How much of a line an error shows, in characters.
const LONGEST_LINE: usize = 120;

/// Why a template did not render, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{line}:{column}: {message} (in `{source_line}`)")]
pub struct TemplateError {
    pub name: String,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    pub message: String,
    /// The line of the template, without the blanks around it.
    pub source_line: String,
}

impl TemplateError {
    /// Returns the error of a template at a byte offset.
    pub(super) fn at(template: &str, name: &str, offset: usize, message: String) -> Self {
        let before = template.get(..offset).unwrap_or(template);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let source_line = template.get(line_start..).and_then(|s| s.lines().next());
        Self {
            name: name.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.get(line_start..).unwrap_or("").chars().count() + 1,
            message,
            source_line: source_line
                .unwrap_or("")
                .trim()
                .chars()
                .take(LONGEST_LINE)
                .collect(),
        }
    }
}
