//! `ccm ensure api pipe`: the response field by field, and every error text.

use serde_json::{Value, json};

use crate::support::TestEnv;

const REQUEST: &str = "io.choria.ccm.v1.resource.ensure.request";

fn run_pipe(env: &TestEnv, body: &Value) -> Value {
    let body = body.to_string();
    env.ccm_with_input(&["ensure", "api", "pipe"], &body).json()
}

fn error(body: &str) -> String {
    let env = TestEnv::new();
    let response = env.ccm_with_input(&["ensure", "api", "pipe"], body).json();
    assert_eq!(
        response["protocol"],
        "io.choria.ccm.v1.resource.ensure.response"
    );
    assert_eq!(response.get("state"), None);
    response["error"].as_str().unwrap().to_owned()
}

fn request(rest: &str) -> String {
    format!(r#"{{"protocol":"{REQUEST}",{rest}}}"#)
}

#[test]
fn a_request_is_answered_field_by_field() {
    let env = TestEnv::new();
    let name = env.at("motd");
    let body = json!({"protocol": REQUEST, "type": "file", "properties": {
        "name": name, "ensure": "present", "content": "hi\n",
        "owner": "root", "group": "root", "mode": "0644"
    }});
    let outcome = env.ccm_with_input(&["ensure", "api", "pipe"], &body.to_string());
    let keys_in_order = [
        "\"protocol\"",
        "\"state\"",
        "\"event_id\"",
        "\"timestamp\"",
        "\"type\"",
        "\"provider\"",
        "\"name\"",
        "\"requested_ensure\"",
        "\"final_ensure\"",
        "\"duration\"",
        "\"properties\"",
        "\"status\"",
        "\"error\"",
        "\"unmet_requirements\"",
    ];
    let mut rest = outcome.stdout.as_str();
    for key in keys_in_order {
        let at = rest.find(key).unwrap_or_else(|| panic!("{key} in {rest}"));
        rest = &rest[at..];
    }
    let mut response = outcome.json();
    let state = response["state"].as_object_mut().unwrap();
    assert_eq!(state["event_id"].as_str().unwrap().len(), 27);
    assert!(state["timestamp"].as_str().unwrap().ends_with('Z'));
    assert!(state["duration"].as_u64().unwrap() > 0);
    let status = state["status"].as_object_mut().unwrap();
    status.remove("timestamp");
    status["metadata"].as_object_mut().unwrap().remove("mtime");
    assert_eq!(state["previous"], json!({"ensure": "absent"}));
    for varying in ["event_id", "timestamp", "duration", "previous"] {
        state.remove(varying);
    }
    let name = "$DIR/motd";
    assert_eq!(
        response,
        json!({
            "protocol": "io.choria.ccm.v1.resource.ensure.response",
            "state": {
                "protocol": "io.choria.ccm.v1.transaction.event",
                "type": "file",
                "provider": "posix",
                "name": name,
                "requested_ensure": "present",
                "final_ensure": "present",
                "properties": {
                    "name": name, "ensure": "present", "content": "hi\n",
                    "owner": "root", "group": "root", "mode": "0644"
                },
                "status": {
                    "protocol": "io.choria.ccm.v1.resource.file.state",
                    "type": "file", "name": name, "ensure": "present",
                    "changed": true, "refreshed": false, "stable": true, "noop": false,
                    "metadata": {
                        "name": name,
                        "checksum": "98ea6e4f216f2fb4b69fff9b3a44842c38686ca685f3f55dc48c5d3fb1107be4",
                        "owner": "root", "group": "root", "mode": "0644",
                        "provider": "posix", "size": 3
                    }
                },
                "error": [],
                "changed": true, "refreshed": false, "failed": false,
                "skipped": false, "noop": false, "unmet_requirements": []
            }
        })
    );
    assert_eq!(env.read("motd"), "hi\n");
}

#[test]
fn each_error_has_its_text_and_exit_code_0() {
    for (body, text) in [
        (String::new(), "invalid protocol \"\"".to_owned()),
        ("{".into(), "invalid protocol \"\"".into()),
        ("[1]".into(), "invalid protocol \"\"".into()),
        (r#"{"protocol":5}"#.into(), "invalid protocol \"\"".into()),
        (
            r#"{"protocol":"x"}"#.into(),
            "invalid protocol \"x\"".into(),
        ),
        (request(r#""a":1"#), "missing type in request".into()),
        (
            request(r#""type":"file""#),
            "missing properties in request".into(),
        ),
        (
            request(r#""type":"x","properties":{}"#),
            "invalid resource: unknown resource type x".into(),
        ),
        (
            request(r#""type":"file","properties":{"ensure":"present"}"#),
            "name is required".into(),
        ),
        (
            request(r#""type":"file","properties":{"name":"/x"}"#),
            "ensure is required".into(),
        ),
        (
            request(r#""type":"exec","properties":{"name":"true","provider":"nope"}"#),
            "invalid resource: provider not found".into(),
        ),
        (
            request(r#""type":"exec","properties":{"name":"true","require":["file#/x"]}"#),
            "no events found for file#/x".into(),
        ),
    ] {
        assert_eq!(error(&body), text, "{body}");
    }
}

#[test]
fn a_failed_resource_is_a_state_and_no_error() {
    let env = TestEnv::new();
    let body = json!({"protocol": REQUEST, "type": "exec", "properties": {"name": "/bin/false"}});
    let response = run_pipe(&env, &body);
    assert_eq!(response.get("error"), None);
    assert_eq!(response["state"]["failed"], true);
    assert_eq!(response["state"]["status"], Value::Null);
    assert_eq!(
        response["state"]["error"],
        json!(["failed to reach desired state: exit code 1 not in allowed returns [0]"])
    );
}

#[test]
fn only_the_document_is_on_standard_output() {
    let env = TestEnv::new();
    let body = json!({"protocol": REQUEST, "type": "exec", "properties":
        {"name": "/bin/echo noise", "logoutput": true}});
    let outcome = env.ccm_with_input(&["ensure", "api", "pipe"], &body.to_string());
    assert!(outcome.stderr.contains("INFO  noise"), "{outcome:?}");
    assert!(outcome.stdout.starts_with('{'), "{outcome:?}");
}

#[test]
fn yaml_goes_in_and_comes_out_in_upstreams_form() {
    let env = TestEnv::new();
    let body = format!("protocol: {REQUEST}\ntype: exec\nproperties:\n  - /bin/true: {{}}\n");
    let outcome = env.ccm_with_input(&["ensure", "api", "pipe", "--yaml"], &body);
    let text = outcome.ok();
    for part in [
        "\n  status:\n    commonresourcestate:\n      timestamp: ",
        "\n    exitcode: 0\n    creates_satisfied: false\n",
        "\n  error: []\n",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    assert!(text.ends_with("\n\n"), "{text:?}");
    let duration = text.lines().find(|line| line.starts_with("  duration: "));
    assert!(duration.unwrap().ends_with('s'), "{text}");
}

#[test]
fn noop_answers_with_the_plan() {
    let env = TestEnv::new();
    let body = json!({"protocol": REQUEST, "type": "file", "properties": {
        "name": env.at("f"), "ensure": "present", "content": "",
        "owner": "root", "group": "root", "mode": "0644"}});
    let args = ["ensure", "--noop", "api", "pipe"];
    let response = env.ccm_with_input(&args, &body.to_string()).json();
    assert_eq!(
        response["state"]["noop_message"],
        "Would have created the file"
    );
    assert_eq!(response["state"]["changed"], true);
    assert!(!env.exists("f"));
}
