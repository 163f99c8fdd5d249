//! Text of one event: a line with the resource, the outcome and what has changed.

use serde_json::Value;

use ccm_core::model::TypeName;
use ccm_core::model::drift::noop_text;
use ccm_core::model::event::{Outcome, TransactionEvent};

/// State of a resource that does not exist.
const ABSENT: &str = "absent";

/// Returns the line of a resource event.
pub fn event_line(event: &TransactionEvent) -> String {
    let label = format!("{}#{}", event.type_name, event.name);
    if event.failed {
        let errors = event.errors.join(", ");
        return format!("{label} failed: {errors}");
    }
    if !event.unmet_requirements.is_empty() {
        let unmet = event.unmet_requirements.join(", ");
        return format!("{label} skipped: unmet requirements {unmet}");
    }
    match event.outcome() {
        Outcome::Changed if event.noop => match event.noop_message.as_str() {
            "" => format!("{label} would change"),
            _ => format!("{label} would change: {}", noop_change(event)),
        },
        Outcome::Changed if event.refreshed => format!("{label} refreshed"),
        Outcome::Changed => format!("{label} changed{}", change(event)),
        Outcome::Skipped => format!("{label} skipped"),
        Outcome::Failed | Outcome::Stable => format!("{label} stable"),
    }
}

/// Returns the noop message, with the present version of a package that would be replaced.
fn noop_change(event: &TransactionEvent) -> String {
    let text = noop_text(event);
    let previous = event.previous.as_ref().filter(|it| it.ensure != ABSENT);
    match previous.filter(|_| event.type_name == TypeName::Package.as_str()) {
        Some(previous) => format!("{text} from {}", previous.ensure),
        None => text,
    }
}

/// Returns what has changed, such as ` 1.22 -> 1.24` or `: mode 0644 -> 0600`.
fn change(event: &TransactionEvent) -> String {
    let state = event.final_ensure.as_str();
    let Some(previous) = event.previous.as_ref().filter(|it| it.ensure != ABSENT) else {
        return match state {
            "" => String::new(),
            state => format!(" to {state}"),
        };
    };
    if previous.ensure != state && !state.is_empty() {
        return format!(" {} -> {state}", previous.ensure);
    }
    let now = event.status.as_ref().and_then(|status| {
        let status = serde_json::to_value(status).ok()?;
        status.get("metadata").cloned()
    });
    let now = now.unwrap_or_default();
    let text = |key: &str| now.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut changes = Vec::new();
    if !previous.checksum.is_empty() && previous.checksum != text("checksum") {
        changes.push("content".to_owned());
    }
    for (key, before) in [
        ("owner", &previous.owner),
        ("group", &previous.group),
        ("mode", &previous.mode),
    ] {
        if !before.is_empty() && before != text(key) {
            changes.push(format!("{key} {before} -> {}", text(key)));
        }
    }
    let enabled = now.get("enabled").and_then(Value::as_bool);
    if previous.enabled.is_some() && previous.enabled != enabled {
        let word = match enabled {
            Some(true) => "enabled",
            _ => "disabled",
        };
        changes.push(word.to_owned());
    }
    match (changes.is_empty(), state) {
        (false, _) => format!(": {}", changes.join(", ")),
        (true, "") => String::new(),
        (true, state) => format!(" to {state}"),
    }
}
