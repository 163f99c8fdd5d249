//! Disks of a test's own: small, read-only, or without power. Needs root.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tool;

/// A file system in memory with a limited size, unmounted on drop.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts `size` bytes, as mount spells them, on a new directory.
    pub fn mount(at: &Path, size: &str) -> Self {
        std::fs::create_dir_all(at).unwrap();
        mount(
            &[
                "-t",
                "tmpfs",
                "-o",
                &format!("mode=0755,size={size}"),
                "none",
            ],
            at,
        );
        Self(at.to_owned())
    }

    /// Fills it with a file `filler` until nothing more can be written; the file may exist.
    pub fn fill(&self) {
        let mut options = std::fs::File::options();
        let file = options.create(true).append(true);
        let mut file = file.open(self.0.join("filler")).unwrap();
        let mut block = vec![0; 64 * 1024];
        while !block.is_empty() {
            if file.write_all(&block).is_err() {
                block.truncate(block.len() / 2);
            }
        }
    }

    /// Removes what [`SmallDisk::fill`] wrote.
    pub fn make_room(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }

    pub fn resize(&self, size: &str) {
        self.remount(&format!("mode=0755,size={size}"));
    }

    /// Mounts it again with other options, such as `ro`.
    pub fn remount(&self, options: &str) {
        mount(&["-o", &format!("remount,{options}")], &self.0);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

/// A disk with ext4 in a file, whose power can be cut. Unmounted on drop.
pub struct Disk {
    image: PathBuf,
    at: PathBuf,
}

impl Disk {
    /// Formats a disk in the file `image` and mounts it on a new directory.
    pub fn mount(image: &Path, at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let file = std::fs::File::create(image).unwrap();
        file.set_len(64 << 20).unwrap();
        tool("mkfs.ext4", &["-q".as_ref(), image]);
        mount(&["-o", "loop", image.to_str().unwrap()], at);
        let disk = Self {
            image: image.to_owned(),
            at: at.to_owned(),
        };
        // The empty file system itself must survive.
        tool("sync", &["-f".as_ref(), at]);
        disk
    }

    /// Replaces the disk by what is on it now: all that the kernel has not written yet is lost.
    pub fn cut_power(&mut self) {
        let copy = self.image.with_extension("after");
        std::fs::copy(&self.image, &copy).unwrap();
        unmount(&self.at);
        std::fs::rename(&copy, &self.image).unwrap();
        mount(&["-o", "loop", self.image.to_str().unwrap()], &self.at);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.at);
    }
}

fn mount(args: &[&str], at: &Path) {
    let args: Vec<&Path> = args.iter().map(Path::new).chain([at]).collect();
    tool("mount", &args);
}

fn unmount(at: &Path) {
    // Lazily: a process of a failed test may still use it.
    let _ = Command::new("umount").arg("--lazy").arg(at).status();
}
