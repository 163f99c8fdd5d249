//! Kinds: the static types of the checker.
//!
//! Most data is not available at compile time, so most kinds are unknown and accepted. Known kinds
//! (literals, results of built-ins) are checked against what an operator accepts.

use std::fmt;

use ccm_value::Value;

/// The kind of a value, as far as it is known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Unknown.
    Unknown,
    /// Any type: an entry of the data (Go's `interface {}`).
    Any,
    Nil,
    Bool,
    Int,
    Float,
    Text,
    List(Item),
    /// A map with text keys.
    Map(Item),
    /// A map with keys of any type.
    AnyMap,
    Time,
    Duration,
    Zone,
    Month,
    Weekday,
    Function,
}

/// The kind of the items of a list or map, without deeper nesting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Unknown,
    Any,
    Nil,
    Bool,
    Int,
    Float,
    Text,
    List,
    Map,
    Time,
    Duration,
}

impl Item {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Unknown => Kind::Unknown,
            Self::Any => Kind::Any,
            Self::Nil => Kind::Nil,
            Self::Bool => Kind::Bool,
            Self::Int => Kind::Int,
            Self::Float => Kind::Float,
            Self::Text => Kind::Text,
            Self::List => Kind::List(Item::Unknown),
            Self::Map => Kind::Map(Item::Any),
            Self::Time => Kind::Time,
            Self::Duration => Kind::Duration,
        }
    }
}

impl Kind {
    /// A list of any items.
    pub(super) const LIST: Self = Self::List(Item::Any);

    /// Returns the kind of a value that is known at compile time.
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Any,
            Value::Bool(_) => Self::Bool,
            Value::Int(_) | Value::Uint(_) => Self::Int,
            Value::Float(_) => Self::Float,
            Value::Str(_) => Self::Text,
            Value::List(_) => Self::LIST,
            Value::Map(_) => Self::Map(Item::Any),
        }
    }

    /// Converts the kind to an item kind.
    pub(super) fn item(self) -> Item {
        match self {
            Self::Any => Item::Any,
            Self::Nil => Item::Nil,
            Self::Bool => Item::Bool,
            Self::Int => Item::Int,
            Self::Float => Item::Float,
            Self::Text => Item::Text,
            Self::List(_) => Item::List,
            Self::Map(_) => Item::Map,
            Self::Time => Item::Time,
            Self::Duration => Item::Duration,
            Self::Unknown
            | Self::AnyMap
            | Self::Zone
            | Self::Month
            | Self::Weekday
            | Self::Function => Item::Unknown,
        }
    }

    pub(super) fn is_unknown(self) -> bool {
        matches!(self, Self::Unknown | Self::Any)
    }

    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Int | Self::Float)
    }

    pub(super) fn is_list(self) -> bool {
        matches!(self, Self::List(_))
    }

    /// Returns the kind of the items of a list; unknown for unknown; `None` for anything else.
    pub(super) fn items(self) -> Option<Kind> {
        match self {
            Self::List(item) => Some(item.kind()),
            Self::Unknown | Self::Any => Some(Self::Unknown),
            _ => None,
        }
    }

    /// Returns whether two kinds are the same Go type, regardless of list items.
    fn is_same_type(self, other: Self) -> bool {
        match (self, other) {
            (Self::List(_), Self::List(_)) => true,
            (Self::Map(left), Self::Map(right)) => (left == Item::Text) == (right == Item::Text),
            _ => self == other,
        }
    }

    pub(super) fn is_assignable_to(self, other: Self) -> bool {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => false,
            (Self::Nil, _) => matches!(
                other,
                Self::Any | Self::List(_) | Self::Map(_) | Self::AnyMap | Self::Function
            ),
            (_, Self::Nil) => false,
            (_, Self::Any) => true,
            _ => self.is_same_type(other),
        }
    }

    pub(super) fn is_comparable_to(self, other: Self) -> bool {
        self.is_unknown()
            || other.is_unknown()
            || self == Self::Nil
            || other == Self::Nil
            || (self.is_number() && other.is_number())
            || self.is_assignable_to(other)
    }
}

/// Prints the name of the Go type.
impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Unknown | Self::Nil => "unknown",
            Self::Any => "interface {}",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Float => "float64",
            Self::Text => "string",
            Self::List(_) => "[]interface {}",
            Self::Map(Item::Text) => "map[string]string",
            Self::Map(_) => "map[string]interface {}",
            Self::AnyMap => "map[interface {}]interface {}",
            Self::Time => "time.Time",
            Self::Duration => "time.Duration",
            Self::Zone => "*time.Location",
            Self::Month => "time.Month",
            Self::Weekday => "time.Weekday",
            Self::Function => "func",
        })
    }
}
