//! Every list of resource types that the compiler can't check names all of them.

use std::collections::BTreeSet;

use ccm_core::model::TypeName;
use serde_json::Value;

use crate::support::TestEnv;

fn text(path: &str) -> String {
    let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|err| panic!("{path}: {err}"))
}

fn schema(name: &str) -> Value {
    serde_json::from_str(&text(&format!("schemas/{name}.json"))).unwrap()
}

fn all() -> BTreeSet<String> {
    TypeName::ALL.iter().map(ToString::to_string).collect()
}

fn words(list: &Value) -> BTreeSet<String> {
    let words = list.as_array().unwrap().iter();
    words.map(|word| word.as_str().unwrap().into()).collect()
}

#[test]
fn every_schema_knows_every_type() {
    for name in [
        "resource_ensure_request",
        "resource_state",
        "transaction_event",
    ] {
        let schema = schema(name);
        assert_eq!(
            words(&schema["properties"]["type"]["enum"]),
            all(),
            "{name}"
        );
    }
    let request = schema("resource_ensure_request");
    let rules = request["allOf"].as_array().unwrap().iter();
    let ruled: BTreeSet<String> = rules
        .filter_map(|rule| rule["if"]["properties"]["type"]["const"].as_str())
        .map(str::to_owned)
        .collect();
    assert_eq!(ruled, all());
    let (state, manifest) = (schema("resource_state"), text("schemas/manifest.json"));
    for name in all() {
        assert!(state["$defs"][&name].is_object(), "{name} has no state");
        let reference = format!("\"#/$defs/{name}\"");
        assert!(manifest.contains(&reference), "{name} in manifests");
    }
}

#[test]
fn every_type_but_apply_is_a_command_of_ensure() {
    let help = TestEnv::new().ccm(&["ensure", "--help"]).ok();
    let first_words: BTreeSet<&str> = help
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    for name in all().into_iter().filter(|name| name != "apply") {
        assert!(first_words.contains(name.as_str()), "{name} in {help}");
    }
}

#[test]
fn the_page_can_filter_events_by_every_type() {
    let script = text("crates/ccm-fleet/src/web/assets/events.js");
    let line = script
        .lines()
        .find_map(|line| line.strip_prefix("const TYPES = "))
        .unwrap();
    let listed: Value = serde_json::from_str(line.trim_end_matches(';')).unwrap();
    let mut wanted = all();
    wanted.insert("run".into());
    assert_eq!(words(&listed), wanted);
}

#[test]
fn the_guide_has_a_chapter_for_every_type() {
    let guide = text("docs/guide.md");
    for name in all() {
        let heading = match name.as_str() {
            "apply" => "### Manifests inside manifests".to_owned(),
            name => format!("### {name}"),
        };
        assert!(guide.lines().any(|line| line == heading), "{heading}");
    }
}
