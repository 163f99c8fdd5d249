//! Agents that register services, and one that follows them.

use std::time::Duration;

use ccm_agent::config::Registration;
use ccm_nats::registration::{Destination, STREAM, StreamOptions};
use futures_util::StreamExt as _;

use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, start};
use crate::support::nats::{NatsServer, tool};
use crate::support::poll::{LIMIT, eventually, wait_for, when};
use crate::support::systemd::{SystemdHost, systemd_host};

/// Returns an exec that registers a service on a port.
fn exec(name: &str, port: &str, more: &str) -> String {
    format!(
        "    - exec:\n        - {name}:\n            command: /bin/true\n            register_when_stable:\n              - {{cluster: prod, service: web, protocol: http, address: 10.0.0.1, port: {port}, priority: 1}}\n{more}"
    )
}

async fn init(server: &NatsServer) {
    let connection = server.client().await;
    let options = StreamOptions::default();
    connection
        .init_registrations(STREAM, options)
        .await
        .unwrap();
}

async fn ports(server: &NatsServer) -> Vec<i64> {
    let connection = server.client().await;
    let found = connection.registrations(STREAM, ["prod", "", "", ""]).await;
    let entries = found.unwrap().entries;
    entries.iter().filter_map(|entry| entry.port()).collect()
}

#[tokio::test]
async fn only_what_is_applied_and_healthy_is_registered() {
    let (env, server) = (TestEnv::new(), NatsServer::start());
    init(&server).await;
    let manifest = [
        "data: {port: 80}\nccm:\n  resources:\n".to_owned(),
        exec("typed", "'{{ Data.port }}'", ""),
        exec(
            "healthy",
            "81",
            "            health_checks: [{command: /bin/true}]\n",
        ),
        exec("failed", "82", "            returns: [7]\n"),
        exec(
            "warned",
            "83",
            "            health_checks: [{command: /bin/sh -c 'exit 1'}]\n",
        ),
        exec("passed-over", "84", "            control: {if: 'false'}\n"),
        exec("unmet", "85", "            require: ['exec#failed']\n"),
        exec("last", "86", ""),
    ];
    let file = env.write("site.yaml", manifest.concat());
    env.write(
        "noop.yaml",
        format!("ccm:\n  resources:\n{}", exec("planned", "87", "")),
    );
    let mut config = agent::config("web1.lab", env.root());
    config.registration = Some(Registration::JetStream);
    config.manifests = vec![file.parse().unwrap()];
    let running = start(&config, &server).await;
    eventually("the last is registered", async || {
        ports(&server).await.contains(&86)
    })
    .await;
    assert_eq!(ports(&server).await, [80, 81, 86]);
    let printed = running.metrics().print();
    assert!(
        printed.contains("agent_registration_published_count 3\n"),
        "{printed}"
    );
    running.stop().await;

    config.noop = true;
    config.manifests = vec![env.at("noop.yaml").parse().unwrap()];
    let running = start(&config, &server).await;
    eventually("the first run", async || running.node().is_ready().ok()).await;
    running.stop().await;
    assert_eq!(ports(&server).await, [80, 81, 86]);
}

#[tokio::test]
async fn an_outage_delays_a_registration_and_fails_no_run() {
    let (env, mut server) = (TestEnv::new(), NatsServer::start());
    init(&server).await;
    server.stop();
    let done = format!(
        "    - exec:\n        - /bin/touch {}: {{}}\n",
        env.at("done")
    );
    let manifest = format!("ccm:\n  resources:\n{}{done}", exec("web", "80", ""));
    let file = env.write("site.yaml", manifest);
    let lines = format!("manifests: [{file}]\nregistration: jetstream\n");
    let agent = AgentProcess::start(&env, "web1.lab", &server.url(), &lines);
    eventually("a run to its end", async || env.exists("done")).await;
    server.resume();
    eventually("the service is registered", async || {
        ports(&server).await == [80]
    })
    .await;
    assert!(!agent.log().contains("ERROR"), "{}", agent.log());
}

#[tokio::test]
async fn health_checks_alone_keep_a_service_registered_with_core_nats() {
    let (env, server) = (TestEnv::new(), NatsServer::start());
    let raw = async_nats::connect(server.url()).await.unwrap();
    let mut messages = raw.subscribe("choria.ccm.registration.v1.>").await.unwrap();
    raw.flush().await.unwrap();
    let check = "            health_checks: [{command: /bin/true}]\n";
    let manifest = format!("ccm:\n  resources:\n{}", exec("web", "80", check));
    let file = env.write("site.yaml", manifest);
    let mut config = agent::config("web1.lab", env.root());
    config.registration = Some(Registration::Nats);
    config.health_check_interval = Some(Duration::from_millis(200));
    config.manifests = vec![file.parse().unwrap()];
    let running = start(&config, &server).await;
    // The first run registers once; all others only check.
    for _ in 0..3 {
        let message = tokio::time::timeout(LIMIT, messages.next()).await;
        let message = message.unwrap().unwrap();
        assert!(message.headers.is_none());
        assert!(message.subject.contains(".prod.http.web.10_0_0_1."));
    }
    running.stop().await;
}

#[tokio::test]
async fn the_first_run_of_an_agent_finds_services() {
    let (env, server) = (TestEnv::new(), NatsServer::start());
    init(&server).await;
    let destination = Destination::Jetstream(STREAM.into());
    let connection = server.client().await;
    let entry = super::entry("10.0.0.1", 80);
    connection.register(&entry, &destination).await.unwrap();
    let target = env.at("backends");
    let lookup = "{{ registrations('prod', 'http', 'web', '*')[0].Address }}";
    let file = env.write(
        "site.yaml",
        format!("ccm:\n  resources:\n    - file:\n        - {target}: {{ensure: present, content: \"{lookup}\", owner: root, group: root, mode: 0644}}\n"),
    );
    let lines = format!("manifests: [{file}]\n");
    let _agent = AgentProcess::start(&env, "lb1.lab", &server.url(), &lines);
    eventually("a file of what was found", async || {
        let found = std::fs::read_to_string(env.path("backends")).unwrap_or_default();
        when(found == "10.0.0.1", found)
    })
    .await;
}

#[tokio::test]
async fn a_manifest_is_applied_again_when_the_services_change_that_it_looked_up() {
    let (env, server) = (TestEnv::new(), NatsServer::start());
    init(&server).await;
    let connection = server.client().await;
    let lookup = "{{ len(registrations('prod', 'http', 'web', '*')) }} of us";
    let target = env.at("backends");
    let file = env.write(
        "site.yaml",
        format!("ccm:\n  resources:\n    - file:\n        - {target}: {{ensure: present, content: \"{lookup}\", owner: root, group: root, mode: 0644}}\n"),
    );
    let mut config = agent::config("lb1.lab", env.root());
    config.registration_watch = true;
    // Nothing but the registry makes it look again.
    config.interval = Duration::from_secs(24 * 3600);
    config.manifests = vec![file.parse().unwrap()];
    let running = start(&config, &server).await;
    let follows = async |count: usize| {
        let expected = format!("{count} of us");
        eventually(&expected, async || {
            let found = std::fs::read_to_string(env.path("backends")).unwrap_or_default();
            when(found == expected, found)
        })
        .await;
    };
    follows(0).await;
    let destination = Destination::Jetstream(STREAM.into());
    for address in ["10.0.0.1", "10.0.0.2"] {
        let entry = super::entry(address, 80);
        connection.register(&entry, &destination).await.unwrap();
    }
    // Both came at once, and are one change.
    follows(2).await;
    let gone = super::entry("10.0.0.1", 80);
    connection.unregister(&gone, STREAM).await.unwrap();
    // One that is only registered anew is none.
    let stays = super::entry("10.0.0.2", 80);
    connection.register(&stays, &destination).await.unwrap();
    follows(1).await;
    // The file is there before its run is counted.
    eventually("three runs", async || {
        let printed = running.metrics().print();
        let runs = printed
            .lines()
            .find(|line| line.contains("agent_apply_duration_seconds_count"))?;
        runs.ends_with(" 3").then_some(())
    })
    .await;
    running.stop().await;
}

/// A host with a server, and agents that systemd runs.
struct Site<'h>(&'h SystemdHost);

impl<'h> Site<'h> {
    fn start(host: &'h SystemdHost) -> Self {
        host.install(&tool("nats-server"), "/usr/local/bin/nats-server");
        host.sh("mkdir -p /etc/lb /root/lb && rm -f /root/broken /root/reloads");
        let site = Self(host);
        let bus = "/usr/local/bin/nats-server -a 127.0.0.1 -js -sd /root/nats";
        site.begin("bus", "exec", bus);
        let init = ["registration", "init"];
        site.eventually("a NATS server", || host.ccm(&init).code == Some(0));
        site
    }

    /// Runs a command as a service of this type, and waits as long as the type says.
    fn begin(&self, unit: &str, kind: &str, command: &str) {
        let unit = format!("--unit=site-{unit} --service-type={kind}");
        self.0.sh(&format!("systemd-run --quiet {unit} {command}"));
    }

    fn agent(&self, name: &str, manifest: &str, lines: &str) {
        let config = format!(
            "identity: {name}.lab\nstate_dir: /root/{name}.state\ncache_dir: /root/{name}.cache\n\
             servers: nats://127.0.0.1:4222\nmanifests: [{manifest}]\n{lines}"
        );
        self.0.write(&format!("/root/{name}-agent.yaml"), &config);
        let command = format!("ccm agent --config /root/{name}-agent.yaml");
        // It says when it is ready; before that a signal would end it.
        self.begin(name, "notify", &command);
    }

    fn eventually(&self, what: &str, mut look: impl FnMut() -> bool) {
        let logs = "journalctl --no-pager -o cat -n 80 -u 'site-*' -u web -u lb";
        wait_for(what, || look().then_some(()).ok_or_else(|| self.0.sh(logs)));
    }

    /// Waits until the balancer has loaded a file that holds these lines. Its agent watches the
    /// registry, so it needs no request.
    fn balancer_follows(&self, backends: &str) {
        let expected = format!("# managed by ccm\n{backends}");
        self.eventually("the balancer follows", || {
            let is_there = self.0.exists("/root/loaded");
            let loaded = is_there.then(|| self.0.read("/root/loaded"));
            loaded.is_some_and(|text| text.trim_end() == expected.trim_end())
        });
    }

    fn registered(&self) -> usize {
        let found = self.0.ccm(&["registration", "query", "--json"]).json();
        found.as_array().unwrap().len()
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        let units = "site-balancer site-webserver site-bus web lb";
        // Some may never have begun.
        let script = format!("systemctl stop {units}; rm -f /root/loaded");
        let _ = self.0.run(&["sh", "-c", &script]);
    }
}

#[test]
fn a_load_balancer_follows_the_services_that_come_and_go() {
    let host = systemd_host();
    let site = Site::start(&host);
    let example = |name: &str| {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/load-balancer");
        std::fs::read_to_string(format!("{directory}/{name}")).unwrap()
    };
    // A real HTTP server, which can be kept from starting.
    host.unit(
        "web.service",
        "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStartPre=/usr/bin/test ! -e /root/broken\nExecStart=/usr/local/bin/nats-server -a 127.0.0.1 -p 4333 -m 8080\n[Install]\nWantedBy=multi-user.target\n",
    );
    host.unit(
        "lb.service",
        "[Service]\nExecStartPre=/bin/cp /etc/lb/backends.conf /root/loaded\nExecStart=/bin/sleep infinity\nExecReload=/bin/cp /etc/lb/backends.conf /root/loaded\nExecReload=/bin/sh -c 'echo reload >>/root/reloads'\n[Install]\nWantedBy=multi-user.target\n",
    );
    host.sh("systemctl daemon-reload");
    let web = example("web.yaml")
        .replace("{{ Facts.network.primaryIP }}", "127.0.0.1")
        .replace("ttl: 1m", "ttl: 3s");
    host.write("/root/web.yaml", &web);
    for name in ["manifest.yaml", "backends.jet"] {
        host.write(&format!("/root/lb/{name}"), &example(name));
    }

    let lines = "registration_watch: true\n";
    site.agent("balancer", "/root/lb/manifest.yaml", lines);
    site.balancer_follows("");
    let lines = "registration: jetstream\nhealth_check_interval: 1s\n";
    site.agent("webserver", "/root/web.yaml", lines);
    site.eventually("the service registers", || site.registered() == 1);
    site.balancer_follows("server 127.0.0.1:8080 weight 246\n");
    let pid = host.property("lb", "MainPID");

    host.sh("touch /root/broken; systemctl stop web");
    site.eventually("the entry expires", || site.registered() == 0);
    site.balancer_follows("");

    host.sh("rm /root/broken");
    site.eventually("the service comes back", || site.registered() == 1);
    site.balancer_follows("server 127.0.0.1:8080 weight 246\n");
    // Each change was a reload of the same process.
    assert_eq!(host.property("lb", "MainPID"), pid);
    assert_eq!(host.read("/root/reloads"), "reload\n".repeat(3));
}
