//! Probes: nagios plugins and goss rules, tried until they are well or their tries are used up.
//!
//! A probe looks and changes nothing. It knows no resource, no event and no one who reads: the
//! caller hands in the parts of the machine and is told of every rule and every failed try by one
//! closure. A check that can't be carried out is UNKNOWN, with the reason; it is never an error of
//! the run.
//!
//! Read next: [`nagios`] for commands, [`goss`] for rules.

pub mod goss;
pub mod nagios;

use std::time::Duration;

use crate::model::health::{
    CheckDurationError, CheckFormat, HealthCheck, HealthResult, HealthStatus,
};
use crate::model::text::{SplitError, go_duration};
use crate::system::{Accounts, Clock, RunError, Runner};
use ccm_template::Env;
use ccm_template::expr::{Cache, ExprError};

pub use goss::{Finding, Outcome, RuleError};
pub use nagios::Datum;

/// Why a check could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error(transparent)]
    Duration(#[from] CheckDurationError),
    #[error("command not specified")]
    NoCommand,
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("check rules not specified")]
    NoRules,
    #[error(transparent)]
    Expression(#[from] ExprError),
    #[error(transparent)]
    Rule(#[from] RuleError),
    #[error("found 0 tests, source: goss_rules")]
    NoTests,
    #[error("goss rules timed out after {}", go_duration(*.0))]
    TimedOut(Duration),
}

/// The parts of the machine that probes look at, and what templates in rules see.
#[derive(Clone, Copy)]
pub struct Probes<'a> {
    pub runner: &'a dyn Runner,
    pub clock: &'a dyn Clock,
    pub accounts: &'a Accounts,
    pub env: &'a Env,
    pub programs: &'a Cache,
}

/// What a caller is told while a check runs.
#[derive(Debug)]
pub enum Note<'a> {
    /// One rule was tested.
    Rule(&'a Finding),
    /// One try came to its end and was not well.
    FailedTry(FailedTry),
}

/// One try that did not come out well.
#[derive(Debug)]
pub struct FailedTry {
    pub format: &'static str,
    pub number: i64,
    /// The wait before the next try, if there is one.
    pub pause: Duration,
    pub status: HealthStatus,
}

/// Takes notes.
pub type Watch<'a> = dyn FnMut(Note<'_>) + 'a;

/// What became of a check.
#[derive(Debug)]
pub struct Report {
    pub result: HealthResult,
    /// Why the check could not be carried out, if so; the result is UNKNOWN then.
    pub error: Option<ProbeError>,
    /// What a nagios plugin measured in its last try.
    pub perfdata: Vec<Datum>,
}

/// What one try found.
struct Verdict {
    status: HealthStatus,
    output: String,
    perfdata: Vec<Datum>,
}

impl Probes<'_> {
    /// Runs a check until it is OK or its tries are used up, and returns what became of it. What
    /// keeps a check from being carried out is not tried again.
    pub fn probe(&self, check: &HealthCheck, watch: &mut Watch<'_>) -> Report {
        let mut number = 1;
        match self.try_until_ok(check, &mut number, watch) {
            Ok(verdict) => Report {
                result: HealthResult {
                    status: verdict.status,
                    tries: number,
                    output: verdict.output,
                },
                error: None,
                perfdata: verdict.perfdata,
            },
            Err(error) => Report {
                result: HealthResult {
                    status: HealthStatus::Unknown,
                    tries: number,
                    output: error.to_string(),
                },
                error: Some(error),
                perfdata: Vec::new(),
            },
        }
    }

    fn try_until_ok(
        &self,
        check: &HealthCheck,
        number: &mut i64,
        watch: &mut Watch<'_>,
    ) -> Result<Verdict, ProbeError> {
        let timeout = check.timeout()?;
        let pause = check.try_sleep()?;
        let format = check.format.unwrap_or(match check.goss_rules {
            Some(_) => CheckFormat::Goss,
            None => CheckFormat::Nagios,
        });
        loop {
            let verdict = match format {
                CheckFormat::Goss => goss::run(self, check.goss_rules.as_ref(), timeout, watch)?,
                CheckFormat::Nagios => nagios::run(self.runner, &check.command, timeout)?,
            };
            if verdict.status == HealthStatus::Ok {
                return Ok(verdict);
            }
            watch(Note::FailedTry(FailedTry {
                format: match format {
                    CheckFormat::Goss => "goss",
                    CheckFormat::Nagios => "nagios",
                },
                number: *number,
                pause,
                status: verdict.status,
            }));
            if *number >= check.tries {
                return Ok(verdict);
            }
            *number += 1;
            self.clock.sleep(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::system::{FixedClock, ScriptedRunner};

    struct Stage {
        runner: ScriptedRunner,
        clock: FixedClock,
        accounts: Accounts,
        env: Env,
        programs: Cache,
    }

    impl Stage {
        fn new() -> Self {
            Self {
                runner: ScriptedRunner::new(),
                clock: FixedClock::new(DateTime::UNIX_EPOCH),
                accounts: Accounts::default(),
                env: Env::default(),
                programs: Cache::default(),
            }
        }

        fn probe(&self, check: &HealthCheck) -> (Report, usize) {
            let probes = Probes {
                runner: &self.runner,
                clock: &self.clock,
                accounts: &self.accounts,
                env: &self.env,
                programs: &self.programs,
            };
            let mut failed = 0;
            let report = probes.probe(check, &mut |note| {
                failed += usize::from(matches!(note, Note::FailedTry(_)));
            });
            (report, failed)
        }
    }

    fn nagios(tries: i64) -> HealthCheck {
        HealthCheck {
            command: "check_it -w 'a b'".into(),
            tries,
            try_sleep: "3s".into(),
            ..HealthCheck::default()
        }
    }

    const ARGV: [&str; 3] = ["check_it", "-w", "a b"];

    #[test]
    fn a_check_is_tried_until_it_is_ok_with_a_pause_between() {
        let stage = Stage::new();
        stage.runner.reply(&ARGV, 2, "bad\n");
        stage.runner.reply(&ARGV, 1, "odd\n");
        stage.runner.reply(&ARGV, 0, " fine | t=1s \n");
        let (report, failed) = stage.probe(&nagios(5));
        assert_eq!(report.result.status, HealthStatus::Ok);
        assert_eq!(report.result.tries, 3);
        assert_eq!(report.result.output, "fine | t=1s");
        assert_eq!(report.perfdata.len(), 1);
        assert_eq!(failed, 2);
        assert_eq!(stage.clock.sleeps(), [Duration::from_secs(3); 2]);
    }

    #[test]
    fn the_last_try_counts_and_is_not_slept_after() {
        let stage = Stage::new();
        stage.runner.reply(&ARGV, 2, "bad");
        stage.runner.reply(&ARGV, 1, "odd");
        let (report, failed) = stage.probe(&nagios(2));
        assert_eq!(report.result.status, HealthStatus::Warning);
        assert_eq!((report.result.tries, failed), (2, 2));
        assert_eq!(stage.clock.sleeps().len(), 1);
    }

    #[test]
    fn a_check_that_cannot_start_is_unknown_at_once() {
        let stage = Stage::new();
        let missing = || Err(RunError::NotFound("check_it".into()));
        stage.runner.expect(&ARGV, missing());
        let (report, failed) = stage.probe(&nagios(5));
        assert_eq!(report.result.status, HealthStatus::Unknown);
        assert_eq!(report.result.tries, 1);
        assert_eq!(
            report.result.output,
            "exec: \"check_it\": executable file not found in $PATH"
        );
        assert!(report.error.is_some());
        assert_eq!(failed, 0);
    }

    #[test]
    fn a_plugin_that_answers_unknown_is_tried_again() {
        let stage = Stage::new();
        stage.runner.reply(&ARGV, 3, "who knows");
        stage.runner.reply(&ARGV, 0, "ah");
        let (report, _) = stage.probe(&nagios(2));
        assert_eq!(report.result.status, HealthStatus::Ok);
        assert!(report.error.is_none());
    }

    #[test]
    fn the_timeout_is_passed_to_the_command() {
        let stage = Stage::new();
        stage.runner.reply(&ARGV, 0, "");
        let check = HealthCheck {
            timeout: "7s".into(),
            ..nagios(1)
        };
        stage.probe(&check);
        let calls = stage.runner.calls();
        assert_eq!(calls[0].timeout, Some(Duration::from_secs(7)));
    }

    #[test]
    fn what_is_wrong_with_a_check_is_its_output() {
        let stage = Stage::new();
        let output = |check| stage.probe(&check).0.result.output;
        let rules = |text: &str| HealthCheck {
            goss_rules: Some(serde_json::from_str(text).unwrap()),
            ..HealthCheck::default()
        };
        let quoted = HealthCheck {
            command: "check 'it".into(),
            ..HealthCheck::default()
        };
        for (check, text) in [
            (HealthCheck::default(), "command not specified"),
            (quoted, "Unterminated single-quoted string"),
            (rules("null"), "check rules not specified"),
            (rules("{}"), "found 0 tests, source: goss_rules"),
            (
                rules(r#"{"file": {"/x": {"exist": true}}}"#),
                "invalid Attribute for File:/x: exist",
            ),
        ] {
            assert_eq!(output(check), text);
        }
    }
}
