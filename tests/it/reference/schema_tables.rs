//! Tables of properties, fields and keys, from the schemas in `schemas/`.

use std::fmt::Write as _;

use ccm_core::model::TypeName;
use serde_json::{Map, Value};

use super::root;

fn schema(name: &str) -> Value {
    let path = root().join(format!("schemas/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|err| panic!("{name}: {err}"));
    serde_json::from_str(&text).unwrap()
}

fn object<'v>(value: &'v Value, key: &str) -> &'v Map<String, Value> {
    let found = value[key].as_object();
    found.unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

/// Properties that mean the same for all types.
const COMMON: [&str; 6] = [
    "alias",
    "require",
    "control",
    "health_checks",
    "register_when_stable",
    "sensitive",
];

/// Returns the table of the properties that only one type has.
pub(super) fn properties(type_name: &str) -> String {
    let resource = schema("resource");
    let all = object(&resource["$defs"][type_name], "properties");
    table(
        all.iter()
            .filter(|(name, _)| !COMMON.contains(&name.as_str())),
    )
}

/// Returns the table of the properties that all types have.
pub(super) fn common_properties() -> String {
    let resource = schema("resource");
    let all = object(&resource["$defs"]["file"], "properties");
    table(COMMON.iter().map(|name| {
        let (name, schema) = all.get_key_value(*name).unwrap();
        (name, schema)
    }))
}

/// Returns the table of a definition of the resource schema, such as `health_check`.
pub(super) fn definition(name: &str) -> String {
    let resource = schema("resource");
    let definition = &resource["$defs"][name];
    let required = names(&definition["required"]);
    table_with(object(definition, "properties").iter(), &required)
}

fn names(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|name| name.as_str().unwrap().to_owned()).collect()
}

fn table<'v>(rows: impl Iterator<Item = (&'v String, &'v Value)>) -> String {
    table_with(rows, &[])
}

/// Returns a table of properties. Every one must have a description and an example.
fn table_with<'v>(
    rows: impl Iterator<Item = (&'v String, &'v Value)>,
    required: &[String],
) -> String {
    let mut text =
        String::from("| Property | Type | Default | Meaning | Example |\n|---|---|---|---|---|\n");
    for (name, schema) in rows {
        let default = match &schema["default"] {
            _ if required.contains(name) => "required".into(),
            Value::Null => String::new(),
            value => code(&inline(value)),
        };
        let example = &schema["examples"][0];
        assert!(!example.is_null(), "{name} has no example: {schema:#}");
        let example = code(&format!("{name}: {}", inline(example)));
        writeln!(
            text,
            "| `{name}` | {} | {default} | {} | {example} |",
            type_text(schema),
            description(name, schema)
        )
        .unwrap();
    }
    text
}

fn description(name: &str, schema: &Value) -> String {
    let text = schema["description"].as_str();
    cell(text.unwrap_or_else(|| panic!("{name} has no description: {schema:#}")))
}

/// Returns a value as it can be written in a line of YAML.
fn inline(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Object(map) => {
            let pairs: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}: {}", inline(&key.as_str().into()), inline(value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Array(list) => {
            let items: Vec<String> = list.iter().map(inline).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}

/// Reports whether YAML reads a text without quotes as the same text.
fn is_plain(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "/._- ".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(is_word)
        && !["true", "false", "null", "yes", "no"].contains(&text)
}

fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Returns the type of a value in words.
fn type_text(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let values = values
            .iter()
            .filter(|value| !value.is_null() && *value != "");
        let values: Vec<String> = values.map(|value| code(&inline(value))).collect();
        return values.join(", ");
    }
    if let Some(value) = schema.get("const") {
        return code(&inline(value));
    }
    if let Some(reference) = schema["$ref"].as_str() {
        return reference_text(reference);
    }
    for key in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[key].as_array() {
            let mut texts: Vec<String> = choices.iter().map(type_text).collect();
            texts.retain(|text| text != "null");
            texts.dedup();
            return texts.join(" or ");
        }
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
        _ => return "any".into(),
    };
    if kinds == ["null"] {
        return "null".into();
    }
    let is_text = kinds.contains(&"string") && !kinds.contains(&"integer");
    let mut words = Vec::new();
    for kind in kinds {
        words.push(match kind {
            "string" => match schema["format"].as_str() {
                Some("date-time") => "time".to_owned(),
                _ => "text".to_owned(),
            },
            "boolean" | "number" if is_text => continue,
            "boolean" => "true or false".into(),
            "integer" | "number" => "number".into(),
            "array" => match schema.get("items") {
                Some(items) => format!("list of {}", type_text(items)),
                None => "list".into(),
            },
            "object" => "map".into(),
            "null" => continue,
            other => other.into(),
        });
    }
    words.join(" or ")
}

/// Returns a reference to another schema or definition in words.
fn reference_text(reference: &str) -> String {
    let name = reference.rsplit(['/', ':']).next().unwrap();
    match name {
        "health_check" => "[health check](common.md#health-checks)".into(),
        "registration" => "[registration](common.md#registrations)".into(),
        name => name.replace('_', " "),
    }
}

/// Returns the table of the metadata in the state of a type.
pub(super) fn state(type_name: &str) -> String {
    let state = schema("resource_state");
    let mut text = String::from("| Field | Type | Meaning |\n|---|---|---|\n");
    for (name, field) in object(&state["$defs"][type_name], "properties") {
        let row = format!(
            "| `{name}` | {} | {} |",
            type_text(field),
            description(name, field)
        );
        writeln!(text, "{row}").unwrap();
    }
    text
}

/// Returns the table of the fields of a message, with those of objects below it.
pub(super) fn fields(name: &str) -> String {
    let schema = schema(name);
    let mut text = String::from("| Field | Type | Required | Meaning |\n|---|---|---|---|\n");
    add_fields(&mut text, "", &schema);
    text
}

fn add_fields(text: &mut String, prefix: &str, schema: &Value) {
    let required = names(&schema["required"]);
    for (name, field) in object(schema, "properties") {
        let is_required = match required.contains(name) {
            true => "yes",
            false => "",
        };
        let path = format!("{prefix}{name}");
        let meaning = description(&path, field);
        writeln!(
            text,
            "| `{path}` | {} | {is_required} | {meaning} |",
            type_text(field)
        )
        .unwrap();
        if field["properties"].is_object() {
            add_fields(text, &format!("{path}."), field);
        }
    }
}

/// Returns the table of the keys of the agent's configuration.
pub(super) fn agent_yaml() -> String {
    let mut text = String::from("| Key | Type | Default | Meaning |\n|---|---|---|---|\n");
    add_keys(&mut text, "", &schema("agent_config"));
    text
}

fn add_keys(text: &mut String, prefix: &str, schema: &Value) {
    for (name, key) in object(schema, "properties") {
        let path = format!("{prefix}{name}");
        let default = match &key["default"] {
            Value::Null => String::new(),
            value => code(&inline(value)),
        };
        let meaning = description(&path, key);
        writeln!(
            text,
            "| `{path}` | {} | {default} | {meaning} |",
            type_text(key)
        )
        .unwrap();
        if key["properties"].is_object() {
            add_keys(text, &format!("{path}."), key);
        } else if key["items"]["properties"].is_object() {
            add_keys(text, &format!("{path}[]."), &key["items"]);
        }
    }
}

#[test]
fn examples_of_properties_satisfy_their_schemas() {
    let resource = schema("resource");
    let mut checked = 0;
    for name in TypeName::ALL.iter().map(|name| name.as_str()) {
        for (property, schema) in object(&resource["$defs"][name], "properties") {
            for value in schema["examples"].as_array().into_iter().flatten() {
                let mut schema = schema.clone();
                schema["$defs"] = resource["$defs"].clone();
                let validator = jsonschema::validator_for(&schema).unwrap();
                let problem = validator.validate(value).err();
                assert!(problem.is_none(), "{name}.{property}: {problem:?}");
                checked += 1;
            }
        }
    }
    assert!(checked > 50, "only {checked} examples");
}
