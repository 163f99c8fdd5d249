//! Tests of rendering, comparison and post commands.

#![expect(clippy::disallowed_methods, reason = "tests prepare files directly")]

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::Arc;

use super::*;
use crate::model::value::Map;
use crate::resource::package::scripted_host::ScriptedHost;
use crate::system::Output;
use ccm_template::Env;
use ccm_template::env::Facts;

const ENGINES: [Engine; 3] = [Engine::Jet, Engine::Go, Engine::Jinja];

/// A temporary directory with a source and a target.
struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new(source: &[(&str, &[u8])]) -> Self {
        let test = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(test.path("source")).unwrap();
        for (name, content) in source {
            test.write(&format!("source/{name}"), content);
        }
        test
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        self.set_mode(name, 0o644);
    }

    fn set_mode(&self, name: &str, mode: u32) {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(self.path(name), mode).unwrap();
    }

    fn job(&self, engine: Engine) -> RenderJob {
        let data: Value = [("port", Value::from(80_i64))].into_iter().collect();
        let variables: Map = [("data".into(), data)].into();
        RenderJob {
            source: self.path("source"),
            target: "/target".into(),
            engine,
            left: String::new(),
            right: String::new(),
            skip_empty: false,
            functions: Default::default(),
            variables: Arc::new(move |_| variables.clone()),
        }
    }

    fn rendered(&self, engine: Engine) -> Rendered {
        render(self.job(engine)).unwrap()
    }

    fn failure(&self, engine: Engine) -> String {
        render(self.job(engine))
            .unwrap_err()
            .to_string()
            .replace(self.0.path().to_str().unwrap(), "$DIR")
    }
}

fn texts(rendered: &Rendered) -> Vec<(&str, &str)> {
    let text = |file| std::str::from_utf8(file).unwrap();
    let files = rendered.files.iter();
    files
        .map(|(name, file)| (name.as_str(), text(&file.content)))
        .collect()
}

#[test]
fn every_engine_renders_values_partials_and_written_files() {
    for (engine, template, partial) in [
        (
            Engine::Jet,
            "[[ data.port ]] [[ .data.port ]] [[ render(\"_partials/p\", data) ]][[ write(\"w\", \"more\") ]]",
            "p=[[ .port ]] [[ data.port ]]",
        ),
        (
            Engine::Go,
            "{{ .data.port }} {{ $.data.port }} {{ render \"_partials/p\" .data }}{{ write \"w\" \"more\" }}",
            "p={{ .port }} {{ .port }}",
        ),
        (
            Engine::Jinja,
            "{{ data.port }} {{ data.port }} {{ render('_partials/p', data) }}{{ write('w', 'more') }}",
            "p={{ port }} {{ data.port }}",
        ),
    ] {
        let source = [
            ("a", template.as_bytes()),
            ("_partials/p", partial.as_bytes()),
        ];
        let rendered = TestDir::new(&source).rendered(engine);
        assert_eq!(
            texts(&rendered),
            [("a", "80 80 p=80 80"), ("w", "more")],
            "{engine:?}"
        );
    }
}

#[test]
fn a_partial_without_a_context_sees_what_its_caller_sees() {
    for (engine, call, partial) in [
        (
            Engine::Jet,
            "[[ render(\"_partials/p\") ]]",
            "[[ .data.port ]]",
        ),
        (
            Engine::Go,
            "{{ render \"_partials/p\" }}",
            "{{ .data.port }}",
        ),
        (
            Engine::Jinja,
            "{{ render('_partials/p') }}",
            "{{ data.port }}",
        ),
    ] {
        let source = [("a", call.as_bytes()), ("_partials/p", partial.as_bytes())];
        assert_eq!(
            texts(&TestDir::new(&source).rendered(engine)),
            [("a", "80")]
        );
    }
}

#[test]
fn a_file_without_delimiters_is_copied_unchanged() {
    let binary: Vec<u8> = (0..=255).collect();
    for engine in ENGINES {
        let test = TestDir::new(&[("blank", b"\n"), ("empty", b""), ("picture", &binary)]);
        let rendered = test.rendered(engine);
        assert_eq!(rendered.files["picture"].content, binary);
        assert_eq!(rendered.files["blank"].content, b"\n");
        assert_eq!(rendered.files["empty"].content, b"");
    }
}

#[test]
fn jet_keeps_invalid_utf8_around_its_actions() {
    let test = TestDir::new(&[("a", b"\xff[[ data.port ]]\xfe")]);
    assert_eq!(test.rendered(Engine::Jet).files["a"].content, b"\xff80\xfe");
    assert!(
        TestDir::new(&[("a", b"\xff{{ 1 }}")])
            .failure(Engine::Go)
            .contains("is not UTF-8 text")
    );
}

#[test]
fn comments_are_removed_from_files_without_other_actions() {
    let test = TestDir::new(&[("a", b"x{* no *}y")]);
    assert_eq!(texts(&test.rendered(Engine::Jet)), [("a", "xy")]);
    let test = TestDir::new(&[("a", b"x{# no #}y")]);
    assert_eq!(texts(&test.rendered(Engine::Jinja)), [("a", "xy")]);
}

#[test]
fn delimiters_are_configured_in_pairs() {
    let test = TestDir::new(&[("a", b"<< .data.port >> {{ x }}")]);
    let mut job = test.job(Engine::Go);
    (job.left, job.right) = ("<<".into(), ">>".into());
    assert_eq!(texts(&render(job.clone()).unwrap()), [("a", "80 {{ x }}")]);
    job.right.clear();
    assert_eq!(
        render(job).unwrap_err().to_string(),
        "both left_delimiter and right_delimiter must be set"
    );
}

#[test]
fn partials_directories_are_left_out_but_not_files_of_that_name() {
    let test = TestDir::new(&[
        ("_partials/a", b"1"),
        ("sub/_partials/deep/b", b"2"),
        ("sub/c", b"3"),
        ("other/_partials", b"4"),
        ("other/z", b"5"),
    ]);
    std::fs::create_dir(test.path("source/empty")).unwrap();
    let rendered = test.rendered(Engine::Jet);
    assert_eq!(
        texts(&rendered),
        [("other/_partials", "4"), ("other/z", "5"), ("sub/c", "3")]
    );
    let directories: Vec<_> = rendered.directories.iter().collect();
    assert_eq!(directories, ["empty", "other", "sub"]);
}

#[test]
fn a_link_in_the_source_is_rejected_before_rendering() {
    let test = TestDir::new(&[("a", b"[[ fail")]);
    symlink("a", test.path("source/link")).unwrap();
    assert_eq!(test.failure(Engine::Jet), "invalid file in source: link");
}

#[test]
fn a_source_that_is_itself_a_link_is_followed() {
    let test = TestDir::new(&[("a", b"x")]);
    symlink("source", test.path("link")).unwrap();
    let mut job = test.job(Engine::Jet);
    job.source = test.path("link");
    assert_eq!(texts(&render(job).unwrap()), [("a", "x")]);
}

#[test]
fn a_source_that_is_not_a_directory_is_an_error() {
    let test = TestDir::new(&[("a", b"x")]);
    for (name, text) in [
        (
            "gone",
            "cannot read source directory: stat $DIR/gone: no such file or directory",
        ),
        (
            "source/a",
            "cannot read source directory: \"$DIR/source/a\" is not a directory",
        ),
    ] {
        let mut job = test.job(Engine::Jet);
        job.source = test.path(name);
        let error = render(job).unwrap_err().to_string();
        let directory = test.0.path().to_str().unwrap();
        assert_eq!(error.replace(directory, "$DIR"), text);
    }
}

#[test]
fn no_template_reads_outside_the_source_or_through_a_link_in_it() {
    for (name, text) in [
        ("../x", "../x is not in source directory $DIR/source"),
        (
            "a/../../x",
            "a/../../x is not in source directory $DIR/source",
        ),
        ("_partials/link", "invalid file in source: _partials/link"),
        (
            "_partials/gone",
            "open $DIR/source/_partials/gone: no such file or directory",
        ),
        ("_partials", "read $DIR/source/_partials: is a directory"),
        (".", "read $DIR/source: is a directory"),
        // An absolute path is relative to the source.
        (
            "/etc/passwd",
            "open $DIR/source/etc/passwd: no such file or directory",
        ),
    ] {
        let template = format!("[[ render(\"{name}\", .) ]]");
        let test = TestDir::new(&[("a", template.as_bytes()), ("_partials/p", b"x")]);
        test.write("x", b"secret");
        symlink("../../x", test.path("source/_partials/link")).unwrap();
        let error = test.failure(Engine::Jet);
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn no_template_writes_outside_the_target_or_over_a_directory() {
    for (name, text) in [
        ("../x", "/x is not in target directory /target"),
        ("d/../../x", "/x is not in target directory /target"),
        ("d", "open /target/d: is a directory"),
        ("", "open /target: is a directory"),
        ("gone/x", "open /target/gone/x: no such file or directory"),
    ] {
        let template = format!("[[ write(\"{name}\", \"x\") ]]");
        let test = TestDir::new(&[("a", template.as_bytes()), ("d/f", b"")]);
        let error = test.failure(Engine::Jet);
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn write_may_add_a_file_to_a_directory_that_sorts_later() {
    let test = TestDir::new(&[("a", b"[[ write(\"./z/../z/x\", \"y\") ]]"), ("z/f", b"")]);
    let rendered = test.rendered(Engine::Jet);
    assert_eq!(texts(&rendered), [("a", ""), ("z/f", ""), ("z/x", "y")]);
}

#[test]
fn skip_empty_leaves_out_blank_files_but_not_those_of_write() {
    let test = TestDir::new(&[
        ("a", b"[[ write(\"w\", \"\") ]] \n\t"),
        ("b", b" \xc2\xa0 "),
        ("c", b" x "),
    ]);
    let mut job = test.job(Engine::Jet);
    job.skip_empty = true;
    assert_eq!(texts(&render(job).unwrap()), [("c", " x "), ("w", "")]);
}

/// Returns a call of `render` in `depth` nested parentheses.
fn nested_call(engine: Engine, depth: usize) -> String {
    let (open, close) = ("(".repeat(depth), ")".repeat(depth));
    match engine {
        Engine::Jet => format!("[[ {open}render(\"_partials/p\", .){close} ]]"),
        Engine::Go => format!("{{{{ {open}render \"_partials/p\" .{close} }}}}"),
        Engine::Jinja => format!("{{{{ {open}render('_partials/p', {{}}){close} }}}}"),
    }
}

#[test]
fn endless_recursion_of_partials_is_an_error_in_every_engine() {
    for engine in ENGINES {
        let call = nested_call(engine, 1);
        let test = TestDir::new(&[("a", call.as_bytes()), ("_partials/p", call.as_bytes())]);
        let error = test.failure(engine);
        let text = "partials nest deeper than 10 levels";
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn partials_nest_as_deep_as_allowed_in_templates_as_deep_as_allowed() {
    for engine in ENGINES {
        for depth in [20, 40, 60, 80, 100, 120, 140, 160, 1000] {
            let call = nested_call(engine, depth);
            let test = TestDir::new(&[("a", call.as_bytes()), ("_partials/p", call.as_bytes())]);
            let error = test.failure(engine);
            let texts = ["nest deeper", "nested deeper", "recursion limit"];
            let is_limit = texts.iter().any(|text| error.contains(text));
            assert!(is_limit, "{engine:?} {depth}: {error}");
        }
    }
}

#[test]
fn facts_reach_a_partial_through_the_context_of_a_template_that_names_none() {
    let test = TestDir::new(&[
        ("a", b"[[ render(\"_partials/p\", .) ]]"),
        ("_partials/p", b"[[ .facts.host ]]"),
    ]);
    let env = Env {
        facts: Facts::Known([("host", Value::from("web1"))].into_iter().collect()),
        ..Env::default()
    };
    let mut job = test.job(Engine::Jet);
    job.variables = Arc::new(move |text| engines::variables(text, &env));
    assert_eq!(texts(&render(job).unwrap()), [("a", "web1")]);
}

#[test]
fn permissions_come_from_the_source_without_its_set_id_bits() {
    let test = TestDir::new(&[
        ("run", b""),
        ("set", b""),
        ("w", b"[[ write(\"x\", \"\") ]]"),
    ]);
    test.set_mode("source/run", 0o750);
    test.set_mode("source/set", 0o6755);
    let rendered = test.rendered(Engine::Jet);
    let modes: Vec<_> = rendered.files.values().map(|file| file.mode).collect();
    assert_eq!(modes, [0o750, 0o755, 0o644, 0o644]);
}

#[test]
fn files_are_sorted_by_path_bytes() {
    let test = TestDir::new(&[("a/b", b""), ("a-b", b""), ("B", b"")]);
    test.write("target/a0", b"");
    let rendered = test.rendered(Engine::Jet);
    let comparison = compare(&test.path("target"), &rendered, &PostCommands::default()).unwrap();
    let paths: Vec<_> = comparison
        .items
        .iter()
        .map(|item| item.path.to_str())
        .collect();
    assert_eq!(paths, [Some("B"), Some("a-b"), Some("a/b"), Some("a0")]);
}

fn statuses(test: &TestDir) -> Vec<(String, FileStatus, bool)> {
    let rendered = test.rendered(Engine::Jet);
    let comparison = compare(&test.path("target"), &rendered, &PostCommands::default()).unwrap();
    let items = comparison.items.into_iter();
    items
        .map(|item| {
            let path = item.path.to_string_lossy().into_owned();
            (path, item.status, item.mode_drifts)
        })
        .collect()
}

#[test]
fn files_are_compared_by_content_then_mode() {
    let test = TestDir::new(&[
        ("add", b"x"),
        ("drift", b"x"),
        ("same", b"x"),
        ("update", b"x"),
    ]);
    test.write("target/drift", b"x");
    test.set_mode("target/drift", 0o4644);
    test.write("target/same", b"x");
    test.write("target/update", b"y");
    test.write("target/sub/foreign", b"");
    assert_eq!(
        statuses(&test),
        [
            ("add".into(), FileStatus::Add, false),
            ("drift".into(), FileStatus::Equal, true),
            ("same".into(), FileStatus::Equal, false),
            ("sub/foreign".into(), FileStatus::Remove, false),
            ("update".into(), FileStatus::Update, false),
        ]
    );
}

#[test]
fn a_link_to_a_directory_below_the_target_is_not_followed() {
    let test = TestDir::new(&[("sub/f", b"x")]);
    test.write("outside/f", b"x");
    std::fs::create_dir(test.path("target")).unwrap();
    symlink("../outside", test.path("target/sub")).unwrap();
    assert_eq!(statuses(&test), [("sub/f".into(), FileStatus::Add, false)]);
}

#[test]
fn a_link_in_place_of_a_file_is_followed() {
    let test = TestDir::new(&[("a", b"x"), ("b", b"x"), ("c", b"x")]);
    test.write("outside/a", b"x");
    std::fs::create_dir(test.path("target")).unwrap();
    symlink("../outside/a", test.path("target/a")).unwrap();
    symlink("nowhere", test.path("target/b")).unwrap();
    symlink("../outside", test.path("target/c")).unwrap();
    let found: Vec<_> = statuses(&test).into_iter().map(|item| item.1).collect();
    assert_eq!(
        found,
        [FileStatus::Equal, FileStatus::Update, FileStatus::Update]
    );
}

/// Runs post commands on a file of the target and returns the command lines.
fn post(steps: &[(&str, &str)], codes: &[i32]) -> (Vec<Vec<String>>, Result<bool, String>) {
    let test = TestDir::new(&[]);
    test.write("target/a.txt", b"x");
    let path = test.path("target/a.txt");
    let file_name = path.to_str().unwrap();
    let steps: Vec<_> = steps
        .iter()
        .map(|(pattern, command)| [((*pattern).into(), (*command).into())].into())
        .collect();
    let posts = PostCommands::parse(&steps).unwrap();
    let scripted = ScriptedHost::new();
    for code in codes {
        let output = Output {
            code: *code,
            stdout: b"out ".to_vec(),
            stderr: b"err\n".to_vec(),
            ..Output::default()
        };
        scripted.runner.expect(&["tool", file_name], Ok(output));
    }
    let file = RenderedFile {
        content: b"x".to_vec(),
        mode: 0o644,
    };
    let result = posts.of(&path).run(&path, &file, false, scripted.host());
    let argvs = scripted.runner.calls().into_iter().map(|call| {
        let words = call.argv.into_iter();
        words.map(|word| word.replace(file_name, "FILE")).collect()
    });
    let result = result.map_err(|err| err.to_string().replace(file_name, "FILE"));
    (argvs.collect(), result)
}

#[test]
fn post_commands_get_the_file_at_the_placeholder_or_at_the_end() {
    for (command, argv) in [
        ("tool", vec!["tool", "FILE"]),
        ("tool -w", vec!["tool", "-w", "FILE"]),
        ("tool {} -x", vec!["tool", "FILE", "-x"]),
        (
            "tool 'in={} out={}' {}",
            vec!["tool", "in=FILE out=FILE", "FILE"],
        ),
        // The placeholder is not replaced in the program name.
        ("{} 'a b'", vec!["{}", "a b", "FILE"]),
    ] {
        let (argvs, _) = post(&[("*.txt", command)], &[]);
        assert_eq!(argvs, [argv], "{command}");
    }
}

#[test]
fn all_post_commands_that_match_the_base_name_run_in_order() {
    let steps = [
        ("*.txt", "tool"),
        ("*.go", "gofmt"),
        ("target", "x"),
        ("a.*", "tool"),
    ];
    let (argvs, result) = post(&steps, &[0, 0]);
    assert_eq!(argvs, [["tool", "FILE"], ["tool", "FILE"]]);
    assert!(result.is_ok());
}

#[test]
fn a_failed_post_command_is_reported_and_stops_the_rest() {
    let (argvs, result) = post(&[("*", "tool"), ("*", "tool")], &[3]);
    assert_eq!(argvs.len(), 1);
    assert_eq!(
        result.unwrap_err(),
        "failed to post process FILE\nerror: exit status 3\noutput: \"out err\\n\""
    );
    let (_, result) = post(&[("*", "unknown")], &[]);
    let error = result.unwrap_err();
    assert!(
        error.starts_with("failed to post process FILE\nerror: "),
        "{error}"
    );
}

#[test]
fn invalid_post_commands_are_rejected_before_they_run() {
    for (pattern, command, text) in [
        ("[", "x", "post pattern \"[\": syntax error in pattern"),
        (
            "*",
            "'x",
            "post command for \"*\": Unterminated single-quoted string",
        ),
        ("*", "''", "post command for \"*\" is empty"),
    ] {
        let steps = [[(pattern.into(), command.into())].into()];
        assert_eq!(PostCommands::parse(&steps).unwrap_err().to_string(), text);
    }
}
