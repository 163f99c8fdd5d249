//! Missing objects: reports an object that does not exist. A watch alone waits for it silently.

use std::time::Duration;

use ccm_nats::{Connection, NatsError};

/// Delays between checks for the object; the last one is repeated.
const WAITS: [Duration; 3] = [
    Duration::from_secs(2),
    Duration::from_secs(60),
    Duration::from_secs(600),
];

/// Checks for an object until it exists, and calls `report` while it does not.
pub(super) async fn report_missing(
    connection: &Connection,
    bucket: &str,
    key: &str,
    report: impl Fn(&NatsError),
) {
    let repeated = WAITS.last().copied().into_iter().cycle();
    for wait in WAITS.into_iter().chain(repeated) {
        tokio::time::sleep(wait).await;
        match find(connection, bucket, key).await {
            Ok(()) => return,
            Err(err) if err.is_not_found() => report(&err),
            // An unreachable server is reported by the connection log.
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
