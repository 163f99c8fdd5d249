//! `ccm ensure exec`: flags of exec resources.

use clap::ValueHint;

use super::CommonArgs;
use ccm_core::model::resource::{Exec, Properties, Resource};

/// Execution management
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Command to execute; also the resource name
    command: String,

    /// Skip execution if this path exists
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    creates: Option<String>,

    /// Expected exit code; repeatable
    #[arg(long, value_name = "CODE", default_values_t = [0])]
    returns: Vec<i32>,

    /// Command timeout
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    timeout: String,

    /// Working directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    cwd: Option<String>,

    /// Environment variable; repeatable
    #[arg(short, long, value_name = "KEY=VALUE")]
    environment: Vec<String>,

    /// Search path for executables, colon-separated
    #[arg(long)]
    path: Option<String>,

    /// Run only when a subscribed resource changed
    #[arg(long)]
    refresh_only: bool,

    /// Subscribe to changes of another resource; repeatable
    #[arg(short = 'S', long, value_name = "TYPE#NAME")]
    subscribe: Vec<String>,

    /// Log the output of the command
    #[arg(long)]
    logoutput: bool,

    /// Execute if this command exits with 0
    #[arg(long, value_name = "COMMAND")]
    exec_if: Option<String>,

    /// Execute unless this command exits with 0
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
