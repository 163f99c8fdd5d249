//! Parser: builds the tree of a template like Go's `text/template`.
//!
//! Checks everything that is known before evaluation: balanced blocks, names of functions and
//! variables, `break` outside `range`. Error messages follow Go's.

use std::rc::Rc;

use super::lex::{self, Keyword, Kind, Token};
use super::literal;
use super::tree::{Branches, Callee, Command, Fault, Node, Operand, Pipe, Target, Term, Tree};
use super::{builtin, sprig};
use crate::CallError;
use crate::env::Functions;
use ccm_value::quote::quote;

/// Maximum nesting of blocks and parentheses.
const MAX_DEPTH: usize = 60;

/// Parses a template.
pub(super) fn parse<'t>(
    template: &'t str,
    left: &'t str,
    right: &'t str,
    functions: &Functions,
) -> Result<Tree<'t>, Fault> {
    let mut parser = Parser {
        tokens: lex::tokens(template, left, right),
        next: 0,
        functions,
        variables: vec!["$"],
        ranges: 0,
        level: 0,
        tree: Tree::default(),
    };
    let root = parser.top()?;
    parser.tree.root = root.into();
    Ok(parser.tree)
}

struct Parser<'t, 'f> {
    tokens: Vec<Token<'t>>,
    next: usize,
    functions: &'f Functions,
    /// Variables in scope, innermost last.
    variables: Vec<&'t str>,
    /// Number of enclosing loops that `break` can leave.
    ranges: usize,
    level: usize,
    tree: Tree<'t>,
}

/// The keyword that ended a list of nodes.
enum Closing<'t> {
    End,
    /// The token after `else`.
    Else(Token<'t>),
}

type Body<'t> = Vec<Node<'t>>;

impl<'t> Parser<'t, '_> {
    fn peek(&self) -> Token<'t> {
        // The last token ends the stream and is returned repeatedly.
        let index = self.next.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(index).copied().unwrap_or(Token {
            kind: Kind::End,
            at: 0,
            text: "",
        })
    }

    fn take(&mut self) -> Token<'t> {
        let token = self.peek();
        self.next += 1;
        token
    }

    fn skip_space(&mut self) {
        while self.peek().kind == Kind::Space {
            self.next += 1;
        }
    }

    fn peek_non_space(&mut self) -> Token<'t> {
        self.skip_space();
        self.peek()
    }

    fn take_non_space(&mut self) -> Token<'t> {
        self.skip_space();
        self.take()
    }

    fn expect(&mut self, kind: Kind, context: &str) -> Result<Token<'t>, Fault> {
        let token = self.take_non_space();
        if token.kind == kind {
            Ok(token)
        } else {
            Err(unexpected(token, context))
        }
    }

    /// Runs `inner` one nesting level deeper; fails at the limit.
    fn nested<T>(
        &mut self,
        at: usize,
        inner: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.level == MAX_DEPTH {
            return Err(fault(
                at,
                format!("blocks and parentheses nest deeper than {MAX_DEPTH}"),
            ));
        }
        self.level += 1;
        let result = inner(self);
        self.level -= 1;
        result
    }

    fn top(&mut self) -> Result<Body<'t>, Fault> {
        let mut root = Vec::new();
        loop {
            let token = self.take();
            match token.kind {
                Kind::End => return Ok(root),
                Kind::Text => root.push(Node::Text(token.text)),
                Kind::Left if self.peek_non_space().kind == Kind::Keyword(Keyword::Define) => {
                    self.take();
                    self.definition()?;
                }
                Kind::Left => match self.action()? {
                    Action::Node(node) => root.push(node),
                    Action::Closing(Closing::End) => {
                        return Err(fault(token.at, "unexpected {{end}}"));
                    }
                    Action::Closing(Closing::Else(_)) => {
                        return Err(fault(token.at, "unexpected {{else}}"));
                    }
                },
                _ => return Err(unexpected(token, "input")),
            }
        }
    }

    fn definition(&mut self) -> Result<(), Fault> {
        let (at, name) = self.template_name("define clause")?;
        self.expect(Kind::Right, "define clause")?;
        let body =
            self.without_outer_variables(|parser| parser.closed_body(at, "define clause"))?;
        self.define(at, name, body)
    }

    /// Runs `inner` with no variables but `$` and outside of loops, because a definition does not
    /// see its surroundings.
    fn without_outer_variables<T>(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let variables = std::mem::replace(&mut self.variables, vec!["$"]);
        let ranges = std::mem::take(&mut self.ranges);
        let result = inner(self);
        self.variables = variables;
        self.ranges = ranges;
        result
    }

    /// Stores a definition. An empty one never replaces another, nor counts as a duplicate.
    fn define(&mut self, at: usize, name: String, body: Body<'t>) -> Result<(), Fault> {
        let is_empty = |body: &[Node<'_>]| {
            body.iter()
                .all(|node| matches!(node, Node::Text(text) if text.trim().is_empty()))
        };
        match self.tree.defined.get(&name) {
            Some(old) if !is_empty(old) => {
                if is_empty(&body) {
                    return Ok(());
                }
                return Err(fault(
                    at,
                    format!("multiple definition of template \"{name}\""),
                ));
            }
            _ => {}
        }
        self.tree.defined.insert(name, Rc::from(body));
        Ok(())
    }

    /// Parses nodes up to the `end` or `else` that closes them.
    fn body(&mut self, opened: usize) -> Result<(Body<'t>, Closing<'t>), Fault> {
        self.nested(opened, |parser| {
            let mut nodes = Vec::new();
            loop {
                let token = parser.take();
                match token.kind {
                    Kind::Text => nodes.push(Node::Text(token.text)),
                    Kind::Left => match parser.action()? {
                        Action::Node(node) => nodes.push(node),
                        Action::Closing(closing) => return Ok((nodes, closing)),
                    },
                    // The error points at the unclosed block, not at the last line.
                    Kind::End => {
                        return Err(fault(opened, "unexpected EOF: this block has no {{end}}"));
                    }
                    _ => return Err(unexpected(token, "input")),
                }
            }
        })
    }

    fn closed_body(&mut self, opened: usize, context: &str) -> Result<Body<'t>, Fault> {
        match self.body(opened)? {
            (body, Closing::End) => Ok(body),
            (_, Closing::Else(token)) => Err(fault(
                token.at,
                format!("unexpected {{{{else}}}} in {context}"),
            )),
        }
    }

    fn action(&mut self) -> Result<Action<'t>, Fault> {
        let token = self.peek_non_space();
        let Kind::Keyword(word) = token.kind else {
            let pipe = self.pipe("command", Kind::Right)?;
            return Ok(Action::Node(Node::Action(pipe)));
        };
        self.take();
        let node = match word {
            Keyword::End => {
                self.expect(Kind::Right, "end")?;
                return Ok(Action::Closing(Closing::End));
            }
            Keyword::Else => {
                let next = self.take_non_space();
                return match next.kind {
                    Kind::Right | Kind::Keyword(Keyword::If | Keyword::With) => {
                        Ok(Action::Closing(Closing::Else(next)))
                    }
                    _ => Err(unexpected(next, "else")),
                };
            }
            Keyword::If => Node::If(self.branches(token.at, Keyword::If, "if")?),
            Keyword::With => Node::With(self.branches(token.at, Keyword::With, "with")?),
            Keyword::Range => self.range(token.at)?,
            Keyword::Template => {
                let (at, name) = self.template_name("template clause")?;
                let dot = if self.peek_non_space().kind == Kind::Right {
                    self.take();
                    None
                } else {
                    Some(self.pipe("template clause", Kind::Right)?)
                };
                Node::Template { at, name, dot }
            }
            Keyword::Block => self.block()?,
            Keyword::Break | Keyword::Continue => {
                self.expect(Kind::Right, &format!("{{{{{}}}}}", token.text))?;
                if self.ranges == 0 {
                    let message = format!("{{{{{}}}}} outside {{{{range}}}}", token.text);
                    return Err(fault(token.at, message));
                }
                if word == Keyword::Break {
                    Node::Break
                } else {
                    Node::Continue
                }
            }
            Keyword::Define => return Err(unexpected(token, "command")),
        };
        Ok(Action::Node(node))
    }

    /// Parses `if` or `with` after its keyword, and every `else if` or `else with` after it.
    fn branches(
        &mut self,
        opened: usize,
        word: Keyword,
        context: &str,
    ) -> Result<Branches<'t>, Fault> {
        let scope = self.variables.len();
        let mut cases = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.pipe(context, Kind::Right)?;
            let (body, closing) = self.body(opened)?;
            cases.push((test, body));
            match closing {
                Closing::End => break,
                Closing::Else(next) if next.kind == Kind::Keyword(word) => {}
                Closing::Else(next) => {
                    otherwise = self.otherwise(opened, next)?;
                    break;
                }
            }
        }
        self.variables.truncate(scope);
        Ok(Branches { cases, otherwise })
    }

    /// Parses the body of a plain `else`.
    fn otherwise(&mut self, opened: usize, next: Token<'t>) -> Result<Body<'t>, Fault> {
        if next.kind != Kind::Right {
            return Err(unexpected(next, "else"));
        }
        match self.body(opened)? {
            (body, Closing::End) => Ok(body),
            (_, Closing::Else(token)) => Err(fault(token.at, "expected end; found {{else}}")),
        }
    }

    fn range(&mut self, opened: usize) -> Result<Node<'t>, Fault> {
        let scope = self.variables.len();
        let over = self.pipe("range", Kind::Right)?;
        self.ranges += 1;
        let (body, closing) = self.body(opened)?;
        self.ranges -= 1;
        let otherwise = match closing {
            Closing::End => Vec::new(),
            Closing::Else(next) => self.otherwise(opened, next)?,
        };
        self.variables.truncate(scope);
        Ok(Node::Range {
            over,
            body,
            otherwise,
        })
    }

    fn block(&mut self) -> Result<Node<'t>, Fault> {
        let (at, name) = self.template_name("block clause")?;
        let dot = self.pipe("block clause", Kind::Right)?;
        let body = self.without_outer_variables(|parser| parser.closed_body(at, "block clause"))?;
        self.define(at, name.clone(), body)?;
        Ok(Node::Template {
            at,
            name,
            dot: Some(dot),
        })
    }

    fn template_name(&mut self, context: &str) -> Result<(usize, String), Fault> {
        let token = self.take_non_space();
        let name = match token.kind {
            Kind::Quoted | Kind::Raw => literal::unquote(token.text),
            _ => return Err(unexpected(token, context)),
        };
        let name = name.map_err(|message| fault(token.at, message))?;
        Ok((token.at, name))
    }

    /// Parses a pipeline up to and including `end`.
    fn pipe(&mut self, context: &str, end: Kind) -> Result<Pipe<'t>, Fault> {
        let mut pipe = Pipe {
            at: self.peek_non_space().at,
            variables: Vec::new(),
            assigns: false,
            commands: Vec::new(),
        };
        self.declarations(&mut pipe, context)?;
        loop {
            let token = self.peek_non_space();
            if token.kind == end {
                self.take();
                break;
            }
            if !starts_operand(token.kind) {
                return Err(unexpected(token, context));
            }
            pipe.commands.push(self.command()?);
        }
        if pipe.commands.is_empty() {
            return Err(fault(pipe.at, format!("missing value for {context}")));
        }
        for (index, command) in pipe.commands.iter().enumerate().skip(1) {
            if matches!(command.head.term, Term::Nil | Term::Dot | Term::Constant(_)) {
                let stage = index + 1;
                let message = format!("non executable command in pipeline stage {stage}");
                return Err(fault(command.head.at, message));
            }
        }
        // A variable is not in scope in its own declaration.
        if !pipe.assigns {
            self.variables.extend(&pipe.variables);
        }
        Ok(pipe)
    }

    fn declarations(&mut self, pipe: &mut Pipe<'t>, context: &str) -> Result<(), Fault> {
        while self.peek_non_space().kind == Kind::Variable {
            let start = self.next;
            let variable = self.take();
            match self.peek_non_space().kind {
                kind @ (Kind::Assign | Kind::Declare) => {
                    self.take();
                    pipe.assigns = kind == Kind::Assign;
                    pipe.variables.push(variable.text);
                    if pipe.assigns {
                        for name in &pipe.variables {
                            self.check_variable(variable.at, name)?;
                        }
                    }
                    return Ok(());
                }
                Kind::Comma => {
                    self.take();
                    pipe.variables.push(variable.text);
                    if context != "range" || pipe.variables.len() > 1 {
                        let message = format!("too many declarations in {context}");
                        return Err(fault(variable.at, message));
                    }
                    if self.peek_non_space().kind != Kind::Variable {
                        return Err(fault(variable.at, "range can only initialize variables"));
                    }
                }
                _ if pipe.variables.is_empty() => {
                    self.next = start;
                    return Ok(());
                }
                _ => return Err(fault(variable.at, "range can only initialize variables")),
            }
        }
        Ok(())
    }

    fn check_variable(&self, at: usize, name: &str) -> Result<(), Fault> {
        if self.variables.contains(&name) {
            Ok(())
        } else {
            Err(fault(at, format!("undefined variable \"{name}\"")))
        }
    }

    fn command(&mut self) -> Result<Command<'t>, Fault> {
        let head = self.operand()?;
        let mut args = Vec::new();
        loop {
            let token = self.peek();
            match token.kind {
                Kind::Right | Kind::CloseParen => break,
                // Go accepts a pipe at the end of a pipeline.
                Kind::Pipe => {
                    self.take();
                    break;
                }
                Kind::Space => {
                    let next = self.peek_non_space();
                    if starts_operand(next.kind) {
                        args.push(self.operand()?);
                    } else if !matches!(next.kind, Kind::Right | Kind::CloseParen | Kind::Pipe) {
                        return Err(unexpected(next, "operand"));
                    }
                }
                _ => return Err(unexpected(token, "operand")),
            }
        }
        Ok(Command { head, args })
    }

    fn operand(&mut self) -> Result<Operand<'t>, Fault> {
        let token = self.take_non_space();
        let at = token.at;
        let failed = |message| fault(at, message);
        let term = match token.kind {
            Kind::Nil => Term::Nil,
            Kind::Dot => Term::Dot,
            Kind::True => Term::Constant(true.into()),
            Kind::False => Term::Constant(false.into()),
            Kind::Number => Term::Constant(literal::number(token.text).map_err(failed)?),
            Kind::Char => Term::Constant(literal::character(token.text).map_err(failed)?),
            Kind::Quoted | Kind::Raw => {
                Term::Constant(literal::unquote(token.text).map_err(failed)?.into())
            }
            Kind::Name => Term::Function(self.callee(token)?),
            Kind::Field => Term::Fields(vec![field(token.text)]),
            Kind::Variable => {
                self.check_variable(at, token.text)?;
                Term::Variable(token.text, Vec::new())
            }
            Kind::OpenParen => {
                let inner = self.nested(at, |parser| {
                    parser.pipe("parenthesized pipeline", Kind::CloseParen)
                })?;
                Term::Nested(Box::new(inner), Vec::new())
            }
            _ => return Err(unexpected(token, "operand")),
        };
        let term = self.fields(at, token.text, term)?;
        Ok(Operand { at, term })
    }

    /// Adds the fields that follow a term without a space.
    fn fields(&mut self, at: usize, text: &str, mut term: Term<'t>) -> Result<Term<'t>, Fault> {
        while self.peek().kind == Kind::Field {
            let name = field(self.take().text);
            match &mut term {
                Term::Fields(fields)
                | Term::Variable(_, fields)
                | Term::Nested(_, fields)
                | Term::CallFields(_, fields) => fields.push(name),
                Term::Function(callee) => {
                    term = Term::CallFields(callee.clone(), vec![name]);
                }
                Term::Nil | Term::Dot | Term::Constant(_) => {
                    return Err(fault(at, format!("unexpected . after term {text}")));
                }
            }
        }
        Ok(term)
    }

    fn callee(&self, token: Token<'t>) -> Result<Callee<'t>, Fault> {
        let name = token.text;
        let outside = self.functions.get(name);
        let target = match name {
            _ if outside.is_some() => outside.cloned().map(Target::Env),
            "and" => Some(Target::And),
            "or" => Some(Target::Or),
            // sprig comes first, because its `slice` replaces Go's.
            _ => sprig::find(name)
                .or_else(|| builtin::find(name))
                .map(Target::Native),
        };
        match target {
            Some(target) => Ok(Callee { name, target }),
            None => Err(fault(token.at, format!("function \"{name}\" not defined"))),
        }
    }
}

enum Action<'t> {
    Node(Node<'t>),
    Closing(Closing<'t>),
}

fn field(text: &str) -> &str {
    text.strip_prefix('.').unwrap_or(text)
}

fn starts_operand(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Nil
            | Kind::Dot
            | Kind::True
            | Kind::False
            | Kind::Number
            | Kind::Char
            | Kind::Quoted
            | Kind::Raw
            | Kind::Name
            | Kind::Field
            | Kind::Variable
            | Kind::OpenParen
    )
}

fn fault(at: usize, message: impl Into<CallError>) -> Fault {
    Fault {
        at,
        message: message.into(),
    }
}

fn unexpected(token: Token<'_>, context: &str) -> Fault {
    let message = match token.kind {
        Kind::Error(what) => match token.text.chars().next() {
            Some(c) => format!("{what} U+{:04X} {c:?}", u32::from(c)),
            None => what.to_owned(),
        },
        Kind::End => "unexpected EOF".into(),
        Kind::Keyword(_) | Kind::Dot | Kind::Nil => {
            format!("unexpected <{}> in {context}", token.text)
        }
        _ => format!("unexpected {} in {context}", quote(token.text)),
    };
    fault(token.at, message)
}
