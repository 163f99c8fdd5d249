//! Choria's agent `rpcutil`: facts, inventory and statistics of the server.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{AGENTS, AuditDetails, ChoriaServer, Incoming};
use crate::choria_rpc::ddl::Ddl;
use crate::choria_rpc::reply::{ActionReply, Failure};
use crate::node::VERSION;
use ccm_core::model::node::Token;
use ccm_template::functions::find_fact;

/// Description of an agent, as in its DDL.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AgentMetadata {
    license: String,
    author: String,
    timeout: u64,
    name: String,
    version: String,
    url: String,
    description: String,
}

/// Returns the descriptions of the agents of the server.
pub(super) fn agents() -> Result<Vec<AgentMetadata>, Failure> {
    let ddl = Ddl::embedded().map_err(Failure::unknown)?.metadata;
    let built_in = |name: &str, description: &str| AgentMetadata {
        license: ddl.license.clone(),
        author: ddl.author.clone(),
        timeout: 2,
        name: name.into(),
        version: VERSION.into(),
        url: ddl.url.clone(),
        description: description.into(),
    };
    let (discovery, rpcutil) = (
        built_in("discovery", "Replies to discovery requests"),
        built_in("rpcutil", "Facts, inventory and statistics of the server"),
    );
    let ccm = AgentMetadata {
        timeout: ddl.timeout,
        ..built_in(&ddl.name, &ddl.description)
    };
    Ok(vec![ccm, discovery, rpcutil])
}

impl ChoriaServer {
    /// Executes an action of `rpcutil`.
    pub(super) fn rpcutil(
        &self,
        incoming: &Incoming,
        data: &Value,
    ) -> Result<ActionReply, Failure> {
        let input = |name: &str| {
            let text = data.get(name).and_then(Value::as_str);
            text.ok_or_else(|| Failure::MissingData(name.into()))
        };
        let output = match incoming.action.as_str() {
            "ping" => Ok(json!({"pong": self.node.services.clock.now().timestamp()})),
            "collective_info" => Ok(json!({
                "main_collective": self.main_collective(),
                "collectives": self.collectives,
            })),
            "get_fact" => input("fact").map(|fact| {
                let facts = self.node.services.facts.current();
                json!({"fact": fact, "value": find_fact(&facts, fact)})
            }),
            "get_facts" => input("facts").map(|names| {
                let facts = self.node.services.facts.current();
                let values: Map<String, Value> = names
                    .split(',')
                    .map(str::trim)
                    .map(|name| (name.to_owned(), json!(find_fact(&facts, name))))
                    .collect();
                json!({"values": values})
            }),
            "inventory" => Ok(self.inventory()),
            "agent_inventory" => agents().map(|agents| {
                let named = agents.iter().map(|agent| {
                    let mut document = json!(agent);
                    if let Some(fields) = document.as_object_mut() {
                        fields.insert("agent".into(), agent.name.clone().into());
                    }
                    document
                });
                json!({"agents": named.collect::<Vec<_>>()})
            }),
            "daemon_stats" => Ok(self.daemon_stats()),
            action => Err(Failure::UnknownAction(format!(
                "Unknown action {action} for agent rpcutil"
            ))),
        };
        match output {
            Ok(output) => {
                self.allow(incoming, &AuditDetails::default());
                ActionReply::new(&output)
            }
            Err(failure) => {
                let reason = "unknown action or missing input";
                Err(self.deny(incoming, &AuditDetails::default(), reason, failure))
            }
        }
    }

    pub(super) fn main_collective(&self) -> Option<&Token> {
        self.collectives.first()
    }

    fn inventory(&self) -> Value {
        json!({
            "agents": AGENTS,
            "classes": self.node.identity.groups,
            "collectives": self.collectives,
            "data_plugins": [],
            "facts": self.node.services.facts.current().all(),
            "machines": [],
            "main_collective": self.main_collective(),
            "version": VERSION,
            "upgradable": false,
        })
    }

    fn daemon_stats(&self) -> Value {
        let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stats = &self.stats;
        json!({
            "agents": AGENTS,
            "configfile": "",
            "filtered": number(&stats.filtered),
            "pid": std::process::id(),
            "passed": number(&stats.passed),
            "threads": [],
            "replies": number(&stats.replies),
            "starttime": self.node.identity.started.timestamp(),
            "ttlexpired": number(&stats.expired),
            "events": 0,
            "times": {"cstime": 0, "cutime": 0, "stime": 0, "utime": 0},
            "total": number(&stats.total),
            "unvalidated": number(&stats.invalid),
            "validated": number(&stats.valid),
            "version": VERSION,
        })
    }
}
