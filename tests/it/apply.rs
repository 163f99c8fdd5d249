//! Manifests: from file to summary, and the errors of invalid ones.

use crate::support::TestEnv;

const FOUR: &str = "\
ccm:
  pre_message: before
  post_message: after
  resources:
    - exec:
        - ok: {command: /bin/true}
        - bad: {command: /bin/false}
        - needs-bad: {command: /bin/true, require: ['exec#bad']}
        - never: {command: /bin/true, refreshonly: true}
";

#[test]
fn lines_messages_and_summary_come_in_order() {
    let env = TestEnv::new();
    env.write("m.yaml", FOUR);
    let outcome = env.ccm(&["apply", "m.yaml"]);
    assert_eq!(outcome.code, Some(1));
    let text: String = outcome
        .stdout
        .lines()
        .map(|line| {
            let mut words: Vec<&str> = line.split(' ').collect();
            words.retain(|word| !word.starts_with("runtime="));
            format!("{}\n", words.join(" "))
        })
        .filter(|line| !line.contains("Run Time"))
        .collect();
    assert_eq!(
        text,
        "
before
 INFO  Executing manifest manifest=m.yaml resources=4
 WARN  exec#ok changed ensure=present provider=posix
 ERROR exec#bad failed ensure=present provider=posix errors=failed to reach desired state: exit code 1 not in allowed returns [0]
 ERROR exec#needs-bad skipped due to unmet requirement ensure=present provider=posix unmet=exec#bad
 INFO  exec#never stable ensure=present provider=posix

Manifest Run Summary

      Total Resources: 4
     Stable Resources: 1
    Changed Resources: 1
     Failed Resources: 1
    Skipped Resources: 1
  Refreshed Resources: 0
   Unmet Requirements: 1
    Checked Resources: 0
         Total Errors: 1
"
    );
}

#[test]
fn the_post_message_is_shown_when_nothing_failed() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "ccm:\n  post_message: after\n  resources:\n    - exec: {name: /bin/true}\n",
    );
    let text = env.ccm(&["apply", "m.yaml", "--no-report"]).ok();
    assert!(text.ends_with("\nafter\n"), "{text}");
}

#[test]
fn fail_on_error_stops_after_the_first_failure() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        FOUR.replace("ccm:\n", "ccm:\n  fail_on_error: true\n"),
    );
    let outcome = env.ccm(&["apply", "m.yaml"]);
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome
            .stdout
            .contains(" WARN  Terminating manifest execution due to failed resource\n"),
        "{outcome:?}"
    );
    assert!(!outcome.stdout.contains("needs-bad"), "{outcome:?}");
}

#[test]
fn exit_codes_can_tell_changed_from_failed() {
    let env = TestEnv::new();
    for (commands, code) in [
        ("[{a: {command: /bin/true}}]", 2),
        ("[{a: {command: /bin/false}}]", 4),
        ("[{a: {command: /bin/true}}, {b: {command: /bin/false}}]", 6),
        ("[{a: {command: /bin/true, refreshonly: true}}]", 0),
    ] {
        env.write(
            "m.yaml",
            format!("ccm: {{resources: [{{exec: {commands}}}]}}\n"),
        );
        let outcome = env.ccm(&["apply", "m.yaml", "--detailed-exitcodes"]);
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
    }
}

#[test]
fn render_prints_the_resolved_manifest_and_runs_nothing() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "data: {word: zsh}\nccm:\n  resources:\n    - exec:\n        - defaults: {timeout: 5s}\n        - /bin/true:\n        - say: {command: '/bin/echo {{ Data.word }}', alias: '{{ Data.word }}'}\n",
    );
    let text = env.ccm(&["apply", "m.yaml", "--render"]).ok();
    assert_eq!(
        text,
        "\
ccm:
  fail_on_error: false
  resources:
  - exec:
      name: /bin/true
      ensure: present
      command: \"\"
      timeout: 5s
  - exec:
      name: say
      alias: zsh
      ensure: present
      command: /bin/echo {{ Data.word }}
      timeout: 5s
data:
  word: zsh

"
    );
}

#[test]
fn deferred_properties_see_what_earlier_resources_made() {
    let env = TestEnv::new();
    let (made, copy) = (env.at("made"), env.at("copy"));
    let applied = env.apply(
        &format!(
            "- exec: {{name: make, provider: shell, command: 'echo fresh > {made}'}}
- file: {{name: {copy}, ensure: present, content: \"{{{{ readFile('made') }}}}\", owner: root, group: root, mode: '0644'}}\n"
        ),
        &[],
    );
    assert_eq!(
        applied.outcomes(),
        ["changed", "changed"],
        "{:#}",
        applied.document
    );
    assert_eq!(env.read("copy"), "fresh\n");
    assert_eq!(applied.event(1)["properties"]["content"], "fresh\n");
}

#[test]
fn a_resolved_property_is_not_resolved_again() {
    let env = TestEnv::new();
    env.write("tricky", "{{ 1 + 1 }}");
    let copy = env.at("copy");
    let applied = env.apply(
        &format!("- file: {{name: {copy}, ensure: present, content: \"{{{{ readFile('tricky') }}}}\", owner: root, group: root, mode: '0644'}}\n"),
        &[],
    );
    assert_eq!(applied.outcomes(), ["changed"]);
    assert_eq!(env.read("copy"), "{{ 1 + 1 }}");
}

#[test]
fn control_skips_and_leaves_templates_alone() {
    let env = TestEnv::new();
    for (control, outcome) in [
        ("{if: 'true'}", "changed"),
        ("{if: 'false'}", "skipped"),
        ("{unless: 'true'}", "skipped"),
        ("{if: 'true', unless: 'true'}", "skipped"),
        ("{if: 'false', unless: 'false'}", "skipped"),
        ("{if: 'Data.missing'}", "skipped"),
    ] {
        let applied = env.apply(
            &format!("- exec: {{name: /bin/true, control: {control}}}\n"),
            &[],
        );
        assert_eq!(applied.outcomes(), [outcome], "{control}");
    }
    let applied = env.apply(
        "- exec: {name: x, command: '{{ nosuch() }}', control: {if: 'false'}, health_checks: [{command: /bin/false}]}\n",
        &[],
    );
    assert_eq!(applied.outcomes(), ["skipped"]);
    assert_eq!(applied.event(0)["properties"]["command"], "{{ nosuch() }}");
    assert_eq!(applied.event(0).get("health_check"), None);
}

#[test]
fn a_broken_control_expression_is_found_before_anything_is_touched() {
    let env = TestEnv::new();
    let marker = env.at("x");
    env.write(
        "m.yaml",
        format!("ccm:\n  resources:\n    - exec: {{name: /usr/bin/touch {marker}}}\n    - exec: {{name: /bin/true, control: {{if: '1 +'}}}}\n"),
    );
    let error = env.ccm(&["apply", "m.yaml"]).error(2);
    assert!(
        error.starts_with("ccm: error: invalid expression: the expression is not complete"),
        "{error}"
    );
    assert!(
        error.contains(" (exec#/bin/true)\n --> m.yaml:4:48\n"),
        "{error}"
    );
    assert!(!env.exists("x"));
}

#[test]
fn health_checks_report_and_fail_as_decided() {
    let env = TestEnv::new();
    let check = |code: u8| {
        let script = env.write(
            &format!("check{code}"),
            format!("#!/bin/sh\necho said {code}\nexit {code}\n"),
        );
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        format!(
            "- exec: {{name: /bin/true, health_checks: [{{command: {script}, tries: 2, try_sleep: 1ms}}]}}\n"
        )
    };
    for (code, outcome, tries) in [
        (0, "changed", 1),
        (1, "changed", 2),
        (2, "failed", 2),
        (3, "failed", 2),
    ] {
        let applied = env.apply(&check(code), &[]);
        assert_eq!(applied.outcomes(), [outcome], "{code}");
        let result = &applied.event(0)["health_check"][0];
        assert_eq!(result["status"], code);
        assert_eq!(result["tries"], tries);
        assert_eq!(result["Output"], format!("said {code}"));
    }
    let noop = env.apply(&check(2), &["--noop"]);
    assert_eq!(noop.outcomes(), ["changed"]);
    let monitor = env.apply(&check(2), &["--monitor-only"]);
    assert_eq!(monitor.event(0)["health_check_only"], true);
    assert_eq!(monitor.event(0)["status"], serde_json::Value::Null);
    assert_eq!(
        monitor.failure(0),
        "health check status \"CRITICAL\": said 2"
    );
}

#[test]
fn noop_and_monitor_only_exclude_each_other() {
    let env = TestEnv::new();
    let error = env
        .ccm(&["apply", "m.yaml", "--noop", "--monitor-only"])
        .error(2);
    assert!(
        error.contains("cannot set healthcheck only and noop mode at the same time"),
        "{error}"
    );
}

#[test]
fn every_problem_is_reported_with_its_place_before_anything_is_touched() {
    let env = TestEnv::new();
    let marker = env.at("x");
    env.write(
        "m.yaml",
        format!(
            "\
ccm:
  fail_on_eror: true
  resources:
    - exec: {{name: /usr/bin/touch {marker}}}
    - file:
        - /etc/motd:
            ensure: present
            owner: root
            group: root
            mode: 9
        - relative: {{ensure: absent}}
    - fil: {{name: /a}}
    - exec:
        - a:
            refresh_only: true
    - {{exec: {{name: a}}, file: {{name: /a}}}}
"
        ),
    );
    let error = env.ccm(&["apply", "m.yaml"]).error(2);
    let first_lines: Vec<&str> = error
        .lines()
        .filter(|line| line.starts_with("ccm: error: ") || line.contains("--> "))
        .collect();
    assert_eq!(
        first_lines,
        [
            "ccm: error: unknown key \"fail_on_eror\"",
            " --> m.yaml:2:3",
            "ccm: error: mode \"9\" is not a valid octal number (file#/etc/motd)",
            "  --> m.yaml:10:19",
            "ccm: error: file path must be absolute (file#relative)",
            "  --> m.yaml:11:11",
            "ccm: error: unknown resource type \"fil\"",
            "  --> m.yaml:12:7",
            "ccm: error: unknown property \"refresh_only\" (exec)",
            "  --> m.yaml:15:13",
            "ccm: error: an entry must be a mapping with one resource type",
            "  --> m.yaml:16:7",
        ]
    );
    assert!(!env.exists("x"));
}

#[test]
fn a_file_that_is_no_manifest_is_refused_with_its_place() {
    let env = TestEnv::new();
    for (text, error) in [
        (
            "",
            "a manifest must be a mapping, found nothing\n --> m.yaml\n",
        ),
        (
            "- a",
            "a manifest must be a mapping, found a list\n --> m.yaml:1:1\n",
        ),
        (
            "ccm: {}\n",
            "manifest must contain resources\n --> m.yaml:1:6\n",
        ),
        (
            "data: {}\n",
            "manifest must contain resources\n --> m.yaml:1:1\n",
        ),
        (
            "ccm: {resources: []}\n",
            "manifest must contain resources\n --> m.yaml:1:7\n",
        ),
        ("a: 1\na: 2\n", "duplicate key \"a\"\n --> m.yaml:2:1\n"),
    ] {
        env.write("m.yaml", text);
        let found = env.ccm(&["apply", "m.yaml"]).error(2);
        let start = format!("ccm: error: {error}");
        assert!(found.starts_with(&start), "{text:?}: {found}");
    }
    let found = env.ccm(&["apply", "gone.yaml"]).error(2);
    assert!(
        found.contains("gone.yaml: no such file or directory"),
        "{found}"
    );
}

#[test]
fn anchors_and_texts_with_line_breaks_just_work() {
    let env = TestEnv::new();
    let f = env.at("f");
    env.write(
        "m.yaml",
        format!(
            "\
x-base: &base {{ensure: present, owner: root, group: root, mode: 0644}}
data:
  text: |
    two
    lines
ccm:
  resources:
    - file:
        - {f}:
            <<: *base
            mode: 0600
            content: |
              first
              {{{{ Data.text }}}}
"
        ),
    );
    let _ = env.ccm(&["apply", "m.yaml"]).ok();
    assert_eq!(env.read("f"), "first\ntwo\nlines\n\n");
    assert!(
        env.ccm(&["status", "file", "f"])
            .ok()
            .contains("mode: \"0600\"\n")
    );
}

#[test]
fn the_slowest_resources_are_listed_first() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec: [{quick: {command: /bin/true}}, {slow: {command: /bin/sleep 0.2}}]\n",
    );
    let text = env.ccm(&["apply", "m.yaml", "--timings"]).ok();
    let list = text.split("Slowest Resources").nth(1).unwrap();
    assert!(
        list.find("exec#slow").unwrap() < list.find("exec#quick").unwrap(),
        "{text}"
    );
}

#[test]
fn a_requirement_that_nothing_meets_is_found_before_anything_is_touched() {
    let env = TestEnv::new();
    let marker = env.at("x");
    env.write(
        "m.yaml",
        format!("ccm:\n  resources:\n    - exec: {{name: /usr/bin/touch {marker}}}\n    - exec: {{name: /bin/true, require: ['file#/none']}}\n"),
    );
    let error = env.ccm(&["apply", "m.yaml"]).error(2);
    let start = "ccm: error: cannot depend on file#/none: not defined before this resource (exec#/bin/true)\n --> m.yaml:4:41\n";
    assert!(error.starts_with(start), "{error}");
    assert!(!env.exists("x"));
}

#[test]
fn what_upstreams_schema_refuses_is_refused_before_anything_is_touched() {
    let env = TestEnv::new();
    let marker = env.at("x");
    for (entry, error) in [
        (
            "exec: {name: /bin/true, subscribe: ['Exec#x']}",
            "invalid subscribe format Exec#x",
        ),
        (
            "exec: {name: /bin/true, subscribe: ['exec#']}",
            "invalid subscribe format exec#",
        ),
        (
            "file: {name: /f, ensure: present, owner: root, group: root, mode: '77'}",
            "mode \"77\" must have three or four octal digits",
        ),
        (
            "exec: {name: /bin/true, control: x}",
            "property \"control\": expected a mapping, found text \"x\"",
        ),
    ] {
        let text = format!(
            "ccm:\n  resources:\n    - exec: {{name: /usr/bin/touch {marker}}}\n    - {entry}\n"
        );
        env.write("m.yaml", text);
        let message = env.ccm(&["apply", "m.yaml"]).error(2);
        assert!(message.contains(error), "{message}");
        assert!(!env.exists("x"));
    }
}

#[test]
fn health_checks_alone_count_every_resource_and_tell_of_those_with_checks() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec: {name: /bin/false}\n    - exec: {name: /bin/echo, control: {if: 'false'}}\n    - exec: {name: /bin/true, health_checks: [{command: /bin/true}]}\n",
    );
    let text = env.ccm(&["apply", "m.yaml", "--monitor-only"]).ok();
    for line in [
        "Total Resources: 3",
        "Stable Resources: 2",
        "Skipped Resources: 1",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(!text.contains("exec#/bin/false"), "{text}");
}

#[test]
fn health_checks_alone_need_no_requirements() {
    let env = TestEnv::new();
    let applied = env.apply(
        "- exec: {name: a, command: /bin/true}\n- exec: {name: b, command: /bin/true, require: ['exec#a'], health_checks: [{command: /bin/true}]}\n",
        &["--monitor-only"],
    );
    assert_eq!(applied.outcomes(), ["stable", "stable"]);
}

#[test]
fn resources_can_come_from_a_template_in_each_language() {
    let env = TestEnv::new();
    let list = |open: &str, item: &str, close: &str| {
        format!("{open}\n- exec:\n    name: {item}\n    command: /bin/true\n{close}\n")
    };
    env.write(
        "r.jet",
        list("[[ range data.names ]]", "[[ . ]]", "[[ end ]]"),
    );
    env.write(
        "r.tmpl",
        list("{{ range .data.names }}", "{{ . }}", "{{ end }}"),
    );
    env.write(
        "r.j2",
        list("{% for n in data.names %}", "{{ n }}", "{% endfor %}"),
    );
    for keys in [
        "resources_jet_file: r.jet",
        "resources_template: r.jet",
        "resources_template: r.tmpl\n  engine: go",
        "resources_template: r.j2\n  engine: jinja",
    ] {
        env.write(
            "m.yaml",
            format!("data: {{names: [one, two]}}\nccm:\n  {keys}\n"),
        );
        let text = env.ccm(&["apply", "m.yaml", "--no-report"]).ok();
        assert!(
            text.contains("exec#one changed") && text.contains("exec#two changed"),
            "{keys}: {text}"
        );
    }
}

#[test]
fn faults_of_a_resource_template_are_named() {
    let env = TestEnv::new();
    env.write("empty.jet", "  \n");
    env.write("broken.jet", "[[ if ]]");
    for (keys, error) in [
        (
            "resources_jet_file: empty.jet",
            "resources jet template produced no output, check for syntax errors\n --> m.yaml:2:23\n",
        ),
        (
            "resources_jet_file: empty.jet\n  resources: []",
            "jet_file and resources cannot be used together\n --> m.yaml:2:23\n",
        ),
        ("resources_jet_file: broken.jet", "\n --> broken.jet:1:"),
        (
            "resources_jet_file: gone.jet",
            "gone.jet: no such file or directory",
        ),
        (
            "resources_template: empty.jet\n  engine: jinga",
            "unknown engine \"jinga\"\n --> m.yaml:3:11\n",
        ),
    ] {
        env.write("m.yaml", format!("ccm:\n  {keys}\n"));
        let found = env.ccm(&["apply", "m.yaml"]).error(2);
        assert!(found.contains(error), "{keys}: {found}");
    }
}

#[test]
fn validate_finds_what_a_run_would_trip_over_later() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec: {name: a, command: '/bin/echo {{ 1 + }}'}\n    - exec: {name: b, command: /bin/true, subscribe: ['file#/none']}\n",
    );
    let error = env.ccm(&["validate", "m.yaml"]).error(2);
    assert!(error.contains("(exec#a)\n --> m.yaml:3:48\n"), "{error}");
    let unmet = "cannot depend on file#/none: not defined before this resource (exec#b)\n --> m.yaml:4:55\n";
    assert!(error.contains(unmet), "{error}");
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec: {name: /bin/true}\n",
    );
    assert_eq!(
        env.ccm(&["validate", "m.yaml"]).ok(),
        "m.yaml: 1 resource, no problems\n"
    );
}

#[test]
fn templates_can_be_tried_in_every_language() {
    let env = TestEnv::new();
    env.write("data.yaml", "port: 80\n");
    env.write("other.txt", "beside it");
    for (engine, text) in [
        (
            "expr",
            "{{ Data.port }} {{ Facts.color }} {{ readFile('other.txt') }}",
        ),
        (
            "jet",
            "[[ data.port ]] [[ facts.color ]] [[ readFile(\"other.txt\") ]]",
        ),
        (
            "go",
            "{{ .data.port }} {{ .facts.color }} {{ readFile \"other.txt\" }}",
        ),
        (
            "jinja",
            "{{ data.port }} {{ facts.color }} {{ readFile('other.txt') }}",
        ),
    ] {
        env.write("t", text);
        let args = [
            "template",
            "--engine",
            engine,
            "--data",
            "data.yaml",
            "--fact",
            "color=red",
            "t",
        ];
        assert_eq!(env.ccm(&args).ok(), "80 red beside it", "{engine}");
    }
    let found = env.ccm_with_input(&["template", "-"], "{{ 1 + 1 }}").ok();
    assert_eq!(found, "2");
}

#[test]
fn mistyped_flags_and_commands_are_suggested() {
    let env = TestEnv::new();
    let error = env.ccm(&["apply", "m.yaml", "--nop"]).error(2);
    assert!(error.contains("'--noop'"), "{error}");
    let error = env.ccm(&["aply"]).error(2);
    assert!(error.contains("'apply'"), "{error}");
}

#[test]
fn without_arguments_the_program_prints_its_usage() {
    let env = TestEnv::new();
    let outcome = env.ccm(&[]);
    assert_eq!(outcome.code, Some(0));
    assert!(outcome.stderr.contains("Usage: ccm"), "{outcome:?}");
}
