//! The registration stream: created, or updated to the required configuration.
//!
//! It is the stream of Choria CCM with direct get enabled, without which upstream's own lookups fail.
//! Other settings of an administrator are kept.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, StorageType};

use super::{check_stream, subject};
use crate::{Connection, NatsError};

/// Default maximum age of entries.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Options of the registration stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamOptions {
    /// Number of replicas; 1 for a new stream if not set.
    pub replicas: Option<usize>,
    /// Maximum and default age of entries, zero for unlimited; a minute for a new stream if not
    /// set.
    pub max_age: Option<Duration>,
}

/// Configuration of the stream after initialization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSummary {
    pub name: String,
    pub subjects: Vec<String>,
    pub replicas: usize,
}

impl Connection {
    /// Creates the registration stream or updates its configuration.
    pub async fn init_registrations(
        &self,
        name: &str,
        options: StreamOptions,
    ) -> Result<StreamSummary, NatsError> {
        check_stream(name)?;
        let info = match self.stream_info(name).await? {
            Some(info) => {
                self.update_stream(name, merge(info.config, options))
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
                self.create_stream(name, merge(empty, options)).await?
            }
        };
        Ok(StreamSummary {
            name: info.config.name,
            subjects: info.config.subjects,
            replicas: info.config.num_replicas,
        })
    }
}

/// Merges the required settings and the options into a configuration.
fn merge(mut config: Config, options: StreamOptions) -> Config {
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
    let description =
        || "ccm: registrations of services; an entry expires unless it is renewed".into();
    config.description.get_or_insert_with(description);
    config.max_messages_per_subject = 1;
    config.allow_message_ttl = true;
    config.allow_rollup = true;
    config.deny_delete = true;
    config.deny_purge = false;
    config.allow_direct = true;
    // Delete markers tell watchers about expired entries.
    config.subject_delete_marker_ttl = Some(if config.max_age.is_zero() {
        MAX_AGE
    } else {
        config.max_age
    });
    // The server requires a duplicate window of at most the maximum age.
    if !config.max_age.is_zero() {
        config.duplicate_window = config.duplicate_window.min(config.max_age);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_an_administrator_are_kept() {
        let theirs = Config {
            name: "SERVICES".into(),
            description: Some("ours".into()),
            num_replicas: 3,
            max_age: Duration::from_secs(300),
            duplicate_window: Duration::from_secs(120),
            max_bytes: 1 << 20,
            ..Config::default()
        };
        let merged = merge(theirs.clone(), StreamOptions::default());
        assert_eq!(merged.num_replicas, 3);
        assert_eq!(merged.max_age, theirs.max_age);
        assert_eq!(merged.subject_delete_marker_ttl, Some(theirs.max_age));
        assert_eq!(merged.description, theirs.description);
        assert_eq!(merged.max_bytes, theirs.max_bytes);
        assert!(merged.allow_direct && merged.allow_message_ttl && merged.allow_rollup);
        assert_eq!(merge(merged.clone(), StreamOptions::default()), merged);
    }

    #[test]
    fn unlimited_age_still_enables_delete_markers() {
        let options = StreamOptions {
            max_age: Some(Duration::ZERO),
            ..StreamOptions::default()
        };
        let merged = merge(Config::default(), options);
        assert!(merged.max_age.is_zero());
        assert_eq!(merged.subject_delete_marker_ttl, Some(MAX_AGE));
    }
}
