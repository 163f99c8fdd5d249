//! Operand and result kinds of operators, used by `check`.

use super::ast::Binary;
use super::kind::{Item, Kind};
use super::runtime_value::Reason;

/// Returns the kind of `left in right`, or an error if the operands can never fit.
pub(super) fn member_of(left: Kind, right: Kind) -> Result<Kind, Reason> {
    match right {
        Kind::Map(_) if !left.is_unknown() && left != Kind::Text => {
            Err(format!("cannot use {left} as type string in map key").into())
        }
        Kind::List(item) if !left.is_comparable_to(item.kind()) => {
            Err(format!("cannot use {left} as type {} in array", item.kind()).into())
        }
        Kind::Map(_) | Kind::AnyMap | Kind::List(_) | Kind::Unknown | Kind::Any => Ok(Kind::Bool),
        Kind::Text if left.is_unknown() => Ok(Kind::Bool),
        _ => Err(mismatched("in", left, right)),
    }
}

pub(super) fn mismatched(sign: &str, left: Kind, right: Kind) -> Reason {
    format!("invalid operation: {sign} (mismatched types {left} and {right})").into()
}

/// Returns the result kind of an operator; `None` if its operands can never fit.
pub(super) fn result_of(op: Binary, left: Kind, right: Kind) -> Option<Kind> {
    use Kind::{Bool, Duration, Float, Int, Text, Time};
    // An unknown operand may turn out to fit.
    let maybe = |kinds: &[Kind]| {
        (left.is_unknown() && (right.is_unknown() || kinds.contains(&right)))
            || (right.is_unknown() && kinds.contains(&left))
    };
    let numbers = left.is_number() && right.is_number();
    let promoted = match (left, right) {
        (Int, Int) => Int,
        _ => Float,
    };
    match op {
        Binary::Equal | Binary::NotEqual => left.is_comparable_to(right).then_some(Bool),
        Binary::Or | Binary::And => {
            ((left == Bool && right == Bool) || maybe(&[Bool])).then_some(Bool)
        }
        Binary::Less | Binary::More | Binary::LessOrEqual | Binary::MoreOrEqual => {
            let same = matches!(
                (left, right),
                (Text, Text) | (Time, Time) | (Duration, Duration)
            );
            (numbers || same || maybe(&[Int, Float, Text, Time, Duration])).then_some(Bool)
        }
        Binary::Add => match (left, right) {
            _ if numbers => Some(promoted),
            (Text, Text) => Some(Text),
            (Time, Duration) | (Duration, Time) => Some(Time),
            (Duration, Duration) => Some(Duration),
            _ => maybe(&[Int, Float, Text, Time, Duration]).then_some(Kind::Unknown),
        },
        Binary::Subtract => match (left, right) {
            _ if numbers => Some(promoted),
            (Time, Time) | (Duration, Duration) => Some(Duration),
            (Time, Duration) => Some(Time),
            _ => maybe(&[Int, Float, Time, Duration]).then_some(Kind::Unknown),
        },
        Binary::Multiply => match (left, right) {
            _ if numbers => Some(promoted),
            (Float, Duration) | (Duration, Float) => Some(Float),
            (Int | Duration, Duration) | (Duration, Int) => Some(Duration),
            _ => maybe(&[Int, Float, Duration]).then_some(Kind::Unknown),
        },
        Binary::Divide | Binary::Power => (numbers || maybe(&[Int, Float])).then_some(Float),
        Binary::Modulo => ((left, right) == (Int, Int) || maybe(&[Int])).then_some(Int),
        Binary::Range => {
            ((left, right) == (Int, Int) || maybe(&[Int])).then_some(Kind::List(Item::Int))
        }
        Binary::Matches | Binary::Contains | Binary::StartsWith | Binary::EndsWith => {
            ((left, right) == (Text, Text) || maybe(&[Text])).then_some(Bool)
        }
        Binary::Coalesce => Some(match (left, right) {
            (Kind::Nil, other) | (other, Kind::Nil) => other,
            _ if right.is_assignable_to(left) => left,
            _ => Kind::Unknown,
        }),
        Binary::In => Some(Bool),
    }
}
