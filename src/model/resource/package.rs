//! Packages: a name that is present, absent, latest or of one version.

use serde::{Deserialize, Serialize};

use super::{Common, Invalid, check_word, is_dangerous};
use crate::model::text::quote;

/// A package has no properties of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Package {}

impl Package {
    pub(super) fn validate(&self, common: &Common) -> Result<(), Invalid> {
        check_word("package", &common.name)?;
        let refuse = |what: &str| {
            let message = format!("package version/ensure {what}: {}", quote(&common.ensure));
            Err(Invalid::new("ensure", message))
        };
        if common.ensure.contains(is_dangerous) {
            return refuse("contains dangerous characters");
        }
        if common.ensure.starts_with('-') {
            return refuse("must not start with a hyphen");
        }
        Ok(())
    }
}
