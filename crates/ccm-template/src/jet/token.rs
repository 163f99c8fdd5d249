//! The tokens of the language, and what the lexer must know about them.

use super::error::Span;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The text ends here because it can't be read further; see `Lexed::error`.
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
    /// A character that means nothing.
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

/// A reserved word; fine as the name of a field.
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
    /// Returns whether messages call this token a keyword.
    pub(super) fn is_keyword(self) -> bool {
        matches!(self, Self::Keyword(_) | Self::And | Self::Or | Self::Not)
    }

    /// Returns what a word is: a keyword, an operator, a truth or just a name.
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

    /// Returns whether a sign right after this token is an operation: an operand ended here.
    /// Brackets and parentheses are missing from the list in Jet too, so `f(x)-1` is an error.
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
    /// Whether white space came before it.
    pub spaced: bool,
}
