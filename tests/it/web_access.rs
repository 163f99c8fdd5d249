//! `ccm fleet serve` with named tokens: what each role may do, who is recorded as the caller, and
//! rollouts that are planned and started over HTTP.

use std::io::BufRead as _;

use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::agent::stored_events;
use crate::support::fleet::Fleet;
use crate::support::poll::{wait_for, when};
use crate::support::simulation::Simulation;
use crate::support::web::{Page, Response, TOKEN, TOKENS, Web, access_file};

/// Every action, with a body and the lowest role that may do it.
const ACTIONS: [(&str, &str, &str); 15] = [
    ("/api/check", r#"{"nodes": ["nobody"]}"#, "ask"),
    ("/api/pause", r#"{"nodes": ["nobody"]}"#, "ask"),
    ("/api/resume", r#"{"nodes": ["nobody"]}"#, "ask"),
    (
        "/api/ensure",
        r#"{"nodes": ["nobody"], "request": {}}"#,
        "ask",
    ),
    ("/api/nodes/nobody/pause", "{}", "ask"),
    ("/api/nodes/nobody/resume", "{}", "ask"),
    ("/api/nodes/nobody/ensure", "{}", "ask"),
    (
        "/api/nodes/nobody/labels",
        r#"{"set": {"a": "b"}}"#,
        "roll-out",
    ),
    ("/api/rollouts/plan", r#"{"bundle": "none"}"#, "roll-out"),
    ("/api/rollouts", r#"{"bundle": "none"}"#, "roll-out"),
    ("/api/rollouts/none/pause", "{}", "roll-out"),
    ("/api/rollouts/none/resume", "{}", "roll-out"),
    ("/api/rollouts/none/abort", "{}", "roll-out"),
    ("/api/rollouts/none/retry", "{}", "roll-out"),
    ("/api/rollouts/none/rollback", "{}", "roll-out"),
];

/// Roles in order; each includes the ones before it.
const ROLES: [&str; 3] = ["read", "ask", "roll-out"];

fn rank(role: &str) -> usize {
    ROLES.iter().position(|it| *it == role).unwrap()
}

fn error(answer: &Response) -> String {
    answer.json()["error"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_do_what_it_includes_and_nothing_else() {
    let web = Web::with_access().await;
    for (name, role, token) in TOKENS {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        let summary = web.fetch("GET", "/api/summary", &headers, "").json();
        assert_eq!(
            (&summary["token"], &summary["role"]),
            (&json!(name), &json!(role))
        );
        for path in ["/api/nodes", "/api/bundles", "/api/history", "/metrics"] {
            assert_eq!(
                web.fetch("GET", path, &headers, "").status,
                200,
                "{name} {path}"
            );
        }
        for (path, body, needed) in ACTIONS {
            let answer = web.fetch("POST", path, &headers, body);
            let is_allowed = rank(role) >= rank(needed);
            assert_eq!(
                answer.status != 403,
                is_allowed,
                "{name} {path}: {}",
                answer.body
            );
            assert_ne!(answer.status, 401, "{name} {path}");
            if !is_allowed && rank(role) > 0 {
                let reason = format!("token {name} has the role {role}: this needs {needed}");
                assert_eq!(error(&answer), reason);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_is_refused_at_once_and_opens_no_stream() {
    let web = Web::with_access().await;
    for path in ["/api/stream", "/api/summary", "/api/nodes", "/metrics"] {
        let wrong = [("Authorization", "Bearer look-at-it-012345678")];
        // The whole answer is read: a stream would not end.
        let answer = web.fetch("GET", path, &wrong, "");
        assert_eq!(
            (answer.status, error(&answer).as_str()),
            (401, "wrong token"),
            "{path}"
        );
        assert!(!answer.head.contains("event-stream"), "{}", answer.head);
        assert_eq!(web.fetch("GET", path, &[], "").status, 401, "{path}");
    }
    for (path, body, _) in ACTIONS {
        let answer = web.fetch("POST", path, &[("Authorization", "Bearer x")], body);
        assert_eq!(answer.status, 401, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_and_refusals_are_logged_with_the_name_of_the_token() {
    let web = Web::with_access().await;
    let [(_, _, vic), (_, _, bob), (_, _, ann)] = TOKENS;
    let set = json!({"set": {"role": "web"}, "remove": ["rack"]});
    assert_eq!(web.post("/api/nodes/web1/labels", ann, &set).status, 200);
    assert_eq!(web.post("/api/nodes/web1/labels", bob, &set).status, 403);
    assert_eq!(web.post("/api/nodes/web1/labels", vic, &set).status, 403);
    assert_eq!(
        web.post("/api/nodes/web1/labels", "wrong", &set).status,
        401
    );
    let log = wait_for("four lines", || {
        let log = web.log();
        when(log.lines().count() >= 4, log)
    });
    let line = |word: &str| log.lines().find(|line| line.contains(word)).unwrap();
    let allowed = line("Request allowed");
    for part in [
        "request=\"POST /api/nodes/web1/labels\"",
        "caller=\"ann via ",
        "about=\"role=web rack-\"",
    ] {
        assert!(allowed.contains(part), "{part} in {allowed}");
    }
    assert!(
        line("caller=\"bob via ").contains("needs roll-out"),
        "{log}"
    );
    assert!(line("caller=\"vic via ").contains("needs ask"), "{log}");
    assert!(line("wrong token").contains("Request denied"), "{log}");
    for (_, _, token) in TOKENS {
        assert!(!log.contains(token), "{log}");
    }
}

/// Starts a node that requires signatures, and returns the file with the key that it trusts.
fn signed_fleet() -> (Fleet, String) {
    let mut fleet = Fleet::start(&[]);
    let seed = fleet.env.at("page.seed");
    let key = fleet.env.ccm(&["keys", "new", &seed]).ok();
    let key = key.trim();
    let trust = format!("trust: {{signers: [{{name: page, key: {key}}}]}}\n");
    fleet.add("web1", &[], &trust);
    fleet.settle(1);
    (fleet, seed)
}

#[test]
fn the_audit_of_a_node_names_the_token() {
    let (fleet, seed) = signed_fleet();
    let page = Page::serve_access(&fleet.server, "", &["--sign-with", &seed]).settled();
    let [_, (_, _, bob), _] = TOKENS;
    page.until_state("web1", "stable");
    let paused = page.post("/api/pause", bob, &json!({"nodes": ["web1"]}));
    assert_eq!(
        paused.json()["replies"][0]["outcome"],
        "changed",
        "{}",
        paused.body
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let event = wait_for("the audit event", || {
        let events = runtime.block_on(stored_events(&fleet.server));
        let mut audits = events.into_iter().map(|(_, event)| event);
        audits.find(|event| event["verb"] == "pause")
    });
    let caller = event["caller"].as_str().unwrap();
    assert!(caller.starts_with("bob via "), "{event}");
    assert_eq!(
        (&event["signer"], &event["decision"]),
        (&json!("page"), &json!("allowed"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_are_set_and_removed() {
    let web = Web::with_access().await;
    web.presence("web1", json!({})).await;
    web.until_state("web1", "stable");
    let path = "/api/nodes/web1/labels";
    let set = web.post(path, TOKEN, &json!({"set": {"role": "web", "rack": "r1"}}));
    assert_eq!(set.json()["labels"], json!({"rack": "r1", "role": "web"}));
    let removed = web.post(
        path,
        TOKEN,
        &json!({"remove": ["rack"], "set": {"role": "db"}}),
    );
    assert_eq!(removed.json()["labels"], json!({"role": "db"}));
    web.until("/api/nodes/web1", |answer| {
        answer.json()["labels"] == json!({"role": "db"})
    });
    assert_eq!(web.fleet(&["label", "web1"]).ok(), "role=db\n");
    for bad in [
        json!({"set": {"a b": "c"}}),
        json!({"set": {"role": "x".repeat(2000)}}),
        json!({"labels": {}}),
    ] {
        assert_eq!(web.post(path, TOKEN, &bad).status, 400, "{bad}");
    }
}

#[test]
fn a_check_finds_drift_and_updates_the_report_of_the_node() {
    let fleet = Fleet::start(&[("web1", &[])]);
    let page = Page::serve_access(&fleet.server, "", &[]).settled();
    let motd = fleet.env.at("motd");
    page.push_manifest(
        "app",
        &format!(
            "ccm:\n  resources:\n    - file:\n        - {motd}:\n            ensure: present\n            \
             content: hi\n            owner: root\n            group: root\n            mode: \"0644\"\n"
        ),
    );
    fleet.run(&["rollout", "start", "app", "--all"]).ok();
    let [_, (_, _, bob), _] = TOKENS;
    let check = || {
        let checked = page.post("/api/check", bob, &json!({"nodes": ["web1", "nobody"]}));
        let answers = checked.json()["replies"].clone();
        assert_eq!(answers[0]["outcome"], "no_reply", "{answers}");
        (answers[1]["outcome"].clone(), answers[1]["text"].clone())
    };
    assert_eq!(check(), (json!("ok"), json!("no drift")));
    fleet.env.write("motd", "edited by hand\n");
    assert_eq!(
        check(),
        (json!("would_change"), json!(format!("drift: file#{motd}")))
    );
    page.until_state("web1", "drifted");
}

/// Returns a page with named tokens before simulated nodes, and a stored bundle.
async fn simulated(more: &str, nodes: usize) -> (Web, Page, Simulation) {
    let web = Web::start().await;
    let simulation =
        Simulation::start(&web.nats, nodes, &["--latency", "1ms", "--in-group", "lab"]);
    let page = Page::serve_access(&web.nats, more, &[]).settled();
    page.push("app", 2);
    page.until("/api/nodes?state=stable", |answer| {
        answer.json()["matched"] == nodes
    });
    (web, page, simulation)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_planned_and_exactly_this_plan_is_started() {
    let (_web, page, _nodes) = simulated("", 6).await;
    let form = json!({
        "bundle": "app", "selection": {"groups": ["lab"]},
        "settings": {"canary": 1, "waves": ["50%", "100%"], "max_failures": 1}
    });
    let planned = page.post("/api/rollouts/plan", TOKEN, &form);
    assert_eq!(planned.status, 200, "{}", planned.body);
    let planned = planned.json();
    let sizes = planned["plan"]["waves"].as_array().unwrap().iter();
    let sizes: Vec<usize> = sizes
        .map(|wave| wave["nodes"].as_array().unwrap().len())
        .collect();
    assert_eq!(sizes, [1, 2, 3], "{planned}");
    assert_eq!(
        (&planned["refusal"], &planned["signed"]),
        (&Value::Null, &json!(false))
    );
    assert_eq!(page.get("/api/rollouts").json()["rollouts"], json!([]));

    let refused = page.post("/api/rollouts", TOKEN, &form);
    assert_eq!(
        (refused.status, error(&refused).as_str()),
        (400, "no plan in the request: show it first")
    );
    let mut other = form.clone();
    other["plan"] = planned["digest"].clone();
    other["settings"]["canary"] = json!(2);
    let changed = page.post("/api/rollouts", TOKEN, &other);
    assert_eq!(changed.status, 409, "{}", changed.body);
    assert!(
        error(&changed).contains("the plan has changed"),
        "{}",
        changed.body
    );

    let mut shown = form.clone();
    shown["plan"] = planned["digest"].clone();
    let started = page.post("/api/rollouts", TOKEN, &shown);
    assert_eq!(started.status, 200, "{}", started.body);
    let id = started.json()["id"].as_str().unwrap().to_owned();
    let done = page.until(&format!("/api/rollouts/{id}"), |answer| {
        answer.status == 200 && answer.json()["rollout"]["word"] == "done"
    });
    let caller = done.json()["rollout"]["caller"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(caller.starts_with("ann via "), "{caller}");
    assert!(
        page.log()
            .contains(&format!("about=\"rollout {id} of app@")),
        "{}",
        page.log()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_controls_a_rollout_is_recorded_in_it() {
    let (_web, page, _nodes) = simulated("", 2).await;
    let form = json!({"bundle": "app", "selection": {"all": true}, "settings": {"waves": ["1"], "bake": "1h"}});
    let mut shown = form.clone();
    shown["plan"] = page.post("/api/rollouts/plan", TOKEN, &form).json()["digest"].clone();
    let started = page.post("/api/rollouts", TOKEN, &shown).json();
    let path = format!("/api/rollouts/{}", started["id"].as_str().unwrap());
    page.until(&path, |answer| {
        answer.status == 200 && answer.json()["rollout"]["word"] == "baking"
    });
    let [_, (_, _, bob), _] = TOKENS;
    for (token, verb, status) in [
        (bob, "pause", 403),
        (TOKEN, "pause", 200),
        (TOKEN, "resume", 200),
        (TOKEN, "abort", 200),
    ] {
        let answer = page.post(&format!("{path}/{verb}"), token, &json!({}));
        assert_eq!(answer.status, status, "{verb}: {}", answer.body);
    }
    let ended = page.until(&path, |answer| {
        answer.json()["rollout"]["word"] == "aborted"
    });
    let ended = ended.json();
    assert!(
        ended["rollout"]["state"]["by"]
            .as_str()
            .unwrap()
            .starts_with("ann via "),
        "{ended}"
    );
    let controls = ended["controls"].as_array().unwrap().iter();
    let controls: Vec<&str> = controls.map(|it| it["verb"].as_str().unwrap()).collect();
    assert_eq!(controls, ["pause", "resume", "abort"]);
    let id = started["id"].as_str().unwrap();
    let text = page.fleet(&["rollout", "show", id]).ok();
    assert!(
        text.contains("resume:    ") && text.contains(" by ann via "),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_beyond_the_limits_of_the_server_is_refused_with_the_reason() {
    let limits = "rollouts: {bundles: [\"app*\"], nodes: [\"sim0000[0-2]*\"], max_nodes: 2, require_canary: true}\n";
    let (_web, page, _nodes) = simulated(limits, 4).await;
    page.push("other", 1);
    let node = |number: usize| format!("sim0000{number}.sim.lab");
    let canary = json!({"canary": 1});
    for (bundle, nodes, settings, reason) in [
        (
            "other",
            vec![node(0)],
            json!({}),
            "this server may not roll out bundle other",
        ),
        (
            "app",
            vec![node(3)],
            json!({}),
            "this server may not roll out to node sim00003.sim.lab",
        ),
        (
            "app",
            vec![node(0), node(1), node(2)],
            canary.clone(),
            "this server may roll out to 2 nodes at once, not 3",
        ),
        (
            "app",
            vec![node(0), node(1)],
            json!({}),
            "this server requires a canary",
        ),
        ("app", vec![node(0), node(1)], canary, ""),
    ] {
        let mut form =
            json!({"bundle": bundle, "selection": {"nodes": nodes}, "settings": settings});
        let planned = page.post("/api/rollouts/plan", TOKEN, &form).json();
        let refusal = planned["refusal"].as_str().unwrap_or_default();
        assert!(
            refusal.starts_with(reason) && refusal.is_empty() == reason.is_empty(),
            "{planned}"
        );
        form["plan"] = planned["digest"].clone();
        let started = page.post("/api/rollouts", TOKEN, &form);
        match reason {
            "" => assert_eq!(started.status, 200, "{}", started.body),
            _ => assert_eq!((started.status, error(&started)), (403, refusal.to_owned())),
        }
    }
    let all = page.fleet(&["rollout", "list", "--json"]).json();
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
}

#[test]
fn nodes_that_require_signatures_get_one_of_the_server_or_none() {
    let (fleet, seed) = signed_fleet();
    let motd = fleet.env.at("motd");
    let manifest = format!(
        "ccm:\n  resources:\n    - exec:\n        - run: {{provider: shell, command: \"echo hi >> {motd}\"}}\n"
    );
    let unsigned = Page::serve_access(&fleet.server, "", &[]).settled();
    unsigned.push_manifest("app", &manifest);
    unsigned.until_state("web1", "stable");
    let mut form = json!({"bundle": "app", "selection": {"nodes": ["web1"]}});
    let planned = unsigned.post("/api/rollouts/plan", TOKEN, &form).json();
    let refusal = planned["refusal"].as_str().unwrap();
    assert!(
        refusal.contains("require signatures") && refusal.ends_with("--sign-with"),
        "{refusal}"
    );
    form["plan"] = planned["digest"].clone();
    let refused = unsigned.post("/api/rollouts", TOKEN, &form);
    assert_eq!((refused.status, error(&refused)), (403, refusal.to_owned()));

    let page = Page::serve_access(&fleet.server, "", &["--sign-with", &seed]).settled();
    let started = page.post("/api/rollouts", TOKEN, &form);
    assert_eq!(started.status, 200, "{}", started.body);
    let path = format!("/api/rollouts/{}", started.json()["id"].as_str().unwrap());
    page.until(&path, |answer| {
        answer.status == 200 && answer.json()["rollout"]["word"] == "done"
    });
    assert_eq!(fleet.env.read("motd"), "hi\n");
}

#[test]
fn an_access_file_that_is_invalid_or_readable_by_others_is_refused() {
    let env = TestEnv::new();
    env.write("open.yaml", access_file(""));
    env.write_secret(
        "bad.yaml",
        "tokens: [{name: ann, role: admin, sha256: x}]\n",
    );
    for (file, reason) in [
        ("open.yaml", "open.yaml"),
        ("bad.yaml", "admin"),
        ("none.yaml", "none.yaml"),
    ] {
        let outcome = env.ccm(&["fleet", "serve", "--access", file]);
        assert_eq!(outcome.code, Some(2), "{file}: {outcome:?}");
        assert!(
            outcome.stderr.contains(reason),
            "{file}: {}",
            outcome.stderr
        );
    }
    let both = env.ccm(&["fleet", "serve", "--access", "a", "--token-file", "b"]);
    assert_eq!(both.code, Some(2), "{both:?}");
}

/// Returns the status of a request with the token of a role.
fn status(web: &Web, role: &str) -> u16 {
    let token = TOKENS.iter().find(|(_, it, _)| *it == role).unwrap().2;
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str())];
    web.fetch("GET", "/api/summary", &headers, "").status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_removed_from_the_file_is_refused_without_a_restart() {
    let web = Web::with_access().await;
    assert_eq!(status(&web, "ask"), 200);
    let all = access_file("");
    let lines = all.lines().filter(|line| !line.contains("role: ask"));
    let fewer: String = lines.map(|line| format!("{line}\n")).collect();
    web.write_access(&fewer);
    wait_for("the token to be refused", || {
        let found = status(&web, "ask");
        when(found == 401, found)
    });
    assert_eq!(status(&web, "roll-out"), 200);
    web.write_access(&all);
    wait_for("the token to be accepted again", || {
        let found = status(&web, "ask");
        when(found == 200, found)
    });
    assert!(
        web.log().contains("Read the changed file with tokens"),
        "{}",
        web.log()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_becomes_invalid_closes_the_server() {
    let web = Web::with_access().await;
    for broken in ["tokens: []\n", "tokens: [", ""] {
        web.write_access(broken);
        wait_for("every token to be refused", || {
            let found = ROLES.map(|role| status(&web, role));
            when(found == [503; 3], found)
        });
        web.write_access(&access_file(""));
        wait_for("the tokens to be accepted again", || {
            let found = ROLES.map(|role| status(&web, role));
            when(found == [200; 3], found)
        });
    }
    let log = web.log();
    assert!(
        log.contains("Every request is refused until the file"),
        "{log}"
    );
    assert!(log.contains("the file has no tokens"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_the_tokens_change() {
    let web = Web::with_access().await;
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("Authorization", bearer.as_str())];
    let stream = web.request("GET", "/api/stream", &headers, "");
    let mut lines = std::io::BufReader::new(stream).lines();
    let first = lines.by_ref().map_while(Result::ok);
    assert!(first.into_iter().any(|line| line.contains("hello")));
    web.write_access(&access_file("rollouts: {max_nodes: 1}\n"));
    // A stream that goes on would never be read to its end.
    for line in lines {
        line.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_of_the_form_has_data_a_deadline_and_a_governor() {
    let (_web, page, _nodes) = simulated("", 2).await;
    let mut form = json!({
        "bundle": "app", "selection": {"all": true}, "noop": true, "data": "port: 8080\n",
        "settings": {"deadline": "2h", "governor": "deploys", "governor_timeout": "1m"}
    });
    let planned = page.post("/api/rollouts/plan", TOKEN, &form).json();
    assert_eq!(planned["data"], json!({"port": 8080}), "{planned}");
    assert_eq!(planned["settings"]["governor"]["name"], "deploys");
    form["plan"] = planned["digest"].clone();
    // Two hours from the start are not the two hours that were shown.
    assert_eq!(page.post("/api/rollouts", TOKEN, &form).status, 409);
    form["settings"]["deadline"] = planned["settings"]["deadline"].clone();
    let started = page.post("/api/rollouts", TOKEN, &form);
    assert_eq!(started.status, 200, "{}", started.body);
    for (path, value) in [
        ("deadline", json!("soon")),
        ("governor", json!("two words")),
    ] {
        let mut wrong = form.clone();
        wrong["settings"][path] = value;
        let refused = page.post("/api/rollouts/plan", TOKEN, &wrong);
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
}
