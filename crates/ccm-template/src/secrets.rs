//! Secrets in data: encrypted values that are opened for templates, and what keeps them from being shown.
//!
//! Templates see opened values as plain data. Whether a result depends on one is found by evaluating it
//! a second time with placeholders ([`Env::redacted`]): if the results differ, it does. So no function
//! can hide a dependency. Opened texts are also recorded, to remove them from whatever is shown.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::{CallError, Env};
use ccm_value::Value;
use ccm_value::secret::{REDACTED, is_sealed};

/// Opens an encrypted value.
pub type OpenSecret = Arc<dyn Fn(&str) -> Result<Value, CallError> + Send + Sync>;

/// Returns the values of a document in which another tool encrypted each value, as encrypted values.
pub type UnsealDocument = Arc<dyn Fn(&str) -> Result<Value, CallError> + Send + Sync>;

/// Shortest text that is removed from what is shown: shorter ones are part of many words.
const LEAST_TEXT: usize = 6;

/// Secrets of an environment.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Opens encrypted values and documents; without it there is no key.
    key: Option<(OpenSecret, UnsealDocument)>,
    /// Other forms of the data, if it has secrets.
    pub forms: Option<Arc<DataForms>>,
    opened: Arc<Mutex<BTreeSet<Arc<str>>>>,
    /// Number of values opened so far.
    count: Arc<AtomicUsize>,
    /// Whether encrypted values stand for [`REDACTED`] instead of their content.
    is_redacted: bool,
}

/// Forms of data whose secrets are opened in [`Env::data`].
#[derive(Debug)]
pub struct DataForms {
    /// With encrypted values, for nested manifests.
    pub sealed: Value,
    /// With [`REDACTED`] in place of secrets.
    pub redacted: Value,
}

impl Secrets {
    /// Returns secrets that are opened with a key.
    pub fn new(open: OpenSecret, unseal: UnsealDocument) -> Self {
        Self {
            key: Some((open, unseal)),
            ..Self::default()
        }
    }

    /// Returns secrets with the same key and without the record of what was opened, for a new run.
    #[must_use]
    pub fn for_run(&self) -> Self {
        Self {
            key: self.key.clone(),
            ..Self::default()
        }
    }

    /// Reports whether there is a key.
    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Reports whether a value was opened.
    pub fn has_opened(&self) -> bool {
        !self.opened.lock().is_empty()
    }

    /// Returns how many values were opened so far, by data and by templates.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the function that opens documents, if there is a key.
    pub fn unseal(&self) -> Option<&UnsealDocument> {
        self.key.as_ref().map(|(_, unseal)| unseal)
    }

    /// Opens an encrypted value and records its text.
    pub fn open(&self, sealed: &str) -> Result<Value, CallError> {
        if self.is_redacted {
            return Ok(REDACTED.into());
        }
        let Some((open, _)) = &self.key else {
            return Err("there is no key to open encrypted values with".into());
        };
        let value = open(sealed)?;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.opened.lock().insert(value.to_string().into());
        Ok(value)
    }

    /// Returns a text, opened if it is an encrypted value.
    pub(crate) fn open_text(&self, text: String) -> Result<Value, CallError> {
        match is_sealed(&text) {
            true => self.open(&text),
            false => Ok(text.into()),
        }
    }

    /// Reports whether a text contains an opened value.
    pub fn is_in(&self, text: &str) -> bool {
        matches!(self.redact(text), Cow::Owned(_))
    }

    /// Returns a text without opened values. Each line of a value with several lines is removed, because
    /// diffs and logs show lines with a prefix.
    pub fn redact<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let opened = self.opened.lock();
        let mut parts: Vec<&str> = opened
            .iter()
            .flat_map(|secret| std::iter::once(secret.trim()).chain(secret.lines().map(str::trim)))
            .filter(|part| part.len() >= LEAST_TEXT && text.contains(part))
            .collect();
        // Longer ones first: one may be part of another.
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        parts
            .into_iter()
            .fold(text.into(), |text: Cow<'t, str>, part| {
                text.replace(part, REDACTED).into()
            })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secrets")
    }
}

impl Env {
    /// Returns the environment with placeholders in place of secrets; `None` if no secret can be read.
    pub fn redacted(&self) -> Option<Self> {
        let forms = self.secrets.forms.as_ref();
        if forms.is_none() && !self.secrets.has_key() {
            return None;
        }
        let mut redacted = self.clone();
        redacted.secrets.is_redacted = true;
        if let Some(forms) = forms {
            redacted.data = forms.redacted.clone();
        }
        Some(redacted)
    }

    /// Reports whether the data has secrets.
    pub fn has_secrets(&self) -> bool {
        self.secrets.forms.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opened_texts_are_removed_from_what_is_shown() {
        let open: OpenSecret = Arc::new(|text| Ok(text.trim_matches(['<', '>']).into()));
        let secrets = Secrets::new(open.clone(), open);
        for text in [
            "<hunter2>",
            "<hunter2-long>",
            "<brief>",
            "<first line\nsecond line\n>",
        ] {
            secrets.open(text).unwrap();
        }
        assert_eq!(
            secrets.redact("+pw=hunter2-long; hunter2\n+ second line\nbrief"),
            "+pw=REDACTED; REDACTED\n+ REDACTED\nbrief"
        );
        assert!(!secrets.is_in("hunter"));
        assert!(secrets.is_in("x=first line"));
    }

    #[test]
    fn without_a_key_nothing_is_opened() {
        assert!(Secrets::default().open("ENC[age,x]").is_err());
        assert!(Env::default().redacted().is_none());
    }
}
