//! Tests of filters: which nodes match each kind of condition.

use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::model::envelope::Compound;
use crate::model::label::parse_label;

fn facts() -> Value {
    serde_json::from_str(
        r#"{"os": {"name": "Debian", "major": 13, "load": 1.5, "version": "13.1.0"},
            "virtual": false, "up": true, "gone": null, "roles": ["web", "db"],
            "cpus": "16", "nets": [{"name": "lo", "mtu": 65536}]}"#,
    )
    .unwrap()
}

fn is_match_with(filter: &Filter, facts: Facts, labels: &[&str]) -> Result<bool, String> {
    let labels: Labels = labels.iter().map(|it| parse_label(it).unwrap()).collect();
    let groups = ["web".parse().unwrap(), "EU-west".parse().unwrap()];
    let node = NodeAttributes {
        identity: &"web1.example.net".parse().unwrap(),
        groups: &groups,
        facts: &facts,
        labels: &labels,
    };
    matches(filter, &node).map_err(|err| err.to_string())
}

fn is_match(filter: &Filter) -> Result<bool, String> {
    is_match_with(filter, Facts::Known(facts()), &[])
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).into()).collect()
}

fn by_fact(text: &str) -> Filter {
    Filter {
        facts: vec![parse_fact(text).unwrap()],
        ..Filter::default()
    }
}

fn by_expression(codes: &[&str]) -> Filter {
    let wrapped = |code: &&str| {
        vec![Compound {
            expr: (*code).into(),
        }]
    };
    Filter {
        compound: codes.iter().map(wrapped).collect(),
        ..Filter::default()
    }
}

#[test]
fn an_empty_filter_matches_every_node() {
    assert_eq!(is_match(&Filter::default()), Ok(true));
}

#[test]
fn any_of_several_names_matches() {
    for (identity, expected) in [
        (&["web1.example.net"][..], true),
        (&["db1", "/^web\\d/"], true),
        (&["/WEB/"], false),
        (&["web1"], false),
    ] {
        let identity = names(identity);
        let filter = Filter {
            identity,
            ..Filter::default()
        };
        assert_eq!(is_match(&filter), Ok(expected), "{filter:?}");
    }
}

#[test]
fn all_groups_must_match_case_insensitively() {
    for (groups, expected) in [
        (&["WEB", "eu-west"][..], true),
        (&["/^eu-/"], true),
        (&["web", "db"], false),
    ] {
        let groups = names(groups);
        let filter = Filter {
            groups,
            ..Filter::default()
        };
        assert_eq!(is_match(&filter), Ok(expected), "{filter:?}");
    }
}

#[test]
fn a_request_for_another_agent_does_not_match() {
    for (agent, expected) in [
        (&["ccm"][..], true),
        (&["/^c/"], true),
        (&["ccm", "puppet"], false),
        (&["CCM"], false),
    ] {
        let agent = names(agent);
        let filter = Filter {
            agent,
            ..Filter::default()
        };
        assert_eq!(is_match(&filter), Ok(expected), "{filter:?}");
    }
}

#[test]
fn all_kinds_of_conditions_must_match() {
    let filter = Filter {
        identity: names(&["web1.example.net"]),
        ..by_fact("os.name=fedora")
    };
    assert_eq!(is_match(&filter), Ok(false));
}

#[test]
fn facts_are_compared_by_type() {
    for (text, expected) in [
        ("os.name=debian", true),
        ("os.name!=DEBIAN", false),
        ("os.name=/^Deb/", true),
        ("os.name=~^deb", false),
        ("os.name=~(?i)^deb", true),
        ("os.name<fedora", true),
        ("os.major=13", true),
        ("os.major=13.0", true),
        ("os.major=thirteen", false),
        ("os.major!=thirteen", true),
        ("os.major>=13", true),
        ("os.major=>14", false),
        ("os.major=<13", true),
        ("os.major=~^1", true),
        ("os.load>1.5", false),
        ("os.load>=1.5", true),
        ("os.load<2", true),
        ("cpus>9", true),
        ("cpus==16", true),
        ("cpus==16.0", false),
        ("virtual=false", true),
        ("virtual!=false", false),
        ("virtual!=true", true),
        ("virtual=no", false),
        ("up=1", true),
        ("up=~tr", true),
        (r#"nets.#(name=="lo").mtu>65000"#, true),
        ("roles.0=web", true),
        ("roles.#=2", true),
    ] {
        assert_eq!(is_match(&by_fact(text)), Ok(expected), "{text}");
    }
}

#[test]
fn a_missing_fact_never_matches() {
    for text in [
        "none=x",
        "none!=x",
        "gone!=x",
        "roles!=x",
        "os=x",
        "os.name.x=y",
    ] {
        assert_eq!(is_match(&by_fact(text)), Ok(false), "{text}");
    }
}

#[test]
fn comparing_values_without_order_is_an_error() {
    assert_eq!(
        is_match(&by_fact("up>false")),
        Err("fact up is a boolean, which has no order".into())
    );
    assert_eq!(
        is_match(&by_fact("os.major>many")),
        Err("fact os.major is a number, but \"many\" is not".into())
    );
}

#[test]
fn fact_filters_are_parsed_from_text() {
    for (text, fact, operator, value) in [
        ("a.b=c", "a.b", Operator::Equal, "c"),
        (" a.b == c ", "a.b", Operator::Equal, "c"),
        ("a=b=c", "a", Operator::Equal, "b=c"),
        ("a=/x=y/", "a", Operator::Matches, "x=y"),
        ("a==/x/", "a", Operator::Equal, "/x/"),
        ("a=~/x/", "a", Operator::Matches, "x"),
        ("a<=3", "a", Operator::LessOrEqual, "3"),
        ("a=>3", "a", Operator::GreaterOrEqual, "3"),
        (
            r#"a.#(b=="c").d<3"#,
            r#"a.#(b=="c").d"#,
            Operator::Less,
            "3",
        ),
    ] {
        let found = parse_fact(text).unwrap();
        assert_eq!(
            (found.fact.as_str(), found.operator, found.value.as_str()),
            (fact, operator, value),
            "{text}"
        );
    }
    for text in ["", "a", "=b", "a=", "a.#(b==c)"] {
        let error = parse_fact(text).unwrap_err().to_string();
        assert!(error.starts_with("invalid fact filter \""), "{error}");
    }
}

#[test]
fn expressions_have_access_to_facts_groups_labels_and_the_name() {
    for (code, expected) in [
        (r#"Facts.os.name == "Debian""#, true),
        (r#"facts.os.major > 12 && "web" in groups"#, true),
        (r#"identity endsWith ".example.net""#, true),
        (
            r#"with("os.name=debian") and with("WEB") and with("ccm")"#,
            true,
        ),
        (r#"with("/^eu-/")"#, true),
        (r#"with("nobody")"#, false),
        (r#"fact("os.major") == 13"#, true),
        (r#"fact("no.such") == nil"#, true),
        (r#"include(fact("roles"), "db")"#, true),
        (r#"include([13.0], fact("os.major"))"#, true),
        (r#"include(fact("none"), 1)"#, false),
        (r#"semver(fact("os.version"), ">= 13.1")"#, true),
        (r#"semver(Facts.os.version, "~12")"#, false),
        ("len(classes) == 2 && len(agents) == 1", true),
        ("labels.role == nil", true),
    ] {
        assert_eq!(is_match(&by_expression(&[code])), Ok(expected), "{code}");
    }
}

#[test]
fn every_expression_must_be_true() {
    assert_eq!(
        is_match(&by_expression(&["true", "true", "false"])),
        Ok(false)
    );
    assert_eq!(is_match(&by_expression(&["true", "1 == 1"])), Ok(true));
}

#[test]
fn an_expression_that_can_not_be_evaluated_is_an_error() {
    for code in [
        "nonsense(",
        "unknown",
        "1 + 1",
        r#"readFile("/etc/passwd") == """#,
        r#"kvGet("a", "b") == """#,
        r#"semver("x", ">1")"#,
        "all(1..2000, fact(\"a\") == nil)",
    ] {
        let error = is_match(&by_expression(&[code])).unwrap_err();
        assert!(error.starts_with("invalid filter expression: "), "{error}");
    }
    let empty = Filter {
        compound: vec![vec![]],
        ..Filter::default()
    };
    assert!(is_match(&empty).is_err());
}

#[test]
fn a_label_overrides_a_fact() {
    let labels = ["os.name=fedora", "role=web"];
    for (text, expected) in [
        ("os.name=fedora", true),
        ("os.name=debian", false),
        ("os.major=13", true),
        ("role=web", true),
        ("label.role=web", true),
        ("labels.os.name=fedora", true),
        ("label.os.major=13", false),
    ] {
        let found = is_match_with(&by_fact(text), Facts::Known(facts()), &labels);
        assert_eq!(found, Ok(expected), "{text}");
    }
    let filter = by_expression(&[r#"labels.role == "web" && Facts.os.name == "fedora""#]);
    let found = is_match_with(&filter, Facts::Known(facts()), &labels);
    assert_eq!(found, Ok(true));
}

#[test]
fn a_fact_named_label_is_not_a_label() {
    let lie = serde_json::from_str(r#"{"label": {"role": "db"}}"#).unwrap();
    let found = is_match_with(&by_fact("label.role=db"), Facts::Known(lie), &[]);
    assert_eq!(found, Ok(false));
}

#[test]
fn only_the_facts_named_by_a_filter_are_gathered() {
    for (filter, expected) in [
        (Filter::default(), vec![]),
        (
            Filter {
                groups: names(&["web"]),
                ..Filter::default()
            },
            vec![],
        ),
        (by_fact("os.name=debian"), vec!["os"]),
        (by_expression(&["Facts.os.major == 13"]), vec!["os"]),
        (by_expression(&["fact('up')"]), vec!["up"]),
        (by_expression(&["identity != ''"]), vec![]),
    ] {
        let requested: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&requested);
        let lazy = Facts::Lazy(Arc::new(move |section| {
            log.lock().unwrap().push(section.unwrap_or("all").into());
            facts()
        }));
        assert_eq!(is_match_with(&filter, lazy, &[]), Ok(true), "{filter:?}");
        assert_eq!(*requested.lock().unwrap(), expected, "{filter:?}");
    }
}

#[test]
fn too_many_patterns_are_an_error() {
    let filter = Filter {
        identity: vec!["/x/".into(); MAX_PATTERNS + 1],
        ..Filter::default()
    };
    assert_eq!(
        is_match(&filter),
        Err("the filter has more than 100 patterns".into())
    );
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[a-z.#()=~<>!/\"é ]{0,24}") {
        if let Ok(filter) = parse_fact(&text) {
            let filter = Filter { facts: vec![filter], ..Filter::default() };
            let _ = is_match(&filter);
        }
    }
}

#[test]
fn a_fact_filter_round_trips_through_text() {
    for (text, printed) in [
        ("os.name=debian", "os.name=debian"),
        ("os.name =~ /^deb/", "os.name=~^deb"),
        ("a >= 2", "a>=2"),
        ("a==/x/", "a == /x/"),
        ("a=~//x//", "a =~ //x//"),
        ("a< =5", "a < =5"),
        ("a==~b", "a == ~b"),
        ("a! =b", "a! == b"),
        ("a=~/ x /", "a =~ / x /"),
    ] {
        let fact = parse_fact(text).unwrap();
        assert_eq!(fact.to_string(), printed);
        assert_eq!(parse_fact(printed), Ok(fact), "{printed}");
    }
}
