//! Comments of a YAML text, with their positions.
//!
//! The YAML parser drops comments but reports the position of every scalar: a `#` outside quoted and
//! block scalars, at the start of a line or after white space, starts a comment.
//!
//! `key_positions` assigns comments to keys.

use std::iter::Peekable;
use std::ops::Range;
use std::slice;

use saphyr_parser::{ScalarStyle, Span};

/// Comment.
pub(super) struct Comment<'t> {
    /// Text after the `#`, trimmed.
    pub(super) text: &'t str,
    pub(super) at: usize,
    /// Column. For a comment on its own line, the leftmost column of the consecutive comments up to it:
    /// a comment below one of an outer key does not belong to an inner key.
    pub(super) column: usize,
    pub(super) line_position: LinePosition,
}

/// Position of a comment on its line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LinePosition {
    /// Only white space before it.
    OwnLine,
    /// After the dash of a list item that starts on a later line.
    AfterDash,
    /// After a key or value.
    AfterContent,
}

/// Quoted or block scalar, in which a `#` does not start a comment.
pub(super) struct Opaque {
    start: usize,
    /// Quote of the scalar. Its end has to be searched: the parser's span includes a comment after the
    /// quote.
    quote: Option<char>,
    /// End of a block scalar.
    end: usize,
    /// First line of the text; the header line of a block scalar may have a comment.
    line: usize,
}

/// Returns the comments of a text, in order; `opaque` are its quoted and block scalars, in order.
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
            Some(comment) if comment.line_position == LinePosition::OwnLine => {
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

/// Scanner of a text, line by line. Positions count characters, lines count from 1, as in the parser.
struct Scanner<'o> {
    opaque: Peekable<slice::Iter<'o, Opaque>>,
    /// Range of the last opaque scalar.
    hidden: Range<usize>,
    /// Start of the line.
    at: usize,
    line: usize,
}

impl Scanner<'_> {
    /// Returns the comment of the next line; `rest` is the text from that line on.
    fn comment<'t>(&mut self, line: &'t str, rest: &str) -> Option<Comment<'t>> {
        let start = self.at;
        self.at += line.chars().count();
        self.line += 1;
        let mut previous = ' ';
        for (column, (byte, c)) in line.char_indices().enumerate() {
            let at = start + column;
            let number = self.line;
            let is_reached = |next: &&Opaque| next.start <= at && next.line <= number;
            if let Some(scalar) = self.opaque.next_if(is_reached) {
                self.hidden = at..scalar.end(at, rest.get(byte..).unwrap_or_default());
            }
            if c == '#' && previous.is_whitespace() && !self.hidden.contains(&at) {
                let (before, comment) = line.split_at(byte);
                return Some(Comment {
                    text: comment.strip_prefix('#').unwrap_or(comment).trim(),
                    at,
                    column,
                    line_position: LinePosition::after(before),
                });
            }
            previous = c;
        }
        None
    }
}

impl Opaque {
    /// Returns `None` for a scalar that can't contain a comment character. `is_bare` means without tag
    /// and anchor, which the parser counts as part of the scalar.
    pub(super) fn new(text: &str, style: ScalarStyle, is_bare: bool, span: Span) -> Option<Self> {
        let quote = match style {
            ScalarStyle::Plain => return None,
            ScalarStyle::SingleQuoted => Some('\''),
            ScalarStyle::DoubleQuoted => Some('"'),
            ScalarStyle::Literal | ScalarStyle::Folded if text.trim().is_empty() => return None,
            ScalarStyle::Literal | ScalarStyle::Folded => None,
        };
        // The span of a bare block scalar starts with its text, below its header line.
        let is_below = quote.is_none() && !is_bare;
        Some(Self {
            start: span.start.index(),
            quote,
            end: span.end.index(),
            line: span.start.line() + usize::from(is_below),
        })
    }

    /// Returns the end of the scalar; `text` starts with it, at position `here`.
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
                // In single quotes, a doubled quote is an escaped quote.
                let is_doubled = chars.next_if(|(_, next)| *next == quote && quote == '\'');
                if is_doubled.is_none() {
                    return here + len + 1;
                }
            }
        }
        self.end
    }
}

impl LinePosition {
    fn after(before: &str) -> Self {
        match before.trim() {
            "" => Self::OwnLine,
            seen if seen.chars().all(|c| c == '-' || c.is_whitespace()) => Self::AfterDash,
            _ => Self::AfterContent,
        }
    }
}

/// Splits off a line with its line break: `\n`, `\r\n` or a lone `\r`.
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
