//! Data-driven cases: the properties of a resource, every command with its output, and the expected
//! result. Unexpected and missing commands fail the case.

use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::super::{
    ManagedResource, PlannedChange, ProviderError, ResourceError, SelectedProvider, select_provider,
};
use super::scripted_host::{ScriptedCommand, ScriptedHost, run_cases};
use super::*;
use crate::model::resource::{Properties, decode};
use crate::model::{TypeName, document};
use crate::system::{Output, ScriptedRunner};

/// One case of `tests/data/provider/package/*.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// The properties of the resource.
    resource: Json,
    /// Installed programs besides those that are run.
    #[serde(default)]
    programs: Vec<String>,
    /// Uses the cached list, as in a run of a manifest.
    #[serde(default)]
    many: bool,
    #[serde(default)]
    noop: bool,
    #[serde(default)]
    commands: Vec<ScriptedCommand>,
    expect: Expected,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Expected {
    error: Option<String>,
    changed: bool,
    noop_message: String,
    ensure: String,
    metadata: Json,
    /// The error output of the package manager if the state was reached nevertheless.
    error_output: Vec<String>,
}

#[test]
fn every_provider_runs_exactly_the_commands_of_its_cases() {
    let count = run_cases("package", |case: &Case| (case.name.clone(), run(case)));
    assert!(count > 50, "{count} cases found");
}

fn resource_of(properties: &Json) -> Resource {
    let node = document::parse(&properties.to_string()).unwrap();
    let mut declared = decode::read_resources(TypeName::Package, &node).unwrap();
    declared.remove(0).resource
}

fn run(case: &Case) -> Result<(), String> {
    let scripted = ScriptedHost::new();
    for program in &case.programs {
        scripted.runner.install(program);
    }
    for command in &case.commands {
        scripted.expect(command);
    }
    if case.many {
        scripted.packages.expect_many();
    }
    let found = converge(case, scripted.host()).unwrap_or_else(|error| Expected {
        error: Some(error),
        ..Expected::default()
    });
    scripted.check_calls(&case.commands)?;
    if found != case.expect {
        return Err(format!("got {found:#?}"));
    }
    Ok(())
}

/// Applies a resource as the engine does.
fn converge(case: &Case, host: Host<'_>) -> Result<Expected, String> {
    let text = |err: ResourceError| err.to_string();
    let mut resource = resource_of(&case.resource);
    resource.complete().map_err(|err| err.to_string())?;
    let managed = managed(&resource, host).map_err(|err| err.to_string())?;
    let before = managed.inspect(host).map_err(text)?;
    let planned = managed.plan(&before, false, host).map_err(text)?;
    let plan = planned.plan();
    let mut found = Expected {
        changed: !plan.is_empty(),
        ..Expected::default()
    };
    let mut state = before.clone();
    if case.noop {
        found.noop_message.clone_from(&plan.message);
    } else if !plan.is_empty() {
        let (after, error_output) = change_and_verify(&managed, &planned, host).map_err(text)?;
        found.changed = after.detail != before.detail;
        found.error_output = error_output;
        state = after;
    }
    found.ensure = state.common.ensure;
    found.metadata = serde_json::to_value(&state.detail).unwrap()["metadata"].take();
    Ok(found)
}

fn managed<'a>(
    resource: &'a Resource,
    host: Host<'_>,
) -> Result<ManagedResource<'a>, ProviderError> {
    match select_provider(resource, host)? {
        SelectedProvider::Managed(managed) => Ok(managed),
        SelectedProvider::Manifest(_) => panic!("no package"),
    }
}

fn change_and_verify(
    managed: &ManagedResource<'_>,
    planned: &PlannedChange<'_>,
    host: Host<'_>,
) -> Result<(State, Vec<String>), ResourceError> {
    let mut report = planned.change(host, &|_| {})?;
    let after = managed.verify(&mut report, host)?;
    Ok((after, report.error_output))
}

fn package(name: &str) -> Resource {
    resource_of(&json!({"name": name, "ensure": "present", "provider": "apt"}))
}

fn inspect_apt(resource: &Resource, host: Host<'_>) -> State {
    let Properties::Package(package) = &resource.properties else {
        panic!("no package");
    };
    inspect(resource, package, &Provider::Apt, host).unwrap()
}

const LIST: [&str; 3] = [
    "dpkg-query",
    "-W",
    r"-f=${Package} ${Version} ${Architecture} ${db:Status-Status}\n",
];

#[test]
fn two_hundred_packages_of_a_run_need_one_command() {
    let scripted = ScriptedHost::new();
    let lines: String = (0..200)
        .map(|number| format!("p{number} 1.{number} amd64 installed\n"))
        .collect();
    scripted.runner.reply(&LIST, 0, &lines);
    scripted.packages.expect_many();
    for number in 0..200 {
        let state = inspect_apt(&package(&format!("p{number}")), scripted.host());
        assert_eq!(state.common.ensure, format!("1.{number}"));
    }
    assert_eq!(
        inspect_apt(&package("p200"), scripted.host()).common.ensure,
        "absent"
    );
    assert_eq!(scripted.runner.calls().len(), 1);
}

#[test]
fn programs_of_a_provider_are_looked_up_once_until_something_changes() {
    let scripted = ScriptedHost::new();
    scripted.install_apt();
    let select = |host| Provider::select("", host);
    assert_eq!(select(scripted.host()), Ok(Provider::Apt));
    let no_programs = ScriptedRunner::new();
    let without_programs = Host {
        runner: &no_programs,
        ..scripted.host()
    };
    assert_eq!(select(without_programs), Ok(Provider::Apt));
    scripted.packages.invalidate_providers();
    assert_eq!(select(without_programs), Err(ProviderError::NoneSuitable));
    // A failure is not kept.
    assert_eq!(select(scripted.host()), Ok(Provider::Apt));
}

#[test]
fn a_list_is_read_again_after_a_change() {
    let scripted = ScriptedHost::new();
    scripted.runner.reply(&LIST, 0, "a 1 amd64 installed\n");
    scripted.runner.reply(&LIST, 0, "a 2 amd64 installed\n");
    scripted.packages.expect_many();
    assert_eq!(
        inspect_apt(&package("a"), scripted.host()).common.ensure,
        "1"
    );
    scripted.packages.invalidate();
    assert_eq!(
        inspect_apt(&package("a"), scripted.host()).common.ensure,
        "2"
    );
}

#[test]
fn every_apt_command_is_noninteractive() {
    let scripted = ScriptedHost::new();
    scripted
        .runner
        .reply(&[LIST[0], LIST[1], LIST[2], "a"], 1, "");
    inspect_apt(&package("a"), scripted.host());
    let env: Vec<String> = scripted.runner.calls()[0]
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(
        env,
        [
            "DEBIAN_FRONTEND=noninteractive",
            "APT_LISTBUGS_FRONTEND=none",
            "APT_LISTCHANGES_FRONTEND=none"
        ]
    );
}

#[test]
fn hostile_names_and_versions_are_rejected_by_validation() {
    for (name, ensure) in [
        ("a; rm -rf /", "present"),
        ("a|b", "present"),
        ("a&b", "present"),
        ("$(id)", "present"),
        ("`id`", "present"),
        ("a\nb", "present"),
        ("a b", "present"),
        ("'a'", "present"),
        ("\"a\"", "present"),
        ("a\\b", "present"),
        ("a*", "present"),
        ("a?", "present"),
        ("a[b]", "present"),
        ("?installed", "present"),
        ("~ninstalled", "present"),
        ("-rf", "present"),
        ("--purge", "present"),
        ("a-", "present"),
        ("@core", "present"),
        ("a=1", "present"),
        ("a/unstable", "present"),
        ("../a", "present"),
        ("/etc/passwd", "present"),
        ("/tmp/../a.deb", "present"),
        ("/tmp/a;b.deb", "present"),
        ("a^", "present"),
        ("a,b", "present"),
        ("ä", "present"),
        ("a\0b", "present"),
        ("", "present"),
        ("a", "1; id"),
        ("a", "1 --allow-unauthenticated"),
        ("a", "-1"),
        ("a", "--purge"),
        ("a", "1$(id)"),
        ("a", "1*"),
        ("a", "1\nName=b"),
        ("a", "1=2"),
        ("a", "1/unstable"),
        ("a", ""),
    ] {
        let package = Properties::Package(Package::default());
        let mut resource = Resource::new(name, ensure, package);
        assert!(resource.complete().is_err(), "{name:?} {ensure:?}");
    }
}

#[test]
fn a_change_waits_for_the_lock_and_reports_its_holder() {
    let scripted = ScriptedHost::new();
    scripted
        .runner
        .reply(&[LIST[0], LIST[1], LIST[2], "a"], 1, "");
    let timeout = Duration::from_secs(60);
    let _held = FileLock::acquire(
        scripted.packages.lock_file(),
        "package#b",
        timeout,
        &scripted.clock,
    );
    let resource = package("a");
    scripted.install_apt();
    let managed = managed(&resource, scripted.host()).unwrap();
    let state = managed.inspect(scripted.host()).unwrap();
    let planned = managed.plan(&state, false, scripted.host()).unwrap();
    let error = change_and_verify(&managed, &planned, scripted.host()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("(package#b) after 600s"), "{text}");
    assert_eq!(
        scripted.runner.calls().len(),
        1,
        "nothing is run without the lock"
    );
}

#[test]
fn a_truncated_list_is_an_error() {
    let scripted = ScriptedHost::new();
    let output = Output {
        stdout: b"a 1 amd64 installed\n".to_vec(),
        stdout_truncated: true,
        ..Output::default()
    };
    scripted.runner.expect(&LIST, Ok(output));
    scripted.packages.expect_many();
    let resource = package("a");
    scripted.install_apt();
    let managed = managed(&resource, scripted.host()).unwrap();
    let error = managed.inspect(scripted.host()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "dpkg-query printed more than 67108864 bytes"
    );
}
