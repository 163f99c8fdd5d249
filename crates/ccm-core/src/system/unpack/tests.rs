//! Unpacking of valid and malicious archives next to a directory that must not change.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};

use ::tar::{Builder, EntryType, Header};
use ::zip::write::SimpleFileOptions;
use ::zip::{CompressionMethod, ZipWriter};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::super::Digest;
use super::*;

/// A directory to unpack into, one outside of it, and an archive.
struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new() -> Self {
        let dir = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(dir.at("in")).unwrap();
        std::fs::create_dir(dir.at("out")).unwrap();
        dir
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap()
    }

    fn mode(&self, name: &str) -> u32 {
        self.at(name).symlink_metadata().unwrap().mode() & 0o7777
    }

    fn unpack_as(
        &self,
        bytes: &[u8],
        kind: ArchiveFormat,
        rules: Rules,
        limits: Limits,
    ) -> Result<Vec<PathBuf>, String> {
        let archive = self.at("archive");
        File::create(&archive).unwrap().write_all(bytes).unwrap();
        unpack(&archive, kind, &self.at("in"), rules, limits)
            .map_err(|err| err.to_string().replace(&archive.display().to_string(), "A"))
    }

    fn unpack(&self, bytes: &[u8], kind: ArchiveFormat) -> Result<Vec<PathBuf>, String> {
        self.unpack_as(bytes, kind, Rules::Archive, Limits::ARCHIVE)
    }

    /// Checks that nothing was written, inside or outside.
    fn assert_untouched(&self) {
        assert_eq!(files::list(&self.at("in")).unwrap().len(), 0);
        assert_eq!(files::list(&self.at("out")).unwrap().len(), 0);
        let names = files::list(self.0.path()).unwrap();
        assert_eq!(names, ["archive", "in", "out"]);
    }
}

type Item<'a> = (EntryType, &'a str, &'a str);

const FILE: EntryType = EntryType::Regular;
const DIR: EntryType = EntryType::Directory;
const SOFT: EntryType = EntryType::Symlink;
const HARD: EntryType = EntryType::Link;

fn header(kind: EntryType, name: &[u8], mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    // Built by hand: the library refuses to write malicious entries.
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(1_000_000_000);
    header.set_uid(4321);
    header.set_gid(4321);
    header.set_size(size as u64);
    header
}

/// Returns a tar of these; the text is a file's content or a link's.
fn tar_of(items: &[Item<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, text) in items {
        let content = if *kind == FILE { text } else { "" };
        let mut header = header(*kind, name.as_bytes(), 0o6754, content.len());
        if matches!(*kind, SOFT | HARD) {
            header.as_old_mut().linkname[..text.len()].copy_from_slice(text.as_bytes());
        }
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zip_of(items: &[Item<'_>]) -> Vec<u8> {
    let mut writer = ZipWriter::new(io::Cursor::new(Vec::new()));
    for (kind, name, text) in items {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .unix_permissions(0o6754);
        match *kind {
            SOFT => writer.add_symlink(*name, *text, options).unwrap(),
            DIR => writer.add_directory(*name, options).unwrap(),
            _ => {
                writer.start_file(*name, options).unwrap();
                writer.write_all(text.as_bytes()).unwrap();
            }
        }
    }
    writer.finish().unwrap().into_inner()
}

fn all_kinds(items: &[Item<'_>]) -> [(Vec<u8>, ArchiveFormat); 3] {
    let tar = tar_of(items);
    let compressed = gzip(&tar);
    [
        (tar, ArchiveFormat::Tar),
        (compressed, ArchiveFormat::TarGz),
        (zip_of(items), ArchiveFormat::Zip),
    ]
}

#[test]
fn an_archive_that_was_replaced_is_not_unpacked() {
    let dir = TestDir::new();
    let bytes = tar_of(&[(FILE, "file", "x")]);
    let archive = dir.at("archive");
    files::write_private(&archive, &bytes, files::Durability::Cached).unwrap();
    let unpack = |checksum: &str| {
        let (kind, writer) = (ArchiveFormat::Tar, files::Writer::default());
        unpack_staged(&archive, checksum, kind, &dir.at("in"), ".new", writer)
    };
    let error = unpack(&Digest::of(b"other").to_string()).unwrap_err();
    assert!(matches!(error, UnpackError::Replaced { .. }), "{error}");
    assert!(!dir.at("in/file").exists());
    let right = Digest::of(&bytes).to_string().to_uppercase();
    unpack(&right).unwrap();
    assert_eq!(dir.read("in/file"), "x");
}

#[test]
fn every_format_yields_files_directories_and_links_in_order() {
    let items = [
        (DIR, "app/", ""),
        (FILE, "app/bin/run", "#!"),
        (SOFT, "app/current", "bin/run"),
        (FILE, "./read me", ""),
    ];
    for (bytes, kind) in all_kinds(&items) {
        let dir = TestDir::new();
        let files = dir.unpack(&bytes, kind).unwrap();
        let expected: [PathBuf; 2] = ["app/bin/run".into(), "read me".into()];
        assert_eq!(files, expected, "{kind}");
        assert_eq!(dir.read("in/app/current"), "#!");
        // Subject to the umask, like the directories of the test.
        assert_eq!(dir.mode("in/app/bin"), 0o755 & dir.mode("out"));
    }
}

#[test]
fn modes_are_kept_without_set_id_bits() {
    let items = [(DIR, "dir/", ""), (FILE, "dir/file", "x")];
    for (bytes, kind) in all_kinds(&items) {
        let dir = TestDir::new();
        dir.unpack(&bytes, kind).unwrap();
        assert_eq!(dir.mode("in/dir"), 0o754, "{kind}");
        assert_eq!(dir.mode("in/dir/file"), 0o754, "{kind}");
    }
}

#[test]
fn times_are_kept_and_owners_ignored() {
    let dir = TestDir::new();
    dir.unpack(&tar_of(&[(FILE, "file", "x")]), ArchiveFormat::Tar)
        .unwrap();
    let found = dir.at("in/file").metadata().unwrap();
    assert_eq!(found.uid(), dir.at("in").metadata().unwrap().uid());
    assert_eq!(found.mtime(), 1_000_000_000);
}

#[test]
fn unpacking_again_replaces_what_is_there() {
    for (bytes, kind) in all_kinds(&[(FILE, "d/file", "new"), (FILE, "d/link", "new")]) {
        let dir = TestDir::new();
        std::fs::create_dir(dir.at("in/d")).unwrap();
        File::create(dir.at("in/d/file")).unwrap();
        File::create(dir.at("out/victim")).unwrap();
        symlink("../../out/victim", dir.at("in/d/link")).unwrap();
        dir.unpack(&bytes, kind).unwrap();
        dir.unpack(&bytes, kind).unwrap();
        assert_eq!(dir.read("in/d/file"), "new");
        assert_eq!(dir.read("in/d/link"), "new");
        assert_eq!(dir.read("out/victim"), "");
    }
}

#[test]
fn a_hard_link_is_created() {
    let dir = TestDir::new();
    let bytes = tar_of(&[(FILE, "d/a", "x"), (HARD, "e/b", "d/a")]);
    dir.unpack(&bytes, ArchiveFormat::Tar).unwrap();
    assert_eq!(dir.at("in/e/b").metadata().unwrap().nlink(), 2);
}

#[test]
fn a_directory_that_forbids_writing_gets_its_files_first() {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, mode) in [(DIR, "d/", 0o555), (FILE, "d/f", 0o444)] {
        let mut header = header(kind, name.as_bytes(), mode, 0);
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
    }
    let dir = TestDir::new();
    dir.unpack(&builder.into_inner().unwrap(), ArchiveFormat::Tar)
        .unwrap();
    assert_eq!(dir.mode("in/d"), 0o555);
    assert_eq!(dir.mode("in/d/f"), 0o444);
}

#[test]
fn a_malicious_entry_is_named_and_nothing_is_written() {
    let good = (FILE, "good", "x");
    for (items, entry, reason) in [
        (
            vec![(FILE, "../out/x", "x")],
            "../out/x",
            "its path leaves the directory",
        ),
        (
            vec![(FILE, "a/../../out/x", "x")],
            "a/../../out/x",
            "its path leaves the directory",
        ),
        (
            vec![(FILE, "/out/x", "x")],
            "/out/x",
            "its path is absolute",
        ),
        (
            vec![(DIR, "../out/x/", "")],
            "../out/x/",
            "its path leaves the directory",
        ),
        (
            vec![(SOFT, "link", "/etc/passwd")],
            "link",
            "the link leads out of the directory",
        ),
        (
            vec![(SOFT, "link", "../out")],
            "link",
            "the link leads out of the directory",
        ),
        (
            vec![(SOFT, "a", "."), (SOFT, "b", "a/..")],
            "b",
            "the link leads out of the directory",
        ),
        (
            vec![(SOFT, "link", "d"), (FILE, "link/x", "x")],
            "link/x",
            "a parent directory is a link",
        ),
        (
            vec![(FILE, "file", ""), (FILE, "file/x", "x")],
            "file/x",
            "a parent directory is a file",
        ),
    ] {
        for (bytes, kind) in all_kinds(&[&[good], items.as_slice()].concat()) {
            let dir = TestDir::new();
            let error = dir.unpack(&bytes, kind).unwrap_err();
            let expected = format!("refusing to unpack A: entry {entry:?}: {reason}");
            assert_eq!(error, expected, "{kind}");
            dir.assert_untouched();
        }
    }
}

#[test]
fn malicious_entries_that_only_tar_has_are_refused() {
    for (items, reason) in [
        (
            vec![(HARD, "h", "../out/x")],
            "the link leads out of the directory",
        ),
        (
            vec![(HARD, "h", "/etc/passwd")],
            "the link leads out of the directory",
        ),
        (
            vec![(HARD, "h", "missing")],
            "the link target is not an earlier file of the archive",
        ),
        (
            vec![(SOFT, "s", "x"), (HARD, "h", "s")],
            "the link target is not an earlier file of the archive",
        ),
        (
            vec![(EntryType::Char, "h", "")],
            "a device is not supported",
        ),
        (
            vec![(EntryType::Block, "h", "")],
            "a device is not supported",
        ),
        (vec![(EntryType::Fifo, "h", "")], "a pipe is not supported"),
        (
            vec![(EntryType::GNUSparse, "h", "")],
            "a sparse file is not supported",
        ),
        (
            vec![(EntryType::new(b'Z'), "h", "")],
            "an entry of an unknown kind is not supported",
        ),
        (
            vec![(FILE, "h/x", "x"), (SOFT, "h", "x")],
            "it replaces a directory",
        ),
    ] {
        let dir = TestDir::new();
        let error = dir.unpack(&tar_of(&items), ArchiveFormat::Tar).unwrap_err();
        assert_eq!(
            error,
            format!("refusing to unpack A: entry \"h\": {reason}")
        );
        dir.assert_untouched();
    }
}

#[test]
fn an_existing_symlink_is_not_followed() {
    let dir = TestDir::new();
    symlink("../out", dir.at("in/link")).unwrap();
    let bytes = tar_of(&[(FILE, "link/x", "x")]);
    let error = dir.unpack(&bytes, ArchiveFormat::Tar).unwrap_err();
    assert!(
        error.ends_with("in/link is a symlink; refusing to write through it"),
        "{error}"
    );
    assert_eq!(files::list(&dir.at("out")).unwrap().len(), 0);
}

#[test]
fn a_truncated_archive_leaves_nothing() {
    for (bytes, kind) in all_kinds(&[(FILE, "a", "x"), (FILE, "b", &"y".repeat(2000))]) {
        for keep in [bytes.len() / 3, bytes.len() / 2] {
            let dir = TestDir::new();
            dir.unpack(&bytes[..keep], kind).unwrap_err();
            dir.assert_untouched();
        }
    }
    // The checksum of a compressed tar is behind its last entry.
    let bytes = gzip(&tar_of(&[(FILE, "a", "x")]));
    let dir = TestDir::new();
    dir.unpack(&bytes[..bytes.len() - 4], ArchiveFormat::TarGz)
        .unwrap_err();
    dir.assert_untouched();
}

#[test]
fn damage_inside_a_zip_is_found_before_anything_is_written() {
    let mut writer = ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for name in ["good", "bad"] {
        writer.start_file(name, options).unwrap();
        writer.write_all(b"some content").unwrap();
    }
    let mut bytes = writer.finish().unwrap().into_inner();
    let at = bytes.windows(12).rposition(|part| part == b"some content");
    bytes[at.unwrap()] ^= 1;
    let dir = TestDir::new();
    let error = dir.unpack(&bytes, ArchiveFormat::Zip).unwrap_err();
    assert!(error.starts_with("could not read archive A: "), "{error}");
    dir.assert_untouched();
}

#[test]
fn files_that_are_not_archives_are_refused() {
    let dir = TestDir::new();
    for (kind, reason) in [
        (
            ArchiveFormat::TarGz,
            "unzip failed: A is not in gzip format",
        ),
        (ArchiveFormat::Tar, "could not read archive A: "),
        (ArchiveFormat::Zip, "could not read archive A: "),
    ] {
        let page = "<html>not found</html>".repeat(100);
        let error = dir.unpack(page.as_bytes(), kind).unwrap_err();
        assert!(error.starts_with(reason), "{error}");
        dir.assert_untouched();
    }
}

#[test]
fn bombs_are_refused_by_size_and_by_ratio() {
    let limits = Limits {
        entries: 3,
        bytes: 1_000_000,
        ratio: 50,
        free_bytes: 10_000,
    };
    let zeros = "\0".repeat(500_000);
    let random: String = (0..40_000_u64)
        .map(|n| char::from(b'!' + (n * n * 31 % 89) as u8))
        .collect();
    for (content, count, reason) in [
        (
            zeros.as_str(),
            1,
            "the archive unpacks to more than 50 times its size",
        ),
        (&random, 26, "the archive holds more than 3 entries"),
    ] {
        let names: Vec<String> = (0..count).map(|n| format!("f{n}")).collect();
        let items: Vec<Item<'_>> = names.iter().map(|name| (FILE, &**name, content)).collect();
        let (tar, zip) = (gzip(&tar_of(&items)), zip_of(&items));
        for (bytes, kind) in [(tar, ArchiveFormat::TarGz), (zip, ArchiveFormat::Zip)] {
            let dir = TestDir::new();
            let error = dir
                .unpack_as(&bytes, kind, Rules::Archive, limits)
                .unwrap_err();
            assert!(error.ends_with(reason), "{error}");
            dir.assert_untouched();
        }
    }
    let dir = TestDir::new();
    let bytes = tar_of(&[(FILE, "f", &"x".repeat(1_000_001))]);
    let error = dir.unpack_as(&bytes, ArchiveFormat::Tar, Rules::Archive, limits);
    assert_eq!(
        error.unwrap_err(),
        "refusing to unpack A: entry \"f\": the archive holds more than 1000000 bytes"
    );
    dir.assert_untouched();
}

#[test]
fn long_names_of_both_sorts_are_read() {
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(120));
    let mut gnu = Builder::new(Vec::new());
    let mut plain = Header::new_gnu();
    plain.set_size(1);
    plain.set_mode(0o644);
    gnu.append_data(&mut plain, &long, &b"x"[..]).unwrap();
    let mut pax = Builder::new(Vec::new());
    pax.append_pax_extensions([("path", long.as_bytes())])
        .unwrap();
    let mut short = header(FILE, b"short", 0o644, 1);
    short.set_cksum();
    pax.append(&short, &b"x"[..]).unwrap();
    for builder in [gnu, pax] {
        let dir = TestDir::new();
        let files = dir.unpack(&builder.into_inner().unwrap(), ArchiveFormat::Tar);
        assert_eq!(files, Ok(vec![PathBuf::from(&long)]));
    }
}

#[test]
fn a_long_name_is_judged_like_a_short_one() {
    let mut pax = Builder::new(Vec::new());
    pax.append_pax_extensions([("path", &b"../out/x"[..])])
        .unwrap();
    let mut short = header(FILE, b"short", 0o644, 1);
    short.set_cksum();
    pax.append(&short, &b"x"[..]).unwrap();
    let dir = TestDir::new();
    let error = dir.unpack(&pax.into_inner().unwrap(), ArchiveFormat::Tar);
    let expected = "refusing to unpack A: entry \"../out/x\": its path leaves the directory";
    assert_eq!(error, Err(expected.into()));
    dir.assert_untouched();
}

#[test]
fn a_name_of_megabytes_or_a_second_size_is_refused() {
    let mut long = header(EntryType::GNULongName, b"note", 0, 2 << 20);
    long.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder
        .append(&long, vec![b'n'; 2 << 20].as_slice())
        .unwrap();
    let mut sized = Builder::new(Vec::new());
    sized
        .append_pax_extensions([("size", &b"512"[..])])
        .unwrap();
    let mut file = header(FILE, b"note", 0o644, 1);
    file.set_cksum();
    sized.append(&file, &b"x"[..]).unwrap();
    for (builder, reason) in [
        (builder, "its name is too long"),
        (sized, "a size outside of the header is not supported"),
    ] {
        let dir = TestDir::new();
        let error = dir.unpack(&builder.into_inner().unwrap(), ArchiveFormat::Tar);
        let expected = format!("refusing to unpack A: entry \"note\": {reason}");
        assert_eq!(error, Err(expected));
        dir.assert_untouched();
    }
}

#[test]
fn the_root_of_an_archive_leaves_the_directory_as_it_is() {
    let dir = TestDir::new();
    let before = dir.mode("in");
    dir.unpack(
        &tar_of(&[(DIR, "./", ""), (FILE, "./f", "")]),
        ArchiveFormat::Tar,
    )
    .unwrap();
    assert_eq!(dir.mode("in"), before);
}

#[test]
fn a_bundle_is_refused_in_upstreams_words() {
    for (item, text) in [
        (
            (SOFT, "x", "f"),
            "only regular files and directories are supported: entry \"x\": a symbolic link is not supported",
        ),
        (
            (HARD, "x", "f"),
            "only regular files and directories are supported: entry \"x\": a hard link is not supported",
        ),
        (
            (EntryType::Fifo, "x", ""),
            "only regular files and directories are supported: entry \"x\": a pipe is not supported",
        ),
        (
            (FILE, "a/../x", ""),
            "invalid tar file detected: entry \"a/../x\": its path leaves the directory",
        ),
        (
            (FILE, "/x", ""),
            "invalid tar file detected: entry \"/x\": its path is absolute",
        ),
    ] {
        let dir = TestDir::new();
        let bytes = gzip(&tar_of(&[(FILE, "f", ""), item]));
        let error = dir.unpack_as(&bytes, ArchiveFormat::TarGz, Rules::Bundle, Limits::BUNDLE);
        assert_eq!(error, Err(text.into()));
        dir.assert_untouched();
    }
}

#[test]
fn a_bundle_can_always_be_read_by_us() {
    let mut builder = Builder::new(Vec::new());
    for (kind, name) in [(DIR, "d/"), (FILE, "d/f")] {
        let mut header = header(kind, name.as_bytes(), 0, 0);
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
    }
    let dir = TestDir::new();
    let bytes = builder.into_inner().unwrap();
    dir.unpack_as(&bytes, ArchiveFormat::Tar, Rules::Bundle, Limits::BUNDLE)
        .unwrap();
    assert_eq!(dir.mode("in/d"), 0o700);
    assert_eq!(dir.mode("in/d/f"), 0o600);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_damaged_archive_never_reaches_outside(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        which in 0..3_usize,
    ) {
        let items = [
            (DIR, "d/", ""),
            (FILE, "d/file", "some text"),
            (SOFT, "d/link", "file"),
        ];
        let [first, second, third] = all_kinds(&items);
        let (mut bytes, kind) = [first, second, third].into_iter().nth(which).unwrap();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let dir = TestDir::new();
        let _ = dir.unpack(&bytes, kind);
        prop_assert_eq!(files::list(&dir.at("out")).unwrap().len(), 0);
        prop_assert_eq!(files::list(dir.0.path()).unwrap().len(), 3);
    }
}
