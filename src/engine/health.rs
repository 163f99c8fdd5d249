//! Health checks: runs a probe up to its number of tries and says what it found.

use crate::model::health::{Format, HealthCheck, HealthResult, HealthStatus};
use crate::model::text::split_words;
use crate::resource::Host;
use crate::system::Command;

/// One try that did not come out well.
pub(super) struct FailedTry<'a> {
    pub format: &'static str,
    pub check: &'a str,
    pub number: i64,
    pub status: HealthStatus,
}

/// Runs a check until it is OK or its tries are used up. A check that can't run is UNKNOWN.
pub(super) fn probe(
    check: &HealthCheck,
    host: Host<'_>,
    on_failure: &mut dyn FnMut(FailedTry<'_>),
) -> HealthResult {
    let pause = match check.try_sleep() {
        Ok(pause) => pause,
        Err(err) => return unknown(1, err),
    };
    let tries = check.tries.max(1);
    let mut number = 1;
    loop {
        let (status, output) = match once(check, host) {
            Ok(found) => found,
            Err(reason) => return unknown(number, reason),
        };
        if status != HealthStatus::Ok {
            on_failure(FailedTry {
                format: "nagios",
                check: &check.name,
                number,
                status,
            });
        }
        if status == HealthStatus::Ok || number >= tries {
            return HealthResult {
                status,
                tries: number,
                output,
            };
        }
        number += 1;
        host.clock.sleep(pause);
    }
}

fn unknown(tries: i64, output: String) -> HealthResult {
    HealthResult {
        status: HealthStatus::Unknown,
        tries,
        output,
    }
}

fn once(check: &HealthCheck, host: Host<'_>) -> Result<(HealthStatus, String), String> {
    if check.format == Some(Format::Goss) {
        return Err("goss rules are not supported by this version".into());
    }
    let mut words = split_words(&check.command)
        .map_err(|err| err.to_string())?
        .into_iter();
    let program = words.next().ok_or("command not specified")?;
    let command = Command {
        timeout: check.timeout()?,
        ..Command::new(program, words)
    };
    let output = host.runner.run(&command).map_err(|err| err.to_string())?;
    let status = HealthStatus::from_code(output.code.into());
    Ok((status, output.stdout_text().trim().to_owned()))
}
