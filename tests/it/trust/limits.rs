//! What a hostile user of the node, or a hostile body, meets: names that lead to a shared file, and
//! documents that are larger than they look.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use ccm_nats::Verb;
use serde_json::json;

use crate::support::TestEnv;
use crate::support::agent::{AgentProcess, request_json};
use crate::support::namespace::{ADDRESS, inside};
use crate::support::nats::NatsServer;
use crate::support::poll::eventually;
use crate::support::setup::Setup;

const NODE: &str = "web1.example.net";

/// How much an agent may grow by a hostile body. It was 114 MB without a bound.
const MOST_GROWTH: u64 = 40 << 20;

/// Returns owner, group and mode of a file.
fn attributes(path: &Path) -> (u32, u32, u32) {
    let found = path.metadata().unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

fn make_directory(env: &TestEnv, name: &str, owner: u32, mode: u32) {
    let path = env.path(name);
    std::fs::create_dir(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_second_name_of_a_file_in_a_directory_that_others_write_gives_nothing_away() {
    let env = TestEnv::new();
    env.write_secret("shadow", "root:secret\n");
    let secret = env.path("shadow");
    let before = attributes(&secret);
    make_directory(&env, "sticky", 0, 0o1777);
    make_directory(&env, "open", 0, 0o777);
    make_directory(&env, "grouped", 0, 0o775);
    make_directory(&env, "theirs", 1234, 0o755);
    for directory in ["sticky", "open", "grouped", "theirs"] {
        let name = format!("{directory}/app.log");
        std::fs::hard_link(&secret, env.path(&name)).unwrap();
        for (owner, mode) in [("65534", "0600"), ("root", "0666")] {
            // Another owner, or another mode; the content stays as it is.
            let resource = format!(
                "- file:\n    name: {}\n    ensure: present\n    owner: '{owner}'\n    \
                 group: '{owner}'\n    mode: '{mode}'\n",
                env.at(&name)
            )
            .replace("group: 'root'", "group: root");
            let applied = env.apply(&resource, &[]);
            let event = applied.event(0);
            assert_eq!(event["failed"], true, "{name} {owner} {mode}: {event:#}");
            let error = event["error"][0].as_str().unwrap();
            assert!(error.contains("has other names"), "{error}");
            assert_eq!(attributes(&secret), before, "{name} {owner} {mode}");
        }
    }
    // A file of one name is managed there as ever, and so are all in directories of root's own.
    env.write("sticky/plain.log", "x");
    make_directory(&env, "closed", 0, 0o755);
    env.write("closed/one", "x");
    std::fs::hard_link(env.path("closed/one"), env.path("closed/two")).unwrap();
    for name in ["sticky/plain.log", "closed/two"] {
        let resource = format!(
            "- file:\n    name: {}\n    ensure: present\n    owner: root\n    group: root\n    \
             mode: '0640'\n",
            env.at(name)
        );
        let applied = env.apply(&resource, &[]);
        assert_eq!(
            applied.outcomes(),
            ["changed"],
            "{name}: {:#}",
            applied.document
        );
        assert_eq!(attributes(&env.path(name)), (0, 0, 0o640));
    }
}

/// Returns a few hundred bytes whose aliases stand for more than a million values.
fn bomb(first: &str, last: &str) -> String {
    let mut text = format!("{first}a: &a [x, x, x, x, x, x, x, x, x, x]\n");
    for (name, of) in [("b", "a"), ("c", "b"), ("d", "c"), ("e", "d")] {
        let aliases = format!("*{of}, ").repeat(10);
        text.push_str(&format!("{name}: &{name} [{aliases}]\n"));
    }
    text.push_str(&format!("f: [{}]\n{last}", "*e, ".repeat(5)));
    assert!(text.len() < 600, "{}", text.len());
    text
}

/// Returns the most memory that a process ever had.
fn peak_of(agent: &AgentProcess) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", agent.id())).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes: u64 = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap()
        .parse()
        .unwrap();
    kilobytes * 1024
}

#[tokio::test]
async fn a_small_body_of_nested_aliases_takes_no_memory() {
    let setup = Setup::process(NODE, "").await;
    let before = peak_of(&setup.agent);
    for (verb, name) in [
        (Verb::Ensure, "resource.ensure"),
        (Verb::Status, "resource.status"),
        (Verb::Apply, "manifest.apply"),
    ] {
        let head = format!("protocol: io.choria.ccm.v1.{name}.request\ntype: file\nname: /x\n");
        let body = bomb(&head, "properties: {name: /x, ensure: present}\n");
        let answer = request_json(&setup.client, NODE, verb, &body).await;
        assert!(answer["error"].is_string(), "{verb}: {answer:#}");
    }
    // The same, inside of a manifest.
    let manifest = bomb("data:\n  x: y\n", "ccm: {resources: []}\n");
    let request = json!({"protocol": "io.choria.ccm.v1.manifest.apply.request",
        "manifest": manifest, "wait": true});
    let answer = request_json(&setup.client, NODE, Verb::Apply, &request.to_string()).await;
    let grown = peak_of(&setup.agent) - before;
    assert!(grown < MOST_GROWTH, "grew by {} MB", grown >> 20);
    assert!(answer.to_string().contains("aliases"), "{answer:#}");
    // Aliases as people use them still work.
    let file = setup.env.at("motd");
    let honest = format!(
        "protocol: io.choria.ccm.v1.resource.ensure.request\ntype: file\nproperties:\n  \
         name: {file}\n  ensure: present\n  content: &owner root\n  owner: *owner\n  \
         group: *owner\n  mode: '0600'\n"
    );
    let answer = request_json(&setup.client, NODE, Verb::Ensure, &honest).await;
    assert_eq!(answer["state"]["changed"], true, "{answer:#}");
    assert_eq!(setup.env.read("motd"), "root");
}

#[test]
fn a_monitor_port_without_an_address_is_for_this_machine_alone() {
    let name = "trust::limits::a_monitor_port_without_an_address_is_for_this_machine_alone";
    inside(name, async || {
        let server = NatsServer::start();
        let env = TestEnv::new();
        let connect = |host: &str, port| std::net::TcpStream::connect((host, port));
        let lines = "monitor_port: 9101\n";
        let _running = AgentProcess::start(&env, NODE, &server.url(), lines);
        eventually("the port", async || connect("127.0.0.1", 9101)).await;
        // All of 127.0.0.0/8 is this machine, but only a listener on all addresses accepts it there.
        for elsewhere in ["127.0.0.2", ADDRESS] {
            let connected = connect(elsewhere, 9101);
            assert!(connected.is_err(), "it listens on {elsewhere}");
        }
        // Who wants more says so.
        let lines = "monitor_port: 9102\nmonitor_address: 0.0.0.0\n";
        let _open = AgentProcess::start(&env, "web2.example.net", &server.url(), lines);
        eventually("the open port", async || connect(ADDRESS, 9102)).await;
    });
}
