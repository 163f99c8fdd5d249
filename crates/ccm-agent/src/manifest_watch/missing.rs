//! A source that is not there: a watch waits for it without a word, so somebody has to say so.

use std::time::Duration;

use ccm_nats::{Connection, NatsError};

/// When somebody looks for an object that nobody has seen yet; the last wait is repeated.
const WAITS: [Duration; 3] = [
    Duration::from_secs(2),
    Duration::from_secs(60),
    Duration::from_secs(600),
];

/// Looks for an object until it is there, and tells what is missing.
pub(super) async fn look_for(
    connection: &Connection,
    bucket: &str,
    key: &str,
    tell: impl Fn(&NatsError),
) {
    let repeated = WAITS.last().copied().into_iter().cycle();
    for wait in WAITS.into_iter().chain(repeated) {
        tokio::time::sleep(wait).await;
        match find(connection, bucket, key).await {
            Ok(()) => return,
            Err(err) if err.is_not_found() => tell(&err),
            // Out of reach is not missing; the connection has its own lines.
            Err(_) => {}
        }
    }
}

async fn find(connection: &Connection, bucket: &str, key: &str) -> Result<(), NatsError> {
    let store = connection.objects(bucket).await?;
    match store.info(key).await? {
        Some(_) => Ok(()),
        None => Err(NatsError::NoObject {
            bucket: bucket.into(),
            name: key.into(),
        }),
    }
}
