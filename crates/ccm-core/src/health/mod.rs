//! Health checks: Nagios plugins and goss rules, retried until they succeed or no tries are left.
//!
//! A probe is read-only and independent of resources and sessions. The caller passes in system
//! access and a callback for tested rules and failed tries. A check that cannot be executed has the
//! status UNKNOWN with the reason; it is not an error of the run.
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
pub use nagios::Measurement;

/// A check that could not be executed.
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

/// System access for probes, and the environment of templates in rules.
#[derive(Clone, Copy)]
pub struct Probes<'a> {
    pub runner: &'a dyn Runner,
    pub clock: &'a dyn Clock,
    pub accounts: &'a Accounts,
    pub env: &'a Env,
    pub programs: &'a Cache,
}

/// An event of a running check.
#[derive(Debug)]
pub enum ProbeEvent<'a> {
    /// One rule was tested.
    Rule(&'a Finding),
    /// A try did not have the status OK.
    FailedTry(FailedTry),
}

/// A try whose status was not OK.
#[derive(Debug)]
pub struct FailedTry {
    pub format: &'static str,
    pub number: i64,
    /// Wait before the next try.
    pub pause: Duration,
    pub status: HealthStatus,
    /// Number of failed goss rules.
    pub failed_rules: Option<usize>,
}

/// A callback for events.
pub type OnEvent<'a> = dyn FnMut(ProbeEvent<'_>) + 'a;

/// Result of a check.
#[derive(Debug)]
pub struct Report {
    pub result: HealthResult,
    /// The reason if the check could not be executed; its status is UNKNOWN then.
    pub error: Option<ProbeError>,
    /// Performance data of the last try of a Nagios plugin.
    pub perfdata: Vec<Measurement>,
    /// Standard error of a Nagios plugin, or the failed goss rules, of the last try.
    pub details: String,
}

/// Result of one try.
struct TryResult {
    status: HealthStatus,
    output: String,
    perfdata: Vec<Measurement>,
    /// Number of failed goss rules.
    failed_rules: Option<usize>,
    details: String,
}

impl Probes<'_> {
    /// Runs a check until it is OK or its tries are used up. A check that cannot be executed is not
    /// retried.
    pub fn probe(&self, check: &HealthCheck, on_event: &mut OnEvent<'_>) -> Report {
        let mut number = 1;
        match self.try_until_ok(check, &mut number, on_event) {
            Ok(result) => Report {
                result: HealthResult {
                    status: result.status,
                    tries: number,
                    output: result.output,
                },
                error: None,
                perfdata: result.perfdata,
                details: result.details,
            },
            Err(error) => Report {
                result: HealthResult {
                    status: HealthStatus::Unknown,
                    tries: number,
                    output: error.to_string(),
                },
                error: Some(error),
                perfdata: Vec::new(),
                details: String::new(),
            },
        }
    }

    fn try_until_ok(
        &self,
        check: &HealthCheck,
        number: &mut i64,
        on_event: &mut OnEvent<'_>,
    ) -> Result<TryResult, ProbeError> {
        let timeout = check.timeout()?;
        let pause = check.try_sleep()?;
        let format = check.format.unwrap_or(match check.goss_rules {
            Some(_) => CheckFormat::Goss,
            None => CheckFormat::Nagios,
        });
        loop {
            let result = match format {
                CheckFormat::Goss => goss::run(self, check.goss_rules.as_ref(), timeout, on_event)?,
                CheckFormat::Nagios => nagios::run(self.runner, &check.command, timeout)?,
            };
            if result.status == HealthStatus::Ok {
                return Ok(result);
            }
            on_event(ProbeEvent::FailedTry(FailedTry {
                format: match format {
                    CheckFormat::Goss => "goss",
                    CheckFormat::Nagios => "nagios",
                },
                number: *number,
                pause,
                status: result.status,
                failed_rules: result.failed_rules,
            }));
            if *number >= check.tries {
                return Ok(result);
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

    struct TestHost {
        runner: ScriptedRunner,
        clock: FixedClock,
        accounts: Accounts,
        env: Env,
        programs: Cache,
    }

    impl TestHost {
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
            let report = probes.probe(check, &mut |event| {
                failed += usize::from(matches!(event, ProbeEvent::FailedTry(_)));
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
        let host = TestHost::new();
        host.runner.reply(&ARGV, 2, "bad\n");
        host.runner.reply(&ARGV, 1, "odd\n");
        host.runner.reply(&ARGV, 0, " fine | t=1s \n");
        let (report, failed) = host.probe(&nagios(5));
        assert_eq!(report.result.status, HealthStatus::Ok);
        assert_eq!(report.result.tries, 3);
        assert_eq!(report.result.output, "fine | t=1s");
        assert_eq!(report.perfdata.len(), 1);
        assert_eq!(failed, 2);
        assert_eq!(host.clock.sleeps(), [Duration::from_secs(3); 2]);
    }

    #[test]
    fn the_last_try_counts_and_is_not_slept_after() {
        let host = TestHost::new();
        host.runner.reply(&ARGV, 2, "bad");
        host.runner.reply(&ARGV, 1, "odd");
        let (report, failed) = host.probe(&nagios(2));
        assert_eq!(report.result.status, HealthStatus::Warning);
        assert_eq!((report.result.tries, failed), (2, 2));
        assert_eq!(host.clock.sleeps().len(), 1);
    }

    #[test]
    fn a_check_that_cannot_start_is_unknown_at_once() {
        let host = TestHost::new();
        let missing = || Err(RunError::NotFound("check_it".into()));
        host.runner.expect(&ARGV, missing());
        let (report, failed) = host.probe(&nagios(5));
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
    fn a_plugin_with_status_unknown_is_retried() {
        let host = TestHost::new();
        host.runner.reply(&ARGV, 3, "who knows");
        host.runner.reply(&ARGV, 0, "ah");
        let (report, _) = host.probe(&nagios(2));
        assert_eq!(report.result.status, HealthStatus::Ok);
        assert!(report.error.is_none());
    }

    #[test]
    fn the_timeout_is_passed_to_the_command() {
        let host = TestHost::new();
        host.runner.reply(&ARGV, 0, "");
        let check = HealthCheck {
            timeout: "7s".into(),
            ..nagios(1)
        };
        host.probe(&check);
        let calls = host.runner.calls();
        assert_eq!(calls[0].timeout, Some(Duration::from_secs(7)));
    }

    #[test]
    fn the_reason_of_an_invalid_check_is_its_output() {
        let host = TestHost::new();
        let output = |check| host.probe(&check).0.result.output;
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
