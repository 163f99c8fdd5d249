//! Any text as a document: what it means survives being written on one line and as YAML.

#![no_main]

use ccm_value::document::parse;
use ccm_value::{Value, yaml};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(document) = parse(text) else {
        return;
    };
    let value = document.to_value();
    let flow = document.to_flow();
    assert_same(&value, &flow);
    // JSON has no word for what YAML calls infinite or no number at all.
    let json = serde_json::to_value(&value).expect("data can be written");
    let value: Value = serde_json::from_value(json.clone()).expect("data can be read");
    assert_same(&value, &yaml::print(&json));
});

fn assert_same(value: &Value, text: &str) {
    let again = parse(text).unwrap_or_else(|err| panic!("{text:?}: {err}"));
    // Numbers that are none equal nothing, themselves included; their text does.
    assert_eq!(
        format!("{value:?}"),
        format!("{:?}", again.to_value()),
        "{text:?}"
    );
}
