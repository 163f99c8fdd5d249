//! The limits of enrolment tokens.

use crate::support::poll::{wait_for, when};

use super::Fleet;

#[test]
fn a_token_that_is_used_up_is_refused() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--count", "1"]);
    fleet.enroll("web1", &token).ok();
    let refused = fleet.enroll("web2", &token).error(1);
    assert!(refused.contains("the token is used up"), "{refused}");
    let audit = fleet.audit("web2");
    assert!(audit[0].to_string().contains("used up"), "{audit:?}");
}

#[test]
fn a_token_for_other_names_is_refused() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--name", "web*", "--name", "lb?"]);
    let refused = fleet.enroll("db1", &token).error(1);
    assert!(
        refused.contains("does not permit this node name"),
        "{refused}"
    );
    fleet.enroll("lb1", &token).ok();
}

#[test]
fn an_expired_token_can_not_even_connect() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--expires", "1s"]);
    wait_for("a token that is expired", || {
        let list = fleet.ccm(&["fleet", "enroll", "token", "list"]).ok();
        when(list.contains("expired"), list)
    });
    let error = fleet.enroll("web1", &token).error(1);
    assert!(error.contains("the token may have expired"), "{error}");
}

#[test]
fn a_revoked_token_can_not_connect() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--manual"]);
    let list = ["fleet", "enroll", "token", "list", "--json"];
    let list = fleet.ccm(&list).json();
    let id = list["tokens"][0]["token"]["id"].as_str().unwrap();
    fleet.ccm(&["fleet", "enroll", "token", "revoke", id]).ok();
    let error = fleet.enroll("web1", &token).error(1);
    assert!(error.contains("authorization violation"), "{error}");
}

#[test]
fn a_token_that_is_revoked_while_a_node_waits_ends_its_enrolment() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--manual"]);
    let waiting = fleet.start_enroll("web1", "web1", &token);
    fleet.wait_for_request("web1");
    let id = fleet.listed()[0]["by"]
        .as_str()
        .unwrap()
        .replace("token ", "");
    fleet.ccm(&["fleet", "enroll", "token", "revoke", &id]).ok();
    let output = waiting.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    // Either the approver refuses the next request, or the server has closed the connection before.
    assert!(error.contains("revoked"), "{error}");
    assert!(!output.status.success());
}

#[test]
fn a_node_that_repeats_its_enrolment_uses_the_token_once() {
    let fleet = Fleet::start();
    let token = fleet.token(&["--count", "2"]);
    fleet.enroll("web1", &token).ok();
    let creds = fleet.env.read("web1/agent.creds");
    fleet.enroll("web1", &token).ok();
    assert_eq!(fleet.env.read("web1/agent.creds"), creds);
    fleet.enroll("web2", &token).ok();
}

#[test]
fn requests_wait_for_an_approver() {
    let mut fleet = Fleet::without_approver(&[]);
    let token = fleet.token(&[]);
    let waiting = fleet.start_enroll("web1", "web1", &token);
    fleet.serve();
    let output = waiting.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_text_that_is_no_token_is_an_error_that_does_not_show_it() {
    let env = crate::support::TestEnv::new();
    let error = env.ccm(&["agent", "enroll", "--token", "hunter2"]).error(2);
    assert!(error.contains("not an enrolment token"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}
