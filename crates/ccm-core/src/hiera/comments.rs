//! Finds the comments of a YAML text.
//!
//! A YAML reader drops comments, but it tells where every scalar stands: a `#` outside quotes and
//! blocks, at the start of a line or after a blank, starts a comment.
//!
//! Knows neither keys nor what comments say: whose a comment is, is for `outline`.

use std::iter::Peekable;
use std::ops::Range;
use std::slice;

use saphyr_parser::{ScalarStyle, Span};

/// A comment.
pub(super) struct Comment<'t> {
    /// What stands behind its `#`, without blanks around it.
    pub(super) text: &'t str,
    pub(super) at: usize,
    /// For a comment on its own line, the leftmost column of all that stand together above it:
    /// what is written below a comment about an outer key is not about an inner one.
    pub(super) column: usize,
    pub(super) place: Place,
}

/// What a comment shares its line with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing.
    OwnLine,
    /// The dash of a list item that starts on a later line.
    Dash,
    /// A key or a value.
    Behind,
}

/// A scalar whose text may hold a `#` that starts no comment.
pub(super) struct Opaque {
    start: usize,
    /// The quote that starts and ends the scalar. The parser does not tell where exactly, as it
    /// counts a comment behind the quote in.
    quote: Option<char>,
    /// Where a block ends.
    end: usize,
    /// The first line of the text; the line that opens a block may have a comment.
    line: usize,
}

/// Returns the comments of a text, in its order; `opaque` are its scalars that may hide a `#`, in
/// their order.
pub(super) fn comments<'t>(text: &'t str, opaque: &[Opaque]) -> Vec<Comment<'t>> {
    let mut scanner = Scanner {
        opaque: opaque.iter().peekable(),
        hidden: 0..0,
        at: 0,
        line: 0,
    };
    let mut comments = Vec::new();
    let mut leftmost = usize::MAX;
    let mut rest = text;
    while let Some((line, tail)) = split_line(rest) {
        let found = scanner.comment(line, rest);
        match &found {
            Some(comment) if comment.place == Place::OwnLine => {
                leftmost = leftmost.min(comment.column);
            }
            None if line.trim().is_empty() => {}
            _ => leftmost = usize::MAX,
        }
        comments.extend(found.map(|comment| Comment {
            column: comment.column.min(leftmost),
            ..comment
        }));
        rest = tail;
    }
    comments
}

/// Goes through a text line by line. Places count characters and lines count from 1, as the
/// parser does.
struct Scanner<'o> {
    opaque: Peekable<slice::Iter<'o, Opaque>>,
    /// The scalar that was met last.
    hidden: Range<usize>,
    /// Where the line starts.
    at: usize,
    line: usize,
}

impl Scanner<'_> {
    /// Returns the comment of the next line, which `rest` starts with.
    fn comment<'t>(&mut self, line: &'t str, rest: &str) -> Option<Comment<'t>> {
        let start = self.at;
        self.at += line.chars().count();
        self.line += 1;
        let mut previous = ' ';
        for (column, (byte, c)) in line.char_indices().enumerate() {
            let at = start + column;
            let number = self.line;
            let is_met = |next: &&Opaque| next.start <= at && next.line <= number;
            if let Some(scalar) = self.opaque.next_if(is_met) {
                self.hidden = at..scalar.end(at, rest.get(byte..).unwrap_or_default());
            }
            if c == '#' && previous.is_whitespace() && !self.hidden.contains(&at) {
                let (before, comment) = line.split_at(byte);
                return Some(Comment {
                    text: comment.strip_prefix('#').unwrap_or(comment).trim(),
                    at,
                    column,
                    place: Place::after(before),
                });
            }
            previous = c;
        }
        None
    }
}

impl Opaque {
    /// Returns nothing for scalars that can hide no comment. Tags and anchors count as part of
    /// the scalar; one that has none of them is bare.
    pub(super) fn new(text: &str, style: ScalarStyle, is_bare: bool, span: Span) -> Option<Self> {
        let quote = match style {
            ScalarStyle::Plain => return None,
            ScalarStyle::SingleQuoted => Some('\''),
            ScalarStyle::DoubleQuoted => Some('"'),
            ScalarStyle::Literal | ScalarStyle::Folded if text.trim().is_empty() => return None,
            ScalarStyle::Literal | ScalarStyle::Folded => None,
        };
        // A bare block starts with its text, below the line that opens it.
        let is_below = quote.is_none() && !is_bare;
        Some(Self {
            start: span.start.index(),
            quote,
            end: span.end.index(),
            line: span.start.line() + usize::from(is_below),
        })
    }

    /// Returns where the scalar ends that `text` starts with, `here`.
    fn end(&self, here: usize, text: &str) -> usize {
        let Some(quote) = self.quote else {
            return self.end;
        };
        let mut chars = text.chars().enumerate().skip_while(|(_, c)| *c != quote);
        chars.next();
        let mut chars = chars.peekable();
        while let Some((len, c)) = chars.next() {
            if c == '\\' && quote == '"' {
                chars.next();
            } else if c == quote {
                // In single quotes, two of them stand for one.
                let is_doubled = chars.next_if(|(_, next)| *next == quote && quote == '\'');
                if is_doubled.is_none() {
                    return here + len + 1;
                }
            }
        }
        self.end
    }
}

impl Place {
    fn after(before: &str) -> Self {
        match before.trim() {
            "" => Self::OwnLine,
            seen if seen.chars().all(|c| c == '-' || c.is_whitespace()) => Self::Dash,
            _ => Self::Behind,
        }
    }
}

/// Splits off a line with its break: `\n`, `\r\n` or a lone `\r`.
fn split_line(text: &str) -> Option<(&str, &str)> {
    if text.is_empty() {
        return None;
    }
    let end = text.find(['\n', '\r']).unwrap_or(text.len());
    let rest = text.get(end..)?;
    let width = if rest.starts_with("\r\n") {
        2
    } else {
        rest.len().min(1)
    };
    text.split_at_checked(end + width)
}
