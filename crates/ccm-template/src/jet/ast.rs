//! Syntax tree of a template.
//!
//! Chains that can be long without nesting (`a + b + c`, `a[0][1]`, `else if`) are flat lists, so
//! walking and dropping a tree uses stack only for real nesting, which the parser limits. Text is a
//! span of the source, so parsing copies nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::{Source, Span};
use super::operand::Item;

/// Statements in order; shared, because blocks and contents outlive the statement that defines
/// them.
pub(super) type Body = Arc<[Node]>;

/// Blocks of a template, by name.
pub(super) type Blocks = BTreeMap<Arc<str>, Arc<Block>>;

/// One parsed template.
pub(super) struct ParsedTemplate {
    pub source: Arc<Source>,
    pub root: Body,
    /// Its own blocks, those it imports and those of the template it extends; its own take
    /// precedence.
    pub blocks: Arc<Blocks>,
    /// The template it extends, whose root is rendered instead of its own.
    pub base: Option<Arc<ParsedTemplate>>,
}

pub(super) enum Node {
    Text(Span),
    Action {
        assign: Option<Box<Assign>>,
        pipeline: Option<Pipeline>,
    },
    If {
        branches: Vec<Branch>,
        otherwise: Option<Body>,
    },
    Range(Box<Range>),
    Try {
        body: Body,
        catch: Option<Catch>,
    },
    Block(Arc<Block>),
    Yield(Box<Yield>),
    /// `yield content`, with its context.
    Content(Option<Expr>),
    Include {
        name: Expr,
        context: Option<Expr>,
    },
    Return(Expr),
}

/// One `if` or `else if`.
pub(super) struct Branch {
    pub assign: Option<Assign>,
    pub test: Expr,
    pub body: Body,
}

pub(super) struct Range {
    pub over: Expr,
    pub binding: Option<Binding>,
    pub body: Body,
    pub otherwise: Option<Body>,
}

/// Variables of a range. Without `value`, the element becomes the context.
pub(super) struct Binding {
    pub declare: bool,
    pub key: Target,
    pub value: Option<Target>,
}

pub(super) struct Catch {
    pub name: Option<Arc<str>>,
    pub body: Body,
}

pub(super) struct Block {
    pub name: Arc<str>,
    pub span: Span,
    /// The source of the block: its body may run from any other template.
    pub source: Arc<Source>,
    pub parameters: Vec<Parameter>,
    pub context: Option<Expr>,
    pub body: Body,
    /// Content for `yield content` where the block is defined.
    pub content: Option<Body>,
}

pub(super) struct Yield {
    pub name: Arc<str>,
    pub span: Span,
    pub parameters: Vec<Parameter>,
    pub context: Option<Expr>,
    pub content: Option<Body>,
}

/// `name`, `name = value`, or (in a yield) a value without a name, which is ignored.
pub(super) struct Parameter {
    pub name: Option<Arc<str>>,
    pub value: Option<Expr>,
}

/// `targets = values`, or `targets := values`.
pub(super) struct Assign {
    pub declare: bool,
    pub targets: Vec<Target>,
    /// As many as there are targets, or one index expression for `value, found := map[key]`.
    pub values: Vec<Expr>,
}

pub(super) struct Target {
    pub span: Span,
    pub kind: TargetKind,
}

pub(super) enum TargetKind {
    /// `_`
    Discard,
    Variable(Arc<str>),
    /// A field below a variable, or below the context if there is no variable.
    Field {
        variable: Option<Arc<str>>,
        /// Only fields and indexes.
        steps: Vec<Step>,
        last: Arc<str>,
    },
}

pub(super) struct Pipeline {
    pub first: Command,
    pub rest: Vec<Command>,
}

/// A stage of a pipeline: an expression, called if there are arguments.
pub(super) struct Command {
    pub base: Expr,
    pub arguments: Option<Arguments>,
}

#[derive(Default)]
pub(super) struct Arguments {
    pub list: Vec<Expr>,
    /// Whether one of them is `_`, the placeholder of the piped value.
    pub has_slot: bool,
}

pub(super) struct Expr {
    pub span: Span,
    pub kind: ExprKind,
}

pub(super) enum ExprKind {
    Literal(Item),
    /// `.`
    Context,
    /// `.a.b`: all of these fields must exist.
    ContextFields(Vec<Arc<str>>),
    Name(Arc<str>),
    /// `_`
    Slot,
    Path {
        base: Box<Expr>,
        steps: Vec<Step>,
    },
    Sign {
        minus: bool,
        operand: Box<Expr>,
    },
    Not(Box<Expr>),
    /// Operators of the same precedence, applied from left to right.
    Binary {
        first: Box<Expr>,
        rest: Vec<(Operator, Expr)>,
    },
    Ternary(Box<[Expr; 3]>),
}

pub(super) enum Step {
    Field(Arc<str>),
    Index(Expr),
    Slice(Option<Expr>, Option<Expr>),
    Call(Arguments),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    And,
    Or,
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
}

impl Operator {
    /// Returns the precedence. `and` and `or` have the same one, as in Jet.
    pub(super) fn precedence(self) -> u8 {
        match self {
            Self::And | Self::Or => 1,
            Self::Equal | Self::NotEqual => 2,
            Self::Less | Self::LessEqual | Self::Greater | Self::GreaterEqual => 3,
            Self::Add | Self::Subtract => 4,
            Self::Multiply | Self::Divide | Self::Modulo => 5,
        }
    }
}
