//! The `--sign-with` flag: loads the nkey seed that requests are signed with.
//!
//! The seed is a secret: it comes from a file that only the user can read, from the environment or
//! from the NATS context, and is never printed. See `ccm_nats::request_signature` for what is signed.

use std::path::Path;

use super::CliError;
use super::environment::NatsArgs;
use super::error::SIGN;
use ccm_core::system::files;
use ccm_nats::request_signature::Signer;

/// Size limit of a seed file; credentials files hold a JWT as well.
const MAX_BYTES: u64 = 64 * 1024;

/// Value of `--sign-with` that selects the seed of the NATS context.
const CONTEXT: &str = "context";

/// Flags for signing requests.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct SigningArgs {
    /// Nkey seed to sign requests with: a file, the seed itself, or `context` or `context:NAME` for the seed of a
    /// NATS context
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
    /// Returns the signer, if `--sign-with` was given.
    pub(super) fn signer(&self, nats: &NatsArgs) -> Result<Option<Signer>, CliError> {
        let Some(text) = self.sign_with.as_deref() else {
            return Ok(None);
        };
        let signer = match text.strip_prefix(CONTEXT) {
            Some("") => from_context(nats, None)?,
            Some(name) if name.starts_with(':') => {
                from_context(nats, Some(name.trim_start_matches(':')))?
            }
            _ => load(text)?,
        };
        Ok(Some(signer))
    }

    /// Returns the signer, or an error if `--sign-with` was not given.
    pub(super) fn required(&self, nats: &NatsArgs) -> Result<Signer, CliError> {
        let missing = || CliError::usage("no signing key given").hint(SIGN);
        self.signer(nats)?.ok_or_else(missing)
    }
}

/// Returns the signer with the seed that a NATS context authenticates with.
fn from_context(nats: &NatsArgs, name: Option<&str>) -> Result<Signer, CliError> {
    let settings = nats.settings_of(name).map_err(CliError::usage)?;
    let description = match &settings.context {
        Some(context) => format!("NATS context {context}"),
        None => "the connection, which uses no NATS context,".to_owned(),
    };
    let seed = settings
        .login
        .seed()
        .map_err(|err| CliError::usage(err).at(&description))?;
    let missing = || {
        CliError::usage(format!("{description} has no nkey seed"))
            .hint("set nkey or creds in the context, or give a seed file")
    };
    Signer::from_seed(seed.ok_or_else(missing)?.reveal()).map_err(CliError::usage)
}

/// Returns the signer for a seed or a seed file.
pub(super) fn load(text: &str) -> Result<Signer, CliError> {
    // The text may be a mistyped seed, so it is printed only if it names an existing file.
    let path = Path::new(text);
    if let Ok(signer) = Signer::from_seed(text) {
        return Ok(signer);
    }
    if !path.exists() {
        let text = "the signing key is neither an nkey seed nor an existing file";
        return Err(CliError::usage(text));
    }
    let name = path.display();
    let text = files::read_secret(path, MAX_BYTES).map_err(CliError::usage)?;
    let mut lines = text.lines().map(str::trim);
    lines
        .find_map(|line| Signer::from_seed(line).ok())
        .ok_or_else(|| CliError::usage(format!("{name} contains no nkey seed")))
}
