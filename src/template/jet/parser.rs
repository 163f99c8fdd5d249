//! Turns tokens into a tree: the statements. `expression` continues this parser with the rest.
//!
//! Recursive descent, limited in depth. Messages name the token found and what was expected, in
//! the words of Jet. Templates that are extended or imported are loaded while parsing, through
//! the [`Shelf`]; what they do at run time is the business of `runtime`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ast::{
    Assign, Binding, Block, Blocks, Body, Branch, Catch, Command, Expr, ExprKind, Node, Parameter,
    Pipeline, Range, Step, Target, TargetKind, Unit, Yield,
};
use super::error::{JetError, Source, Span, Stage};
use super::lexer::{self, Keyword, Kind, Token, Tokens};
use super::literal;
use super::shelf::Shelf;

/// How deep statements and expressions may nest.
const MAX_NESTING: usize = 64;

pub(super) type Parsed<T> = Result<T, JetError>;

/// Returns the parsed form of a template, with the templates that it builds on.
pub(super) fn parse(source: Arc<Source>, shelf: &mut Shelf) -> Parsed<Unit> {
    let (left, right) = shelf.delimiters();
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
    parser.unit(shelf)
}

pub(super) struct Parser {
    pub source: Arc<Source>,
    tokens: Vec<Token>,
    /// Why the tokens end early, if they do.
    pub lexing_error: String,
    next: usize,
    depth: usize,
    blocks: Blocks,
    pub names: BTreeSet<Arc<str>>,
}

/// What stands between two pieces of text: a whole statement, or a word that closes one.
enum Part {
    Node(Node),
    End,
    Else,
    /// `else if`, with the `if` still to be read.
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
    fn unit(mut self, shelf: &mut Shelf) -> Parsed<Unit> {
        let (base, imports) = self.preamble(shelf)?;
        let mut root = Vec::new();
        while self.peek().kind != Kind::End {
            let at = self.peek().span;
            match self.part()? {
                Part::Node(node) => root.push(node),
                stray => return Err(self.stray(at, &stray)),
            }
        }
        let mut blocks = Blocks::new();
        for unit in base.iter().chain(&imports) {
            blocks.extend(unit.blocks.iter().map(|(k, v)| (k.clone(), v.clone())));
            self.names.extend(unit.names.iter().cloned());
        }
        blocks.append(&mut self.blocks);
        Ok(Unit {
            source: self.source,
            root: root.into(),
            blocks: Arc::new(blocks),
            base,
            names: self.names,
        })
    }

    /// Reads `extends` and `import` from the top, dropping blank text around them.
    fn preamble(&mut self, shelf: &mut Shelf) -> Parsed<(Option<Arc<Unit>>, Vec<Arc<Unit>>)> {
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
            let unit = shelf
                .sibling(&self.source.name, &String::from_utf8_lossy(&path))
                .map_err(|message| self.error(keyword.span, message))?;
            if word == Keyword::Extends {
                base = Some(unit);
            } else {
                imports.push(unit);
            }
            self.expect(Kind::RightDelimiter, CONTEXT, "closing delimiter")?;
        }
        Ok((base, imports))
    }

    /// Reads statements up to the first that `stops`, which is returned beside them.
    fn body(&mut self, stops: fn(&Part) -> bool) -> Parsed<(Body, Part)> {
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

    fn body_to_end(&mut self) -> Parsed<Body> {
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

    fn if_statement(&mut self) -> Parsed<Node> {
        let mut branches = Vec::new();
        loop {
            let (assign, test) = match self.assignment_or_expression("if")? {
                Statement::Expr(test) => (None, test),
                Statement::Assign(assign) => {
                    let what = "semicolon between assignment and expression";
                    self.expect(Kind::Semicolon, "if", what)?;
                    (Some(assign), self.expression("if")?)
                }
            };
            self.right_delimiter("if")?;
            let (body, stop) =
                self.body(|part| matches!(part, Part::End | Part::Else | Part::ElseIf))?;
            branches.push(Branch { assign, test, body });
            let otherwise = match stop {
                Part::ElseIf => {
                    self.advance();
                    continue;
                }
                Part::Else => Some(self.body_to_end()?),
                _ => None,
            };
            return Ok(Node::If {
                branches,
                otherwise,
            });
        }
    }

    fn range_statement(&mut self) -> Parsed<Node> {
        let (over, binding) = match self.assignment_or_expression("range")? {
            Statement::Expr(over) => (over, None),
            Statement::Assign(assign) => self.binding(assign)?,
        };
        self.right_delimiter("range")?;
        let (body, stop) = self.body(|part| matches!(part, Part::End | Part::Else))?;
        let otherwise = match stop {
            Part::Else => Some(self.body_to_end()?),
            _ => None,
        };
        Ok(Node::Range(Box::new(Range {
            over,
            binding,
            body,
            otherwise,
        })))
    }

    fn binding(&self, assign: Assign) -> Parsed<(Expr, Option<Binding>)> {
        let declare = assign.declare;
        let mut targets = assign.targets.into_iter();
        let mut values = assign.values.into_iter();
        match (targets.next(), targets.next(), values.next()) {
            (Some(key), value, Some(over)) if targets.next().is_none() => Ok((
                over,
                Some(Binding {
                    declare,
                    key,
                    value,
                }),
            )),
            _ => Err(self.error_here("unexpected number of operands in assign on range")),
        }
    }

    fn try_statement(&mut self) -> Parsed<Node> {
        self.right_delimiter("try")?;
        let (body, stop) = self.body(|part| matches!(part, Part::End | Part::Catch(_)))?;
        let catch = match stop {
            Part::Catch(name) => Some(Catch {
                name,
                body: self.body_to_end()?,
            }),
            _ => None,
        };
        Ok(Node::Try { body, catch })
    }

    fn catch(&mut self) -> Parsed<Part> {
        let token = self.peek();
        let name = match token.kind {
            Kind::RightDelimiter => None,
            Kind::Name => {
                self.advance();
                Some(self.name(token))
            }
            _ => return Err(self.unexpected(token, "catch", "name or closing delimiter")),
        };
        self.right_delimiter("catch")?;
        Ok(Part::Catch(name))
    }

    fn block_statement(&mut self, start: Span) -> Parsed<Node> {
        const CONTEXT: &str = "block clause";
        let name = self.expect(Kind::Name, CONTEXT, "name")?;
        let parameters = self.parameters(true, CONTEXT)?;
        let context = self.optional_expression(CONTEXT)?;
        self.right_delimiter(CONTEXT)?;
        let (body, stop) = self.body(|part| matches!(part, Part::End | Part::Content))?;
        let content = match stop {
            Part::Content => Some(self.body_to_end()?),
            _ => None,
        };
        let block = Arc::new(Block {
            name: self.name(name),
            span: start.to(name.span),
            source: self.source.clone(),
            parameters,
            context,
            body,
            content,
        });
        self.blocks.insert(block.name.clone(), block.clone());
        Ok(Node::Block(block))
    }

    fn yield_statement(&mut self, start: Span) -> Parsed<Node> {
        const CONTEXT: &str = "yield clause";
        let name = self.advance();
        if name.kind == Kind::Keyword(Keyword::Content) {
            let context = self.optional_expression(CONTEXT)?;
            self.right_delimiter(CONTEXT)?;
            return Ok(Node::Content(context));
        }
        if name.kind != Kind::Name {
            return Err(self.unexpected(name, CONTEXT, "block name"));
        }
        let parameters = self.parameters(false, CONTEXT)?;
        let context = match self.peek().kind {
            Kind::Keyword(Keyword::Content) => None,
            _ => self.optional_expression("yield")?,
        };
        let token = self.advance();
        let content = match token.kind {
            Kind::RightDelimiter => None,
            Kind::Keyword(Keyword::Content) => {
                self.right_delimiter(CONTEXT)?;
                Some(self.body_to_end()?)
            }
            _ => {
                let expected = "content keyword or closing delimiter";
                return Err(self.unexpected(token, CONTEXT, expected));
            }
        };
        Ok(Node::Yield(Box::new(Yield {
            name: self.name(name),
            span: start.to(name.span),
            parameters,
            context,
            content,
        })))
    }

    /// Reads `(a, b = 1)`. Only a yield may have values without a name.
    fn parameters(&mut self, declaring: bool, context: &'static str) -> Parsed<Vec<Parameter>> {
        let mut list = Vec::new();
        self.expect(Kind::LeftParen, context, "opening parenthesis")?;
        loop {
            let (token, second) = (self.peek(), self.peek_second());
            let named = token.kind == Kind::Name;
            match second.kind {
                _ if token.kind == Kind::RightParen => break,
                Kind::Comma | Kind::RightParen if named => {
                    self.advance();
                    list.push(Parameter {
                        name: Some(self.name(token)),
                        value: None,
                    });
                }
                Kind::Assign | Kind::Declare if named => {
                    self.advance();
                    self.advance();
                    list.push(Parameter {
                        name: Some(self.name(token)),
                        value: Some(self.expression(context)?),
                    });
                }
                _ if !declaring => list.push(Parameter {
                    name: None,
                    value: Some(self.expression(context)?),
                }),
                _ if named => {
                    let expected = "comma, assignment, or closing parenthesis";
                    return Err(self.unexpected(second, context, expected));
                }
                _ => break,
            }
            if self.peek().kind != Kind::Comma {
                break;
            }
            self.advance();
        }
        self.expect(Kind::RightParen, context, "closing parenthesis")?;
        Ok(list)
    }

    fn include_statement(&mut self) -> Parsed<Node> {
        let name = self.expression("include")?;
        let context = self.optional_expression("include")?;
        self.right_delimiter("include invocation")?;
        Ok(Node::Include { name, context })
    }

    /// Reads an action that starts with no keyword: an assignment, a pipeline, or both.
    fn command_action(&mut self) -> Parsed<Node> {
        let (assign, base) = match self.assignment_or_expression("command")? {
            Statement::Expr(base) => (None, base),
            Statement::Assign(assign) => {
                let assign = Some(Box::new(assign));
                let token = self.advance();
                match token.kind {
                    Kind::Semicolon => (assign, self.expression("command")?),
                    Kind::RightDelimiter => {
                        return Ok(Node::Action {
                            assign,
                            pipeline: None,
                        });
                    }
                    _ => {
                        let expected = "semicolon or right delimiter";
                        return Err(self.unexpected(token, "command", expected));
                    }
                }
            }
        };
        let first = self.command(base)?;
        let mut rest = Vec::new();
        loop {
            let token = self.advance();
            match token.kind {
                Kind::RightDelimiter => break,
                Kind::Pipe => {}
                _ => {
                    return Err(self.unexpected(token, "pipeline", "pipe or right delimiter"));
                }
            }
            let token = self.peek();
            if !matches!(token.kind, Kind::Field | Kind::Name) {
                return Err(self.unexpected(token, "pipeline", "field or identifier"));
            }
            let base = self.expression("command")?;
            rest.push(self.command(base)?);
        }
        Ok(Node::Action {
            assign,
            pipeline: Some(Pipeline { first, rest }),
        })
    }

    /// Returns a link of a pipeline: `f(x)` and `f: x` are calls of `f`.
    fn command(&mut self, base: Expr) -> Parsed<Command> {
        let Expr { span, kind } = base;
        let kind = match kind {
            ExprKind::Path { base, mut steps } => match steps.pop() {
                Some(Step::Call(arguments)) => {
                    let base = if steps.is_empty() {
                        *base
                    } else {
                        let kind = ExprKind::Path { base, steps };
                        Expr { span, kind }
                    };
                    return Ok(Command {
                        base,
                        arguments: Some(arguments),
                    });
                }
                last => {
                    steps.extend(last);
                    ExprKind::Path { base, steps }
                }
            },
            kind => kind,
        };
        let arguments = match self.peek().kind {
            Kind::Colon => {
                self.advance();
                Some(self.arguments()?)
            }
            _ => None,
        };
        Ok(Command {
            base: Expr { span, kind },
            arguments,
        })
    }

    fn assignment_or_expression(&mut self, context: &'static str) -> Parsed<Statement> {
        let first = self.expression(context)?;
        if !matches!(self.peek().kind, Kind::Comma | Kind::Assign | Kind::Declare) {
            return Ok(Statement::Expr(first));
        }
        let mut targets = vec![self.target(first)?];
        let declare = loop {
            let token = self.advance();
            match token.kind {
                Kind::Comma => {
                    let next = self.expression(context)?;
                    targets.push(self.target(next)?);
                }
                Kind::Assign => break false,
                Kind::Declare => break true,
                _ => return Err(self.unexpected(token, "assignment", "comma or assignment")),
            }
        };
        if declare {
            for target in &targets {
                if matches!(target.kind, TargetKind::Field { .. }) {
                    let text = self.source.quote(target.span);
                    let message = format!("unexpected node type {text} in variable declaration");
                    return Err(self.error(target.span, message));
                }
            }
        }
        let mut values = vec![self.expression("assignment")?];
        while self.peek().kind == Kind::Comma {
            self.advance();
            values.push(self.expression("assignment")?);
        }
        let two_from_index =
            targets.len() == 2 && matches!(values.as_slice(), [value] if is_index(value));
        let fits = if context == "range" {
            targets.len() <= 2 && values.len() == 1
        } else {
            targets.len() == values.len() || two_from_index
        };
        if !fits {
            return Err(self.error_here("unexpected number of operands in assign on range"));
        }
        Ok(Statement::Assign(Assign {
            declare,
            targets,
            values,
        }))
    }

    /// Returns the place that an expression names on the left of an assignment.
    fn target(&self, expr: Expr) -> Parsed<Target> {
        let span = expr.span;
        let refuse = || self.error(span, "unexpected node in assign");
        let field = |variable, mut steps: Vec<Step>| {
            let reaches = |step: &Step| matches!(step, Step::Field(_) | Step::Index(_));
            match steps.pop() {
                Some(Step::Field(last)) if steps.iter().all(reaches) => Ok(TargetKind::Field {
                    variable,
                    steps,
                    last,
                }),
                _ => Err(refuse()),
            }
        };
        let kind = match expr.kind {
            ExprKind::Slot => TargetKind::Discard,
            ExprKind::Name(name) => TargetKind::Variable(name),
            ExprKind::ContextFields(fields) => {
                field(None, fields.into_iter().map(Step::Field).collect())?
            }
            ExprKind::Path { base, steps } => match base.kind {
                ExprKind::Name(name) => field(Some(name), steps)?,
                ExprKind::Context => field(None, steps)?,
                ExprKind::ContextFields(fields) => {
                    let fields = fields.into_iter().map(Step::Field);
                    field(None, fields.chain(steps).collect())?
                }
                _ => return Err(refuse()),
            },
            _ => return Err(refuse()),
        };
        Ok(Target { span, kind })
    }

    /// Reads an expression unless the action ends here.
    fn optional_expression(&mut self, context: &'static str) -> Parsed<Option<Expr>> {
        match self.peek().kind {
            Kind::RightDelimiter => Ok(None),
            _ => self.expression(context).map(Some),
        }
    }

    fn right_delimiter(&mut self, context: &'static str) -> Parsed<()> {
        self.expect(Kind::RightDelimiter, context, "closing delimiter")?;
        Ok(())
    }

    pub fn expect(
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
    pub fn peek(&self) -> Token {
        self.token(self.next)
    }

    fn peek_second(&self) -> Token {
        self.token(self.next + 1)
    }

    /// Takes the next token; the last one can be taken for ever.
    pub fn advance(&mut self) -> Token {
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

    /// Runs a parser one level deeper, unless that is too deep.
    pub fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= MAX_NESTING {
            return Err(self.error_here(format!("nested deeper than {MAX_NESTING} levels")));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Returns the name that a token spells, and remembers it.
    pub fn name(&mut self, token: Token) -> Arc<str> {
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

    pub fn unexpected(&self, token: Token, context: &str, expected: &str) -> JetError {
        let text = match token.kind {
            Kind::Error => self.lexing_error.clone(),
            _ => self.source.quote(token.span),
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
        self.error(token.span, format!("parsing {context}: {message}"))
    }

    pub fn error(&self, span: Span, message: impl Into<String>) -> JetError {
        self.source.error(Stage::Parse, span, message)
    }

    fn error_here(&self, message: impl Into<String>) -> JetError {
        self.error(self.peek().span, message)
    }

    fn stray(&self, at: Span, part: &Part) -> JetError {
        self.error(at, format!("unexpected {{{{{}}}}}", part.word()))
    }
}

enum Statement {
    Expr(Expr),
    Assign(Assign),
}

fn is_index(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Path { steps, .. } => matches!(steps.last(), Some(Step::Index(_))),
        _ => false,
    }
}

fn is_blank(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.trim().is_empty())
}
