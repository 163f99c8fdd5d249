//! Terminal output: status lines on standard output, the system log on standard error.
//!
//! Colours and progress bars are used on terminals only. Lines are formatted by
//! `ccm_core::run::log`.

use std::io::{self, BufRead as _, IsTerminal, Read as _, Write};
use std::sync::OnceLock;

use indicatif::{ProgressBar, ProgressStyle};

use super::{CliError, diagnostic};
use ccm_core::engine::{Level, Line, Sink, status_line};
use ccm_core::model::event::{Summary, TransactionEvent};
use ccm_core::run::log::{system_line, user_line};
use ccm_core::system::{Clock as _, SystemClock};
use ccm_value::diagnostic::Diagnostic;
use ccm_value::text::go_millis;

/// Size limit of the answer to a prompt.
const MAX_ANSWER: u64 = 1024;

/// Number of bytes that are written to standard output at once.
const WRITE_BUFFER: usize = 64 * 1024;

/// Destination of the user log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Stdout,
    /// Standard output is reserved for a JSON or YAML document.
    Stderr,
    Nowhere,
}

/// Prints log lines, status lines, diffs and documents.
#[derive(Debug)]
pub(super) struct Console {
    user_level: Level,
    system_level: Level,
    target: Target,
    colour: bool,
    /// Both streams are terminals, so progress bars can be drawn.
    is_interactive: bool,
    /// Progress of the current download; removed before the next line.
    bar: Option<ProgressBar>,
    /// First error while writing to standard output.
    write_error: OnceLock<String>,
}

impl Console {
    pub(super) fn new(debug: bool, info: bool) -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("CLICOLOR").is_some_and(|value| value == "0")
            || dumb;
        Self {
            user_level: if debug { Level::Debug } else { Level::Info },
            system_level: match (debug, info) {
                (true, _) => Level::Debug,
                (_, true) => Level::Info,
                _ => Level::Warn,
            },
            target: Target::Stdout,
            colour: !plain && io::stdout().is_terminal(),
            is_interactive: !dumb && io::stdout().is_terminal() && io::stderr().is_terminal(),
            bar: None,
            write_error: OnceLock::new(),
        }
    }

    /// Reserves standard output for a document: lines go to standard error.
    pub(super) fn reserve_stdout(&mut self) {
        self.target = Target::Stderr;
        self.colour = self.colour && io::stderr().is_terminal();
    }

    /// Suppresses the user log.
    pub(super) fn silence(&mut self) {
        self.target = Target::Nowhere;
    }

    /// Reports whether standard output shows colours.
    pub(super) fn has_colour(&self) -> bool {
        self.colour
    }

    /// Prints text unchanged on standard output.
    pub(super) fn print(&self, text: &str) {
        self.print_bytes(text.as_bytes());
    }

    /// Prints bytes unchanged on standard output.
    pub(super) fn print_bytes(&self, bytes: &[u8]) {
        self.print_with(|out| out.write_all(bytes));
    }

    /// Prints what a function writes, part by part, on standard output.
    pub(super) fn print_with(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        let mut out = io::BufWriter::with_capacity(WRITE_BUFFER, io::stdout().lock());
        match write(&mut out).and_then(|()| out.flush()) {
            // A closed pipe is not an error, as in `ccm facts | head`.
            Err(err) if err.kind() != io::ErrorKind::BrokenPipe => {
                let cause = ccm_core::system::Cause::from(err);
                let _ = self.write_error.set(format!("standard output: {cause}"));
            }
            _ => {}
        }
    }

    /// Returns the first error while writing to standard output, if any.
    pub(super) fn write_error(&self) -> Option<&str> {
        self.write_error.get().map(String::as_str)
    }

    fn print_user(&self, text: &str) {
        match self.target {
            Target::Stdout => self.print(text),
            Target::Stderr => print_error(text.trim_end_matches('\n')),
            Target::Nowhere => {}
        }
    }

    fn clear_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Writes a line to the system log.
    pub(super) fn log(&self, line: &Line) {
        if line.level >= self.system_level {
            print_error(&system_line(line, SystemClock.now()));
        }
    }

    /// Prints the summary of a run.
    pub(super) fn report(&self, title: &str, summary: &Summary, kind: Report) {
        self.print(&report_text(title, summary, kind));
    }
}

/// Prints a line on standard error; unlike `eprintln!` it does not panic if that is closed.
pub(super) fn print_error(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Prints a confirmation prompt on standard error.
pub(super) fn prompt(question: &str) {
    let mut out = io::stderr().lock();
    let _ = write!(out, "{question} (y/N) ").and_then(|()| out.flush());
}

/// Prompts on standard error and reads the answer; everything but yes means no. `flag` skips the
/// prompt.
pub(super) fn is_confirmed(question: &str, flag: &str) -> Result<bool, CliError> {
    ask(question)?.ok_or_else(|| {
        CliError::failed("no answer to the confirmation prompt")
            .hint(format!("use {flag} to skip the prompt"))
    })
}

/// Prompts on standard error and reads the answer; everything but yes means no. Returns nothing at the
/// end of the input.
pub(super) fn ask(question: &str) -> Result<Option<bool>, CliError> {
    prompt(question);
    let mut answer = String::new();
    let mut input = io::stdin().lock().take(MAX_ANSWER);
    let length = input.read_line(&mut answer).map_err(CliError::failed)?;
    let answer = answer.trim().to_lowercase();
    Ok((length > 0).then_some(matches!(answer.as_str(), "y" | "yes")))
}

/// Kind of summary to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    Manifest,
    Session,
}

impl Sink for Console {
    fn event(&mut self, event: &TransactionEvent, manifest: Option<&str>) {
        let mut line = status_line(event);
        if let Some(manifest) = manifest {
            line.fields.insert(0, ("manifest", manifest.into()));
        }
        self.line(&line);
    }

    fn line(&mut self, line: &Line) {
        self.clear_bar();
        if line.level >= self.user_level {
            self.print_user(&user_line(line, self.colour));
        }
    }

    fn detail_level(&self) -> Option<Level> {
        (self.system_level < Level::Warn).then_some(self.system_level)
    }

    fn detail(&mut self, line: &Line) {
        self.clear_bar();
        self.log(line);
    }

    fn problems(&mut self, diagnostics: &[Diagnostic]) {
        self.clear_bar();
        print_error(diagnostic::render_all(diagnostics).trim_end());
    }

    fn received(&mut self, resource: &str, bytes: u64, of: Option<u64>) {
        if !self.is_interactive || self.target != Target::Stdout {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| progress_bar(resource, of));
        bar.set_position(bytes);
    }

    fn diff(&mut self, text: &str) {
        self.clear_bar();
        self.print_user(&paint_diff(text, self.colour));
    }
}

/// Returns a progress bar for a download, drawn on standard error.
fn progress_bar(resource: &str, of: Option<u64>) -> ProgressBar {
    let (bar, template) = match of {
        Some(length) => (
            ProgressBar::new(length),
            "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        ),
        None => (
            ProgressBar::no_length(),
            "{msg} {spinner} {bytes} {bytes_per_sec}",
        ),
    };
    let style = ProgressStyle::with_template(template);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(resource.to_owned())
}

fn report_text(title: &str, summary: &Summary, kind: Report) -> String {
    let mut rows: Vec<(&str, String)> = Vec::new();
    let is_session = kind == Report::Session;
    if !is_session || !summary.total_duration.is_zero() {
        rows.push(("Run Time", go_millis(summary.total_duration)));
    }
    rows.push(("Total Resources", summary.total_resources.to_string()));
    if is_session {
        rows.push(("Unique Resources", summary.unique_resources.to_string()));
    }
    rows.push(("Stable Resources", summary.stable_resources.to_string()));
    rows.push(("Changed Resources", summary.changed_resources.to_string()));
    rows.push(("Failed Resources", summary.failed_resources.to_string()));
    rows.push(("Skipped Resources", summary.skipped_resources.to_string()));
    rows.push(("Refreshed Resources", summary.refreshed_count.to_string()));
    if !is_session {
        let unmet = summary.requirements_unmet_count;
        rows.push(("Unmet Requirements", unmet.to_string()));
        let mut checked = summary.health_checked_count.to_string();
        if summary.health_checked_count > 0 {
            checked.push_str(&format!(
                " (ok: {}, critical: {}, warning: {} unknown: {})",
                summary.health_check_ok_count,
                summary.health_check_critical_count,
                summary.health_check_warning_count,
                summary.health_check_unknown_count
            ));
        }
        rows.push(("Checked Resources", checked));
    }
    rows.push(("Total Errors", summary.total_errors.to_string()));
    let mut text = format!("\n{title}\n\n");
    for (name, value) in rows {
        text.push_str(&format!("{name:>21}: {value}\n"));
    }
    text
}

/// Returns a unified diff, with colours on a terminal.
pub(super) fn paint_diff(text: &str, colour: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let code = match line.as_bytes() {
            [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => "1",
            [b'+', ..] => "32",
            [b'-', ..] => "31",
            [b'@', ..] => "36",
            _ => "0",
        };
        if colour && code != "0" {
            out.push_str(&format!("\x1b[{code}m{line}\x1b[0m\n"));
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn report_matches_upstream() {
        let mut summary = Summary::of(None, []);
        summary.total_duration = Duration::from_millis(13);
        summary.total_resources = 4;
        summary.health_checked_count = 1;
        summary.health_check_ok_count = 1;
        assert_eq!(
            report_text("Manifest Run Summary", &summary, Report::Manifest),
            "
Manifest Run Summary

             Run Time: 13ms
      Total Resources: 4
     Stable Resources: 0
    Changed Resources: 0
     Failed Resources: 0
    Skipped Resources: 0
  Refreshed Resources: 0
   Unmet Requirements: 0
    Checked Resources: 1 (ok: 1, critical: 0, warning: 0 unknown: 0)
         Total Errors: 0
"
        );
    }
}
