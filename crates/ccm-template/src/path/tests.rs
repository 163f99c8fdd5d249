//! Tests of paths: the result of each piece of syntax.

use proptest::prelude::*;

use super::*;

fn root() -> Value {
    serde_json::from_str(
        r#"{
        "facts": {"host": {"os": "linux"}, "a.b": "dot", "n": null, "t": true,
                  "nets": [{"name": "lo", "mtu": 65536}, {"name": "eth0", "mtu": 1500, "up": true}]},
        "data": {"l": ["zsh", "vim"], "deep": [1, [2, [3]]], "s": "{\"j\": 1}",
                 "cols": {"id": [1, 2], "v": ["a", "b"]}, "8080": "web",
                 "items": [{"n": "x", "v": 1}, {"n": "y", "v": 2}, {"n": "x", "v": 3}]}
    }"#,
    )
    .unwrap()
}

fn json(path: &str) -> String {
    match find(&root(), path) {
        Some(value) => ccm_value::json::compact(&value).unwrap(),
        None => "nothing".into(),
    }
}

fn check_all(cases: &[(&str, &str)]) {
    for (path, expected) in cases {
        assert_eq!(json(path), *expected, "{path}");
    }
}

#[test]
fn keys_and_indexes_select_members() {
    check_all(&[
        ("facts.host.os", r#""linux""#),
        ("data.l.1", r#""vim""#),
        ("data.8080", r#""web""#),
        (r"facts.a\.b", r#""dot""#),
        ("facts.n", "null"),
        ("data.l.-1", "nothing"),
        ("data.l.2", "nothing"),
        ("data.l.1.x", "nothing"),
        ("", "nothing"),
    ]);
}

#[test]
fn wildcards_take_the_first_key_with_a_result() {
    check_all(&[
        ("facts.ho?t.os", r#""linux""#),
        ("*.host.os", r#""linux""#),
        ("data.*.id.0", "1"),
    ]);
}

#[test]
fn a_hash_counts_or_collects() {
    check_all(&[
        ("data.l.#", "2"),
        ("facts.nets.#.name", r#"["lo","eth0"]"#),
        ("facts.nets.#.up", "[true]"),
        ("facts.nets.#.name|0", r#""lo""#),
        ("facts.nets.#.nope", "[]"),
    ]);
}

#[test]
fn queries_find_the_first_or_all() {
    check_all(&[
        (r#"facts.nets.#(name=="eth0").mtu"#, "1500"),
        (r#"data.items.#(n="x")#.v"#, "[1,3]"),
        (r#"data.items.#(n=="x")#|0.v"#, "1"),
        ("data.items.#(v>=2)#.n", r#"["y","x"]"#),
        (r#"facts.nets.#(name%"e*").name"#, r#""eth0""#),
        (r#"facts.nets.#(name!%"e*").name"#, r#""lo""#),
        ("facts.nets.#(up).name", r#""eth0""#),
        ("facts.nets.#(up==~false).name", r#""lo""#),
        ("facts.nets.#(up=true).name", r#""eth0""#),
        (r#"data.l.#(=="vim")"#, r#""vim""#),
        (r#"data.l.#(>"vim")#"#, r#"["zsh"]"#),
        (r#"data.items.#(n=="z")#"#, "[]"),
        (r#"data.items.#(n=="z")"#, "nothing"),
    ]);
}

#[test]
fn modifiers_change_what_was_found() {
    check_all(&[
        ("data.l.@reverse.0", r#""vim""#),
        ("data.cols.@keys", r#"["id","v"]"#),
        ("data.cols.@values.0.1", "2"),
        ("data.deep.@flatten", "[1,2,[3]]"),
        (r#"data.deep.@flatten:{"deep":true}"#, "[1,2,3]"),
        ("data.cols.@group", r#"[{"id":1,"v":"a"},{"id":2,"v":"b"}]"#),
        ("data.items.@join", r#"{"n":"x","v":3}"#),
        ("data.s.@fromstr.j", "1"),
        ("data.l.@tostr", r#""[\"zsh\",\"vim\"]""#),
        ("facts.@dig:mtu", "[65536,1500]"),
        ("data.l.@this.@valid.@ugly.@pretty.0", r#""zsh""#),
        ("@nosuch", "nothing"),
        ("nope|@keys", "[]"),
    ]);
}

#[test]
fn selections_build_lists_and_maps() {
    check_all(&[
        ("{facts.host.os,data.l.#}", r##"{"_":2,"os":"linux"}"##),
        (r#"{"a":facts.t,b:facts.n}"#, r#"{"a":true,"b":null}"#),
        ("[facts.t,data.nope,data.l.0]", r#"[true,"zsh"]"#),
        ("data.items.#.{n}", r#"[{"n":"x"},{"n":"y"},{"n":"x"}]"#),
        ("data.[l.0,l.1].1", r#""vim""#),
        (r#"{"k":!"v","m":!{"a":1}}"#, r#"{"k":"v","m":{"a":1}}"#),
    ]);
}

#[test]
fn malformed_paths_find_nothing() {
    for path in [
        ".",
        "..",
        "#",
        "#(",
        "data.l.#(",
        "data.l.#(x",
        "{",
        "[",
        "{a",
        "!",
        "@",
        "data.",
        "data..l",
        "\\",
    ] {
        assert_eq!(find(&root(), path), None, "{path}");
    }
}

#[test]
fn paths_that_multiply_results_exceed_the_work_limit() {
    let doubling = "[@this,@this]|".repeat(60) + "@this";
    assert_eq!(find(&root(), &doubling), None);
    let digging = "@dig:".repeat(60) + "x";
    let _ = find(&root(), &digging);
    let nested = "{".repeat(10_000) + &"}".repeat(10_000);
    let found = find(&root(), &nested).unwrap();
    assert!(
        found.to_string().len() < 1_000,
        "cut off where it is too deep"
    );
}

#[test]
fn lookup_gives_integers_alone_and_floats_inside() {
    assert_eq!(as_lookup_result(Value::Float(2.0)), Value::Int(2));
    assert_eq!(as_lookup_result(Value::Float(2.5)), Value::Float(2.5));
    assert_eq!(as_lookup_result(Value::Int(7)), Value::Int(7));
    assert_eq!(
        as_lookup_result(vec![Value::Int(1)].into()),
        vec![Value::Float(1.0)].into()
    );
}

#[test]
fn globs_match_whole_texts() {
    for (text, pattern, fits) in [
        ("eth0", "e*", true),
        ("eth0", "*h?", true),
        ("eth0", "e", false),
        ("", "*", true),
        ("a*b", r"a\*b", true),
        ("axb", r"a\*b", false),
        ("aaab", "*a*b", true),
    ] {
        assert_eq!(glob(text, pattern), fits, "{text} {pattern}");
    }
}

proptest! {
    #[test]
    fn no_path_panics(path in "\\PC{0,40}") {
        let _ = find(&root(), &path);
    }

    #[test]
    fn no_mix_of_path_syntax_panics(parts in prop::collection::vec(part(), 0..16)) {
        let _ = find(&root(), &parts.concat());
    }
}

fn part() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "data", "facts", "l", "items", "nets", ".", "|", "#", "(", ")", "[", "]", "{", "}", ",",
        ":", "\"", "\\", "*", "?", "0", "1", "==", "!=", "%", "~true", "@keys", "@dig:",
        "@flatten", "@fromstr", "@group", "!", "!\"x\"", "!1", "é", "name", "==\"lo\"",
    ])
}
