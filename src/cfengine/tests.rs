//! Cases as data: a request of the agent's, every command that is run for it with its answer, and
//! every byte that is printed.

use clap::ValueEnum as _;
use serde::Deserialize;

use super::scripted_host::{Answered, ScriptedHost, try_all};
use super::{Command, answer, module};

/// One case of `tests/data/provider/module/*.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    provider: String,
    command: String,
    input: String,
    commands: Vec<Answered>,
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
        scripted.answer(command);
    }
    let command = Command::from_str(&case.command, false)?;
    let printed = answer(
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
fn every_command_runs_and_prints_exactly_what_its_cases_say() {
    let count = try_all("module", |case: &Case| (case.name.clone(), run(case)));
    assert!(count > 40, "{count} cases found");
}

#[test]
fn a_request_without_end_is_refused() {
    let scripted = ScriptedHost::new();
    let input = "Name=a\n".repeat(module::MAX_REQUEST_BYTES);
    let printed = answer(Command::Remove, input.as_bytes(), "apt", scripted.host());
    assert_eq!(
        printed,
        "ErrorMessage=a request holds at most 1048576 bytes\n"
    );
    assert!(scripted.runner.calls().is_empty());
}

#[test]
fn what_is_printed_of_a_hostile_request_stays_on_its_line() {
    let scripted = ScriptedHost::new();
    scripted.install_apt();
    let input = b"Name=a\rErrorMessage=x\x1b[2J\x85\xff\nVersion=1\n";
    let printed = answer(Command::RepoInstall, input, "apt", scripted.host());
    let lines: Vec<&str> = printed.split('\n').collect();
    assert_eq!(lines.len(), 4, "{printed:?}");
    assert!(
        !printed.replace('\n', "").contains(char::is_control),
        "{printed:?}"
    );
    assert!(scripted.runner.calls().is_empty());
}
