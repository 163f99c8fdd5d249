//! Tests with hostile expressions: too large, too deep, too much work, or invalid.

use proptest::prelude::*;

use super::{eval, print};

#[test]
fn size_depth_memory_and_work_are_bounded() {
    let long = format!("1{}", " + 1".repeat(4_000));
    assert_eq!(print(&long), "4001");
    let cases = [
        (
            format!("1{}", " + 1".repeat(6_000)),
            "exceeds maximum allowed nodes",
        ),
        ("(".repeat(100_000), "nests deeper than"),
        (format!("{}1", "-".repeat(100_000)), "nests deeper than"),
        (
            format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000)),
            "nests deeper than",
        ),
        (format!("Data{}", ".m".repeat(3_000)), "nests deeper than"),
        ("1..1000000".into(), "memory budget exceeded"),
        ("map(1..1000, 1..1000)".into(), "memory budget exceeded"),
        ("repeat('x', 2000000)".into(), "memory budget exceeded"),
        (
            "reduce(1..99, #acc + #acc, 'x')".into(),
            "memory budget exceeded",
        ),
        (
            "replace(repeat('x', 99999), '', repeat('y', 99999))".into(),
            "memory budget exceeded",
        ),
        (
            "let layout = repeat('2', 999999); map(1..99, now().Format(layout))".into(),
            "memory budget exceeded",
        ),
        (
            "reduce(1..9999, [#acc], 1)".into(),
            "recursion depth exceeded",
        ),
        (
            "string(reduce(1..99, [#acc, #acc], 1))".into(),
            "memory budget exceeded",
        ),
        ("reduce(1..99, [#acc, #acc], 1)".into(), "too many steps"),
        (
            "let r = 1..9999; all(r, all(r, true))".into(),
            "too many steps",
        ),
    ];
    for (code, expected) in cases {
        let err = eval(&code).unwrap_err().to_string();
        assert!(err.contains(expected), "{:.60}: {err:.300}", code);
    }
}

#[test]
fn the_deepest_expression_allowed_fits_the_stack() {
    // Each kind of nesting uses a different amount of stack; all must fit.
    for (open, middle, close) in [
        ("(", "1", ")"),
        ("[", "1", "]"),
        ("{a: ", "1", "}"),
        ("map([1], {", "#", "})"),
        ("if true {", "1", "} else {2}"),
        ("first([", "1", "])"),
        ("let x = (", "1", "); 1"),
        ("true ? ", "1", ": 2"),
    ] {
        let deepest = (1..=200)
            .map(|levels| format!("{}{middle}{}", open.repeat(levels), close.repeat(levels)))
            .take_while(
                |code| !matches!(eval(code), Err(err) if err.to_string().contains("nests deeper")),
            )
            .count();
        assert!(deepest >= 20, "{open}: {deepest}");
    }
}

#[test]
fn the_deepest_value_allowed_can_be_printed_compared_and_dropped() {
    let deep = "reduce(1..499, [#acc], 1)";
    assert_eq!(print(deep).len(), 999);
    assert_eq!(print(&format!("{deep} == {deep}")), "true");
    assert_eq!(print(&format!("len(toJSON({deep})) > 999")), "true");
    assert_eq!(print(&format!("flatten({deep})")), "[1]");
    assert_eq!(print(&format!("max({deep})")), "1");
}

proptest! {
    #[test]
    fn no_text_makes_the_language_panic(code in "\\PC{0,60}") {
        let _ = eval(&code);
    }

    #[test]
    fn no_mix_of_tokens_makes_the_language_panic(parts in prop::collection::vec(token(), 0..24)) {
        let _ = eval(&parts.join(" "));
        let _ = eval(&parts.concat());
    }
}

fn token() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "1",
        "2.5",
        "0",
        "-",
        "+",
        "*",
        "/",
        "%",
        "**",
        "..",
        "'a'",
        "\"é\"",
        "`r`",
        "nil",
        "true",
        "false",
        "Data",
        "Facts",
        "Environ",
        "$env",
        ".",
        "?.",
        "l",
        "m",
        "nums",
        "items",
        "app",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        ";",
        "?",
        "??",
        "|",
        "||",
        "&&",
        "and",
        "or",
        "not",
        "!",
        "in",
        "matches",
        "contains",
        "==",
        "<",
        ">=",
        "let",
        "x",
        "=",
        "if",
        "else",
        "#",
        "#acc",
        "#index",
        "map(",
        "filter(",
        "reduce(",
        "sortBy(",
        "groupBy(",
        "len(",
        "sort(",
        "flatten(",
        "date(",
        "duration(",
        "'1h'",
        "'2024-05-06'",
        "get(",
        "lookup(",
        "split(",
        "replace(",
        "repeat(",
        "max(",
        "toJSON(",
        "fromPairs(",
        "bitshl(",
        "int(",
        "now()",
    ])
}
