//! Parser: the template as a whole. Continued in `statement` and `expression`.
//!
//! Recursive descent with limited depth. Messages name the token found and the expected one, worded
//! as in Jet. Templates that are extended or imported are loaded while parsing, through the
//! [`TemplateCache`].

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ast::{Blocks, Body, Node, ParsedTemplate};
use super::error::{Fault, Source, Span, Stage};
use super::lexer::{self, LexError, Tokens};
use super::loader::TemplateCache;
use super::token::{Keyword, Kind, Token};
use crate::{CallError, literal};

/// Maximum nesting of statements and expressions.
const MAX_NESTING: usize = 64;

pub(super) type Parsed<T> = Result<T, Fault>;

/// Parses a template and the templates that it extends or imports.
pub(super) fn parse(source: Arc<Source>, templates: &mut TemplateCache) -> Parsed<ParsedTemplate> {
    let (left, right) = templates.delimiters();
    let Tokens { list, error } = lexer::lex(&source.text, left, right);
    let parser = Parser {
        source,
        tokens: list,
        lexing_error: error,
        next: 0,
        depth: 0,
        blocks: Blocks::new(),
        names: BTreeSet::new(),
    };
    parser.template(templates)
}

pub(super) struct Parser {
    pub source: Arc<Source>,
    tokens: Vec<Token>,
    /// Reason why the tokens end early, if they do.
    pub lexing_error: Option<LexError>,
    next: usize,
    depth: usize,
    pub blocks: Blocks,
    pub names: BTreeSet<Arc<str>>,
}

/// The templates that a template extends and imports.
struct Preamble {
    base: Option<Arc<ParsedTemplate>>,
    imports: Vec<Arc<ParsedTemplate>>,
}

/// What an action is: a whole statement, or a keyword that closes one.
pub(super) enum Part {
    Node(Node),
    End,
    Else,
    /// `else if`; the `if` is not read yet.
    ElseIf,
    Content,
    Catch(Option<Arc<str>>),
}

impl Part {
    fn word(&self) -> &'static str {
        match self {
            Self::Node(_) => "statement",
            Self::End => "end",
            Self::Else | Self::ElseIf => "else",
            Self::Content => "content",
            Self::Catch(_) => "catch",
        }
    }
}

impl Parser {
    fn template(mut self, templates: &mut TemplateCache) -> Parsed<ParsedTemplate> {
        let Preamble { base, imports } = self.preamble(templates)?;
        let mut root = Vec::new();
        while self.peek().kind != Kind::End {
            let at = self.peek().span;
            match self.part()? {
                Part::Node(node) => root.push(node),
                stray => return Err(self.stray(at, &stray)),
            }
        }
        let mut blocks = Blocks::new();
        for parsed in base.iter().chain(&imports) {
            blocks.extend(parsed.blocks.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
        blocks.append(&mut self.blocks);
        Ok(ParsedTemplate {
            source: self.source,
            root: root.into(),
            blocks: Arc::new(blocks),
            base,
        })
    }

    /// Parses `extends` and `import` at the top, dropping blank text around them.
    fn preamble(&mut self, templates: &mut TemplateCache) -> Parsed<Preamble> {
        const CONTEXT: &str = "extends|import";
        let mut base = None;
        let mut imports = Vec::new();
        loop {
            let token = self.peek();
            if token.kind == Kind::Text {
                if !is_blank(self.source.slice(token.span)) {
                    break;
                }
                self.advance();
                continue;
            }
            let word = match (token.kind, self.peek_second().kind) {
                (Kind::LeftDelimiter, Kind::Keyword(word)) => word,
                _ => break,
            };
            if !matches!(word, Keyword::Extends | Keyword::Import) {
                break;
            }
            self.advance();
            let keyword = self.advance();
            let name = self.advance();
            let path = match name.kind {
                Kind::Quoted => literal::quoted(self.source.slice(name.span)),
                Kind::Raw => literal::raw(self.source.slice(name.span)),
                _ => return Err(self.unexpected(name, CONTEXT, "string literal")),
            };
            let path = path.map_err(|message| self.error(name.span, message))?;
            if word == Keyword::Extends {
                if base.is_some() {
                    return Err(self.error(
                        keyword.span,
                        "Unexpected extends clause: each template can only extend one template",
                    ));
                }
                if !imports.is_empty() {
                    return Err(self.error(
                        keyword.span,
                        "Unexpected extends clause: the 'extends' clause should come before all import clauses",
                    ));
                }
            }
            let parsed = templates
                .load_relative(&self.source.name, &String::from_utf8_lossy(&path))
                .map_err(|message| self.error(keyword.span, message))?;
            if word == Keyword::Extends {
                base = Some(parsed);
            } else {
                imports.push(parsed);
            }
            self.expect(Kind::RightDelimiter, CONTEXT, "closing delimiter")?;
        }
        Ok(Preamble { base, imports })
    }

    /// Parses statements up to the first part for which `stops` returns true, which is returned
    /// too.
    pub(super) fn body(&mut self, stops: fn(&Part) -> bool) -> Parsed<(Body, Part)> {
        self.nested(|parser| {
            let mut nodes = Vec::new();
            loop {
                let token = parser.peek();
                if token.kind == Kind::End {
                    return Err(parser.error(token.span, "unexpected EOF"));
                }
                match parser.part()? {
                    Part::Node(node) => nodes.push(node),
                    part if stops(&part) => return Ok((nodes.into(), part)),
                    stray => return Err(parser.stray(token.span, &stray)),
                }
            }
        })
    }

    pub(super) fn body_to_end(&mut self) -> Parsed<Body> {
        let (body, _) = self.body(|part| matches!(part, Part::End))?;
        Ok(body)
    }

    fn part(&mut self) -> Parsed<Part> {
        let token = self.advance();
        match token.kind {
            Kind::Text => Ok(Part::Node(Node::Text(token.span))),
            Kind::LeftDelimiter => self.action(),
            _ => Err(self.unexpected(token, "input", "text or action")),
        }
    }

    fn action(&mut self) -> Parsed<Part> {
        let token = self.peek();
        let Kind::Keyword(word) = token.kind else {
            return Ok(Part::Node(self.command_action()?));
        };
        if matches!(
            word,
            Keyword::Nil | Keyword::Extends | Keyword::Import | Keyword::Reserved
        ) {
            return Ok(Part::Node(self.command_action()?));
        }
        self.advance();
        Ok(match word {
            Keyword::End => {
                self.right_delimiter("end")?;
                Part::End
            }
            Keyword::Else if self.peek().kind == Kind::Keyword(Keyword::If) => Part::ElseIf,
            Keyword::Else => {
                self.right_delimiter("else")?;
                Part::Else
            }
            Keyword::Content => {
                self.right_delimiter("content")?;
                Part::Content
            }
            Keyword::Catch => self.catch()?,
            Keyword::If => Part::Node(self.if_statement()?),
            Keyword::Range => Part::Node(self.range_statement()?),
            Keyword::Try => Part::Node(self.try_statement()?),
            Keyword::Block => Part::Node(self.block_statement(token.span)?),
            Keyword::Yield => Part::Node(self.yield_statement(token.span)?),
            Keyword::Include => Part::Node(self.include_statement()?),
            _ => {
                let value = self.expression("return")?;
                self.right_delimiter("return")?;
                Part::Node(Node::Return(value))
            }
        })
    }

    pub(super) fn right_delimiter(&mut self, context: &'static str) -> Parsed<()> {
        self.expect(Kind::RightDelimiter, context, "closing delimiter")?;
        Ok(())
    }

    pub(super) fn expect(
        &mut self,
        kind: Kind,
        context: &'static str,
        expected: &'static str,
    ) -> Parsed<Token> {
        let token = self.advance();
        if token.kind == kind {
            Ok(token)
        } else {
            Err(self.unexpected(token, context, expected))
        }
    }

    /// Returns the next token without taking it.
    pub(super) fn peek(&self) -> Token {
        self.token(self.next)
    }

    pub(super) fn peek_second(&self) -> Token {
        self.token(self.next + 1)
    }

    /// Takes the next token; the last one can be taken repeatedly.
    pub(super) fn advance(&mut self) -> Token {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn token(&self, at: usize) -> Token {
        let end = Token {
            kind: Kind::End,
            span: Span::default(),
            spaced: false,
        };
        let token = self.tokens.get(at).or_else(|| self.tokens.last());
        token.copied().unwrap_or(end)
    }

    /// Runs a parser one nesting level deeper; fails at the limit.
    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_NESTING {
            return Err(self.error_here(format!("nested deeper than {MAX_NESTING} levels")));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Returns the name that a token spells; equal names share one allocation.
    pub(super) fn name(&mut self, token: Token) -> Arc<str> {
        let text = self.source.slice(token.span);
        let text = text.strip_prefix(b".").unwrap_or(text);
        let text = String::from_utf8_lossy(text);
        if let Some(known) = self.names.get(&*text) {
            return known.clone();
        }
        let name: Arc<str> = text.into();
        self.names.insert(name.clone());
        name
    }

    pub(super) fn unexpected(&self, token: Token, context: &str, expected: &str) -> Fault {
        let cause = self
            .lexing_error
            .as_ref()
            .filter(|_| token.kind == Kind::Error);
        let text = match cause {
            Some(error) => error.to_string(),
            None => self.source.quote(token.span),
        };
        let message = match token.kind {
            Kind::Keyword(Keyword::Extends | Keyword::Import) => format!(
                "unexpected keyword '{text}' ('{text}' statements must be at the beginning of the template)"
            ),
            kind if kind.is_keyword() => {
                format!("unexpected keyword '{text}' (expected {expected})")
            }
            _ => format!("unexpected token '{text}' (expected {expected})"),
        };
        let message = format!("parsing {context}: {message}");
        let error = match cause {
            Some(cause) => CallError::new(cause.clone()).reword(|_| message),
            None => message.into(),
        };
        self.error(token.span, error)
    }

    pub(super) fn error(&self, span: Span, message: impl Into<CallError>) -> Fault {
        self.source.error(Stage::Parse, span, message)
    }

    pub(super) fn error_here(&self, message: impl Into<CallError>) -> Fault {
        self.error(self.peek().span, message)
    }

    fn stray(&self, at: Span, part: &Part) -> Fault {
        self.error(at, format!("unexpected {{{{{}}}}}", part.word()))
    }
}

fn is_blank(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.trim().is_empty())
}
