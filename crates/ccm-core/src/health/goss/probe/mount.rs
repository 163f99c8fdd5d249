//! Type `mount`: source, options, file system and usage of a mount point.

use std::path::Path;

use rustix::io::Errno;

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType, Setting,
    not_implemented, run_with_timeout,
};
use crate::model::Value;
use crate::system::files;

/// The largest list of mounts that is read.
const MAX_LIST: u64 = 64 * 1024 * 1024;

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "mount",
    name: "Mount",
    target: "mountpoint",
    settings: &[Setting::TIMEOUT],
    attributes: &[
        Attribute::new("exists"),
        Attribute::new("opts"),
        Attribute::new("vfs-opts"),
        Attribute::new("source"),
        Attribute::new("filesystem"),
        Attribute::new("usage"),
    ],
    first: FirstAttribute::Prerequisite,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    context: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let point = entry.target();
    let list = files::read(Path::new("/proc/self/mountinfo"), MAX_LIST)?;
    let mount = Mount::find(&String::from_utf8_lossy(&list), &point);
    Ok(Box::new(move |attribute| {
        let mount = match (attribute, &mount) {
            ("exists", mount) => return Ok(mount.is_some().into()),
            (_, Some(mount)) => mount,
            (_, None) => return Err(InspectError::NoMount),
        };
        Ok(match attribute {
            "opts" => options(&mount.options),
            "vfs-opts" => options(&mount.super_options),
            "source" => mount.source.as_str().into(),
            "filesystem" => mount.file_system.as_str().into(),
            "usage" => {
                let limit = context.limit(entry, 1000);
                let path = point.clone();
                // Blocks if the server of a network mount is unreachable.
                let measured = run_with_timeout(limit, move || usage(&path));
                let point = point.clone();
                match measured {
                    Some(Ok(percent)) => percent.into(),
                    Some(Err(cause)) => return Err(InspectError::Usage { point, cause }),
                    None => return Err(InspectError::UsageTimedOut { point, limit }),
                }
            }
            other => return not_implemented(other),
        })
    }))
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    options: String,
    file_system: String,
    source: String,
    /// The options of the file system itself.
    super_options: String,
}

impl Mount {
    /// Returns the mount at a path; the last of several hides the others.
    fn find(list: &str, point: &str) -> Option<Self> {
        let parse = |line: &str| {
            let (mount, file_system) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(4);
            if unescape(mount.next()?) != point {
                return None;
            }
            let mut file_system = file_system.split(' ').map(unescape);
            Some(Self {
                options: unescape(mount.next()?),
                file_system: file_system.next()?,
                source: file_system.next()?,
                super_options: file_system.next().unwrap_or_default(),
            })
        };
        list.lines().filter_map(parse).next_back()
    }
}

/// Decodes octal escapes such as `\040`.
fn unescape(field: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(field.to_owned(), |text, (code, sign)| {
            text.replace(code, sign)
        })
}

/// Splits options at commas outside quotes and removes duplicates.
fn options(text: &str) -> Value {
    let mut is_quoted = false;
    let parts = text.split(|sign| {
        is_quoted ^= sign == '"';
        sign == ',' && !is_quoted
    });
    let mut found: Vec<&str> = Vec::new();
    for part in parts {
        if !part.is_empty() && !found.contains(&part) {
            found.push(part);
        }
    }
    found.into_iter().map(Value::from).collect()
}

/// Returns the usage of a file system in percent; zero if it has no blocks.
fn usage(point: &str) -> Result<i64, Errno> {
    let stat = rustix::fs::statvfs(point)?;
    let used = u128::from(stat.f_blocks.saturating_sub(stat.f_bfree));
    let percent = (used * 200 + u128::from(stat.f_blocks))
        .checked_div(2 * u128::from(stat.f_blocks))
        .unwrap_or_default();
    Ok(i64::try_from(percent).unwrap_or(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
22 21 0:20 / /my\\040disk rw - autofs systemd-1 rw
23 22 0:21 / /my\\040disk ro,nosuid - nfs4 server:/a\\040b rw,vers=4.2
junk - junk
";

    #[test]
    fn the_last_mount_at_a_path_is_used() {
        let mount = Mount::find(LIST, "/my disk").unwrap();
        assert_eq!(mount.file_system, "nfs4");
        assert_eq!(mount.source, "server:/a b");
        assert_eq!(mount.options, "ro,nosuid");
        assert_eq!(mount.super_options, "rw,vers=4.2");
        assert_eq!(Mount::find(LIST, "/my"), None);
    }

    #[test]
    fn options_are_split_outside_quotes_without_duplicates() {
        assert_eq!(
            options("rw,context=\"a,b\",rw,,noexec").to_string(),
            "[rw context=\"a,b\" noexec]"
        );
    }

    #[test]
    fn usage_is_a_percentage() {
        assert!((0..=100).contains(&usage("/").unwrap()));
        assert_eq!(usage("/proc").unwrap(), 0);
        assert!(usage("/no/such").is_err());
    }
}
