//! Properties of packages: present, absent, latest or a given version.
//!
//! Names and versions become arguments of package managers. Those that a package manager could
//! interpret as an option, a pattern or an action are rejected here, before any provider runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Common, FieldVisitor, InvalidProperty, check_name_characters, is_dangerous, list, text,
};
use crate::model::text::{clean_path, parse_wait, quote};

/// Default wait for another package manager's lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// Default age from which on `stale` updates the index.
const INDEX_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Properties of a package. Upstream CCM has none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Package {
    /// When the package index is updated before an installation.
    #[serde(skip_serializing_if = "UpdateIndex::is_never")]
    pub update_index: UpdateIndex,
    /// Age from which on `stale` updates the index.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub index_max_age: String,
    /// Maximum wait for another package manager's lock.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub lock_timeout: String,
    /// Options passed to a CFEngine package module.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// When the package index is updated: at most once per run, and only before a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpdateIndex {
    #[default]
    Never,
    /// If it is older than `index_max_age`.
    Stale,
    Always,
}

impl UpdateIndex {
    fn is_never(&self) -> bool {
        *self == Self::Never
    }
}

impl Package {
    /// Returns the maximum wait for another package manager's lock.
    pub fn lock_timeout(&self) -> Result<Duration, InvalidProperty> {
        wait("lock_timeout", &self.lock_timeout, LOCK_TIMEOUT)
    }

    /// Returns the age from which on the index is stale.
    pub fn index_max_age(&self) -> Result<Duration, InvalidProperty> {
        wait("index_max_age", &self.index_max_age, INDEX_MAX_AGE)
    }

    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        check_name(common)?;
        check_version(&common.ensure)?;
        if !self.options.is_empty() && !is_module(&common.provider) {
            // An option of apt-get or dnf can run any command.
            return Err(InvalidProperty::new(
                "options",
                "package options are for CFEngine modules: set provider to cfengine",
            ));
        }
        if self.options.iter().any(|option| option.contains('\n')) {
            return Err(InvalidProperty::new(
                "options",
                "package options must not contain line breaks",
            ));
        }
        self.lock_timeout()?;
        self.index_max_age()?;
        Ok(())
    }

    pub(super) fn visit_fields<E>(&mut self, visit: &mut FieldVisitor<'_, E>) -> Result<(), E> {
        text("IndexMaxAge", &mut self.index_max_age, visit)?;
        text("LockTimeout", &mut self.lock_timeout, visit)?;
        list("Options", &mut self.options, visit)
    }
}

fn wait(
    property: &'static str,
    text: &str,
    default: Duration,
) -> Result<Duration, InvalidProperty> {
    match text {
        "" => Ok(default),
        text => parse_wait(text).map_err(|err| InvalidProperty::new(property, err.to_string())),
    }
}

/// Accepts package names and clean absolute paths of package files.
fn check_name(common: &Common) -> Result<(), InvalidProperty> {
    let name = common.name.as_str();
    let reject = |what: &str| {
        let message = format!("package name {what}: {}", quote(name));
        Err(InvalidProperty::new("name", message))
    };
    if is_package_file(name, &common.provider) && !name.contains(is_dangerous) {
        if clean_path(name) != name {
            return reject("is not a canonical path");
        }
        return check_name_characters("package", &name.replace('/', "."))
            .or_else(|_| reject("contains invalid characters"));
    }
    check_name_characters("package", name)?;
    // In apt, `~n.` is a search pattern that matches every package.
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return reject("must start with a letter or digit");
    }
    // In apt, `name-` removes the package.
    if name.ends_with('-') {
        return reject("must not end with a hyphen");
    }
    Ok(())
}

fn is_module(provider: &str) -> bool {
    provider == "cfengine" || provider.starts_with("cfengine/")
}

/// Returns the path of the CFEngine module in a provider name such as `cfengine//opt/m`, if it has
/// one; modules without a path are CFEngine's own.
pub fn module_path(provider: &str) -> Option<&str> {
    let module = provider.strip_prefix("cfengine/")?;
    module.contains('/').then_some(module)
}

/// Reports whether a name is the path of a package file. CFEngine modules accept any suffix.
fn is_package_file(name: &str, provider: &str) -> bool {
    let is_file = is_module(provider) || name.ends_with(".deb") || name.ends_with(".rpm");
    name.starts_with('/') && is_file
}

fn check_version(ensure: &str) -> Result<(), InvalidProperty> {
    let reject = |what: &str| {
        let message = format!("package version/ensure {what}: {}", quote(ensure));
        Err(InvalidProperty::new("ensure", message))
    };
    if ensure.contains(is_dangerous) {
        return reject("contains dangerous characters");
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._+:~^%-".contains(c);
    if !ensure.chars().all(allowed) {
        return reject("contains invalid characters");
    }
    if ensure.starts_with('-') {
        return reject("must not start with a hyphen");
    }
    Ok(())
}
