//! Output of nagios plugins, and goss rules. Properties: performance data are finite numbers, and rules
//! yield a result.

#![no_main]

use std::sync::Arc;

use ccm_core::health::Probes;
use ccm_core::model::health::HealthCheck;
use ccm_core::system::{Accounts, FixedClock};
use ccm_fuzz::FixedOutput;
use ccm_template::Env;
use ccm_template::expr::Cache;
use ccm_value::Value;
use ccm_value::document::parse;
use ccm_value::value::Map;
use chrono::DateTime;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let runner = FixedOutput {
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

/// Returns goss rules that do not inspect the machine: every resource is marked as skipped.
fn rules(bytes: &[u8]) -> Option<HealthCheck> {
    // Expressions have their own target; here they could read any file.
    let text = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains("{{"))?;
    let Value::Map(types) = parse(text).ok()?.to_value() else {
        return None;
    };
    let skip_all = |(key, resources): (&Arc<str>, &Value)| match (&**key, resources) {
        ("gossfile", _) => None,
        ("matching", resources) => Some((key.clone(), resources.clone())),
        (_, Value::Map(resources)) => {
            let resources: Map = resources
                .iter()
                .map(|(id, resource)| (id.clone(), skipped(resource)))
                .collect();
            Some((key.clone(), resources.into()))
        }
        (_, other) => Some((key.clone(), other.clone())),
    };
    let rules: Map = types.iter().filter_map(skip_all).collect();
    Some(HealthCheck {
        goss_rules: Some(rules.into()),
        ..HealthCheck::default()
    })
}

fn skipped(resource: &Value) -> Value {
    resource.merge_shallow(&[("skip", Value::from(true))].into_iter().collect())
}
