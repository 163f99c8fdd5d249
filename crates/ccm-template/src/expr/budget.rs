//! Limits of one evaluation: items, text and steps are counted, so that a hostile expression ends
//! with an error instead of exhausting memory or CPU. Also gives access to the environment's
//! values.

use std::fmt::{self, Write};

use super::runtime_value::{MEMORY, Reason, Val};
use crate::Env;
use ccm_value::Value;

/// Maximum number of items in all lists and maps of one evaluation.
const MAX_ITEMS: usize = 1_000_000;

/// Maximum number of bytes of text built in one evaluation.
const MAX_TEXT: usize = 16 << 20;

/// Maximum number of items visited by loops, comparisons and conversions in one evaluation.
const MAX_STEPS: usize = 5_000_000;

/// Counters of one evaluation, checked against the limits.
pub(super) struct Budget<'a> {
    pub(super) env: &'a Env,
    items: usize,
    text: usize,
    steps: usize,
}

impl<'a> Budget<'a> {
    pub(super) fn new(env: &'a Env) -> Self {
        Self {
            env,
            items: 0,
            text: 0,
            steps: 0,
        }
    }

    /// Counts the items of a new list or map.
    pub(super) fn charge_items(&mut self, items: usize) -> Result<(), Reason> {
        self.items = self.items.saturating_add(items);
        if self.items >= MAX_ITEMS {
            Err(MEMORY.into())
        } else {
            Ok(())
        }
    }

    /// Counts the bytes of text about to be built.
    pub(super) fn charge_text(&mut self, bytes: usize) -> Result<(), Reason> {
        self.text = self.text.saturating_add(bytes);
        if self.text > MAX_TEXT {
            Err(MEMORY.into())
        } else {
            Ok(())
        }
    }

    /// Counts steps, which use CPU but no memory.
    pub(super) fn charge_steps(&mut self, count: usize) -> Result<(), Reason> {
        self.steps = self.steps.saturating_add(count);
        if self.steps > MAX_STEPS {
            Err("evaluation takes too many steps".into())
        } else {
            Ok(())
        }
    }

    /// Formats a value as Go's `%v`, unless the result exceeds the limit.
    pub(super) fn print(&mut self, value: &Val) -> Result<String, Reason> {
        let value = match value {
            Val::Facts => &Val::Plain(self.facts()),
            Val::Environ => &Val::Plain(self.environ()),
            Val::Env => &Val::Plain(self.env_value()),
            other => other,
        };
        let mut out = Bounded {
            text: String::new(),
            left: MAX_TEXT.saturating_sub(self.text),
        };
        write!(out, "{value}").map_err(|_| MEMORY)?;
        self.charge_text(out.text.len())?;
        Ok(out.text)
    }

    /// Returns all facts, gathering the missing sections.
    pub(super) fn facts(&self) -> Value {
        map(self.env.facts.all())
    }

    pub(super) fn data(&self) -> Value {
        map(self.env.data.clone())
    }

    pub(super) fn environ(&self) -> Value {
        map(self.env.environ.clone())
    }

    /// Returns the value of `$env`.
    pub(super) fn env_value(&self) -> Value {
        [
            ("Facts", self.facts()),
            ("Data", self.data()),
            ("Environ", self.environ()),
        ]
        .into_iter()
        .collect()
    }
}

/// Returns an empty map for null, so that any name can be looked up in an environment without data.
fn map(value: Value) -> Value {
    match value {
        Value::Null => Value::empty_map(),
        other => other,
    }
}

/// Writer that fails when the text exceeds the limit.
struct Bounded {
    text: String,
    left: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.left = self.left.checked_sub(text.len()).ok_or(fmt::Error)?;
        self.text.push_str(text);
        Ok(())
    }
}
