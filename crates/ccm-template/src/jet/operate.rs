//! Arithmetic, comparison and equality with Jet's conversion rules.
//!
//! The left operand decides: text appends, a number converts the right operand. Literals are
//! floats, so `7/2` is 3.5, while two integers of the data divide as integers.

use super::ast::Operator;
use super::error::Problem;
use super::operand::Item;
use ccm_value::Value;
use ccm_value::quote::quote;

/// A number in arithmetic. Integers wrap, as in Go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    /// Returns the number of an item, without conversion.
    pub(super) fn of(item: &Item) -> Option<Self> {
        match item {
            Item::Data(Value::Int(value)) => Some(Self::Int(*value)),
            Item::Data(Value::Uint(value)) => Some(Self::Float(*value as f64)),
            Item::Data(Value::Float(value)) => Some(Self::Float(*value)),
            _ => None,
        }
    }

    pub(super) fn to_float(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// Returns the integer part, limited to the range of `i64`.
    pub(super) fn to_int(self) -> i64 {
        match self {
            Self::Int(value) => value,
            Self::Float(value) => value as i64,
        }
    }

    fn is_zero(self) -> bool {
        self.to_float() == 0.0
    }

    /// Converts the right operand to the type of `self`; text is parsed.
    fn convert(self, right: &Item) -> Result<Self, Problem> {
        if let Some(number) = Self::of(right) {
            return Ok(number);
        }
        let (wanted, function) = match self {
            Self::Int(_) => ("int64", "ParseInt"),
            Self::Float(_) => ("float64", "ParseFloat"),
        };
        if let Some(text) = right.as_text() {
            let text = String::from_utf8_lossy(text);
            let number = match self {
                Self::Int(_) => text.parse().ok().map(Self::Int),
                Self::Float(_) => text.parse().ok().map(Self::Float),
            };
            let message = format!(
                "strconv.{function}: parsing {}: invalid syntax",
                quote(&text)
            );
            return number.ok_or(Problem::bare(message));
        }
        Err(Problem::bare(match right {
            Item::Missing => format!("invalid value can't be converted to {wanted}"),
            _ => format!(
                "type: {:?} can't be converted to {wanted}",
                right.type_name()
            ),
        }))
    }
}

impl From<Number> for Item {
    fn from(number: Number) -> Self {
        Self::Data(match number {
            Number::Int(value) => value.into(),
            Number::Float(value) => value.into(),
        })
    }
}

/// Computes `+ - * / %` of numbers.
pub(super) fn arithmetic(
    operator: Operator,
    left: Number,
    right: &Item,
) -> Result<Number, Problem> {
    if operator == Operator::Divide && !right.is_set() {
        return Err("division by zero".into());
    }
    let right = left.convert(right)?;
    if matches!(operator, Operator::Divide | Operator::Modulo) && right.is_zero() {
        return Err("division by zero".into());
    }
    if operator == Operator::Modulo {
        let (left, right) = (left.to_int(), right.to_int());
        if right == 0 {
            return Err("division by zero".into());
        }
        return Ok(Number::Int(left.wrapping_rem(right)));
    }
    Ok(match (left, right) {
        (Number::Int(left), Number::Int(right)) => Number::Int(match operator {
            Operator::Add => left.wrapping_add(right),
            Operator::Subtract => left.wrapping_sub(right),
            Operator::Multiply => left.wrapping_mul(right),
            _ => left.wrapping_div(right),
        }),
        (left, right) => {
            let (left, right) = (left.to_float(), right.to_float());
            Number::Float(match operator {
                Operator::Add => left + right,
                Operator::Subtract => left - right,
                Operator::Multiply => left * right,
                _ => left / right,
            })
        }
    })
}

/// Computes `< <= > >=`.
pub(super) fn compare(operator: Operator, left: Number, right: &Item) -> Result<bool, Problem> {
    let right = left.convert(right)?;
    let order = match (left, right) {
        (Number::Int(left), Number::Int(right)) => Some(left.cmp(&right)),
        (left, right) => left.to_float().partial_cmp(&right.to_float()),
    };
    Ok(order.is_some_and(|order| match operator {
        Operator::Less => order.is_lt(),
        Operator::LessEqual => order.is_le(),
        Operator::Greater => order.is_gt(),
        _ => order.is_ge(),
    }))
}

/// Returns whether two items are equal; null equals a missing value.
pub(super) fn equal(left: &Item, right: &Item) -> bool {
    match (left, right) {
        (Item::Data(left), Item::Data(right)) => equal_values(left, right),
        (Item::Error(left), Item::Error(right)) => left == right,
        (Item::Ints(a, b), Item::Ints(c, d)) => (a, b) == (c, d),
        (Item::SilentBool(value), Item::Data(Value::Bool(other)))
        | (Item::Data(Value::Bool(other)), Item::SilentBool(value)) => value == other,
        _ if !left.is_set() || !right.is_set() => left.is_set() == right.is_set(),
        _ => match (left.as_text(), right.as_text()) {
            (Some(left), Some(right)) => left == right,
            _ => false,
        },
    }
}

/// Returns whether two values are equal: numbers by value, other types only within the same type.
fn equal_values(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Int(int), Value::Float(float)) | (Value::Float(float), Value::Int(int)) => {
            *int as f64 == *float
        }
        (Value::Uint(int), Value::Float(float)) | (Value::Float(float), Value::Uint(int)) => {
            *int as f64 == *float
        }
        (Value::List(left), Value::List(right)) => {
            let mut pairs = left.iter().zip(right.iter());
            left.len() == right.len() && pairs.all(|(left, right)| equal_values(left, right))
        }
        (Value::Map(left), Value::Map(right)) => {
            let mut pairs = left.iter().zip(right.iter());
            left.len() == right.len()
                && pairs.all(|((k, left), (l, right))| k == l && equal_values(left, right))
        }
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(value: impl Into<Value>) -> Item {
        Item::Data(value.into())
    }

    #[test]
    fn two_integers_divide_as_integers_and_a_float_makes_both_floats() {
        let divide = |left, right: Item| arithmetic(Operator::Divide, left, &right).unwrap();
        assert_eq!(divide(Number::Int(7), data(2_i64)), Number::Int(3));
        assert_eq!(divide(Number::Int(7), data(2.0)), Number::Float(3.5));
        assert_eq!(divide(Number::Float(7.0), data(2_i64)), Number::Float(3.5));
    }

    #[test]
    fn text_right_of_a_number_is_read_as_one() {
        let add = |left, right: Item| arithmetic(Operator::Add, left, &right);
        assert_eq!(add(Number::Float(2.0), data("1.5")), Ok(Number::Float(3.5)));
        assert_eq!(add(Number::Int(2), data("1")), Ok(Number::Int(3)));
        assert_eq!(
            add(Number::Int(2), data("x")).unwrap_err().message,
            r#"strconv.ParseInt: parsing "x": invalid syntax"#.into()
        );
    }

    #[test]
    fn dividing_by_zero_is_an_error_for_every_kind_of_number() {
        for right in [data(0_i64), data(0.0), data("0"), Item::Missing] {
            let error = arithmetic(Operator::Divide, Number::Int(1), &right).unwrap_err();
            assert_eq!(error.message, "division by zero".into());
        }
        assert!(arithmetic(Operator::Modulo, Number::Int(1), &data(0.5)).is_err());
    }

    #[test]
    fn integers_wrap_instead_of_failing() {
        let min = Number::Int(i64::MIN);
        assert_eq!(arithmetic(Operator::Divide, min, &data(-1_i64)), Ok(min));
        assert_eq!(
            arithmetic(Operator::Modulo, min, &data(-1_i64)),
            Ok(Number::Int(0))
        );
        assert_eq!(
            arithmetic(Operator::Add, Number::Int(i64::MAX), &data(1_i64)),
            Ok(min)
        );
    }

    #[test]
    fn numbers_are_equal_by_value_also_inside_lists() {
        let ints: Value = vec![1_i64.into(), 2_i64.into()].into();
        let floats: Value = vec![1.0.into(), 2.0.into()].into();
        assert!(equal(&data(ints.clone()), &data(floats)));
        assert!(!equal(&data(ints), &data(Vec::new())));
        assert!(!equal(&data(1_i64), &data("1")));
        assert!(!equal(&data(9_i64), &data(9.5)));
    }

    #[test]
    fn null_equals_missing_and_nothing_else() {
        assert!(equal(&Item::Missing, &data(Value::Null)));
        assert!(equal(&Item::Missing, &Item::Missing));
        assert!(!equal(&Item::Missing, &data(0_i64)));
        assert!(!equal(&data(false), &data(Value::Null)));
    }
}
