//! Planning with a fake service manager, and data-driven cases of systemd commands from
//! `tests/data/provider/service`.

use std::cell::RefCell;
use std::time::Duration;

use serde::Deserialize;

use super::*;
use crate::model::resource::{Common, Properties};
use crate::resource::package::scripted_host::{ScriptedHost, run_cases};
use crate::resource::{SelectedProvider, select_provider};
use crate::system::Output;

fn resource(ensure: &str, service: Service) -> Resource {
    Resource::new("web", ensure, Properties::Service(service))
}

fn enabling(enable: Option<bool>) -> Service {
    Service {
        enable,
        ..Service::default()
    }
}

/// A fake service manager, which can be set to fail.
struct FakeManager {
    status: RefCell<Status>,
    can_reload: bool,
    succeeds: bool,
}

impl FakeManager {
    fn new(running: bool, enabled: bool) -> Self {
        Self {
            status: RefCell::new(Status {
                running,
                enabled,
                boot: enabled_word(enabled).into(),
            }),
            can_reload: true,
            succeeds: true,
        }
    }
}

impl ServiceProvider for FakeManager {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn is_usable(&self, _: Host<'_>) -> bool {
        true
    }

    fn status(&self, _: &str, _: Host<'_>) -> Result<Status, ServiceError> {
        Ok(self.status.borrow().clone())
    }

    fn can_reload(&self, _: &str, _: Host<'_>) -> Result<bool, ServiceError> {
        Ok(self.can_reload)
    }

    fn change(&self, service: &str, action: Action, _: Host<'_>) -> Result<(), ServiceError> {
        if !self.succeeds {
            return Err(ServiceError::Refused {
                action,
                service: service.into(),
                reason: "not today".into(),
                output: String::new(),
                diagnosis: Box::default(),
            });
        }
        let mut status = self.status.borrow_mut();
        match action {
            Action::Start | Action::Restart | Action::Reload => status.running = true,
            Action::Stop => status.running = false,
            Action::Enable => status.enabled = true,
            Action::Disable => status.enabled = false,
        }
        Ok(())
    }

    fn diagnose(&self, _: &str, _: Host<'_>) -> Diagnosis {
        Diagnosis {
            result: Some("exit-code".into()),
            journal: vec!["port 80 is taken".into(), "giving up".into()],
        }
    }
}

#[test]
fn running_and_enabled_are_planned_independently() {
    let now_rows = [
        // wanted, running, refresh, message, refreshed
        ("running", true, false, "", false),
        ("running", false, false, "Would have started", false),
        ("stopped", true, false, "Would have stopped", false),
        ("stopped", false, false, "", false),
        (
            "running",
            true,
            true,
            "Would have restarted via subscribe",
            true,
        ),
        ("running", false, true, "Would have started", false),
        ("stopped", true, true, "Would have stopped", false),
        ("stopped", false, true, "", false),
    ];
    let boot_rows = [
        // wanted, enabled, message
        (Some(true), true, ""),
        (Some(true), false, "enabled"),
        (Some(false), true, "disabled"),
        (Some(false), false, ""),
        (None, true, ""),
        (None, false, ""),
    ];
    for (ensure, running, refresh, now, refreshed) in now_rows {
        for (enable, enabled, boot) in boot_rows {
            let test = ScriptedHost::new();
            let provider = FakeManager::new(running, enabled);
            let service = enabling(enable);
            let resource = resource(ensure, service.clone());
            let state = inspect(&resource, &provider, test.host()).unwrap();
            let plan = plan(&resource, &service, &provider, &state, refresh, test.host()).unwrap();
            let message = match (now, boot) {
                (now, "") => now.to_owned(),
                ("", boot) => format!("Would have {boot}"),
                (now, boot) => format!("{now}, would have {boot}"),
            };
            let row = format!("{ensure} {running} {refresh} {enable:?} {enabled}");
            assert_eq!(plan.message, message, "{row}");
            assert_eq!(plan.refreshed, refreshed, "{row}");
            assert_eq!(plan.satisfied, message.is_empty(), "{row}");
            assert_eq!(plan.is_empty(), message.is_empty(), "{row}");
            assert!(!plan.settles, "{row}");

            for action in plan.actions {
                change(&resource, &provider, action, test.host()).unwrap();
            }
            let state = verify(&resource, &service, &provider, test.host()).unwrap();
            assert_eq!(state.common.ensure, ensure, "{row}");
        }
    }
}

#[test]
fn a_refresh_reloads_only_where_asked_for_and_possible() {
    for (reload, can_reload, action) in [
        (true, true, Action::Reload),
        (true, false, Action::Restart),
        (false, true, Action::Restart),
    ] {
        let test = ScriptedHost::new();
        let provider = FakeManager {
            can_reload,
            ..FakeManager::new(true, true)
        };
        let service = Service {
            reload,
            ..Service::default()
        };
        let resource = resource("running", service.clone());
        let state = inspect(&resource, &provider, test.host()).unwrap();
        let plan = plan(&resource, &service, &provider, &state, true, test.host()).unwrap();
        assert_eq!(plan.actions, [action]);
        assert!(plan.refreshed);
    }
}

#[test]
fn a_state_has_running_and_enabled() {
    let test = ScriptedHost::new();
    let resource = resource("running", Service::default());
    let state = inspect(&resource, &FakeManager::new(true, false), test.host()).unwrap();
    assert_eq!(state.common.ensure, "running");
    let Detail::Service { metadata } = state.detail else {
        panic!("{state:?}");
    };
    let seen = ServiceMetadata {
        name: "web".into(),
        provider: "fake".into(),
        enabled: false,
        running: true,
    };
    assert_eq!(metadata, seen);
}

#[test]
fn a_failed_start_includes_the_diagnosis() {
    let test = ScriptedHost::new();
    let provider = FakeManager {
        succeeds: false,
        ..FakeManager::new(false, false)
    };
    let mut resource = resource("running", Service::default());
    let refused =
        |resource: &Resource, action| change(resource, &provider, action, test.host()).unwrap_err();
    assert_eq!(
        refused(&resource, Action::Start).to_string(),
        "could not start service web: not today; result exit-code; \
         last journal lines: port 80 is taken | giving up"
    );
    assert_eq!(
        refused(&resource, Action::Enable).to_string(),
        "could not enable service web: not today"
    );
    resource.common.sensitive = true;
    assert_eq!(
        refused(&resource, Action::Start).to_string(),
        "could not start service web: not today"
    );
}

#[test]
fn an_unreached_state_is_reported_with_the_found_state() {
    let rows = [
        (
            "stopped",
            None,
            "enabled",
            "failed to reach desired state: stopped: service is running, expected stopped",
        ),
        (
            "running",
            Some(false),
            "enabled",
            "failed to reach desired state: running: service is enabled, expected disabled",
        ),
        (
            "running",
            Some(false),
            "static",
            "failed to reach desired state: running: service is enabled, expected disabled \
             (fake state: static)",
        ),
    ];
    for (ensure, enable, boot, reason) in rows {
        let test = ScriptedHost::new();
        let provider = FakeManager::new(true, true);
        provider.status.borrow_mut().boot = boot.into();
        let service = enabling(enable);
        let resource = resource(ensure, service.clone());
        let error = verify(&resource, &service, &provider, test.host()).unwrap_err();
        assert_eq!(error.to_string(), reason);
    }
}

#[test]
fn a_provider_is_selected_by_name_or_by_availability() {
    let bare = ScriptedHost::new();
    let booted = ScriptedHost::new();
    booted.runner.install("systemctl");
    let select = |wanted, test: &ScriptedHost| Provider::select(wanted, test.host());
    assert_eq!(select("", &booted), Ok(Provider::Systemd));
    assert_eq!(select("systemd", &booted), Ok(Provider::Systemd));
    assert_eq!(select("", &bare), Err(ProviderError::NoneSuitable));
    assert_eq!(select("systemd", &bare), Err(ProviderError::NotManageable));
    assert_eq!(select("runit", &booted), Err(ProviderError::NotFound));
}

#[test]
fn a_change_waits_for_the_lock() {
    let test = ScriptedHost::new();
    let lock = &test.services.lock_file;
    let clock = &test.clock;
    let held = crate::system::FileLock::acquire(lock, "other run", Duration::ZERO, clock).unwrap();
    let resource = resource("running", Service::default());
    let error = change(&resource, &systemd::Systemd, Action::Start, test.host()).unwrap_err();
    assert!(
        error.to_string().contains("(other run) after 300s"),
        "{error}"
    );
    assert!(test.runner.calls().is_empty());
    drop(held);
}

/// One run: several services, one after the other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// The properties, as in a manifest.
    service: Entry,
    /// A subscribed resource changed.
    #[serde(default)]
    refresh: bool,
    #[serde(default)]
    noop: bool,
    /// Every command, in order.
    commands: Vec<Scripted>,
    /// The waits in between, in milliseconds.
    #[serde(default)]
    sleeps: Vec<u64>,
    /// The message of a noop run.
    #[serde(default, rename = "says")]
    message: String,
    /// The final state: running or stopped, enabled or disabled.
    #[serde(default, rename = "ends")]
    final_state: String,
    #[serde(default)]
    error: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    ensure: Option<String>,
    #[serde(default)]
    enable: Option<bool>,
    #[serde(default)]
    reload: bool,
    #[serde(default)]
    sensitive: bool,
}

/// A command line, its exit code, standard output and, optionally, standard error.
#[derive(Deserialize)]
struct Scripted(String, i32, String, #[serde(default)] String);

impl Scripted {
    fn output(&self) -> Output {
        let Self(_, code, stdout, stderr) = self;
        Output {
            code: *code,
            stdout: stdout.as_bytes().into(),
            stderr: stderr.as_bytes().into(),
            ..Output::default()
        }
    }
}

impl Step {
    /// Applies one resource as the engine does and returns the noop message and final state.
    fn apply(&self, test: &ScriptedHost) -> Result<(String, State), ResourceError> {
        let service = Service {
            enable: self.service.enable,
            reload: self.service.reload,
            ..Service::default()
        };
        let mut resource = Resource {
            common: Common {
                name: self.service.name.clone(),
                ensure: self.service.ensure.clone().unwrap_or_default(),
                sensitive: self.service.sensitive,
                ..Common::default()
            },
            properties: Properties::Service(service),
        };
        resource.complete()?;
        let host = test.host();
        let SelectedProvider::Managed(managed) = select_provider(&resource, host).unwrap() else {
            panic!("{resource:?} is no service");
        };
        let before = managed.inspect(host)?;
        let planned = managed.plan(&before, self.refresh, host)?;
        let message = planned.plan().message.clone();
        if self.noop || planned.plan().is_empty() {
            return Ok((message, before.clone()));
        }
        let mut report = planned.change(host, &|_| {})?;
        Ok((message, managed.verify(&mut report, host)?))
    }

    fn check(&self, case: &str, test: &ScriptedHost) {
        for scripted in &self.commands {
            let words: Vec<&str> = scripted.0.split(' ').collect();
            test.runner.expect(&words, Ok(scripted.output()));
        }
        let (calls, sleeps) = (test.runner.calls().len(), test.clock.sleeps().len());
        match self.apply(test) {
            Ok((message, state)) => {
                let Detail::Service { metadata } = &state.detail else {
                    panic!("{case}: {state:?}");
                };
                let boot = enabled_word(metadata.enabled);
                let final_state = format!("{} {boot}", state.common.ensure);
                assert_eq!(self.error, "", "{case}");
                assert_eq!(message, self.message, "{case}");
                assert_eq!(final_state, self.final_state, "{case}");
            }
            Err(error) => assert_eq!(error.to_string(), self.error, "{case}"),
        }
        let ran: Vec<String> = test.runner.calls()[calls..]
            .iter()
            .map(|call| call.argv.join(" "))
            .collect();
        let wanted: Vec<&str> = self.commands.iter().map(|it| &*it.0).collect();
        assert_eq!(ran, wanted, "{case}");
        let slept: Vec<u128> = test
            .clock
            .sleeps()
            .split_off(sleeps)
            .iter()
            .map(Duration::as_millis)
            .collect();
        let wanted: Vec<u128> = self.sleeps.iter().map(|wait| u128::from(*wait)).collect();
        assert_eq!(slept, wanted, "{case}");
    }
}

#[test]
fn every_case_runs_exactly_its_commands() {
    let count = run_cases("service", |case: &Case| {
        let test = ScriptedHost::new();
        test.runner.install("systemctl");
        for step in &case.steps {
            step.check(&case.name, &test);
        }
        (case.name.clone(), Ok(()))
    });
    assert!(count >= 40, "only {count} cases found");
}
