//! Tests of errors: messages, locations, and whether they are found at compile time.

use super::{check_errors, env, eval};
use crate::expr::{Cache, eval_bool};

#[test]
fn static_errors_are_found_at_compile_time() {
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
fn an_invalid_pattern_is_found_at_compile_time() {
    let err = eval("Data.app matches '['").unwrap_err().to_string();
    assert!(err.contains("error parsing regexp"), "{err}");
    assert!(
        err.starts_with("expr compile error for 'Data.app matches '['': "),
        "{err}"
    );
}

#[test]
fn run_time_errors_have_a_location() {
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
