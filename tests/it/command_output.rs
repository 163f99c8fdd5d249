//! What commands print: in failures, events and replies, on one node and on many.

use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::agent::stored_events;
use crate::support::fleet::Fleet;
use crate::support::packages::write_nginx_module;
use crate::support::poll::wait_for;

/// Returns the only event of a type and outcome in the stream.
fn stored(fleet: &Fleet, type_name: &str, outcome: &str) -> Value {
    let end = format!(".{type_name}.{outcome}");
    wait_for("the event in the stream", || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let events = runtime.block_on(stored_events(&fleet.server));
        let mut events = events.into_iter();
        let found = events.find(|(subject, _)| subject.ends_with(&end));
        found.map(|(_, event)| event)
    })
}

#[test]
fn a_failed_exec_says_what_it_printed_and_repeats_nothing() {
    let env = TestEnv::new();
    let applied = env.apply(
        "- exec: {name: c, provider: shell, command: 'echo begun; echo no disk >&2; exit 2'}\n",
        &[],
    );
    assert_eq!(
        applied.failure(0),
        "failed to reach desired state: exit code 2 not in allowed returns [0]: no disk"
    );
    assert_eq!(applied.event(0)["output"], "begun\nno disk");
}

#[test]
fn long_output_is_cut_to_its_end_without_control_characters() {
    let env = TestEnv::new();
    let script = env.write(
        "s.sh",
        "seq 1 400000\nprintf '\\033[31mlast\\033[0m\\a\\n' >&2\nexit 1\n",
    );
    let applied = env.apply(
        &format!("- exec: {{name: c, command: 'sh {script}'}}\n"),
        &[],
    );
    let output = applied.event(0)["output"].as_str().unwrap();
    assert!(output.ends_with("\n399999\n400000\nlast"), "{output:?}");
    assert!(output.lines().count() <= 20 && output.len() <= 4096);
    assert!(applied.failure(0).ends_with("[0]: last"));
}

#[test]
fn a_command_that_is_killed_says_what_it_printed() {
    let env = TestEnv::new();
    let applied = env.apply(
        "- exec: {name: c, provider: shell, command: 'echo half done; sleep 1d', timeout: 300ms}\n",
        &[],
    );
    let failure = applied.failure(0);
    assert!(failure.contains("timed out after"), "{failure}");
    assert!(failure.ends_with(": half done"), "{failure}");
    assert_eq!(applied.event(0)["output"], "half done");
}

#[test]
fn a_sensitive_command_has_no_output_in_its_event() {
    let env = TestEnv::new();
    for command in ["echo s3cret; exit 1", "echo s3cret; kill $$", "echo s3cret"] {
        let applied = env.apply(
            &format!(
                "- exec: {{name: c, provider: shell, command: '{command}', sensitive: true, logoutput: true}}\n"
            ),
            &[],
        );
        let event = applied.event(0).as_object().unwrap().clone();
        assert!(!event.contains_key("output"), "{event:?}");
    }
}

#[test]
fn secrets_in_printed_urls_are_redacted() {
    let env = TestEnv::new();
    let applied = env.apply(
        "- exec: {name: c, provider: shell, command: 'echo get https://ann:s3cret@h/x >&2; exit 1'}\n",
        &[],
    );
    let event = applied.event(0);
    assert_eq!(event["output"], "get https://REDACTED@h/x");
    assert!(!event["error"].to_string().contains("s3cret"), "{event:#}");
}

#[test]
fn a_failed_health_check_says_what_it_found() {
    let env = TestEnv::new();
    let check = env.write(
        "check.sh",
        "echo 'disk is full | use=97%'\necho traced >&2\nexit 2\n",
    );
    let applied = env.apply(
        &format!("- exec: {{name: /bin/true, health_checks: [{{command: 'sh {check}'}}]}}\n"),
        &[],
    );
    assert_eq!(
        applied.failure(0),
        "health check status \"CRITICAL\": disk is full"
    );
    assert_eq!(applied.event(0)["output"], "disk is full | use=97%\ntraced");
    let applied = env.apply(
        "- exec:\n    name: /bin/true\n    health_checks:\n      - goss_rules: {file: {/none: {exists: true}}}\n",
        &[],
    );
    assert_eq!(
        applied.failure(0),
        "health check status \"CRITICAL\": File: /none: exists"
    );
}

#[test]
fn a_failed_post_command_has_its_output_in_the_event() {
    let env = TestEnv::new();
    env.write("src/a.txt", "x");
    let script = env.write("post.sh", "seq 1 100\necho broken >&2\nexit 3\n");
    let applied = env.apply(
        &format!(
            "- scaffold: {{name: {}, source: {}, ensure: present, post: [{{'*': '/bin/sh {script}'}}]}}\n",
            env.at("out"),
            env.at("src")
        ),
        &[],
    );
    let output = applied.event(0)["output"].as_str().unwrap();
    assert!(output.ends_with("\n100\nbroken\n"), "{output:?}");
    assert_eq!(output.lines().count(), 20);
    assert!(applied.failure(0).starts_with("failed to post process "));
}

#[test]
fn output_of_many_nodes_is_gathered_and_folded() {
    let fleet = Fleet::of_three();
    let command = "/bin/sh -c 'echo {{ Facts.node }} | tr -d 0-9; echo warned >&2'";
    for flag in ["--output", "--logoutput"] {
        let stdout = fleet.run(&["ensure", "exec", command, "--all", flag]).ok();
        let blocks = "web1, web2: output:\nweb\nweb1, web2: error output:\nwarned\n\
                      db1: output:\ndb\ndb1: error output:\nwarned\n";
        assert!(stdout.starts_with(blocks), "{stdout}");
        assert!(stdout.ends_with("3 nodes: 3 changed\n"), "{stdout}");
    }
    let stdout = fleet.run(&["ensure", "exec", command, "--all"]).ok();
    assert!(!stdout.contains("output"), "{stdout}");
    let many = "seq 1 2000";
    let document = fleet
        .run(&[
            "ensure", "exec", many, "--node", "db1", "--output", "--json",
        ])
        .json();
    let output = &document["nodes"][0]["reply"]["output"];
    let lines = output["stdout"].as_str().unwrap().lines().count();
    assert_eq!(lines, 2000, "{output}");
    assert_eq!(output["truncated"], Value::Null);
    let long = document["nodes"][0]["reply"]["state"]["output"].as_str();
    assert_eq!(long.unwrap().lines().count(), 20);
}

#[test]
fn a_failure_on_a_node_reaches_the_terminal_and_the_stream() {
    let fleet = Fleet::start(&[("a", &[])]);
    let outcome = fleet.run(&["ensure", "exec", "ls /no/such/file", "--all"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let line = "a: exec#ls /no/such/file failed: failed to reach desired state: exit code 2 not in \
                allowed returns [0]: ls: cannot access '/no/such/file': No such file or directory\n";
    assert!(outcome.stdout.starts_with(line), "{outcome:?}");
    let event = stored(&fleet, "exec", "failed");
    assert_eq!(
        event["output"],
        "ls: cannot access '/no/such/file': No such file or directory"
    );
}

#[test]
fn a_command_runs_once_under_a_name_of_its_own() {
    let fleet = Fleet::of_three();
    let log = fleet.env.at("log");
    let output = fleet
        .run(&[
            "run",
            "--group",
            "web",
            "--",
            "/bin/sh",
            "-c",
            &format!("echo it\\'s >> {log}; cat {log} | head -1"),
        ])
        .ok();
    assert!(output.ends_with("2 nodes: 2 changed\n"), "{output}");
    assert!(
        output.starts_with("web1, web2: output:\nit's\n"),
        "{output}"
    );
    assert_eq!(fleet.env.read("log"), "it's\nit's\n");
    let document = fleet
        .run(&["run", "--node", "db1", "--json", "--", "echo", "a b"])
        .json();
    let answer = &document["nodes"][0]["reply"];
    assert_eq!(answer["output"], json!({"stdout": "a b\n"}));
    let name = answer["state"]["name"].as_str().unwrap();
    assert!(name.starts_with("run-") && name.len() == 31, "{name}");
    let outcome = fleet.run(&["run", "--shell", "--node", "db1", "--", "echo out; exit 3"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome.stdout.starts_with("db1: output:\nout\n"),
        "{outcome:?}"
    );
    assert!(
        outcome
            .stdout
            .contains("exit code 3 not in allowed returns [0]: out\n")
    );
    let error = fleet.run(&["run", "--", "true"]).error(2);
    assert!(error.contains("no nodes selected"), "{error}");
}

#[test]
fn a_command_is_run_exactly_as_typed() {
    let fleet = Fleet::start(&[("a", &[])]);
    let directory = fleet.env.at("${dir}");
    std::fs::create_dir(&directory).unwrap();
    let run = |args: &[&str]| {
        let document = fleet
            .run(&[&["run", "--all", "--json"], args].concat())
            .json();
        let reply = document["nodes"][0]["reply"]["output"]["stdout"].clone();
        reply.as_str().unwrap().to_owned()
    };
    let format = "{{.Names}} ${ Facts.node } {{ Facts.node }}";
    assert_eq!(run(&["--", "echo", format]), format!("{format}\n"));
    assert_eq!(
        run(&["--shell", "-e", "A={{ 1 }}", "--", "echo ${A}${B:-none}"]),
        "{{ 1 }}none\n"
    );
    assert_eq!(run(&["--cwd", &directory, "--", "pwd"]), "$DIR/${dir}\n");
}

#[test]
fn a_policy_for_commands_holds_for_a_command_exactly_as_typed() {
    let mut fleet = Fleet::start(&[]);
    let key = fleet.env.ccm(&["keys", "new", "ops.seed"]).ok();
    let public = key
        .split_whitespace()
        .find(|word| word.len() == 56)
        .unwrap();
    let trust = format!(
        "trust:\n  signers:\n    - name: ops\n      key: {public}\n      policy:\n\
         \x20       - {{verbs: [ensure], types: [exec], commands: [\"echo '{{{{.Names}}}}'\"]}}\n"
    );
    fleet.add("a", &[], &trust);
    fleet.settle(1);
    fleet.env.set("CCM_SIGN_WITH", &fleet.env.at("ops.seed"));
    let allowed = fleet.run(&["run", "--node", "a", "--", "echo", "{{.Names}}"]);
    let output = allowed.ok();
    assert!(output.starts_with("a: output:\n{{.Names}}\n"), "{output}");
    let denied = fleet.run(&["run", "--node", "a", "--", "echo", "{{.Ids}}"]);
    assert_eq!(denied.code, Some(1), "{denied:?}");
    assert!(denied.stdout.contains("denied by policy"), "{denied:?}");
}

#[test]
fn a_change_names_the_old_and_the_new_state() {
    let fleet = Fleet::start(&[("a", &[]), ("b", &[])]);
    let path = fleet.env.at("{{ Facts.node }}.conf");
    let ensure = |flags: &[&str]| {
        let mut args = vec!["ensure", "file", path.as_str(), "--all"];
        args.extend(flags);
        fleet.run(&args).ok()
    };
    let output = ensure(&["--content", "one"]);
    assert!(output.contains("a.conf changed to present\n"), "{output}");
    let output = ensure(&["--content", "one", "--mode", "0600"]);
    assert!(
        output.contains("a.conf changed: mode 0644 -> 0600\n"),
        "{output}"
    );
    let output = ensure(&["--content", "two", "--mode", "0600", "--noop"]);
    assert!(
        output.contains("a.conf would change: content or attributes differ\n"),
        "{output}"
    );
    let output = ensure(&["--content", "two", "--mode", "0600"]);
    assert!(output.contains("b.conf changed: content\n"), "{output}");
    let event = stored(&fleet, "file", "noop");
    assert_eq!(event["previous"]["mode"], "0600", "{event:#}");
    assert_eq!(event["previous"]["owner"], "root");
}

#[test]
fn an_upgrade_on_many_nodes_is_one_line_with_both_versions() {
    let fleet = Fleet::start(&[("a", &[]), ("b", &[])]);
    let [provider, _] = ["a", "b"].map(|node| write_nginx_module(&fleet.env, node));
    let provider = provider.replace("/a/module", "/{{ Facts.node }}/module");
    let ensure = ["ensure", "package", "nginx", "1.24", "--all"];
    let output = fleet
        .run(&[&ensure[..], &["--provider", &provider]].concat())
        .ok();
    let line = "a, b: package#nginx changed 1.22 -> 1.24\n";
    assert!(output.starts_with(line), "{output}");
}
