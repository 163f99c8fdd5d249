//! Signing from the command line: whose seed, and where it is kept.
//!
//! A seed is a secret: it comes from a file that is ours alone, from the environment, or from the
//! NATS context that is in use, and is never shown. What a signature covers is `nats::trust`.

use std::path::Path;

use super::CliError;
use super::environment::NatsArgs;
use super::error::SIGN;
use ccm_core::system::files;
use ccm_nats::request_signature::Signer;

/// No file that holds a seed is longer; credentials files hold a token beside it.
const MAX_BYTES: u64 = 64 * 1024;

/// What stands for the seed of a context.
const CONTEXT: &str = "context";

/// Who signs what is sent.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct SigningArgs {
    /// Signs requests: a file that holds an nkey seed, the seed itself, or `context` for the seed of
    /// the NATS context in use, `context:NAME` for that of another
    #[arg(
        long,
        global = true,
        help_heading = "NATS",
        env = "CCM_SIGN_WITH",
        value_name = "SEED|FILE|context",
        hide_env_values = true
    )]
    sign_with: Option<String>,
}

impl SigningArgs {
    /// Returns who signs, if somebody does.
    pub(super) fn signer(&self, nats: &NatsArgs) -> Result<Option<Signer>, CliError> {
        let Some(text) = self.sign_with.as_deref() else {
            return Ok(None);
        };
        let signer = match text.strip_prefix(CONTEXT) {
            Some("") => of_context(nats, None)?,
            Some(name) if name.starts_with(':') => {
                of_context(nats, Some(name.trim_start_matches(':')))?
            }
            _ => load(text)?,
        };
        Ok(Some(signer))
    }

    /// Returns who signs.
    pub(super) fn required(&self, nats: &NatsArgs) -> Result<Signer, CliError> {
        let missing = || CliError::usage("nobody to sign with").hint(SIGN);
        self.signer(nats)?.ok_or_else(missing)
    }
}

/// Returns the signer whose seed a context logs in with.
fn of_context(nats: &NatsArgs, name: Option<&str>) -> Result<Signer, CliError> {
    let settings = nats.settings_of(name).map_err(CliError::usage)?;
    let shown = match &settings.context {
        Some(context) => format!("context {context}"),
        None => "the connection, which has no context,".to_owned(),
    };
    let seed = settings
        .login
        .seed()
        .map_err(|err| CliError::usage(err).at(&shown))?;
    let missing = || {
        CliError::usage(format!("{shown} holds no seed to sign with"))
            .hint("use nkey or creds in it, or a file")
    };
    Signer::from_seed(seed.ok_or_else(missing)?.reveal()).map_err(CliError::usage)
}

/// Returns the signer that a seed, or a file with one, stands for.
pub(super) fn load(text: &str) -> Result<Signer, CliError> {
    // What is no seed may be one with a typing error: only what is a file is ever shown.
    let path = Path::new(text);
    if let Ok(signer) = Signer::from_seed(text) {
        return Ok(signer);
    }
    if !path.exists() {
        let text = "the key to sign with is neither a seed nor a file that exists";
        return Err(CliError::usage(text));
    }
    let name = path.display();
    let text = files::read_secret(path, MAX_BYTES).map_err(CliError::usage)?;
    let mut lines = text.lines().map(str::trim);
    lines
        .find_map(|line| Signer::from_seed(line).ok())
        .ok_or_else(|| CliError::usage(format!("{name} holds no nkey seed")))
}
