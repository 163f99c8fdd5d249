//! Every matcher with matching, other and incomparable values.

use super::*;

fn value(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

fn check(wanted: &str, actual: &str) -> Result<bool, String> {
    Matcher::parse(&value(wanted))
        .unwrap()
        .check(&value(actual))
        .map_err(|error| error.to_string())
}

fn patterns(wanted: &str, text: &str) -> bool {
    let matcher = Matcher::patterns(&value(wanted)).unwrap();
    matcher.check(&text.into()).unwrap()
}

#[test]
fn matchers_match_and_reject() {
    for (wanted, yes, no) in [
        // Plain data.
        (r#""80""#, "80", "81"),
        (r#""a\nb""#, r#"["a", "b"]"#, r#"["b", "a"]"#),
        ("80", r#"" 80\n""#, r#""80.5""#),
        ("1.5", r#"["1.5"]"#, "1"),
        ("true", "true", "false"),
        ("true", "true", r#""true""#),
        (r#"["a", "b"]"#, r#"["b", "c", "a"]"#, r#"["a"]"#),
        (
            r#"[{"have-prefix": "a"}, "ab"]"#,
            r#"["ab", "ac"]"#,
            r#"["ab", "b"]"#,
        ),
        // Named ones.
        (r#"{"equal": 1}"#, "1.0", r#""1""#),
        (
            r#"{"equal": ["a", {"b": 1}]}"#,
            r#"["a", {"b": 1}]"#,
            r#"["a", {"b": 2}]"#,
        ),
        (r#"{"equal": null}"#, "null", "0"),
        (r#"{"have-prefix": "ab"}"#, r#""abc""#, r#""cab""#),
        (r#"{"have-suffix": "bc"}"#, r#""abc""#, r#""bca""#),
        (r#"{"contain-substring": "b"}"#, r#""abc""#, r#""ac""#),
        (r#"{"match-regexp": "^a.c$"}"#, r#""abc""#, r#""abcd""#),
        (
            r#"{"match-regexp": "^{\"a\": {"}"#,
            r#""{\"a\": {}}""#,
            r#""a""#,
        ),
        (r#"{"have-len": 2}"#, r#""é""#, r#""e""#),
        (r#"{"have-len": 2}"#, "[1, 2]", "[1]"),
        (r#"{"have-len": 1}"#, r#"{"a": 1}"#, "{}"),
        (
            r#"{"have-patterns": ["/^b/", "!x"]}"#,
            r#""a\nbc""#,
            r#""a\nbx""#,
        ),
        (r#"{"have-key": "a"}"#, r#"{"a": 1}"#, r#"{"b": 1}"#),
        (
            r#"{"have-key": {"match-regexp": "^x"}}"#,
            r#"{"xy": 1}"#,
            r#"{"yx": 1}"#,
        ),
        (r#"{"contain-element": 2}"#, r#"["2", "3"]"#, "[1]"),
        (r#"{"contain-element": "b"}"#, r#""a\nb""#, r#""ab""#),
        (
            r#"{"contain-element": {"gt": 5}}"#,
            r#"{"x": 7}"#,
            r#"{"x": 3}"#,
        ),
        (
            r#"{"contain-elements": ["a", "b"]}"#,
            r#""b\nc\na""#,
            r#""a\nc""#,
        ),
        (
            r#"{"contain-elements": ["a", "a"]}"#,
            r#"["a", "a"]"#,
            r#"["a", "b"]"#,
        ),
        (
            r#"{"consist-of": ["a", {"have-prefix": "b"}]}"#,
            r#"["bx", "a"]"#,
            r#"["a", "b", "c"]"#,
        ),
        (r#"{"not": "a"}"#, r#""b""#, r#""a""#),
        (r#"{"not": {"not": 1}}"#, "1", "2"),
        (r#"{"and": [{"gt": 1}, {"lt": 5}]}"#, "3", "5"),
        (r#"{"or": ["a", "b"]}"#, r#""b""#, r#""c""#),
        (r#"{"gt": 5}"#, "6", "5"),
        (r#"{"ge": 5}"#, r#""5""#, "4"),
        (r#"{"lt": 5}"#, "4.5", "5"),
        (r#"{"le": 5}"#, "5", "6"),
        (
            r#"{"semver-constraint": ">=1.2.0 <2.0.0"}"#,
            r#"["1.2.0", "1.9.0"]"#,
            r#""2.0.0""#,
        ),
        (
            r#"{"gjson": {"a.b": 1, "c.#": {"ge": 2}}}"#,
            r#""{\"a\": {\"b\": 1}, \"c\": [1, 2]}""#,
            r#""{\"a\": {\"b\": 2}, \"c\": [1, 2]}""#,
        ),
        (
            r#"{"gjson": {"a": {"have-key": "b"}}}"#,
            r#""{\"a\": {\"b\": 1}}""#,
            r#""{\"a\": {}}""#,
        ),
        ("[]", "[1]", "x"),
    ] {
        assert_eq!(check(wanted, yes), Ok(true), "{wanted} {yes}");
        if no != "x" {
            assert_eq!(check(wanted, no), Ok(false), "{wanted} {no}");
        }
    }
}

#[test]
fn no_alternative_is_never_satisfied_and_no_condition_always() {
    assert_eq!(check(r#"{"or": []}"#, "1"), Ok(false));
    assert_eq!(check(r#"{"and": []}"#, "1"), Ok(true));
}

#[test]
fn incomparable_values_are_an_error_even_when_negated() {
    for (wanted, actual) in [
        ("5", r#""five""#),
        ("5", "true"),
        (r#"["a"]"#, r#""a""#),
        (r#"{"consist-of": ["a"]}"#, r#""a""#),
        (r#"{"have-key": "a"}"#, "[]"),
        (r#"{"have-len": 1}"#, "7"),
        (r#"{"gt": 1}"#, "null"),
        (r#"{"gjson": {"a": 1}}"#, r#""{""#),
        (r#"{"gjson": {"a": 1}}"#, r#""{}""#),
        (r#"{"gjson": {"a": 1}}"#, "{}"),
        (r#"{"semver-constraint": ">1.0.0"}"#, r#""1.0""#),
        (r#"{"contain-element": {"gt": 1}}"#, r#"["x"]"#),
    ] {
        assert!(check(wanted, actual).is_err(), "{wanted} {actual}");
        let negated = format!(r#"{{"not": {wanted}}}"#);
        assert!(check(&negated, actual).is_err(), "{negated} {actual}");
    }
}

#[test]
fn invalid_matchers_have_the_errors_of_goss() {
    let error = |wanted: &str| Matcher::parse(&value(wanted)).unwrap_err().to_string();
    for (wanted, text) in [
        (
            r#"{"gt": 1, "lt": 5}"#,
            "Syntax Error: Invalid matcher configuration. At a given nesting level, only one \
             matcher is allowed. Found multiple matchers: [\"gt\", \"lt\"]",
        ),
        (
            r#"{"be-nice": 1}"#,
            "Syntax Error: Unknown matcher: be-nice",
        ),
        (
            r#"{"have-prefix": 1}"#,
            "Syntax Error: Invalid 'have-prefix' argument. Expected string value, but received: \
             integer: 1",
        ),
        ("null", "Syntax Error: Missing required attribute"),
    ] {
        assert_eq!(error(wanted), text);
    }
    for wanted in [
        "{}",
        r#"{"gt": "1"}"#,
        r#"{"have-len": -1}"#,
        r#"{"have-len": "1"}"#,
        r#"{"have-patterns": "x"}"#,
        r#"{"have-patterns": [1]}"#,
        r#"{"contain-element": ["x"]}"#,
        r#"{"contain-elements": "x"}"#,
        r#"{"and": "x"}"#,
        r#"{"gjson": "x"}"#,
        r#"{"match-regexp": "a["}"#,
        r#"{"semver-constraint": "~1"}"#,
        r#"{"not": {"or": [null]}}"#,
        r#"{"xml": {"xpath": "/a", "result": "b"}}"#,
    ] {
        assert!(error(wanted).len() > 10, "{wanted}");
    }
}

#[test]
fn line_patterns_are_found_in_some_line_or_in_none() {
    let text = "alpha 1\n!bang\n/path/x\r\nlast";
    for (wanted, fits) in [
        (r#"["alpha"]"#, true),
        (r#"["alpha", "last"]"#, true),
        (r#"["alpha", "beta"]"#, false),
        (r#"["!beta"]"#, true),
        (r#"["!alpha"]"#, false),
        (r#"["\\!bang"]"#, true),
        (r#"["/^alpha \\d$/"]"#, true),
        (r#"["/^alpha$/"]"#, false),
        (r#"["!/^beta/"]"#, true),
        (r#"["!/^alpha/"]"#, false),
        (r#"["/x$/"]"#, true),
        (r#"["/path/x"]"#, true),
        (r#"["/alpha.*last/"]"#, false),
        (r#"[""]"#, true),
    ] {
        assert_eq!(patterns(wanted, text), fits, "{wanted}");
    }
}

#[test]
fn a_text_without_lines_contains_only_the_empty_pattern() {
    assert!(patterns(r#"["", "!x"]"#, ""));
    assert!(!patterns(r#"["x"]"#, ""));
    assert!(!patterns(r#"["/^$/"]"#, ""));
}

#[test]
fn a_very_long_line_is_an_error() {
    let matcher = Matcher::patterns(&value(r#"["x"]"#)).unwrap();
    let text = "y".repeat(1024 * 1024 + 1);
    assert!(matcher.check(&text.into()).is_err());
}

#[test]
fn deep_nesting_is_refused() {
    let deep = (0..1000).fold(Value::from(1_i64), |inner, _| {
        [("not", inner)].into_iter().collect()
    });
    let error = Matcher::parse(&deep).unwrap_err();
    assert!(matches!(error, MatchError::TooDeep), "{error}");
}

#[test]
fn too_many_elements_are_refused() {
    let items = |count: i64| -> Value { (0..count).map(Value::from).collect() };
    let matcher = Matcher::parse(&items(1001)).unwrap();
    let reason = matcher.check(&items(1001)).unwrap_err().to_string();
    assert!(reason.contains("too many to compare"), "{reason}");
    assert!(!matcher.check(&items(3)).unwrap());
}

#[test]
fn every_matcher_gets_its_own_element() {
    let anything = r#"{"have-prefix": ""}"#;
    let wanted = format!(r#"[{anything}, {anything}, "c", "b"]"#);
    assert_eq!(check(&wanted, r#"["a", "b", "c", "d"]"#), Ok(true));
    assert_eq!(check(&wanted, r#"["a", "b", "d", "e"]"#), Ok(false));
}

#[test]
fn descriptions_of_matchers() {
    let description = |wanted: &str| Matcher::parse(&value(wanted)).unwrap().description();
    assert_eq!(description("5"), "to be numerically eq 5");
    assert_eq!(
        description(r#"{"not": {"have-prefix": "a"}}"#),
        "not to have prefix \"a\""
    );
    assert_eq!(
        description(r#"["a"]"#),
        "to contain elements matching [\"a\"]"
    );
}

#[test]
fn long_values_are_cut_when_shown() {
    let shown = short(&"é".repeat(100_000).into());
    assert_eq!(shown.chars().count(), MAX_SHOWN + 1);
    assert!(shown.ends_with('…'));
}
