//! Go names: field names of facts, and type names of values.
//!
//! Upstream passes its Go structs to templates, so authors write `PlatformFamily` where the JSON
//! document has `platformFamily`. Both names work here. Expressions translate a name at lookup
//! ([`json_name`]). The other engines do their own lookups, so they get facts with a second entry
//! for every Go name that occurs in the template ([`with_go_names`]).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ccm_value::value::{Map, Value};

/// Fact sections that are structs upstream; all others are plain maps there too.
const SECTIONS: [&str; 5] = ["cpu", "host", "memory", "network", "partition"];

/// Fields whose JSON name differs in more than the case of the first letter.
const IRREGULAR: [(&str, &str); 7] = [
    ("OS", "os"),
    ("HostID", "hostId"),
    ("CPU", "cpu"),
    ("VendorID", "vendorId"),
    ("PhysicalID", "physicalId"),
    ("CoreID", "coreId"),
    ("MTU", "mtu"),
];

/// Returns the Go type name of a value.
pub(crate) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "interface {}",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int",
        Value::Uint(_) => "uint64",
        Value::Float(_) => "float64",
        Value::Str(_) => "string",
        Value::List(_) => "[]interface {}",
        Value::Map(_) => "map[string]interface {}",
    }
}

/// Returns the JSON name of a Go field.
pub(super) fn json_name(name: &str) -> Option<String> {
    if let Some((_, json)) = IRREGULAR.iter().find(|(go, _)| *go == name) {
        return Some((*json).into());
    }
    let mut chars = name.chars();
    let first = chars.next().filter(char::is_ascii_uppercase)?;
    Some(format!("{}{}", first.to_ascii_lowercase(), chars.as_str()))
}

/// Adds to facts the Go names that occur in a template.
pub(super) fn with_go_names(facts: Value, template: &[u8]) -> Value {
    let names = names_in(template);
    let Value::Map(sections) = &facts else {
        return facts;
    };
    if names.is_empty() {
        return facts;
    }
    let mut named = Map::clone(sections);
    for section in SECTIONS {
        if let Some(value) = named.get_mut(section) {
            *value = renamed(value, &names);
        }
    }
    named.into()
}

/// Possible Go names in a text, by the JSON name they stand for.
type Names<'t> = HashMap<String, BTreeSet<&'t str>>;

fn names_in(text: &[u8]) -> Names<'_> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let words = text.split(|byte| !is_word(byte));
    let mut names = Names::new();
    for word in words.filter_map(|word| std::str::from_utf8(word).ok()) {
        if let Some(name) = json_name(word) {
            names.entry(name).or_default().insert(word);
        }
    }
    names
}

fn renamed(value: &Value, names: &Names<'_>) -> Value {
    match value {
        Value::List(list) => list.iter().map(|item| renamed(item, names)).collect(),
        Value::Map(map) => {
            let mut named = Map::new();
            for (key, item) in map.iter() {
                let item = renamed(item, names);
                for name in names.get(&**key).into_iter().flatten() {
                    named.entry(Arc::from(*name)).or_insert(item.clone());
                }
                // An existing entry of the same name takes precedence.
                named.insert(key.clone(), item);
            }
            named.into()
        }
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Value {
        let host: Value = [("os", "linux"), ("platformFamily", "debian")]
            .map(|(key, value)| (key, Value::from(value)))
            .into_iter()
            .collect();
        let section: Value = [("info", [host].into_iter().collect::<Value>())]
            .into_iter()
            .collect();
        [("host", section.clone()), ("site", section)]
            .into_iter()
            .collect()
    }

    fn keys(facts: &Value, section: &str) -> Vec<String> {
        let list = facts.get(section).and_then(|it| it.get("info")).unwrap();
        let map = list.as_list().unwrap()[0].as_map().unwrap();
        map.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn facts_get_only_the_go_names_that_a_template_contains() {
        let named = with_go_names(facts(), b"[[ facts.host.info.OS ]] and Hostname");
        assert_eq!(keys(&named, "host"), ["OS", "os", "platformFamily"]);
        assert_eq!(with_go_names(facts(), b"[[ facts.host ]]"), facts());
    }

    #[test]
    fn custom_facts_keep_their_names() {
        let named = with_go_names(facts(), b"PlatformFamily");
        assert_eq!(keys(&named, "site"), ["os", "platformFamily"]);
        assert_eq!(keys(&named, "host").len(), 3);
    }
}
