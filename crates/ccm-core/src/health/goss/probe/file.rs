//! Type `file`: type, owner, mode and content of a file. A symlink is described itself; only its
//! content is that of its target.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use md5::Md5;
use nix::unistd::{Uid, User};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256, Sha512};

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType,
    not_implemented,
};
use crate::model::Value;
use crate::system::Cause;

/// The largest file whose content is tested.
const MAX_CONTENT: u64 = 64 * 1024 * 1024;

/// Size of one read.
const CHUNK: usize = 64 * 1024;

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "file",
    name: "File",
    target: "path",
    settings: &[],
    attributes: &[
        Attribute::new("exists"),
        Attribute::new("mode"),
        Attribute::new("owner"),
        Attribute::new("uid"),
        Attribute::new("group"),
        Attribute::new("gid"),
        Attribute::new("linked-to").shown_as("linkedto"),
        Attribute::new("filetype"),
        Attribute::stream("contains"),
        Attribute::stream("contents"),
        Attribute::new("size"),
        Attribute::new("md5"),
        Attribute::new("sha256"),
        Attribute::new("sha512"),
    ],
    first: FirstAttribute::Prerequisite,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    context: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let path = expand_home(&entry.target())?;
    let found = match path.symlink_metadata() {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed("lstat", &path)(error)),
    };
    Ok(Box::new(move |attribute| match (attribute, &found) {
        ("exists", found) => Ok(found.is_some().into()),
        (_, Some(metadata)) => attribute_value(attribute, &path, metadata, context),
        (_, None) => Err(InspectError::NoFile(path.clone())),
    }))
}

fn attribute_value(
    attribute: &str,
    path: &Path,
    metadata: &Metadata,
    context: &ProbeContext<'_>,
) -> Result<Value, InspectError> {
    let accounts = context.probes.accounts;
    Ok(match attribute {
        "mode" => format!("{:04o}", metadata.mode() & 0o7777).into(),
        "owner" => accounts.user_name(metadata.uid()).as_ref().into(),
        "uid" => i64::from(metadata.uid()).into(),
        "group" => accounts.group_name(metadata.gid()).as_ref().into(),
        "gid" => i64::from(metadata.gid()).into(),
        "size" => metadata.size().into(),
        "filetype" => file_type(metadata).into(),
        "linked-to" => {
            let target = std::fs::read_link(path).map_err(failed("readlink", path))?;
            target.to_string_lossy().as_ref().into()
        }
        "contains" | "contents" => content(path, context)?.into(),
        "md5" => hash::<Md5>(path, context)?.into(),
        "sha256" => hash::<Sha256>(path, context)?.into(),
        "sha512" => hash::<Sha512>(path, context)?.into(),
        other => return not_implemented(other),
    })
}

fn file_type(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_symlink() {
        "symlink"
    } else if kind.is_char_device() {
        "character-device"
    } else if kind.is_block_device() {
        "block-device"
    } else if kind.is_fifo() {
        "pipe"
    } else if kind.is_socket() {
        "socket"
    } else if kind.is_dir() {
        "directory"
    } else {
        "file"
    }
}

/// Replaces a leading `~` or `~name` by the home directory.
fn expand_home(path: &str) -> Result<PathBuf, InspectError> {
    let Some(rest) = path.strip_prefix('~') else {
        return Ok(path.into());
    };
    let (name, inside) = rest.split_once('/').unwrap_or((rest, ""));
    let user = match name {
        "" => User::from_uid(Uid::effective()),
        name => User::from_name(name),
    };
    match user {
        Ok(Some(user)) => Ok(user.dir.join(inside.trim_start_matches('/'))),
        Ok(None) => Err(InspectError::NoHome(path.to_owned())),
        Err(cause) => Err(InspectError::Home {
            path: path.to_owned(),
            cause,
        }),
    }
}

fn content(path: &Path, context: &ProbeContext<'_>) -> Result<String, InspectError> {
    let mut content = Vec::new();
    each_chunk(path, context, MAX_CONTENT, |chunk| content.extend(chunk))?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

fn hash<D: Digest>(path: &Path, context: &ProbeContext<'_>) -> Result<String, InspectError> {
    let mut digest = D::new();
    each_chunk(path, context, u64::MAX, |chunk| digest.update(chunk))?;
    Ok(HEXLOWER.encode(&digest.finalize()))
}

/// Reads a regular file in chunks until the deadline.
fn each_chunk(
    path: &Path,
    context: &ProbeContext<'_>,
    limit: u64,
    mut on_chunk: impl FnMut(&[u8]),
) -> Result<(), InspectError> {
    // Does not block on a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |errno: rustix::io::Errno| failed("open", path)(errno.into());
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(open)?);
    let metadata = file.metadata().map_err(failed("stat", path))?;
    if !metadata.is_file() {
        return Err(InspectError::NotRegular(path.to_owned()));
    }
    let mut buffer = vec![0; CHUNK];
    let mut size = 0_u64;
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed("read", path)(error)),
        };
        let chunk = buffer.get(..count).unwrap_or_default();
        size = size.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
        if size > limit {
            let path = path.to_owned();
            return Err(InspectError::TooLarge { path, limit });
        }
        on_chunk(chunk);
        if context.is_expired() {
            return Err(InspectError::NoTime(path.to_owned()));
        }
    }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> InspectError {
    move |error| InspectError::Os {
        action,
        path: path.to_owned(),
        cause: Cause::from(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tilde_is_expanded() {
        let root = User::from_name("root").unwrap().unwrap().dir;
        assert_eq!(expand_home("~root/.x").unwrap(), root.join(".x"));
        assert_eq!(expand_home("~root").unwrap(), root.join(""));
        assert_eq!(expand_home("/a/~b").unwrap(), Path::new("/a/~b"));
        assert!(expand_home("~no-such-user/x").is_err());
    }
}
