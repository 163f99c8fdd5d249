//! What users and groups share: the programs that change account files, and their errors.
//!
//! The files are never written here: the programs of shadow-utils (`useradd`, `usermod`, …) lock them,
//! keep backups and know the rules of the system. The local files are read once per run, see [`Accounts::local`].
//!
//! [`Accounts::local`]: crate::system::Accounts::local

use std::time::Duration;

use super::error::MAX_ERROR_LINES;
use super::{ErrorOutput, Host, ProviderError, ResourceError};
use crate::system::Command;

/// The only provider: the programs of shadow-utils.
pub(super) const PROVIDER: &str = "shadow";

/// The timeout of one program. Copying a home directory may take long.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Exit code of `usermod` and `userdel` for a user with running processes.
const IN_USE: i32 = 8;

/// A failure to change an account.
#[derive(Debug, thiserror::Error)]
pub enum AccountChangeError {
    #[error("{program} failed with exit code {code}{error_output}")]
    Failed {
        program: &'static str,
        code: i32,
        error_output: ErrorOutput,
    },
    #[error("user {name} is logged in or has running processes; end them first{error_output}")]
    InUse {
        name: String,
        error_output: ErrorOutput,
    },
    #[error(
        "{what} {name} is not in {file}: it comes from another source of the name service, such as \
         LDAP; change it there"
    )]
    Foreign {
        what: &'static str,
        name: String,
        file: &'static str,
    },
    #[error("cannot read the password of user {0} in /etc/shadow; run as root")]
    NoShadow(String),
}

impl AccountChangeError {
    pub(super) fn output(&self) -> String {
        match self {
            Self::Failed { error_output, .. } | Self::InUse { error_output, .. } => {
                error_output.output.clone()
            }
            Self::Foreign { .. } | Self::NoShadow(_) => String::new(),
        }
    }
}

/// Checks that the provider is usable.
pub(super) fn check_provider(wanted: &str, host: Host<'_>) -> Result<(), ProviderError> {
    let is_usable = host.runner.locate("useradd").is_some();
    match wanted {
        "" if is_usable => Ok(()),
        "" => Err(ProviderError::NoneSuitable),
        PROVIDER if is_usable => Ok(()),
        PROVIDER => Err(ProviderError::NotManageable),
        _ => Err(ProviderError::NotFound),
    }
}

/// Runs a program that changes account files. Secrets are passed by `input`, which neither `ps` nor a
/// log shows. The caches of accounts are dropped, whatever comes of it.
pub(super) fn run(
    program: &'static str,
    args: Vec<String>,
    input: Vec<u8>,
    user: &str,
    host: Host<'_>,
) -> Result<(), ResourceError> {
    let command = Command {
        input,
        timeout: Some(TIMEOUT),
        ..Command::new(program, args)
    };
    let output = host.runner.run(&command);
    host.accounts.forget();
    let output = output?;
    if output.is_success() {
        return Ok(());
    }
    let error_output = ErrorOutput::new(output.printed().last_lines(MAX_ERROR_LINES));
    let is_user_program = matches!(program, "usermod" | "userdel");
    Err(match output.code {
        IN_USE if is_user_program => AccountChangeError::InUse {
            name: user.into(),
            error_output,
        },
        code => AccountChangeError::Failed {
            program,
            code,
            error_output,
        },
    }
    .into())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests;
