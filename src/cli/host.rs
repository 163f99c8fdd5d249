//! Setup of a run from the command line, and its output on the terminal.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use super::environment::{FactArgs, NatsArgs, PackageArgs, SecretKeyArgs};
use super::interrupt::Interrupt;
use super::output::{Console, print_error};
use super::{CliError, environment};
use ccm_core::engine::{EventIds, Level, Line, Mode, Sink, levels_line};
use ccm_core::hiera::{HieraError, Source};
use ccm_core::manifest::Manifest;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::governor::{GovernorName, SlotLoss};
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::resource::Resource;
use ccm_core::run::environment::TemplateContext;
use ccm_core::run::executor::LocalExecutor;
use ccm_core::run::log::system_line;
use ccm_core::run::{
    DataError, EnvironmentError, ExternalData, Governors, ManifestDir, RunContext, data,
    local_identity,
};
use ccm_core::system::{Accounts, Clock as _, SystemClock, files};
use ccm_template::CallError;
use ccm_template::env::Facts;
use ccm_template::secrets::Secrets;
use ccm_value::diagnostic::Diagnostic;

/// Source of the external hiera data of a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hiera<'a> {
    None,
    /// Data of a single resource; a missing file is ignored.
    Resource(&'a str),
    /// Data that overrides the manifest's own.
    Manifest(&'a str),
}

/// Inputs of a run.
pub(super) struct Setup<'a> {
    pub(super) nats: &'a NatsArgs,
    pub(super) facts: &'a FactArgs,
    pub(super) packages: &'a PackageArgs,
    pub(super) secret_key: &'a SecretKeyArgs,
    /// User and group lookups; a command may have made some already.
    pub(super) accounts: Accounts,
    /// Directory for records that outlive the run.
    pub(super) state_dir: Option<PathBuf>,
    pub(super) hiera: Hiera<'a>,
    /// Read template variables from `./.env` as well.
    pub(super) read_env: bool,
    /// Collective of the Choria governors; `None` if no governor slot is required.
    pub(super) governors: Option<Token>,
}

impl Setup<'_> {
    /// Builds the [`RunContext`] and calls `run` with it.
    pub(super) fn run<T>(
        &self,
        interrupt: &Interrupt,
        run: impl FnOnce(&RunContext<'_>) -> T,
    ) -> Result<T, CliError> {
        let base = std::env::current_dir().map_err(CliError::failed)?;
        let state_dir = self.state_dir.as_ref().map(|it| base.join(it));
        let nats = self.nats.client();
        let given = self.facts.given()?;
        let secrets = self.secret_key.secrets(state_dir.as_deref())?;
        let env = |manifest: ManifestDir<'_>| {
            let context = TemplateContext {
                facts: environment::lazy_facts(given.clone()),
                environ: environment::environ(self.read_env)?,
                nats: Arc::new(nats.clone()),
                registration_stream: self.nats.registration_stream().into(),
                secrets: secrets.clone(),
            };
            Ok::<_, EnvironmentError>(context.env(manifest.directory))
        };
        let data = |facts: &Facts| self.data(facts, &secrets, &nats);
        let gate = |_: &Resource, _: &str, _: Mode| Ok(());
        let ids = RefCell::new(EventIds::new().map_err(CliError::failed)?);
        let next_id = || ids.borrow_mut().next(SystemClock.now());
        Ok(run(&RunContext {
            identity: &identity,
            collective: &Token::default_collective(),
            clock: &SystemClock,
            accounts: self.accounts.clone(),
            nats: &nats,
            executor: &LocalExecutor {
                has_supervisor: true,
            },
            base: &base,
            state_dir: state_dir.as_deref(),
            cfengine_module: self.packages.module(),
            governors: Governors {
                collective: self
                    .governors
                    .clone()
                    .unwrap_or_else(Token::choria_collective),
                default: None,
                ignored: self.governors.is_none(),
                give_up: interrupt.stop(),
                lost: Arc::new(lost_slot),
            },
            env: &env,
            data: &data,
            gate: &gate,
            stop: interrupt.stop(),
            cancel: Some(interrupt.cancel()),
            next_id: &next_id,
        }))
    }

    fn data(
        &self,
        facts: &Facts,
        secrets: &Secrets,
        nats: &ccm_nats::BlockingClient,
    ) -> Result<ExternalData, DataError> {
        match self.hiera {
            Hiera::None => Ok(ExternalData::default()),
            Hiera::Resource(source) => {
                let source: Source = source.parse()?;
                if is_missing(&source)? {
                    return Ok(ExternalData::default());
                }
                let (external, data) = resolve_data(&source, facts, secrets, nats)?;
                Ok(ExternalData { external, ..data })
            }
            Hiera::Manifest(source) => {
                let (source, data) = resolve_data(&source.parse()?, facts, secrets, nats)?;
                Ok(ExternalData { source, ..data })
            }
        }
    }
}

/// Returns the identity of this node, shown to others while it holds a governor slot.
fn identity() -> NodeName {
    local_identity().unwrap_or_else(|_| NodeName::localhost())
}

fn lost_slot(governor: &GovernorName, sequence: u64, loss: SlotLoss) {
    let text = match loss {
        SlotLoss::LeaseEnded => {
            "The lease of the governor slot ended before the run; the run continues"
        }
        SlotLoss::Evicted => "The governor slot was evicted; the run continues",
    };
    let line = Line::new(Level::Warn, text).with("governor", governor);
    print_error(&system_line(
        &line.with("slot", sequence),
        SystemClock.now(),
    ));
}

fn is_missing(source: &Source) -> Result<bool, DataError> {
    let Source::File(path) = source else {
        return Ok(false);
    };
    let found = files::inspect(path, true).map_err(|err| HieraError::Fetch {
        from: source.clone(),
        cause: CallError::new(err),
    })?;
    Ok(found.is_none())
}

/// Returns resolved data, and the lines about it.
fn resolve_data(
    source: &Source,
    facts: &Facts,
    secrets: &Secrets,
    nats: &ccm_nats::BlockingClient,
) -> Result<(ccm_value::Value, ExternalData), DataError> {
    let document = data::open(source, nats)?;
    let resolved = data::resolve(source, &document, facts, secrets)?;
    let lines = ExternalData {
        warnings: data::warnings(&document),
        details: vec![levels_line(source, &resolved.levels)],
        ..ExternalData::default()
    };
    Ok((resolved.data, lines))
}

/// Prints a run on the terminal.
pub(super) struct Terminal<'a> {
    pub(super) console: &'a mut Console,
    /// Print the manifest's `pre_message`.
    pub(super) pre_message: bool,
}

impl Sink for Terminal<'_> {
    fn event(&mut self, event: &TransactionEvent, manifest: Option<&str>) {
        self.console.event(event, manifest);
    }

    fn line(&mut self, line: &Line) {
        self.console.line(line);
    }

    fn warning(&mut self, line: &Line) {
        self.console.log(line);
    }

    fn detail_level(&self) -> Option<Level> {
        self.console.detail_level()
    }

    fn detail(&mut self, line: &Line) {
        self.console.detail(line);
    }

    fn starting(&mut self, manifest: Option<&Manifest>) {
        if let Some(manifest) = manifest
            && self.pre_message
            && !manifest.pre_message.is_empty()
        {
            self.console.print(&format!("\n{}\n", manifest.pre_message));
        }
    }

    fn problems(&mut self, diagnostics: &[Diagnostic]) {
        self.console.problems(diagnostics);
    }

    fn received(&mut self, resource: &str, bytes: u64, of: Option<u64>) {
        self.console.received(resource, bytes, of);
    }

    fn diff(&mut self, text: &str) {
        self.console.diff(text);
    }
}
