//! What the command line gives a run to work with, and how a person follows it.

use std::cell::RefCell;
use std::sync::Arc;

use super::environment::{FactArgs, NatsArgs, PackageArgs};
use super::interrupt::Interrupt;
use super::output::{Console, complain};
use super::{CliError, environment};
use ccm_core::engine::{EventIds, Level, Line, Mode, Sink};
use ccm_core::hiera::{HieraError, Source};
use ccm_core::manifest::Manifest;
use ccm_core::model::event::TransactionEvent;
use ccm_core::model::governor::GovernorName;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::model::resource::Resource;
use ccm_core::run::environment::Surroundings;
use ccm_core::run::executor::Local;
use ccm_core::run::log::system_line;
use ccm_core::run::{
    DataError, EnvironmentError, Governors, Host, OutsideData, Place, data, local_identity,
};
use ccm_core::system::{Clock as _, SystemClock, files};
use ccm_template::CallError;
use ccm_template::env::Facts;

/// Where the extra data of a run comes from, and what it is to the run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hiera<'a> {
    None,
    /// Data of a single resource; a file that is missing holds none.
    Resource(&'a str),
    /// Data that is laid over a manifest's own.
    Manifest(&'a str),
}

/// How a run is made by hand.
pub(super) struct Setup<'a> {
    pub(super) nats: &'a NatsArgs,
    pub(super) facts: &'a FactArgs,
    pub(super) packages: &'a PackageArgs,
    pub(super) hiera: Hiera<'a>,
    /// Variables for templates are read from `./.env`, too.
    pub(super) read_env: bool,
    /// The collective of governors; nothing if runs need no slots.
    pub(super) governors: Option<Token>,
}

impl Setup<'_> {
    /// Gives a run what it works with.
    pub(super) fn run<T>(
        &self,
        interrupt: &Interrupt,
        run: impl FnOnce(&Host<'_>) -> T,
    ) -> Result<T, CliError> {
        let base = std::env::current_dir().map_err(CliError::failed)?;
        let bus = self.nats.bus();
        let given = self.facts.given()?;
        let env = |place: Place<'_>| {
            let surroundings = Surroundings {
                facts: environment::lazy_facts(given.clone()),
                environ: environment::environ(self.read_env)?,
                bus: Arc::new(bus.clone()),
                registration_stream: self.nats.registration_stream().into(),
            };
            Ok::<_, EnvironmentError>(surroundings.env(place.directory))
        };
        let data = |facts: &Facts| self.data(facts, &bus);
        let gate = |_: &Resource, _: &str, _: Mode| Ok(());
        let ids = RefCell::new(EventIds::new().map_err(CliError::failed)?);
        let next_id = || ids.borrow_mut().next(SystemClock.now());
        Ok(run(&Host {
            identity: &identity(),
            collective: &Token::default_collective(),
            clock: &SystemClock,
            bus: &bus,
            executor: &Local,
            base: &base,
            state_dir: None,
            cfengine_module: self.packages.module(),
            governors: Governors {
                collective: self
                    .governors
                    .clone()
                    .unwrap_or_else(Token::choria_collective),
                default: None,
                ignored: self.governors.is_none(),
                give_up: interrupt.stop(),
                evicted: Arc::new(evicted),
            },
            env: &env,
            data: &data,
            gate: &gate,
            stop: interrupt.stop(),
            cancel: Some(interrupt.cancel()),
            next_id: &next_id,
        }))
    }

    fn data(&self, facts: &Facts, bus: &ccm_nats::Bus) -> Result<OutsideData, DataError> {
        match self.hiera {
            Hiera::None => Ok(OutsideData::default()),
            Hiera::Resource(source) => {
                let source: Source = source.parse()?;
                if is_missing(&source)? {
                    return Ok(OutsideData::default());
                }
                let (external, warnings) = resolved(&source, facts, bus)?;
                Ok(OutsideData {
                    external,
                    warnings,
                    ..OutsideData::default()
                })
            }
            Hiera::Manifest(source) => {
                let (source, warnings) = resolved(&source.parse()?, facts, bus)?;
                Ok(OutsideData {
                    source,
                    warnings,
                    ..OutsideData::default()
                })
            }
        }
    }
}

/// Returns who this host is, for those who see it hold a slot.
fn identity() -> NodeName {
    local_identity().unwrap_or_else(|_| NodeName::localhost())
}

fn evicted(governor: &GovernorName, sequence: u64) {
    let text = "Lost the slot before the run was over; the run goes on";
    let line = Line::new(Level::Warn, text).with("governor", governor);
    complain(&system_line(
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

fn resolved(
    source: &Source,
    facts: &Facts,
    bus: &ccm_nats::Bus,
) -> Result<(ccm_value::Value, Vec<Line>), DataError> {
    let document = data::open(source, bus)?;
    let resolved = data::resolve(&document, facts)?;
    Ok((resolved, data::warnings(&document)))
}

/// Shows a run to a person, who may interrupt it once it has begun.
pub(super) struct Terminal<'a> {
    pub(super) console: &'a mut Console,
    pub(super) interrupt: &'a Interrupt,
    /// Prints what the manifest wants said before it is applied.
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

    fn starting(&mut self, manifest: Option<&Manifest>) {
        if let Some(manifest) = manifest
            && self.pre_message
            && !manifest.pre_message.is_empty()
        {
            self.console.print(&format!("\n{}\n", manifest.pre_message));
        }
        self.interrupt.listen();
    }

    fn received(&mut self, resource: &str, bytes: u64, of: Option<u64>) {
        self.console.received(resource, bytes, of);
    }

    fn diff(&mut self, text: &str) {
        self.console.diff(text);
    }
}
