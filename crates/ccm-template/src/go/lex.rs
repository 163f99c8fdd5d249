//! Lexer: splits a template into tokens like Go's `text/template`.
//!
//! Text between actions is one token. Spaces inside an action are tokens, because they separate
//! arguments (`f .x` is not `f.x`). The lexer handles delimiters, trim markers and comments, but no
//! grammar. An error is the last token of the stream, so that the parser reports earlier syntax
//! errors first.

/// Token kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Left,
    Right,
    Space,
    Assign,
    Declare,
    Pipe,
    Comma,
    OpenParen,
    CloseParen,
    Quoted,
    Raw,
    Char,
    Number,
    Name,
    Field,
    Variable,
    Dot,
    Nil,
    True,
    False,
    Keyword(Keyword),
    End,
    /// A printable character that starts no other token.
    Stray,
    /// A lexical error; the token's text is the offending character, if there is one.
    Error(&'static str),
}

/// Keywords that start or end a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    Block,
    Break,
    Continue,
    Define,
    Else,
    End,
    If,
    Range,
    Template,
    With,
}

/// A token and its byte offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'t> {
    pub kind: Kind,
    pub at: usize,
    pub text: &'t str,
}

/// White space that trim markers remove and that separates arguments.
const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

/// The only error whose token has the offending character as text.
const BAD_CHARACTER: &str = "bad character";

/// Splits a template into tokens; the last is [`Kind::End`] or [`Kind::Error`].
pub(super) fn tokens<'t>(template: &'t str, left: &'t str, right: &'t str) -> Vec<Token<'t>> {
    let mut lexer = Lexer {
        template,
        rest: template,
        left,
        right,
        tokens: Vec::new(),
    };
    if let Err(fault) = lexer.run() {
        let at = fault.at.unwrap_or(lexer.at());
        let rest = template.get(at..).unwrap_or("");
        let length = match fault.what {
            BAD_CHARACTER => rest.chars().next().map_or(0, char::len_utf8),
            _ => 0,
        };
        lexer.tokens.push(Token {
            kind: Kind::Error(fault.what),
            at,
            text: rest.get(..length).unwrap_or(""),
        });
    }
    lexer.tokens
}

struct Lexer<'t> {
    template: &'t str,
    rest: &'t str,
    left: &'t str,
    right: &'t str,
    tokens: Vec<Token<'t>>,
}

struct Fault {
    what: &'static str,
    /// Offset where it began, if that is not the current one.
    at: Option<usize>,
}

fn fault(what: &'static str) -> Fault {
    Fault { what, at: None }
}

impl<'t> Lexer<'t> {
    fn at(&self) -> usize {
        self.template.len() - self.rest.len()
    }

    /// Emits the next `len` bytes as a token.
    fn push(&mut self, kind: Kind, len: usize) {
        let at = self.at();
        let (text, rest) = self.rest.split_at_checked(len).unwrap_or((self.rest, ""));
        self.rest = rest;
        self.tokens.push(Token { kind, at, text });
    }

    fn skip(&mut self, len: usize) {
        self.rest = self.rest.get(len..).unwrap_or("");
    }

    fn run(&mut self) -> Result<(), Fault> {
        while let Some(found) = self.rest.find(self.left) {
            let (text, action) = self.rest.split_at(found);
            let inside = action.get(self.left.len()..).unwrap_or("");
            let trims = trims_left(inside);
            let kept = if trims {
                text.trim_end_matches(BLANKS)
            } else {
                text
            };
            if !kept.is_empty() {
                self.push(Kind::Text, kept.len());
            }
            self.skip(text.len() - kept.len());
            let marker = usize::from(trims) * 2;
            if inside.get(marker..).is_some_and(|s| s.starts_with("/*")) {
                // The first byte of the marker is the dash; a comment may follow its space.
                self.comment(self.left.len() + marker)?;
                continue;
            }
            self.push(Kind::Left, self.left.len());
            self.skip(marker);
            self.action()?;
        }
        if !self.rest.is_empty() {
            self.push(Kind::Text, self.rest.len());
        }
        self.push(Kind::End, 0);
        Ok(())
    }

    fn comment(&mut self, opening: usize) -> Result<(), Fault> {
        let at = Some(self.at());
        self.skip(opening);
        let Some(end) = self.rest.find("*/") else {
            return Err(Fault {
                what: "unclosed comment",
                at,
            });
        };
        self.skip(end + 2);
        let Some(trims) = self.at_right() else {
            return Err(Fault {
                what: "comment ends before closing delimiter",
                at,
            });
        };
        self.close(trims);
        Ok(())
    }

    /// Returns `Some` if the right delimiter comes next, with whether it trims.
    fn at_right(&self) -> Option<bool> {
        let mut chars = self.rest.chars();
        let blank = chars.next().is_some_and(|c| BLANKS.contains(&c));
        if blank && chars.next() == Some('-') && chars.as_str().starts_with(self.right) {
            return Some(true);
        }
        self.rest.starts_with(self.right).then_some(false)
    }

    fn close(&mut self, trims: bool) {
        let marker = usize::from(trims) * 2;
        self.skip(marker + self.right.len());
        if trims {
            self.rest = self.rest.trim_start_matches(BLANKS);
        }
    }

    fn action(&mut self) -> Result<(), Fault> {
        let opened = self.tokens.last().map(|token| token.at);
        let mut parens = 0usize;
        loop {
            if let Some(trims) = self.at_right() {
                if parens > 0 {
                    return Err(fault("unclosed left paren"));
                }
                let at = self.at();
                self.close(trims);
                self.tokens.push(Token {
                    kind: Kind::Right,
                    at,
                    text: self.right,
                });
                return Ok(());
            }
            let Some(next) = self.rest.chars().next() else {
                return Err(Fault {
                    what: "unclosed action",
                    at: opened,
                });
            };
            match next {
                blank if BLANKS.contains(&blank) => self.blanks(),
                '=' => self.push(Kind::Assign, 1),
                ':' if self.rest.starts_with(":=") => self.push(Kind::Declare, 2),
                ':' => return Err(fault("expected :=")),
                '|' => self.push(Kind::Pipe, 1),
                ',' => self.push(Kind::Comma, 1),
                '"' => self.quoted('"', Kind::Quoted, "unterminated quoted string")?,
                '\'' => self.quoted('\'', Kind::Char, "unterminated character constant")?,
                '`' => {
                    let len = self.rest.get(1..).and_then(|rest| rest.find('`'));
                    let len = len.ok_or(fault("unterminated raw quoted string"))?;
                    self.push(Kind::Raw, len + 2);
                }
                '(' => {
                    parens += 1;
                    self.push(Kind::OpenParen, 1);
                }
                ')' => {
                    parens = parens
                        .checked_sub(1)
                        .ok_or(fault("unexpected right paren"))?;
                    self.push(Kind::CloseParen, 1);
                }
                '$' => self.prefixed(Kind::Variable, Kind::Variable)?,
                '.' if !self.digit_follows() => self.prefixed(Kind::Field, Kind::Dot)?,
                '.' | '+' | '-' | '0'..='9' => self.number()?,
                letter if is_word(letter) => self.name()?,
                other if other.is_ascii_graphic() => self.push(Kind::Stray, 1),
                _ => return Err(fault(BAD_CHARACTER)),
            }
        }
    }

    /// Reads white space, except the one that belongs to a trim marker.
    fn blanks(&mut self) {
        let mut len = 0;
        for (index, _) in self
            .rest
            .char_indices()
            .take_while(|(_, c)| BLANKS.contains(c))
        {
            let closing = self.rest.get(index + 1..).and_then(|s| s.strip_prefix('-'));
            if closing.is_some_and(|s| s.starts_with(self.right)) {
                break;
            }
            len = index + 1;
        }
        self.push(Kind::Space, len);
    }

    fn quoted(&mut self, quote: char, kind: Kind, unterminated: &'static str) -> Result<(), Fault> {
        let mut escaped = false;
        for (index, c) in self.rest.char_indices().skip(1) {
            match c {
                '\n' => break,
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                c if c == quote => {
                    self.push(kind, index + 1);
                    return Ok(());
                }
                _ => {}
            }
        }
        Err(fault(unterminated))
    }

    fn digit_follows(&self) -> bool {
        self.rest.chars().nth(1).is_some_and(|c| c.is_ascii_digit())
    }

    /// Reads `.name` or `$name`; the prefix alone becomes `alone`.
    fn prefixed(&mut self, kind: Kind, alone: Kind) -> Result<(), Fault> {
        let len = 1 + word_len(self.rest.get(1..).unwrap_or(""));
        let kind = if len == 1 { alone } else { kind };
        self.ended(len)?;
        self.push(kind, len);
        Ok(())
    }

    fn name(&mut self) -> Result<(), Fault> {
        let len = word_len(self.rest);
        self.ended(len)?;
        let kind = match self.rest.get(..len).unwrap_or("") {
            "block" => Kind::Keyword(Keyword::Block),
            "break" => Kind::Keyword(Keyword::Break),
            "continue" => Kind::Keyword(Keyword::Continue),
            "define" => Kind::Keyword(Keyword::Define),
            "else" => Kind::Keyword(Keyword::Else),
            "end" => Kind::Keyword(Keyword::End),
            "if" => Kind::Keyword(Keyword::If),
            "range" => Kind::Keyword(Keyword::Range),
            "template" => Kind::Keyword(Keyword::Template),
            "with" => Kind::Keyword(Keyword::With),
            "nil" => Kind::Nil,
            "true" => Kind::True,
            "false" => Kind::False,
            _ => Kind::Name,
        };
        self.push(kind, len);
        Ok(())
    }

    /// Checks that a valid terminator follows a word of `len` bytes.
    fn ended(&self, len: usize) -> Result<(), Fault> {
        match self.rest.get(len..).and_then(|rest| rest.chars().next()) {
            None | Some('.' | ',' | '|' | ':' | '(' | ')') => Ok(()),
            Some(c) if BLANKS.contains(&c) || self.right.starts_with(c) => Ok(()),
            Some(_) => Err(Fault {
                what: BAD_CHARACTER,
                at: Some(self.at() + len),
            }),
        }
    }

    fn number(&mut self) -> Result<(), Fault> {
        let mut scan = self.rest;
        let mut take = |set: &dyn Fn(char) -> bool, most: usize| {
            let len = scan.chars().take(most).take_while(|c| set(*c)).count();
            scan = scan.get(len..).unwrap_or("");
            len > 0
        };
        let sign = |c| matches!(c, '+' | '-');
        let decimal = |c: char| c.is_ascii_digit() || c == '_';
        let hex = |c: char| c.is_ascii_hexdigit() || c == '_';
        take(&sign, 1);
        let zero = take(&|c| c == '0', 1);
        let is_hex = zero && take(&|c| matches!(c, 'x' | 'X'), 1);
        if zero && !is_hex {
            take(&|c| matches!(c, 'b' | 'B' | 'o' | 'O'), 1);
        }
        let digits: &dyn Fn(char) -> bool = if is_hex { &hex } else { &decimal };
        take(digits, usize::MAX);
        if take(&|c| c == '.', 1) {
            take(digits, usize::MAX);
        }
        let exponent: &dyn Fn(char) -> bool = if is_hex {
            &|c| matches!(c, 'p' | 'P')
        } else {
            &|c| matches!(c, 'e' | 'E')
        };
        if take(exponent, 1) {
            take(&sign, 1);
            take(&decimal, usize::MAX);
        }
        if scan.starts_with(|c| is_word(c) || sign(c)) {
            return Err(fault("bad number syntax"));
        }
        self.push(Kind::Number, self.rest.len() - scan.len());
        Ok(())
    }
}

fn trims_left(inside: &str) -> bool {
    let mut chars = inside.chars();
    chars.next() == Some('-') && chars.next().is_some_and(|c| BLANKS.contains(&c))
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn word_len(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(template: &str) -> Vec<Kind> {
        tokens(template, "{{", "}}")
            .iter()
            .map(|token| token.kind)
            .collect()
    }

    #[test]
    fn trim_markers_remove_the_white_space_around_an_action() {
        let all = tokens("a \n{{- .x -}}\n b", "{{", "}}");
        let text: Vec<_> = all
            .iter()
            .filter(|token| token.kind == Kind::Text)
            .map(|token| token.text)
            .collect();
        assert_eq!(text, ["a", "b"]);
    }

    #[test]
    fn a_dash_before_a_digit_is_a_number() {
        assert_eq!(
            kinds("{{-3}}"),
            [Kind::Left, Kind::Number, Kind::Right, Kind::End]
        );
    }

    #[test]
    fn comments_leave_no_token() {
        assert_eq!(kinds("{{/* x */}}{{- /* y */ -}} "), [Kind::End]);
    }

    #[test]
    fn an_action_that_never_closes_is_reported_where_it_opened() {
        let last = *tokens("ab{{ .x", "{{", "}}").last().unwrap();
        assert_eq!(last.kind, Kind::Error("unclosed action"));
        assert_eq!(last.at, 2);
    }
}
