//! The actions: inputs that the DDL let through become what the engine understands, and what it
//! found out becomes outputs.
//!
//! Looking happens here and now. Changing happens in a process of its own, see `run`: a single
//! resource may be a package that takes minutes to install, and the server kills whoever is late.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::audit::{self, About};
use super::config::{Config, bus};
use super::ddl::{self, Action};
use super::external_protocol::Request;
use super::outputs::{
    FactsOutput, NO_RUN, PingOutput, StatusOutput, ensured, failure_of, no_run, summary, told,
};
use super::reply::{Answer, Failure};
use super::run::{Order, Task, busy, facts_of, surroundings};
use super::run_store::{Record, RunStore, State};
use ccm_core::engine::{EventIds, asked_about};
use ccm_core::model::node::NodeName;
use ccm_core::model::request::{ENSURE_REQUEST, STATUS_REQUEST, parse_ensure, parse_status};
use ccm_core::model::run::RunId;
use ccm_core::run::manifest_source::ManifestSource;
use ccm_core::run::pause::PauseStore;
use ccm_core::run::{self, RunLock};
use ccm_core::system::{Clock, files};
use ccm_template::path;
use ccm_value::json;

/// The most seconds that an action waits for the end of its run: well below the DDL's timeout,
/// because starting us and sending the reply take time too.
const MOST_WAIT: u64 = 10;

/// How long to wait between two looks at a run: at first hardly, later longer.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// The longest file of Choria's facts.
const MAX_FACTS: u64 = 16 * 1024 * 1024;

/// A request, and all that is needed to answer it.
pub(super) struct Asked<'a> {
    pub request: &'a Request,
    pub config: &'a Config,
    pub identity: &'a NodeName,
    /// Choria's facts of the node.
    pub facts: Option<&'a Path>,
    /// Ourselves.
    pub program: &'a Path,
    /// The search path that Choria's server gave us.
    pub path: Option<&'a str>,
    pub clock: Arc<dyn Clock>,
}

impl Asked<'_> {
    /// Returns the answer.
    pub(super) fn answer(&self) -> Result<Answer, Failure> {
        let store = RunStore::open(&self.config.run_dir()).map_err(Failure::unknown)?;
        let action = match Action::named(&self.request.action) {
            Ok(action) => action,
            Err(unknown) => {
                let reason = unknown.to_string();
                self.audit(&About::default(), Some(&reason))?;
                return Err(Failure::UnknownAction(reason));
            }
        };
        if !self.config.actions.contains(&action) {
            let reason = format!("{} is not among this node's actions", action.as_str());
            self.audit(&About::default(), Some(&reason))?;
            return Err(Failure::Aborted(reason));
        }
        let data = self.request.inputs()?;
        ddl::check(action, &data)?;
        match action {
            Action::Apply => self.apply(&data, &store),
            Action::Ensure => self.ensure(&data, &store),
            Action::Facts => self.facts(&data),
            Action::Ping => self.ping(&store),
            Action::RunStatus => self.run_status(&data, &store),
            Action::Status => self.status(data),
        }
    }

    fn audit(&self, about: &About, denied: Option<&str>) -> Result<(), Failure> {
        let directory = self.config.run_dir();
        let clock = &*self.clock;
        audit::record(
            &directory,
            self.identity,
            self.request,
            about,
            denied,
            clock,
        )
    }

    fn apply(&self, data: &Map<String, Value>, store: &RunStore) -> Result<Answer, Failure> {
        let what = match (text(data, "source"), text(data, "manifest")) {
            (Some(source), None) => ManifestSource::Source(source.into()),
            (None, Some(manifest)) => ManifestSource::Text(manifest.into()),
            (None, None) => return Err(Failure::MissingData("source or manifest".into())),
            (Some(_), Some(_)) => {
                return Err(Failure::invalid("source and manifest exclude each other"));
            }
        };
        let health_check_only = flag(data, "health_check_only");
        if flag(data, "noop") && health_check_only {
            return Err(Failure::invalid(
                "noop and health_check_only exclude each other",
            ));
        }
        let wait = wait_of(data, 0)?;
        let order = Order {
            noop: (flag(data, "noop") || self.config.noop) && !health_check_only,
            health_check_only,
            data: plain(data.get("data"))?,
            ..self.order(Task::Apply(what))?
        };
        let (record, state) = self.start(&order, store, wait)?;
        let failure = failure_of(&record, state);
        Ok(Answer::new(&told(&record, state)?)?.failing(failure))
    }

    fn ensure(&self, data: &Map<String, Value>, store: &RunStore) -> Result<Answer, Failure> {
        let wait = wait_of(data, MOST_WAIT)?;
        let request = ensure_request(data)?;
        let resource = parse_ensure(&request).map_err(Failure::invalid)?;
        let order = Order {
            noop: flag(data, "noop") || self.config.noop,
            ..self.order(Task::Ensure {
                request,
                label: resource.label(),
            })?
        };
        let (record, state) = self.start(&order, store, wait)?;
        let failure = failure_of(&record, state);
        Ok(Answer::new(&ensured(&record, state))?.failing(failure))
    }

    /// Returns an order that changes what it may and has no data.
    fn order(&self, task: Task) -> Result<Order, Failure> {
        Ok(Order {
            state_dir: self.config.state_dir.clone(),
            run_dir: self.config.run_dir(),
            identity: self.identity.clone(),
            run_id: EventIds::new()
                .map_err(Failure::aborted)?
                .next(self.clock.now()),
            task,
            noop: false,
            health_check_only: false,
            data: ccm_value::Value::Null,
            facts: self.choria_facts()?,
            nats_server: self.config.nats_server.clone(),
            nats_context: self.config.nats_context.clone(),
            cfengine_module: self.config.cfengine_module.clone(),
            choria_collective: self.config.choria_collective.clone(),
            caller: self.request.callerid.clone(),
            request_id: self.request.requestid.clone(),
        })
    }

    /// Starts a run and returns what is known of it when it is over or the wait is.
    fn start(
        &self,
        order: &Order,
        store: &RunStore,
        wait: Duration,
    ) -> Result<(Record, State), Failure> {
        let about = About {
            label: order.task.shown(),
            noop: order.noop,
            run_id: Some(order.run_id.clone()),
        };
        let is_harmless = order.noop || order.health_check_only;
        if let Some(reason) = self.paused().filter(|_| !is_harmless) {
            let reason = format!("the node is paused: {reason}");
            self.audit(&about, Some(&reason))?;
            return Err(Failure::Aborted(reason));
        }
        self.audit(&about, None)?;
        // A run of ours would be met by the new process, too, a second later. One of the daemon
        // may be over by then.
        if let Some(id) = store.current().map_err(Failure::unknown)? {
            return Err(busy(Some(&id), ""));
        }
        order.start(self.program, self.path)?;
        self.watch(&order.run_id, store, wait)
    }

    fn watch(
        &self,
        id: &RunId,
        store: &RunStore,
        wait: Duration,
    ) -> Result<(Record, State), Failure> {
        let start = self.clock.monotonic();
        let mut pause = FIRST_PAUSE;
        loop {
            let found = store.find(id).map_err(Failure::unknown)?;
            let (record, state) =
                found.ok_or_else(|| Failure::unknown(format!("run {id} left no record")))?;
            let left = wait.saturating_sub(self.clock.monotonic().saturating_sub(start));
            if state != State::Running || left.is_zero() {
                return Ok((record, state));
            }
            self.clock.sleep(pause.min(left));
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Returns why the node's daemon was told to leave the node alone, if it was.
    fn paused(&self) -> Option<String> {
        let file = self.config.state_dir.join("pause.json");
        match PauseStore::open(&file, self.clock.clone()) {
            // A pause that can't be read may be one.
            (_, Some(trouble)) => Some(trouble.to_string()),
            (store, None) => store.current().map(|pause| pause.reason),
        }
    }

    fn run_status(&self, data: &Map<String, Value>, store: &RunStore) -> Result<Answer, Failure> {
        let id = text(data, "run_id").map(str::parse::<RunId>).transpose();
        let id = id.map_err(Failure::invalid)?;
        self.audit(
            &About {
                noop: true,
                run_id: id.clone(),
                ..About::default()
            },
            None,
        )?;
        let found = match &id {
            Some(id) => store.find(id),
            None => store.latest(),
        };
        match (found.map_err(Failure::unknown)?, id) {
            (Some((record, state)), _) => Answer::new(&told(&record, state)?),
            (None, Some(id)) => Err(Failure::invalid(format!("run {id} is not known"))),
            (None, None) => Answer::new(&no_run()),
        }
    }

    fn status(&self, mut data: Map<String, Value>) -> Result<Answer, Failure> {
        let mut properties = hash(&mut data, "properties");
        for key in ["name", "provider"] {
            if let Some(value) = data.get(key) {
                put_once(&mut properties, key, value)?;
            }
        }
        data.shift_remove("provider");
        data.insert("protocol".into(), STATUS_REQUEST.into());
        data.insert("properties".into(), properties.into());
        let request = json::compact(&data).map_err(Failure::unknown)?;
        let request = parse_status(&request).map_err(Failure::invalid)?;
        self.audit(
            &About {
                label: format!("{}#{}", request.type_name, request.name),
                noop: true,
                run_id: None,
            },
            None,
        )?;
        let resource = asked_about(&request).map_err(Failure::invalid)?;
        let bus = bus(
            self.config.nats_server.clone(),
            self.config.nats_context.clone(),
        );
        let env = surroundings(&self.choria_facts()?, &bus, self.clock.clone());
        let module = self.config.cfengine_module.as_deref();
        let state = run::inspect(&resource, env.env(Path::new("/")), module, &*self.clock)
            .map_err(Failure::aborted)?;
        Answer::new(&StatusOutput {
            ensure: state.common.ensure.clone(),
            state: serde_json::to_value(&state).map_err(Failure::unknown)?,
        })
    }

    /// Tells our own facts; Choria's are no news to who asks Choria.
    fn facts(&self, data: &Map<String, Value>) -> Result<Answer, Failure> {
        let query = text(data, "query");
        self.audit(
            &About {
                label: query.unwrap_or_default().into(),
                noop: true,
                run_id: None,
            },
            None,
        )?;
        let facts = facts_of(&ccm_value::Value::Null, self.clock.clone());
        let found = match query {
            None => Some(facts.all()),
            Some(query) => {
                // A plain path gathers only the section that it begins with.
                let first = query.split(['.', '|']).next().unwrap_or_default();
                let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                let root = if !first.is_empty() && first.chars().all(is_plain) {
                    facts
                        .section(first)
                        .map(|section| [(first, section)].into_iter().collect())
                } else {
                    Some(facts.all())
                };
                root.and_then(|root: ccm_value::Value| path::find(&root, query))
            }
        };
        let value = found.ok_or_else(|| Failure::aborted("no fact matches the query"))?;
        Answer::new(&FactsOutput {
            value: serde_json::to_value(&value).map_err(Failure::unknown)?,
        })
    }

    fn ping(&self, store: &RunStore) -> Result<Answer, Failure> {
        self.audit(
            &About {
                noop: true,
                ..About::default()
            },
            None,
        )?;
        let run_lock = RunLock::of(&self.config.state_dir);
        let current = run_lock.current().map_err(Failure::unknown)?;
        let (last_run, state) = match store.latest().map_err(Failure::unknown)? {
            Some((record, state)) => (record.run_id.to_string(), state.as_str()),
            None => (String::new(), NO_RUN),
        };
        let over = store.latest_over().map_err(Failure::unknown)?;
        let result = over.and_then(|(record, _)| record.result);
        Answer::new(&PingOutput {
            identity: self.identity.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            current_run: current.map(|id| id.to_string()).unwrap_or_default(),
            last_run,
            state: state.into(),
            summary: summary(result.as_ref())?,
        })
    }

    /// Reads the facts that Choria's server has of the node; an empty file holds none.
    fn choria_facts(&self) -> Result<ccm_value::Value, Failure> {
        let Some(file) = self.facts else {
            return Ok(ccm_value::Value::Null);
        };
        let text = files::read_to_string(file, MAX_FACTS)
            .map_err(|error| Failure::aborted(format!("could not read Choria's facts: {error}")))?;
        if text.trim().is_empty() {
            return Ok(ccm_value::Value::Null);
        }
        serde_json::from_str(&text)
            .map_err(|error| Failure::aborted(format!("could not read Choria's facts: {error}")))
    }
}

/// Returns the text of the ensure request that the inputs amount to.
fn ensure_request(data: &Map<String, Value>) -> Result<String, Failure> {
    let parts = ["type", "name", "ensure", "provider", "properties"];
    if let Some(request) = data.get("request") {
        if let Some(other) = parts.iter().find(|name| data.contains_key(**name)) {
            let text = format!("request and {other} exclude each other");
            return Err(Failure::InvalidData(text));
        }
        return json::compact(request).map_err(Failure::unknown);
    }
    for name in ["type", "name"] {
        if !data.contains_key(name) {
            return Err(Failure::MissingData(name.into()));
        }
    }
    let mut properties = hash(&mut data.clone(), "properties");
    for name in ["name", "ensure", "provider"] {
        if let Some(value) = data.get(name) {
            put_once(&mut properties, name, value)?;
        }
    }
    let request = serde_json::json!({
        "protocol": ENSURE_REQUEST,
        "type": data.get("type"),
        "properties": properties,
    });
    json::compact(&request).map_err(Failure::unknown)
}

/// Adds a property that has an input of its own.
fn put_once(properties: &mut Map<String, Value>, name: &str, value: &Value) -> Result<(), Failure> {
    match properties.insert(name.into(), value.clone()) {
        None => Ok(()),
        Some(_) => {
            let text = format!("{name} is given twice, as an input and in properties");
            Err(Failure::InvalidData(text))
        }
    }
}

/// Returns how long to wait.
fn wait_of(data: &Map<String, Value>, default: u64) -> Result<Duration, Failure> {
    let seconds = match data.get("wait") {
        None => Some(default),
        Some(value) => value.as_u64().filter(|seconds| *seconds <= MOST_WAIT),
    };
    let wrong = || Failure::invalid(format!("wait must be from 0 to {MOST_WAIT} seconds"));
    Ok(Duration::from_secs(seconds.ok_or_else(wrong)?))
}

fn text<'d>(data: &'d Map<String, Value>, name: &str) -> Option<&'d str> {
    data.get(name).and_then(Value::as_str)
}

fn flag(data: &Map<String, Value>, name: &str) -> bool {
    data.get(name).and_then(Value::as_bool).unwrap_or_default()
}

/// Takes a map out of the inputs; one that is not given is empty.
fn hash(data: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match data.shift_remove(name) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

/// Returns an input as the data that templates share.
fn plain(value: Option<&Value>) -> Result<ccm_value::Value, Failure> {
    match value {
        Some(value) => serde_json::from_value(value.clone()).map_err(Failure::unknown),
        None => Ok(ccm_value::Value::Null),
    }
}
