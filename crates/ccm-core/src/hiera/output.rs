//! Environment output: data as shell variables, `PREFIX_KEY=value`.

use std::fmt::Write;

use super::HieraError;
use crate::model::value::{Map, go_float};
use crate::model::{Value, json};

/// Returns one line per top-level key, sorted by key; data that is not a map is one line named
/// `VALUE`. Text is written unquoted, lists and maps as JSON.
pub fn env_lines(value: &Value, prefix: &str) -> Result<String, HieraError> {
    let Value::Map(map) = value else {
        return Ok(format!("{prefix}_VALUE={}\n", as_json(value)?));
    };
    lines(map, prefix)
}

fn lines(map: &Map, prefix: &str) -> Result<String, HieraError> {
    let mut out = String::new();
    for (key, value) in map {
        let text = match value {
            Value::Str(text) => text.to_string(),
            Value::Float(number) if number.is_finite() => format!("{number:.6}"),
            Value::Float(number) => go_float(*number),
            other => as_json(other)?,
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{prefix}_{}={text}", key.to_uppercase());
    }
    Ok(out)
}

fn as_json(value: &Value) -> Result<String, HieraError> {
    json::compact(value).map_err(|err| HieraError::Output(err.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document;

    fn lines_of(text: &str) -> String {
        let value = document::parse(text).unwrap().to_value();
        env_lines(&value, "P").unwrap()
    }

    #[test]
    fn keys_are_sorted_and_upper_cased_and_otherwise_kept() {
        assert_eq!(lines_of("{my-key: a b, a.b: 1}"), "P_A.B=1\nP_MY-KEY=a b\n");
    }

    #[test]
    fn fractions_have_six_decimals() {
        assert_eq!(lines_of("{a: 1.5, b: .inf}"), "P_A=1.500000\nP_B=+Inf\n");
    }

    #[test]
    fn other_values_are_json() {
        assert_eq!(
            lines_of("{a: [1, x], b: {c: '<'}, d: ~, e: true}"),
            "P_A=[1,\"x\"]\nP_B={\"c\":\"\\u003c\"}\nP_D=null\nP_E=true\n"
        );
    }

    #[test]
    fn data_other_than_a_map_is_one_value() {
        assert_eq!(lines_of("[a]"), "P_VALUE=[\"a\"]\n");
        assert_eq!(lines_of(""), "P_VALUE=null\n");
    }
}
