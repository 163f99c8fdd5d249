//! What no role may do, on a real server with the permissions that `ccm fleet permissions` prints,
//! and that a denial is reported as one: at once, with the subject.

use std::collections::BTreeMap;
use std::path::Path;

use async_nats::jetstream::consumer::push;
use async_nats::{Client, ConnectOptions};
use ccm_agent::Agent;
use ccm_core::model::envelope::REQUEST_ID;
use ccm_nats::streams::{NODES, REPORTED};
use ccm_nats::{Headers, NatsError, Subject, Verb};
use serde_json::{Value, json};

use super::roles::Site;
use crate::support::TestEnv;
use crate::support::agent::{self, file_request, request_json, subjects};
use crate::support::nats::NatsServer;
use crate::support::poll::{LIMIT, eventually, wait_for, when};

const WEB1: &str = "web1_example_net";
const WEB2: &str = "web2_example_net";

/// Returns a client of a user, and everything the server forbids it.
async fn client(server: &NatsServer, user: &str, inbox: &str) -> (Client, Forbidden) {
    let options = ConnectOptions::with_user_and_password(user.into(), "pw".into());
    client_with(options.custom_inbox_prefix(inbox), &server.url()).await
}

/// Returns a client with these options, and everything the server forbids it.
pub(crate) async fn client_with(options: ConnectOptions, url: &str) -> (Client, Forbidden) {
    let (sender, received) = tokio::sync::mpsc::unbounded_channel();
    let options = options.event_callback(move |event| {
        let _ = sender.send(event.to_string());
        async {}
    });
    let client = options.connect(url).await.unwrap();
    (client, Forbidden(received))
}

pub(crate) struct Forbidden(tokio::sync::mpsc::UnboundedReceiver<String>);

impl Forbidden {
    /// Waits until the server says no to something about a subject.
    pub(crate) async fn expect(&mut self, what: &str) {
        let denial = tokio::time::timeout(LIMIT, async {
            loop {
                let event = self.0.recv().await.unwrap().to_lowercase();
                let is_it = event.contains(&what.to_lowercase());
                if event.contains("permissions violation") && is_it {
                    return;
                }
            }
        });
        assert!(denial.await.is_ok(), "{what} was not forbidden");
    }
}

/// What each role must not publish to.
pub(crate) const NOT_TO_PUBLISH: &[(&str, &str, &[&str])] = &[
    (
        "web1",
        "_INBOX_web1_example_net",
        &[
            "ccm.v1.default.node.web2_example_net.ensure",
            "ccm.v1.default.node.web1_example_net.ensure",
            "ccm.v1.default.all.ping",
            "ccm.v1.default.group.web.apply",
            "ccm.v1.default.event.web2_example_net.file.changed",
            "$SRV.PING",
            "$KV.CCM_NODES.default.web2_example_net",
            "$KV.CCM_NODES.prod.web1_example_net",
            "$KV.CCM_FACTS.default.web2_example_net",
            "$KV.CCM_FACTS.prod.web1_example_net",
            "$JS.API.DIRECT.GET.KV_CCM_FACTS",
            "$KV.CCM_REPORTED.default.web2_example_net",
            "$KV.CCM_DESIRED.default.web1_example_net",
            "$KV.CCM_DESIRED.default.web2_example_net",
            "$KV.CCM_ROLLOUTS.r1",
            "$KV.CCM_TRUST.default",
            "$KV.CCM_DESIRED.incarnation",
            "$KV.CCM_LABELS.default.web1_example_net",
            "$KV.DATA.greeting",
            "$O.CCM_MANIFESTS.M.x",
            "$O.SITE.M.x",
            "choria.ccm.registration.v1.prod.http.web.10_0_0_2.x",
            "mcollective.governor.other",
            "mcollective.broadcast.agent.ccm",
            "mcollective.node.web2.example.net",
            "ops.reply.a.b",
            "choria.federation.eu.federation",
            "$JS.API.DIRECT.GET.KV_CCM_DESIRED.$KV.CCM_DESIRED.default.web2_example_net",
            "$JS.API.DIRECT.GET.KV_CCM_DESIRED",
            "$JS.API.DIRECT.GET.KV_CCM_NODES",
            "$JS.API.DIRECT.GET.CCM_EVENTS",
            "$JS.API.STREAM.MSG.GET.KV_CCM_DESIRED",
            "$JS.API.CONSUMER.CREATE.KV_CCM_DESIRED",
            "$JS.API.CONSUMER.CREATE.OBJ_CCM_MANIFESTS",
            "$JS.API.CONSUMER.CREATE.OBJ_CCM_MANIFESTS.x",
            "$JS.API.CONSUMER.CREATE.REGISTRATION",
            "$JS.API.CONSUMER.CREATE.REGISTRATION.x",
            "$JS.API.CONSUMER.CREATE.REGISTRATION.x.choria.>",
            "$JS.API.CONSUMER.DURABLE.CREATE.REGISTRATION.x",
            "$JS.API.STREAM.UPDATE.REGISTRATION",
            "$JS.API.STREAM.CREATE.EVIL",
            "$JS.API.STREAM.DELETE.CCM_EVENTS",
            "$JS.API.STREAM.PURGE.CCM_EVENTS",
        ],
    ),
    (
        "operator",
        "_INBOX_ann",
        &[
            "$KV.CCM_DESIRED.default.web1_example_net",
            "$KV.CCM_DESIRED.incarnation",
            "$KV.CCM_TRUST.default",
            "$JS.API.STREAM.SNAPSHOT.KV_CCM_DESIRED",
            "$JS.API.STREAM.RESTORE.KV_CCM_DESIRED",
            "$KV.CCM_NODES.default.web1_example_net",
            "$KV.CCM_FACTS.default.web1_example_net",
            "$KV.CCM_REPORTED.default.web1_example_net",
            "$KV.CCM_LABELS.prod.web1_example_net",
            "ccm.v1.prod.all.ping",
            "ccm.v1.default.event.web1_example_net.file.changed",
            "_INBOX.x",
            "$JS.API.CONSUMER.CREATE.CCM_EVENTS",
            "$JS.API.CONSUMER.CREATE.CCM_EVENTS.x",
            "$JS.API.CONSUMER.CREATE.KV_CCM_ROLLOUTS.x.$KV.CCM_ROLLOUTS.>",
            "$JS.API.CONSUMER.DURABLE.CREATE.CCM_EVENTS.x",
            "$JS.API.CONSUMER.DELETE.CCM_EVENTS.x",
            "$JS.API.STREAM.CREATE.EVIL",
            "$JS.API.STREAM.UPDATE.CCM_EVENTS",
            "$JS.API.STREAM.DELETE.CCM_EVENTS",
            "$JS.API.STREAM.PURGE.CCM_EVENTS",
            "$JS.API.STREAM.PURGE.KV_CCM_DESIRED",
        ],
    ),
    (
        "monitor",
        "_INBOX_MONITOR",
        &[
            "ccm.v1.default.all.ping",
            "ccm.v1.default.node.web1_example_net.apply",
            "ccm.v1.default.node.web1_example_net.resume",
            "ccm.v1.default.event.web1_example_net.file.changed",
            "$SRV.PING",
            "$KV.CCM_DESIRED.default.web1_example_net",
            "$KV.CCM_ROLLOUTS.r1",
            "$KV.CCM_LABELS.default.web1_example_net",
            "$O.CCM_MANIFESTS.M.x",
            "choria.ccm.registration.v1.prod.http.web.10_0_0_2.x",
            "$JS.API.CONSUMER.CREATE.CCM_EVENTS",
            "$JS.API.CONSUMER.CREATE.CCM_EVENTS.x",
            "$JS.API.CONSUMER.CREATE.KV_CCM_DESIRED.x",
            "$JS.API.CONSUMER.DURABLE.CREATE.CCM_EVENTS.x",
            "$JS.API.CONSUMER.DELETE.CCM_EVENTS.x",
            "$JS.API.STREAM.CREATE.EVIL",
            "$JS.API.STREAM.DELETE.CCM_EVENTS",
            "$JS.API.STREAM.PURGE.OBJ_CCM_MANIFESTS",
        ],
    ),
    (
        "controller",
        "_INBOX",
        &[
            "$KV.CCM_NODES.prod.web1_example_net",
            "$KV.CCM_FACTS.prod.web1_example_net",
            "$KV.CCM_REPORTED.prod.web1_example_net",
            "$KV.CCM_DESIRED.prod.web1_example_net",
            "$KV.CCM_TRUST.prod",
            "ccm.v1.prod.all.ping",
            "ccm.v1.default.event.web1_example_net.file.changed",
            "ccm.v1.default.enroll.x",
        ],
    ),
];

/// Subjects that each role must not subscribe to.
pub(crate) const NOT_TO_SUBSCRIBE: &[(&str, &str, &[&str])] = &[
    (
        "web1",
        "_INBOX_web1_example_net",
        &[
            "ccm.v1.default.node.web2_example_net.ensure",
            "ccm.v1.default.node.*.ensure",
            "ccm.v1.default.group.db.ensure",
            "ccm.v1.default.group.*.*",
            "ccm.v1.default.event.>",
            "ccm.v1.prod.node.web1_example_net.ensure",
            "$SRV.PING.ccm.web2_example_net",
            "mcollective.node.web2.example.net",
            "mcollective.node.>",
            "mcollective.reply.>",
            "mcollective.broadcast.agent.*",
            "ops.broadcast.agent.ccm",
            "_INBOX.>",
            "_INBOX_web2_example_net.>",
            "$KV.>",
            ">",
        ],
    ),
    (
        "operator",
        "_INBOX_ann",
        &[
            "ccm.v1.default.node.web1_example_net.ensure",
            "ccm.v1.prod.event.>",
            "_INBOX.>",
            "_INBOX_web1_example_net.>",
            ">",
        ],
    ),
    (
        "monitor",
        "_INBOX_MONITOR",
        &["ccm.v1.default.all.>", "_INBOX.>", "_INBOX_ann.>", ">"],
    ),
    (
        "controller",
        "_INBOX",
        &["ccm.v1.default.all.>", "_INBOX_ann.>", ">"],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn no_role_may_publish_or_hear_more_than_it_needs() {
    let site = Site::start();
    for (user, inbox, subjects) in NOT_TO_PUBLISH {
        let (client, mut forbidden) = client(&site.server, user, inbox).await;
        for subject in *subjects {
            client.publish(*subject, "{}".into()).await.unwrap();
            let what = format!("publish to \"{subject}\"");
            forbidden.expect(&what).await;
        }
    }
    for (user, inbox, subjects) in NOT_TO_SUBSCRIBE {
        let (client, mut forbidden) = client(&site.server, user, inbox).await;
        for subject in *subjects {
            let _listening = client.subscribe(*subject).await.unwrap();
            let what = format!("subscription to \"{subject}\"");
            forbidden.expect(&what).await;
        }
    }
}

/// Starts the agent of web2 in this process.
async fn victim(site: &Site, directory: &Path) -> Agent {
    let url = site.server.url().replace("//", "//web2:pw@");
    let mut settings = ccm_nats::Settings::plain(&url).unwrap();
    settings.inbox_prefix = Some(format!("_INBOX_{WEB2}"));
    let mut config = agent::config("web2.example.net", directory);
    config.groups = vec!["web".parse().unwrap()];
    let process = agent::process(BTreeMap::new());
    Agent::start(&config, &settings, process).await.unwrap()
}

/// Returns how many messages reached an endpoint of web2.
async fn reached(site: &Site, verb: Verb) -> u64 {
    let controller = site.connect("controller").await;
    let subject: Subject = format!("$SRV.STATS.ccm.{WEB2}").parse().unwrap();
    let request = controller.request(&subject, Headers::new(), "".into(), LIMIT);
    let stats: Value = serde_json::from_slice(&request.await.unwrap().body).unwrap();
    let endpoints = stats["endpoints"].as_array().unwrap();
    let name = format!("{verb}-node");
    let endpoint = endpoints.iter().find(|it| it["name"] == name.as_str());
    endpoint.unwrap()["num_requests"].as_u64().unwrap()
}

/// Waits until something reached an endpoint of web2 that had so many messages before.
async fn until_reached(site: &Site, verb: Verb, before: u64) {
    eventually("the message arrives", async || {
        reached(site, verb).await > before
    })
    .await;
}

const SERVICE: &str = "choria.ccm.registration.v1.prod.http.web.10_0_0_1.x";

#[tokio::test(flavor = "multi_thread")]
async fn one_node_can_not_order_another_through_jetstream() {
    let site = Site::start();
    let dir = tempfile::tempdir().unwrap();
    let running = victim(&site, dir.path()).await;
    let controller = site.connect("controller").await;
    let requested = dir.path().join("asked");
    let answer = file_request(&requested, "x");
    let answer = request_json(&controller, "web2.example.net", Verb::Ensure, &answer).await;
    assert_eq!(answer["state"]["changed"], true, "{answer}");

    // web1 stores an order where it may, on its own registration subject.
    let file = dir.path().join("forged");
    let order = file_request(&file, "evil");
    let (web1, _) = client(&site.server, "web1", &format!("_INBOX_{WEB1}")).await;
    let stored = async_nats::jetstream::new(web1.clone());
    let stored = stored.publish(SERVICE, order.clone().into()).await.unwrap();
    stored.await.unwrap();
    let ensure = format!("ccm.v1.default.node.{WEB2}.ensure");

    // The server sends the answer to a direct get to the given subject, headers and all, or none.
    for question in [
        json!({ "last_by_subj": SERVICE }),
        json!({ "last_by_subj": SERVICE, "no_hdr": true }),
        json!({ "multi_last": [SERVICE] }),
        json!({ "seq": 1, "next_by_subj": SERVICE, "batch": 2 }),
    ] {
        let before = reached(&site, Verb::Ensure).await;
        let api = "$JS.API.DIRECT.GET.REGISTRATION";
        let body = question.to_string().into();
        let sent = web1.publish_with_reply(api, ensure.clone(), body);
        sent.await.unwrap();
        until_reached(&site, Verb::Ensure, before).await;
    }

    // A user who may create consumers can't either.
    let before = reached(&site, Verb::Ensure).await;
    let (admin, _) = client(&site.server, "admin", "_INBOX").await;
    let jetstream = async_nats::jetstream::new(admin.clone());
    let config = push::Config {
        deliver_subject: ensure.clone(),
        filter_subject: SERVICE.into(),
        ..push::Config::default()
    };
    let made = jetstream.create_consumer_on_stream(config, "REGISTRATION");
    made.await.unwrap();
    until_reached(&site, Verb::Ensure, before).await;
    let pull = async_nats::jetstream::consumer::pull::Config {
        durable_name: Some("pull".into()),
        filter_subject: SERVICE.into(),
        ..Default::default()
    };
    let made = jetstream.create_consumer_on_stream(pull, "REGISTRATION");
    made.await.unwrap();
    let before = reached(&site, Verb::Ensure).await;
    let api = "$JS.API.CONSUMER.MSG.NEXT.REGISTRATION.pull";
    let sent = admin.publish_with_reply(api, ensure.clone(), "1".into());
    sent.await.unwrap();
    until_reached(&site, Verb::Ensure, before).await;

    // What arrived before an answer to a true request was dealt with before it.
    let again = file_request(&requested, "y");
    let answer = request_json(&controller, "web2.example.net", Verb::Ensure, &again).await;
    assert_eq!(answer["state"]["changed"], true, "{answer}");
    assert!(!file.exists(), "web2 took an order out of a stream");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_can_not_resume_a_node_that_is_paused() {
    let site = Site::start();
    let dir = tempfile::tempdir().unwrap();
    let running = victim(&site, dir.path()).await;
    let controller = site.connect("controller").await;
    let pause = json!({ "reason": "disk swap" });
    let answer = request_json(
        &controller,
        "web2.example.net",
        Verb::Pause,
        &pause.to_string(),
    )
    .await;
    assert!(answer.get("error").is_none_or(Value::is_null), "{answer}");
    let paused = || running.node().status().pause.is_some();
    assert!(paused(), "{answer}");

    let resume = format!("ccm.v1.default.node.{WEB2}.resume");
    let (monitor, _) = client(&site.server, "monitor", "_INBOX_MONITOR").await;
    let (web1, _) = client(&site.server, "web1", &format!("_INBOX_{WEB1}")).await;
    eventually("presence is stored", async || {
        let nodes = controller.bucket(NODES).await.unwrap();
        nodes.get(&format!("default.{WEB2}")).await.unwrap()
    })
    .await;
    let get = "$JS.API.DIRECT.GET.KV_CCM_NODES";
    let last = format!("$KV.CCM_NODES.default.{WEB2}");
    for (client, subject, body) in [
        (
            &monitor,
            get.to_owned(),
            json!({ "last_by_subj": last, "no_hdr": true }).to_string(),
        ),
        (&monitor, format!("{get}.{last}"), String::new()),
        (&monitor, "$JS.API.INFO".into(), String::new()),
        // A stream sends its acknowledgement to the reply subject that the writer gives.
        (
            &web1,
            format!("$KV.CCM_NODES.default.{WEB1}"),
            "{}".to_owned(),
        ),
    ] {
        let before = reached(&site, Verb::Resume).await;
        let sent = client.publish_with_reply(subject, resume.clone(), body.into());
        sent.await.unwrap();
        until_reached(&site, Verb::Resume, before).await;
    }
    // Questions are answered in order, so what came before this one is over.
    request_json(&controller, "web2.example.net", Verb::Ping, "").await;
    assert!(paused(), "a monitor resumed web2");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_is_reported_by_every_call() {
    let site = Site::start();
    let web1 = site.connect("web1").await;
    let denied = |err: NatsError, what: &str| {
        assert!(err.is_denied(), "{err}");
        let expected = format!("permission denied: the role of this NATS user lacks {what}");
        assert_eq!(err.to_string(), expected);
    };
    let other = format!("default.{WEB2}");
    let nodes = web1.bucket(NODES).await.unwrap();
    let key = format!("$KV.CCM_NODES.{other}");
    let put = nodes.put(&other, "{}".into()).await.unwrap_err();
    denied(put, &format!("publish on {key}"));
    let created = nodes.create(&other, "{}".into()).await.unwrap_err();
    denied(created, &format!("publish on {key}"));
    let get = nodes.get(&other).await.unwrap_err();
    denied(
        get,
        &format!("publish on $JS.API.DIRECT.GET.KV_CCM_NODES.{key}"),
    );
    let reported = web1.bucket(REPORTED).await.unwrap();
    let all = reported.entries(">").await.unwrap_err();
    denied(all, "publish on $JS.API.DIRECT.GET.KV_CCM_REPORTED");
    let bucket = web1.bucket("CCM_LABELS").await.unwrap_err();
    denied(bucket, "publish on $JS.API.STREAM.INFO.KV_CCM_LABELS");
    let objects = web1.objects("CCM_MANIFESTS").await.unwrap();
    let put = objects.put("x", b"x").await.unwrap_err();
    let text = put.to_string();
    assert!(text.contains("publish on $O.CCM_MANIFESTS.C."), "{text}");
    let ping = subjects().all(Verb::Ping);
    let request = web1.request(&ping, Headers::new(), "".into(), LIMIT).await;
    denied(request.unwrap_err(), "publish on ccm.v1.default.all.ping");
    let stop = ccm_nats::ReplyLimits {
        expected: None,
        silence: LIMIT,
        deadline: LIMIT,
    };
    let many = web1.request_many(&ping, Headers::new(), "".into(), stop);
    let mut many = many.await.unwrap();
    assert!(many.next().await.is_none());
    assert!(many.denial().is_some());
    let event = subjects().event(&WEB2.parse().unwrap(), "file", "changed");
    let stored = web1.publish_stored(&event, "id", "{}".into()).await;
    denied(stored.unwrap_err(), &format!("publish on {event}"));
    let secret = subjects().node(&WEB2.parse().unwrap(), Verb::Ensure);
    let refused = match web1.subscribe(&secret).await {
        Err(err) => err,
        // The client reports a refusal from another task, which may run later.
        Ok(mut messages) => {
            assert!(messages.next().await.is_none());
            messages.denial().unwrap().clone().into()
        }
    };
    denied(refused, &format!("subscribe on {secret}"));
    let mut watch = web1.watch_bucket("CCM_LABELS", ">").unwrap();
    let change = watch.next().await.unwrap();
    assert!(
        matches!(&change, ccm_nats::kv::Change::Denied(denial)
            if denial.subject == "$JS.API.STREAM.INFO.KV_CCM_LABELS"),
        "{change:?}"
    );
    // What is permitted works as before.
    nodes
        .put(&format!("default.{WEB1}"), "{}".into())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_inbox_no_call_waits_in_vain() {
    let site = Site::start();
    let url = site.server.url().replace("//", "//web1:pw@");
    let settings = ccm_nats::Settings::plain(&url).unwrap();
    let patience = ccm_nats::ConnectMode::Once(LIMIT);
    let web1 = ccm_nats::connect(&settings, patience, "test")
        .await
        .unwrap();
    for _ in 0..2 {
        let err = web1.bucket(NODES).await.unwrap_err();
        let text = err.to_string();
        assert!(text.contains("lacks subscribe on _INBOX."), "{text}");
    }
}

#[test]
fn commands_tell_a_denial_at_once() {
    let mut site = Site::start();
    site.agent("web1", "");
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    site.env("operator").write("app/manifest.yaml", manifest);
    let directory = site.env("operator").at("app");
    let push = ["bundle", "push", &directory, "--name", "app"];
    site.fleet("operator", &push).ok();
    let lacks = |user: &str, args: &[&str], subject: &str| {
        let outcome = site.fleet(user, args);
        assert_ne!(outcome.code, Some(0), "{outcome:?}");
        let text = format!("{}{}", outcome.stdout, outcome.stderr);
        let expected = format!("permission denied: the role of this NATS user lacks {subject}");
        assert!(text.contains(&expected), "{args:?}: {text}");
        for wrong in ["timed out", "no reply"] {
            assert!(!text.contains(wrong), "{args:?}: {text}");
        }
    };
    lacks(
        "monitor",
        &["ping", "--all"],
        "publish on ccm.v1.default.node.web1_example_net.ping",
    );
    lacks(
        "monitor",
        &["ensure", "exec", "/bin/true", "--node", "web1.example.net"],
        "publish on ccm.v1.default.node.web1_example_net.ensure",
    );
    lacks(
        "monitor",
        &["label", "web1.example.net", "a=b"],
        "publish on $KV.CCM_LABELS.default.web1_example_net",
    );
    lacks(
        "monitor",
        &["init", "--replicas", "3"],
        "publish on $JS.API.STREAM.UPDATE.",
    );
    lacks(
        "monitor",
        &["events", "--durable", "new"],
        "publish on $JS.API.CONSUMER.CREATE.CCM_EVENTS.new.",
    );
    let manifest = manifest.replace("true", "false");
    site.env("monitor").write("evil/manifest.yaml", manifest);
    let evil = site.env("monitor").at("evil");
    lacks(
        "monitor",
        &["bundle", "push", &evil, "--name", "evil"],
        "publish on $O.CCM_MANIFESTS.",
    );
    // An operator's rollout is stored for a controller, which may go on at once.
    lacks(
        "operator",
        &["rollout", "start", "app", "--all"],
        "publish on $KV.CCM_DESIRED.default.web1_example_net",
    );
    let all = site
        .fleet("controller", &["rollout", "list", "--json"])
        .json();
    let id = all[0]["id"].as_str().unwrap();
    site.fleet("controller", &["rollout", "drive", id]).ok();
    // A node sees nothing of the fleet.
    lacks("web1", &["nodes"], "publish on $JS.API.");
    lacks(
        "web1",
        &["serve", "--listen", "127.0.0.1:0"],
        "publish on $JS.API.",
    );
    lacks(
        "web1",
        &["events", "--follow"],
        "publish on $JS.API.STREAM.INFO.CCM_EVENTS",
    );
}

#[test]
fn an_agent_logs_denials() {
    let mut site = Site::start();
    // The server lets it subscribe to requests for the group web only.
    site.agent_in("web2", "[web, db]", "");
    wait_for("the denial in the log", || {
        let log = site.env("web2").read("log");
        let is_told = log.contains("lacks subscribe on ccm.v1.default.group.db.");
        when(is_told, log)
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_reply_subject_is_dropped_and_audited() {
    let site = Site::start();
    let dir = tempfile::tempdir().unwrap();
    let running = victim(&site, dir.path()).await;
    let controller = site.connect("controller").await;
    let file = dir.path().join("f");
    let ensure = subjects().node(&WEB2.parse().unwrap(), Verb::Ensure);
    request_json(&controller, "web2.example.net", Verb::Ping, "").await;
    let headers = Headers::new().with(REQUEST_ID, "lost").unwrap();
    let order = file_request(&file, "x");
    controller
        .publish(&ensure, headers, order.clone().into())
        .await
        .unwrap();
    until_reached(&site, Verb::Ensure, 0).await;
    let other = file_request(&dir.path().join("g"), "x");
    request_json(&controller, "web2.example.net", Verb::Ensure, &other).await;
    assert!(!file.exists());
    let printed = running.metrics().print();
    let line = printed.lines().find(|line| {
        line.contains("requests_count") && line.contains("ensure") && line.contains("denied")
    });
    assert!(line.is_some_and(|line| line.ends_with(" 1")), "{printed}");
    running.stop().await;
}

#[test]
fn init_warns_of_a_server_that_lets_everybody_in() {
    let init = |config: &str, login: &str| {
        let server = NatsServer::with(config);
        let mut env = TestEnv::new();
        let url = server.url().replace("//", &format!("//{login}"));
        env.set("NATS_URL", &url);
        let outcome = env.ccm(&["fleet", "init"]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.stderr
    };
    let others = "client_advertise: \"192.0.2.1:4222\"";
    let users = "authorization { user: ann, password: pw }";
    assert_eq!(init("", ""), "");
    let warned = init(others, "");
    assert!(
        warned.contains("This NATS server requires no authentication"),
        "{warned}"
    );
    let warned = init(&format!("{others}\n{users}"), "ann:pw@");
    assert!(warned.contains("does not use TLS"), "{warned}");
}
