//! Files of the external agent: the audit log, file modes, an installed agent, its DDL.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{STABLE, Server, file};

#[test]
fn every_request_is_audited_and_no_secret_is_kept() {
    let server = Server::new();
    server.configure("actions = apply, ensure, ping\n");
    let mut data = file(&server.env.at("motd"), "hunter2");
    data["properties"]["sensitive"] = json!(true);
    let run_id = server.call("ensure", data).ok()["run_id"].clone();
    let url = "http://ann:hunter2@127.0.0.1:1/site.tar.gz";
    let failed = server.call(
        "apply",
        json!({"source": url, "data": {"key": "hunter2"}, "wait": 50}),
    );
    assert!(!failed.refused(1).contains("hunter2"));
    let _ = server.call("status", json!({})).refused(1);
    let events = server.audit_events();
    let verbs: Vec<_> = events
        .iter()
        .map(|event| (&event["verb"], &event["decision"]))
        .collect();
    assert_eq!(
        json!(verbs),
        json!([
            ["ensure", "allowed"],
            ["apply", "allowed"],
            ["status", "denied"]
        ])
    );
    assert_eq!(events[0]["run_id"], run_id);
    assert_eq!(events[0]["caller"], "choria=ann.mcollective from ops1");
    assert_eq!(events[0]["request_id"], "8d0cb5e3d9a64c5b8a8f0f3a3f5d7c11");
    for entry in std::fs::read_dir(server.runs("")).unwrap().flatten() {
        if entry.path().is_file() {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            assert!(!text.contains("hunter2"), "{:?}", entry.path());
        }
    }
}

#[test]
fn a_request_with_invalid_input_or_configuration_is_audited_as_denied() {
    let server = Server::new();
    let _ = server.call("ensure", json!({"type": "file"})).refused(3);
    let unknown = json!({"type": "nothing", "name": "x"});
    let _ = server.call("status", unknown).refused(4);
    server.configure("nop = true\n");
    let reason = server.call("ping", json!({})).refused(1);
    let events = server.audit_events();
    let found: Vec<_> = events
        .iter()
        .map(|event| [&event["verb"], &event["decision"], &event["reason"]])
        .collect();
    assert_eq!(
        json!(found),
        json!([
            ["ensure", "denied", "malformed request"],
            ["status", "denied", "malformed request"],
            ["ping", "denied", reason],
        ])
    );
}

#[test]
fn a_refused_run_is_audited_as_denied_and_without_a_run_id() {
    let server = Server::new();
    server
        .env
        .write("server.conf", "identity = web1.example.net\n");
    let (run_id, _) = server.begin();
    let busy = server.call("apply", json!({ "manifest": STABLE }));
    let reason = busy.refused(1);
    server.go();
    server.wait_for(&run_id);
    let pause = r#"{"reason":"moving house","since":"2026-01-01T00:00:00Z"}"#;
    server.env.write("state/pause.json", pause);
    let paused = server.call("apply", json!({ "manifest": STABLE }));
    let paused = paused.refused(1);
    let mut events = server.audit_events();
    events.retain(|event| event["verb"] == "apply");
    let facts: Vec<_> = events
        .iter()
        .map(|event| [&event["decision"], &event["run_id"], &event["reason"]])
        .collect();
    assert_eq!(
        json!(facts),
        json!([
            ["allowed", run_id, null],
            ["denied", null, reason],
            ["denied", null, paused],
        ])
    );
    for event in &events {
        assert_eq!(event["identity"], "web1.example.net");
    }
}

#[test]
fn a_run_that_another_run_excludes_while_it_starts_is_audited_as_denied() {
    let server = Server::new();
    // A daemon holds its run lock; the run store of the external agent is free.
    let path = server.env.write("state/run.lock", "");
    let lock = std::fs::File::open(path).unwrap();
    lock.lock().unwrap();
    let manifest = json!({ "manifest": STABLE });
    let message = server.call("apply", manifest).refused(1);
    assert!(message.contains("another run is active"), "{message}");
    let events = server.audit_events();
    assert_eq!(events.len(), 1, "{events:#?}");
    assert_eq!(
        (&events[0]["decision"], &events[0]["run_id"]),
        (&json!("denied"), &Value::Null)
    );
}

#[test]
fn what_is_kept_is_ours_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let server = Server::new();
    let _ = server
        .call("apply", json!({"manifest": STABLE, "wait": 50}))
        .ok();
    let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(server.runs("")), 0o700);
    for entry in std::fs::read_dir(server.runs("")).unwrap().flatten() {
        let expected = if entry.path().is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(entry.path()), expected, "{:?}", entry.path());
    }
}

#[test]
fn an_installed_agent_answers() {
    let mut server = Server::new();
    let libdir = server.env.path("plugins");
    std::fs::create_dir(&libdir).unwrap();
    let install = ["choria", "install", "--libdir", "plugins"];
    let agents = "plugins/mcollective/agent";
    let printed = |word: &str| {
        format!("{agents}/ccm {word}\n{agents}/ccm.ddl {word}\n{agents}/ccm.json {word}\n")
    };
    assert_eq!(server.env.ccm(&install).ok(), printed("written"));
    assert_eq!(server.env.ccm(&install).ok(), printed("unchanged"));
    server.agent = (server.env.path(&format!("{agents}/ccm")), Vec::new());
    assert_eq!(server.activate().0, json!({"activate": true}));
    let path = server.env.at("motd");
    assert_eq!(
        server.call("ensure", file(&path, "x")).ok()["changed"],
        true
    );
    let installed = server.env.read(&format!("{agents}/ccm.json"));
    let ddl: Value = serde_json::from_str(&installed).unwrap();
    assert_eq!(ddl["metadata"]["name"], "ccm");
}

#[test]
fn the_ddl_satisfies_the_schema_and_a_broken_one_does_not() {
    let read = |name: &str| -> Value {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let validator = jsonschema::validator_for(&read("schemas/choria_ddl.json")).unwrap();
    let ddl = read("ddl/ccm.json");
    let faults: Vec<String> = validator
        .iter_errors(&ddl)
        .map(|err| err.to_string())
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let ensure = "/actions/1";
    for (place, key, value) in [
        ("", "metadata", json!({})),
        ("/metadata", "name", json!("Ccm")),
        ("/metadata", "version", json!("1.2.3.4")),
        ("/metadata", "timeout", json!(1)),
        ("/metadata", "timeout", json!("20")),
        (ensure, "action", json!("Ensure")),
        (ensure, "display", json!("sometimes")),
        (
            ensure,
            "aggregate",
            json!([{"function": "sum", "args": ["state"]}]),
        ),
        (
            ensure,
            "aggregate",
            json!([{"function": "summary", "args": []}]),
        ),
        ("/actions/1/input/name", "maxlength", json!(0)),
        ("/actions/1/input/name", "type", json!("text")),
        ("/actions/1/input/name", "validation", Value::Null),
        ("/actions/1/input/type", "list", json!([])),
        ("/actions/1/input/noop", "maxlength", json!(5)),
        ("/actions/1/input/noop", "optional", json!("yes")),
        ("/actions/1/output/state", "display_as", Value::Null),
        ("/actions/1/output/state", "type", json!("word")),
    ] {
        let mut broken = ddl.clone();
        let object = broken.pointer_mut(place).unwrap().as_object_mut().unwrap();
        match value {
            Value::Null => object.remove(key),
            value => object.insert(key.into(), value),
        };
        assert!(!validator.is_valid(&broken), "{place} {key}");
    }
}
