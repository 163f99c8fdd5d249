//! Governors on a real server, made as `choria governor add` makes them: limits of concurrent
//! runs, also when agents or servers are killed.

use std::time::Duration;

use async_nats::jetstream::stream::{Config as Stream, DiscardPolicy, StorageType};
use ccm_agent::Agent;
use ccm_agent::config::Config;
use ccm_core::model::governor::GovernorName;
use ccm_core::model::node::Token;
use ccm_nats::governor::{Governor, Release};
use ccm_nats::{Connection, Verb};
use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::agent::{self, AgentProcess, request_json, stored_events};
use crate::support::fleet::Fleet;
use crate::support::nats::NatsServer;
use crate::support::poll::{LIMIT, eventually, when};
use crate::support::setup::Setup;

pub(crate) const DEPLOYS: &str = "deploys";

/// Returns the stream of a governor, as Choria makes it.
pub(crate) fn stream(capacity: i64, lease: Duration) -> Stream {
    Stream {
        name: format!("GOVERNOR_{DEPLOYS}"),
        description: Some(format!("Concurrency Governor {DEPLOYS}")),
        subjects: vec![format!("mcollective.governor.{DEPLOYS}")],
        max_messages: capacity,
        max_age: lease,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        num_replicas: 1,
        ..Stream::default()
    }
}

pub(crate) async fn make(server: &NatsServer, stream: Stream) {
    let jetstream = server.jetstream().await;
    jetstream.create_stream(stream).await.unwrap();
}

/// Returns how many slots are taken.
pub(crate) async fn taken(server: &NatsServer) -> u64 {
    let jetstream = server.jetstream().await;
    let name = format!("GOVERNOR_{DEPLOYS}");
    let mut stream = jetstream.get_stream(name).await.unwrap();
    stream.info().await.unwrap().state.messages
}

/// Takes a slot as another program of Choria's would, and returns its sequence.
pub(crate) async fn occupy(server: &NatsServer) -> u64 {
    let jetstream = server.jetstream().await;
    let subject = format!("mcollective.governor.{DEPLOYS}");
    let ack = jetstream.publish(subject, "another".into()).await.unwrap();
    ack.await.unwrap().sequence
}

pub(crate) async fn evict(server: &NatsServer, sequence: u64) {
    let jetstream = server.jetstream().await;
    let stream = jetstream.get_stream(format!("GOVERNOR_{DEPLOYS}")).await;
    stream.unwrap().delete_message(sequence).await.unwrap();
}

fn governor(connection: &Connection) -> Governor {
    let name: GovernorName = DEPLOYS.parse().unwrap();
    Governor::new(connection.clone(), &Token::choria_collective(), &name)
}

/// Receives the lifecycle events of governors.
async fn listen(server: &NatsServer) -> async_nats::Subscriber {
    let client = async_nats::connect(server.url()).await.unwrap();
    let subject = "choria.lifecycle.event.governor.ccm";
    let slot_events = client.subscribe(subject).await.unwrap();
    client.flush().await.unwrap();
    slot_events
}

async fn next_slot_event(slot_events: &mut async_nats::Subscriber) -> Value {
    let message = tokio::time::timeout(LIMIT, slot_events.next()).await;
    let event: Value = serde_json::from_slice(&message.unwrap().unwrap().payload).unwrap();
    assert_eq!(event["type"], "io.choria.lifecycle.v1.governor");
    assert_eq!(event["data"]["governor"], DEPLOYS);
    event["data"].clone()
}

pub(crate) fn exec(command: &str) -> String {
    format!("ccm:\n  resources:\n    - exec: {{name: {command:?}}}\n")
}

/// Returns a command that lasts until there is a file `go`, or the test is over.
fn waiting(env: &TestEnv) -> String {
    let script = format!(
        "until [ -e go ] || [ ! -e {} ]; do sleep 0.05; done",
        env.at("")
    );
    format!("/bin/sh -c 'cd {} && {script}'", env.at(""))
}

/// Returns a request to apply a manifest, with more fields.
pub(crate) fn apply(manifest: &str, more: Value) -> String {
    let mut request = json!({
        "protocol": "io.choria.ccm.v1.manifest.apply.request",
        "manifest": manifest,
        "wait": true,
    });
    let fields = more.as_object().unwrap().clone();
    request.as_object_mut().unwrap().extend(fields);
    request.to_string()
}

/// Returns the summaries of all runs that are over.
async fn runs(server: &NatsServer) -> Vec<Value> {
    let events = stored_events(server).await;
    let is_run = |subject: &str| subject.split('.').nth(5) == Some("run");
    let runs = events.into_iter().filter(|(subject, _)| is_run(subject));
    runs.map(|(_, body)| body).collect()
}

async fn server_with(capacity: i64, lease: Duration) -> (NatsServer, Connection) {
    let server = NatsServer::start();
    let client = server.client().await;
    agent::init(&client).await;
    make(&server, stream(capacity, lease)).await;
    (server, client)
}

/// Starts an agent that publishes events of its slots, on a server with a governor.
async fn agent_with(capacity: i64, lease: Duration) -> Setup<Agent> {
    let tells = |config: &mut Config, _: &TestEnv| config.choria.events = true;
    let setup = Setup::inside_with("web1.lab", tells).await;
    make(&setup.server, stream(capacity, lease)).await;
    setup
}

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// Returns the most of these intervals that hold one and the same moment.
fn most_at_once(intervals: &[(DateTime<Utc>, DateTime<Utc>)]) -> usize {
    let at = |moment: DateTime<Utc>| {
        let holds =
            |(start, end): &&(DateTime<Utc>, DateTime<Utc>)| *start <= moment && moment < *end;
        intervals.iter().filter(holds).count()
    };
    intervals.iter().map(|(start, _)| at(*start)).max().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_agents_no_more_than_two_run_at_once_and_all_finish() {
    let (server, _client) = server_with(2, HOUR).await;
    let mut slot_events = listen(&server).await;
    let env = TestEnv::new();
    let file = env.write("m.yaml", exec("/bin/sleep 0.3"));
    let lines = format!(
        "governor: {{name: {DEPLOYS}, timeout: 5m}}\nchoria: {{events: true}}\nmanifests: [{file}]\n"
    );
    let names: Vec<String> = (0..10).map(|number| format!("web{number}.lab")).collect();
    let _agents: Vec<AgentProcess> = names
        .iter()
        .map(|name| AgentProcess::start(&env, name, &server.url(), &lines))
        .collect();
    let runs = eventually("ten runs are over", async || {
        let runs = runs(&server).await;
        when(runs.len() == 10, runs)
    })
    .await;
    let time = |run: &Value, field: &str| {
        let text = run["summary"][field].as_str().unwrap();
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    };
    let mut intervals = Vec::new();
    for run in &runs {
        assert_eq!(run["outcome"], "changed", "{run}");
        intervals.push((time(run, "start_time"), time(run, "end_time")));
    }
    let most = most_at_once(&intervals);
    assert!((1..=2).contains(&most), "{most} at once: {intervals:?}");
    let mut held = 0;
    let mut entered = Vec::new();
    for _ in 0..20 {
        let event = next_slot_event(&mut slot_events).await;
        match event["event_type"].as_str().unwrap() {
            "enter" => {
                entered.push(event["sequence"].as_u64().unwrap());
                held += 1;
            }
            "exit" => held -= 1,
            other => panic!("{other}"),
        }
    }
    entered.sort_unstable();
    entered.dedup();
    assert_eq!((entered.len(), held), (10, 0));
    assert_eq!(taken(&server).await, 0, "all slots were left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_of_an_agent_that_was_killed_is_freed_by_the_lease() {
    let (server, client) = server_with(1, Duration::from_secs(20)).await;
    let env = TestEnv::new();
    let lines = format!("governor: {{name: {DEPLOYS}, timeout: 5m}}\n");
    let holder = AgentProcess::start(&env, "web1.lab", &server.url(), &lines);
    let long = apply(&exec(&waiting(&env)), json!({"wait": false}));
    request_json(&client, "web1.lab", Verb::Apply, &long).await;
    eventually("the slot is taken", async || taken(&server).await == 1).await;
    holder.kill();
    assert_eq!(taken(&server).await, 1, "a dead holder leaves nothing");
    let _next = AgentProcess::start(&env, "web2.lab", &server.url(), &lines);
    let quick = apply(&exec("/bin/true"), json!({"wait": false}));
    request_json(&client, "web2.lab", Verb::Apply, &quick).await;
    let run = eventually("the next one has run", async || runs(&server).await.pop()).await;
    assert_eq!(run["identity"], "web2.lab");
    assert_eq!(run["outcome"], "changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_gets_no_slot_in_time_fails_and_changes_nothing() {
    let setup = agent_with(1, HOUR).await;
    let mut slot_events = listen(&setup.server).await;
    occupy(&setup.server).await;
    let touch = exec(&format!("/bin/touch {}", setup.env.at("touched")));
    let claim = json!({"governor": {"name": DEPLOYS, "timeout": "1s"}});
    let answer = request_json(
        &setup.client,
        "web1.lab",
        Verb::Apply,
        &apply(&touch, claim),
    )
    .await;
    let error = "no slot in governor deploys within 1s: all slots are taken";
    assert_eq!(answer["run"]["outcome"], "failed", "{answer}");
    assert_eq!(answer["run"]["error"], error);
    assert!(!setup.env.exists("touched"));
    let event = next_slot_event(&mut slot_events).await;
    assert_eq!(event["event_type"], "timeouts");
    assert_eq!(event["sequence"], 0);
    let run = eventually("the run is stored", async || {
        runs(&setup.server).await.pop()
    })
    .await;
    assert_eq!(run["error"], error);
    setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_governor_that_does_not_exist_is_named_at_once() {
    let setup = Setup::inside("web1.lab").await;
    let claim = json!({"governor": {"name": "nope"}});
    let body = apply(&exec("/bin/true"), claim);
    let answer = request_json(&setup.client, "web1.lab", Verb::Apply, &body).await;
    let error = answer["run"]["error"].as_str().unwrap();
    assert!(error.starts_with("governor nope does not exist"), "{error}");
    assert!(error.contains("choria governor add nope"), "{error}");
    setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_slot_answers_shows_it_and_can_be_cancelled() {
    let setup = agent_with(1, HOUR).await;
    occupy(&setup.server).await;
    let claim = json!({"governor": {"name": DEPLOYS}, "wait": false});
    let body = apply(&exec("/bin/true"), claim);
    let accepted = request_json(&setup.client, "web1.lab", Verb::Apply, &body).await;
    let run_id = accepted["run_id"].as_str().unwrap();
    eventually("ping shows what is waited for", async || {
        let status = request_json(&setup.client, "web1.lab", Verb::Ping, "").await;
        when(
            status["current_run"]["waiting_for"] == "governor deploys",
            status,
        )
    })
    .await;
    let fleet = |args: &[&str]| {
        let url = setup.server.url();
        let args = [&["fleet"], args, &["--server", &url]].concat();
        setup.env.ccm(&args).ok()
    };
    eventually("the list of nodes shows it", async || {
        let table = fleet(&["nodes"]);
        when(table.contains("  waiting for governor deploys  "), table)
    })
    .await;
    let document = fleet(&["nodes", "--json"]);
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["nodes"][0]["condition"], "waiting");
    let metrics = setup.agent.metrics().print();
    let waiting = "choria_ccm_agent_governor_waiting{governor=\"deploys\"}";
    assert!(metrics.contains(&format!("{waiting} 1\n")), "{metrics}");
    request_json(&setup.client, "web1.lab", Verb::Cancel, run_id).await;
    let run = eventually("the run is over", async || runs(&setup.server).await.pop()).await;
    assert_eq!(
        run["error"],
        "no longer waiting for a slot in governor deploys: cancelled"
    );
    assert_eq!(
        taken(&setup.server).await,
        1,
        "the slot of another owner stays"
    );
    setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_outlives_its_lease_goes_on_and_reports_the_eviction() {
    let setup = agent_with(1, Duration::from_secs(1)).await;
    let mut slot_events = listen(&setup.server).await;
    let manifest = format!(
        "governor: {{name: {DEPLOYS}}}\n{}",
        exec(&waiting(&setup.env))
    );
    let body = apply(&manifest, json!({}));
    let requesting = request_json(&setup.client, "web1.lab", Verb::Apply, &body);
    let receiving = async {
        let enter = next_slot_event(&mut slot_events).await;
        let eviction = next_slot_event(&mut slot_events).await;
        setup.env.write("go", "");
        (enter, eviction)
    };
    let (answer, (enter, eviction)) = tokio::join!(requesting, receiving);
    assert_eq!(answer["run"]["outcome"], "changed", "{answer}");
    assert_eq!(enter["event_type"], "enter");
    assert_eq!(eviction["event_type"], "eviction");
    assert_eq!(enter["sequence"], eviction["sequence"]);
    setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_by_hand_is_published_by_choria_only() {
    let setup = agent_with(1, HOUR).await;
    let mut slot_events = listen(&setup.server).await;
    let governed = |command: &str| {
        let manifest = format!("governor: {{name: {DEPLOYS}}}\n{}", exec(command));
        apply(&manifest, json!({}))
    };
    let body = governed(&waiting(&setup.env));
    let requesting = request_json(&setup.client, "web1.lab", Verb::Apply, &body);
    let evicting = async {
        let enter = next_slot_event(&mut slot_events).await;
        evict(&setup.server, enter["sequence"].as_u64().unwrap()).await;
        setup.env.write("go", "");
    };
    let (answer, ()) = tokio::join!(requesting, evicting);
    assert_eq!(answer["run"]["outcome"], "changed", "{answer}");
    // Events are published in order: the next one is that of the next run.
    let body = governed("/bin/true");
    request_json(&setup.client, "web1.lab", Verb::Apply, &body).await;
    let next = next_slot_event(&mut slot_events).await;
    assert_eq!(next["event_type"], "enter", "{next}");
    setup.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_manifest_s_own_governor_counts_and_noop_needs_none() {
    let setup = agent_with(1, HOUR).await;
    let manifest = format!("governor: {{name: {DEPLOYS}}}\n{}", exec("/bin/true"));
    // The request's is not even looked at.
    let body = apply(&manifest, json!({"governor": {"name": "nope"}}));
    let answer = request_json(&setup.client, "web1.lab", Verb::Apply, &body).await;
    assert_eq!(answer["run"]["outcome"], "changed", "{answer}");
    assert_eq!(taken(&setup.server).await, 0);
    occupy(&setup.server).await;
    for mode in ["noop", "health_check_only"] {
        let answer = request_json(
            &setup.client,
            "web1.lab",
            Verb::Apply,
            &apply(&manifest, json!({mode: true})),
        )
        .await;
        assert_eq!(answer["run"]["error"], Value::Null, "{mode}: {answer}");
    }
    setup.agent.stop().await;
}

#[tokio::test]
async fn a_slot_whose_answer_was_lost_is_found_and_not_taken_twice() {
    let server = NatsServer::start();
    let client = server.client().await;
    // A stream that stores and never says so: every answer is lost.
    let silent = Stream {
        no_ack: true,
        ..stream(5, HOUR)
    };
    make(&server, silent).await;
    let slot = governor(&client).enter("web1.lab", HOUR, || None).await;
    let slot = slot.unwrap();
    assert_eq!(slot.sequence(), 1);
    assert_eq!(taken(&server).await, 1);
    assert_eq!(slot.leave().await.unwrap(), Release::Freed);
    assert_eq!(taken(&server).await, 0);
}

#[tokio::test]
async fn a_slot_that_was_freed_by_hand_is_known_to_be_gone() {
    let server = NatsServer::start();
    let client = server.client().await;
    make(&server, stream(1, Duration::from_secs(2))).await;
    let slot = governor(&client).enter("web1.lab", HOUR, || None).await;
    let slot = slot.unwrap();
    let lost = slot.lost();
    evict(&server, slot.sequence()).await;
    tokio::time::timeout(LIMIT, lost).await.unwrap();
    let release = slot.leave().await.unwrap();
    assert!(matches!(release, Release::Lost(_)), "{release:?}");
}

#[tokio::test]
async fn a_slot_that_is_dropped_is_left_too() {
    let server = NatsServer::start();
    let client = server.client().await;
    make(&server, stream(1, HOUR)).await;
    let slot = governor(&client).enter("web1.lab", HOUR, || None).await;
    drop(slot.unwrap());
    eventually("the slot is free", async || taken(&server).await == 0).await;
}

#[tokio::test]
async fn a_stream_that_stores_everything_is_no_governor() {
    let server = NatsServer::start();
    let client = server.client().await;
    let greedy = Stream {
        name: "ALL".into(),
        subjects: vec!["mcollective.>".into()],
        ..Stream::default()
    };
    make(&server, greedy).await;
    let entered = governor(&client).enter("web1.lab", HOUR, || None).await;
    let error = entered.unwrap_err().to_string();
    assert!(
        error.starts_with("governor deploys does not exist"),
        "{error}"
    );
}

#[tokio::test]
async fn holders_are_known_by_their_names() {
    let server = NatsServer::start();
    let client = server.client().await;
    make(&server, stream(1, HOUR)).await;
    let slot = governor(&client).enter("web1.lab", HOUR, || None).await;
    let slot = slot.unwrap();
    let jetstream = server.jetstream().await;
    let stream = jetstream.get_stream(format!("GOVERNOR_{DEPLOYS}")).await;
    let message = stream.unwrap().get_raw_message(slot.sequence()).await;
    assert_eq!(message.unwrap().payload, "web1.lab");
    slot.leave().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apply_by_hand_takes_its_slot_or_says_how_to_do_without() {
    let (server, _client) = server_with(1, HOUR).await;
    let mut env = TestEnv::new();
    let text = format!(
        "governor: {{name: {DEPLOYS}, timeout: 1s}}\n{}",
        exec("/bin/true")
    );
    env.write("m.yaml", text);
    // Nothing listens on port 1.
    let error = env
        .ccm(&["apply", "m.yaml", "--server", "nats://127.0.0.1:1"])
        .error(1);
    assert!(error.contains("--no-governor"), "{error}");
    env.ccm(&[
        "apply",
        "m.yaml",
        "--server",
        "nats://127.0.0.1:1",
        "--no-governor",
    ])
    .ok();
    env.set("NATS_URL", &server.url());
    env.ccm(&["apply", "m.yaml"]).ok();
    assert_eq!(taken(&server).await, 0);
    occupy(&server).await;
    let error = env.ccm(&["apply", "m.yaml"]).error(1);
    assert!(
        error.contains("no slot in governor deploys within 1s"),
        "{error}"
    );
    env.ccm(&["apply", "m.yaml", "--noop"]).ok();
}

#[test]
fn a_governor_that_can_not_be_read_is_shown_with_its_place() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        format!("governor:\n  nmae: x\n{}", exec("/bin/true")),
    );
    let error = env.ccm(&["apply", "m.yaml"]).error(2);
    let expected = "invalid governor: unknown property \"nmae\"\n --> m.yaml:2:3\n";
    assert!(error.contains(expected), "{error}");
    assert!(error.contains("did you mean \"name\"?"), "{error}");
}

#[test]
fn the_governor_of_a_nested_manifest_does_not_count_and_says_so() {
    let env = TestEnv::new();
    let inner = format!("governor: {{name: {DEPLOYS}}}\n{}", exec("/bin/true"));
    env.write("inner.yaml", inner);
    env.write(
        "m.yaml",
        "ccm: {resources: [{apply: {name: inner.yaml}}]}\n",
    );
    let output = env.ccm(&["apply", "m.yaml"]).ok();
    let expected = "Governor of a nested manifest is ignored";
    assert!(output.contains(expected), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_apply_carries_its_governor_to_the_nodes() {
    let fleet = Fleet::of_three();
    make(&fleet.server, stream(1, HOUR)).await;
    fleet.env.write("m.yaml", exec("/bin/true"));
    let args = ["apply", "m.yaml", "--all", "--wait", "--governor", DEPLOYS];
    fleet.run(&args).ok();
    assert_eq!(taken(&fleet.server).await, 0);
    occupy(&fleet.server).await;
    let args = [&args[..], &["--governor-timeout", "1s"]].concat();
    let outcome = fleet.run(&args);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let expected = "no slot in governor deploys within 1s";
    assert!(outcome.stdout.contains(expected), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nodes_of_a_rollout_take_their_slots_until_they_came_through() {
    let fleet = Fleet::of_three();
    make(&fleet.server, stream(1, HOUR)).await;
    let manifest = exec(&format!("/usr/bin/touch {}", fleet.env.at("done")));
    let file = fleet.env.write("app/manifest.yaml", manifest);
    let directory = file.trim_end_matches("/manifest.yaml");
    fleet
        .run(&["bundle", "push", directory, "--name", "app"])
        .ok();
    let blocker = occupy(&fleet.server).await;
    let args = ["rollout", "start", "app", "--all", "--governor", DEPLOYS];
    let short = [
        &args[..],
        &["--governor-timeout", "1s", "--max-failures", "9"],
    ]
    .concat();
    let outcome = fleet.run(&short);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(!fleet.env.exists("done"));
    let records = runs(&fleet.server).await;
    let no_slot = |run: &Value| {
        let error = run["error"].as_str().unwrap_or_default();
        error.contains("no slot in governor deploys within 1s")
    };
    assert_eq!(
        records.iter().filter(|run| no_slot(run)).count(),
        3,
        "{records:#?}"
    );
    // What failed for want of a slot still needs one when it is tried again.
    evict(&fleet.server, blocker).await;
    let id = printed_run_id(&fleet);
    fleet.run(&["rollout", "retry", &id]).ok();
    assert!(fleet.env.exists("done"));
    assert_eq!(taken(&fleet.server).await, 0);
    let silly = [&args[..], &["--node-timeout", "5m"]].concat();
    let outcome = fleet.run(&silly);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
}

/// Returns the id of the newest rollout.
fn printed_run_id(fleet: &Fleet) -> String {
    let all = fleet.run(&["rollout", "list", "--json"]).json();
    let newest = all.as_array().unwrap().last().unwrap();
    newest["id"].as_str().unwrap().to_owned()
}
