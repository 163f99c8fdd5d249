//! External agent protocol of the Choria server: environment variables and a request file in, a
//! reply file out.
//!
//! The server starts the agent with three arguments and six variables in a temporary directory.
//! The variables distinguish activation checks from RPC requests; the arguments do not. The server
//! logs our output. A missing or invalid reply or a non-zero exit code is reported without a reason,
//! so a complete reply is written in every case.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::actions::ActionRequest;
use super::audit::Origin;
use super::config::Config;
use super::identity::identity;
use ccm_agent::choria_rpc::reply::{ActionReply, Failure, Reply, clipped, on_one_line};
use ccm_core::model::node::NodeName;
use ccm_core::run::local_identity;
use ccm_core::system::Clock;
use ccm_core::system::files::{self, Durability, FileError};

pub const ACTIVATION: &str = "io.choria.mcorpc.external.v1.activation_request";
pub const RPC: &str = "io.choria.mcorpc.external.v1.rpc_request";

/// Size limit of a request, as in the brokers.
const MAX_REQUEST: u64 = 8 * 1024 * 1024;

/// Length limit of a line for the server's log.
const MAX_LINE: usize = 512;

/// Reason why no reply was written.
#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    #[error("this program is started by a Choria server, which sets {0}")]
    Variable(&'static str),
    #[error("could not write the reply: {0}")]
    Reply(#[from] FileError),
    #[error("could not write the reply: {0}")]
    Encode(#[from] serde_json::Error),
}

/// Arguments and environment that the server passes.
pub struct Call<'a> {
    /// Request file, reply file, and a protocol that is always the same.
    pub arguments: &'a [OsString],
    pub variables: &'a BTreeMap<String, String>,
    /// Path of this program, to start detached runs.
    pub program: &'a Path,
    pub clock: Arc<dyn Clock>,
}

/// Request file; further fields are ignored.
#[derive(Debug, Deserialize)]
pub(super) struct Request {
    protocol: String,
    pub agent: String,
    pub action: String,
    #[serde(default)]
    pub requestid: String,
    #[serde(default)]
    pub senderid: String,
    #[serde(default)]
    pub callerid: String,
    #[serde(default = "default_collective")]
    pub collective: String,
    #[serde(default)]
    data: Value,
}

/// Returns Choria's default collective.
fn default_collective() -> String {
    "mcollective".into()
}

impl Request {
    /// Returns who sent the request, and which it is.
    pub(super) fn origin(&self) -> Origin {
        Origin {
            agent: self.agent.clone(),
            action: self.action.clone(),
            request_id: self.requestid.clone(),
            sender: self.senderid.clone(),
            caller: self.callerid.clone(),
            collective: self.collective.clone(),
        }
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let text = files::read_to_string(path, MAX_REQUEST).map_err(|error| match error {
            FileError::TooLarge { limit, .. } => {
                Failure::invalid(format!("the request is longer than {limit} bytes"))
            }
            FileError::NotText(_) => Failure::invalid("the request is not UTF-8"),
            error => Failure::unknown(error),
        })?;
        if text.trim().is_empty() {
            return Err(Failure::invalid("the request is empty"));
        }
        let request: Self = serde_json::from_str(&text)
            // The parser's own message could contain values of the request.
            .map_err(|error| {
                let position = format!("line {} column {}", error.line(), error.column());
                let text = format!("invalid {RPC} request at {position}");
                Failure::InvalidData(text)
            })?;
        if request.protocol != RPC {
            let text = format!("the request must be of protocol {RPC}");
            return Err(Failure::InvalidData(text));
        }
        Ok(request)
    }

    pub(super) fn data(&self) -> &Value {
        &self.data
    }
}

impl Call<'_> {
    fn file(&self, variable: &str) -> Option<PathBuf> {
        let value = self.variables.get(variable);
        value.filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// Returns the path in a variable, or else in an argument.
    fn exchange_file(
        &self,
        variable: &'static str,
        index: usize,
    ) -> Result<PathBuf, ExternalError> {
        let argument = || self.arguments.get(index).map(PathBuf::from);
        self.file(variable)
            .or_else(argument)
            .ok_or(ExternalError::Variable(variable))
    }

    fn config_file(&self) -> Option<PathBuf> {
        self.file("CHORIA_EXTERNAL_CONFIG")
    }

    fn config(&self) -> (Config, Option<Failure>) {
        let (config, error) = Config::load(self.config_file().as_deref());
        (config, error.map(Failure::aborted))
    }

    fn execute(&self, protocol: &str, request: &Path) -> Result<ActionReply, Failure> {
        if protocol != RPC {
            let text = format!("unknown protocol, expected {RPC} or {ACTIVATION}");
            return Err(Failure::InvalidData(text));
        }
        let request = Request::read(request)?;
        let (config, invalid) = self.config();
        let (identity, unknown) = match identity(&config, self.config_file().as_deref()) {
            Ok(identity) => (identity, None),
            Err(error) => {
                // Names the machine in the record of the refusal.
                let local = local_identity().unwrap_or_else(|_| NodeName::localhost());
                (local, Some(Failure::aborted(error)))
            }
        };
        let facts = self.file("CHORIA_EXTERNAL_FACTS");
        let action = ActionRequest {
            request: &request,
            config: &config,
            identity: &identity,
            facts: facts.as_deref(),
            program: self.program,
            path: self.variables.get("PATH").map(String::as_str),
            clock: self.clock.clone(),
        };
        match invalid.or(unknown) {
            Some(refusal) => Err(action.refuse(refusal)),
            None => action.execute(),
        }
    }
}

/// Handles one call of the server, and returns a line for its log if the request failed.
pub fn serve(call: &Call<'_>) -> Result<Option<String>, ExternalError> {
    let reply_file = call.exchange_file("CHORIA_EXTERNAL_REPLY", 1)?;
    let protocol = call.variables.get("CHORIA_EXTERNAL_PROTOCOL");
    let protocol = protocol.map_or(RPC, String::as_str);
    let (text, log_line) = if protocol == ACTIVATION {
        let (is_active, log_line) = match call.config() {
            (config, None) => (config.activate, None),
            // The server checks this only once. The agent is active and refuses requests with the
            // reason, so that a repaired configuration takes effect without a restart.
            (_, Some(failure)) => (true, Some(failure.to_string())),
        };
        (json!({ "activate": is_active }).to_string(), log_line)
    } else {
        let request = call.exchange_file("CHORIA_EXTERNAL_REQUEST", 0)?;
        let reply = Reply::from(call.execute(protocol, &request));
        let (text, reply) = reply.encode()?;
        let log_line = (!reply.is_ok()).then(|| reply.statusmsg.clone());
        (text, log_line)
    };
    files::write_private(&reply_file, text.as_bytes(), Durability::Cached)?;
    Ok(log_line.map(|text| clipped(&on_one_line(&text), MAX_LINE)))
}
