//! The shape of a parsed expression: nodes in one flat list, linked by index.
//!
//! A flat list is dropped without recursion and lives close together in memory. Every node knows
//! how deep the evaluator will have to recurse below it, so the parser can refuse what would
//! exhaust the stack. Nothing here knows what a node means; see `check` and `eval`.

use std::sync::Arc;

use super::builtins::Builtin;
use super::lexer::Text;

/// The index of a node in its [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(u32);

/// A parsed expression.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    pub(super) root: Id,
}

/// One node and the byte offset that errors about it point at.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    pub(super) at: usize,
    depth: u16,
}

#[derive(Clone, Debug)]
pub(super) enum NodeKind {
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Text),
    Name(Text),
    Unary {
        op: Unary,
        node: Id,
    },
    Binary {
        op: Binary,
        left: Id,
        right: Id,
    },
    /// The end of a run of members with `?.` in it: null anywhere makes all of it null.
    Chain(Id),
    Member {
        node: Id,
        property: Id,
        optional: bool,
        method: bool,
    },
    Slice {
        node: Id,
        from: Option<Id>,
        to: Option<Id>,
    },
    /// A function of the environment, by name.
    Call {
        name: Text,
        arguments: Vec<Id>,
    },
    /// A method of a value; `member` is the [`NodeKind::Member`] that names it.
    Method {
        member: Id,
        arguments: Vec<Id>,
    },
    Builtin {
        builtin: &'static Builtin,
        arguments: Vec<Id>,
    },
    /// A built-in that runs a predicate for each item of a list.
    Loop {
        each: Each,
        list: Id,
        predicate: Option<Id>,
        extra: Option<Id>,
    },
    /// The body of a predicate.
    Predicate(Id),
    /// `#`, `#index` or `#acc`.
    Pointer(Text),
    Let {
        name: Text,
        value: Id,
        body: Id,
    },
    Sequence(Vec<Id>),
    If {
        condition: Id,
        then: Id,
        otherwise: Id,
    },
    List(Vec<Id>),
    Map(Vec<(Id, Id)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unary {
    Not,
    Plus,
    Minus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    More,
    LessOrEqual,
    MoreOrEqual,
    In,
    Matches,
    Contains,
    StartsWith,
    EndsWith,
    Range,
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
    Coalesce,
}

impl Binary {
    pub(super) fn is_comparison(self) -> bool {
        matches!(
            self,
            Self::Less | Self::More | Self::LessOrEqual | Self::MoreOrEqual
        )
    }
}

/// The built-ins that take a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Each {
    All,
    None,
    Any,
    One,
    Filter,
    Map,
    Count,
    Sum,
    Find,
    FindIndex,
    FindLast,
    FindLastIndex,
    GroupBy,
    SortBy,
    Reduce,
}

impl Each {
    const NAMES: [(&'static str, Self); 15] = [
        ("all", Self::All),
        ("none", Self::None),
        ("any", Self::Any),
        ("one", Self::One),
        ("filter", Self::Filter),
        ("map", Self::Map),
        ("count", Self::Count),
        ("sum", Self::Sum),
        ("find", Self::Find),
        ("findIndex", Self::FindIndex),
        ("findLast", Self::FindLast),
        ("findLastIndex", Self::FindLastIndex),
        ("groupBy", Self::GroupBy),
        ("sortBy", Self::SortBy),
        ("reduce", Self::Reduce),
    ];

    /// Returns the built-in of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, each)| *each)
    }

    pub(super) fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(_, each)| *each == self)
            .map_or("", |(name, _)| name)
    }

    /// Tells whether the predicate may be left out.
    pub(super) fn predicate_is_optional(self) -> bool {
        matches!(self, Self::Count | Self::Sum)
    }

    /// Tells whether a plain argument may follow the predicate.
    pub(super) fn takes_extra(self) -> bool {
        matches!(self, Self::SortBy | Self::Reduce)
    }
}

/// Stands in for an index that no node has; the parser never makes one.
static NOTHING: Node = Node {
    kind: NodeKind::Nil,
    at: 0,
    depth: 0,
};

impl Tree {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            root: Id(0),
        }
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        self.nodes.get(id.0 as usize).unwrap_or(&NOTHING)
    }

    /// Returns the text of a node that is a text literal.
    pub(super) fn text(&self, id: Id) -> Option<&Arc<str>> {
        match &self.node(id).kind {
            NodeKind::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Adds a node and returns its index and depth.
    pub(super) fn push(&mut self, kind: NodeKind, at: usize) -> (Id, u16) {
        let depth = self.depth_of(&kind);
        let id = Id(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(Node { kind, at, depth });
        (id, depth)
    }

    /// Counts how deep the evaluator recurses. It walks the left spine of operators in a loop,
    /// so that a long sum is not a deep one.
    fn depth_of(&self, kind: &NodeKind) -> u16 {
        let below = |id: &Id| self.node(*id).depth;
        let deepest = |ids: &[Id]| ids.iter().map(below).max().unwrap_or(0);
        let children = match kind {
            NodeKind::Nil
            | NodeKind::Bool(_)
            | NodeKind::Int(_)
            | NodeKind::Float(_)
            | NodeKind::Text(_)
            | NodeKind::Name(_)
            | NodeKind::Pointer(_) => return 1,
            NodeKind::Binary { left, right, .. } => {
                return below(left).max(below(right).saturating_add(1));
            }
            NodeKind::Unary { node, .. } | NodeKind::Chain(node) | NodeKind::Predicate(node) => {
                below(node)
            }
            NodeKind::Member { node, property, .. } => below(node).max(below(property)),
            NodeKind::Slice { node, from, to } => below(node)
                .max(from.as_ref().map_or(0, below))
                .max(to.as_ref().map_or(0, below)),
            NodeKind::Call { arguments, .. } | NodeKind::Builtin { arguments, .. } => {
                deepest(arguments)
            }
            NodeKind::Method { member, arguments } => below(member).max(deepest(arguments)),
            NodeKind::Loop {
                list,
                predicate,
                extra,
                ..
            } => below(list)
                .max(predicate.as_ref().map_or(0, below))
                .max(extra.as_ref().map_or(0, below)),
            NodeKind::Let { value, body, .. } => below(value).max(below(body)),
            NodeKind::Sequence(nodes) | NodeKind::List(nodes) => deepest(nodes),
            NodeKind::If {
                condition,
                then,
                otherwise,
            } => below(condition).max(below(then)).max(below(otherwise)),
            NodeKind::Map(pairs) => pairs
                .iter()
                .map(|(key, value)| below(key).max(below(value)))
                .max()
                .unwrap_or(0),
        };
        children.saturating_add(1)
    }
}
