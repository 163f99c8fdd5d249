//! Mounts: what is mounted at a place, how, and how full it is.

use std::path::Path;

use rustix::io::Errno;

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, LookError, Setting, World, unanswered, within};
use crate::model::Value;
use crate::system::files;

/// The longest list of mounts that is read.
const MAX_LIST: u64 = 64 * 1024 * 1024;

pub(super) const FAMILY: Family = Family {
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
    first: First::Gate,
    look,
};

fn look<'a>(entry: &'a Entry, world: &'a World<'a>) -> Result<Look<'a>, LookError> {
    let point = entry.target();
    let list = files::read(Path::new("/proc/self/mountinfo"), MAX_LIST)?;
    let mount = Mount::find(&String::from_utf8_lossy(&list), &point);
    Ok(Box::new(move |attribute| {
        let mount = match (attribute, &mount) {
            ("exists", mount) => return Ok(mount.is_some().into()),
            (_, Some(mount)) => mount,
            (_, None) => return Err(LookError::NoMount),
        };
        Ok(match attribute {
            "opts" => options(&mount.options),
            "vfs-opts" => options(&mount.super_options),
            "source" => mount.source.as_str().into(),
            "filesystem" => mount.file_system.as_str().into(),
            "usage" => {
                let limit = world.limit(entry, 1000);
                let place = point.clone();
                // The server of a network mount may be gone.
                let measured = within(limit, move || usage(&place));
                let point = point.clone();
                match measured {
                    Some(Ok(percent)) => percent.into(),
                    Some(Err(cause)) => return Err(LookError::Usage { point, cause }),
                    None => return Err(LookError::UsageTimedOut { point, limit }),
                }
            }
            other => return unanswered(other),
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
    /// Returns what is mounted at a place: the last of several hides the others.
    fn find(list: &str, point: &str) -> Option<Self> {
        let parse = |line: &str| {
            let (mount, file_system) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(4);
            if unescaped(mount.next()?) != point {
                return None;
            }
            let mut file_system = file_system.split(' ').map(unescaped);
            Some(Self {
                options: unescaped(mount.next()?),
                file_system: file_system.next()?,
                source: file_system.next()?,
                super_options: file_system.next().unwrap_or_default(),
            })
        };
        list.lines().filter_map(parse).next_back()
    }
}

/// Returns a field with `\040` and the like as the characters they stand for.
fn unescaped(field: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(field.to_owned(), |text, (code, sign)| {
            text.replace(code, sign)
        })
}

/// Returns options without repetitions. A comma within quotes separates nothing.
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

/// Returns how full a file system is, in percent. One without blocks is empty.
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
    fn the_last_mount_of_a_place_is_the_one_that_is_seen() {
        let mount = Mount::find(LIST, "/my disk").unwrap();
        assert_eq!(mount.file_system, "nfs4");
        assert_eq!(mount.source, "server:/a b");
        assert_eq!(mount.options, "ro,nosuid");
        assert_eq!(mount.super_options, "rw,vers=4.2");
        assert_eq!(Mount::find(LIST, "/my"), None);
    }

    #[test]
    fn options_are_split_outside_quotes_and_said_once() {
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
