//! The external protocol of Choria's server: an environment and a file in, a file out.
//!
//! The server starts us with three arguments and six variables, in a temporary directory. The
//! arguments always say that this is a request; only the environment tells an activation apart. What
//! we print becomes its log. It takes a missing or broken reply and any exit code but zero for a
//! failure without a reason, so a reply is written whatever happens, whole.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::actions::Asked;
use super::config::Config;
use super::reply::{Answer, Failure, Reply, clipped, on_one_line};
use ccm_core::run::local_identity;
use ccm_core::system::Clock;
use ccm_core::system::files::{self, Durability, FileError};

pub const ACTIVATION: &str = "io.choria.mcorpc.external.v1.activation_request";
pub const RPC: &str = "io.choria.mcorpc.external.v1.rpc_request";

/// The longest request; brokers carry no longer ones.
const MAX_REQUEST: u64 = 8 * 1024 * 1024;

/// The longest reply: it grows by more than twice on its way, and brokers carry a megabyte unless
/// told otherwise.
const MAX_REPLY: usize = 384 * 1024;

/// The longest line for the server's log.
const MAX_LINE: usize = 512;

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum ExternalError {
    #[error("this program is started by a Choria server, which sets {0}")]
    Variable(&'static str),
    #[error("could not write the reply: {0}")]
    Reply(#[from] FileError),
    #[error("could not write the reply: {0}")]
    Encode(#[from] serde_json::Error),
}

/// How the server started us.
pub struct Call<'a> {
    /// The request, the reply, and a protocol that says nothing.
    pub arguments: &'a [OsString],
    pub variables: &'a BTreeMap<String, String>,
    /// Ourselves, to be started again for what takes long.
    pub program: &'a Path,
    pub clock: Arc<dyn Clock>,
}

/// A request as the server writes it; what else it holds is for others.
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

/// Returns Choria's collective when nobody names one.
fn default_collective() -> String {
    "mcollective".into()
}

impl Request {
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
            // The parser's own text could show what the request holds.
            .map_err(|error| {
                let place = format!("line {} column {}", error.line(), error.column());
                let text = format!("the request is not one of protocol {RPC}, at {place}");
                Failure::InvalidData(text)
            })?;
        if request.protocol != RPC {
            let text = format!("the request must be of protocol {RPC}");
            return Err(Failure::InvalidData(text));
        }
        Ok(request)
    }

    /// Returns the inputs.
    pub(super) fn inputs(&self) -> Result<Map<String, Value>, Failure> {
        match &self.data {
            Value::Null => Ok(Map::new()),
            Value::Object(data) => Ok(data.clone()),
            _ => Err(Failure::invalid("the data of a request must be an object")),
        }
    }
}

impl Call<'_> {
    fn file(&self, variable: &str) -> Option<PathBuf> {
        let value = self.variables.get(variable);
        value.filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// Returns a file that is named by a variable, or else by an argument.
    fn exchange(&self, variable: &'static str, index: usize) -> Result<PathBuf, ExternalError> {
        let argument = || self.arguments.get(index).map(PathBuf::from);
        self.file(variable)
            .or_else(argument)
            .ok_or(ExternalError::Variable(variable))
    }

    fn config(&self) -> Result<Config, Failure> {
        let file = self.file("CHORIA_EXTERNAL_CONFIG");
        Config::load(file.as_deref()).map_err(Failure::aborted)
    }

    fn answer(&self, protocol: &str, request: &Path) -> Result<Answer, Failure> {
        if protocol != RPC {
            let text = format!("unknown protocol, expected {RPC} or {ACTIVATION}");
            return Err(Failure::InvalidData(text));
        }
        let request = Request::read(request)?;
        let config = self.config()?;
        let identity = local_identity().map_err(Failure::unknown)?;
        let facts = self.file("CHORIA_EXTERNAL_FACTS");
        let asked = Asked {
            request: &request,
            config: &config,
            identity: &identity,
            facts: facts.as_deref(),
            program: self.program,
            path: self.variables.get("PATH").map(String::as_str),
            clock: self.clock.clone(),
        };
        asked.answer()
    }
}

/// Answers one call of the server, and returns a line for its log if something is wrong.
pub fn serve(call: &Call<'_>) -> Result<Option<String>, ExternalError> {
    let reply_file = call.exchange("CHORIA_EXTERNAL_REPLY", 1)?;
    let protocol = call.variables.get("CHORIA_EXTERNAL_PROTOCOL");
    let protocol = protocol.map_or(RPC, String::as_str);
    let (text, complaint) = if protocol == ACTIVATION {
        let (is_active, complaint) = match call.config() {
            Ok(config) => (config.activate, None),
            // A node that can't say what it allows allows nothing.
            Err(failure) => (false, Some(failure.to_string())),
        };
        (json!({ "activate": is_active }).to_string(), complaint)
    } else {
        let request = call.exchange("CHORIA_EXTERNAL_REQUEST", 0)?;
        let reply = Reply::from(call.answer(protocol, &request));
        let (text, reply) = written(reply)?;
        let complaint = (!reply.is_ok()).then(|| reply.statusmsg.clone());
        (text, complaint)
    };
    files::write_private(&reply_file, text.as_bytes(), Durability::Cached)?;
    Ok(complaint.map(|text| clipped(&on_one_line(&text), MAX_LINE)))
}

/// Returns a reply as text, or another one if it is too long to be sent.
fn written(reply: Reply) -> Result<(String, Reply), serde_json::Error> {
    let text = serde_json::to_string(&reply)?;
    if text.len() <= MAX_REPLY {
        return Ok((text, reply));
    }
    let bytes = text.len();
    let reason = format!("the answer has {bytes} bytes, more than can be sent: ask for less");
    let reply = Reply::from(Err(Failure::Aborted(reason)));
    Ok((serde_json::to_string(&reply)?, reply))
}
