//! Benchmark of data and templates: each engine against minijinja, resolving against parsing of a
//! hierarchy, and process start against an empty program and `true`.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a benchmark sets up its environment directly and panics on errors"
)]

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use ccm_core::hiera;
use ccm_template::env::{Env, Facts};
use ccm_template::expr::Cache;
use ccm_template::{Engine, engines, expand};
use ccm_value::Value;
use ccm_value::document::parse;
use ccm_value::value::Map;

mod support;

const TEMPLATES: usize = 1_000;
const ROUNDS: usize = 20;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("nothing") => {}
        Some("measure") => support::measure(&args[2..]),
        _ => {
            engines();
            hierarchy();
            start_up();
        }
    }
}

fn best(mut work: impl FnMut()) -> Duration {
    (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            work();
            began.elapsed()
        })
        .min()
        .expect("at least one round")
}

fn environment() -> Env {
    let items: Value = (0..10_i64)
        .map(|number| {
            let item: Value = [
                ("name", Value::from(format!("item-{number}"))),
                ("port", Value::from(8000 + number)),
            ]
            .into_iter()
            .collect();
            item
        })
        .collect();
    Env {
        data: [("title", Value::from("site")), ("items", items)]
            .into_iter()
            .collect(),
        ..Env::default()
    }
}

fn to_jinja(value: &Value) -> minijinja::Value {
    match value {
        Value::Map(map) => minijinja::Value::from_pairs(
            map.iter()
                .map(|(key, value)| (key.to_string(), to_jinja(value))),
        ),
        Value::List(list) => list.iter().map(to_jinja).collect(),
        Value::Int(number) => minijinja::Value::from(*number),
        other => minijinja::Value::from(other.to_string()),
    }
}

/// Parses and renders the same page with every engine, `TEMPLATES` times each.
fn engines() {
    let env = environment();
    let jinja = "# {{ data.title }}\n{% for i in data['items'] %}server {{ i.name }} listen {{ i.port }};\n{% endfor %}";
    let go = "# {{ .data.title }}\n{{ range .data.items }}server {{ .name }} listen {{ .port }};\n{{ end }}";
    let jet = "# [[ data.title ]]\n[[ range data.items ]]server [[ .name ]] listen [[ .port ]];\n[[ end ]]";
    let expr = "# {{ Data.title }}\n{{ join(map(Data.items, 'server ' + .name + ' listen ' + string(.port) + \";\\n\"), '') }}";
    let template = |engine, text: &'static str| engines::Template {
        engine,
        name: "page",
        text: text.as_bytes(),
        left: "",
        right: "",
    };
    let wanted = engines::render(template(Engine::Jinja, jinja), &env).unwrap();
    let plain = best(|| {
        for _ in 0..TEMPLATES {
            let mut environment = minijinja::Environment::new();
            environment.add_template("page", jinja).unwrap();
            let page = environment.get_template("page").unwrap();
            let root = minijinja::context! { data => to_jinja(&env.data) };
            assert_eq!(page.render(root).unwrap().into_bytes(), wanted);
        }
    });
    println!("{TEMPLATES} templates, ratio to minijinja alone ({plain:.2?}):");
    for (name, engine, text) in [
        ("jinja", Engine::Jinja, jinja),
        ("go", Engine::Go, go),
        ("jet", Engine::Jet, jet),
    ] {
        let time = best(|| {
            for _ in 0..TEMPLATES {
                assert_eq!(
                    engines::render(template(engine, text), &env).unwrap(),
                    wanted
                );
            }
        });
        println!(
            "  {name:<6} {:>6.2}",
            time.as_secs_f64() / plain.as_secs_f64()
        );
    }
    let cache = Cache::default();
    let time = best(|| {
        for _ in 0..TEMPLATES {
            let page = expand::resolve_string(expr, &env, &cache).unwrap();
            assert_eq!(page.as_bytes(), wanted);
        }
    });
    println!(
        "  {:<6} {:>6.2}",
        "expr",
        time.as_secs_f64() / plain.as_secs_f64()
    );
}

/// Resolves 1,000 keys over 10 levels, against parsing the same document.
fn hierarchy() {
    let mut text = String::from("hierarchy:\n  merge: deep\n  order:\n");
    for level in 0..10 {
        let _ = writeln!(text, "    - level{level}:{{{{ lookup('facts.role') }}}}");
    }
    text.push_str("data:\n");
    for key in 0..1_000 {
        let _ = writeln!(
            text,
            "  key{key}: value {key} of {{{{ lookup('facts.role') }}}}"
        );
    }
    text.push_str("overrides:\n");
    for level in 0..10 {
        let _ = writeln!(text, "  level{level}:web:");
        for key in (level..1_000).step_by(10) {
            let _ = writeln!(text, "    key{key}: level {level}");
        }
    }
    let facts = || {
        let map: Map = [("role".into(), Value::from("web"))].into();
        Facts::Known(map.into())
    };
    let parsing = best(|| {
        parse(&text).unwrap();
    });
    let document = parse(&text).unwrap().to_value();
    let resolving = best(|| {
        let data = hiera::resolve(&document, &facts(), "").unwrap();
        assert_eq!(data.get("key7"), Some(&Value::from("level 7")));
    });
    println!(
        "hierarchy of 1,000 keys and 10 levels: resolving is {:.2} x parsing ({parsing:.2?})",
        resolving.as_secs_f64() / parsing.as_secs_f64()
    );
}

/// Runs `ccm --version` and a stable `ccm ensure file`, which uses no facts, against an empty program and
/// `true`.
fn start_up() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("f");
    let file = file.to_str().unwrap();
    let ccm = env!("CARGO_BIN_EXE_ccm");
    let version = [ccm, "--version"];
    let ensure = [ccm, "ensure", "file", file, "--content", "x"];
    let own = std::env::current_exe().unwrap();
    let nothing = [own.to_str().unwrap(), "nothing"];
    support::run(&ensure);
    let [version, ensure, empty, floor] =
        support::best_of(ROUNDS * 5, [&version, &ensure, &nothing, &["/bin/true"]]);
    println!("start-up, ratio to /bin/true ({:.2?}):", floor.time);
    for (name, cost) in [
        ("an empty Rust program", empty),
        ("ccm --version", version),
        ("ccm ensure file", ensure),
    ] {
        println!(
            "  {name:<22} {:>6.2}  ({:.2?}, peak {:.1} MiB)",
            cost.time.as_secs_f64() / floor.time.as_secs_f64(),
            cost.time,
            cost.peak_kib as f64 / 1024.0
        );
    }
}
