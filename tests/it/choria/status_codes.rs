//! Every status code of the protocol, and invalid requests.

use serde_json::{Value, json};

use super::{RPC, Server, file};
use crate::support::TestEnv;

#[test]
fn a_resource_that_fails_is_code_1_with_everything_there_is_to_tell() {
    let server = Server::new();
    let data = json!({"type": "exec", "name": "/bin/false"});
    let reply = server.call("ensure", data);
    assert_eq!(reply.data["failed"], true);
    assert_eq!(reply.data["state"], "failed");
    assert_eq!(reply.data["event"]["failed"], true);
    let message = reply.refused(1);
    assert!(message.starts_with("exec#/bin/false failed: "), "{message}");
    let manifest =
        json!({"manifest": "ccm: {resources: [{exec: {name: /bin/false}}]}", "wait": 50});
    let reply = server.call("apply", manifest);
    assert_eq!(reply.data["failed"], 1);
    assert_eq!(reply.data["events"][0]["outcome"], "failed");
    let run_id = reply.data["run_id"].clone();
    let _ = reply.refused(1);
    // The status request itself does not fail.
    let run = server.call("run_status", json!({ "run_id": run_id })).ok();
    assert_eq!(run["state"], "failed");
}

#[test]
fn an_action_that_the_node_does_not_allow_is_code_1() {
    let server = Server::new();
    server.configure("actions = ping, status\n");
    let message = server.call("ensure", file("/x", "y")).refused(1);
    assert_eq!(message, "action ensure is not enabled on this node");
    let _ = server.call("ping", json!({})).ok();
}

#[test]
fn an_action_that_does_not_exist_is_code_2() {
    let server = Server::new();
    let message = server.call("aply", json!({})).refused(2);
    assert_eq!(message, "unknown action \"aply\", did you mean \"apply\"?");
}

#[test]
fn an_input_that_is_missing_is_code_3() {
    let server = Server::new();
    for (action, data, name) in [
        ("ensure", json!({"type": "file"}), "name"),
        ("ensure", json!({"name": "/x"}), "type"),
        ("status", json!({"type": "file"}), "name"),
        ("apply", json!({}), "source or manifest"),
        ("apply", Value::Null, "source or manifest"),
    ] {
        let message = server.call(action, data).refused(3);
        assert_eq!(message, format!("{name} is required"));
    }
}

#[test]
fn an_input_that_is_wrong_is_code_4() {
    let server = Server::new();
    let unknown = "3Ouil37bUs2V3TmTG2OoEYtuLS3";
    for (action, data, text) in [
        (
            "ping",
            json!("x"),
            "the data of a request must be an object",
        ),
        (
            "apply",
            json!({"source": "/a", "manifest": "b"}),
            "source and manifest exclude each other",
        ),
        (
            "apply",
            json!({"source": "/a", "noop": true, "health_check_only": true}),
            "noop and health_check_only exclude each other",
        ),
        (
            "apply",
            json!({"source": "/a", "wait": 51}),
            "wait must be from 0 to 50 seconds",
        ),
        (
            "apply",
            json!({"source": "/a", "wait": -1}),
            "wait must be from 0 to 50 seconds",
        ),
        (
            "apply",
            json!({"source": "/a", "governor": "a.b"}),
            r"governor does not match \A[a-zA-Z0-9_-]+\z",
        ),
        (
            "apply",
            json!({"source": "/a", "governor": "a", "governor_timeout": "0s"}),
            "invalid governor timeout \"0s\": must be more than 0s",
        ),
        (
            "apply",
            json!({"source": "/a", "governor_timeout": "1m"}),
            "governor_timeout requires governor",
        ),
        (
            "apply",
            json!({"sorce": "/a"}),
            "unknown input \"sorce\", did you mean \"source\"?",
        ),
        (
            "ensure",
            json!({"type": "file", "name": "/a", "properties": {"name": "/b"}}),
            "name is given twice, as an input and in properties",
        ),
        (
            "ensure",
            json!({"request": {}, "type": "file"}),
            "request and type exclude each other",
        ),
        ("ensure", json!({"request": {}}), "invalid protocol \"\""),
        (
            "ensure",
            json!({"type": "file", "name": "/a", "properties": {"contnt": "x"}}),
            "unknown property \"contnt\", did you mean \"content\"?",
        ),
        (
            "run_status",
            json!({ "run_id": unknown }),
            "run 3Ouil37bUs2V3TmTG2OoEYtuLS3 is not known",
        ),
        (
            "status",
            json!({"type": "file", "name": "a"}),
            "file name must be an absolute path, got \"a\"",
        ),
    ] {
        assert_eq!(server.call(action, data).refused(4), text);
    }
}

#[test]
fn a_resource_or_manifest_that_can_not_be_is_code_4() {
    let server = Server::new();
    let mut data = file(&server.env.at("motd"), "x");
    data["ensure"] = json!("here");
    let reply = server.call("ensure", data);
    assert_eq!(reply.data["failed"], true);
    let message = reply.refused(4);
    assert!(message.starts_with("invalid ensure value"), "{message}");
    let manifest = json!({"manifest": "ccm: {resources: [{nope: {}}]}", "wait": 50});
    let message = server.call("apply", manifest).refused(4);
    assert!(message.contains("nope"), "{message}");
}

#[test]
fn a_machine_that_is_in_the_way_is_code_5() {
    let server = Server::new();
    server.env.write("state", "a file");
    let message = server.call("ping", json!({})).refused(5);
    assert!(message.contains("choria-runs"), "{message}");
}

#[test]
fn a_file_that_is_not_a_request_gets_a_reply() {
    let server = Server::new();
    let huge = vec![b' '; 9 << 20];
    let other = br#"{"protocol":"x","agent":"ccm","action":"ping"}"#;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (request, text) in [
        (&b""[..], "the request is empty"),
        (b"\xff\xfe", "the request is not UTF-8"),
        (b"hunter2", "line 1 column 1"),
        (b"{\"protocol\": 5}", "line 1 column"),
        (other, "the request must be of protocol"),
        (
            deep.as_bytes(),
            "invalid io.choria.mcorpc.external.v1.rpc_request request at",
        ),
        (&huge, "the request is longer than 8388608 bytes"),
    ] {
        let message = server.send(request).refused(4);
        assert!(
            message.contains(text) && !message.contains("hunter2"),
            "{message}"
        );
    }
    let (mut command, reply) = server.command("io.choria.nope", b"{}");
    let message = Server::read(command.output().unwrap(), reply).refused(4);
    assert!(message.starts_with("unknown protocol"), "{message}");
    let (mut command, reply) = server.command(RPC, b"");
    command.env("CHORIA_EXTERNAL_REQUEST", "/no/such/file");
    let _ = Server::read(command.output().unwrap(), reply).refused(5);
}

#[test]
fn without_a_server_there_is_no_reply_and_an_error() {
    let env = TestEnv::new();
    let error = env.ccm(&["choria", "agent"]).error(1);
    assert!(error.contains("CHORIA_EXTERNAL_REPLY"), "{error}");
}

#[test]
fn the_arguments_name_the_files_if_no_variable_does() {
    let server = Server::new();
    let (mut command, reply) = server.command(RPC, &Server::request("ping", json!({})));
    command
        .env_remove("CHORIA_EXTERNAL_REQUEST")
        .env_remove("CHORIA_EXTERNAL_REPLY");
    let _ = Server::read(command.output().unwrap(), reply).ok();
}

#[test]
fn facts_of_choria_that_can_not_be_read_stop_a_run() {
    let server = Server::new();
    let request = Server::request("ensure", file(&server.env.at("motd"), "x"));
    let (mut command, reply) = server.command(RPC, &request);
    command.env("CHORIA_EXTERNAL_FACTS", server.env.write("broken", "{"));
    let message = Server::read(command.output().unwrap(), reply).refused(1);
    assert!(
        message.starts_with("could not read Choria's facts"),
        "{message}"
    );
    assert!(!server.env.exists("motd"));
}
