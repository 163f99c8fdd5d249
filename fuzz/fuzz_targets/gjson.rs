//! gjson paths into a small document. Property: no panic and no endless search.

#![no_main]

use ccm_template::path;
use ccm_value::document::parse;
use libfuzzer_sys::fuzz_target;

const DOCUMENT: &str =
    r#"{"a":{"b":[{"n":"x","v":1},{"n":"y","v":2.5},null,true]},"k.k":"dot","l":[[1,2],[3]]}"#;

fuzz_target!(|text: &str| {
    if let Ok(document) = parse(DOCUMENT) {
        let _ = path::find(&document.to_value(), text);
    }
});
