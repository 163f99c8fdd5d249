//! `ccm fleet trust init`: creates keys, accounts, certificates and a server configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::cli::fleet::FleetArgs;
use crate::cli::fleet::flag_values::BadValue;
use crate::cli::fleet::permissions::FeatureArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::run::local_identity;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::trust::{InitOptions, TlsFiles, TrustDir};

/// Create keys, accounts, certificates and a configuration for the fleet's NATS servers
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory to create
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Listen address of the NATS server
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:4222", value_parser = address)]
    listen: SocketAddr,

    /// Name or address of the NATS server for its certificate and for contexts; repeatable
    /// [default: the name of this machine]
    #[arg(long, value_name = "NAME|IP")]
    host: Vec<String>,

    /// Certificate of the NATS server, instead of a generated one
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "host"])]
    tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// CA of --tls-cert [default: the CA certificates of each machine]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,

    #[command(flatten)]
    features: FeatureArgs,
}

pub(super) fn run(
    args: &Args,
    fleet: &FleetArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let options = InitOptions {
        names: fleet.names()?,
        listen: args.listen.to_string(),
        hosts: args.hosts()?,
        port: args.listen.port(),
        features: args.features.features(),
        tls: args.tls(),
    };
    let trust = TrustDir::init(&args.directory, &options, SystemClock.now())?;
    console.print(&next_steps(&trust));
    Ok(Verdict::default())
}

impl Args {
    /// Returns the names of the server; the first is used in contexts.
    fn hosts(&self) -> Result<Vec<String>, CliError> {
        let mut hosts = self.host.clone();
        if hosts.is_empty() {
            hosts.push(if self.listen.ip().is_unspecified() {
                local_identity().map_err(CliError::failed)?.to_string()
            } else {
                self.listen.ip().to_string()
            });
        }
        for local in ["localhost", "127.0.0.1", "::1"] {
            if !hosts.iter().any(|host| host == local) {
                hosts.push(local.into());
            }
        }
        Ok(hosts)
    }

    fn tls(&self) -> Option<TlsFiles> {
        let full = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Some(TlsFiles {
            certificate: self.tls_cert.as_ref().map(full)?,
            key: self.tls_key.as_ref().map(full)?,
            ca: self.tls_ca.as_ref().map(full),
        })
    }
}

/// Returns the commands that start the fleet.
fn next_steps(trust: &TrustDir) -> String {
    let at = |name: &str| trust.at(name).display().to_string();
    let directory: &Path = trust.path();
    format!(
        "created {directory}\n\n\
         Next:\n  \
         nats-server -c {config}\n  \
         ccm fleet init --context {controller}\n  \
         export CCM_TRUST_DIR={directory}\n  \
         ccm fleet enroll serve\n  \
         ccm fleet enroll token create\n\n\
         Operator: --context {operator} --sign-with {signer}\n\n\
         Keep a copy of {keys} offline. A server on another machine needs nats.conf, operator.jwt,\n\
         resolver and tls only.\n",
        directory = directory.display(),
        config = at("nats.conf"),
        controller = at("contexts/controller-main.json"),
        operator = at("contexts/operator-admin.json"),
        signer = trust.signer_seed().display(),
        keys = at("keys"),
    )
}

fn address(text: &str) -> Result<SocketAddr, BadValue> {
    text.parse().map_err(|_| BadValue::Address)
}
