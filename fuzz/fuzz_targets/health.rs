//! Any bytes as what a plugin prints, and any text as goss rules: measurements are numbers, and
//! rules come to a verdict.

#![no_main]

use std::sync::Arc;

use ccm_core::health::Probes;
use ccm_core::model::health::HealthCheck;
use ccm_core::system::{Accounts, FixedClock};
use ccm_fuzz::Answering;
use ccm_template::Env;
use ccm_template::expr::Cache;
use ccm_value::Value;
use ccm_value::document::parse;
use ccm_value::value::Map;
use chrono::DateTime;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let runner = Answering {
        code: 0,
        stdout: bytes,
    };
    let clock = FixedClock::new(DateTime::UNIX_EPOCH);
    let (accounts, env, programs) = (Accounts::default(), Env::default(), Cache::default());
    let probes = Probes {
        runner: &runner,
        clock: &clock,
        accounts: &accounts,
        env: &env,
        programs: &programs,
    };
    let plugin = HealthCheck {
        command: "check_this".into(),
        ..HealthCheck::default()
    };
    for check in [Some(plugin), rules(bytes)].into_iter().flatten() {
        let mut check = check;
        if check.complete().is_ok() {
            let report = probes.probe(&check, &mut |_| {});
            for datum in report.perfdata {
                let numbers = [datum.value, datum.min, datum.max];
                assert!(
                    numbers.into_iter().flatten().all(f64::is_finite),
                    "{datum:?}"
                );
            }
        }
    }
});

/// Returns rules that reach nothing: those that look at the machine are read and then skipped.
fn rules(bytes: &[u8]) -> Option<HealthCheck> {
    // Expressions have a target of their own; here they could name anything.
    let text = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains("{{"))?;
    let Value::Map(types) = parse(text).ok()?.to_value() else {
        return None;
    };
    let harmless = |(key, things): (&Arc<str>, &Value)| match (&**key, things) {
        ("gossfile", _) => None,
        ("matching", things) => Some((key.clone(), things.clone())),
        (_, Value::Map(things)) => {
            let things: Map = things
                .iter()
                .map(|(id, thing)| (id.clone(), skipped(thing)))
                .collect();
            Some((key.clone(), things.into()))
        }
        (_, other) => Some((key.clone(), other.clone())),
    };
    let rules: Map = types.iter().filter_map(harmless).collect();
    Some(HealthCheck {
        goss_rules: Some(rules.into()),
        ..HealthCheck::default()
    })
}

fn skipped(thing: &Value) -> Value {
    thing.merge_shallow(&[("skip", Value::from(true))].into_iter().collect())
}
