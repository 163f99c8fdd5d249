//! Data of a template environment with encrypted values.

use std::sync::Arc;

use super::keys::Identity;
use super::values::{UnopenedValues, has_sealed, open_values, redact_sealed};
use super::{sealed, sops};
use crate::model::Value;
use ccm_template::secrets::{DataForms, Secrets};
use ccm_template::{CallError, Env};

/// What to do without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutKey {
    /// Nothing can be opened, which is an error.
    Refuse,
    /// Placeholders stand for secrets, because the data is only checked.
    UsePlaceholders,
}

/// Sets the data of an environment, with its encrypted values opened. `redacted` is the data without
/// secrets that were opened before, if there are any.
pub fn set_data(
    env: &mut Env,
    sealed: Value,
    redacted: Option<Value>,
    without_key: WithoutKey,
) -> Result<(), UnopenedValues> {
    env.secrets.forms = None;
    if redacted.is_none() && !has_sealed(&sealed) {
        env.data = sealed;
        return Ok(());
    }
    let redacted = redact_sealed(redacted.as_ref().unwrap_or(&sealed));
    env.data = match without_key {
        WithoutKey::UsePlaceholders if !env.secrets.has_key() => redacted.clone(),
        _ => open_values(&sealed, &mut |text| env.secrets.open(text))?,
    };
    env.secrets.forms = Some(Arc::new(DataForms { sealed, redacted }));
    Ok(())
}

/// Returns what opens values with these keys.
pub fn secrets_of(identities: Vec<Identity>) -> Secrets {
    let keys = Arc::new(identities);
    let documents = Arc::clone(&keys);
    Secrets::new(
        Arc::new(move |text| sealed::open(text, &keys).map_err(CallError::new)),
        Arc::new(move |text| sops::unseal_document(text, &documents).map_err(CallError::new)),
    )
}

/// Returns the values of a document of SOPS as encrypted values, each for the own key. Without a key they
/// are encrypted values that nobody can open, so that the error names them.
pub fn unseal(root: &Value, text: &str, secrets: &Secrets) -> Result<Value, CallError> {
    match secrets.unseal() {
        Some(unseal) => unseal(text),
        None => Ok(sops::without_key(root)),
    }
}
