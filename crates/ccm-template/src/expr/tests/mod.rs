//! Tests of whole expressions.
//!
//! Expected values are given in printed form, which is what ends up in a file.

mod builtins;
mod errors;
mod hostile;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::env::Facts;

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

/// Checks the first line of errors, and whether they were found at compile time.
fn check_errors(cases: &[(&str, &str)]) {
    for (code, expected) in cases {
        let err = eval(code).unwrap_err();
        let (kind, problem) = match &err {
            ExprError::Compile { problem, .. } => ("compile: ", problem),
            ExprError::Run { problem } => ("run: ", problem),
            ExprError::Unclosed | ExprError::Hidden | ExprError::ShowsSecret => {
                panic!("{code}: {err}")
            }
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
        ("Data.n || false", "<nil>"),
        ("Data.n && false", "false"),
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
fn facts_have_json_names_and_go_names() {
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
fn any_name_is_null_in_an_environment_without_data() {
    for (code, expected) in [
        ("Data.x", "<nil>"),
        ("Data?.x ?? 1", "1"),
        ("keys(Data)", "[]"),
        ("Environ.X", ""),
        ("keys(Facts)", "[]"),
    ] {
        let env = Env {
            facts: Facts::Known(Value::Null),
            ..Env::default()
        };
        let found = compile(code, Expect::Any).unwrap().run(&env).unwrap();
        assert_eq!(found.to_string(), expected, "{code}");
    }
}
