//! Trimming of events that exceed the message size of the server.
//!
//! Names, times and outcomes are short and matter most; content, output and data are long and can
//! be looked up on the node. Long texts, lists and maps are shortened in steps until the document
//! fits, and a key `trimmed` is added.

use serde_json::{Map, Value};

/// Key of the output of a command.
const OUTPUT: &str = "output";

/// Longest texts, and most entries of lists and maps below the first level, per step.
const STEPS: [(usize, usize); 3] = [(4096, 64), (1024, 16), (256, 4)];

/// Returns the document trimmed to at most `limit` bytes, if that is possible.
pub(super) fn trimmed(body: &[u8], limit: usize) -> Option<Vec<u8>> {
    let Ok(Value::Object(document)) = serde_json::from_slice(body) else {
        return None;
    };
    let note = format!("{} bytes exceed the message size of the server", body.len());
    let finish = |mut smaller: Map<String, Value>| {
        smaller.insert("trimmed".into(), note.clone().into());
        let text = serde_json::to_vec(&smaller).ok()?;
        (text.len() <= limit).then_some(text)
    };
    let shortened = |(longest, entries)| {
        let short = |(key, value): (&String, &Value)| {
            let value = match value {
                // The reason of a failure is at the end of its output.
                Value::String(text) if key == OUTPUT => end_of(text, longest).into(),
                value => cut(value, longest, entries),
            };
            (key.clone(), value)
        };
        finish(document.iter().map(short).collect())
    };
    STEPS.into_iter().find_map(shortened).or_else(|| {
        let emptied = |(key, value): (&String, &Value)| (key.clone(), emptied(value));
        finish(document.iter().map(emptied).collect())
    })
}

fn cut(value: &Value, longest: usize, entries: usize) -> Value {
    match value {
        Value::String(text) => truncated(text, longest).into(),
        Value::Array(items) => {
            let items = items.iter().take(entries);
            items.map(|item| cut(item, longest, entries)).collect()
        }
        Value::Object(map) => {
            let map = map.iter().take(entries);
            map.map(|(key, value)| (key.clone(), cut(value, longest, entries)))
                .collect()
        }
        plain => plain.clone(),
    }
}

/// Returns an empty value of the same type; texts are shortened.
fn emptied(value: &Value) -> Value {
    match value {
        Value::String(text) => truncated(text, 256).into(),
        Value::Array(_) => Value::Array(Vec::new()),
        Value::Object(_) => Value::Object(Map::new()),
        plain => plain.clone(),
    }
}

/// Shortens a text to `longest` bytes.
fn truncated(text: &str, longest: usize) -> String {
    if text.len() <= longest {
        return text.into();
    }
    let end = text.floor_char_boundary(longest);
    format!("{}…", text.get(..end).unwrap_or_default())
}

/// Shortens a text to its last `longest` bytes.
fn end_of(text: &str, longest: usize) -> String {
    let start = text.ceil_char_boundary(text.len().saturating_sub(longest));
    match text.get(start..).unwrap_or_default() {
        all if all.len() == text.len() => all.to_owned(),
        end => format!("…{end}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(content: &str, data: usize) -> Vec<u8> {
        let data: Map<String, Value> = (0..data)
            .map(|number| (format!("key {number}"), "v".repeat(100).into()))
            .collect();
        serde_json::to_vec(&json!({
            "protocol": "io.choria.ccm.v1.transaction.event",
            "name": "/etc/motd",
            "properties": {"name": "/etc/motd", "content": content, "data": data},
            "error": [],
            "changed": true,
        }))
        .unwrap()
    }

    fn trimmed_to(body: &[u8], limit: usize) -> Value {
        let text = trimmed(body, limit).unwrap();
        assert!(text.len() <= limit);
        serde_json::from_slice(&text).unwrap()
    }

    #[test]
    fn long_texts_are_shortened_and_the_outcome_stays() {
        let body = event(&"é".repeat(500_000), 3);
        let event = trimmed_to(&body, 100_000);
        assert_eq!(event["name"], "/etc/motd");
        assert_eq!(event["changed"], true);
        assert_eq!(event["properties"]["data"].as_object().unwrap().len(), 3);
        let content = event["properties"]["content"].as_str().unwrap();
        assert!(content.len() < 5000 && content.ends_with("é…"));
        let note = format!("{} bytes exceed the message size of the server", body.len());
        assert_eq!(event["trimmed"], note);
    }

    #[test]
    fn the_end_of_the_output_is_kept() {
        let output = format!("{}the reason", "x".repeat(4000));
        let body = serde_json::to_vec(&json!({
            "name": "c", "output": output, "properties": {"data": vec!["y".repeat(900); 20]},
        }))
        .unwrap();
        let event = trimmed_to(&body, 18_000);
        let output = event["output"].as_str().unwrap();
        assert!(output.starts_with('…') && output.ends_with("xthe reason"));
        assert!(output.len() < 1100, "{}", output.len());
    }

    #[test]
    fn long_maps_are_shortened_and_finally_all_nested_values() {
        let body = event("", 20_000);
        let event = trimmed_to(&body, 10_000);
        assert_eq!(event["properties"]["data"].as_object().unwrap().len(), 64);
        let event = trimmed_to(&body, 300);
        assert_eq!(event["properties"], json!({}));
        assert_eq!(event["name"], "/etc/motd");
    }

    #[test]
    fn a_document_that_cannot_be_trimmed_is_none() {
        assert_eq!(trimmed(&event("", 1), 50), None);
        assert_eq!(trimmed(b"no document", 50), None);
        assert_eq!(trimmed("[".repeat(100_000).as_bytes(), 50), None);
    }
}
