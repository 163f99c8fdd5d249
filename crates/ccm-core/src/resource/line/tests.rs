//! Tests of edits. Cases are in `tests/data/line`.

use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;

use super::LineError;
use super::edit::edit;
use crate::model::TypeName;
use crate::model::resource::Line;
use crate::resource::package::scripted_host::ScriptedHost;
use crate::resource::tests::declared;
use crate::resource::{ResourceError, SelectedProvider, select_provider};

/// Returns the bytes of a text in a case: each character up to U+00FF is one byte.
fn bytes(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    text.chars().map(|c| u8::try_from(c).unwrap()).collect()
}

#[test]
fn edits_follow_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/line/edits.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for case in &cases {
        let name = &case["name"];
        let line: Line = serde_json::from_value(case["properties"].clone()).unwrap();
        let is_present = case["ensure"] != "absent";
        let result = edit(&bytes(&case["content"]), "/f", &line, is_present);
        if let Some(error) = case["error"].as_str() {
            assert_eq!(result.unwrap_err().to_string(), error, "{name}");
            continue;
        }
        let edited = result.unwrap().map(|(content, _)| content);
        let wanted = (!case["result"].is_null()).then(|| bytes(&case["result"]));
        assert_eq!(edited, wanted, "{name}");
    }
}

proptest! {
    /// By construction the result of an edit is stable, so the check for it never fires.
    #[test]
    fn no_edit_is_made_twice(
        content in "[abc#\r\n]{0,12}",
        line in "[abc#]{1,2}",
        pattern in prop::option::of("\\^?[abc#]\\$?"),
        place in prop::option::of("[abc#]"),
        is_before in any::<bool>(),
        is_present in any::<bool>(),
        is_block in any::<bool>(),
    ) {
        let place = place.unwrap_or_default();
        let (after, before) = if is_before { (String::new(), place) } else { (place, String::new()) };
        let mut properties = Line { after, before, ..Line::default() };
        if is_block {
            properties.block = Some(line);
        } else {
            properties.line = Some(line);
            properties.pattern = pattern.unwrap_or_default();
        }
        match edit(content.as_bytes(), "/f", &properties, is_present) {
            Ok(Some((edited, _))) => {
                let again = edit(&edited, "/f", &properties, is_present);
                prop_assert_eq!(again, Ok(None));
            }
            Ok(None) => {}
            Err(error) => prop_assert_ne!(error, super::EditError::NotIdempotent),
        }
    }
}

#[test]
fn a_file_that_another_program_changed_after_the_plan_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    std::fs::write(&path, "one\n").unwrap();
    let properties = serde_json::json!({"name": path.to_str().unwrap(), "line": "two"});
    let resource = declared(TypeName::Line, &properties).unwrap();
    let test = ScriptedHost::new();
    let Ok(SelectedProvider::Managed(managed)) = select_provider(&resource, test.host()) else {
        panic!("no provider");
    };
    let before = managed.inspect(test.host()).unwrap();
    let planned = managed.plan(&before, false, test.host()).unwrap();
    for change in ["one\nof another program\n", ""] {
        std::fs::write(&path, change).unwrap();
        let error = planned.change(test.host(), &|_| {}).unwrap_err();
        assert!(
            matches!(error, ResourceError::Line(LineError::Changed(_))),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), change);
    }
    std::fs::remove_file(&path).unwrap();
    assert!(planned.change(test.host(), &|_| {}).is_err());
    assert!(!path.exists());
}
