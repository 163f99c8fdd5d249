//! A version skew of one minor: messages and records of the previous version in `tests/data/skew`,
//! replayed against today's agent and controller.

mod old_agent;
mod old_controller;

use serde_json::Value;

const NODE: &str = "web1.example.net";

/// Returns a recorded document.
fn recorded(name: &str) -> Value {
    let path = format!("{}/tests/data/skew/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Asserts that a reader of the previous version finds everything that it knows, with the same types.
/// What was added it ignores. Values of `facts` depend on the machine.
fn assert_readable(old: &Value, new: &Value, path: &str) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old {
                let path = format!("{path}.{key}");
                let found = new.get(key).unwrap_or_else(|| panic!("{path} is missing"));
                if key != "facts" {
                    assert_readable(value, found, &path);
                }
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            if let (Some(old), Some(new)) = (old.first(), new.first()) {
                assert_readable(old, new, &format!("{path}[0]"));
            }
        }
        _ => {
            let is_same = std::mem::discriminant(old) == std::mem::discriminant(new);
            assert!(is_same, "{path} was {old}, is {new}");
        }
    }
}
