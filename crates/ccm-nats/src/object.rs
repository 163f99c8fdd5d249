//! Buckets of objects: files of any size, in chunks, known by name and digest.
//!
//! An object is believed only when its size and digest are right. Names may hold slashes. What an
//! object holds is not known here.

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

use super::direct_get::{Start, ReadRequest};
use super::kv::{check_name, failed, is_missing, time};
use super::stream_reader::{self, StreamItem};
use super::{Connection, Denial, NatsError, Subject};
use ccm_core::system::Digester;

/// How many links lead to an object at most.
const MAX_LINKS: usize = 4;

/// The longest name of an object.
const MAX_NAME: usize = 512;

/// What a bucket says about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub name: String,
    pub size: u64,
    /// The SHA-256 in hex, if the writer left one.
    pub digest: Option<String>,
    pub modified: Option<DateTime<Utc>>,
}

/// What a watcher hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// What was heard before may be out of date: the present objects follow. One that is not
    /// among them is gone.
    Restart,
    Put(Info),
    Removed {
        name: String,
    },
    /// All present objects are told; what follows is news.
    Current,
    /// The server forbids to watch. It is tried again once in a while.
    Denied(Denial),
}

/// A bucket of objects.
#[derive(Clone)]
pub struct Store {
    store: ObjectStore,
    bucket: String,
    connection: Connection,
}

impl Connection {
    /// Returns a bucket of objects, which must exist.
    pub async fn objects(&self, bucket: &str) -> Result<Store, NatsError> {
        check_name(bucket)?;
        let asks = self.api(&format!("STREAM.INFO.OBJ_{bucket}"));
        let store = self.unless_denied(&asks, self.jetstream().get_object_store(bucket));
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

    /// Watches a bucket of objects that may not exist yet, on servers that may be away.
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

    /// Writes the content of an object of at most `limit` bytes, and returns what it is. If that
    /// fails, what was written is worth nothing.
    pub async fn get_into(
        &self,
        name: &str,
        limit: u64,
        out: &mut (dyn Write + Send),
    ) -> Result<Info, NatsError> {
        let (store, found) = self.resolve(name).await?;
        let info = describe(&found);
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
        let chunks: Subject = format!("$O.{}.C.{}", store.bucket, found.nuid).parse()?;
        if chunks.is_wildcard() {
            return Err(damaged("its id is not valid"));
        }
        let wanted = ReadRequest {
            start: Start::At(1),
            ..ReadRequest::last(format!("OBJ_{}", store.bucket), chunks.as_str())
        };
        let mut digest = Digester::default();
        let mut size: u64 = 0;
        if found.chunks > 0 {
            stream_reader::read(&self.connection, &wanted, |chunk| {
                size += u64::try_from(chunk.body.len()).unwrap_or(u64::MAX);
                if size > info.size {
                    return Err(damaged("it has more bytes than it says"));
                }
                digest.update(&chunk.body);
                let written = out.write_all(&chunk.body);
                written.map_err(|err| failed("write", name, err))?;
                Ok(size < info.size)
            })
            .await?;
        }
        if size != info.size {
            return Err(damaged("it has fewer bytes than it says"));
        }
        if found.digest.is_some() && info.digest != Some(digest.finish().to_string()) {
            return Err(damaged("its digest does not match"));
        }
        Ok(info)
    }

    /// Stores an object in place of any of that name.
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

    /// Returns what there is to know about an object, if there is one.
    pub async fn info(&self, name: &str) -> Result<Option<Info>, NatsError> {
        let found = self.look(name).await?;
        Ok(found.as_ref().map(describe))
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

    /// Removes an object. Removing one that is not there is fine.
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

    /// Returns an object's own description.
    async fn look(&self, name: &str) -> Result<Option<ObjectInfo>, NatsError> {
        self.check_object(name)?;
        match self.unless_denied(name, self.store.info(name)).await? {
            Ok(info) => Ok(Some(info).filter(|info| !info.deleted)),
            Err(err) if err.kind() == InfoErrorKind::NotFound => Ok(None),
            Err(err) => Err(self.failed("get", name, err)),
        }
    }

    /// Follows links to where an object really is.
    async fn resolve(&self, name: &str) -> Result<(Self, ObjectInfo), NatsError> {
        let missing = || NatsError::NoObject {
            bucket: self.bucket.clone(),
            name: name.into(),
        };
        let mut store = self.clone();
        let mut target = name.to_owned();
        for _ in 0..=MAX_LINKS {
            let info = store.look(&target).await?.ok_or_else(missing)?;
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
            reason: "it is a link that leads too far",
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

    /// Waits for an answer about an object, unless the server forbids to read or write it.
    async fn unless_denied<T>(
        &self,
        name: &str,
        doing: impl Future<Output = T>,
    ) -> Result<T, NatsError> {
        let bucket = &self.bucket;
        let about = format!("$O.{bucket}.M.{}", BASE64URL.encode(name.as_bytes()));
        let subjects = [
            self.connection
                .api(&format!("DIRECT.GET.OBJ_{bucket}.{about}")),
            self.connection.api(&format!("STREAM.MSG.GET.OBJ_{bucket}")),
            self.connection.api(&format!("STREAM.PURGE.OBJ_{bucket}")),
            about,
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

/// The changes of a bucket of objects. Watching ends when this is dropped.
#[derive(Debug)]
pub struct Watch(mpsc::Receiver<StreamItem>);

impl Watch {
    /// Returns the next change, or nothing once the connection has ended for good.
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

/// Returns which messages describe the objects of a bucket.
fn meta(bucket: &str) -> ReadRequest {
    ReadRequest::last(format!("OBJ_{bucket}"), format!("$O.{bucket}.M.>"))
}

/// Returns what a description says; what is none says nothing.
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

/// Returns a digest in hex.
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
    fn a_digest_is_read_with_and_without_its_filling() {
        let zeros = "00".repeat(32);
        let text = "A".repeat(43);
        assert_eq!(hex(&format!("SHA-256={text}=")), Some(zeros.clone()));
        assert_eq!(hex(&format!("SHA-256={text}")), Some(zeros));
        assert_eq!(hex("MD5=AAAA"), None);
    }

    #[test]
    fn a_description_is_put_removed_or_ignored() {
        let text = br#"{"name":"a/b","bucket":"B","nuid":"x","size":3,"chunks":1}"#;
        assert!(matches!(change(text), Some(Change::Put(info)) if info.name == "a/b"));
        let text = br#"{"name":"a/b","bucket":"B","deleted":true}"#;
        assert_eq!(change(text), Some(Change::Removed { name: "a/b".into() }));
        assert_eq!(change(b"junk"), None);
    }
}
