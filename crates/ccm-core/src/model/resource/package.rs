//! Packages: a name that is present, absent, latest or of one version.
//!
//! Names and versions end up as arguments of package managers, which read some of them as more
//! than a name. What they could read that way is refused here, before any provider is asked.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Common, FieldVisitor, InvalidProperty, check_word, is_dangerous, list, text};
use crate::model::text::{clean_path, parse_wait, quote};

/// How long another package manager at work is waited for, unless told otherwise.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);

/// How old an index may be before `stale` updates it, unless told otherwise.
const INDEX_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// What only packages have. All of it is ours: upstream has nothing here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Package {
    /// Whether the index of available packages is updated before something is installed.
    #[serde(skip_serializing_if = "UpdateIndex::is_never")]
    pub update_index: UpdateIndex,
    /// How old the index may be before `stale` updates it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub index_max_age: String,
    /// How long another package manager at work is waited for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub lock_timeout: String,
    /// What a CFEngine module is told beside the package.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// When the index of available packages is updated: at most once in a run, and only for a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UpdateIndex {
    #[default]
    Never,
    /// When it is too old.
    Stale,
    Always,
}

impl UpdateIndex {
    fn is_never(&self) -> bool {
        *self == Self::Never
    }
}

impl Package {
    /// Returns how long another package manager at work is waited for.
    pub fn lock_timeout(&self) -> Result<Duration, InvalidProperty> {
        wait("lock_timeout", &self.lock_timeout, LOCK_TIMEOUT)
    }

    /// Returns how old the index may be before it is stale.
    pub fn index_max_age(&self) -> Result<Duration, InvalidProperty> {
        wait("index_max_age", &self.index_max_age, INDEX_MAX_AGE)
    }

    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        check_name(common)?;
        check_version(&common.ensure)?;
        if !self.options.is_empty() && !is_module(&common.provider) {
            // To apt-get and dnf an option can be any command at all.
            return Err(InvalidProperty::new(
                "options",
                "package options are for CFEngine modules: set provider to cfengine",
            ));
        }
        if self.options.iter().any(|option| option.contains('\n')) {
            return Err(InvalidProperty::new(
                "options",
                "package options must not hold line breaks",
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

/// Takes names, and paths of package files; of paths only those that can be nothing else.
fn check_name(common: &Common) -> Result<(), InvalidProperty> {
    let name = common.name.as_str();
    let refuse = |what: &str| {
        let message = format!("package name {what}: {}", quote(name));
        Err(InvalidProperty::new("name", message))
    };
    if is_package_file(name, &common.provider) && !name.contains(is_dangerous) {
        if clean_path(name) != name {
            return refuse("is not a canonical path");
        }
        return check_word("package", &name.replace('/', "."))
            .or_else(|_| refuse("contains invalid characters"));
    }
    check_word("package", name)?;
    // `~n.` is a search of apt's that finds every package there is.
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return refuse("must start with a letter or digit");
    }
    // To apt, `name-` is a wish to remove.
    if name.ends_with('-') {
        return refuse("must not end with a hyphen");
    }
    Ok(())
}

fn is_module(provider: &str) -> bool {
    provider == "cfengine" || provider.starts_with("cfengine/")
}

/// Returns the path of the program that a provider names, if it names one: a CFEngine module that
/// is not one of CFEngine's own.
pub fn module_path(provider: &str) -> Option<&str> {
    let module = provider.strip_prefix("cfengine/")?;
    module.contains('/').then_some(module)
}

/// A module of CFEngine's has its own idea of what a package file is called.
fn is_package_file(name: &str, provider: &str) -> bool {
    let is_file = is_module(provider) || name.ends_with(".deb") || name.ends_with(".rpm");
    name.starts_with('/') && is_file
}

fn check_version(ensure: &str) -> Result<(), InvalidProperty> {
    let refuse = |what: &str| {
        let message = format!("package version/ensure {what}: {}", quote(ensure));
        Err(InvalidProperty::new("ensure", message))
    };
    if ensure.contains(is_dangerous) {
        return refuse("contains dangerous characters");
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._+:~^%-".contains(c);
    if !ensure.chars().all(allowed) {
        return refuse("contains invalid characters");
    }
    if ensure.starts_with('-') {
        return refuse("must not start with a hyphen");
    }
    Ok(())
}
