use chrono::{DateTime, Utc};
use serde_json::Value;

use super::*;
use ccm_core::health::Measurement;
use ccm_core::model::health::{HealthCheck, HealthResult, HealthStatus};
use ccm_core::model::resource::{Exec, Properties, Resource};
use ccm_core::run::log::Style;
use ccm_core::system::FixedClock;
use ccm_value::secret::REDACTED;

fn start() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

fn choria_events(events: bool) -> ChoriaEvents {
    let config = Choria {
        events,
        ..Choria::default()
    };
    let clock = Arc::new(FixedClock::new(start()));
    let log = Log::to(
        std::io::sink(),
        Style::Text,
        Level::Error,
        FixedClock::new(start()),
    );
    ChoriaEvents::new(&config, &"web1.lab".parse().unwrap(), clock, log).unwrap()
}

/// Returns subject and body of all queued events.
fn queued(choria_events: &ChoriaEvents) -> Vec<(String, Value)> {
    let inner = choria_events.0.as_ref().unwrap();
    std::iter::from_fn(|| inner.next())
        .map(|message| {
            let body = serde_json::from_str(&message.body).unwrap();
            (message.subject.to_string(), body)
        })
        .collect()
}

fn exec(sensitive: bool) -> Resource {
    let mut resource = Resource::new("run", "present", Properties::Exec(Exec::default()));
    resource.common.sensitive = sensitive;
    resource
}

fn check_once(choria_events: &ChoriaEvents, resource: &Resource, output: &str) -> Value {
    let check = HealthCheck {
        name: "load".into(),
        command: "check_load -p hunter2".into(),
        ..HealthCheck::default()
    };
    let datum = |label: &str, value| Measurement {
        label: label.into(),
        value,
        unit: "s".into(),
        warn: String::new(),
        critical: String::new(),
        min: None,
        max: None,
    };
    let result = HealthResult {
        status: HealthStatus::Critical,
        tries: 1,
        output: output.into(),
    };
    choria_events.checked(&CompletedCheck {
        type_name: resource.type_name(),
        name: &resource.common.name,
        sensitive: resource.common.sensitive,
        check: &check,
        result: &result,
        perfdata: &[datum("a", Some(1.5)), datum("unknown", None)],
        began: start(),
        took: Duration::from_secs(2),
    });
    let (subject, mut event) = queued(choria_events).pop().unwrap();
    assert_eq!(subject, "choria.machine.watcher.nagios.state");
    event["data"].take()
}

#[test]
fn nothing_is_queued_unless_configured() {
    let choria_events = choria_events(false);
    choria_events.slot(&"deploys".parse().unwrap(), 1, SlotEvent::Enter);
    assert!(choria_events.0.is_none());
}

#[test]
fn a_check_event_has_its_resource_and_measurements() {
    let data = check_once(&choria_events(true), &exec(false), "bad");
    assert_eq!(data["machine"], "load");
    assert_eq!(data["name"], "load");
    assert_eq!(data["plugin"], "check_load -p hunter2");
    assert_eq!(data["output"], "bad");
    assert_eq!(data["annotations"]["resource"], "exec#run");
    let perfdata = data["perfdata"].as_array().unwrap();
    assert_eq!(perfdata.len(), 1, "what could not be measured is left out");
    assert_eq!(perfdata[0]["value"], 1.5);
}

#[test]
fn the_output_of_a_sensitive_resource_is_redacted() {
    let data = check_once(&choria_events(true), &exec(true), "password hunter2");
    assert!(!data.to_string().contains("hunter2"), "{data}");
    assert_eq!(data["output"], REDACTED);
    assert_eq!(data["perfdata"].as_array().unwrap().len(), 0);
}

#[test]
fn a_check_event_has_the_last_fifteen_results() {
    let (choria_events, resource) = (choria_events(true), exec(false));
    let mut data = Value::Null;
    for _ in 0..20 {
        data = check_once(&choria_events, &resource, "bad");
    }
    assert_eq!(data["history"].as_array().unwrap().len(), 15);
}

#[test]
fn a_long_output_is_cut_between_characters() {
    let data = check_once(&choria_events(true), &exec(false), &"é".repeat(20_000));
    let output = data["output"].as_str().unwrap();
    assert_eq!(output.len(), 16 * 1024);
}

#[test]
fn the_oldest_events_are_dropped_when_too_many_wait() {
    let choria_events = choria_events(true);
    let governor = "deploys".parse().unwrap();
    let most = u64::try_from(MAX_QUEUED).unwrap();
    for number in 0..most + 5 {
        choria_events.slot(&governor, number, SlotEvent::Enter);
    }
    assert_eq!(choria_events.0.as_ref().unwrap().pending.lock().dropped, 5);
    let queued = queued(&choria_events);
    assert_eq!(queued.len(), MAX_QUEUED);
    assert_eq!(queued[0].0, "choria.lifecycle.event.governor.ccm");
    assert_eq!(queued[0].1["data"]["sequence"], 5);
}

#[test]
fn a_manifest_is_named_by_its_bundle_file_or_directory() {
    let digest = "0f".repeat(32);
    for (source, name) in [
        ("/etc/choria/ccm/manifests/base.yaml", "base"),
        ("/srv/site/manifest.yaml", "site"),
        ("/srv/site", "site"),
        ("manifest.yaml", "manifest"),
        ("obj://ccm-manifests/app.tar.gz", "app"),
        (&format!("obj://CCM_MANIFESTS/app/{digest}"), "app"),
        ("https://REDACTED@example.net/site.tgz?v=1", "site"),
        ("inline", "inline"),
        ("/", "/"),
    ] {
        assert_eq!(manifest_name(source), name, "{source}");
    }
}

#[test]
fn the_first_alive_event_is_within_the_first_interval() {
    let hour = Duration::from_secs(3600);
    assert_eq!(random_part(hour, 0), Duration::ZERO);
    assert_eq!(random_part(hour, u128::MAX), hour);
}
