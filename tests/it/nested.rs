//! Manifests that apply manifests: data, modes, counts and limits.

use crate::support::TestEnv;

fn child(env: &TestEnv, name: &str, resources: &str) {
    env.write(
        name,
        format!("data: {{word: own, list: [1]}}\nccm:\n  resources:\n{resources}"),
    );
}

#[test]
fn a_child_runs_in_its_parents_session_and_is_counted() {
    let env = TestEnv::new();
    child(
        &env,
        "sub/child.yaml",
        "    - exec: [{a: {command: /bin/true}}, {b: {command: /bin/true, refreshonly: true}}]\n",
    );
    let applied = env.apply(
        "- apply: {name: sub/child.yaml}\n- exec: {name: after, command: /bin/true, require: ['exec#a', 'apply#sub/child.yaml']}\n",
        &[],
    );
    assert_eq!(
        applied.outcomes(),
        ["changed", "stable", "changed", "changed"]
    );
    let event = applied.event(2);
    assert_eq!(event["provider"], "ccmmanifest");
    assert_eq!(
        event["status"]["protocol"],
        "io.choria.ccm.v1.resource.apply.state"
    );
    assert_eq!(event["status"]["resource_count"], 2);
    assert_eq!(event["status"]["changed_count"], 1);
    assert_eq!(event["status"]["failed_count"], 0);
}

#[test]
fn a_failed_child_fails_its_apply() {
    let env = TestEnv::new();
    child(
        &env,
        "child.yaml",
        "    - exec: [{a: {command: /bin/false}}, {b: {command: /bin/true, require: ['exec#a']}}]\n",
    );
    let applied = env.apply("- apply: {name: child.yaml}\n", &[]);
    assert_eq!(applied.failure(2), "child manifest had 2 failed resources");
}

#[test]
fn lines_of_a_child_carry_its_name() {
    let env = TestEnv::new();
    child(
        &env,
        "child.yaml",
        "    - exec: {name: a, command: /bin/true}\n",
    );
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - apply: {name: child.yaml}\n",
    );
    let text = env.ccm(&["apply", "m.yaml", "--no-report"]).ok();
    for line in [
        " INFO  Executing manifest manifest=child.yaml manifest=child.yaml resources=1\n",
        " WARN  exec#a changed manifest=child.yaml ensure=present",
        " WARN  Child manifest had changes manifest=child.yaml resources=1 changed=1 failed=0 skipped=0\n",
        " WARN  apply#child.yaml changed ensure=present",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}

#[test]
fn data_is_passed_down_or_replaced_by_what_is_given() {
    let env = TestEnv::new();
    let out = env.at("out");
    child(
        &env,
        "child.yaml",
        &format!(
            "    - file: {{name: {out}, ensure: present, owner: root, group: root, mode: '0644', content: \"{{{{ Data.word }}}} {{{{ Data.list }}}} {{{{ Data.parent ?? 'none' }}}}\"}}\n"
        ),
    );
    for (apply, text) in [
        ("{name: child.yaml}", "given [1 2] yes"),
        ("{name: child.yaml, data: {}}", "own [1] none"),
        (
            "{name: child.yaml, data: {word: '{{ Data.parent }}'}}",
            "yes [1] none",
        ),
    ] {
        env.write(
            "m.yaml",
            format!("data: {{word: given, list: [2], parent: 'yes'}}\nccm:\n  resources:\n    - apply: {apply}\n"),
        );
        let _ = env.ccm(&["apply", "m.yaml"]).ok();
        assert_eq!(env.read("out"), text, "{apply}");
    }
}

#[test]
fn noop_can_be_added_but_not_taken_back() {
    let env = TestEnv::new();
    let marker = env.at("x");
    child(
        &env,
        "child.yaml",
        &format!("    - exec: {{name: /usr/bin/touch {marker}}}\n"),
    );
    let applied = env.apply("- apply: {name: child.yaml, noop: true}\n", &[]);
    assert_eq!(applied.event(0)["noop"], true);
    assert_eq!(applied.event(1)["noop"], true);
    let applied = env.apply("- apply: {name: child.yaml, noop: false}\n", &["--noop"]);
    assert_eq!(applied.event(0)["noop"], true);
    assert!(!env.exists("x"));
}

#[test]
fn health_checks_descend_into_children() {
    let env = TestEnv::new();
    child(
        &env,
        "child.yaml",
        "    - exec: {name: a, command: /bin/true, health_checks: [{command: /bin/true}]}\n",
    );
    let applied = env.apply("- apply: {name: child.yaml}\n", &["--monitor-only"]);
    assert_eq!(applied.event(0)["name"], "a");
    assert_eq!(applied.event(0)["health_check"][0]["status"], 0);
}

#[test]
fn a_manifest_that_applies_itself_ends() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - apply: {name: m.yaml}\n",
    );
    let outcome = env.ccm(&["apply", "m.yaml"]);
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome
            .stdout
            .contains("maximum apply depth of 10 exceeded"),
        "{outcome:?}"
    );
}

#[test]
fn children_that_apply_can_be_denied_before_they_run() {
    let env = TestEnv::new();
    let marker = env.at("x");
    child(
        &env,
        "grandchild.yaml",
        "    - exec: {name: a, command: /bin/true}\n",
    );
    child(
        &env,
        "child.yaml",
        &format!(
            "    - exec: {{name: /usr/bin/touch {marker}}}\n    - apply: {{name: grandchild.yaml}}\n"
        ),
    );
    let applied = env.apply("- apply: {name: child.yaml, allow_apply: false}\n", &[]);
    assert_eq!(applied.failure(0), "apply resources are denied");
    assert!(!env.exists("x"));
    let applied = env.apply("- apply: {name: child.yaml}\n", &[]);
    assert_eq!(applied.outcomes(), ["changed"; 4]);
}

#[test]
fn problems_of_a_child_name_its_file() {
    let env = TestEnv::new();
    child(&env, "child.yaml", "    - exec: {nam: a}\n");
    let applied = env.apply("- apply: {name: child.yaml}\n", &[]);
    assert_eq!(
        applied.failure(0),
        "invalid manifest resource 1: unknown property \"nam\", did you mean \"name\"? (exec at child.yaml:4:14)"
    );
}

#[test]
fn a_child_can_require_a_resource_of_its_parent() {
    let env = TestEnv::new();
    child(
        &env,
        "child.yaml",
        "    - exec: [{inner: {command: /bin/true, require: ['exec#outer']}}]\n",
    );
    let applied = env.apply(
        "- exec: [{outer: {command: /bin/true}}]\n- apply: [{child.yaml: {}}]\n",
        &[],
    );
    assert_eq!(applied.outcomes(), ["changed"; 3]);
}

#[test]
fn a_failed_resource_of_a_parent_skips_what_requires_it_in_a_child() {
    let env = TestEnv::new();
    child(
        &env,
        "child.yaml",
        "    - exec: [{inner: {command: /bin/true, require: ['exec#outer']}}]\n",
    );
    let applied = env.apply(
        "- exec: [{outer: {command: /bin/false}}]\n- apply: [{child.yaml: {}}]\n",
        &[],
    );
    assert_eq!(applied.outcomes(), ["failed", "skipped", "failed"]);
    assert_eq!(applied.event(1)["unmet_requirements"][0], "exec#outer");
}

#[test]
fn a_child_can_require_a_resource_of_an_earlier_child() {
    let env = TestEnv::new();
    child(
        &env,
        "first.yaml",
        "    - exec: [{one: {command: /bin/true, alias: uno}}]\n",
    );
    child(
        &env,
        "second.yaml",
        "    - exec: [{two: {command: /bin/true, require: ['exec#uno', 'apply#first.yaml']}}]\n",
    );
    let applied = env.apply("- apply: [{first.yaml: {}}, {second.yaml: {}}]\n", &[]);
    assert_eq!(applied.outcomes(), ["changed"; 4]);
}

#[test]
fn a_child_cannot_require_a_later_resource_of_its_parent() {
    let env = TestEnv::new();
    child(
        &env,
        "child.yaml",
        "    - exec: [{inner: {command: /bin/true, require: ['exec#later']}}]\n",
    );
    let applied = env.apply(
        "- apply: [{child.yaml: {}}]\n- exec: [{later: {command: /bin/true}}]\n",
        &[],
    );
    let error = applied.failure(0);
    assert!(error.contains("exec#later"), "{error}");
}

#[test]
fn subscriptions_reach_across_manifests() {
    let env = TestEnv::new();
    child(
        &env,
        "first.yaml",
        "    - exec: [{one: {command: /bin/true, refreshonly: true, subscribe: ['exec#outer']}}]\n",
    );
    child(
        &env,
        "second.yaml",
        "    - exec: [{two: {command: /bin/true, refreshonly: true, subscribe: ['exec#one']}}]\n",
    );
    let applied = env.apply(
        "- exec: [{outer: {command: /bin/true}}]\n\
         - apply: [{first.yaml: {}}, {second.yaml: {}}]\n\
         - exec: [{last: {command: /bin/true, refreshonly: true, subscribe: ['exec#two']}}]\n",
        &[],
    );
    let names: Vec<_> = (0..6).map(|at| applied.event(at)["name"].clone()).collect();
    assert_eq!(
        names,
        ["outer", "one", "first.yaml", "two", "second.yaml", "last"]
    );
    for at in [1, 3, 5] {
        assert_eq!(
            applied.event(at)["refreshed"],
            true,
            "{:#}",
            applied.event(at)
        );
    }
}
