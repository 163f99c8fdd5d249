//! `ccm ensure`: one resource, asked for on the command line or as a document.

mod api;
mod archive;
mod exec;
mod file;
mod package;
mod scaffold;
mod service;

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::environment::{FactArgs, NatsArgs, PackageArgs};
use super::host::{Hiera, Setup, Terminal};
use super::interrupt::Interrupt;
use super::output::Console;
use super::{CliError, Verdict};
use ccm_core::engine::{Mode, Session};
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::health::HealthCheck;
use ccm_core::model::resource::{Control, Resource};
use ccm_core::run::{self, RunError};
use ccm_core::system::{Accounts, Clock, SystemClock};
use ccm_value::{json, text};

/// Brings one resource to a wanted state
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    options: Options,

    #[command(subcommand)]
    command: Command,
}

/// What every ensure command knows.
#[derive(Debug, clap::Args)]
struct Options {
    /// Says what would be done, changes nothing
    #[arg(long, global = true, help_heading = "Run")]
    noop: bool,

    /// Shows what changes in files, or would change
    #[arg(long, global = true, help_heading = "Run")]
    diff: bool,

    /// Keeps events in this directory, made by `ccm session new`
    #[arg(
        long,
        global = true,
        help_heading = "Run",
        env = "CCM_SESSION_STORE",
        value_name = "DIR"
    )]
    session: Option<PathBuf>,

    /// Data for templates: a file, an http or https URL, or kv://BUCKET/KEY; a file that is
    /// missing is none
    #[arg(
        long,
        global = true,
        help_heading = "Run",
        env = "CCM_HIERA_DATA",
        value_name = "SOURCE",
        default_value = ".hiera"
    )]
    hiera: String,

    #[command(flatten)]
    nats: NatsArgs,

    #[command(flatten)]
    packages: PackageArgs,

    /// Reads variables for templates from ./.env (the default)
    #[arg(
        long,
        global = true,
        help_heading = "Run",
        overrides_with = "no_read_env",
        hide = true
    )]
    read_env: bool,

    /// Does not read variables for templates from ./.env
    #[arg(long, global = true, help_heading = "Run")]
    no_read_env: bool,

    /// Exits with 2 when something changed, 4 when it failed, 6 for both
    #[arg(long, global = true, help_heading = "Run")]
    detailed_exitcodes: bool,

    /// Prints the transaction event as JSON
    #[arg(long, global = true, help_heading = "Run")]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Typed(Box<Typed>),
    Api(api::Args),
}

/// One resource on the command line, by its type.
#[derive(Debug, Subcommand)]
pub(super) enum Typed {
    Archive(archive::Args),
    File(file::Args),
    Exec(exec::Args),
    Scaffold(scaffold::Args),
    #[command(alias = "pkg")]
    Package(package::Args),
    #[command(alias = "svc")]
    Service(service::Args),
}

impl Typed {
    /// Returns the resource that is asked for.
    pub(super) fn resource(self, host: Host) -> Result<Resource, CliError> {
        match self {
            Self::Archive(args) => args.resource(host),
            Self::File(args) => args.resource(host),
            Self::Exec(args) => Ok(args.resource()),
            Self::Scaffold(args) => args.resource(host),
            Self::Package(args) => Ok(args.resource()),
            Self::Service(args) => args.resource(),
        }
    }
}

/// Whose paths and accounts a resource speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    /// This one's: paths may be relative, and what is not said is ours.
    Local,
    /// Another's: paths begin at the root, and what is not said is root's.
    Remote,
}

impl Host {
    /// Returns a path as the engine wants it: from the root, and clean.
    fn path(self, path: &str) -> Result<String, CliError> {
        match self {
            Self::Local => absolute(path),
            Self::Remote if path.starts_with('/') || path.contains("{{") => Ok(path.into()),
            Self::Remote => Err(CliError::usage(format!(
                "path '{path}' must be absolute: it is on other nodes"
            ))),
        }
    }

    /// Returns owner and group of what nobody says them of.
    fn owners(self) -> (String, String) {
        match self {
            Self::Local => {
                let accounts = Accounts::default();
                let (uid, gid) = accounts.current();
                let (user, group) = (accounts.user_name(uid), accounts.group_name(gid));
                (user.to_string(), group.to_string())
            }
            Self::Remote => ("root".into(), "root".into()),
        }
    }
}

/// Properties that every type has.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Common properties")]
struct CommonArgs {
    /// Another name for the resource
    #[arg(long)]
    alias: Option<String>,

    /// A command that checks the resource's health afterwards
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,

    /// How often the check is tried
    #[arg(long, value_name = "N", default_value_t = 5)]
    check_tries: i64,

    /// How long to wait between tries
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    check_sleep: String,

    /// Manages the resource only if this expression is true
    #[arg(long = "if", value_name = "EXPR")]
    manage_if: Option<String>,

    /// Manages the resource unless this expression is true
    #[arg(long, value_name = "EXPR")]
    unless: Option<String>,

    /// The provider to use
    #[arg(long)]
    provider: Option<String>,

    /// A resource that must have come out well before, as type#name
    #[arg(long, value_name = "TYPE#NAME")]
    require: Vec<String>,
}

impl CommonArgs {
    fn fill(self, resource: &mut Resource) {
        let common = &mut resource.common;
        common.alias = self.alias.unwrap_or_default();
        common.provider = self.provider.unwrap_or_default();
        common.require = self.require;
        if self.manage_if.is_some() || self.unless.is_some() {
            common.control = Some(Control {
                manage_if: self.manage_if.unwrap_or_default(),
                unless: self.unless.unwrap_or_default(),
            });
        }
        if let Some(command) = self.check {
            common.health_checks = vec![HealthCheck {
                command,
                tries: self.check_tries,
                try_sleep: self.check_sleep,
                ..HealthCheck::default()
            }];
        }
    }
}

pub(super) fn run(args: Args, console: &mut Console) -> Result<Verdict, CliError> {
    let Args { options, command } = args;
    let resource = match command {
        Command::Api(args) => return api::run(args, &options, console),
        Command::Typed(typed) => typed.resource(Host::Local)?,
    };
    let session = options.open_session(&resource)?;
    if options.json {
        console.keep_stdout_free();
    }
    let label = resource.label();
    let (interrupt, event) = options.ensure(resource, session, console)?;
    let event = event.map_err(|err| match err {
        RunError::Template(err) => CliError::usage(err).at(&label),
        err => err.into(),
    })?;
    if options.json {
        let text = json::pretty(&event).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    }
    Ok(interrupt.judge(Verdict {
        changed: event.changed,
        failed: event.failed || !event.unmet_requirements.is_empty(),
        detailed: options.detailed_exitcodes,
        ..Verdict::default()
    }))
}

impl Options {
    /// Opens the session; a store that can't be written is found out before anything is done.
    fn open_session(&self, resource: &Resource) -> Result<Session, CliError> {
        let Some(store) = self.store()? else {
            for (what, references) in [
                ("requires", resource.common.require.as_slice()),
                ("subscribe", resource.subscribe()),
            ] {
                if !references.is_empty() {
                    return Err(CliError::usage(format!(
                        "session store should be set when using {what}"
                    )));
                }
            }
            return Ok(Session::memory(SystemClock.now()));
        };
        Session::existing(store).map_err(CliError::usage)
    }

    fn store(&self) -> Result<Option<&Path>, CliError> {
        match &self.session {
            Some(store) if store.as_os_str().is_empty() => {
                Err(CliError::usage("session store should not be empty"))
            }
            store => Ok(store.as_deref()),
        }
    }

    /// Brings a resource to its state, as the options say.
    fn ensure(
        &self,
        resource: Resource,
        session: Session,
        console: &mut Console,
    ) -> Result<(Interrupt, Result<TransactionEvent, RunError>), CliError> {
        let setup = Setup {
            nats: &self.nats,
            facts: &FactArgs::default(),
            packages: &self.packages,
            hiera: Hiera::Resource(&self.hiera),
            read_env: !self.no_read_env,
            governors: None,
        };
        let mode = Mode {
            noop: self.noop,
            diff: self.diff,
            ..Mode::default()
        };
        let interrupt = Interrupt::new()?;
        let (_, event) = setup.run(&interrupt, |host| {
            let mut terminal = Terminal {
                console,
                interrupt: &interrupt,
                pre_message: false,
            };
            run::ensure(resource, mode, session, host, &mut terminal)
        })?;
        Ok((interrupt, event))
    }
}

/// Returns the owner and group that were given, else the host's. Takes `user:group` and two texts
/// alike.
fn owners(
    host: Host,
    owner: Option<&str>,
    group: Option<&str>,
) -> Result<(String, String), CliError> {
    let (owner, joined_group) = match owner.map(|text| text.split_once(':')) {
        Some(Some((owner, group))) => (Some(owner), Some(group)),
        Some(None) => (owner, None),
        None => (None, None),
    };
    let group = match (joined_group, group) {
        (Some(a), Some(b)) if a != b => {
            return Err(CliError::usage(format!(
                "--owner names the group {a:?} and --group {b:?}"
            )));
        }
        (joined, own) => joined.or(own),
    };
    if let (Some(owner), Some(group)) = (owner, group) {
        return Ok((owner.into(), group.into()));
    }
    let (own_user, own_group) = host.owners();
    Ok((
        owner.map_or(own_user, Into::into),
        group.map_or(own_group, Into::into),
    ))
}

/// Returns a path as the engine wants it: from the root, and clean.
pub(super) fn absolute(path: &str) -> Result<String, CliError> {
    if path.starts_with('/') {
        return Ok(path.into());
    }
    let directory = std::env::current_dir().map_err(CliError::usage)?;
    let joined = directory.join(path);
    let joined = joined
        .to_str()
        .ok_or_else(|| CliError::usage(format!("{} is not UTF-8", joined.display())))?;
    Ok(text::clean_path(joined))
}
