//! Errors of probes, with the texts of goss where it has them.

use std::io;
use std::num::ParseIntError;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::text::go_duration;
use crate::system::{Cause, FileError, HttpError, RunError};

/// A resource or an attribute that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum InspectError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("attribute {0} is not implemented")]
    NotImplemented(String),
    #[error("invalid {what} name {name:?}")]
    Name { what: &'static str, name: String },
    #[error("a gossfile has no attributes")]
    Gossfile,

    #[error("{action} {}: {cause}", path.display())]
    Os {
        action: &'static str,
        path: PathBuf,
        cause: Cause,
    },
    #[error("lstat {}: no such file or directory", .0.display())]
    NoFile(PathBuf),
    #[error("{} is not a regular file", .0.display())]
    NotRegular(PathBuf),
    #[error("{} is larger than {limit} bytes", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("no time left to read {}", .0.display())]
    NoTime(PathBuf),
    #[error("unknown user in {0:?}")]
    NoHome(String),
    #[error("could not lookup the user in {path:?}: {cause}")]
    Home {
        path: String,
        #[source]
        cause: nix::Error,
    },

    #[error("could not lookup {database} {name}: {cause}")]
    Account {
        database: &'static str,
        name: String,
        #[source]
        cause: nix::Error,
    },
    #[error("unknown {database} {name}")]
    NoAccount {
        database: &'static str,
        name: String,
    },
    #[error("could not list the groups of {user}: {cause}")]
    Groups {
        user: String,
        #[source]
        cause: nix::Error,
    },

    #[error("unknown network {network:?} in {target:?}")]
    Network { network: String, target: String },
    #[error("missing port in address {0:?}")]
    NoPort(String),
    #[error("invalid local-address {text:?}")]
    LocalAddress {
        text: String,
        #[source]
        cause: std::net::AddrParseError,
    },
    #[error("invalid port in {target:?}")]
    Port {
        target: String,
        #[source]
        cause: ParseIntError,
    },
    #[error("unknown network in {0:?}")]
    PortNetwork(String),

    #[error("Command execution timed out ({})", go_duration(*limit))]
    CommandTimedOut {
        limit: Duration,
        #[source]
        cause: RunError,
    },
    #[error("output is longer than {0} bytes")]
    LongOutput(usize),

    #[error("dns checks use the system resolver; server is not supported")]
    DnsServer,
    #[error("DNS lookup timed out ({})", go_duration(*.0))]
    DnsTimedOut(Duration),
    #[error("dns record type {0} is not supported, only A and AAAA")]
    DnsRecord(String),

    #[error("cert-file and key-file must be given together")]
    IncompleteClientCertificate,
    #[error("a request header has no colon")]
    Header,

    #[error("no network interface {0}")]
    NoInterface(String),
    /// A warning of the facts.
    #[error("{0}")]
    Facts(String),

    #[error("Mountpoint not found")]
    NoMount,
    #[error("no usage of {point} within {}", go_duration(*limit))]
    UsageTimedOut { point: String, limit: Duration },
    #[error("statfs {point}: {cause}")]
    Usage {
        point: String,
        #[source]
        cause: rustix::io::Errno,
    },

    #[error("Package version not found")]
    NoVersion,
    #[error("neither dpkg-query nor rpm was found")]
    NoPackageManager,

    #[error("list /proc: {0}")]
    Processes(#[source] io::Error),
}
