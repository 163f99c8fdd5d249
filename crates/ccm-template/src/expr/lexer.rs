//! Lexer: splits an expression into tokens, one at a time.
//!
//! Reserved words such as `in` and `not` are operators. Grammar is checked by the parser.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::error::Fault;
use ccm_value::quote::quote;

/// Shared text of tokens and tree nodes.
pub(super) type Text = Arc<str>;

/// One token and the byte offset where it starts.
#[derive(Clone, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: TokenKind<'a>,
    pub(super) at: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum TokenKind<'a> {
    Name(&'a str),
    Number(&'a str),
    Text(Cow<'a, str>),
    Operator(&'a str),
    Bracket(&'a str),
    End,
}

impl Token<'_> {
    pub(super) fn is_operator(&self, text: &str) -> bool {
        matches!(self.kind, TokenKind::Operator(found) if found == text)
    }

    pub(super) fn is_bracket(&self, text: &str) -> bool {
        matches!(self.kind, TokenKind::Bracket(found) if found == text)
    }
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            TokenKind::Name(text) => write!(out, "Identifier({})", quote(text)),
            TokenKind::Number(text) => write!(out, "Number({})", quote(text)),
            TokenKind::Text(text) if text.is_empty() => out.write_str("String"),
            TokenKind::Text(text) => write!(out, "String({})", quote(text)),
            TokenKind::Operator(text) => write!(out, "Operator({})", quote(text)),
            TokenKind::Bracket(text) => write!(out, "Bracket({})", quote(text)),
            TokenKind::End => out.write_str("EOF"),
        }
    }
}

const WORDS: [&str; 11] = [
    "not",
    "in",
    "or",
    "and",
    "matches",
    "contains",
    "startsWith",
    "endsWith",
    "let",
    "if",
    "else",
];

/// Iterates over the tokens of a text.
pub(super) struct Lexer<'a> {
    code: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(code: &'a str) -> Self {
        Self { code, at: 0 }
    }

    /// Returns the next token; after the last one, always [`TokenKind::End`].
    pub(super) fn token(&mut self) -> Result<Token<'a>, Fault> {
        self.skip_blanks()?;
        let start = self.at;
        let Some(first) = self.peek() else {
            return Ok(Token {
                kind: TokenKind::End,
                at: self.before(start),
            });
        };
        let kind = match first {
            '\'' | '"' => TokenKind::Text(Cow::Owned(self.quoted(first)?)),
            '`' => TokenKind::Text(self.raw()?),
            '0'..='9' => TokenKind::Number(self.number(start)?),
            '.' if self.rest_starts_with_digit_after_dot() => {
                TokenKind::Number(self.number(start)?)
            }
            '(' | '[' | '{' | ')' | ']' | '}' => {
                self.bump();
                TokenKind::Bracket(self.since(start))
            }
            _ if is_word(first) => {
                self.take_while(is_word);
                let word = self.since(start);
                if WORDS.contains(&word) {
                    TokenKind::Operator(word)
                } else {
                    TokenKind::Name(word)
                }
            }
            _ => TokenKind::Operator(self.operator(first)?),
        };
        Ok(Token { kind, at: start })
    }

    fn operator(&mut self, first: char) -> Result<&'a str, Fault> {
        let start = self.at;
        let second: &[char] = match first {
            ',' | ';' | '%' | '+' | '-' | '^' | '/' | '#' => &[],
            '.' => &['.'],
            '?' => &['.', '?'],
            '|' => &['|'],
            ':' => &[':'],
            '&' | '!' | '=' | '*' | '<' | '>' => &['&', '=', '*'],
            _ => {
                return Err(Fault::at(
                    start,
                    format!(
                        "unrecognized character: U+{:04X} '{first}'",
                        u32::from(first)
                    ),
                ));
            }
        };
        self.bump();
        if self.peek().is_some_and(|next| second.contains(&next)) {
            self.bump();
        }
        Ok(self.since(start))
    }

    fn skip_blanks(&mut self) -> Result<(), Fault> {
        loop {
            self.take_while(char::is_whitespace);
            let rest = self.rest();
            if rest.starts_with("//") {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if let Some(comment) = rest.strip_prefix("/*") {
                match comment.find("*/") {
                    Some(end) => self.at += 2 + end + 2,
                    None => return Err(Fault::at(self.code.len(), "unclosed comment")),
                }
            } else {
                return Ok(());
            }
        }
    }

    fn number(&mut self, start: usize) -> Result<&'a str, Fault> {
        let mut digits: fn(char) -> bool = |c| c.is_ascii_digit() || c == '_';
        let rest = self.rest().as_bytes();
        if let [b'0', base, ..] = rest {
            let based: Option<fn(char) -> bool> = match base {
                b'x' | b'X' => Some(|c| c.is_ascii_hexdigit() || c == '_'),
                b'o' | b'O' => Some(|c| matches!(c, '0'..='7' | '_')),
                b'b' | b'B' => Some(|c| matches!(c, '0' | '1' | '_')),
                _ => None,
            };
            if let Some(based) = based {
                digits = based;
                self.at += 2;
            }
        }
        self.take_while(digits);
        // Two dots are the range operator: `1..3`.
        if self.peek() == Some('.') && !self.rest().starts_with("..") {
            self.bump();
            self.take_while(digits);
        }
        if matches!(self.peek(), Some('e' | 'E')) {
            self.bump();
            if matches!(self.peek(), Some('+' | '-')) {
                self.bump();
            }
            self.take_while(digits);
        }
        if self.peek().is_some_and(is_word) {
            let at = self.at;
            self.bump();
            return Err(Fault::at(
                at,
                format!("bad number syntax: {}", quote(self.since(start))),
            ));
        }
        Ok(self.since(start))
    }

    /// Reads a `'..'` or `".."` literal with escapes.
    fn quoted(&mut self, quote: char) -> Result<String, Fault> {
        self.bump();
        let mut text = String::new();
        loop {
            let at = self.at;
            match self.bump() {
                None | Some('\n') => return Err(Fault::at(at, "literal not terminated")),
                Some('\\') => text.push(self.escape()?),
                Some('\r') => {
                    // Line endings inside a literal are normalized.
                    if self.peek() != Some('\n') {
                        text.push('\n');
                    }
                }
                Some(found) if found == quote => return Ok(text),
                Some(found) => text.push(found),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Fault> {
        let at = self.at;
        let bad = || Fault::at(at, "invalid char escape");
        let code = match self.bump().ok_or_else(bad)? {
            'a' => 0x07,
            'b' => 0x08,
            'f' => 0x0c,
            'n' => 0x0a,
            'r' => 0x0d,
            't' => 0x09,
            'v' => 0x0b,
            same @ ('\\' | '\'' | '"' | '`' | '?') => u32::from(same),
            'x' => self.digits(16, 2).ok_or_else(bad)?,
            'u' if self.peek() == Some('{') => {
                self.bump();
                let start = self.at;
                self.take_while(|c| c.is_ascii_hexdigit());
                let digits = self.since(start);
                if digits.len() > 6 || self.bump() != Some('}') {
                    return Err(bad());
                }
                u32::from_str_radix(digits, 16).map_err(|_| bad())?
            }
            'u' => self.digits(16, 4).ok_or_else(bad)?,
            'U' => self.digits(16, 8).ok_or_else(bad)?,
            '0'..='3' => {
                self.at = at;
                self.digits(8, 3).ok_or_else(bad)?
            }
            _ => return Err(bad()),
        };
        // A lone surrogate becomes the replacement character, as in Go.
        match char::from_u32(code) {
            Some(found) => Ok(found),
            None if code <= u32::from(char::MAX) => Ok(char::REPLACEMENT_CHARACTER),
            None => Err(Fault::at(at, "unable to unescape string")),
        }
    }

    /// Reads exactly `count` digits.
    fn digits(&mut self, radix: u32, count: usize) -> Option<u32> {
        let mut value: u32 = 0;
        for _ in 0..count {
            let digit = self.peek()?.to_digit(radix)?;
            value = value.checked_mul(radix)?.checked_add(digit)?;
            self.bump();
        }
        Some(value)
    }

    /// Reads a backtick literal; a doubled backtick stands for one.
    fn raw(&mut self) -> Result<Cow<'a, str>, Fault> {
        self.bump();
        let start = self.at;
        loop {
            match self.rest().find('`') {
                None => return Err(Fault::at(self.code.len(), "literal not terminated")),
                Some(offset) => self.at += offset,
            }
            if self.rest().starts_with("``") {
                self.at += 2;
                continue;
            }
            let text = self.since(start);
            self.bump();
            return Ok(if text.contains("``") {
                Cow::Owned(text.replace("``", "`"))
            } else {
                Cow::Borrowed(text)
            });
        }
    }

    fn rest(&self) -> &'a str {
        self.code.get(self.at..).unwrap_or_default()
    }

    fn since(&self, start: usize) -> &'a str {
        self.code.get(start..self.at).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let found = self.peek()?;
        self.at += found.len_utf8();
        Some(found)
    }

    fn take_while(&mut self, wanted: fn(char) -> bool) {
        let rest = self.rest();
        self.at += rest.find(|c| !wanted(c)).unwrap_or(rest.len());
    }

    fn rest_starts_with_digit_after_dot(&self) -> bool {
        self.rest()
            .as_bytes()
            .get(1)
            .is_some_and(u8::is_ascii_digit)
    }

    /// Returns the offset for an error; at the end of the text that is the last character.
    fn before(&self, at: usize) -> usize {
        self.code
            .get(..at)
            .and_then(|text| text.char_indices().next_back())
            .map_or(0, |(index, _)| index)
    }
}

/// Returns whether a character may occur in a name.
pub(super) fn is_word(c: char) -> bool {
    c == '_' || c == '$' || c.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(code: &str) -> Result<Vec<String>, String> {
        let mut lexer = Lexer::new(code);
        let mut found = Vec::new();
        loop {
            let token = lexer
                .token()
                .map_err(|fault| fault.into_run_error(code).to_string())?;
            if token.kind == TokenKind::End {
                return Ok(found);
            }
            found.push(token.to_string());
        }
    }

    fn text(code: &str) -> String {
        match Lexer::new(code).token().unwrap().kind {
            TokenKind::Text(text) => text.into_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn two_dots_after_a_number_are_a_range() {
        assert_eq!(
            tokens("1..2").unwrap(),
            ["Number(\"1\")", "Operator(\"..\")", "Number(\"2\")"]
        );
    }

    #[test]
    fn escapes_become_characters() {
        assert_eq!(text(r#""\x41\u00e9\u{1F600}\n\101\"""#), "Aé😀\nA\"");
        assert_eq!(text(r"'it\'s'"), "it's");
        assert_eq!(text("`a``b\\n`"), "a`b\\n");
    }

    #[test]
    fn an_unknown_escape_is_refused() {
        assert!(
            tokens(r"'\q'")
                .unwrap_err()
                .starts_with("invalid char escape (1:3)")
        );
    }

    #[test]
    fn comments_are_skipped_and_must_end() {
        assert_eq!(tokens("1 // x\n/* y */ 2").unwrap().len(), 2);
        assert!(
            tokens("1 /* x")
                .unwrap_err()
                .starts_with("unclosed comment")
        );
    }

    #[test]
    fn letters_right_after_a_number_are_refused() {
        assert!(
            tokens("12abc")
                .unwrap_err()
                .starts_with("bad number syntax: \"12a\" (1:3)")
        );
    }

    #[test]
    fn a_text_must_end_on_its_line() {
        assert!(
            tokens("'a\nb'")
                .unwrap_err()
                .starts_with("literal not terminated")
        );
    }
}
