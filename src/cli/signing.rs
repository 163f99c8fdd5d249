//! Signing from the command line: whose seed, and where it is kept.
//!
//! A seed is a secret: it comes from a file that is ours alone, or from the environment, and is
//! never shown. What a signature covers is `nats::trust`.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::CliError;
use crate::nats::trust::Signer;
use crate::system::files;

/// No file that holds a seed is longer; credentials files hold a token beside it.
const MAX_BYTES: u64 = 64 * 1024;

/// Who signs what is sent.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct SigningArgs {
    /// Signs requests: a file that holds an nkey seed, or the seed itself
    #[arg(
        long,
        global = true,
        env = "CCM_SIGN_WITH",
        value_name = "SEED|FILE",
        hide_env_values = true
    )]
    sign_with: Option<String>,
}

impl SigningArgs {
    /// Returns who signs, if somebody does.
    pub(super) fn signer(&self) -> Result<Option<Signer>, CliError> {
        self.sign_with.as_deref().map(load).transpose()
    }

    /// Returns who signs.
    pub(super) fn required(&self) -> Result<Signer, CliError> {
        let missing = || CliError::usage("nobody to sign with: give --sign-with or CCM_SIGN_WITH");
        self.signer()?.ok_or_else(missing)
    }
}

/// Returns the signer that a seed, or a file with one, stands for.
pub(super) fn load(text: &str) -> Result<Signer, CliError> {
    // What is no seed may be one with a typing error: only what is a file is ever named.
    let path = Path::new(text);
    if let Ok(signer) = Signer::from_seed(text) {
        return Ok(signer);
    }
    if !path.exists() {
        return Err(CliError::usage("--sign-with is neither a seed nor a file"));
    }
    let name = path.display();
    let file = files::open(path).map_err(CliError::usage)?;
    let mode = file.metadata().map_err(CliError::failed)?.mode();
    if mode & 0o077 != 0 {
        let text = format!("{name} may be read by others: run chmod 600 {name}");
        return Err(CliError::usage(text));
    }
    let text = files::read_to_string(path, MAX_BYTES).map_err(CliError::usage)?;
    let mut lines = text.lines().map(str::trim);
    lines
        .find_map(|line| Signer::from_seed(line).ok())
        .ok_or_else(|| CliError::usage(format!("{name} holds no nkey seed")))
}
