//! Documents. Property: the value round-trips through flow style and YAML output.

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
    // JSON has no infinity or NaN, so YAML output is compared after conversion to JSON.
    let json = serde_json::to_value(&value).expect("serialize data");
    let value: Value = serde_json::from_value(json.clone()).expect("deserialize data");
    assert_same(&value, &yaml::print(&json));
});

fn assert_same(value: &Value, text: &str) {
    let again = parse(text).unwrap_or_else(|err| panic!("{text:?}: {err}"));
    // NaN does not equal itself; its text does.
    assert_eq!(
        format!("{value:?}"),
        format!("{:?}", again.to_value()),
        "{text:?}"
    );
}
