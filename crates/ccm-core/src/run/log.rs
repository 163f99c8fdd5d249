//! Log of the agent: writes one [`Line`] per event, from any thread.
//!
//! Four output styles: words and colour for a terminal, as the command line prints them;
//! `key=value` with a timestamp for a file; `key=value` with a priority instead of the timestamp
//! for the systemd journal; one JSON object per line. Secrets are removed by the code that builds the
//! line, not here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use chrono::{DateTime, Local, Utc};
use parking_lot::Mutex;

use crate::engine::{Level, Line, status_line};
use crate::model::event::TransactionEvent;
use crate::model::text::quote;
use crate::system::{Clock, SystemClock};

/// Log format that users choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Text,
    Json,
}

/// Error for an unknown format name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown log format {}: use text or json", quote(.0))]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(UnknownFormat(other.into())),
        }
    }
}

/// Output style of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Words for a terminal.
    Terminal {
        colour: bool,
    },
    /// `key=value` with a timestamp.
    Text,
    /// `key=value` with a priority; the journal adds the timestamp.
    Journal,
    Json,
}

/// Log with a level, a style and an output. Clones share all three.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    level: AtomicU8,
    style: Style,
    clock: Box<dyn Clock>,
    out: Mutex<Box<dyn Write + Send>>,
}

impl Log {
    /// Returns a log to standard output if that is a terminal, else to standard error. The style
    /// follows from the format and the environment.
    pub fn open(level: Level, format: Format, environ: &BTreeMap<String, String>) -> Self {
        let given = |name: &str| environ.get(name).map_or("", String::as_str);
        let is_terminal = std::io::stdout().is_terminal();
        let style = match format {
            Format::Json => Style::Json,
            Format::Text if writes_to_journal(given("JOURNAL_STREAM")) => Style::Journal,
            Format::Text if is_terminal => Style::Terminal {
                colour: given("NO_COLOR").is_empty()
                    && given("CLICOLOR") != "0"
                    && given("TERM") != "dumb",
            },
            Format::Text => Style::Text,
        };
        match style {
            Style::Terminal { .. } => Self::to(std::io::stdout(), style, level, SystemClock),
            style => Self::to(std::io::stderr(), style, level, SystemClock),
        }
    }

    /// Returns a log that writes to `out`.
    pub fn to(
        out: impl Write + Send + 'static,
        style: Style,
        level: Level,
        clock: impl Clock + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            level: AtomicU8::new(level as u8),
            style,
            clock: Box::new(clock),
            out: Mutex::new(Box::new(out)),
        }))
    }

    /// Changes the level, for example after a reload of the configuration.
    pub fn set_level(&self, level: Level) {
        self.0.level.store(level as u8, Ordering::Relaxed);
    }

    /// Reports whether lines of this level are written.
    pub fn is_enabled(&self, level: Level) -> bool {
        level as u8 >= self.0.level.load(Ordering::Relaxed)
    }

    /// Writes a line, unless it is below the level.
    pub fn line(&self, line: &Line) {
        if !self.is_enabled(line.level) {
            return;
        }
        let now = || self.0.clock.now();
        let mut text = match self.0.style {
            Style::Terminal { colour } => user_line(line, colour),
            Style::Text => system_line(line, now()),
            Style::Journal => journal_line(line),
            Style::Json => json_line(line, now()),
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        // One write per line keeps lines whole. A failed write has nowhere to be reported.
        let mut out = self.0.out.lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Writes the outcome of a resource; `manifest` is the name of the nested manifest, if any.
    pub fn event(&self, event: &TransactionEvent, manifest: Option<&str>) {
        let mut line = status_line(event);
        if let Some(manifest) = manifest {
            line.fields.insert(0, ("manifest", manifest.into()));
        }
        self.line(&line);
    }

    pub fn debug(&self, message: impl Into<String>) {
        self.line(&Line::new(Level::Debug, message));
    }

    pub fn info(&self, message: impl Into<String>) {
        self.line(&Line::new(Level::Info, message));
    }

    pub fn warn(&self, message: impl Into<String>) {
        self.line(&Line::new(Level::Warn, message));
    }

    pub fn error(&self, message: impl Into<String>) {
        self.line(&Line::new(Level::Error, message));
    }
}

/// Reports whether standard error is connected to the journal. `JOURNAL_STREAM` alone does not
/// prove that: child processes inherit it.
fn writes_to_journal(variable: &str) -> bool {
    rustix::fs::fstat(std::io::stderr())
        .is_ok_and(|stat| variable == format!("{}:{}", stat.st_dev, stat.st_ino))
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Debug => "DEBUG",
        Level::Info => "INFO",
        Level::Warn => "WARN",
        Level::Error => "ERROR",
    }
}

/// Returns a line for a terminal, with its line end.
pub fn user_line(line: &Line, colour: bool) -> String {
    let level_name = level_name(line.level);
    let mut text = if colour {
        let code = match line.level {
            Level::Debug => 35,
            Level::Info => 32,
            Level::Warn => 33,
            Level::Error => 31,
        };
        format!(" \x1b[{code}m{level_name:<5}\x1b[0m {}", line.message)
    } else {
        format!(" {level_name:<5} {}", line.message)
    };
    for (key, value) in &line.fields {
        if colour {
            text.push_str(&format!(" \x1b[2m{key}=\x1b[0m{value}"));
        } else {
            text.push_str(&format!(" {key}={value}"));
        }
    }
    text.push('\n');
    text
}

/// Returns a line for a file, without its line end.
pub fn system_line(line: &Line, now: DateTime<Utc>) -> String {
    format!("time={} {}", stamp(now), pairs(line))
}

fn pairs(line: &Line) -> String {
    let mut text = format!(
        "level={} msg={}",
        level_name(line.level),
        logfmt(&line.message)
    );
    for (key, value) in &line.fields {
        // Writing to a `String` can't fail.
        let _ = write!(text, " {key}={}", logfmt(value));
    }
    text
}

/// Returns a time in the local zone, to the millisecond.
fn stamp(now: DateTime<Utc>) -> String {
    let now = now.with_timezone(&Local);
    let time = now.format("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string();
    match time.strip_suffix("+00:00") {
        Some(utc) => format!("{utc}Z"),
        None => time,
    }
}

fn logfmt(value: &str) -> String {
    let plain = !value.is_empty()
        && !value
            .chars()
            .any(|c| c == ' ' || c == '"' || c == '=' || c.is_control());
    if plain { value.into() } else { quote(value) }
}

fn journal_line(line: &Line) -> String {
    let priority = match line.level {
        Level::Debug => 7,
        Level::Info => 6,
        Level::Warn => 4,
        Level::Error => 3,
    };
    format!("<{priority}>{}", pairs(line))
}

/// Returns a line as one flat JSON object. Values of a repeated field are joined; a field named
/// like one of the standard three gets an underscore.
fn json_line(line: &Line, now: DateTime<Utc>) -> String {
    let mut object = serde_json::Map::new();
    object.insert("time".into(), stamp(now).into());
    object.insert("level".into(), level_name(line.level).into());
    object.insert("msg".into(), line.message.as_str().into());
    for (key, value) in &line.fields {
        let key = match *key {
            "time" | "level" | "msg" => format!("{key}_"),
            key => key.to_owned(),
        };
        let value = match object.get(&key).and_then(serde_json::Value::as_str) {
            Some(first) => format!("{first}, {value}"),
            None => value.clone(),
        };
        object.insert(key, value.into());
    }
    serde_json::Value::from(object).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::id::EventId;
    use crate::model::resource::{File, Properties, Resource};
    use crate::system::FixedClock;

    /// Output that tests can read while the log is open.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Output {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    fn log(style: Style, level: Level) -> (Log, Output) {
        let output = Output::default();
        let clock = FixedClock::new(DateTime::UNIX_EPOCH);
        (Log::to(output.clone(), style, level, clock), output)
    }

    fn line() -> Line {
        Line::new(Level::Warn, "two\nlines")
            .with("source", "/srv/site")
            .with("level", "high")
            .with("unmet", "a")
            .with("unmet", "b")
    }

    fn event() -> TransactionEvent {
        let time = DateTime::UNIX_EPOCH;
        let resource = Resource::new("/srv/motd", "present", Properties::File(File::default()));
        let mut event =
            TransactionEvent::begin(EventId::new(time, 1), time, "posix", &Arc::new(resource));
        event.duration = Duration::from_micros(2_900);
        event
    }

    fn shown(event: &TransactionEvent) -> String {
        user_line(&status_line(event), false)
    }

    #[test]
    fn a_changed_resource_is_shown_as_upstream_shows_it() {
        let mut event = event();
        event.changed = true;
        assert_eq!(
            shown(&event),
            " WARN  file#/srv/motd changed ensure=present runtime=2ms provider=posix\n"
        );
    }

    #[test]
    fn the_first_outcome_that_holds_is_shown() {
        let outcome = |change: fn(&mut TransactionEvent)| {
            let mut event = event();
            change(&mut event);
            shown(&event)
        };
        for (found, expected) in [
            (
                outcome(|_| {}),
                " INFO  file#/srv/motd stable ensure=present runtime=2ms provider=posix\n",
            ),
            (
                outcome(|e| {
                    e.failed = true;
                    e.changed = true;
                    e.errors = vec!["a".into(), "b".into()];
                }),
                " ERROR file#/srv/motd failed ensure=present runtime=2ms provider=posix errors=a, b\n",
            ),
            (
                outcome(|e| {
                    e.skipped = true;
                    e.unmet_requirements = vec!["exec#x".into(), "exec#y".into()];
                }),
                " ERROR file#/srv/motd skipped due to unmet requirement ensure=present runtime=2ms provider=posix unmet=exec#x unmet=exec#y\n",
            ),
            (
                outcome(|e| e.skipped = true),
                " WARN  file#/srv/motd skipped ensure=present runtime=2ms provider=posix\n",
            ),
            (
                outcome(|e| {
                    e.noop = true;
                    e.changed = true;
                    e.noop_message = "Would have created the file".into();
                }),
                " WARN  file#/srv/motd changed ensure=present runtime=2ms provider=posix noop=Would have created the file\n",
            ),
            (
                outcome(|e| {
                    e.alias = "motd".into();
                    e.noop = true;
                }),
                " INFO  file#motd (alias) stable ensure=present runtime=2ms provider=posix noop=true\n",
            ),
        ] {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn values_with_spaces_are_quoted() {
        let line = Line::new(Level::Warn, "two words")
            .with("a", "b")
            .with("c", "");
        let text = system_line(&line, DateTime::UNIX_EPOCH);
        assert!(
            text.ends_with("level=WARN msg=\"two words\" a=b c=\"\""),
            "{text}"
        );
    }

    #[test]
    fn the_journal_gets_a_priority_and_no_time() {
        let (log, output) = log(Style::Journal, Level::Debug);
        log.line(&line());
        log.debug("d");
        log.info("i");
        log.error("e");
        assert_eq!(
            output.text(),
            "<4>level=WARN msg=\"two\\nlines\" source=/srv/site level=high unmet=a unmet=b\n\
             <7>level=DEBUG msg=d\n<6>level=INFO msg=i\n<3>level=ERROR msg=e\n"
        );
    }

    #[test]
    fn json_is_one_object_per_line() {
        let (log, output) = log(Style::Json, Level::Info);
        log.line(&line());
        let text = output.text();
        assert_eq!(text.lines().count(), 1);
        let mut object: serde_json::Value = serde_json::from_str(&text).unwrap();
        let time = object["time"].take();
        let time = DateTime::parse_from_rfc3339(time.as_str().unwrap()).unwrap();
        assert_eq!(time.to_utc(), DateTime::UNIX_EPOCH);
        assert_eq!(
            object.to_string(),
            r#"{"time":null,"level":"WARN","msg":"two\nlines","source":"/srv/site","level_":"high","unmet":"a, b"}"#
        );
    }

    #[test]
    fn a_terminal_gets_colour_only_if_wanted() {
        let (plain, on_plain) = log(Style::Terminal { colour: false }, Level::Info);
        plain.warn("careful");
        assert_eq!(on_plain.text(), " WARN  careful\n");
        let (coloured, on_coloured) = log(Style::Terminal { colour: true }, Level::Info);
        coloured.warn("careful");
        assert_eq!(on_coloured.text(), " \x1b[33mWARN \x1b[0m careful\n");
    }

    #[test]
    fn lines_below_the_level_are_left_out_until_it_changes() {
        let (log, output) = log(Style::Journal, Level::Warn);
        log.info("hidden");
        log.clone().set_level(Level::Info);
        log.info("shown");
        log.debug("hidden");
        assert_eq!(output.text(), "<6>level=INFO msg=shown\n");
    }

    #[test]
    fn an_event_names_its_manifest() {
        let (log, output) = log(Style::Journal, Level::Info);
        log.event(&event(), Some("inner"));
        assert_eq!(
            output.text(),
            "<6>level=INFO msg=\"file#/srv/motd stable\" manifest=inner ensure=present runtime=2ms provider=posix\n"
        );
    }

    #[test]
    fn lines_of_many_threads_stay_whole() {
        let (log, output) = log(Style::Journal, Level::Info);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| log.info("whole")));
            }
        });
        let text = output.text();
        assert_eq!(text.lines().count(), 400);
        assert!(text.lines().all(|line| line == "<6>level=INFO msg=whole"));
    }

    #[test]
    fn the_journal_variable_must_name_our_own_stream() {
        assert!(!writes_to_journal(""));
        assert!(!writes_to_journal("1:1"));
        let stat = rustix::fs::fstat(std::io::stderr()).unwrap();
        assert!(writes_to_journal(&format!(
            "{}:{}",
            stat.st_dev, stat.st_ino
        )));
    }

    #[test]
    fn a_format_is_text_or_json() {
        assert_eq!("json".parse(), Ok(Format::Json));
        let error = "xml".parse::<Format>().unwrap_err().to_string();
        assert_eq!(error, "unknown log format \"xml\": use text or json");
    }
}
