//! A blocking NATS client for synchronous code: runs, templates and commands.
//!
//! A [`BlockingClient`] connects at its first use. Its operations run on a tokio runtime; the calling
//! thread waits for the result.

use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

use super::governor::{Governor, Release, Slot};
use super::object::Info;
use super::{Bytes, ConnectMode, Connection, ContextError, NatsError, Settings, connect};
use ccm_core::model::registration::Entry;
use ccm_core::run::nats_client::{self, NatsClientError, NatsClientErrorKind, SlotRequest};

/// Time limit of the connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Returns the connection settings.
type Resolve = Box<dyn Fn() -> Result<Settings, ContextError> + Send + Sync>;

/// A blocking client; clones share one connection.
#[derive(Clone)]
pub struct BlockingClient(Arc<Inner>);

struct Inner {
    /// The settings and the client name; nothing if created from a connection.
    connecting: Option<(Resolve, String)>,
    connected: Mutex<Option<Connected>>,
}

struct Connected {
    connection: Connection,
    handle: Handle,
    /// The runtime of the handle, if it belongs to this client.
    runtime: Option<Runtime>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        // Dropping a runtime blocks, which panics in async code.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl BlockingClient {
    /// Returns a client that calls `resolve` and connects at its first use.
    pub fn lazy(
        name: impl Into<String>,
        resolve: impl Fn() -> Result<Settings, ContextError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            connecting: Some((Box::new(resolve), name.into())),
            connected: Mutex::new(None),
        }))
    }

    /// Returns a client for an existing connection on a runtime.
    pub fn over(connection: Connection, runtime: Handle) -> Self {
        Self(Arc::new(Inner {
            connecting: None,
            connected: Mutex::new(Some(Connected {
                connection,
                handle: runtime,
                runtime: None,
            })),
        }))
    }

    /// Returns the value of a key, if it exists.
    pub fn kv_bytes(&self, bucket: &str, key: &str) -> Result<Option<Bytes>, NatsError> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.run(|connection| async move {
            let entry = connection.bucket(&bucket).await?.get(&key).await?;
            Ok(entry.map(|entry| entry.value))
        })
    }

    /// Writes the content of an object of at most `limit` bytes to `out`, and returns its metadata.
    pub fn object(
        &self,
        bucket: &str,
        name: &str,
        limit: u64,
        mut out: impl Write + Send + 'static,
    ) -> Result<Info, NatsError> {
        let (bucket, name) = (bucket.to_owned(), name.to_owned());
        self.run(move |connection| async move {
            let store = connection.objects(&bucket).await?;
            store.get_into(&name, limit, &mut out).await
        })
    }

    /// Returns the content of an object of at most `limit` bytes.
    pub fn object_bytes(&self, bucket: &str, name: &str, limit: u64) -> Result<Bytes, NatsError> {
        let (bucket, name) = (bucket.to_owned(), name.to_owned());
        self.run(move |connection| async move {
            connection.objects(&bucket).await?.get(&name, limit).await
        })
    }

    /// Runs an async operation on the connection and waits for it.
    pub fn run<T, F>(&self, operation: impl FnOnce(Connection) -> F) -> Result<T, NatsError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, NatsError>> + Send + 'static,
    {
        let (connection, runtime) = self.connection()?;
        wait(&runtime, operation(connection))
    }

    fn connection(&self) -> Result<(Connection, Handle), NatsError> {
        let mut connected = self.0.connected.lock();
        if let Some(existing) = &*connected {
            return Ok((existing.connection.clone(), existing.handle.clone()));
        }
        let Some((resolve, name)) = &self.0.connecting else {
            return Err(NatsError::Closed);
        };
        let (settings, name) = (resolve()?, name.clone());
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("nats")
            .enable_all()
            .build()
            .map_err(|err| NatsError::Connect {
                servers: settings.server_list(),
                reason: err.to_string(),
                source: Some(err.into()),
            })?;
        let handle = runtime.handle().clone();
        let connection = wait(&handle, async move {
            connect(&settings, ConnectMode::Once(CONNECT_LIMIT), &name).await
        });
        let connection = match connection {
            Ok(connection) => connection,
            Err(err) => {
                runtime.shutdown_background();
                return Err(err);
            }
        };
        *connected = Some(Connected {
            connection: connection.clone(),
            handle: handle.clone(),
            runtime: Some(runtime),
        });
        Ok((connection, handle))
    }
}

impl From<NatsError> for NatsClientError {
    fn from(error: NatsError) -> Self {
        let kind = match error {
            NatsError::Context(_) => NatsClientErrorKind::Settings,
            NatsError::WaitCancelled { .. } => NatsClientErrorKind::GivenUp,
            NatsError::NoStream(_) | NatsError::NoBucket(_) | NatsError::NoObject { .. } => {
                NatsClientErrorKind::NotFound
            }
            _ => NatsClientErrorKind::Failed,
        };
        Self::new(kind, error)
    }
}

impl nats_client::NatsClient for BlockingClient {
    fn value(&self, bucket: &str, key: &str) -> Result<Option<Vec<u8>>, NatsClientError> {
        Ok(self.kv_bytes(bucket, key)?.map(Vec::from))
    }

    fn object(
        &self,
        bucket: &str,
        name: &str,
        limit: u64,
        out: File,
    ) -> Result<(), NatsClientError> {
        Ok(self.object(bucket, name, limit, out).map(drop)?)
    }

    fn object_bytes(
        &self,
        bucket: &str,
        name: &str,
        limit: u64,
    ) -> Result<Vec<u8>, NatsClientError> {
        Ok(self.object_bytes(bucket, name, limit)?.into())
    }

    /// Invalid registrations are left out.
    fn registrations(&self, stream: &str, words: [&str; 4]) -> Result<Vec<Entry>, NatsClientError> {
        let (stream, words) = (stream.to_owned(), words.map(str::to_owned));
        let found = self.run(|connection| async move {
            let words = words.each_ref().map(String::as_str);
            connection.registrations(&stream, words).await
        })?;
        Ok(found.entries)
    }

    fn enter(&self, request: SlotRequest) -> Result<Box<dyn nats_client::Slot>, NatsClientError> {
        let SlotRequest {
            collective,
            governor,
            holder,
            limit,
            give_up,
            lost,
        } = request;
        let (slot, watch) = self.run(|connection| async move {
            let governor = Governor::new(connection, &collective, &governor);
            let slot = governor.enter(&holder, limit, || give_up()).await?;
            let (loss, sequence) = (slot.lost(), slot.sequence());
            let watch = tokio::spawn(async move { lost(sequence, loss.await) });
            Ok((slot, watch))
        })?;
        Ok(Box::new(HeldSlot {
            client: self.clone(),
            slot,
            watch,
        }))
    }
}

/// A governor slot, and the task that detects its loss.
struct HeldSlot {
    client: BlockingClient,
    slot: Slot,
    watch: JoinHandle<()>,
}

impl nats_client::Slot for HeldSlot {
    fn sequence(&self) -> u64 {
        self.slot.sequence()
    }

    fn leave(self: Box<Self>) -> Result<nats_client::SlotRelease, NatsClientError> {
        let Self {
            client,
            slot,
            watch,
        } = *self;
        watch.abort();
        let left = client.run(|_| async move { slot.leave().await })?;
        Ok(match left {
            Release::Freed => nats_client::SlotRelease::Freed,
            Release::Lost(loss) => nats_client::SlotRelease::Lost(loss),
        })
    }
}

/// Runs a future on the runtime and waits for it. Unlike `Handle::block_on`, it may be called from
/// async code.
fn wait<T: Send + 'static>(
    runtime: &Handle,
    operation: impl Future<Output = Result<T, NatsError>> + Send + 'static,
) -> Result<T, NatsError> {
    let (done, outcome) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        let _ = done.send(operation.await);
    });
    outcome.recv().unwrap_or(Err(NatsError::Closed))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn settings_are_resolved_at_first_use() {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let client = BlockingClient::lazy("test", move || {
            count.fetch_add(1, Ordering::SeqCst);
            Err(ContextError::Name("x".into()))
        });
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        let refused = client.kv_bytes("B", "k").unwrap_err();
        assert_eq!(refused.to_string(), "invalid context name \"x\"");
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn connect_error_names_the_server_without_credentials() {
        // Port 1 is closed.
        let client =
            BlockingClient::lazy("test", || Settings::plain("nats://ann:hunter2@127.0.0.1:1"));
        let refused = client.kv_bytes("B", "k").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "can't connect to NATS at nats://127.0.0.1:1: connection refused"
        );
        assert!(std::error::Error::source(&refused).is_some(), "{refused:?}");
    }
}
