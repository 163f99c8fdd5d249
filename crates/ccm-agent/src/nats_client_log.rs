//! NATS client diagnostics: writes the `tracing` events of async-nats to the agent's log, at debug
//! level.
//!
//! Two things are left out because they may contain secrets: JetStream events, which print message
//! bodies, and the field `server`, which prints the password of a server URL. The program installs
//! the subscriber; this module only builds it.

use std::fmt::Debug;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use ccm_core::engine::{Level, Line};
use ccm_core::run::log::Log;

/// Returns a subscriber that writes the NATS client's diagnostics to `log`. It ignores all other
/// crates.
pub fn subscriber(log: Log) -> impl Subscriber + Send + Sync {
    Registry::default().with(ClientLog(log))
}

struct ClientLog(Log);

impl<S: Subscriber> Layer<S> for ClientLog {
    /// Caches only refusals: the level of the log may change when the agent reloads.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_wanted(metadata) {
            Interest::sometimes()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        is_wanted(metadata) && self.0.is_enabled(Level::Debug)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut line = Line::new(Level::Debug, fields.message);
        line = line.with("target", event.metadata().target());
        for (name, value) in fields.others {
            line = line.with(name, value);
        }
        self.0.line(&line);
    }
}

/// Reports whether an event may be written: one of the client's, but not of its JetStream modules.
fn is_wanted(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    metadata.is_event()
        && target.starts_with("async_nats")
        && !target.starts_with("async_nats::jetstream")
}

/// Message and fields of one event, as text.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "server" => {}
            name => self.others.push((name, format!("{value:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::NamedTempFile;

    use super::*;
    use ccm_core::run::log::Style;
    use ccm_core::system::SystemClock;

    fn log(level: Level) -> (Log, NamedTempFile) {
        let file = NamedTempFile::new().unwrap();
        let log = Log::to(file.reopen().unwrap(), Style::Journal, level, SystemClock);
        (log, file)
    }

    fn text(file: &NamedTempFile) -> String {
        std::fs::read_to_string(file.path()).unwrap()
    }

    fn emit() {
        tracing::error!(target: "async_nats::connector", attempts = %2, "gave up");
        tracing::debug!(
            target: "async_nats::connector",
            server = "nats://u:hunter2@n1", socket_addr = %"127.0.0.1:4222", "connecting"
        );
        tracing::debug!(target: "async_nats::jetstream::context", "body {}", "hunter2");
        tracing::trace!(target: "async_nats", "polling");
        tracing::warn!(target: "hyper_util", "other crate");
    }

    #[test]
    fn client_events_are_debug_lines_without_secrets() {
        let (log, output) = log(Level::Debug);
        tracing::subscriber::with_default(subscriber(log), emit);
        assert_eq!(
            text(&output),
            "<7>level=DEBUG msg=\"gave up\" target=async_nats::connector attempts=2\n\
             <7>level=DEBUG msg=connecting target=async_nats::connector socket_addr=127.0.0.1:4222\n"
        );
    }

    #[test]
    fn client_events_follow_the_level_of_the_log() {
        let (log, output) = log(Level::Info);
        tracing::subscriber::with_default(subscriber(log.clone()), || {
            emit();
            assert_eq!(text(&output), "");
            log.set_level(Level::Debug);
            emit();
        });
        assert_eq!(text(&output).lines().count(), 2);
    }
}
