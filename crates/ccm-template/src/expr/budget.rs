//! What one run may spend, and the environment it runs in.
//!
//! Expressions come from documents that others write. Items, text and steps are counted, so that
//! a hostile one ends with an error instead of taking the machine with it.

use std::fmt::{self, Write};

use super::runtime_value::{MEMORY, Reason, Val};
use crate::Env;
use ccm_value::Value;

/// How many items the lists and maps of one run may have together.
const MAX_ITEMS: usize = 1_000_000;

/// How many bytes of text one run may build.
const MAX_TEXT: usize = 16 << 20;

/// How many items loops, comparisons and conversions may touch in one run.
const MAX_STEPS: usize = 5_000_000;

/// Counts what a run has spent.
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

    /// Charges items of a new list or map.
    pub(super) fn grow(&mut self, items: usize) -> Result<(), Reason> {
        self.items = self.items.saturating_add(items);
        if self.items >= MAX_ITEMS {
            Err(MEMORY.into())
        } else {
            Ok(())
        }
    }

    /// Charges text before it is built.
    pub(super) fn write(&mut self, bytes: usize) -> Result<(), Reason> {
        self.text = self.text.saturating_add(bytes);
        if self.text > MAX_TEXT {
            Err(MEMORY.into())
        } else {
            Ok(())
        }
    }

    /// Charges work that leaves nothing behind.
    pub(super) fn step(&mut self, count: usize) -> Result<(), Reason> {
        self.steps = self.steps.saturating_add(count);
        if self.steps > MAX_STEPS {
            Err("evaluation takes too many steps".into())
        } else {
            Ok(())
        }
    }

    /// Returns a value printed as Go's `%v`, unless that is too long.
    pub(super) fn print(&mut self, value: &Val) -> Result<String, Reason> {
        let value = match value {
            Val::Facts => &Val::Plain(self.facts()),
            Val::Environ => &Val::Plain(self.environ()),
            Val::Env => &Val::Plain(self.whole()),
            other => other,
        };
        let mut out = Bounded {
            text: String::new(),
            left: MAX_TEXT.saturating_sub(self.text),
        };
        write!(out, "{value}").map_err(|_| MEMORY)?;
        self.write(out.text.len())?;
        Ok(out.text)
    }

    /// Returns all facts, gathering those that are not known yet.
    pub(super) fn facts(&self) -> Value {
        map(self.env.facts.all())
    }

    pub(super) fn data(&self) -> Value {
        map(self.env.data.clone())
    }

    pub(super) fn environ(&self) -> Value {
        map(self.env.environ.clone())
    }

    /// Returns what `$env` stands for.
    pub(super) fn whole(&self) -> Value {
        [
            ("Facts", self.facts()),
            ("Data", self.data()),
            ("Environ", self.environ()),
        ]
        .into_iter()
        .collect()
    }
}

/// An environment without data has none of any name, which is no error.
fn map(value: Value) -> Value {
    match value {
        Value::Null => Value::empty_map(),
        other => other,
    }
}

/// Takes text until it is too long.
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
