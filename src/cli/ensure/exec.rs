//! `ccm ensure exec`

use super::CommonArgs;
use ccm_core::model::resource::{Exec, Properties, Resource};

/// Runs a command when it has to
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The command line; also the name of the resource
    command: String,

    /// Runs only while this path does not exist
    #[arg(long, value_name = "PATH")]
    creates: Option<String>,

    /// An exit code that is a success
    #[arg(long, value_name = "CODE", default_values_t = [0])]
    returns: Vec<i32>,

    /// How long the command may take
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    timeout: String,

    /// The directory to run in
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,

    /// A variable for the command
    #[arg(short, long, value_name = "KEY=VALUE")]
    environment: Vec<String>,

    /// Where programs are searched, directories joined by colons
    #[arg(long)]
    path: Option<String>,

    /// Runs only when something subscribed to has changed
    #[arg(long)]
    refresh_only: bool,

    /// A resource whose change runs the command, as type#name
    #[arg(short = 'S', long, value_name = "TYPE#NAME")]
    subscribe: Vec<String>,

    /// Shows what the command prints
    #[arg(long)]
    logoutput: bool,

    /// Runs only if this command succeeds
    #[arg(long, value_name = "COMMAND")]
    exec_if: Option<String>,

    /// Runs unless this command succeeds
    #[arg(long, value_name = "COMMAND")]
    exec_unless: Option<String>,

    #[command(flatten)]
    common: CommonArgs,
}

impl Args {
    pub(super) fn resource(self) -> Resource {
        let exec = Exec {
            command: String::new(),
            cwd: self.cwd.unwrap_or_default(),
            environment: self.environment,
            path: self.path.unwrap_or_default(),
            returns: self.returns,
            timeout: self.timeout,
            creates: self.creates.unwrap_or_default(),
            onlyif: self.exec_if.unwrap_or_default(),
            unless: self.exec_unless.unwrap_or_default(),
            refreshonly: self.refresh_only,
            subscribe: self.subscribe,
            logoutput: self.logoutput,
        };
        let mut resource = Resource::new(self.command, "present", Properties::Exec(exec));
        self.common.fill(&mut resource);
        resource
    }
}
