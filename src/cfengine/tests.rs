//! Data-driven tests: a request, every command that it runs with its scripted result, and the exact
//! response.

use clap::ValueEnum as _;
use serde::Deserialize;

use super::scripted_host::{ScriptedCommand, ScriptedHost, run_cases};
use super::{Command, module, respond};

/// One case of `tests/data/provider/module/*.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    provider: String,
    command: String,
    input: String,
    commands: Vec<ScriptedCommand>,
    answer: String,
}

fn run(case: &Case) -> Result<(), String> {
    let scripted = ScriptedHost::new();
    for program in [
        "apt-get",
        "apt-cache",
        "apt-mark",
        "dpkg-query",
        "dnf",
        "rpm",
    ] {
        scripted.runner.install(program);
    }
    for command in &case.commands {
        scripted.expect(command);
    }
    let command = Command::from_str(&case.command, false)?;
    let printed = respond(
        command,
        case.input.as_bytes(),
        &case.provider,
        scripted.host(),
    );
    scripted.check_calls(&case.commands)?;
    if printed != case.answer {
        return Err(format!("printed {printed}"));
    }
    Ok(())
}

#[test]
fn every_case_runs_the_expected_commands_and_prints_the_expected_response() {
    let count = run_cases("module", |case: &Case| (case.name.clone(), run(case)));
    assert!(count > 40, "{count} cases found");
}

#[test]
fn an_oversized_request_is_refused() {
    let scripted = ScriptedHost::new();
    let input = "Name=a\n".repeat(module::MAX_REQUEST_BYTES);
    let printed = respond(Command::Remove, input.as_bytes(), "apt", scripted.host());
    assert_eq!(
        printed,
        "ErrorMessage=a request holds at most 1048576 bytes\n"
    );
    assert!(scripted.runner.calls().is_empty());
}

#[test]
fn a_hostile_request_can_not_add_lines_to_the_response() {
    let scripted = ScriptedHost::new();
    scripted.install_apt();
    let input = b"Name=a\rErrorMessage=x\x1b[2J\x85\xff\nVersion=1\n";
    let printed = respond(Command::RepoInstall, input, "apt", scripted.host());
    let lines: Vec<&str> = printed.split('\n').collect();
    assert_eq!(lines.len(), 4, "{printed:?}");
    assert!(
        !printed.replace('\n', "").contains(char::is_control),
        "{printed:?}"
    );
    assert!(scripted.runner.calls().is_empty());
}
