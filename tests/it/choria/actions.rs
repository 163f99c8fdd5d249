//! Activation, and the reply of each action.

use serde_json::json;

use super::{Server, file};

#[test]
fn the_agent_activates_unless_its_file_says_no() {
    let server = Server::new();
    assert_eq!(server.activate(), (json!({"activate": true}), "".into()));
    server.configure("activate = false\n");
    assert_eq!(server.activate(), (json!({"activate": false}), "".into()));
    std::fs::remove_file(server.env.path("plugin.d/ccm")).unwrap();
    assert_eq!(server.activate().0, json!({"activate": true}));
}

#[test]
fn an_agent_with_an_invalid_file_activates_and_refuses_until_it_is_repaired() {
    let server = Server::new();
    server.configure("activte = true\n");
    let (reply, log) = server.activate();
    assert_eq!(reply, json!({"activate": true}));
    let expected = "plugin.d/ccm line 2: unknown key \"activte\", did you mean \"activate\"?\n";
    assert!(log.ends_with(expected), "{log}");
    let message = server.call("ping", json!({})).refused(1);
    assert!(message.ends_with(expected.trim_end()), "{message}");
    server.configure("activate = true\n");
    let _ = server.call("ping", json!({})).ok();
}

#[test]
fn an_agent_that_is_deactivated_later_refuses_requests() {
    let server = Server::new();
    server.configure("activate = false\n");
    let message = server.call("ping", json!({})).refused(1);
    assert_eq!(message, "the agent is not active on this node");
}

#[test]
fn ensure_changes_a_resource_once() {
    let server = Server::new();
    let path = server.env.at("motd");
    let first = server.call("ensure", file(&path, "hi\n")).ok();
    assert_eq!(server.env.read("motd"), "hi\n");
    assert_eq!(
        (&first["state"], &first["changed"], &first["failed"]),
        (&json!("finished"), &json!(true), &json!(false))
    );
    assert_eq!(first["ensure"], "present");
    assert_eq!(
        first["event"]["protocol"],
        "io.choria.ccm.v1.transaction.event"
    );
    let second = server.call("ensure", file(&path, "hi\n")).ok();
    assert_eq!(second["changed"], false);
    let status = server.call("run_status", json!({"run_id": first["run_id"]}));
    assert_eq!(status.ok()["source"], format!("file#{path}"));
}

#[test]
fn ensure_takes_a_whole_request_too() {
    let server = Server::new();
    let path = server.env.at("motd");
    let request = json!({"protocol": "io.choria.ccm.v1.resource.ensure.request", "type": "file",
        "properties": {"name": path, "ensure": "present", "content": "whole",
                       "owner": "root", "group": "root", "mode": "0600"}});
    let reply = server.call("ensure", json!({"request": request})).ok();
    assert_eq!(reply["changed"], true);
    assert_eq!(server.env.read("motd"), "whole");
}

#[test]
fn ensure_in_noop_says_what_it_would_do() {
    let server = Server::new();
    let mut data = file(&server.env.at("motd"), "hi");
    data["noop"] = json!(true);
    let reply = server.call("ensure", data).ok();
    assert_eq!(
        (&reply["noop"], &reply["changed"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(reply["message"], "Would have created the file");
    assert!(!server.env.exists("motd"));
}

#[test]
fn a_node_that_is_noop_only_changes_nothing() {
    let server = Server::new();
    server.configure("noop = true\n");
    let reply = server
        .call("ensure", file(&server.env.at("motd"), "hi"))
        .ok();
    assert_eq!(reply["noop"], true);
    let manifest = "ccm: {resources: [{exec: {name: /usr/bin/false}}]}";
    let reply = server.call("apply", json!({"manifest": manifest, "wait": 50}));
    assert_eq!(reply.ok()["outcome"], "noop");
    assert!(!server.env.exists("motd"));
}

#[test]
fn a_paused_node_only_looks() {
    let server = Server::new();
    let pause = r#"{"reason":"moving house","since":"2026-01-01T00:00:00Z"}"#;
    server.env.write("state/pause.json", pause);
    let mut data = file(&server.env.at("motd"), "hi");
    let message = server.call("ensure", data.clone()).refused(1);
    assert_eq!(message, "the node is paused: moving house");
    data["noop"] = json!(true);
    assert_eq!(server.call("ensure", data).ok()["changed"], true);
}

#[test]
fn status_returns_the_state_of_a_resource() {
    let server = Server::new();
    let path = server.env.write("motd", "hello");
    let reply = server
        .call("status", json!({"type": "file", "name": path}))
        .ok();
    assert_eq!(reply["ensure"], "present");
    assert_eq!(
        reply["state"]["protocol"],
        "io.choria.ccm.v1.resource.file.state"
    );
    assert_eq!(reply["state"]["metadata"]["size"], 5);
    let gone = json!({"type": "file", "name": server.env.at("gone")});
    assert_eq!(server.call("status", gone).ok()["ensure"], "absent");
}

#[test]
fn status_of_a_scaffold_compares_it_with_its_source() {
    let server = Server::new();
    server.env.write("templates/a", "x");
    let data = json!({"type": "scaffold", "name": server.env.at("out"), "provider": "choria",
                      "properties": {"source": server.env.at("templates"), "engine": "jet"}});
    let reply = server.call("status", data).ok();
    assert_eq!(reply["state"]["metadata"]["engine"], "jet", "{reply:#}");
}

#[test]
fn facts_are_ours_whole_or_by_path() {
    let mut server = Server::new();
    server.facts = json!({"role": "web"});
    let all = server.call("facts", json!({})).ok();
    assert!(all["facts"]["host"]["info"].is_object(), "{all:#}");
    assert!(all["facts"].get("role").is_none());
    // Clients summarize this output, and so would print everything a second time.
    assert!(all.get("value").is_none());
    let one = server.call("facts", json!({"query": "host.info.os"})).ok();
    assert_eq!(one, json!({"value": "linux"}));
    let message = server.call("facts", json!({"query": "nope.x"})).refused(1);
    assert_eq!(message, "no fact matches the query");
}

#[test]
fn ping_returns_the_identity_and_the_current_run() {
    let server = Server::new();
    let idle = server.call("ping", json!({})).ok();
    assert_eq!(idle["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        (&idle["state"], &idle["current_run"]),
        (&json!("none"), &json!(""))
    );
    let (run_id, _) = server.begin();
    let busy = server.call("ping", json!({})).ok();
    assert_eq!(busy["current_run"], run_id);
    assert_eq!(busy["state"], "running");
    server.go();
    server.wait_for(&run_id);
    let over = server.call("ping", json!({})).ok();
    assert_eq!(
        (&over["last_run"], &over["current_run"]),
        (&run_id, &json!(""))
    );
    assert_eq!(over["summary"]["total_resources"], 1);
}

#[test]
fn ping_returns_the_identity_of_the_server() {
    let server = Server::new();
    let identity = || server.call("ping", json!({})).ok()["identity"].clone();
    server.env.write(
        "server.conf",
        "loglevel = info\nidentity = Web1.Example.NET\n",
    );
    assert_eq!(identity(), "web1.example.net");
    server.configure("identity = web2.example.net\n");
    assert_eq!(identity(), "web2.example.net");
    server.configure("");
    server.env.write("server.conf", "identity = web_1\n");
    let message = server.call("ping", json!({})).refused(1);
    assert!(
        message.ends_with("or set identity in plugin.d/ccm"),
        "{message}"
    );
}

#[test]
fn ping_reports_a_pause() {
    let server = Server::new();
    let idle = server.call("ping", json!({})).ok();
    assert_eq!(idle["paused"], false);
    let pause = r#"{"reason":"moving house","since":"2026-01-01T00:00:00Z"}"#;
    server.env.write("state/pause.json", pause);
    let paused = server.call("ping", json!({})).ok();
    assert_eq!(
        (&paused["paused"], &paused["pause_reason"]),
        (&json!(true), &json!("moving house"))
    );
}
