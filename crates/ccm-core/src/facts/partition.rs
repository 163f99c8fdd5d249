//! Section `partition`: mounted file systems with a device, and their usage.
//!
//! A file system has a device unless `/proc/filesystems` marks it as `nodev`; ZFS is an exception.
//! Network file systems and bind mounts are not listed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::FactError;
use super::disk_usage;
use super::files::{self, FactPaths};
use crate::model::Value;

/// Returns the section, and a warning if some usage is missing. Waits no longer than `limit` for
/// file systems that do not reply.
pub(super) fn gather(paths: &FactPaths, limit: Duration) -> (Value, Option<FactError>) {
    let partitions = partitions(paths).unwrap_or_default();
    let (usage, error) = disk_usage::measure(&partitions, limit);
    let facts = [
        (
            "partitions",
            partitions.into_iter().map(Value::from).collect(),
        ),
        ("usage", Value::from(usage)),
    ];
    (facts.into_iter().collect(), error)
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Partition {
    device: String,
    pub(super) mount_point: String,
    pub(super) file_system: String,
    options: Vec<String>,
}

impl From<Partition> for Value {
    fn from(partition: Partition) -> Self {
        [
            ("device", partition.device.into()),
            ("mountpoint", partition.mount_point.into()),
            ("fstype", partition.file_system.into()),
            (
                "opts",
                partition.options.into_iter().map(Value::from).collect(),
            ),
        ]
        .into_iter()
        .collect()
    }
}

/// Returns the partitions in the mount namespace of process 1, or of this process.
fn partitions(paths: &FactPaths) -> Option<Vec<Partition>> {
    let read = |name: &str| files::text(&paths.proc.join(name));
    let known = read("filesystems")?;
    let has_device = |file_system: &str| {
        known.lines().any(|line| match line.strip_prefix("nodev") {
            Some(nodev) => nodev.trim() == "zfs" && file_system == "zfs",
            None => line.trim() == file_system,
        })
    };
    ["1", "self"].into_iter().find_map(|process| {
        let from_info = read(&format!("{process}/mountinfo"))
            .map(|text| parse_mountinfo(&text, &has_device, paths));
        from_info.or_else(|| {
            let text = read(&format!("{process}/mounts"))?;
            Some(parse_mounts(&text, &has_device))
        })
    })
}

/// One line of mountinfo.
struct Mount<'l> {
    device_id: &'l str,
    /// The mounted directory of the file system.
    root: &'l str,
    point: &'l str,
    options: &'l str,
    file_system: &'l str,
    source: &'l str,
    /// The options of the file system itself.
    super_options: &'l str,
}

impl<'l> Mount<'l> {
    fn parse(line: &'l str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split_whitespace().skip(2);
        let mut file_system = file_system.split_whitespace();
        Some(Self {
            device_id: mount.next()?,
            root: mount.next()?,
            point: mount.next()?,
            options: mount.next().unwrap_or_default(),
            file_system: file_system.next()?,
            source: file_system.next()?,
            super_options: file_system.next().unwrap_or_default(),
        })
    }

    /// Whether it is a bind mount of a directory. A btrfs subvolume looks the same, but has the
    /// option `subvol`.
    fn is_bind(&self) -> bool {
        let volume = self
            .super_options
            .split(',')
            .find_map(|option| option.strip_prefix("subvol="));
        self.source.starts_with('/') && self.root != "/" && volume != Some(self.root)
    }

    /// Returns the device; for a file system without a device path, its root.
    fn device(&self) -> &'l str {
        if self.source.starts_with('/') || self.root == "/" {
            self.source
        } else {
            self.root
        }
    }

    /// Returns the mount options, with `ro` if the file system is read-only.
    fn options(&self) -> Vec<String> {
        let is_read_only = [self.options, self.super_options]
            .iter()
            .any(|options| options.split(',').any(|option| option == "ro"));
        self.options
            .split(',')
            .filter(|option| !option.is_empty())
            .map(|option| match option {
                "rw" if is_read_only => "ro".into(),
                option => option.into(),
            })
            .collect()
    }
}

fn parse_mountinfo(
    text: &str,
    has_device: &dyn Fn(&str) -> bool,
    paths: &FactPaths,
) -> Vec<Partition> {
    // A device that is mounted twice keeps its first name.
    let mut devices: HashMap<&str, &str> = HashMap::new();
    let mut partitions = Vec::new();
    for mount in text.lines().filter_map(Mount::parse) {
        if !has_device(mount.file_system) {
            continue;
        }
        let device = *devices.entry(mount.device_id).or_insert(mount.device());
        if mount.is_bind() {
            continue;
        }
        partitions.push(Partition {
            device: resolve(&unescape(device), mount.device_id, paths),
            mount_point: unescape(mount.point),
            file_system: mount.file_system.into(),
            options: mount.options(),
        });
    }
    partitions
}

/// Parses `/proc/PID/mounts`, which has no device numbers and does not mark bind mounts.
fn parse_mounts(text: &str, has_device: &dyn Fn(&str) -> bool) -> Vec<Partition> {
    let partition = |line: &str| {
        let mut fields = line.split_whitespace();
        let partition = Partition {
            device: unescape(fields.next()?),
            mount_point: unescape(fields.next()?),
            file_system: fields.next()?.into(),
            options: fields.next()?.split(',').map(str::to_owned).collect(),
        };
        (partition.device != "none" && has_device(&partition.file_system)).then_some(partition)
    };
    text.lines().filter_map(partition).collect()
}

/// Returns the canonical name of a device.
fn resolve(device: &str, id: &str, paths: &FactPaths) -> String {
    if let Some(name) = device.strip_prefix("/dev/mapper/") {
        let link = paths.dev.join("mapper").join(name);
        if let Ok(real) = std::fs::canonicalize(link) {
            return real.to_string_lossy().into_owned();
        }
    }
    if device == "/dev/root" {
        let link: PathBuf = paths.sys.join("dev/block").join(id);
        let real = std::fs::read_link(link).ok();
        if let Some(name) = real.as_deref().and_then(Path::file_name) {
            return format!("/dev/{}", name.to_string_lossy());
        }
    }
    device.into()
}

/// Decodes octal escapes such as `\040`.
pub(super) fn unescape(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..3);
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (byte, part.get(3..)) {
            (Some(byte), Some(rest)) => {
                bytes.push(byte);
                bytes.extend(rest.as_bytes());
            }
            _ => {
                bytes.push(b'\\');
                bytes.extend(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a partition for tests.
    pub(crate) fn partition(mount_point: &str, file_system: &str) -> Partition {
        Partition {
            device: "/dev/x".into(),
            mount_point: mount_point.into(),
            file_system: file_system.into(),
            options: Vec::new(),
        }
    }

    fn parse(text: &str) -> Vec<Partition> {
        let paths = FactPaths::from_env(&[("HOST_SYS".into(), "/nowhere".into())].into());
        parse_mountinfo(text, &|file_system| file_system != "tmpfs", &paths)
    }

    #[test]
    fn a_mount_is_read_with_its_optional_fields() {
        let found =
            parse("36 35 98:0 / /mnt rw,noatime master:1 shared:2 - ext3 /dev/x rw,quota\n");
        assert_eq!(
            found,
            [Partition {
                device: "/dev/x".into(),
                mount_point: "/mnt".into(),
                file_system: "ext3".into(),
                options: vec!["rw".into(), "noatime".into()],
            }]
        );
    }

    #[test]
    fn bind_mounts_are_left_out_and_subvolumes_are_not() {
        let found = parse(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
             2 1 8:1 /srv/a /a rw - ext4 /dev/sda1 rw\n\
             3 1 0:33 /@home /home rw - btrfs /dev/sdb rw,subvol=/@home\n\
             4 1 0:33 /@home/u /u rw - btrfs /dev/sdb rw,subvol=/@home\n",
        );
        let points: Vec<_> = found.iter().map(|found| &found.mount_point).collect();
        assert_eq!(points, ["/", "/home"]);
    }

    #[test]
    fn a_mount_of_a_read_only_file_system_is_read_only() {
        let found = parse("1 0 8:1 / / rw,relatime - ext4 /dev/sda1 ro\n");
        assert_eq!(found[0].options, ["ro", "relatime"]);
    }

    #[test]
    fn invalid_lines_are_skipped() {
        let found = parse("\nx\n1 2 - ext4\n - - -\n1 0 8:1 / / rw - ext4 /dev/sda1\n");
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_device_keeps_its_first_name() {
        let found = parse(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:1 / /b rw - ext4 /dev/disk/by-id/x rw\n",
        );
        assert_eq!(found[1].device, "/dev/sda1");
    }

    #[test]
    fn mounts_are_parsed() {
        let found = parse_mounts(
            "/dev/sda1 / ext4 rw,noatime 0 0\nnone /x ext4 rw 0 0\nbad\n",
            &|_| true,
        );
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].options, ["rw", "noatime"]);
    }

    #[test]
    fn escapes_become_characters_and_other_backslashes_stay() {
        for (field, text) in [
            (r"/a\040b", "/a b"),
            (r"/a\134b\011", "/a\\b\t"),
            (r"/\303\251", "/é"),
            (r"/a\0", r"/a\0"),
            (r"/a\999", r"/a\999"),
            (r"/a\é40", r"/a\é40"),
            (r"\", r"\"),
        ] {
            assert_eq!(unescape(field), text, "{field}");
        }
    }
}
