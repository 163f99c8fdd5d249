//! Lexer: splits a template into text and tokens.
//!
//! Works on bytes, because text between actions need not be UTF-8. White space is not a token, but
//! a token records whether it was preceded by some. That decides whether `-1` is a number or an
//! operation, and whether `.x` belongs to the preceding token.

use super::error::Span;
use super::token::{Kind, Token};
use ccm_value::quote::{is_printable, quote_bytes};

/// Maximum number of tokens of a template.
const MAX_TOKENS: usize = 2_000_000;
const COMMENT: (&[u8], &[u8]) = (b"{*", b"*}");
const TRIM_LEFT: &[u8] = b"- ";
const TRIM_RIGHT: &[u8] = b" -";

/// Error of splitting a text into tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LexError {
    #[error("unclosed comment")]
    Comment,
    #[error("unclosed action")]
    Action,
    #[error("unclosed left parenthesis")]
    LeftParen,
    #[error("unexpected right paren U+0029 ')'")]
    RightParen,
    #[error("more than {MAX_TOKENS} tokens")]
    TooMany,
    #[error("unrecognized character in action: {}", name_of(*.0))]
    Unrecognized(char),
    #[error("bad character {}", name_of(*.0))]
    Character(char),
    #[error("bad number syntax: {}", quote_bytes(.0))]
    Number(Vec<u8>),
    #[error("unterminated {0}")]
    Unterminated(&'static str),
}

/// Tokens of a template; the last is always [`Kind::End`] or [`Kind::Error`].
pub(super) struct Tokens {
    pub list: Vec<Token>,
    /// Reason why the tokens end early.
    pub error: Option<LexError>,
}

/// Splits a template into tokens; an error ends them early.
pub(super) fn lex(text: &[u8], left: &str, right: &str) -> Tokens {
    let mut lexer = Lexer {
        text,
        left: left.as_bytes(),
        right: right.as_bytes(),
        trim_right: [TRIM_RIGHT, right.as_bytes()].concat(),
        pos: 0,
        start: 0,
        spaced: false,
        list: Vec::new(),
    };
    let (last, error) = match lexer.template() {
        Ok(()) => (Kind::End, None),
        Err(error) => (Kind::Error, Some(error)),
    };
    lexer.emit(last);
    Tokens {
        list: lexer.list,
        error,
    }
}

struct Lexer<'t> {
    text: &'t [u8],
    left: &'t [u8],
    right: &'t [u8],
    trim_right: Vec<u8>,
    pos: usize,
    /// Start of the current token.
    start: usize,
    spaced: bool,
    list: Vec<Token>,
}

impl Lexer<'_> {
    fn template(&mut self) -> Result<(), LexError> {
        let first = self.left.first().copied().unwrap_or(b'{');
        loop {
            let marker = |&byte: &u8| byte == first || byte == b'{';
            let Some(skip) = self.rest().iter().position(marker) else {
                self.pos = self.text.len();
                self.emit_text(0);
                return Ok(());
            };
            self.pos += skip;
            if self.at(self.left) {
                let after = self.rest().get(self.left.len()..).unwrap_or_default();
                let trim = after.starts_with(TRIM_LEFT);
                self.emit_text(if trim { self.blanks_before() } else { 0 });
                self.pos += self.left.len();
                self.emit(Kind::LeftDelimiter);
                self.skip(if trim { TRIM_LEFT.len() } else { 0 });
                self.action()?;
            } else if self.at(COMMENT.0) {
                self.emit_text(0);
                self.comment()?;
            } else {
                self.pos += 1;
            }
        }
    }

    fn comment(&mut self) -> Result<(), LexError> {
        let (open, close) = COMMENT;
        let body = self.rest().get(open.len()..).unwrap_or_default();
        let length = body
            .windows(close.len())
            .position(|window| window == close)
            .ok_or(LexError::Comment)?;
        self.skip(open.len() + length + close.len());
        Ok(())
    }

    /// Reads one action including its right delimiter.
    fn action(&mut self) -> Result<(), LexError> {
        let mut parens = 0_usize;
        loop {
            if self.list.len() > MAX_TOKENS {
                return Err(LexError::TooMany);
            }
            let trim = self.at(&self.trim_right);
            if trim || self.at(self.right) {
                if parens > 0 {
                    return Err(LexError::LeftParen);
                }
                self.skip(if trim { TRIM_RIGHT.len() } else { 0 });
                self.pos += self.right.len();
                self.emit(Kind::RightDelimiter);
                if trim {
                    self.skip(self.blanks_after());
                }
                return Ok(());
            }
            let Some((found, width)) = self.peek() else {
                return Err(LexError::Action);
            };
            self.pos += width;
            match found {
                ' ' | '\t' | '\r' | '\n' => {
                    self.start = self.pos;
                    self.spaced = true;
                }
                '(' => {
                    parens += 1;
                    self.emit(Kind::LeftParen);
                }
                ')' => {
                    self.emit(Kind::RightParen);
                    parens = parens.checked_sub(1).ok_or(LexError::RightParen)?;
                }
                '+' | '-' if self.signs_number() => self.number()?,
                '0'..='9' => self.number()?,
                '.' => match self.rest().first() {
                    Some(b'0'..=b'9') | None => self.number()?,
                    Some(_) => self.field()?,
                },
                '"' => self.quoted(b'"', Kind::Quoted)?,
                '\'' => self.quoted(b'\'', Kind::Character)?,
                '`' => self.raw()?,
                '_' if !self.peek().is_some_and(|(next, _)| in_name(next)) => {
                    self.emit(Kind::Underscore);
                }
                _ if in_name(found) => self.word()?,
                _ => self.symbol(found)?,
            }
        }
    }

    fn symbol(&mut self, found: char) -> Result<(), LexError> {
        let kind = match found {
            ',' => Kind::Comma,
            ';' => Kind::Semicolon,
            '*' => Kind::Multiply,
            '/' => Kind::Divide,
            '%' => Kind::Modulo,
            '+' => Kind::Add,
            '-' => Kind::Subtract,
            '?' => Kind::Question,
            '[' => Kind::LeftBracket,
            ']' => Kind::RightBracket,
            '&' => self.pair(b'&', Kind::And, Kind::Stray),
            '|' => self.pair(b'|', Kind::Or, Kind::Pipe),
            '<' => self.pair(b'=', Kind::LessEqual, Kind::Less),
            '>' => self.pair(b'=', Kind::GreaterEqual, Kind::Greater),
            '!' => self.pair(b'=', Kind::NotEqual, Kind::Not),
            '=' => self.pair(b'=', Kind::Equal, Kind::Assign),
            ':' => self.pair(b'=', Kind::Declare, Kind::Colon),
            _ if found.is_ascii_graphic() => Kind::Stray,
            _ => return Err(LexError::Unrecognized(found)),
        };
        self.emit(kind);
        Ok(())
    }

    fn pair(&mut self, second: u8, both: Kind, one: Kind) -> Kind {
        if self.rest().first() == Some(&second) {
            self.pos += 1;
            both
        } else {
            one
        }
    }

    fn signs_number(&self) -> bool {
        let digit = self.rest().first().is_some_and(u8::is_ascii_digit);
        let operation = !self.spaced && self.list.last().is_some_and(|t| t.kind.ends_operand());
        digit && !operation
    }

    /// Reads a number, starting at its first character.
    fn number(&mut self) -> Result<(), LexError> {
        self.pos = self.start;
        self.accept(b"+-");
        let hex = self.accept(b"0") && self.accept(b"xX");
        let digits: fn(&u8) -> bool = if hex {
            u8::is_ascii_hexdigit
        } else {
            u8::is_ascii_digit
        };
        self.accept_run(digits);
        if self.accept(b".") {
            self.accept_run(digits);
        }
        if self.accept(b"eE") {
            self.accept(b"+-");
            self.accept_run(u8::is_ascii_digit);
        }
        self.accept(b"i");
        if let Some((next, width)) = self.peek()
            && in_name(next)
        {
            self.pos += width;
            let text = self.text.get(self.start..self.pos).unwrap_or_default();
            return Err(LexError::Number(text.into()));
        }
        self.emit(Kind::Number);
        Ok(())
    }

    fn field(&mut self) -> Result<(), LexError> {
        if self.at_terminator() {
            self.emit(Kind::Dot);
            return Ok(());
        }
        self.name_characters()?;
        self.emit(Kind::Field);
        Ok(())
    }

    fn word(&mut self) -> Result<(), LexError> {
        self.name_characters()?;
        let word = self.text.get(self.start..self.pos).unwrap_or_default();
        self.emit(Kind::of_word(word));
        Ok(())
    }

    fn name_characters(&mut self) -> Result<(), LexError> {
        while let Some((next, width)) = self.peek() {
            if !in_name(next) {
                if self.at_terminator() {
                    break;
                }
                return Err(LexError::Character(next));
            }
            self.pos += width;
        }
        Ok(())
    }

    /// Returns whether a name can end at this position.
    fn at_terminator(&self) -> bool {
        match self.rest().first() {
            None => true,
            Some(next) => {
                b" \t\r\n.,|:)=(;?[]+-/%*&!<>".contains(next) || self.right.first() == Some(next)
            }
        }
    }

    fn quoted(&mut self, quote: u8, kind: Kind) -> Result<(), LexError> {
        loop {
            let next = self.rest().first().copied();
            self.pos += 1;
            match next {
                Some(b'\\') if !matches!(self.rest().first(), None | Some(b'\n')) => self.pos += 1,
                Some(found) if found == quote => break,
                None | Some(b'\n' | b'\\') => {
                    self.pos = self.pos.min(self.text.len());
                    return Err(LexError::Unterminated(match kind {
                        Kind::Character => "character constant",
                        _ => "quoted string",
                    }));
                }
                Some(_) => {}
            }
        }
        self.emit(kind);
        Ok(())
    }

    fn raw(&mut self) -> Result<(), LexError> {
        let length = self
            .rest()
            .iter()
            .position(|&byte| byte == b'`')
            .ok_or(LexError::Unterminated("raw quoted string"))?;
        self.pos += length + 1;
        self.emit(Kind::Raw);
        Ok(())
    }

    fn rest(&self) -> &[u8] {
        self.text.get(self.pos..).unwrap_or_default()
    }

    fn at(&self, marker: &[u8]) -> bool {
        self.rest().starts_with(marker)
    }

    /// Returns the next character and its width; an invalid byte counts as U+FFFD.
    fn peek(&self) -> Option<(char, usize)> {
        let rest = self.rest();
        let first = rest.first()?;
        if first.is_ascii() {
            return Some((char::from(*first), 1));
        }
        let window = rest.get(..rest.len().min(4))?;
        let chunk = window.utf8_chunks().next()?;
        let found = chunk.valid().chars().next();
        Some(found.map_or((char::REPLACEMENT_CHARACTER, 1), |c| (c, c.len_utf8())))
    }

    fn accept(&mut self, set: &[u8]) -> bool {
        let found = self.rest().first().is_some_and(|next| set.contains(next));
        self.pos += usize::from(found);
        found
    }

    fn accept_run(&mut self, accepted: fn(&u8) -> bool) {
        self.pos += self.rest().iter().take_while(|&b| accepted(b)).count();
    }

    fn blanks_before(&self) -> usize {
        let text = self.text.get(self.start..self.pos).unwrap_or_default();
        text.iter().rev().take_while(|&&b| is_blank(b)).count()
    }

    fn blanks_after(&self) -> usize {
        self.rest().iter().take_while(|&&b| is_blank(b)).count()
    }

    fn skip(&mut self, bytes: usize) {
        self.pos += bytes;
        self.start = self.pos;
    }

    /// Emits the text before the current position, without its last `trimmed` bytes.
    fn emit_text(&mut self, trimmed: usize) {
        let marker = self.pos;
        self.pos -= trimmed;
        if self.pos > self.start {
            self.emit(Kind::Text);
        }
        self.skip(marker - self.pos);
    }

    fn emit(&mut self, kind: Kind) {
        // Offsets fit: `TemplateCache::parse` refuses texts of 4 GiB and more.
        let offset = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let span = Span {
            start: offset(self.start),
            end: offset(self.pos),
        };
        self.list.push(Token {
            kind,
            span,
            spaced: self.spaced,
        });
        self.start = self.pos;
        self.spaced = false;
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn in_name(found: char) -> bool {
    found == '_' || found.is_alphanumeric()
}

/// Formats a character like Go's `%#U`.
fn name_of(found: char) -> String {
    if is_printable(found) {
        format!("U+{:04X} '{found}'", u32::from(found))
    } else {
        format!("U+{:04X}", u32::from(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jet::token::Keyword;

    fn kinds(text: &str) -> Vec<Kind> {
        lex(text.as_bytes(), "[[", "]]")
            .list
            .iter()
            .map(|token| token.kind)
            .collect()
    }

    fn inside(action: &str) -> Vec<Kind> {
        let all = kinds(&format!("[[{action}]]"));
        all[1..all.len() - 2].to_vec()
    }

    fn texts(text: &str) -> Vec<&str> {
        lex(text.as_bytes(), "[[", "]]")
            .list
            .iter()
            .filter(|token| token.kind == Kind::Text)
            .map(|token| &text[token.span.start as usize..token.span.end as usize])
            .collect()
    }

    #[test]
    fn a_sign_is_part_of_a_number_only_where_no_operand_ends() {
        assert_eq!(inside("-1"), [Kind::Number]);
        assert_eq!(inside("x-1"), [Kind::Name, Kind::Subtract, Kind::Number]);
        assert_eq!(inside("x -1"), [Kind::Name, Kind::Number]);
        assert_eq!(inside("x - 1"), [Kind::Name, Kind::Subtract, Kind::Number]);
        assert_eq!(
            inside("1+-5"),
            [Kind::Number, Kind::Add, Kind::Subtract, Kind::Number]
        );
    }

    #[test]
    fn trim_markers_remove_the_white_space_of_adjacent_text() {
        assert_eq!(texts("a \n [[- 1 -]] \t b"), ["a", "b"]);
        assert_eq!(texts("a [[1]] b"), ["a ", " b"]);
        assert_eq!(texts("a[[ 1   -]]  b"), ["a", "b"]);
    }

    #[test]
    fn comments_are_removed_everywhere() {
        assert_eq!(texts("a{* [[ x ]] *}b"), ["a", "b"]);
        assert_eq!(texts("{ * x"), ["{ * x"]);
    }

    #[test]
    fn an_action_ends_at_the_first_right_delimiter_outside_quotes() {
        assert_eq!(inside(r#" "]]" "#), [Kind::Quoted]);
        assert_eq!(inside(" ` ]] ` "), [Kind::Raw]);
        assert_eq!(kinds("[[a[b[0]]]]").last(), Some(&Kind::End));
    }

    #[test]
    fn a_keyword_after_a_dot_is_a_field() {
        assert_eq!(inside("x.if"), [Kind::Name, Kind::Field]);
        assert_eq!(inside("if"), [Kind::Keyword(Keyword::If)]);
    }

    #[test]
    fn invalid_text_ends_the_tokens_with_an_error() {
        for (text, reason) in [
            ("[[ x", "unclosed action"),
            ("[[ \"x ]]", "unterminated quoted string"),
            ("[[ \"x\\", "unterminated quoted string"),
            ("[[ 'x ]]", "unterminated character constant"),
            ("[[ `x ]]", "unterminated raw quoted string"),
            ("[[ (1 ]]", "unclosed left parenthesis"),
            ("[[ 1) ]]", "unexpected right paren U+0029 ')'"),
            ("[[ 1x ]]", "bad number syntax: \"1x\""),
            ("[[ a@ ]]", "bad character U+0040 '@'"),
            ("[[ € ]]", "unrecognized character in action: U+20AC '€'"),
            ("{* x", "unclosed comment"),
        ] {
            let tokens = lex(text.as_bytes(), "[[", "]]");
            assert_eq!(tokens.error.unwrap().to_string(), reason, "{text}");
            assert_eq!(tokens.list.last().unwrap().kind, Kind::Error, "{text}");
        }
    }

    #[test]
    fn names_may_be_written_in_any_script() {
        assert_eq!(inside("größe"), [Kind::Name]);
        assert_eq!(inside("_x _"), [Kind::Name, Kind::Underscore]);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_fine_outside_actions() {
        let tokens = lex(b"\xff\xfe[[ 1 ]]", "[[", "]]");
        assert_eq!(tokens.list[0].span, Span { start: 0, end: 2 });
        assert_eq!(tokens.error, None);
        assert!(lex(b"[[ \xff ]]", "[[", "]]").error.is_some());
    }
}
