//! `ccm ensure`: manages one resource, described by flags or by a request document.

mod api;
mod archive;
mod exec;
mod file;
mod group;
mod line;
mod link;
mod package;
mod scaffold;
mod service;
mod user;

use std::path::{Path, PathBuf};

use clap::{Args as _, Subcommand};

use super::environment::{FactArgs, NatsArgs, PackageArgs, SecretKeyArgs, StateArgs};
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

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    options: Options,

    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Defines the arguments, and of the resource types only the one of this name, if it is one.
    pub(super) fn define(command: clap::Command, name: Option<&str>) -> clap::Command {
        let Some(name) = name else {
            return Self::augment_args(command);
        };
        let resource = clap::Command::new(name.to_owned());
        let resource = match name {
            "archive" => archive::Args::augment_args(resource),
            "exec" => exec::Args::augment_args(resource),
            "file" => file::Args::augment_args(resource),
            "package" => package::Args::augment_args(resource),
            "scaffold" => scaffold::Args::augment_args(resource),
            "service" => service::Args::augment_args(resource),
            _ => return Self::augment_args(command),
        };
        Options::augment_args(command).subcommand(resource)
    }
}

/// Flags of every ensure command.
#[derive(Debug, clap::Args)]
struct Options {
    /// Do not make changes, only show what would be done
    #[arg(long, global = true, help_heading = "Run")]
    noop: bool,

    /// Show differences in file contents
    #[arg(long, global = true, help_heading = "Run")]
    diff: bool,

    /// Session store to use, created by `ccm session new`
    #[arg(
        long,
        global = true,
        help_heading = "Run",
        env = "CCM_SESSION_STORE",
        value_name = "DIR"
    )]
    session: Option<PathBuf>,

    /// Hiera data source: a file, an http or https URL, kv://BUCKET/KEY or obj://BUCKET/NAME; a
    /// missing file is ignored
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

    #[command(flatten)]
    state: StateArgs,

    /// Read extra variables from the .env file (the default)
    #[arg(
        long,
        global = true,
        help_heading = "Run",
        overrides_with = "no_read_env",
        hide = true
    )]
    read_env: bool,

    /// Do not read extra variables from the .env file
    #[arg(long, global = true, help_heading = "Run")]
    no_read_env: bool,

    /// Exit with 2 if the resource changed, 4 if it failed, 6 for both
    #[arg(long, global = true, help_heading = "Run")]
    detailed_exitcodes: bool,

    /// Output the transaction event as JSON
    #[arg(long, global = true, help_heading = "Run")]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Resource(Box<ResourceCommand>),
    Api(api::Args),
}

/// Subcommand per resource type.
#[derive(Debug, Subcommand)]
pub(super) enum ResourceCommand {
    Archive(archive::Args),
    File(file::Args),
    Group(group::Args),
    Line(line::Args),
    Link(link::Args),
    Exec(exec::Args),
    Scaffold(scaffold::Args),
    #[command(alias = "pkg")]
    Package(package::Args),
    #[command(alias = "svc")]
    Service(service::Args),
    User(user::Args),
}

impl ResourceCommand {
    /// Returns the resource that the flags describe.
    pub(super) fn resource(self, target: Target<'_>) -> Result<Resource, CliError> {
        match self {
            Self::Archive(args) => args.resource(target),
            Self::File(args) => args.resource(target),
            Self::Group(args) => Ok(args.resource()),
            Self::Line(args) => args.resource(target),
            Self::Link(args) => args.resource(target),
            Self::Exec(args) => Ok(args.resource()),
            Self::Scaffold(args) => args.resource(target),
            Self::Package(args) => Ok(args.resource()),
            Self::Service(args) => args.resource(),
            Self::User(args) => args.resource(),
        }
    }
}

/// Node that the paths and accounts of a resource refer to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// This node: paths may be relative, the default owner is the current user.
    Local(&'a Accounts),
    /// Another node: paths must be absolute, the default owner is root.
    Remote,
}

impl Target<'_> {
    /// Returns an absolute, normalized path.
    fn path(self, path: &str) -> Result<String, CliError> {
        match self {
            Self::Local(_) => absolute(path),
            Self::Remote if path.starts_with('/') || path.contains("{{") => Ok(path.into()),
            Self::Remote => Err(CliError::usage(format!(
                "path '{path}' must be absolute because it is on another node"
            ))),
        }
    }

    /// Returns the default owner and group.
    fn owners(self) -> (String, String) {
        match self {
            Self::Local(accounts) => {
                let (uid, gid) = accounts.current();
                let (user, group) = (accounts.user_name(uid), accounts.group_name(gid));
                (user.to_string(), group.to_string())
            }
            Self::Remote => ("root".into(), "root".into()),
        }
    }
}

/// Properties of all resource types.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Common properties")]
struct CommonArgs {
    /// Resource alias
    #[arg(long)]
    alias: Option<String>,

    /// Command to run as a health check
    #[arg(long, value_name = "COMMAND")]
    check: Option<String>,

    /// Number of times to try the health check
    #[arg(long, value_name = "N", default_value_t = 5)]
    check_tries: i64,

    /// Time to sleep between health check tries
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    check_sleep: String,

    /// Manage the resource if this expression is true
    #[arg(long = "if", value_name = "EXPR")]
    manage_if: Option<String>,

    /// Manage the resource unless this expression is true
    #[arg(long, value_name = "EXPR")]
    unless: Option<String>,

    /// Resource provider
    #[arg(long)]
    provider: Option<String>,

    /// Require success of an earlier resource; repeatable
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
    let accounts = Accounts::default();
    let resource = match command {
        Command::Api(args) => return api::run(args, &options, console),
        Command::Resource(command) => command.resource(Target::Local(&accounts))?,
    };
    let session = options.open_session(&resource)?;
    if options.json {
        console.reserve_stdout();
    }
    let label = resource.label();
    let (interrupt, event) = options.ensure(resource, session, accounts, console)?;
    let event = event.map_err(|err| match err {
        RunError::Template(err) => CliError::usage(err).at(&label),
        err => err.into(),
    })?;
    if options.json {
        let text = json::pretty(&event).map_err(CliError::failed)?;
        console.print(&format!("{text}\n"));
    }
    Ok(interrupt.verdict(Verdict {
        changed: event.changed,
        failed: event.failed || !event.unmet_requirements.is_empty(),
        detailed: options.detailed_exitcodes,
        ..Verdict::default()
    }))
}

impl Options {
    /// Opens the session before anything is changed, so that an unusable store is an early error.
    fn open_session(&self, resource: &Resource) -> Result<Session, CliError> {
        let Some(store) = self.store()? else {
            for (property, references) in [
                ("requires", resource.common.require.as_slice()),
                ("subscribe", resource.subscribe()),
            ] {
                if !references.is_empty() {
                    return Err(CliError::usage(format!(
                        "session store should be set when using {property}"
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

    /// Applies a resource with these options.
    fn ensure(
        &self,
        resource: Resource,
        session: Session,
        accounts: Accounts,
        console: &mut Console,
    ) -> Result<(Interrupt, Result<TransactionEvent, RunError>), CliError> {
        let setup = Setup {
            nats: &self.nats,
            facts: &FactArgs::default(),
            packages: &self.packages,
            secret_key: &SecretKeyArgs::default(),
            accounts,
            state_dir: self.state.directory(),
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
                pre_message: false,
            };
            run::ensure(resource, mode, session, host, &mut terminal)
        })?;
        Ok((interrupt, event))
    }
}

/// Returns the given owner and group, or the target's defaults. The owner may be `user:group`.
fn owners(
    target: Target<'_>,
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
                "--owner sets group {a:?} but --group sets {b:?}"
            )));
        }
        (joined, separate) => joined.or(separate),
    };
    if let (Some(owner), Some(group)) = (owner, group) {
        return Ok((owner.into(), group.into()));
    }
    let (default_user, default_group) = target.owners();
    Ok((
        owner.map_or(default_user, Into::into),
        group.map_or(default_group, Into::into),
    ))
}

/// Returns an absolute, normalized path.
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
