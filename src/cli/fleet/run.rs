//! `ccm fleet run`: runs a command on nodes once and prints its output.
//!
//! The request is an exec resource with a name of its own, so policies for execs apply. Nodes expand
//! expressions in execs, so the text is sent as a literal: the nodes run exactly what was typed.

use clap::ValueHint;

use super::FleetArgs;
use super::candidates;
use super::ensure;
use super::reply_report::TextStyle;
use super::request::{BatchArgs, RequestArgs};
use super::select::SelectArgs;
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict};
use ccm_core::engine::EventIds;
use ccm_core::model::node::NodeName;
use ccm_core::model::resource::{Exec, Properties, Resource};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_template::expand::literal;
use ccm_value::text::join_words;

/// Run a command on nodes and print its output
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Nodes to run the command on
    #[arg(value_name = "NODE", add = candidates::nodes())]
    named: Vec<NodeName>,

    /// Run the command line with /bin/sh
    #[arg(long, help_heading = "Run")]
    shell: bool,

    /// Command timeout
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1m",
        help_heading = "Run"
    )]
    exec_timeout: String,

    /// Working directory on the nodes
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath, help_heading = "Run")]
    cwd: Option<String>,

    /// Environment variable; repeatable
    #[arg(short, long, value_name = "KEY=VALUE", help_heading = "Run")]
    environment: Vec<String>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    request: RequestArgs,

    #[command(flatten)]
    batch: BatchArgs,

    /// Command and its arguments; unlike in ensure exec, {{…}} and ${…} are not expanded
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Args {
    /// Returns an exec that runs the command once; the name keeps it apart from other execs.
    fn resource(&self, name: String) -> Resource {
        let command = match self.shell {
            true => self.command.join(" "),
            false => join_words(&self.command),
        };
        let text = |text: &str| literal(text).into_owned();
        let exec = Exec {
            command: text(&command),
            cwd: self.cwd.as_deref().map(text).unwrap_or_default(),
            environment: self.environment.iter().map(|it| text(it)).collect(),
            timeout: self.exec_timeout.clone(),
            logoutput: true,
            ..Exec::default()
        };
        let mut resource = Resource::new(name, "present", Properties::Exec(exec));
        if self.shell {
            resource.common.provider = "shell".into();
        }
        resource
    }
}

pub(super) fn run(args: &Args, fleet: &FleetArgs, console: &Console) -> Result<Verdict, CliError> {
    let selection = args.select.explicit_selection(&args.named)?;
    let mut ids = EventIds::new().map_err(CliError::failed)?;
    let name = format!("run-{}", ids.next(SystemClock.now()));
    let resource = args.resource(name);
    let mut call = ensure::call(&resource, Default::default(), selection, &args.request)?;
    call.batch = args.batch.settings();
    call.style = TextStyle::Output;
    call.run(fleet, console)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn exec(words: &[&str]) -> (String, Exec) {
        let words = ["ccm"].into_iter().chain(words.iter().copied());
        let resource = Line::parse_from(words).args.resource("x".into());
        let Properties::Exec(exec) = resource.properties else {
            panic!("not an exec");
        };
        (resource.common.provider, exec)
    }

    #[test]
    fn words_are_quoted_unless_a_shell_reads_them() {
        let (provider, plain) = exec(&["--all", "--", "ls", "-l", "a b"]);
        assert_eq!(
            (provider.as_str(), plain.command.as_str()),
            ("", "ls -l 'a b'")
        );
        assert!(plain.logoutput);
        let (provider, shell) = exec(&["--all", "--shell", "--", "ls | wc -l"]);
        let found = (provider.as_str(), shell.command.as_str());
        assert_eq!(found, ("shell", "ls | wc -l"));
    }
}
