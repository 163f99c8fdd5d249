//! Samples of what an agent publishes for Choria's tools and for service registration.

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::samples::parse_bytes;
use crate::support::fleet::Fleet;
use crate::support::poll::LIMIT;

/// A service with a health check that registers itself.
const MANIFEST: &str = "ccm:
  resources:
    - exec:
        - web:
            command: /bin/true
            health_checks:
              - {name: load, command: '/bin/echo OK fine | load1=0.5s;1;2', timeout: 5s}
            register_when_stable:
              - {cluster: prod, service: web, protocol: http, address: 10.0.0.1, port: 80, priority: 1}
";

/// Names of the samples, and how their subjects start.
const SUBJECTS: [(&str, &str); 4] = [
    ("choria-lifecycle", "choria.lifecycle.event.startup."),
    (
        "choria-manifest",
        "choria.machine.watcher.ccm_manifest.state",
    ),
    ("choria-check", "choria.machine.watcher.nagios.state"),
    ("registration", "choria.ccm.registration.v1."),
];

/// Returns the samples by name.
pub(super) fn records() -> Value {
    let mut fleet = Fleet::start(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = async_nats::connect(fleet.server.url()).await.unwrap();
        let mut messages = client.subscribe("choria.>").await.unwrap();
        client.flush().await.unwrap();
        let manifest = fleet.env.write("site.yaml", MANIFEST);
        let lines =
            format!("manifests: [{manifest}]\nchoria: {{events: true}}\nregistration: nats\n");
        fleet.add("web1", &["web"], &lines);
        let mut records = json!({});
        let mut missing = SUBJECTS.to_vec();
        while !missing.is_empty() {
            let message = tokio::time::timeout(LIMIT, messages.next()).await;
            let message = message.unwrap_or_else(|_| panic!("{missing:?}: {}", fleet.log("web1")));
            let message = message.unwrap();
            let is_it = |(_, start): &(&str, &str)| message.subject.starts_with(start);
            if let Some(at) = missing.iter().position(is_it) {
                let (name, _) = missing.remove(at);
                records[name] = parse_bytes(&message.payload);
            }
        }
        records
    })
}
