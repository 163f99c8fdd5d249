//! Disk usage of the partitions.
//!
//! `statfs` may block forever on a FUSE file system or a network file system whose server is down.
//! A separate thread calls it for one partition after the other, FUSE last, and is abandoned when
//! the time is up; the results so far are used. The thread ends when its call returns.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::StatFs;

use super::partition::Partition;
use super::{FactError, percent, to_u64};
use crate::model::Value;

/// Stack size of the thread, small because it may be abandoned.
const STACK: usize = 128 * 1024;

/// Returns the usage of each partition that replied within the limit, and a warning if one did not.
/// A partition whose `statfs` fails has no usage.
pub(super) fn measure(
    partitions: &[Partition],
    limit: Duration,
) -> (Vec<Value>, Option<FactError>) {
    let statfs = |path: &str| {
        let stat = rustix::fs::statfs(Path::new(path)).ok()?;
        Some(usage(path, &stat))
    };
    measure_with(partitions, limit, statfs)
}

fn measure_with(
    partitions: &[Partition],
    limit: Duration,
    statfs: impl Fn(&str) -> Option<Value> + Send + 'static,
) -> (Vec<Value>, Option<FactError>) {
    let mut order: Vec<(usize, String)> = partitions
        .iter()
        .map(|partition| partition.mount_point.clone())
        .enumerate()
        .collect();
    let is_fuse = |index: usize| {
        let partition = partitions.get(index);
        partition.is_some_and(|partition| partition.file_system.starts_with("fuse"))
    };
    order.sort_by_key(|(index, _)| is_fuse(*index));

    let (sender, receiver) = mpsc::channel();
    let paths = order.clone();
    let work = move || {
        for (index, path) in paths {
            if sender.send((index, statfs(&path))).is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("statfs".into());
    if let Err(error) = thread.stack_size(STACK).spawn(work) {
        return (Vec::new(), Some(FactError::Usage(error.into())));
    }

    let deadline = Instant::now() + limit;
    let mut results = Vec::with_capacity(order.len());
    while results.len() < order.len() {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(result) => results.push(result),
            Err(_) => break,
        }
    }
    // The thread works in order: the first partition without a result is the one that blocks.
    let timeout = order
        .get(results.len())
        .map(|(_, path)| FactError::UsageTimeout {
            path: path.into(),
            limit,
        });
    results.sort_by_key(|(index, _)| *index);
    let usage = results.into_iter().filter_map(|(_, usage)| usage).collect();
    (usage, timeout)
}

fn usage(path: &str, stat: &StatFs) -> Value {
    let size = to_u64(stat.f_bsize);
    let bytes = |blocks: u64| blocks.saturating_mul(size);
    let used = bytes(stat.f_blocks.saturating_sub(stat.f_bfree));
    // Blocks reserved for root are neither used nor free.
    let free = bytes(stat.f_bavail);
    // Some file systems have no inode count and report more free than total.
    let inodes_used = stat.f_files.saturating_sub(stat.f_ffree);
    [
        ("path", path.into()),
        // All known magic numbers fit; the kernel's type is wider on some architectures.
        ("fstype", file_system(stat.f_type as u32).into()),
        ("total", bytes(stat.f_blocks).into()),
        ("free", free.into()),
        ("used", used.into()),
        (
            "usedPercent",
            percent(used, used.saturating_add(free)).into(),
        ),
        ("inodesTotal", stat.f_files.into()),
        ("inodesUsed", inodes_used.into()),
        ("inodesFree", stat.f_ffree.into()),
        (
            "inodesUsedPercent",
            percent(inodes_used, stat.f_files).into(),
        ),
    ]
    .into_iter()
    .collect()
}

/// Returns the name of a file system by its magic number, as `stat -f` prints it; empty if unknown.
fn file_system(magic: u32) -> &'static str {
    match magic {
        0xadf5 => "adfs",
        0xadff => "affs",
        0x5346_414f => "afs",
        0x6175_6673 => "aufs",
        0xca45_1a4e => "bcachefs",
        0x4246_5331 => "befs",
        0x1bad_face => "bfs",
        0x9123_683e => "btrfs",
        0x00c3_6400 => "ceph",
        0xff53_4d42 => "cifs",
        0x7375_7245 => "coda",
        0x012f_f7b7 => "coh",
        0x28cd_3d45 => "cramfs",
        0xf15f => "ecryptfs",
        0x0041_4a53 => "efs",
        0x137d => "ext",
        // Shared by ext2, ext3 and ext4; the name is that of `stat -f`.
        0xef53 => "ext2/ext3",
        0xef51 => "ext2",
        0xf2f5_2010 => "f2fs",
        0x4006 => "fat",
        0x1983_0326 => "fhgfs",
        0x6573_5546 => "fuseblk",
        0x0116_1970 => "gfs/gfs2",
        0x4750_4653 => "gpfs",
        0x4244 => "hfs",
        0x482b => "hfsplus",
        0xf995_e849 => "hpfs",
        0x9660 | 0x4004 | 0x4000 => "isofs",
        0x07c0 => "jffs",
        0x72b6 => "jffs2",
        0x3153_464a => "jfs",
        0x6b41_4653 => "k-afs",
        0x0bd0_0bd0 => "lustre",
        0x137f => "minix",
        0x138f => "minix (30 char.)",
        0x2468 => "minix v2",
        0x2478 => "minix v2 (30 char.)",
        0x4d5a => "minix3",
        0x4d44 => "msdos",
        0x564c => "novell",
        0x6969 => "nfs",
        0x3434 => "nilfs",
        0x5346_544e => "ntfs",
        0x7461_636f => "ocfs2",
        0xaad7_aaea => "panfs",
        0x002f => "qnx4",
        0x6819_1122 => "qnx6",
        0x8584_58f6 => "ramfs",
        0x5265_4973 => "reiserfs",
        0x7275 => "romfs",
        0x517b => "smb",
        0x7371_7368 => "squashfs",
        0x012f_f7b6 => "sysv2",
        0x012f_f7b5 => "sysv4",
        0x0102_1994 => "tmpfs",
        0x1501_3346 => "udf",
        0x0001_1954 | 0x5419_0100 => "ufs",
        0x0102_1997 => "v9fs",
        0xbacb_acbc => "vmhgfs",
        0xa501_fcf5 => "vxfs",
        0x565a_4653 => "vzfs",
        0x012f_f7b4 => "xenix",
        0x5846_5342 => "xfs",
        0x012f_d16d => "xia",
        0x2fc1_2fc1 => "zfs",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::partition::tests::partition;
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn results_are_in_the_order_of_the_partitions() {
        let partitions = [partition("/a", "fuseblk"), partition("/b", "ext4")];
        let (usage, error) = measure_with(&partitions, LONG, |path| Some(path.into()));
        assert_eq!(usage, ["/a", "/b"].map(Value::from));
        assert!(error.is_none());
    }

    #[test]
    fn a_failed_statfs_is_no_usage_and_no_warning() {
        let partitions = [partition("/a", "ext4"), partition("/b", "ext4")];
        let (usage, error) = measure_with(&partitions, LONG, |path| {
            (path == "/b").then(|| path.into())
        });
        assert_eq!(usage, [Value::from("/b")]);
        assert!(error.is_none());
    }

    #[test]
    fn a_blocking_file_system_is_named_and_others_are_measured() {
        let (release, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let partitions = [partition("/dead", "fuseblk"), partition("/b", "ext4")];
        let (usage, error) = measure_with(&partitions, Duration::from_secs(1), move |path| {
            if path == "/dead" {
                let _ = held.lock().unwrap().recv();
            }
            Some(path.into())
        });
        assert_eq!(usage, [Value::from("/b")]);
        assert_eq!(
            error.unwrap().to_string(),
            "no usage of /dead: its file system did not reply within 1s"
        );
        drop(release);
    }

    #[test]
    fn no_partitions_have_no_usage() {
        let (usage, error) = measure_with(&[], Duration::ZERO, |_| None);
        assert!(usage.is_empty());
        assert!(error.is_none());
    }

    #[test]
    fn the_root_file_system_is_measured() {
        let (usage, _) = measure(&[partition("/", "any")], LONG);
        let usage = &usage[0];
        assert_eq!(usage.get("path"), Some(&"/".into()));
        let Some(Value::Int(total)) = usage.get("total") else {
            panic!("the size is a number");
        };
        assert!(*total > 0);
    }

    #[test]
    fn file_systems_are_known_by_their_number() {
        assert_eq!(file_system(0xef53), "ext2/ext3");
        assert_eq!(file_system(0x5846_5342), "xfs");
        assert_eq!(file_system(1), "");
    }
}
