//! Hiera documents with annotations. Property: no panic and no endless merge.

#![no_main]

use ccm_core::hiera::{DATA_KEY, parse_annotations, resolve, validate};
use ccm_template::env::Facts;
use ccm_value::Value;
use ccm_value::document::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let annotations = parse_annotations(text, DATA_KEY);
    if let Ok(document) = parse(text) {
        let facts = Facts::Known([("role", Value::from("web"))].into_iter().collect());
        if let Ok(data) = resolve(&document.to_value(), &facts, DATA_KEY) {
            let _ = validate(&data, &annotations.rules);
        }
    }
});
