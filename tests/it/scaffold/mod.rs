//! The scaffold type on a real file system: every row of its decision table in noop and for real,
//! every engine, purging and removal. Archives of templates are in `archive`, post
//! commands in `post`.

mod archive;
mod post;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};

use serde_json::{Value, json};

use crate::support::{Applied, TestEnv};

/// Returns a world with a source of three files, one of them below a directory.
fn world() -> TestEnv {
    let env = TestEnv::new();
    env.write("src/a.txt", "port [[ data.port ]]\n");
    env.write("src/sub/deep/b.txt", "plain\n");
    env.write("src/sub/c.txt", "[[ render(\"_partials/p\", .) ]]");
    env.write("src/_partials/p", "partial [[ data.port ]]\n");
    env
}

/// Returns a manifest entry for a scaffold of `src` to `out` with these properties.
fn entry(env: &TestEnv, properties: &str) -> String {
    let path = env.at("out");
    format!("- scaffold:\n    - {path}: {{source: src, data: {{port: 80}}, {properties}}}\n")
}

const PRESENT: &str = "ensure: present";
const ABSENT: &str = "ensure: absent";

/// Applies an entry in noop, for real, and again; returns the noop text.
fn converge(env: &TestEnv, entry: &str) -> String {
    let before = listing(env);
    let noop = env.apply(entry, &["--noop"]);
    let event = noop.event(0).clone();
    assert_eq!(event["noop"], true, "{event:#}");
    assert_eq!(event["changed"], true, "{event:#}");
    assert_eq!(event["status"]["stable"], false, "{event:#}");
    assert_eq!(listing(env), before, "a noop run changed something");
    let real = env.apply(entry, &[]);
    assert_eq!(real.outcomes(), ["changed"], "{:#}", real.document);
    assert_eq!(real.event(0)["status"]["stable"], true);
    assert_stable(env, entry);
    event["noop_message"].as_str().unwrap().to_owned()
}

fn assert_stable(env: &TestEnv, entry: &str) {
    for flags in [&[][..], &["--noop"]] {
        let again = env.apply(entry, flags);
        assert_eq!(again.outcomes(), ["stable"], "{:#}", again.document);
        assert_eq!(again.event(0)["status"]["stable"], true);
        assert_eq!(again.event(0)["noop_message"], Value::Null);
    }
}

/// Returns every path below the target with its mode and content.
fn listing(env: &TestEnv) -> Vec<(String, u32, Vec<u8>)> {
    let mut found = Vec::new();
    let mut open = vec![env.path("out")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            let seen = path.symlink_metadata().unwrap();
            let content = if seen.is_file() {
                std::fs::read(&path).unwrap()
            } else {
                Vec::new()
            };
            if seen.is_dir() {
                open.push(path.clone());
            }
            let name = path.to_str().unwrap().to_owned();
            found.push((name, seen.mode() & 0o7777, content));
        }
    }
    found.sort();
    found
}

/// Returns the lists of the state, as paths from the target.
fn lists(env: &TestEnv, applied: &Applied) -> Value {
    let metadata = &applied.event(0)["status"]["metadata"];
    let list = |key: &str| -> Vec<String> {
        let paths = metadata[key].as_array().into_iter().flatten();
        paths
            .map(|path| path.as_str().unwrap().to_owned())
            .map(|path| path.replace("$DIR", env.root().to_str().unwrap()))
            .map(|path| path.strip_prefix(&env.at("out/")).unwrap().to_owned())
            .collect()
    };
    json!([list("changed"), list("stable"), list("purged")])
}

fn mode(env: &TestEnv, name: &str) -> u32 {
    env.path(name).symlink_metadata().unwrap().mode() & 0o7777
}

fn set_mode(env: &TestEnv, name: &str, mode: u32) {
    std::fs::set_permissions(env.path(name), PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn a_missing_target_is_made_with_all_its_files() {
    let env = world();
    let noop = env.apply(&entry(&env, PRESENT), &["--noop"]);
    assert_eq!(
        lists(&env, &noop),
        json!([["a.txt", "sub/c.txt", "sub/deep/b.txt"], [], []])
    );
    assert_eq!(
        noop.event(0)["status"]["metadata"].get("target_exists"),
        None
    );
    let text = converge(&env, &entry(&env, PRESENT));
    assert_eq!(text, "Would have changed 3 scaffold files");
    assert_eq!(env.read("out/a.txt"), "port 80\n");
    assert_eq!(env.read("out/sub/deep/b.txt"), "plain\n");
    assert_eq!(env.read("out/sub/c.txt"), "partial 80\n");
    assert!(!env.exists("out/_partials"));
    assert_eq!(mode(&env, "out"), 0o755);
    assert_eq!(mode(&env, "out/sub/deep"), 0o755);
    let again = env.apply(&entry(&env, PRESENT), &[]);
    let event = again.event(0);
    assert_eq!(event["provider"], "choria");
    assert_eq!(event["final_ensure"], "present");
    assert_eq!(event["status"]["metadata"]["engine"], "jet");
    assert_eq!(event["status"]["metadata"]["target_exists"], true);
    assert_eq!(
        lists(&env, &again),
        json!([[], ["a.txt", "sub/c.txt", "sub/deep/b.txt"], []])
    );
}

#[test]
fn only_what_differs_is_written() {
    let env = world();
    let _ = converge(&env, &entry(&env, PRESENT));
    let inode = |name: &str| env.path(name).metadata().unwrap().ino();
    let kept = inode("out/sub/c.txt");
    env.write("out/a.txt", "edited");
    let text = converge(&env, &entry(&env, PRESENT));
    assert_eq!(text, "Would have changed 1 scaffold files");
    assert_eq!(env.read("out/a.txt"), "port 80\n");
    assert_eq!(inode("out/sub/c.txt"), kept);
}

#[test]
fn every_engine_renders_the_same_file() {
    for (engine, template) in [
        (
            "jet",
            "[[ data.port ]] [[ .data.port ]] [[ lookup(\"data.port\") ]] [[ environ.NAME ]]",
        ),
        (
            "go",
            "{{ .data.port }} {{ .Data.port }} {{ lookup \"data.port\" }} {{ .environ.NAME }}",
        ),
        (
            "jinja",
            "{{ data.port }} {{ Data.port }} {{ lookup('data.port') }} {{ environ.NAME }}",
        ),
    ] {
        let mut env = TestEnv::new();
        env.set("NAME", "web");
        env.write("src/f", template);
        let _ = converge(&env, &entry(&env, &format!("{PRESENT}, engine: {engine}")));
        assert_eq!(env.read("out/f"), "80 80 80 web", "{engine}");
    }
}

#[test]
fn facts_and_data_of_the_manifest_reach_templates_unless_the_scaffold_has_data() {
    let env = TestEnv::new();
    env.write("src/f", "[[ facts.role ]] [[ data.who ]]");
    for (properties, text) in [
        ("", "web hiera"),
        ("data: {who: own}, ", "web own"),
        ("data: {}, ", "web hiera"),
    ] {
        let path = env.at("out");
        env.write(
            "m.yaml",
            format!(
                "data: {{who: hiera}}\nccm:\n  resources:\n    - scaffold:\n        - {path}: {{{properties}source: src, ensure: present}}\n"
            ),
        );
        let _ = env.ccm(&["apply", "m.yaml", "--fact", "role=web"]).ok();
        assert_eq!(env.read("out/f"), text, "{properties}");
    }
}

#[test]
fn delimiters_can_be_changed_one_by_one() {
    let env = TestEnv::new();
    env.write("src/f", "<< data.port ]] [[ x ]]");
    let _ = converge(
        &env,
        &entry(&env, &format!("{PRESENT}, left_delimiter: '<<'")),
    );
    assert_eq!(env.read("out/f"), "80 [[ x ]]");
}

#[test]
fn binary_files_are_copied_byte_by_byte() {
    let env = TestEnv::new();
    let bytes: Vec<u8> = (0..=255).rev().collect();
    env.write("src/f.bin", &bytes);
    let _ = converge(&env, &entry(&env, PRESENT));
    assert_eq!(std::fs::read(env.path("out/f.bin")).unwrap(), bytes);
}

#[test]
fn the_permissions_of_a_template_are_those_of_its_file_and_drift_is_repaired() {
    let env = TestEnv::new();
    env.write("src/run.sh", "#!/bin/sh\n");
    env.write("src/key", "x");
    set_mode(&env, "src/run.sh", 0o750);
    set_mode(&env, "src/key", 0o600);
    let _ = converge(&env, &entry(&env, PRESENT));
    assert_eq!(mode(&env, "out/run.sh"), 0o750);
    assert_eq!(mode(&env, "out/key"), 0o600);
    set_mode(&env, "out/key", 0o644);
    let text = converge(&env, &entry(&env, PRESENT));
    assert_eq!(text, "Would have changed 1 scaffold files");
    assert_eq!(mode(&env, "out/key"), 0o600);
}

#[test]
fn blank_files_are_skipped_on_demand_and_purged_if_they_were_there() {
    let env = TestEnv::new();
    env.write("src/blank", "[[ if data.no ]]x[[ end ]]\n");
    env.write("src/full", "x");
    let _ = converge(&env, &entry(&env, PRESENT));
    assert_eq!(env.read("out/blank"), "\n");
    let skipping = format!("{PRESENT}, skip_empty: true");
    assert_stable(&env, &entry(&env, &skipping));
    assert!(env.exists("out/blank"));
    let text = converge(&env, &entry(&env, &format!("{skipping}, purge: true")));
    assert_eq!(text, "Would have changed 1 scaffold files");
    assert!(!env.exists("out/blank"));
}

#[test]
fn other_files_stay_unless_they_are_purged() {
    let env = world();
    env.write("out/foreign", "1");
    env.write("out/sub/foreign", "2");
    symlink("nowhere", env.path("out/link")).unwrap();
    let _ = converge(&env, &entry(&env, PRESENT));
    let applied = env.apply(&entry(&env, PRESENT), &[]);
    assert_eq!(
        lists(&env, &applied),
        json!([
            [],
            ["a.txt", "sub/c.txt", "sub/deep/b.txt"],
            ["foreign", "link", "sub/foreign"]
        ])
    );
    assert!(env.exists("out/foreign"));
    let text = converge(&env, &entry(&env, &format!("{PRESENT}, purge: true")));
    assert_eq!(text, "Would have changed 3 scaffold files");
    for name in ["out/foreign", "out/sub/foreign", "out/link"] {
        assert!(!env.exists(name), "{name}");
    }
}

#[test]
fn purging_never_empties_the_root_of_the_system() {
    let env = world();
    let entry = "- scaffold: {name: /, source: src, ensure: present, purge: true}\n";
    let applied = env.apply(entry, &["--noop"]);
    assert_eq!(applied.failure(0), "refusing to purge /");
}

#[test]
fn absent_removes_what_the_scaffold_made_and_nothing_else() {
    let env = world();
    let _ = converge(&env, &entry(&env, PRESENT));
    env.write("out/a.txt", "edited");
    env.write("out/sub/foreign", "x");
    let text = converge(&env, &entry(&env, ABSENT));
    assert_eq!(text, "Would have removed 3 scaffold files");
    assert!(!env.exists("out/a.txt"));
    assert!(!env.exists("out/sub/deep"));
    assert_eq!(env.read("out/sub/foreign"), "x");
    let again = env.apply(&entry(&env, ABSENT), &[]);
    assert_eq!(again.event(0)["final_ensure"], "absent");
    assert_eq!(lists(&env, &again), json!([[], [], ["sub/foreign"]]));
}

#[test]
fn absent_removes_emptied_directories_and_the_target_itself() {
    let env = world();
    std::fs::create_dir(env.path("src/empty")).unwrap();
    let _ = converge(&env, &entry(&env, PRESENT));
    assert!(env.exists("out/empty"));
    let noop = env.apply(&entry(&env, ABSENT), &["--noop"]);
    assert_eq!(noop.event(0)["final_ensure"], "present");
    let _ = converge(&env, &entry(&env, ABSENT));
    assert!(!env.exists("out"));
    let again = env.apply(&entry(&env, ABSENT), &[]);
    assert_eq!(again.event(0)["final_ensure"], "absent");
    assert_eq!(
        again.event(0)["status"]["metadata"].get("target_exists"),
        None
    );
}

#[test]
fn absent_is_stable_without_a_target_and_with_only_foreign_files() {
    let env = world();
    assert_stable(&env, &entry(&env, ABSENT));
    env.write("out/foreign", "x");
    assert_stable(&env, &entry(&env, &format!("{ABSENT}, purge: true")));
    assert!(env.exists("out/foreign"));
}

#[test]
fn absent_in_noop_counts_foreign_files_as_upstream_does_when_purging() {
    let env = world();
    let _ = converge(&env, &entry(&env, PRESENT));
    env.write("out/foreign", "x");
    let entry = entry(&env, &format!("{ABSENT}, purge: true"));
    let noop = env.apply(&entry, &["--noop"]);
    assert_eq!(
        noop.event(0)["noop_message"],
        "Would have removed 4 scaffold files"
    );
}

#[test]
fn absent_reaches_nothing_through_a_link_in_the_target() {
    let env = world();
    env.write("outside/c.txt", "partial 80\n");
    std::fs::create_dir(env.path("outside/deep")).unwrap();
    std::fs::create_dir(env.path("out")).unwrap();
    env.write("out/a.txt", "port 80\n");
    symlink(env.path("outside"), env.path("out/sub")).unwrap();
    let text = converge(&env, &entry(&env, ABSENT));
    assert_eq!(text, "Would have removed 1 scaffold files");
    assert!(env.exists("outside/c.txt"));
    assert!(env.exists("outside/deep"));
}

#[test]
fn a_link_to_the_target_is_followed_and_survives_removal() {
    let env = world();
    std::fs::create_dir(env.path("real")).unwrap();
    symlink(env.path("real"), env.path("out")).unwrap();
    let _ = converge(&env, &entry(&env, PRESENT));
    assert!(env.exists("real/a.txt"));
    let _ = converge(&env, &entry(&env, ABSENT));
    assert!(env.path("out").symlink_metadata().unwrap().is_symlink());
    assert!(env.exists("real"));
}

#[test]
fn links_in_the_target_are_replaced_and_what_they_led_to_is_untouched() {
    let env = world();
    env.write("outside/c.txt", "old");
    env.write("file", "old");
    std::fs::create_dir(env.path("out")).unwrap();
    symlink(env.path("file"), env.path("out/a.txt")).unwrap();
    symlink(env.path("outside"), env.path("out/sub")).unwrap();
    let _ = converge(&env, &entry(&env, PRESENT));
    assert_eq!(env.read("file"), "old");
    assert_eq!(env.read("outside/c.txt"), "old");
    assert!(!env.path("out/sub").symlink_metadata().unwrap().is_symlink());
}

#[test]
fn what_stands_in_the_way_is_named_in_noop_too() {
    let env = world();
    std::fs::create_dir_all(env.path("out/a.txt")).unwrap();
    for flags in [&["--noop"][..], &[]] {
        let applied = env.apply(&entry(&env, PRESENT), flags);
        assert_eq!(
            applied.failure(0),
            "$DIR/out/a.txt exists as a directory; cannot manage it as a file"
        );
    }
    std::fs::remove_dir(env.path("out/a.txt")).unwrap();
    env.write("out/sub", "");
    let applied = env.apply(&entry(&env, PRESENT), &[]);
    assert_eq!(applied.failure(0), "\"$DIR/out/sub\" is not a directory");
    assert!(!env.exists("out/a.txt"));
    std::fs::remove_dir_all(env.path("out")).unwrap();
    env.write("out", "");
    let applied = env.apply(&entry(&env, PRESENT), &[]);
    assert_eq!(applied.failure(0), "\"$DIR/out\" is not a directory");
}

#[test]
fn a_source_that_makes_no_file_fails_before_it_purges() {
    let env = TestEnv::new();
    std::fs::create_dir(env.path("src")).unwrap();
    env.write("out/foreign", "x");
    for flags in [&["--noop"][..], &[]] {
        let applied = env.apply(&entry(&env, &format!("{PRESENT}, purge: true")), flags);
        assert_eq!(
            applied.failure(0),
            "failed to reach desired state: present: scaffold produced no changed, stable, or purged files"
        );
    }
    assert!(env.exists("out/foreign"));
}

#[test]
fn sources_that_cannot_be_rendered_say_why() {
    let env = world();
    let fail = |source: &str| {
        let path = env.at("out");
        let entry = format!("- scaffold: {{name: {path}, source: '{source}', ensure: present}}\n");
        env.apply(&entry, &[]).failure(0)
    };
    assert!(fail("gone").starts_with("cannot read source directory: stat "));
    for source in ["ftp://u:secret@h/x.tar.gz", "https://u:secret@h/x.exe"] {
        assert_eq!(
            fail(source),
            format!(
                "unsupported scaffold source {}: expected an http or https URL of a .zip, .tar.gz, .tgz or .tar",
                source.replace("u:secret", "REDACTED")
            )
        );
    }
    symlink("a.txt", env.path("src/link")).unwrap();
    assert_eq!(fail("src"), "invalid file in source: link");
    std::fs::remove_file(env.path("src/link")).unwrap();
    env.write("src/sub/c.txt", "[[ nothing ]]");
    let error = fail("src");
    assert!(error.contains("sub/c.txt"), "{error}");
    assert!(!env.exists("out"));
}

#[test]
fn a_template_that_fails_leaves_the_target_as_it_was() {
    let env = world();
    env.write("src/z", "[[ render(\"../manifest.yaml\", .) ]]");
    let applied = env.apply(&entry(&env, PRESENT), &[]);
    assert!(
        applied
            .failure(0)
            .contains("../manifest.yaml is not in source directory"),
        "{:#}",
        applied.document
    );
    assert!(!env.exists("out"));
}

#[test]
fn a_diff_shows_files_permissions_and_what_goes() {
    let env = world();
    let _ = converge(&env, &entry(&env, PRESENT));
    env.write("out/a.txt", "old\n");
    set_mode(&env, "out/sub/c.txt", 0o600);
    env.write("out/foreign", "x");
    let entry = entry(&env, &format!("{PRESENT}, purge: true"));
    env.write(
        "m.yaml",
        format!("ccm:\n  resources:\n  {}", entry.replace('\n', "\n  ")),
    );
    let text = env.ccm(&["apply", "m.yaml", "--diff", "--noop"]).ok();
    assert!(
        text.contains(
            "--- $DIR/out/a.txt\n+++ $DIR/out/a.txt\n@@ -1 +1 @@\n-old\n+port 80\n\
             $DIR/out/sub/c.txt: mode 0600 -> 0644\n$DIR/out/foreign: removed\n"
        ),
        "{text}"
    );
}

#[test]
fn no_temporary_file_stays_behind() {
    let env = world();
    let _ = converge(&env, &entry(&env, PRESENT));
    assert_eq!(listing(&env).len(), 5);
}

#[test]
fn the_command_line_knows_every_property() {
    let env = TestEnv::new();
    env.write("src/a.txt", "<< lookup \"environ.NAME\" >>");
    env.write("src/blank", "<< \"\" >>");
    env.write("out/foreign", "x");
    let mut args = vec!["ensure", "scaffold", "out", "src", "present"];
    args.extend([
        "--engine",
        "go",
        "--left-delimiter",
        "<<",
        "--right-delimiter",
        ">>",
    ]);
    args.extend([
        "--skip-empty",
        "--purge",
        "--post",
        "*.txt=sed -i s/web/WEB=1/ {}",
    ]);
    let mut env = env;
    env.set("NAME", "web");
    let text = env.ccm(&[&args[..], &["--noop"]].concat()).ok();
    assert!(
        text.contains("Would have changed 2 scaffold files"),
        "{text}"
    );
    let text = env.ccm(&args).ok();
    assert!(
        text.starts_with(" WARN  scaffold#$DIR/out changed ensure=present"),
        "{text}"
    );
    assert_eq!(env.read("out/a.txt"), "WEB=1");
    assert!(!env.exists("out/blank"));
    assert!(!env.exists("out/foreign"));
    let text = env.ccm(&args).ok();
    assert!(text.contains("stable"), "{text}");
    args[4] = "absent";
    let _ = env.ccm(&args).ok();
    assert!(!env.exists("out"));
}

#[test]
fn the_command_line_refuses_what_it_cannot_use() {
    let env = world();
    for (args, text) in [
        (&["out", "gone"][..], "path '$DIR/gone' does not exist"),
        (
            &["out", "src/a.txt"],
            "path '$DIR/src/a.txt' is not a directory",
        ),
        (
            &["out", "src", "--post", "x"],
            "expected PATTERN=TOOL, got 'x'",
        ),
        (&["out", "src", "--post", "=x"], "post keys cannot be empty"),
        (&["out", "src", "--engine", "mustache"], "mustache"),
        (&["out"], "source cannot be empty"),
        (
            &["out", "src", "latest"],
            "must be one of \"present\" or \"absent\"",
        ),
    ] {
        let error = env.ccm(&[&["ensure", "scaffold"], args].concat()).error(2);
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn status_shows_the_target_and_compares_it_with_a_source() {
    let env = TestEnv::new();
    env.write("src/f", "{{ 1 }}");
    env.write("out/g", "");
    let shown = env.ccm(&["status", "scaffold", "out", "--json"]).json();
    assert_eq!(
        shown,
        json!({"name": "$DIR/out", "provider": "choria", "target_exists": true, "engine": "jet"})
    );
    let args = [
        "status", "scaffold", "out", "--source", "src", "--engine", "go", "--json",
    ];
    let shown = env.ccm(&args).json();
    assert_eq!(shown["changed"], json!(["$DIR/out/f"]));
    assert_eq!(shown["purged"], json!(["$DIR/out/g"]));
    assert!(!env.exists("out/f"));
}

#[test]
fn an_unknown_provider_is_refused() {
    let env = world();
    let error = env
        .ccm(&["ensure", "scaffold", "out", "src", "--provider", "other"])
        .error(2);
    assert!(error.contains("provider not found"), "{error}");
}
