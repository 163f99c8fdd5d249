//! Requests received over NATS. Property: an accepted request round-trips.

#![no_main]

use ccm_core::model::request::{ENSURE_REQUEST, parse_ensure, parse_status};
use ccm_core::model::resource::Resource;
use ccm_core::model::run::parse_apply;
use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|text: &str| {
    let _ = parse_status(text);
    if let Ok(request) = parse_apply(text) {
        let sent = serde_json::to_string(&request).expect("serialize a request");
        assert_eq!(parse_apply(&sent), Ok(request), "{sent}");
    }
    if let Ok(resource) = parse_ensure(text) {
        let sent = ensure_request(&resource);
        assert_eq!(parse_ensure(&sent), Ok(resource), "{sent}");
    }
});

fn ensure_request(resource: &Resource) -> String {
    json!({
        "protocol": ENSURE_REQUEST,
        "type": resource.type_name(),
        "properties": resource,
    })
    .to_string()
}
