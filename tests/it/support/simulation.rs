//! Simulated nodes: `ccm fleet simulate` before a server of the test. Gone when dropped.

use std::process::Child;

use super::TestEnv;
use super::nats::NatsServer;

/// Nodes that answer, report and converge like real ones, and change nothing.
pub struct Simulation {
    child: Child,
    _env: TestEnv,
}

impl Simulation {
    /// Starts simulated nodes with further flags and waits until all are present.
    pub fn start(nats: &NatsServer, nodes: usize, flags: &[&str]) -> Self {
        let mut env = TestEnv::new();
        env.set("NATS_URL", &nats.url());
        let nodes = nodes.to_string();
        let mut args = vec!["fleet", "simulate", "--beat", "1s", "--nodes", &nodes];
        args.extend(flags);
        let (child, line) = env.start(&args);
        assert!(line.contains("simulated nodes are running"), "{line:?}");
        Self { child, _env: env }
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
