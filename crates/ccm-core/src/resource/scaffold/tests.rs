//! Rendering, comparing and post commands, on directories of their own.

#![expect(clippy::disallowed_methods, reason = "tests arrange the world by hand")]

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::model::value::Map;
use crate::resource::package::Shared;
use crate::resource::service::Memory;
use crate::system::{Accounts, FixedClock, Output, ScriptedRunner};
use ccm_template::Env;
use ccm_template::env::Facts;

const ENGINES: [Engine; 3] = [Engine::Jet, Engine::Go, Engine::Jinja];

/// A source and a target in a directory of their own.
struct Room(tempfile::TempDir);

impl Room {
    fn new(source: &[(&str, &[u8])]) -> Self {
        let room = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(room.path("source")).unwrap();
        for (name, content) in source {
            room.write(&format!("source/{name}"), content);
        }
        room
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

    fn job(&self, engine: Engine) -> Job {
        let data: Value = [("port", Value::from(80_i64))].into_iter().collect();
        let variables: Map = [("data".into(), data)].into();
        Job {
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
        let rendered = Room::new(&source).rendered(engine);
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
        assert_eq!(texts(&Room::new(&source).rendered(engine)), [("a", "80")]);
    }
}

#[test]
fn a_file_without_delimiters_passes_byte_by_byte() {
    let binary: Vec<u8> = (0..=255).collect();
    for engine in ENGINES {
        let room = Room::new(&[("blank", b"\n"), ("empty", b""), ("picture", &binary)]);
        let rendered = room.rendered(engine);
        assert_eq!(rendered.files["picture"].content, binary);
        assert_eq!(rendered.files["blank"].content, b"\n");
        assert_eq!(rendered.files["empty"].content, b"");
    }
}

#[test]
fn jet_keeps_bytes_that_are_no_text_around_its_actions() {
    let room = Room::new(&[("a", b"\xff[[ data.port ]]\xfe")]);
    assert_eq!(room.rendered(Engine::Jet).files["a"].content, b"\xff80\xfe");
    assert!(
        Room::new(&[("a", b"\xff{{ 1 }}")])
            .failure(Engine::Go)
            .contains("is not UTF-8 text")
    );
}

#[test]
fn comments_are_taken_out_even_when_nothing_else_is_to_do() {
    let room = Room::new(&[("a", b"x{* no *}y")]);
    assert_eq!(texts(&room.rendered(Engine::Jet)), [("a", "xy")]);
    let room = Room::new(&[("a", b"x{# no #}y")]);
    assert_eq!(texts(&room.rendered(Engine::Jinja)), [("a", "xy")]);
}

#[test]
fn delimiters_can_be_others_but_not_only_one() {
    let room = Room::new(&[("a", b"<< .data.port >> {{ x }}")]);
    let mut job = room.job(Engine::Go);
    (job.left, job.right) = ("<<".into(), ">>".into());
    assert_eq!(texts(&render(job.clone()).unwrap()), [("a", "80 {{ x }}")]);
    job.right.clear();
    assert_eq!(
        render(job).unwrap_err().to_string(),
        "both left_delimiter and right_delimiter must be set"
    );
}

#[test]
fn directories_of_partials_are_left_out_and_a_file_of_that_name_is_not() {
    let room = Room::new(&[
        ("_partials/a", b"1"),
        ("sub/_partials/deep/b", b"2"),
        ("sub/c", b"3"),
        ("other/_partials", b"4"),
        ("other/z", b"5"),
    ]);
    std::fs::create_dir(room.path("source/empty")).unwrap();
    let rendered = room.rendered(Engine::Jet);
    assert_eq!(
        texts(&rendered),
        [("other/_partials", "4"), ("other/z", "5"), ("sub/c", "3")]
    );
    let directories: Vec<_> = rendered.directories.iter().collect();
    assert_eq!(directories, ["empty", "other", "sub"]);
}

#[test]
fn what_is_no_plain_file_is_refused_before_anything_is_rendered() {
    let room = Room::new(&[("a", b"[[ fail")]);
    symlink("a", room.path("source/link")).unwrap();
    assert_eq!(room.failure(Engine::Jet), "invalid file in source: link");
}

#[test]
fn a_source_that_is_itself_a_link_is_followed() {
    let room = Room::new(&[("a", b"x")]);
    symlink("source", room.path("link")).unwrap();
    let mut job = room.job(Engine::Jet);
    job.source = room.path("link");
    assert_eq!(texts(&render(job).unwrap()), [("a", "x")]);
}

#[test]
fn a_source_that_is_no_directory_is_named() {
    let room = Room::new(&[("a", b"x")]);
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
        let mut job = room.job(Engine::Jet);
        job.source = room.path(name);
        let error = render(job).unwrap_err().to_string();
        let directory = room.0.path().to_str().unwrap();
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
        // From the root is from the root of the source.
        (
            "/etc/passwd",
            "open $DIR/source/etc/passwd: no such file or directory",
        ),
    ] {
        let template = format!("[[ render(\"{name}\", .) ]]");
        let room = Room::new(&[("a", template.as_bytes()), ("_partials/p", b"x")]);
        room.write("x", b"secret");
        symlink("../../x", room.path("source/_partials/link")).unwrap();
        let error = room.failure(Engine::Jet);
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
        let room = Room::new(&[("a", template.as_bytes()), ("d/f", b"")]);
        let error = room.failure(Engine::Jet);
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_template_may_write_into_a_directory_that_comes_later() {
    let room = Room::new(&[("a", b"[[ write(\"./z/../z/x\", \"y\") ]]"), ("z/f", b"")]);
    let rendered = room.rendered(Engine::Jet);
    assert_eq!(texts(&rendered), [("a", ""), ("z/f", ""), ("z/x", "y")]);
}

#[test]
fn blank_files_are_left_out_on_demand_but_never_written_ones() {
    let room = Room::new(&[
        ("a", b"[[ write(\"w\", \"\") ]] \n\t"),
        ("b", b" \xc2\xa0 "),
        ("c", b" x "),
    ]);
    let mut job = room.job(Engine::Jet);
    job.skip_empty = true;
    assert_eq!(texts(&render(job).unwrap()), [("c", " x "), ("w", "")]);
}

/// Returns a call of `render` in as many parentheses as said.
fn nested_call(engine: Engine, depth: usize) -> String {
    let (open, close) = ("(".repeat(depth), ")".repeat(depth));
    match engine {
        Engine::Jet => format!("[[ {open}render(\"_partials/p\", .){close} ]]"),
        Engine::Go => format!("{{{{ {open}render \"_partials/p\" .{close} }}}}"),
        Engine::Jinja => format!("{{{{ {open}render('_partials/p', {{}}){close} }}}}"),
    }
}

#[test]
fn partials_that_render_each_other_without_end_are_an_error_in_every_engine() {
    for engine in ENGINES {
        let call = nested_call(engine, 1);
        let room = Room::new(&[("a", call.as_bytes()), ("_partials/p", call.as_bytes())]);
        let error = room.failure(engine);
        let text = "partials nest deeper than 10 levels";
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn partials_nest_as_deep_as_allowed_in_templates_as_deep_as_allowed() {
    for engine in ENGINES {
        for depth in [20, 40, 60, 80, 100, 120, 140, 160, 1000] {
            let call = nested_call(engine, depth);
            let room = Room::new(&[("a", call.as_bytes()), ("_partials/p", call.as_bytes())]);
            let error = room.failure(engine);
            let texts = ["nest deeper", "nested deeper", "recursion limit"];
            let is_limit = texts.iter().any(|text| error.contains(text));
            assert!(is_limit, "{engine:?} {depth}: {error}");
        }
    }
}

#[test]
fn facts_reach_a_partial_through_the_context_of_a_template_that_names_none() {
    let room = Room::new(&[
        ("a", b"[[ render(\"_partials/p\", .) ]]"),
        ("_partials/p", b"[[ .facts.host ]]"),
    ]);
    let env = Env {
        facts: Facts::Known([("host", Value::from("web1"))].into_iter().collect()),
        ..Env::default()
    };
    let mut job = room.job(Engine::Jet);
    job.variables = Arc::new(move |text| engines::variables(text, &env));
    assert_eq!(texts(&render(job).unwrap()), [("a", "web1")]);
}

#[test]
fn permissions_come_from_the_source_without_its_set_id_bits() {
    let room = Room::new(&[
        ("run", b""),
        ("set", b""),
        ("w", b"[[ write(\"x\", \"\") ]]"),
    ]);
    room.set_mode("source/run", 0o750);
    room.set_mode("source/set", 0o6755);
    let rendered = room.rendered(Engine::Jet);
    let modes: Vec<_> = rendered.files.values().map(|file| file.mode).collect();
    assert_eq!(modes, [0o750, 0o755, 0o644, 0o644]);
}

#[test]
fn files_order_by_the_bytes_of_their_paths() {
    let room = Room::new(&[("a/b", b""), ("a-b", b""), ("B", b"")]);
    room.write("target/a0", b"");
    let rendered = room.rendered(Engine::Jet);
    let survey = survey(&room.path("target"), &rendered, &Posts::default()).unwrap();
    let paths: Vec<_> = survey.items.iter().map(|item| item.path.to_str()).collect();
    assert_eq!(paths, [Some("B"), Some("a-b"), Some("a/b"), Some("a0")]);
}

fn verdicts(room: &Room) -> Vec<(String, Verdict, bool)> {
    let rendered = room.rendered(Engine::Jet);
    let survey = survey(&room.path("target"), &rendered, &Posts::default()).unwrap();
    let items = survey.items.into_iter();
    items
        .map(|item| {
            let path = item.path.to_string_lossy().into_owned();
            (path, item.verdict, item.mode_drifts)
        })
        .collect()
}

#[test]
fn content_then_permissions_decide_about_a_file() {
    let room = Room::new(&[
        ("add", b"x"),
        ("drift", b"x"),
        ("same", b"x"),
        ("update", b"x"),
    ]);
    room.write("target/drift", b"x");
    room.set_mode("target/drift", 0o4644);
    room.write("target/same", b"x");
    room.write("target/update", b"y");
    room.write("target/sub/foreign", b"");
    assert_eq!(
        verdicts(&room),
        [
            ("add".into(), Verdict::Add, false),
            ("drift".into(), Verdict::Equal, true),
            ("same".into(), Verdict::Equal, false),
            ("sub/foreign".into(), Verdict::Remove, false),
            ("update".into(), Verdict::Update, false),
        ]
    );
}

#[test]
fn a_directory_below_the_target_is_never_a_link() {
    let room = Room::new(&[("sub/f", b"x")]);
    room.write("outside/f", b"x");
    std::fs::create_dir(room.path("target")).unwrap();
    symlink("../outside", room.path("target/sub")).unwrap();
    assert_eq!(verdicts(&room), [("sub/f".into(), Verdict::Add, false)]);
}

#[test]
fn a_link_in_the_place_of_a_file_is_read_through() {
    let room = Room::new(&[("a", b"x"), ("b", b"x"), ("c", b"x")]);
    room.write("outside/a", b"x");
    std::fs::create_dir(room.path("target")).unwrap();
    symlink("../outside/a", room.path("target/a")).unwrap();
    symlink("nowhere", room.path("target/b")).unwrap();
    symlink("../outside", room.path("target/c")).unwrap();
    let found: Vec<_> = verdicts(&room).into_iter().map(|item| item.1).collect();
    assert_eq!(found, [Verdict::Equal, Verdict::Update, Verdict::Update]);
}

/// Runs post commands on a file of the target and returns what was run.
fn post(steps: &[(&str, &str)], codes: &[i32]) -> (Vec<Vec<String>>, Result<bool, String>) {
    let room = Room::new(&[]);
    room.write("target/a.txt", b"x");
    let path = room.path("target/a.txt");
    let shown = path.to_str().unwrap();
    let steps: Vec<_> = steps
        .iter()
        .map(|(pattern, command)| [((*pattern).into(), (*command).into())].into())
        .collect();
    let posts = Posts::parse(&steps).unwrap();
    let runner = ScriptedRunner::new();
    for code in codes {
        let output = Output {
            code: *code,
            stdout: b"out ".to_vec(),
            stderr: b"err\n".to_vec(),
            ..Output::default()
        };
        runner.expect(&["tool", shown], Ok(output));
    }
    let (clock, accounts, env) = (
        FixedClock::new(Default::default()),
        Accounts::default(),
        Env::default(),
    );
    let host = Host {
        runner: &runner,
        clock: &clock,
        accounts: &accounts,
        working_dir: Path::new("/work"),
        env: &env,
        packages: &Shared::default(),
        services: &Memory::default(),
        scaffolds: &Sources::default(),
    };
    let file = RenderedFile {
        content: b"x".to_vec(),
        mode: 0o644,
    };
    let result = posts.of(&path).run(&path, &file, false, host);
    let argvs = runner.calls().into_iter().map(|call| {
        let words = call.argv.into_iter();
        words.map(|word| word.replace(shown, "FILE")).collect()
    });
    let result = result.map_err(|err| err.to_string().replace(shown, "FILE"));
    (argvs.collect(), result)
}

#[test]
fn post_commands_get_the_file_where_they_say_or_at_their_end() {
    for (command, argv) in [
        ("tool", vec!["tool", "FILE"]),
        ("tool -w", vec!["tool", "-w", "FILE"]),
        ("tool {} -x", vec!["tool", "FILE", "-x"]),
        (
            "tool 'in={} out={}' {}",
            vec!["tool", "in=FILE out=FILE", "FILE"],
        ),
        // The program itself is never a file of the scaffold.
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
fn a_post_command_that_fails_says_so_and_is_the_last() {
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
fn mistakes_in_post_commands_are_found_before_they_run() {
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
        assert_eq!(Posts::parse(&steps).unwrap_err().to_string(), text);
    }
}
