//! The order of versions, by dpkg's rules and by the generic ones.

use std::cmp::Ordering;

use ccm_core::resource::package::versions::{debian, generic};
use ccm_value::Value;

use super::{check, text_of};
use crate::versions::number;

#[test]
fn debian_versions_order_as_recorded() {
    check("debian_versions", |case| {
        let (a, b) = (text_of(case, "a"), text_of(case, "b"));
        let order = debian::compare(a, b).map_err(|err| err.to_string())?;
        agree(case, order)
    });
}

#[test]
fn generic_versions_order_as_recorded() {
    check("generic_versions", |case| {
        let (a, b) = (text_of(case, "a"), text_of(case, "b"));
        let ignore = case.get("ignore_trailing_zeroes") == Some(&Value::Bool(true));
        agree(case, generic::compare(a, b, ignore))
    });
}

fn agree(case: &Value, order: Ordering) -> Result<(), String> {
    let found = Value::Int(number(order).into());
    match case.get("expect") {
        Some(expect) if *expect == found => Ok(()),
        expect => Err(format!("{case}: expected {expect:?}, got {found}")),
    }
}
