//! Every list of resource types that the compiler can't check names all of them.

use std::collections::BTreeSet;

use ccm_core::model::TypeName;
use serde_json::{Value, json};

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
fn the_guide_has_a_row_for_every_type() {
    let guide = text("docs/guide.md");
    for name in all() {
        let row = format!("| [{name}](reference/resources/{name}.md) | ");
        assert!(guide.lines().any(|line| line.starts_with(&row)), "{row}");
    }
}

/// Returns the schema of one resource or a list of resources by name, as manifests and requests have it.
fn resource_or_list(reference: &str) -> Value {
    json!({"oneOf": [
        {"$ref": reference},
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": {"oneOf": [{"$ref": reference}, {"type": "null"}]}
            }
        }
    ]})
}

/// Types without a state that can be requested.
const WITHOUT_STATUS: [&str; 2] = ["apply", "exec"];

fn with_status() -> Vec<&'static str> {
    let names = TypeName::ALL.into_iter().map(TypeName::as_str);
    names
        .filter(|name| !WITHOUT_STATUS.contains(name))
        .collect()
}

/// Writes the parts of the other schemas that follow from `resource.json` and the list of types.
fn fill(name: &str, document: &mut Value) {
    let names = TypeName::ALL.map(TypeName::as_str);
    match name {
        "manifest" => {
            document["$defs"] = schema("resource")["$defs"].clone();
            let place = "/properties/ccm/properties/resources/items/properties";
            let of_types = names.map(|name| (name, resource_or_list(&format!("#/$defs/{name}"))));
            *document.pointer_mut(place).unwrap() = of_types
                .into_iter()
                .map(|(name, it)| (name.to_owned(), it))
                .collect();
        }
        "resource_ensure_request" => {
            document["properties"]["type"]["enum"] = json!(names);
            let rules = names.map(|name| {
                let reference = format!("urn:ccm-fleet:schemas:v1:resource#/$defs/{name}");
                json!({
                    "if": {"properties": {"type": {"const": name}}},
                    "then": {"properties": {"properties": resource_or_list(&reference)}}
                })
            });
            document["allOf"] = json!(rules);
        }
        "resource_state" => {
            document["properties"]["type"]["enum"] = json!(names);
            let states = names.map(|name| {
                let reference = format!("#/$defs/{name}");
                let protocol = format!("io.choria.ccm.v1.resource.{name}.state");
                let mut properties =
                    json!({"protocol": {"const": protocol}, "type": {"const": name}});
                if WITHOUT_STATUS.contains(&name) {
                    return json!({"properties": properties, "$ref": reference});
                }
                properties["metadata"] = json!({"$ref": reference});
                json!({"properties": properties, "required": ["metadata"]})
            });
            document["oneOf"] = json!(states);
        }
        _ => document["properties"]["type"]["enum"] = json!(names),
    }
}

#[test]
fn schemas_follow_from_the_properties_of_the_types() {
    let update = std::env::var_os("CCM_UPDATE_EXPECTED").is_some();
    for name in [
        "manifest",
        "resource_ensure_request",
        "resource_status_request",
        "resource_state",
        "transaction_event",
    ] {
        let path = format!("schemas/{name}.json");
        let mut document = schema(name);
        fill(name, &mut document);
        let wanted = format!("{}\n", serde_json::to_string_pretty(&document).unwrap());
        if update {
            let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
            std::fs::write(path, wanted).unwrap();
            continue;
        }
        let help = "is stale: run scripts/docs --update";
        assert!(text(&path) == wanted, "{path} {help}");
    }
}

#[test]
fn the_ddl_lists_every_type() {
    let update = std::env::var_os("CCM_UPDATE_EXPECTED").is_some();
    let mut document: Value = serde_json::from_str(&text("ddl/ccm.json")).unwrap();
    let mut plain = text("ddl/ccm.ddl");
    let quoted = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        format!("[{}]", names.join(", "))
    };
    for (action, names) in [
        ("ensure", TypeName::ALL.map(TypeName::as_str).to_vec()),
        ("status", with_status()),
    ] {
        let actions = document["actions"].as_array_mut().unwrap();
        let action = actions
            .iter_mut()
            .find(|it| it["action"] == action)
            .unwrap();
        let list = &mut action["input"]["type"]["list"];
        let old = words_in_order(list);
        let old: Vec<&str> = old.iter().map(String::as_str).collect();
        plain = plain.replace(&quoted(&old), &quoted(&names));
        *list = json!(names);
    }
    let wanted = format!("{}\n", serde_json::to_string_pretty(&document).unwrap());
    for (path, wanted) in [("ddl/ccm.json", wanted), ("ddl/ccm.ddl", plain)] {
        if update {
            let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
            std::fs::write(path, wanted).unwrap();
            continue;
        }
        let help = "is stale: run scripts/docs --update";
        assert!(text(path) == wanted, "{path} {help}");
    }
}

fn words_in_order(list: &Value) -> Vec<String> {
    let words = list.as_array().unwrap().iter();
    words.map(|word| word.as_str().unwrap().into()).collect()
}
