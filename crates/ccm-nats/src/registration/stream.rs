//! The stream of registrations: made once, and brought up to date.
//!
//! It is upstream's stream, but one that can be read directly: without that, upstream's own lookups
//! get no answer. What an administrator set and we have no opinion on stays as it is.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, StorageType};

use super::{check_stream, subject};
use crate::{Connection, NatsError};

/// How long an entry lives at most in a new stream, unless told.
const MAX_AGE: Duration = Duration::from_secs(60);

/// How to set the stream up.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamOptions {
    /// How many servers keep each entry; without it 1, or what it is already.
    pub replicas: Option<usize>,
    /// How long an entry lives that does not say so itself, and at most; zero is for ever.
    /// Without it a minute, or what it is already.
    pub max_age: Option<Duration>,
}

/// A stream that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSummary {
    pub name: String,
    pub subjects: Vec<String>,
    pub replicas: usize,
}

impl Connection {
    /// Makes the stream of registrations, or brings it to what it should be.
    pub async fn init_registrations(
        &self,
        name: &str,
        options: StreamOptions,
    ) -> Result<StreamSummary, NatsError> {
        check_stream(name)?;
        let info = match self.stream_info(name).await? {
            Some(info) => {
                self.update_stream(name, improve(info.config, options))
                    .await?
            }
            None => {
                let empty = Config {
                    name: name.into(),
                    storage: StorageType::File,
                    num_replicas: 1,
                    max_age: MAX_AGE,
                    ..Config::default()
                };
                self.create_stream(name, improve(empty, options)).await?
            }
        };
        Ok(StreamSummary {
            name: info.config.name,
            subjects: info.config.subjects,
            replicas: info.config.num_replicas,
        })
    }
}

/// Lays what the stream must be, and what was asked for, over what it is.
fn improve(mut config: Config, options: StreamOptions) -> Config {
    let subject = subject::all();
    if !config.subjects.contains(&subject) {
        config.subjects.push(subject);
    }
    if let Some(replicas) = options.replicas {
        config.num_replicas = replicas;
    }
    if let Some(age) = options.max_age {
        config.max_age = age;
    }
    config.max_messages_per_subject = 1;
    config.allow_message_ttl = true;
    config.allow_rollup = true;
    config.deny_delete = true;
    config.deny_purge = false;
    config.allow_direct = true;
    // Markers are how watchers hear of what expired; they stay as long as entries do.
    config.subject_delete_marker_ttl = Some(if config.max_age.is_zero() {
        MAX_AGE
    } else {
        config.max_age
    });
    // The server wants no longer memory for repeated messages than for messages.
    if !config.max_age.is_zero() {
        config.duplicate_window = config.duplicate_window.min(config.max_age);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_administrator_set_stays() {
        let theirs = Config {
            name: "SERVICES".into(),
            description: Some("ours".into()),
            num_replicas: 3,
            max_age: Duration::from_secs(300),
            duplicate_window: Duration::from_secs(120),
            max_bytes: 1 << 20,
            ..Config::default()
        };
        let found = improve(theirs.clone(), StreamOptions::default());
        assert_eq!(found.num_replicas, 3);
        assert_eq!(found.max_age, theirs.max_age);
        assert_eq!(found.subject_delete_marker_ttl, Some(theirs.max_age));
        assert_eq!(found.description, theirs.description);
        assert_eq!(found.max_bytes, theirs.max_bytes);
        assert!(found.allow_direct && found.allow_message_ttl && found.allow_rollup);
        assert_eq!(improve(found.clone(), StreamOptions::default()), found);
    }

    #[test]
    fn entries_that_live_for_ever_still_leave_markers() {
        let options = StreamOptions {
            max_age: Some(Duration::ZERO),
            ..StreamOptions::default()
        };
        let found = improve(Config::default(), options);
        assert!(found.max_age.is_zero());
        assert_eq!(found.subject_delete_marker_ttl, Some(MAX_AGE));
    }
}
