//! Differences between two bundles: unified diffs of their files, within limits on time and size.
//!
//! Content that is too large or not text is compared by digest and only mentioned.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::time::Duration;

use flate2::read::GzDecoder;
use serde::Serialize;

use ccm_core::system::unpack::Limits;
use ccm_core::system::{Digest, Digester};

/// Largest file whose lines are compared.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Total size of the files of a bundle whose lines are compared.
const MAX_KEPT_BYTES: u64 = 64 << 20;

/// Maximum size of all diffs together.
const MAX_DIFF_BYTES: usize = 1 << 20;

/// Time limit of one file; the diff is coarser after it.
const FILE_TIMEOUT: Duration = Duration::from_secs(2);

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileChangeKind {
    Added,
    Removed,
    Modified,
}

/// One file that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileChange {
    pub name: String,
    pub change: FileChangeKind,
    /// Unified diff, or a line about content that is not shown.
    pub diff: String,
}

/// The differences between two bundles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BundleDiff {
    /// The files that differ, sorted by name, the manifest first.
    pub files: Vec<FileChange>,
    /// Number of further files that differ, left out because the diff is too long.
    pub omitted: usize,
}

/// One file of a bundle.
#[derive(Debug, PartialEq, Eq)]
struct BundleFile {
    digest: Digest,
    is_executable: bool,
    /// The text, unless it is too large or not text.
    text: Option<String>,
}

/// Compares two packed bundles.
pub(super) fn diff(old: &[u8], new: &[u8]) -> io::Result<BundleDiff> {
    let (old, new) = (read(old)?, read(new)?);
    let mut names: Vec<&String> = old
        .keys()
        .chain(new.keys())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    names.sort_by_key(|name| *name != super::bundle::MANIFEST);
    let mut result = BundleDiff::default();
    let mut size = 0;
    for name in names {
        let (old, new) = (old.get(name), new.get(name));
        if old == new {
            continue;
        }
        if size >= MAX_DIFF_BYTES {
            result.omitted += 1;
            continue;
        }
        let mut diff = file_diff(name, old, new);
        truncate(&mut diff, MAX_DIFF_BYTES - size);
        size += diff.len();
        result.files.push(FileChange {
            name: name.clone(),
            change: match (old, new) {
                (None, _) => FileChangeKind::Added,
                (_, None) => FileChangeKind::Removed,
                _ => FileChangeKind::Modified,
            },
            diff,
        });
    }
    Ok(result)
}

/// Reads the files of a bundle, within the limits of nodes.
fn read(bytes: &[u8]) -> io::Result<BTreeMap<String, BundleFile>> {
    let limits = Limits::BUNDLE;
    let mut archive = tar::Archive::new(GzDecoder::new(bytes).take(limits.bytes));
    let mut files = BTreeMap::new();
    let mut kept = 0;
    for entry in archive.entries()? {
        let mut entry = entry?;
        if files.len() >= limits.entries {
            return Err(io::Error::other("too many entries"));
        }
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = entry.path()?.to_string_lossy().into_owned();
        let is_executable = entry.header().mode()? & 0o111 != 0;
        let is_kept = entry.size() <= MAX_FILE_BYTES && kept + entry.size() <= MAX_KEPT_BYTES;
        let mut digester = Digester::default();
        let mut content = Vec::new();
        let mut buffer = [0; 16 << 10];
        loop {
            let length = entry.read(&mut buffer)?;
            let chunk = buffer.get(..length).unwrap_or_default();
            if chunk.is_empty() {
                break;
            }
            digester.update(chunk);
            if is_kept {
                content.extend_from_slice(chunk);
            }
        }
        if is_kept {
            kept += entry.size();
        }
        let text = is_kept.then(|| String::from_utf8(content).ok()).flatten();
        let file = BundleFile {
            digest: digester.finish(),
            is_executable,
            text: text.filter(|text| !text.contains('\0')),
        };
        files.insert(name, file);
    }
    Ok(files)
}

/// Returns the diff of one file.
fn file_diff(name: &str, old: Option<&BundleFile>, new: Option<&BundleFile>) -> String {
    let header = |file: Option<&BundleFile>, side: &str| match file {
        Some(_) => format!("{side}/{name}"),
        None => "/dev/null".into(),
    };
    let (from, to) = (header(old, "a"), header(new, "b"));
    let mut out = String::new();
    if let (Some(old), Some(new)) = (old, new)
        && old.is_executable != new.is_executable
    {
        let word = match new.is_executable {
            true => "executable",
            false => "not executable",
        };
        out.push_str(&format!("{name}: now {word}\n"));
        if old.digest == new.digest {
            return out;
        }
    }
    let text = |file: Option<&BundleFile>| match file {
        Some(file) => file.text.clone(),
        None => Some(String::new()),
    };
    match (text(old), text(new)) {
        (Some(before), Some(after)) => {
            let diff = similar::TextDiff::configure()
                .timeout(FILE_TIMEOUT)
                .diff_lines(&before, &after);
            let unified = diff.unified_diff().header(&from, &to).to_string();
            match unified.is_empty() {
                // An empty file that was added or removed has no lines.
                true => out.push_str(&format!("--- {from}\n+++ {to}\n")),
                false => out.push_str(&unified),
            }
        }
        _ => out.push_str(&format!(
            "--- {from}\n+++ {to}\n{name} differs (too large, or not text)\n"
        )),
    }
    out
}

/// Cuts a diff after a whole line.
fn truncate(diff: &mut String, limit: usize) {
    if diff.len() <= limit {
        return;
    }
    let head = diff.get(..diff.floor_char_boundary(limit));
    let end = head.and_then(|head| head.rfind('\n'));
    diff.truncate(end.map_or(0, |end| end + 1));
    diff.push_str("(diff truncated)\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(files: &[(&str, u32, &[u8])]) -> Vec<u8> {
        let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut archive = tar::Builder::new(gzip);
        for (name, mode, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(*mode);
            archive.append_data(&mut header, name, *content).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap()
    }

    #[test]
    fn changed_added_and_removed_files_are_shown() {
        let old = bundle(&[
            ("manifest.yaml", 0o644, b"a\nb\n"),
            ("a/gone", 0o644, b"x\n"),
            ("same", 0o644, b"same\n"),
        ]);
        let new = bundle(&[
            ("manifest.yaml", 0o644, b"a\nc\n"),
            ("a/new", 0o644, b"y\n"),
            ("same", 0o644, b"same\n"),
        ]);
        let diff = diff(&old, &new).unwrap();
        let found: Vec<_> = diff.files.iter().map(|it| (&*it.name, it.change)).collect();
        assert_eq!(
            found,
            [
                ("manifest.yaml", FileChangeKind::Modified),
                ("a/gone", FileChangeKind::Removed),
                ("a/new", FileChangeKind::Added),
            ]
        );
        assert_eq!(
            diff.files[0].diff,
            "--- a/manifest.yaml\n+++ b/manifest.yaml\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
        );
        assert!(
            diff.files[2]
                .diff
                .starts_with("--- /dev/null\n+++ b/a/new\n")
        );
    }

    #[test]
    fn binary_content_and_the_executable_bit_are_mentioned() {
        let old = bundle(&[("blob", 0o644, &[0, 1]), ("run", 0o644, b"x\n")]);
        let new = bundle(&[("blob", 0o644, &[0, 2]), ("run", 0o755, b"x\n")]);
        let diff = diff(&old, &new).unwrap();
        assert!(diff.files[0].diff.contains("too large, or not text"));
        assert_eq!(diff.files[1].diff, "run: now executable\n");
    }

    #[test]
    fn a_long_diff_is_cut() {
        let lines = |word: &str| format!("{word}\n").repeat(150_000).into_bytes();
        let (one, two) = (lines("one"), lines("two"));
        let old = bundle(&[("a", 0o644, &one), ("b", 0o644, &one), ("c", 0o644, &one)]);
        let new = bundle(&[("a", 0o644, &two), ("b", 0o644, &two), ("c", 0o644, &two)]);
        let diff = diff(&old, &new).unwrap();
        assert_eq!((diff.files.len(), diff.omitted), (1, 2));
        assert!(diff.files[0].diff.ends_with("(diff truncated)\n"));
        assert!(diff.files[0].diff.len() <= MAX_DIFF_BYTES + 20);
    }
}
