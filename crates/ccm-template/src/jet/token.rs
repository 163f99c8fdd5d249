//! Tokens and keywords.

use super::error::Span;

/// Token kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Invalid text; see [`Tokens::error`](super::lexer::Tokens::error).
    Error,
    End,
    Text,
    LeftDelimiter,
    RightDelimiter,
    Name,
    /// `.` alone.
    Dot,
    /// A name with its leading dot.
    Field,
    Bool,
    Number,
    Character,
    Quoted,
    Raw,
    Underscore,
    /// A character that starts no other token.
    Stray,
    Pipe,
    Comma,
    Semicolon,
    Colon,
    Question,
    LeftParen,
    RightParen,
    LeftBracket,
    RightBracket,
    Assign,
    Declare,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    And,
    Or,
    Not,
    Keyword(Keyword),
}

/// A reserved word; valid as the name of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyword {
    Extends,
    Import,
    Include,
    Block,
    End,
    Yield,
    Content,
    If,
    Else,
    Range,
    Try,
    Catch,
    Return,
    Nil,
    /// `msg` and `trans`, which Jet reserves and does not use.
    Reserved,
}

impl Kind {
    /// Returns whether error messages call this token a keyword.
    pub(super) fn is_keyword(self) -> bool {
        matches!(self, Self::Keyword(_) | Self::And | Self::Or | Self::Not)
    }

    /// Classifies a word: a keyword, an operator, a boolean or a name.
    pub(super) fn of_word(word: &[u8]) -> Self {
        Self::Keyword(match word {
            b"true" | b"false" => return Self::Bool,
            b"and" => return Self::And,
            b"or" => return Self::Or,
            b"not" => return Self::Not,
            b"extends" => Keyword::Extends,
            b"import" => Keyword::Import,
            b"include" => Keyword::Include,
            b"block" => Keyword::Block,
            b"end" => Keyword::End,
            b"yield" => Keyword::Yield,
            b"content" => Keyword::Content,
            b"if" => Keyword::If,
            b"else" => Keyword::Else,
            b"range" => Keyword::Range,
            b"try" => Keyword::Try,
            b"catch" => Keyword::Catch,
            b"return" => Keyword::Return,
            b"nil" => Keyword::Nil,
            b"msg" | b"trans" => Keyword::Reserved,
            _ => return Self::Name,
        })
    }

    /// Returns whether a sign after this token is a binary operator, because an operand ends here.
    /// Closing brackets and parentheses are not in the list, as in Jet, so `f(x)-1` is an error.
    pub(super) fn ends_operand(self) -> bool {
        matches!(
            self,
            Self::Add
                | Self::Subtract
                | Self::Number
                | Self::Name
                | Self::Dot
                | Self::Quoted
                | Self::Raw
                | Self::Character
                | Self::Bool
                | Self::Field
                | Self::Stray
        )
    }
}

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Token {
    pub kind: Kind,
    pub span: Span,
    /// Whether white space precedes it.
    pub spaced: bool,
}
