//! Syntax tree of an expression: nodes in one flat list, linked by index.
//!
//! A flat list is dropped without recursion and is compact in memory. Every node stores the
//! recursion depth of its evaluation, so that the parser can refuse expressions that would exhaust
//! the stack. The meaning of nodes is defined in `check` and `eval`.

use std::fmt;
use std::sync::Arc;

use super::builtins::Builtin;
use super::lexer::Text;

/// Index of a node in its [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id(u32);

/// A parsed expression.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    pub(super) root: Id,
}

/// One node and the byte offset for errors about it.
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
    /// A chain of members that contains `?.`: null at any optional link makes the whole chain null.
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
    /// A call of an environment function by name.
    Call {
        name: Text,
        arguments: Vec<Id>,
    },
    /// A method call; `member` is the [`NodeKind::Member`] that names the method.
    Method {
        member: Id,
        arguments: Vec<Id>,
    },
    Builtin {
        builtin: &'static Builtin,
        arguments: Vec<Id>,
    },
    /// A built-in that calls a predicate for each item of a list.
    Loop {
        builtin: LoopBuiltin,
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

/// A binary operator of a chain: its node, and its right operand.
pub(super) struct Operation {
    pub(super) id: Id,
    pub(super) op: Binary,
    pub(super) right: Id,
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
pub(super) enum LoopBuiltin {
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

impl LoopBuiltin {
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

    /// Returns the built-in with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, builtin)| *builtin)
    }

    /// Returns the names of all of them.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().map(|(name, _)| *name)
    }

    pub(super) fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(_, builtin)| *builtin == self)
            .map_or("", |(name, _)| name)
    }

    /// Returns the error for an argument that is not a list.
    pub(super) fn not_a_list(self, found: &dyn fmt::Display) -> String {
        format!("builtin {} takes only array (got {found})", self.name())
    }

    /// Returns whether the predicate is optional.
    pub(super) fn predicate_is_optional(self) -> bool {
        matches!(self, Self::Count | Self::Sum)
    }

    /// Returns whether another argument may follow the predicate.
    pub(super) fn takes_extra(self) -> bool {
        matches!(self, Self::SortBy | Self::Reduce)
    }
}

/// Result for an unknown index; the parser never creates one.
static NULL_NODE: Node = Node {
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
        self.nodes.get(id.0 as usize).unwrap_or(&NULL_NODE)
    }

    /// Returns the text of a node that is a text literal.
    pub(super) fn text(&self, id: Id) -> Option<&Arc<str>> {
        match &self.node(id).kind {
            NodeKind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the leftmost operand of a chain such as `a + b - c`, and the operations on it from
    /// left to right. Walking the chain in a loop keeps a long sum from being a deep recursion.
    pub(super) fn left_spine(&self, id: Id) -> (Id, impl Iterator<Item = Operation> + use<>) {
        let mut operations = Vec::new();
        let mut leftmost = id;
        while let NodeKind::Binary { op, left, right } = self.node(leftmost).kind {
            operations.push(Operation {
                id: leftmost,
                op,
                right,
            });
            leftmost = left;
        }
        (leftmost, operations.into_iter().rev())
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Appends a node and returns its index and depth.
    pub(super) fn push(&mut self, kind: NodeKind, at: usize) -> (Id, u16) {
        let depth = self.depth_of(&kind);
        let id = Id(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(Node { kind, at, depth });
        (id, depth)
    }

    /// Returns the recursion depth of evaluating a node. Operators do not add up along the left
    /// spine, see [`Tree::left_spine`].
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
