//! Object stores: get, put, list, watch.
//!
//! Size and SHA-256 digest of an object are verified when it is read. Names may contain slashes.

use std::error::Error;
use std::future::Future;
use std::io::Write;

use async_nats::jetstream::object_store::{
    DeleteErrorKind, InfoErrorKind, ObjectInfo, ObjectMetadata, ObjectStore,
};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use data_encoding::{BASE64URL, BASE64URL_NOPAD, HEXLOWER};
use tokio::sync::mpsc;

use super::direct_get::{ReadRequest, Start};
use super::kv::{check_name, failed, is_missing, time};
use super::stream_reader::{self, StreamItem};
use super::{Connection, Denial, NatsError, Subject};
use ccm_core::system::Digester;

/// Maximum number of links to follow.
const MAX_LINKS: usize = 4;

/// Maximum length of an object name.
const MAX_NAME: usize = 512;

/// Metadata of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub name: String,
    pub size: u64,
    /// SHA-256 digest in hex, if the writer set one.
    pub digest: Option<String>,
    pub modified: Option<DateTime<Utc>>,
}

/// A change of a watched object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// All current objects follow. Objects that are not among them were removed.
    Restart,
    Put(Info),
    Removed {
        name: String,
    },
    /// All current objects were sent; changes follow.
    Current,
    /// Watching is forbidden; retried from time to time.
    Denied(Denial),
}

/// An object store.
#[derive(Clone)]
pub struct Store {
    store: ObjectStore,
    bucket: String,
    connection: Connection,
}

impl Connection {
    /// Returns an existing object store.
    pub async fn objects(&self, bucket: &str) -> Result<Store, NatsError> {
        check_name(bucket)?;
        let subject = self.api(&format!("STREAM.INFO.OBJ_{bucket}"));
        let store = self.unless_denied(&subject, self.jetstream().get_object_store(bucket));
        let store = store.await?.map_err(|err| {
            if is_missing(&err) {
                NatsError::NoBucket(bucket.into())
            } else {
                failed("open", bucket, err)
            }
        })?;
        Ok(Store {
            store,
            bucket: bucket.into(),
            connection: self.clone(),
        })
    }

    /// Watches an object store. It may not exist yet and the connection may be down.
    pub fn watch_objects(&self, bucket: &str) -> Result<Watch, NatsError> {
        check_name(bucket)?;
        Ok(Watch(stream_reader::follow(self, meta(bucket))))
    }
}

impl Store {
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns the content of an object of at most `limit` bytes.
    pub async fn get(&self, name: &str, limit: u64) -> Result<Bytes, NatsError> {
        let mut content = Vec::new();
        self.get_into(name, limit, &mut content).await?;
        Ok(content.into())
    }

    /// Writes the content of an object of at most `limit` bytes to `out`, and returns its metadata.
    /// On an error, discard what was written.
    pub(crate) async fn get_into(
        &self,
        name: &str,
        limit: u64,
        out: &mut (dyn Write + Send),
    ) -> Result<Info, NatsError> {
        let (store, object) = self.resolve(name).await?;
        let info = describe(&object);
        let too_large = || NatsError::Limit {
            what: format!("object {name} of bucket {}", self.bucket),
            limit,
        };
        let damaged = |reason| NatsError::Damaged {
            bucket: self.bucket.clone(),
            name: name.into(),
            reason,
        };
        if info.size > limit {
            return Err(too_large());
        }
        let chunks: Subject = format!("$O.{}.C.{}", store.bucket, object.nuid).parse()?;
        if chunks.is_wildcard() {
            return Err(damaged("its id is invalid"));
        }
        let request = ReadRequest {
            start: Start::At(1),
            ..ReadRequest::last(format!("OBJ_{}", store.bucket), chunks.as_str())
        };
        let mut digest = Digester::default();
        let mut size: u64 = 0;
        if object.chunks > 0 {
            stream_reader::read(&self.connection, &request, |chunk| {
                size += u64::try_from(chunk.body.len()).unwrap_or(u64::MAX);
                if size > info.size {
                    return Err(damaged("it is larger than its metadata states"));
                }
                digest.update(&chunk.body);
                let written = out.write_all(&chunk.body);
                written.map_err(|err| failed("write", name, err))?;
                Ok(size < info.size)
            })
            .await?;
        }
        if size != info.size {
            return Err(damaged("it is smaller than its metadata states"));
        }
        if object.digest.is_some() && info.digest != Some(digest.finish().to_string()) {
            return Err(damaged("its digest does not match"));
        }
        Ok(info)
    }

    /// Stores an object; replaces an object of the same name.
    pub async fn put(&self, name: &str, content: &[u8]) -> Result<Info, NatsError> {
        self.check_object(name)?;
        let meta = ObjectMetadata {
            name: name.into(),
            ..ObjectMetadata::default()
        };
        let mut content = content;
        let stored = self.unless_denied(name, self.store.put(meta, &mut content));
        let stored = stored.await?;
        let stored = stored.map_err(|err| self.failed("put", name, err))?;
        Ok(describe(&stored))
    }

    /// Returns the metadata of an object, if it exists.
    pub async fn info(&self, name: &str) -> Result<Option<Info>, NatsError> {
        let info = self.object_info(name).await?;
        Ok(info.as_ref().map(describe))
    }

    /// Returns all objects.
    pub async fn list(&self) -> Result<Vec<Info>, NatsError> {
        let stored = stream_reader::read_all(&self.connection, &meta(&self.bucket)).await?;
        let changes = stored.iter().filter_map(|one| change(&one.body));
        let objects = changes.filter_map(|change| match change {
            Change::Put(info) => Some(info),
            _ => None,
        });
        Ok(objects.collect())
    }

    /// Deletes an object. No error if it does not exist.
    pub async fn delete(&self, name: &str) -> Result<(), NatsError> {
        self.check_object(name)?;
        match self.unless_denied(name, self.store.delete(name)).await? {
            Ok(()) => Ok(()),
            Err(err) if err.kind() == DeleteErrorKind::NotFound => Ok(()),
            Err(err) => Err(self.failed("delete", name, err)),
        }
    }

    /// Watches the bucket.
    pub fn watch(&self) -> Watch {
        Watch(stream_reader::follow(&self.connection, meta(&self.bucket)))
    }

    /// Returns the metadata of an object without following links.
    async fn object_info(&self, name: &str) -> Result<Option<ObjectInfo>, NatsError> {
        self.check_object(name)?;
        match self.unless_denied(name, self.store.info(name)).await? {
            Ok(info) => Ok(Some(info).filter(|info| !info.deleted)),
            Err(err) if err.kind() == InfoErrorKind::NotFound => Ok(None),
            Err(err) => Err(self.failed("get", name, err)),
        }
    }

    /// Follows links to the object, and returns its store and metadata.
    async fn resolve(&self, name: &str) -> Result<(Self, ObjectInfo), NatsError> {
        let missing = || NatsError::NoObject {
            bucket: self.bucket.clone(),
            name: name.into(),
        };
        let mut store = self.clone();
        let mut target = name.to_owned();
        for _ in 0..=MAX_LINKS {
            let info = store.object_info(&target).await?.ok_or_else(missing)?;
            let link = info
                .options
                .as_ref()
                .and_then(|options| options.link.as_ref());
            let Some(link) = link else {
                return Ok((store, info));
            };
            target = link.name.clone().ok_or_else(missing)?;
            if link.bucket != store.bucket {
                store = self.connection.objects(&link.bucket).await?;
            }
        }
        Err(NatsError::Damaged {
            bucket: self.bucket.clone(),
            name: name.into(),
            reason: "too many links",
        })
    }

    fn check_object(&self, name: &str) -> Result<(), NatsError> {
        if name.is_empty() || name.len() > MAX_NAME {
            Err(NatsError::NoObject {
                bucket: self.bucket.clone(),
                name: ccm_value::text::quote(name),
            })
        } else {
            Ok(())
        }
    }

    /// Awaits `doing`; fails as soon as the server forbids to read or write the object.
    async fn unless_denied<T>(
        &self,
        name: &str,
        doing: impl Future<Output = T>,
    ) -> Result<T, NatsError> {
        let bucket = &self.bucket;
        let meta = format!("$O.{bucket}.M.{}", BASE64URL.encode(name.as_bytes()));
        let subjects = [
            self.connection
                .api(&format!("DIRECT.GET.OBJ_{bucket}.{meta}")),
            self.connection.api(&format!("STREAM.MSG.GET.OBJ_{bucket}")),
            self.connection.api(&format!("STREAM.PURGE.OBJ_{bucket}")),
            meta,
        ];
        let chunks = format!("$O.{bucket}.C.");
        let mut denied = self.connection.denials();
        // The client library chooses the subject of the chunks.
        let concerns =
            |it: &str| it.starts_with(&chunks) || subjects.iter().any(|subject| subject == it);
        denied.during(concerns, doing).await
    }

    fn failed(
        &self,
        action: &'static str,
        name: &str,
        err: impl Error + Send + Sync + 'static,
    ) -> NatsError {
        failed(action, &format!("{}/{name}", self.bucket), err)
    }
}

/// A watch of an object store. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch(mpsc::Receiver<StreamItem>);

impl Watch {
    /// Returns the next change, or nothing once the connection is closed.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            return Some(match self.0.recv().await? {
                StreamItem::Restart => Change::Restart,
                StreamItem::Current => Change::Current,
                StreamItem::Denied(denial) => Change::Denied(denial),
                StreamItem::Message(stored) => match change(&stored.body) {
                    Some(change) => change,
                    None => continue,
                },
            });
        }
    }
}

/// Returns a request for the metadata messages of a store.
fn meta(bucket: &str) -> ReadRequest {
    ReadRequest::last(format!("OBJ_{bucket}"), format!("$O.{bucket}.M.>"))
}

/// Returns the change that a metadata message represents; nothing if it is invalid.
fn change(body: &[u8]) -> Option<Change> {
    let info: ObjectInfo = serde_json::from_slice(body).ok()?;
    Some(if info.deleted {
        Change::Removed { name: info.name }
    } else {
        Change::Put(describe(&info))
    })
}

fn describe(info: &ObjectInfo) -> Info {
    Info {
        name: info.name.clone(),
        size: u64::try_from(info.size).unwrap_or(u64::MAX),
        digest: info.digest.as_deref().and_then(hex),
        modified: info.modified.map(|at| time(at.unix_timestamp_nanos())),
    }
}

/// Converts a digest to hex.
fn hex(digest: &str) -> Option<String> {
    let text = digest.strip_prefix("SHA-256=")?.as_bytes();
    let bytes = BASE64URL
        .decode(text)
        .or_else(|_| BASE64URL_NOPAD.decode(text));
    Some(HEXLOWER.encode(&bytes.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_read_with_and_without_padding() {
        let zeros = "00".repeat(32);
        let text = "A".repeat(43);
        assert_eq!(hex(&format!("SHA-256={text}=")), Some(zeros.clone()));
        assert_eq!(hex(&format!("SHA-256={text}")), Some(zeros));
        assert_eq!(hex("MD5=AAAA"), None);
    }

    #[test]
    fn metadata_is_put_removed_or_ignored() {
        let text = br#"{"name":"a/b","bucket":"B","nuid":"x","size":3,"chunks":1}"#;
        assert!(matches!(change(text), Some(Change::Put(info)) if info.name == "a/b"));
        let text = br#"{"name":"a/b","bucket":"B","deleted":true}"#;
        assert_eq!(change(text), Some(Change::Removed { name: "a/b".into() }));
        assert_eq!(change(b"junk"), None);
    }
}
