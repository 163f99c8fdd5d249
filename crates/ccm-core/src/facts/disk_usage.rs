//! How full the partitions are.
//!
//! Only the file system can tell, and it may never answer: one that a program serves, or one that
//! was mounted over the listed one from a server now dead. So a thread of its own asks one after
//! the other, those a program serves last, and is left behind when time is up. What was answered
//! by then counts. The thread ends with the answer it waits for.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::StatFs;

use super::partition::Partition;
use super::{FactError, percent, wide};
use crate::model::Value;

/// Enough for one question; the thread may be left behind.
const STACK: usize = 128 * 1024;

/// Returns the usage of each partition that answered within the limit, and a reason if one did
/// not. A partition whose answer is an error has no usage.
pub(super) fn measure(
    partitions: &[Partition],
    limit: Duration,
) -> (Vec<Value>, Option<FactError>) {
    let ask = |path: &str| {
        let answer = rustix::fs::statfs(Path::new(path)).ok()?;
        Some(usage(path, &answer))
    };
    ask_all(partitions, limit, ask)
}

fn ask_all(
    partitions: &[Partition],
    limit: Duration,
    ask: impl Fn(&str) -> Option<Value> + Send + 'static,
) -> (Vec<Value>, Option<FactError>) {
    let mut order: Vec<(usize, String)> = partitions
        .iter()
        .map(|partition| partition.mount_point.clone())
        .enumerate()
        .collect();
    let is_served = |place: usize| {
        let partition = partitions.get(place);
        partition.is_some_and(|partition| partition.file_system.starts_with("fuse"))
    };
    order.sort_by_key(|(place, _)| is_served(*place));

    let (tell, hear) = mpsc::channel();
    let questions = order.clone();
    let asking = move || {
        for (place, path) in questions {
            if tell.send((place, ask(&path))).is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("statfs".into());
    if let Err(error) = thread.stack_size(STACK).spawn(asking) {
        return (Vec::new(), Some(FactError::Usage(error.into())));
    }

    let end = Instant::now() + limit;
    let mut answers = Vec::with_capacity(order.len());
    while answers.len() < order.len() {
        match hear.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(answer) => answers.push(answer),
            Err(_) => break,
        }
    }
    // The thread asks in order: the first without an answer is the one that keeps silent.
    let silent = order.get(answers.len()).map(|(_, path)| FactError::Silent {
        path: path.into(),
        limit,
    });
    answers.sort_by_key(|(place, _)| *place);
    let usage = answers.into_iter().filter_map(|(_, usage)| usage).collect();
    (usage, silent)
}

fn usage(path: &str, answer: &StatFs) -> Value {
    let size = wide(answer.f_bsize);
    let bytes = |blocks: u64| blocks.saturating_mul(size);
    let used = bytes(answer.f_blocks.saturating_sub(answer.f_bfree));
    // What is kept for the administrator is neither used nor free to others.
    let free = bytes(answer.f_bavail);
    // Some file systems have no such thing as a number of inodes, and say more are free.
    let inodes_used = answer.f_files.saturating_sub(answer.f_ffree);
    [
        ("path", path.into()),
        // Every known number fits; the kernel's type for it is wider on some machines.
        ("fstype", file_system(answer.f_type as u32).into()),
        ("total", bytes(answer.f_blocks).into()),
        ("free", free.into()),
        ("used", used.into()),
        (
            "usedPercent",
            percent(used, used.saturating_add(free)).into(),
        ),
        ("inodesTotal", answer.f_files.into()),
        ("inodesUsed", inodes_used.into()),
        ("inodesFree", answer.f_ffree.into()),
        (
            "inodesUsedPercent",
            percent(inodes_used, answer.f_files).into(),
        ),
    ]
    .into_iter()
    .collect()
}

/// Returns the name of a file system by the number it answers with, as `stat -f` prints it; empty
/// for others. These are the ones that live on a device, and those that may be mounted over them.
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
        // One number for all three; this is what it has always been called.
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
    fn answers_are_listed_in_the_order_of_the_partitions() {
        let partitions = [partition("/a", "fuseblk"), partition("/b", "ext4")];
        let (usage, error) = ask_all(&partitions, LONG, |path| Some(path.into()));
        assert_eq!(usage, ["/a", "/b"].map(Value::from));
        assert!(error.is_none());
    }

    #[test]
    fn an_error_for_an_answer_is_no_usage_and_no_silence() {
        let partitions = [partition("/a", "ext4"), partition("/b", "ext4")];
        let (usage, error) = ask_all(&partitions, LONG, |path| {
            (path == "/b").then(|| path.into())
        });
        assert_eq!(usage, [Value::from("/b")]);
        assert!(error.is_none());
    }

    #[test]
    fn a_file_system_that_keeps_silent_is_named_and_costs_only_itself() {
        let (release, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let partitions = [partition("/dead", "fuseblk"), partition("/b", "ext4")];
        let (usage, error) = ask_all(&partitions, Duration::from_secs(1), move |path| {
            if path == "/dead" {
                let _ = held.lock().unwrap().recv();
            }
            Some(path.into())
        });
        assert_eq!(usage, [Value::from("/b")]);
        assert_eq!(
            error.unwrap().to_string(),
            "no usage of /dead: its file system did not answer within 1s"
        );
        drop(release);
    }

    #[test]
    fn no_partitions_have_no_usage() {
        let (usage, error) = ask_all(&[], Duration::ZERO, |_| None);
        assert!(usage.is_empty());
        assert!(error.is_none());
    }

    #[test]
    fn the_root_of_this_machine_answers() {
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
