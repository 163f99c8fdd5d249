//! Tests of resources: decoding, defaults and redaction; `validation` has invalid properties.

mod validation;

use super::decode::{property_names, read_resources};
use super::*;
use crate::model::document::parse;
use crate::model::json;

fn read(type_name: TypeName, text: &str) -> Vec<Resource> {
    let node = parse(text).unwrap();
    let declared = read_resources(type_name, &node).unwrap();
    declared.into_iter().map(|item| item.resource).collect()
}

fn read_error(type_name: TypeName, text: &str) -> String {
    let node = parse(text).unwrap();
    read_resources(type_name, &node).unwrap_err().to_string()
}

fn validation_error(type_name: TypeName, text: &str) -> String {
    let mut all = read(type_name, text);
    all.remove(0).complete().unwrap_err().to_string()
}

fn file(resource: &Resource) -> &File {
    match &resource.properties {
        Properties::File(file) => file,
        other => panic!("not a file: {other:?}"),
    }
}

#[test]
fn string_properties_keep_the_original_text() {
    let all = read(TypeName::Package, "{name: zsh, ensure: 5.10}");
    assert_eq!(all[0].common.ensure, "5.10");
    let all = read(
        TypeName::File,
        "name: /a\nmode: 0644\nowner: 0\ncontent: 1.0",
    );
    assert_eq!(file(&all[0]).mode, "0644");
    assert_eq!(file(&all[0]).owner, "0");
    assert_eq!(file(&all[0]).content.as_deref(), Some("1.0"));
}

#[test]
fn a_list_names_its_resources_by_key_in_order() {
    let all = read(
        TypeName::File,
        "- /b: {ensure: absent, name: ignored}\n- /a: {ensure: absent}\n",
    );
    let names: Vec<_> = all.iter().map(|r| r.common.name.as_str()).collect();
    assert_eq!(names, ["/b", "/a"]);
}

#[test]
fn defaults_apply_to_every_entry_in_any_position() {
    let all = read(
        TypeName::File,
        "- /first:\n- defaults: {ensure: present, owner: root, mode: '0600'}\n- /second: {mode: '0644'}\n- /third: {}\n",
    );
    assert_eq!(all.len(), 3);
    assert_eq!(all[0].common.ensure, "present");
    assert_eq!(file(&all[0]).mode, "0600");
    assert_eq!(file(&all[1]).mode, "0644");
    assert_eq!(file(&all[2]).owner, "root");
}

#[test]
fn an_explicit_null_keeps_a_default_but_clears_content() {
    let all = read(
        TypeName::File,
        "- defaults: {owner: root, content: hello}\n- /a: {owner: null, content: null}\n",
    );
    assert_eq!(file(&all[0]).owner, "root");
    assert_eq!(file(&all[0]).content, None);
}

#[test]
fn control_merges_with_its_default_by_field() {
    let all = read(
        TypeName::File,
        "- defaults: {control: {if: 'true', unless: 'false'}}\n- /a: {control: {unless: 'Data.x'}}\n- /b: {control: null}\n",
    );
    let control = all[0].common.control.clone().unwrap();
    assert_eq!(
        (control.manage_if.as_str(), control.unless.as_str()),
        ("true", "Data.x")
    );
    assert_eq!(all[1].common.control, None);
}

#[test]
fn an_entry_s_own_key_overrides_a_merged_one() {
    let text = "- defaults: &base {owner: root, mode: '0644'}\n- /a: {<<: *base, mode: '0600'}\n";
    let all = read(TypeName::File, text);
    assert_eq!(file(&all[0]).mode, "0600");
    assert_eq!(file(&all[0]).owner, "root");
}

#[test]
fn invalid_list_entries_are_rejected() {
    for (text, error) in [
        (
            "- {a: {}, b: {}}",
            "line 1 column 3: multiple resource names found in package resource",
        ),
        (
            "- defaults: {}\n- defaults: {}",
            "line 2 column 3: multiple defaults found in package resource",
        ),
        (
            "[]",
            "line 1 column 1: sequence was used where mapping is expected",
        ),
        (
            "null",
            "line 1 column 1: null was used where mapping is expected",
        ),
    ] {
        assert_eq!(read_error(TypeName::File, text), error);
    }
}

#[test]
fn an_unknown_property_is_an_error_that_suggests_the_nearest() {
    assert_eq!(
        read_error(TypeName::Exec, "name: x\nrefresh_only: true"),
        "line 2 column 1: unknown property \"refresh_only\", did you mean \"refreshonly\"?"
    );
    assert_eq!(
        read_error(TypeName::File, "- /a:\n    ensrue: present"),
        "line 2 column 5: unknown property \"ensrue\", did you mean \"ensure\"?"
    );
    assert_eq!(
        read_error(TypeName::File, "name: /a\ncontrol: {unles: x}"),
        "line 2 column 11: unknown property \"unles\", did you mean \"unless\"?"
    );
}

#[test]
fn a_wrong_value_type_is_an_error_with_property_and_position() {
    assert_eq!(
        read_error(TypeName::Exec, "name: x\nreturns: {a: 1}"),
        "line 2 column 10: property \"returns\": expected a list, found a mapping"
    );
    assert_eq!(
        read_error(TypeName::File, "name: /a\ncontent: [x]"),
        "line 2 column 10: property \"content\": expected text, found a sequence"
    );
}

#[test]
fn properties_serialize_in_upstreams_order_with_empty_ones_left_out() {
    let all = read(
        TypeName::File,
        r#"{"name":"/srv/motd","ensure":"present","content":"hi\n","owner":"root","group":"root","mode":"0644"}"#,
    );
    assert_eq!(
        json::compact(&all[0]).unwrap(),
        r#"{"name":"/srv/motd","ensure":"present","content":"hi\n","owner":"root","group":"root","mode":"0644"}"#
    );
    let all = read(TypeName::Exec, "name: /bin/true");
    assert_eq!(
        json::compact(&all[0]).unwrap(),
        r#"{"name":"/bin/true","command":""}"#
    );
    let all = read(TypeName::Apply, "name: child.yaml");
    assert_eq!(
        json::compact(&all[0]).unwrap(),
        r#"{"name":"child.yaml","allow_apply":true}"#
    );
}

#[test]
fn secrets_are_redacted_in_events() {
    let all = read(
        TypeName::Archive,
        "name: /a.zip\nurl: https://u:pw@h/a.zip\npassword: pw\nheaders: {X-Token: abc}",
    );
    let shown = json::compact(&*Arc::new(all[0].clone()).redacted()).unwrap();
    assert!(!shown.contains("pw") && !shown.contains("abc"), "{shown}");
    let all = read(TypeName::File, "name: /a\ncontent: hush\nsensitive: true");
    let shown = json::compact(&*Arc::new(all[0].clone()).redacted()).unwrap();
    assert!(
        !shown.contains("hush") && shown.contains("REDACTED"),
        "{shown}"
    );
}

#[test]
fn every_type_lists_its_properties() {
    for type_name in TypeName::ALL {
        let names = property_names(type_name);
        assert!(names.contains(&"name") && names.contains(&"health_checks"));
    }
    assert!(property_names(TypeName::Exec).contains(&"refreshonly"));
}
