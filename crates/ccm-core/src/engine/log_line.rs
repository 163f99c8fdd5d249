//! Log lines: a level, a message and fields. Formatting is left to the sink.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::model::event::TransactionEvent;
use crate::model::secret::redact_urls;
use crate::model::text::go_millis;

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// A log line: a message and its fields. Credentials in URLs are redacted on construction.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub level: Level,
    pub message: String,
    pub fields: Vec<(&'static str, String)>,
}

impl Line {
    pub fn new(level: Level, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Cow::Owned(redacted) = redact_urls(&message) {
            message = redacted;
        }
        Self {
            level,
            message,
            fields: Vec::new(),
        }
    }

    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl ToString) -> Self {
        let value = value.to_string();
        self.fields.push((key, redact_urls(&value).into_owned()));
        self
    }
}

/// Returns the line that reports the outcome of a resource.
pub fn status_line(event: &TransactionEvent) -> Line {
    let (level, outcome) = if event.failed {
        (Level::Error, "failed")
    } else if !event.unmet_requirements.is_empty() {
        (Level::Error, "skipped due to unmet requirement")
    } else if event.skipped {
        (Level::Warn, "skipped")
    } else if event.refreshed {
        (Level::Warn, "refreshed")
    } else if event.changed {
        (Level::Warn, "changed")
    } else {
        (Level::Info, "stable")
    };
    let name = match event.alias.as_str() {
        "" => event.name.clone(),
        alias => format!("{alias} (alias)"),
    };
    let mut line = Line::new(level, format!("{}#{name} {outcome}", event.type_name));
    if event.health_check_only {
        line = line.with("healthcheck", true);
    }
    line = line
        .with("ensure", &event.requested_ensure)
        .with("runtime", go_millis(event.duration))
        .with("provider", &event.provider);
    if event.noop {
        line = match event.noop_message.as_str() {
            "" => line.with("noop", true),
            message => line.with("noop", message),
        };
    }
    if event.failed {
        line = line.with("errors", event.errors.join(", "));
    } else {
        for item in &event.unmet_requirements {
            line = line.with("unmet", item);
        }
    }
    line
}

/// Returns the line that names the levels of resolved data.
pub fn levels_line(source: impl ToString, levels: &[String]) -> Line {
    let levels = match levels {
        [] => "none".into(),
        levels => levels.join(", "),
    };
    Line::new(Level::Info, "Resolved data")
        .with("source", source)
        .with("levels", levels)
}
