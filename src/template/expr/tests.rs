//! Tests of whole expressions: the language as an author meets it.
//!
//! Expected values are written as they print, because that is what ends up in a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;
use crate::template::env::Facts;

fn env() -> Env {
    let data = r#"{
        "on": true, "app": "shop", "port": 9090, "f": 1.5, "n": null,
        "l": ["a", "b", "c"], "nums": [3, 1, 2], "m": {"k": "v"},
        "items": [{"name": "x", "port": 80}, {"name": "y", "port": 443}]
    }"#;
    let facts = r#"{
        "host": {"info": {"os": "linux", "hostId": "h1", "platformFamily": "debian"}},
        "network": {"interfaces": [{"name": "lo", "mtu": 65536}]}
    }"#;
    Env {
        facts: Facts::Known(serde_json::from_str(facts).unwrap()),
        data: serde_json::from_str(data).unwrap(),
        environ: serde_json::from_str(r#"{"HOME": "/home/ann"}"#).unwrap(),
        ..Env::default()
    }
}

fn eval(code: &str) -> Result<Value, ExprError> {
    compile(code, Expect::Any)?.run(&env())
}

fn print(code: &str) -> String {
    match eval(code) {
        Ok(value) => value.to_string(),
        Err(err) => panic!("{code}: {err}"),
    }
}

fn check_all(cases: &[(&str, &str)]) {
    for (code, expected) in cases {
        assert_eq!(print(code), *expected, "{code}");
    }
}

/// Checks the first line of errors, and whether they were found before running.
fn check_errors(cases: &[(&str, &str)]) {
    for (code, expected) in cases {
        let err = eval(code).unwrap_err();
        let (kind, problem) = match &err {
            ExprError::Compile { problem, .. } => ("compile: ", problem),
            ExprError::Run { problem } => ("run: ", problem),
            ExprError::Unclosed => panic!("{code}: {err}"),
        };
        let text = problem.to_string();
        let found = format!("{kind}{}", text.lines().next().unwrap_or_default());
        assert_eq!(found, *expected, "{code}");
    }
}

#[test]
fn operators_bind_in_the_order_of_the_language() {
    check_all(&[
        ("1 + 2 * 3", "7"),
        ("-2 ** 2", "-4"),
        ("2 ** 3 ** 2", "512"),
        ("1 - 2 - 3", "-4"),
        ("true || false && false", "true"),
        ("not true == false", "true"),
        ("1 + 1 == 2 and 'a' in ['a']", "true"),
        ("1..2 == [1, 2]", "true"),
        ("1 < 2 < 3", "true"),
        ("3 > 2 > 2", "false"),
        ("Data.on ? 1 : 2", "1"),
        ("Data.n ?? 'd'", "d"),
        ("1..3 | map(# * 2) | sum()", "12"),
    ]);
}

#[test]
fn division_and_power_give_floats_and_integers_wrap() {
    check_all(&[
        ("type(6 / 2)", "float"),
        ("type(2 ** 2)", "float"),
        ("1 / 0", "+Inf"),
        ("7 % 3", "1"),
        ("-7 % 3", "-1"),
        ("1 + 0.5", "1.5"),
        ("9223372036854775807 + 1", "-9223372036854775808"),
        ("2.0 * 500000", "1e+06"),
    ]);
}

#[test]
fn literals_have_all_their_forms() {
    check_all(&[
        ("0x1f + 0o17 + 0b11 + 1_000", "1049"),
        (".5 + 1.e1", "10.5"),
        (r#"'it\'s ' + "\x41\u00e9\u{1F600}""#, "it's Aé😀"),
        ("`raw\\n``x`", "raw\\n`x"),
        (
            "{a: 1, 'b c': 2, 3: 4, ('d' + 'e'): 5,}",
            "map[3:4 a:1 b c:2 de:5]",
        ),
        ("[1, 'a', nil, true,]", "[1 a <nil> true]"),
        ("1 // rest\n", "1"),
        ("/* first */ 1", "1"),
    ]);
}

#[test]
fn equality_is_by_value_and_never_across_kinds() {
    check_all(&[
        ("1 == 1.0", "true"),
        ("[1, [2]] == [1.0, [2]]", "true"),
        ("{a: 1} == {a: 1}", "true"),
        ("Data.port == '9090'", "false"),
        ("Data.n == nil", "true"),
        ("Data.m != {k: 'w'}", "true"),
    ]);
}

#[test]
fn members_index_and_slices_reach_into_data() {
    check_all(&[
        ("Data.l[-1]", "c"),
        ("Data['app']", "shop"),
        ("Data.l[1:]", "[b c]"),
        ("Data.l[-2:-1]", "[b]"),
        ("Data.l[5:9]", "[]"),
        ("Data.app[:2]", "sh"),
        ("Data.app[0]", "115"),
        ("Data.missing", "<nil>"),
        ("Data.items[1].name", "y"),
        ("Environ.HOME", "/home/ann"),
        ("Environ.MISSING == ''", "true"),
        ("$env.Data.app", "shop"),
        ("$env['Data'].app", "shop"),
    ]);
}

#[test]
fn an_optional_chain_ends_at_the_first_null() {
    check_all(&[
        ("Data.nope?.x.y.z", "<nil>"),
        ("Data.nope?.x() ?? 'd'", "d"),
        ("Data?.m?.k", "v"),
        ("Data.nope?.[0]", "<nil>"),
    ]);
    check_errors(&[("Data.nope.x?.y", "run: cannot fetch x from <nil> (1:11)")]);
}

#[test]
fn facts_answer_to_json_names_and_go_names() {
    check_all(&[
        ("Facts.host.info.platformFamily", "debian"),
        ("Facts.host.info.PlatformFamily", "debian"),
        ("Facts.host.info.OS", "linux"),
        ("Facts.host.info.HostID", "h1"),
        ("filter(Facts.network.interfaces, .MTU > 1)[0].Name", "lo"),
        ("Data.App", "<nil>"),
    ]);
}

#[test]
fn a_section_of_facts_is_gathered_alone() {
    let all = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&all);
    let env = Env {
        facts: Facts::Lazy(Arc::new(move |section| {
            if section.is_none() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
            serde_json::from_str(r#"{"host": {"name": "n1"}}"#).unwrap()
        })),
        ..Env::default()
    };
    for code in [
        "Facts.host.name",
        "'host' in Facts",
        "lookup('facts.host.name')",
        "$env.Facts.host",
        "let f = Facts; f.host.name",
    ] {
        compile(code, Expect::Any).unwrap().run(&env).unwrap();
        assert_eq!(all.load(Ordering::SeqCst), 0, "{code}");
    }
    compile("keys(Facts)", Expect::Any)
        .unwrap()
        .run(&env)
        .unwrap();
    assert_eq!(all.load(Ordering::SeqCst), 1);
}

#[test]
fn predicates_see_the_item_its_index_and_the_accumulator() {
    check_all(&[
        ("map(Data.l, {# + '1'})", "[a1 b1 c1]"),
        ("map(Data.l, #index)", "[0 1 2]"),
        ("filter(Data.items, .port > 80)[0].name", "y"),
        ("reduce(Data.nums, #acc + #)", "6"),
        ("reduce(Data.nums, #acc + #index, 10)", "13"),
        ("map([[1, 2], [3]], sum(map(#, # * 2)))", "[6 6]"),
        ("map([1], {let y = # + 1; y * 2})", "[4]"),
        ("count([true, false, true])", "2"),
        ("one(Data.nums, # > 2)", "true"),
        ("findLast(Data.nums, # < 3)", "2"),
        ("findLastIndex(Data.nums, # > 9)", "<nil>"),
        ("sum(Data.items, .port)", "523"),
        ("groupBy(Data.nums, # % 2)[1]", "[3 1]"),
        ("len(groupBy(Data.items, .name)['zz'])", "0"),
        ("sortBy(Data.items, .port, 'desc')[0].name", "y"),
    ]);
}

#[test]
fn variables_and_conditions_nest() {
    check_all(&[
        ("let x = 1; let y = x + 1; x + y", "3"),
        ("if Data.on { let x = 'y'; x } else { 'n' }", "y"),
        ("if false { 1 } else if false { 2 } else { 3 }", "3"),
        ("1; 2; 3", "3"),
        ("let trueish = 2; trueish", "2"),
    ]);
}

#[test]
fn built_ins_on_text() {
    check_all(&[
        ("len('é')", "1"),
        ("trim('__x__', '_') + upper('a') + lower('B')", "xAb"),
        (
            "trimPrefix('foobar', 'foo') + trimSuffix('foobar', 'bar')",
            "barfoo",
        ),
        ("split('a,b,c', ',', 2)", "[a b,c]"),
        ("splitAfter('a,b', ',')", "[a, b]"),
        ("split('ab', '')", "[a b]"),
        ("replace('aaa', 'a', 'b', 2)", "bba"),
        ("repeat('ab', 3)", "ababab"),
        ("join(Data.l, '-') + join(Data.l)", "a-b-cabc"),
        (
            "[indexOf('abc', 'c'), lastIndexOf('abca', 'a'), indexOf('a', 'z')]",
            "[2 3 -1]",
        ),
        ("hasPrefix('abc', 'ab') and hasSuffix('abc', 'bc')", "true"),
        ("fromBase64(toBase64('hi'))", "hi"),
        ("fromJSON('{\"a\": [1, 2.5]}').a[1]", "2.5"),
        (
            "toJSON({b: [1.5, nil], a: '<'})",
            "{\n  \"a\": \"\\u003c\",\n  \"b\": [\n    1.5,\n    null\n  ]\n}",
        ),
        ("string([1, 'a']) + string(nil)", "[1 a]<nil>"),
    ]);
}

#[test]
fn built_ins_on_numbers() {
    check_all(&[
        (
            "[abs(-3), ceil(1.2), floor(-1.2), round(-2.5)]",
            "[3 2 -2 -3]",
        ),
        ("[int('12'), int(3.9), float('1e3')]", "[12 3 1000]"),
        ("[max(1, [5, 2]), min(Data.nums)]", "[5 1]"),
        ("max([])", "<nil>"),
        (
            "[mean([1, 2, 3]), median(1, 2, 3, 4), mean([])]",
            "[2 2.5 0]",
        ),
        (
            "[bitand(6, 3), bitor(6, 3), bitxor(6, 3), bitnand(6, 3), bitnot(5)]",
            "[2 7 5 4 -6]",
        ),
        (
            "[bitshl(1, 4), bitshl(1, 70), bitshr(-8, 1), bitushr(-1, 63)]",
            "[16 0 -4 1]",
        ),
    ]);
}

#[test]
fn built_ins_on_lists_and_maps() {
    check_all(&[
        ("[first(Data.l), last(Data.l), first([])]", "[a c <nil>]"),
        ("take(Data.l, 2)", "[a b]"),
        ("concat([1], [2, 3])", "[1 2 3]"),
        ("flatten([[1, [2]], 3])", "[1 2 3]"),
        ("uniq([1, 1.0, 2])", "[1 2]"),
        ("reverse(Data.l)", "[c b a]"),
        ("sort(Data.nums, 'desc')", "[3 2 1]"),
        ("sort([2, 1.5, 1])", "[1 1.5 2]"),
        ("keys(Data.m) == ['k'] and values(Data.m) == ['v']", "true"),
        ("fromPairs(toPairs({a: 1}))", "map[a:1]"),
        (
            "[get(Data, 'app'), get(Data.l, 9), get(Data.m, 1 + 1 == 2 ? 'k' : 'z')]",
            "[shop <nil> v]",
        ),
    ]);
}

#[test]
fn dates_and_durations_behave_as_in_go() {
    check_all(&[
        ("date('2024-05-06')", "2024-05-06 00:00:00 +0000 UTC"),
        ("date('2024-05-06') - date('2024-05-01')", "120h0m0s"),
        (
            "date('2024-05-06') + duration('25h')",
            "2024-05-07 01:00:00 +0000 UTC",
        ),
        (
            "date('2024-05-06').Format('Mon Jan _2 2006')",
            "Mon May  6 2024",
        ),
        (
            "date('2024-01-31').AddDate(0, 1, 0).Format('2006-01-02')",
            "2024-03-02",
        ),
        ("date('2024-05-06').Month()", "May"),
        ("int(date('2024-05-06').Month())", "5"),
        ("date('2024-05-06').Unix()", "1714953600"),
        (
            "duration('1h').Minutes() + duration('90s').Minutes()",
            "61.5",
        ),
        ("duration('1h') * 2 > duration('90m')", "true"),
        ("duration('1h7m').Round(duration('15m'))", "1h0m0s"),
        ("now() > date('2020-01-01')", "true"),
        ("map([duration('1h')], #.Hours())", "[1]"),
        ("toJSON(duration('1s'))", "1000000000"),
    ]);
}

#[test]
fn mistakes_are_found_before_running() {
    check_errors(&[
        ("nosuch", "compile: unknown name nosuch (1:1)"),
        ("false and nosuch", "compile: unknown name nosuch (1:11)"),
        ("nosuch(1)", "compile: unknown name nosuch (1:1)"),
        ("data.x", "compile: unknown name data (1:1)"),
        (
            "1 == 'a'",
            "compile: invalid operation: == (mismatched types int and string) (1:3)",
        ),
        (
            "Data.on and 1",
            "compile: invalid operation: and (mismatched types interface {} and int) (1:9)",
        ),
        (
            "!1",
            "compile: invalid operation: ! (mismatched type int) (1:1)",
        ),
        (
            "1 in {a: 1}",
            "compile: cannot use int as type string in map key (1:3)",
        ),
        (
            "1 ?? 2 + 3",
            "compile: Operator (+) and coalesce expressions (??) cannot be mixed. Wrap either by parentheses. (1:8)",
        ),
        (
            "upper(1)",
            "compile: cannot use int as argument (type string) to call upper (1:7)",
        ),
        (
            "upper()",
            "compile: not enough arguments to call upper (1:1)",
        ),
        (
            "filter([1], 1)",
            "compile: predicate should return boolean (got int) (1:13)",
        ),
        (
            "filter([1], #index > 0)",
            "compile: unknown pointer #index (1:13)",
        ),
        (
            "map(5, #)",
            "compile: builtin map takes only array (got int) (1:5)",
        ),
        ("let Data = 1; Data", "compile: cannot redeclare Data (1:5)"),
        (
            "let x = 1; let x = 2; x",
            "compile: cannot redeclare variable x (1:16)",
        ),
        (
            "1 ? 2 : 3",
            "compile: non-bool expression (type int) used as condition (1:1)",
        ),
        (
            "date('2024-05-06').Foo()",
            "compile: type time.Time has no method Foo (1:20)",
        ),
        ("1 +", "compile: unexpected token EOF (1:3)"),
        (
            "two words",
            "compile: unexpected token Identifier(\"words\") (1:5)",
        ),
        ("", "compile: unexpected token EOF"),
        ("(1", "compile: unexpected token EOF (1:2)"),
        ("1 | 2", "compile: unexpected token Number(\"2\") (1:5)"),
        ("#", "compile: unexpected token Operator(\"#\") (1:1)"),
    ]);
}

#[test]
fn a_bad_pattern_is_found_before_running() {
    let err = eval("Data.app matches '['").unwrap_err().to_string();
    assert!(err.contains("error parsing regexp"), "{err}");
    assert!(
        err.starts_with("expr compile error for 'Data.app matches '['': "),
        "{err}"
    );
}

#[test]
fn what_only_running_shows_names_the_place() {
    check_errors(&[
        ("Data.nope.x", "run: cannot fetch x from <nil> (1:11)"),
        ("Data.on + 1", "run: invalid operation: bool + int (1:9)"),
        (
            "Data.l[9]",
            "run: index out of range: 9 (array length is 3) (1:7)",
        ),
        (
            "not Data.m",
            "run: interface conversion: interface {} is map[string]interface {}, not bool (1:1)",
        ),
        ("int('x')", "run: invalid operation: int(x) (1:1)"),
        (
            "1 % (Data.port - 9090)",
            "run: runtime error: integer divide by zero (1:3)",
        ),
        (
            "sort([1, 'a'])",
            "run: invalid operation: string < int (1:1)",
        ),
        (
            "join([1, 2])",
            "run: interface conversion: interface {} is int, not string (1:1)",
        ),
        ("fromJSON('{')", "run: unexpected end of JSON input (1:1)"),
        (
            "reduce([], #acc)",
            "run: reduce of empty array with no initial value (1:1)",
        ),
        (
            "Data.m.k()",
            "run: invalid operation: cannot call non-function of type string (1:8)",
        ),
        (
            "any(Data.nope, true)",
            "run: builtin any takes only array (got nil) (1:1)",
        ),
        ("duration('x')", "run: time: invalid duration \"x\" (1:1)"),
        (
            "timezone('No/Where')",
            "run: unknown time zone No/Where (1:1)",
        ),
    ]);
}

#[test]
fn a_condition_must_be_true_false_or_null() {
    let cache = Cache::default();
    let holds = |code| eval_bool(code, &env(), &cache).map_err(|err| err.to_string());
    assert_eq!(holds("Data.port > 80"), Ok(true));
    assert_eq!(holds("Data.missing"), Ok(false));
    assert_eq!(
        holds("1"),
        Err("expr compile error for '1': expected bool, but got int".into())
    );
    assert_eq!(
        holds("Data.port"),
        Err("invalid operation: bool(int) (1:1)\n | Data.port\n | ^".into())
    );
}

#[test]
fn extras_add_variables_and_functions() {
    let mut extras = Extras::default();
    extras.variables.insert("value", "10.0.0.1".into());
    extras.functions.insert(
        "isIPv4",
        Arc::new(|args| {
            Ok(args
                .first()
                .is_some_and(|text| text.to_string().contains('.'))
                .into())
        }),
    );
    let options = Options {
        expect: Expect::Bool,
        isolated: true,
        extras: Some(&extras),
        ..Options::default()
    };
    let program = compile_with("isIPv4(value) && len(value) > 3", options).unwrap();
    let result = program.run_with(&Env::default(), Some(&extras), &Cache::default());
    assert_eq!(result, Ok(Value::Bool(true)));
    let err = compile_with("Data.x == value", options).unwrap_err();
    assert!(err.to_string().contains("unknown name Data"));
    let err = compile_with("value + 1 == 2", options).unwrap_err();
    assert!(err.to_string().contains("mismatched types string and int"));
}

#[test]
fn hiera_documents_have_only_lookup() {
    let options = Options {
        restricted: true,
        ..Options::default()
    };
    assert!(compile_with("lookup('facts.x')", options).is_ok());
    for code in [
        "readFile('x')",
        "template('x')",
        "jet('x')",
        "kvGet('a', 'b')",
    ] {
        let err = compile_with(code, options).unwrap_err().to_string();
        assert!(
            err.contains("compile error") && err.contains("unknown name"),
            "{err}"
        );
    }
}

#[test]
fn a_cache_compiles_each_expression_once() {
    let cache = Cache::default();
    let first = cache.program("1 + 1", Expect::Any, false).unwrap();
    let second = cache.program("1 + 1", Expect::Any, false).unwrap();
    let other = cache.program("1 + 1", Expect::Any, true).unwrap();
    assert!(Arc::ptr_eq(&first.0, &second.0));
    assert!(!Arc::ptr_eq(&first.0, &other.0));
}

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
    // Levels of different kinds cost different amounts of stack; each must fit.
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
