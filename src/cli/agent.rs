//! `ccm agent`: the daemon. Starts it, hands signals to it, and starts it anew when its file
//! changed and somebody says so.

use std::path::PathBuf;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use super::environment::{NatsArgs, variables};
use super::{CliError, Verdict, runtime};
use crate::agent::Agent;
use crate::agent::config::Config;
use crate::agent::log::{Format, Log};
use crate::agent::metrics::Metrics;
use crate::agent::{monitor, notify};
use crate::engine::{Level, Line};
