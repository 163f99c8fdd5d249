//! Facts, hierarchical data and environment, as manifests and people see them.

use serde_json::json;

use crate::support::TestEnv;

const HIERARCHY: &str = "\
hierarchy:
  merge: deep
  order:
    - role:{{ lookup('facts.role') }}
data:
  # @validate isInt(value)
  port: 80
  names: [base]
overrides:
  role:web:
    port: 8080
    names: [web]
";

#[test]
fn a_manifest_takes_the_overrides_that_facts_pick() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        format!("{HIERARCHY}ccm:\n  resources:\n    - exec: {{name: '/bin/echo {{{{ Data.port }}}} {{{{ Data.names }}}}'}}\n"),
    );
    for (fact, line) in [
        (
            &["--fact", "role=web"][..],
            "exec#/bin/echo 8080 [base web] changed",
        ),
        (&[], "exec#/bin/echo 80 [base] changed"),
    ] {
        let text = env
            .ccm(&[&["apply", "m.yaml", "--no-report"], fact].concat())
            .ok();
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn facts_of_the_command_line_win_over_those_of_a_file() {
    let env = TestEnv::new();
    env.write("facts.yaml", "role: file\nother: kept\n");
    env.write(
        "m.yaml",
        "ccm:\n  resources:\n    - exec: {name: '/bin/echo {{ Facts.role }} {{ Facts.other }}'}\n",
    );
    let args = [
        "apply",
        "m.yaml",
        "--facts",
        "facts.yaml",
        "--fact",
        "role=cli",
    ];
    let text = env.ccm(&args).ok();
    assert!(text.contains("exec#/bin/echo cli kept changed"), "{text}");
}

#[test]
fn system_facts_are_there_under_both_spellings() {
    let env = TestEnv::new();
    let name = env.ccm(&["facts", "host.info.hostname"]).json();
    env.write(
        "t",
        "{{ Facts.host.info.hostname }} {{ Facts.host.info.Hostname }} {{ lookup('facts.host.info.hostname') }}",
    );
    let name = name.as_str().unwrap();
    assert_eq!(
        env.ccm(&["template", "t"]).ok(),
        format!("{name} {name} {name}")
    );
}

#[test]
fn data_that_breaks_its_annotations_is_refused_before_anything_is_touched() {
    let env = TestEnv::new();
    env.write(
        "m.yaml",
        "data:\n  # @require\n  name: ''\n  # @validate isInt(value)\n  port: many\nccm:\n  resources:\n    - exec: {name: /bin/true}\n",
    );
    let error = env.ccm(&["apply", "m.yaml"]).error(2);
    assert!(
        error.contains("key \"name\" is required but has no value"),
        "{error}"
    );
    assert!(
        error.contains("key \"port\" failed validation \"isInt(value)\""),
        "{error}"
    );
}

#[test]
fn a_source_of_data_is_laid_over_the_manifests_own() {
    let mut env = TestEnv::new();
    env.write("m.yaml", "data: {a: own, b: own}\nccm:\n  resources:\n    - exec: {name: '/bin/echo {{ Data.a }} {{ Data.b }}'}\n");
    env.write("more.yaml", "data: {b: more}\n");
    let text = env.ccm(&["apply", "m.yaml", "--hiera", "more.yaml"]).ok();
    assert!(text.contains("exec#/bin/echo own more changed"), "{text}");
    let error = env
        .ccm(&["apply", "m.yaml", "--hiera", "gone.yaml"])
        .error(1);
    assert!(error.contains("file not found: $DIR/gone.yaml"), "{error}");
    env.set("CCM_HIERA_DATA", "more.yaml");
    let text = env.ccm(&["apply", "m.yaml"]).ok();
    assert!(text.contains("exec#/bin/echo own more changed"), "{text}");
}

#[test]
fn ensure_reads_the_hiera_file_beside_it_if_there_is_one() {
    let env = TestEnv::new();
    let args = [
        "ensure",
        "exec",
        "/bin/echo {{ lookup('data.word', 'none') }}",
    ];
    let text = env.ccm(&args).ok();
    assert!(text.contains("exec#/bin/echo none changed"), "{text}");
    env.write(".hiera", "data: {word: found}\n");
    let text = env.ccm(&args).ok();
    assert!(text.contains("exec#/bin/echo found changed"), "{text}");
}

#[test]
fn hiera_parse_prints_data_in_every_form() {
    let env = TestEnv::new();
    env.write("h.yaml", HIERARCHY);
    let parse = |args: &[&str]| env.ccm(&[&["hiera", "parse", "h.yaml"], args].concat());
    assert_eq!(
        parse(&["role=web"]).json(),
        json!({"names": ["base", "web"], "port": 8080})
    );
    assert_eq!(parse(&["--yaml"]).ok(), "names:\n- base\nport: 80\n");
    assert_eq!(
        parse(&["--env"]).ok(),
        "HIERA_NAMES=[\"base\"]\nHIERA_PORT=80\n"
    );
    assert_eq!(
        parse(&["--env", "--env-prefix", "X", "-D", "port=81"]).ok(),
        "X_NAMES=[\"base\"]\nX_PORT=81\n"
    );
    assert_eq!(parse(&["--query", "names.0"]).ok(), "\"base\"\n");
    assert_eq!(parse(&["--query", "nope"]).ok(), "null\n");
    let error = parse(&["-D", "port=many"]).error(1);
    assert!(error.contains("key \"port\" failed validation"), "{error}");
}

#[test]
fn hiera_facts_come_in_layers() {
    let mut env = TestEnv::new();
    env.write("f.yaml", "a: file\nb: file\n");
    env.set("A", "x=y");
    let args = ["hiera", "facts", "b=given", "--facts", "f.yaml", "-E"];
    let facts = env.ccm(&args).json();
    assert_eq!(facts["a"], "file");
    assert_eq!(facts["b"], "given");
    assert_eq!(facts["A"], "x=y");
    assert!(facts["host"]["info"]["hostname"].is_string());
    let query = |path: &str| env.ccm(&[&args[..], &["--query", path]].concat()).ok();
    assert_eq!(query("b"), "given\n");
    assert_eq!(query("none"), "\n");
}

#[test]
fn facts_can_be_queried_and_a_miss_is_an_error() {
    let env = TestEnv::new();
    assert_eq!(env.ccm(&["facts", "host.info.os"]).ok(), "\"linux\"\n");
    assert_eq!(
        env.ccm(&["facts", "host.info.os", "--yaml"]).ok(),
        "linux\n"
    );
    let error = env.ccm(&["facts", "host.nothing"]).error(1);
    assert!(
        error.contains("no fact matches \"host.nothing\""),
        "{error}"
    );
    assert_eq!(env.ccm(&["facts", "nothing", "--yaml"]).ok(), "null\n");
}

#[test]
fn the_examples_do_what_they_say() {
    let env = TestEnv::new();
    let example = |name: &str| {
        format!(
            "{}/examples/{name}/manifest.yaml",
            env!("CARGO_MANIFEST_DIR")
        )
    };
    let render = |name: &str, flags: &[&str]| {
        let manifest = example(name);
        env.ccm(&[&["apply", manifest.as_str(), "--render"], flags].concat())
            .ok()
    };
    assert!(render("hierarchy", &["--fact", "role=db"]).contains("motd: a database"));
    assert!(render("hierarchy", &[]).contains("workers: 8"));
    let jet = render("jet", &[]);
    assert!(
        jet.contains("/tmp/ccm-example/shop.conf") && jet.contains("listen 8081"),
        "{jet}"
    );
    let node = [
        "--fact",
        "root=/srv/node",
        "--fact",
        "owner=root",
        "--fact",
        "group=root",
    ];
    let fleet = render("fleet", &[&node[..], &["--fact", "site=fra"]].concat());
    assert!(
        fleet.contains("/srv/node/shop.conf") && fleet.contains("port: 8443"),
        "{fleet}"
    );
    let nested = env
        .ccm(&["apply", &example("nested"), "--noop", "--json"])
        .json();
    let contents: Vec<_> = nested["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|event| event["properties"]["content"].as_str())
        .collect();
    assert_eq!(contents, ["example.net\n", "www.example.net:80\n"]);
}

#[test]
fn a_manifest_with_a_wrong_hierarchy_or_override_is_refused_although_no_level_matches() {
    let env = TestEnv::new();
    for (section, reason) in [
        (
            "hierarchy: {order: [default], merge: depp}",
            "unsupported merge mode: depp",
        ),
        (
            "overrides: {a: 5}",
            "overrides \"a\" must be a mapping, found a number",
        ),
    ] {
        env.write(
            "m.yaml",
            format!("{section}\nccm:\n  resources:\n    - exec: {{name: /usr/bin/touch made}}\n"),
        );
        let error = env.ccm(&["apply", "m.yaml"]).error(2);
        assert!(error.contains(reason), "{error}");
    }
    assert!(!env.exists("made"));
}

#[test]
fn yaml_output_quotes_timestamps_and_keeps_infinities() {
    let env = TestEnv::new();
    env.write(
        "d.yaml",
        "data: {at: '2026-05-01T10:00:00Z', day: '2026-05-01 10:00:00', up: .inf, down: -.inf, none: .nan}\n",
    );
    let text = env.ccm(&["hiera", "parse", "d.yaml", "--yaml"]).ok();
    assert_eq!(
        text,
        "at: \"2026-05-01T10:00:00Z\"\nday: \"2026-05-01 10:00:00\"\ndown: -.inf\nnone: .nan\nup: .inf\n"
    );
}

/// A manifest that prints its data, with a file per environment.
fn write_environments(env: &TestEnv) {
    env.write(
        "site/manifest.yaml",
        "hierarchy:
  order: ['data/{{ Facts.env }}.yaml']
  merge: {vhosts: replace}
data:
  vhosts: [dev]
  packages: [base]
ccm:
  resources:
    - exec: {name: '/bin/echo {{ Data.vhosts }} {{ Data.packages }}'}
",
    );
    env.write("site/data/prod.yaml", "vhosts: [prod]\npackages: [extra]\n");
}

#[test]
fn a_manifest_takes_the_data_files_that_facts_pick() {
    let env = TestEnv::new();
    write_environments(&env);
    for (fact, line) in [
        ("env=prod", "exec#/bin/echo [prod] [base extra] changed"),
        ("env=none", "exec#/bin/echo [dev] [base] changed"),
        ("other=x", "exec#/bin/echo [dev] [base] changed"),
    ] {
        let text = env.ccm(&["apply", "site", "--fact", fact]).ok();
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn a_list_is_replaced_where_the_manifest_says_so() {
    let env = TestEnv::new();
    write_environments(&env);
    env.write("over.yaml", "data: {vhosts: [over], packages: [more]}\n");
    let args = [
        "apply",
        "site",
        "--fact",
        "env=prod",
        "--hiera",
        "over.yaml",
    ];
    let text = env.ccm(&args).ok();
    let line = "exec#/bin/echo [over] [base extra more] changed";
    assert!(text.contains(line), "{text}");
}

#[test]
fn a_data_file_outside_the_directory_of_the_manifest_is_refused() {
    let env = TestEnv::new();
    write_environments(&env);
    env.write("secret.yaml", "vhosts: [stolen]\n");
    std::os::unix::fs::symlink("../../secret.yaml", env.path("site/data/link.yaml")).unwrap();
    for fact in ["env=../../secret", "env=link"] {
        let failed = env.ccm(&["apply", "site", "--fact", fact]).error(2);
        assert!(!failed.contains("stolen"), "{failed}");
    }
    let manifest = env.read("site/manifest.yaml");
    let absolute = manifest.replace("data/{{ Facts.env }}.yaml", &env.at("secret.yaml"));
    env.write("site/manifest.yaml", absolute);
    let failed = env.ccm(&["apply", "site"]).error(2);
    assert!(!failed.contains("stolen"), "{failed}");
}

#[test]
fn the_error_of_a_data_file_names_it_before_anything_is_changed() {
    let env = TestEnv::new();
    write_environments(&env);
    env.write("site/data/prod.yaml", "vhosts: [prod\n");
    let failed = env.ccm(&["apply", "site", "--fact", "env=prod"]).error(2);
    assert!(failed.contains("data/prod.yaml"), "{failed}");
    assert!(!failed.contains("changed"), "{failed}");
}

#[test]
fn a_nested_manifest_has_the_data_files_of_its_own_directory() {
    let env = TestEnv::new();
    write_environments(&env);
    env.write(
        "m.yaml",
        "ccm: {resources: [{apply: [{site/manifest.yaml: {data: {}}}]}]}\n",
    );
    let text = env.ccm(&["apply", "m.yaml", "--fact", "env=prod"]).ok();
    assert!(
        text.contains("exec#/bin/echo [prod] [base extra]"),
        "{text}"
    );
}

#[test]
fn an_explanation_names_the_level_of_a_value() {
    let env = TestEnv::new();
    write_environments(&env);
    let args = [
        "hiera", "explain", "vhosts", "env=prod", "-m", "site", "--json",
    ];
    let text = env.ccm(&args).ok();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        found,
        json!({
            "key": "vhosts",
            "merge": "replace",
            "merge_key": "vhosts",
            "levels": [
                {"level": "data", "effect": "sets", "value": ["dev"], "used": false},
                {
                    "level": "data/{{ Facts.env }}.yaml",
                    "name": "data/prod.yaml",
                    "effect": "replaces",
                    "value": ["prod"],
                    "used": true
                },
            ],
            "value": ["prod"]
        })
    );
}
