//! Queries: `(name=="lo")`, `(mtu>2000)`, `(=="vim")`.
//!
//! The left side is a path into an item, the right side a literal. Values compare only with the
//! same type: text by bytes, numbers by value, false before true.

use super::glob;
use ccm_value::Value;

/// A parsed query.
pub(super) struct Query<'p> {
    pub(super) path: &'p str,
    op: &'p str,
    value: String,
}

const OPERATORS: [&str; 9] = ["!=", "!%", "<=", ">=", "==", "<", ">", "=", "%"];

impl<'p> Query<'p> {
    /// Parses a query in brackets; returns it and the rest of the path.
    pub(super) fn parse(text: &'p str) -> Option<(Self, &'p str)> {
        let mut depth = 0_usize;
        let mut quoted = false;
        let mut operator = None;
        let mut chars = text.char_indices();
        while let Some((at, found)) = chars.next() {
            match found {
                '\\' => drop(chars.next()),
                '"' => quoted = !quoted,
                _ if quoted => {}
                '!' | '=' | '<' | '>' | '%' if depth == 1 && operator.is_none() => {
                    operator = Some(at);
                }
                '(' | '[' => depth += 1,
                ')' | ']' => {
                    depth = depth.checked_sub(1)?;
                    if depth == 0 {
                        let query = Self::new(text, operator.unwrap_or(at), at)?;
                        return Some((query, text.get(at + found.len_utf8()..)?));
                    }
                }
                _ => {}
            }
        }
        None
    }

    fn new(text: &'p str, operator: usize, end: usize) -> Option<Self> {
        let path = text.get(1..operator)?.trim();
        let condition = text.get(operator..end)?.trim();
        let op = OPERATORS
            .into_iter()
            .find(|op| condition.starts_with(op))
            .unwrap_or_default();
        let value = condition.strip_prefix(op)?.trim();
        let value = if value.starts_with('"') {
            serde_json::from_str(value).unwrap_or_else(|_| value.trim_matches('"').into())
        } else {
            value.to_owned()
        };
        Some(Self {
            path,
            op: if op == "==" { "=" } else { op },
            value,
        })
    }

    /// Returns whether a value found in an item matches.
    pub(super) fn matches(&self, found: Option<&Value>) -> bool {
        if let Some(wanted) = self.value.strip_prefix('~') {
            let fits = match wanted {
                "*" => found.is_some(),
                "null" => found.is_none_or(Value::is_null),
                "true" => found.is_some_and(|value| truth(value) == Some(true)),
                "false" => found.is_none_or(|value| truth(value) == Some(false)),
                _ => return false,
            };
            return self.op.is_empty() || self.compare_bool(fits, "true");
        }
        let Some(found) = found else {
            return false;
        };
        match found {
            _ if self.op.is_empty() => true,
            Value::Str(text) => self.compare_text(text),
            Value::Bool(value) => self.compare_bool(*value, &self.value),
            #[expect(clippy::cast_precision_loss, reason = "numbers of paths are floats")]
            Value::Int(number) => self.compare_number(*number as f64),
            #[expect(clippy::cast_precision_loss, reason = "numbers of paths are floats")]
            Value::Uint(number) => self.compare_number(*number as f64),
            Value::Float(number) => self.compare_number(*number),
            Value::Null | Value::List(_) | Value::Map(_) => false,
        }
    }

    fn compare_text(&self, text: &str) -> bool {
        let wanted = self.value.as_str();
        match self.op {
            "=" => text == wanted,
            "!=" => text != wanted,
            "<" => text < wanted,
            "<=" => text <= wanted,
            ">" => text > wanted,
            ">=" => text >= wanted,
            "%" => glob(text, wanted),
            "!%" => !glob(text, wanted),
            _ => false,
        }
    }

    fn compare_number(&self, number: f64) -> bool {
        let wanted = self.value.parse::<f64>().unwrap_or(0.0);
        match self.op {
            "=" => number == wanted,
            "!=" => number != wanted,
            "<" => number < wanted,
            "<=" => number <= wanted,
            ">" => number > wanted,
            ">=" => number >= wanted,
            _ => false,
        }
    }

    fn compare_bool(&self, value: bool, wanted: &str) -> bool {
        let own = if value { "true" } else { "false" };
        match (self.op, value) {
            ("=", _) => wanted == own,
            ("!=", _) => wanted != own,
            (">", true) => wanted == "false",
            ("<", false) => wanted == "true",
            (">=", true) | ("<=", false) => true,
            _ => false,
        }
    }
}

/// Returns the boolean meaning of a value, if it has one.
fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Null => Some(false),
        Value::Bool(value) => Some(*value),
        Value::Int(number) => Some(*number != 0),
        Value::Uint(_) => Some(true),
        Value::Float(number) => Some(*number != 0.0),
        Value::Str(text) => match text.to_ascii_lowercase().as_str() {
            "1" | "t" | "true" => Some(true),
            "0" | "f" | "false" => Some(false),
            _ => None,
        },
        Value::List(_) | Value::Map(_) => None,
    }
}
