//! A NATS server with a generated configuration and an approver, outside of the booted hosts and in
//! their network.

use serde_json::Value;

use super::INSTALLED;
use crate::enroll::Fleet;
use crate::support::poll::{wait_for, when};
use crate::support::systemd::SystemdHost;

/// The outside of the hosts: a trust directory, its server, an approver and an operator.
pub(super) struct Lab(pub(super) Fleet);

impl Lab {
    /// Starts server and approver in the network of a host, where every port is free.
    pub(super) fn start(host: &SystemdHost) -> Self {
        Self(Fleet::in_network(host.network()))
    }

    /// Enrolls a host with a new token, as its administrator would, and starts its agent.
    pub(super) fn enroll(&self, host: &SystemdHost, node: &str) {
        let token = self.0.token(&[]);
        host.write("/root/enroll.token", &token);
        host.sh("chmod 0600 /root/enroll.token");
        let enrolled = host.sh(&format!(
            "{INSTALLED} agent enroll --name {node} --token-file /root/enroll.token"
        ));
        assert!(
            enrolled.starts_with(&format!("enrolled {node}")),
            "{enrolled}"
        );
        assert!(
            enrolled.ends_with("systemctl enable --now ccm-agent\n"),
            "{enrolled}"
        );
        host.sh("systemctl enable --now ccm-agent");
        wait_for("a node that is present", || {
            let nodes = self.0.operator(&["nodes", "--json"]).json();
            let is_it = |row: &&Value| row["identity"] == node && row["state"] != "offline";
            let found = nodes["nodes"].as_array().unwrap().iter().find(is_it);
            when(found.is_some(), nodes.to_string())
        });
    }

    /// Returns the events of a node with an outcome, oldest first.
    pub(super) fn events(&self, node: &str, outcome: &str) -> Vec<Value> {
        let flags = ["--node", node, "--outcome", outcome, "--since", "1h"];
        let args = [&["events", "--jsonl"][..], &flags].concat();
        let printed = self.0.operator(&args).ok();
        let lines = printed.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}
