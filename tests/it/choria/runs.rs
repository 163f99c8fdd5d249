//! Runs that outlive their request, exclude each other, or are killed; where manifests come from.

use std::process::{Command, Stdio};

use ccm_nats::registration::{STREAM, StreamOptions};
use serde_json::json;

use super::{RPC, STABLE, Server, file};
use crate::support::nats::{NatsServer, python};
use crate::support::poll::{wait_for, when};
use crate::support::{http, pack};

#[test]
fn an_apply_outlives_its_request_and_has_a_status() {
    let server = Server::new();
    let (run_id, pid) = server.begin();
    // The server read our output to its end, and the run goes on in a session of its own.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = fields.split(' ').collect();
    assert_eq!((fields[2], fields[3]), (pid.as_str(), pid.as_str()));
    let latest = server.call("run_status", json!({})).ok();
    assert_eq!(
        (&latest["run_id"], &latest["state"]),
        (&run_id, &json!("running"))
    );
    assert!(!server.env.exists("done"));
    server.go();
    let run = server.wait_for(&run_id);
    assert_eq!(
        (&run["state"], &run["outcome"]),
        (&json!("finished"), &json!("changed"))
    );
    assert_eq!(
        (&run["total"], &run["changed"], &run["failed"]),
        (&json!(1), &json!(1), &json!(0))
    );
    assert_eq!(run["events"][0]["resource"], "exec#wait");
    assert!(server.env.exists("done"));
}

#[test]
fn a_run_goes_on_when_the_server_kills_the_agent_that_waits_for_it() {
    let server = Server::new();
    let data = json!({"manifest": server.patient_manifest(), "wait": 50});
    let (mut command, reply) = server.command(RPC, &Server::request("apply", data));
    let mut agent = command.stdout(Stdio::null()).spawn().unwrap();
    wait_for("a run", || {
        let run = server.call("run_status", json!({})).ok();
        when(run["state"] == "running", run)
    });
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_eq!(std::fs::read_to_string(reply).unwrap(), "");
    let latest = server.call("run_status", json!({})).ok();
    assert_eq!(latest["state"], "running");
    server.go();
    assert_eq!(server.wait_for(&latest["run_id"])["outcome"], "changed");
    assert!(server.env.exists("done"));
}

#[test]
fn a_second_run_is_refused_while_one_goes_on() {
    let server = Server::new();
    let (run_id, _) = server.begin();
    let expected = format!(
        "run {} is still running: wait for it to end",
        run_id.as_str().unwrap()
    );
    let manifest = json!({"manifest": STABLE});
    assert_eq!(server.call("apply", manifest).refused(1), expected);
    let ensure = file(&server.env.at("motd"), "hi");
    assert_eq!(server.call("ensure", ensure).refused(1), expected);
    assert!(!server.env.exists("motd"));
    // Who only looks does not wait.
    let looked = json!({"type": "file", "name": "/etc"});
    assert_eq!(server.call("status", looked).ok()["ensure"], "directory");
}

#[test]
fn of_many_runs_at_once_one_begins() {
    let server = Server::new();
    let request = Server::request("apply", json!({"manifest": server.patient_manifest()}));
    let started: Vec<_> = (0..6)
        .map(|_| {
            let (mut command, reply) = server.command(RPC, &request);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            (command.spawn().unwrap(), reply)
        })
        .collect();
    let mut begun = 0;
    for (child, reply) in started {
        let reply = Server::read(child.wait_with_output().unwrap(), reply);
        match reply.code {
            0 => begun += 1,
            _ => assert!(reply.refused(1).contains("is still running"), "not busy"),
        }
    }
    assert_eq!(begun, 1);
}

#[test]
fn a_run_that_is_killed_is_lost_and_the_next_one_begins() {
    let server = Server::new();
    let (run_id, pid) = server.begin();
    assert!(
        Command::new("kill")
            .args(["-9", &pid])
            .status()
            .unwrap()
            .success()
    );
    let run = server.wait_for(&run_id);
    assert_eq!(
        (&run["state"], &run["outcome"]),
        (&json!("lost"), &json!(""))
    );
    server.go();
    let next = server.call("apply", json!({"manifest": STABLE, "wait": 50}));
    assert_eq!(next.ok()["state"], "finished");
    let ping = server.call("ping", json!({})).ok();
    assert_eq!(ping["state"], "finished");
}

#[test]
fn an_apply_takes_a_path_data_and_choria_s_facts() {
    let mut server = Server::new();
    server.facts = json!({"role": "web", "host": {"info": {"os": "plan9"}}});
    let target = server.env.at("out");
    let manifest = server.env.write(
        "site/manifest.yaml",
        format!(
            "data:\n  greeting: hello\nccm:\n  resources:\n    - file:\n        - {target}:\n            \
             ensure: present\n            owner: root\n            group: root\n            mode: '0644'\n            \
             content: '{{{{ Data.greeting }}}} {{{{ Facts.role }}}} {{{{ Facts.host.info.os }}}}'\n"
        ),
    );
    let data = json!({"source": manifest, "data": {"greeting": "hi"}, "wait": 50});
    let run = server.call("apply", data).ok();
    assert_eq!(
        (&run["state"], &run["source"]),
        (&json!("finished"), &json!(manifest))
    );
    assert_eq!(server.env.read("out"), "hi web linux");
}

#[test]
fn an_apply_takes_a_bundle_from_a_server_or_an_object_store() {
    let server = Server::new();
    let target = server.env.at("made");
    let manifest = format!("ccm: {{resources: [{{exec: {{name: /usr/bin/touch {target}}}}}]}}");
    let bundle = pack::tgz(&[("site/manifest.yaml", &manifest)]);
    let web = http::Server::serving(bundle.clone());
    let nats = NatsServer::start();
    let file = server.env.write("bundle.tgz", bundle);
    python("stores.py", &[&nats.url(), &file]);
    server.configure(&format!("nats_server = {}\n", nats.url()));
    let object = "obj://MANIFESTS/sites/web.tgz".to_owned();
    for source in [web.url("/site.tar.gz"), object] {
        let run = server
            .call("apply", json!({"source": source, "wait": 50}))
            .ok();
        assert_eq!(
            (&run["state"], &run["source"]),
            (&json!("finished"), &json!(source))
        );
        std::fs::remove_file(&target).unwrap();
    }
}

#[test]
fn an_apply_in_noop_or_of_health_checks_changes_nothing() {
    let server = Server::new();
    let touched = server.env.at("touched");
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - /usr/bin/touch {touched}:\n            \
         health_checks: [{{command: /bin/true}}]\n"
    );
    for (key, outcome) in [("noop", "noop"), ("health_check_only", "stable")] {
        let run = server.call(
            "apply",
            json!({"manifest": manifest, key: true, "wait": 50}),
        );
        let run = run.ok();
        assert_eq!(run["outcome"], outcome, "{run:#}");
        assert!(!server.env.exists("touched"));
    }
}

#[tokio::test]
async fn templates_look_services_up() {
    let (server, nats) = (Server::new(), NatsServer::start());
    server.configure(&format!("nats_server = {}\n", nats.url()));
    let connection = nats.client().await;
    let options = StreamOptions::default();
    connection
        .init_registrations(STREAM, options)
        .await
        .unwrap();
    let lookup = "{{ len(registrations('prod', 'http', 'web', '*')) }} of us";
    let wanted = file(&server.env.at("backends"), lookup);
    assert_eq!(server.call("ensure", wanted).ok()["changed"], true);
    assert_eq!(server.env.read("backends"), "0 of us");
}
