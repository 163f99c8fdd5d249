//! Tests of bundle packing: equal content gives equal bytes, and every bundle unpacks.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use ccm_core::model::resource::ArchiveFormat;
use ccm_core::system::unpack::{Rules, unpack};

const GOOD: &str = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        put(directory.path(), name, content);
    }
    directory
}

#[expect(
    clippy::disallowed_methods,
    reason = "test fixture, not a managed file"
)]
fn put(directory: &Path, name: &str, content: &str) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

#[expect(
    clippy::disallowed_methods,
    reason = "test fixture, not a managed file"
)]
fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn packed(directory: &TempDir) -> Result<Packed, String> {
    pack(directory.path(), &Facts::Unknown).map_err(|err| err.to_string())
}

/// Unpacks as a node does, and returns the directory.
fn unpacked(packed: &Packed) -> TempDir {
    let download = tempfile::tempdir().unwrap();
    let archive = download.path().join("bundle.tgz");
    #[expect(
        clippy::disallowed_methods,
        reason = "test fixture, not a managed file"
    )]
    fs::write(&archive, &packed.bytes).unwrap();
    let into = tempfile::tempdir().unwrap();
    let kind = ArchiveFormat::TarGz;
    let files = unpack(&archive, kind, into.path(), Rules::Bundle, Limits::BUNDLE).unwrap();
    assert_eq!(files, packed.files);
    into
}

#[test]
fn equal_content_has_the_same_digest_independent_of_times_and_owners() {
    let files = [("manifest.yaml", GOOD), ("b/x", "1"), ("a", "2")];
    let one = directory(&files);
    let other = directory(&[files[2], files[1], files[0]]);
    set_mode(&other.path().join("a"), 0o600);
    set_mode(&other.path().join("b"), 0o700);
    put(other.path(), ".git/HEAD", "elsewhere");
    let (one, other) = (packed(&one).unwrap(), packed(&other).unwrap());
    assert_eq!(one.bytes, other.bytes);
    assert_eq!(one.digest, other.digest);
    assert_eq!(one.digest.as_str(), Digest::of(&one.bytes).to_string());
}

#[test]
fn different_content_has_a_different_digest() {
    let plain = directory(&[("manifest.yaml", GOOD), ("a", "1")]);
    let before = packed(&plain).unwrap();
    set_mode(&plain.path().join("a"), 0o755);
    let run = packed(&plain).unwrap();
    assert_ne!(before.digest, run.digest);
    put(plain.path(), "a", "2");
    assert_ne!(packed(&plain).unwrap().digest, run.digest);
}

#[test]
fn the_manifest_at_the_top_is_the_one_a_node_takes() {
    let source = directory(&[("manifest.yaml", GOOD), ("a/manifest.yaml", "nonsense: [")]);
    let packed = packed(&source).unwrap();
    assert_eq!(packed.files[0], Path::new("manifest.yaml"));
    assert_eq!(packed.files.len(), 2);
}

#[test]
fn a_bundle_unpacks_with_content_and_executable_bits() {
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let source = directory(&[("manifest.yaml", GOOD), ("run.sh", "echo"), (&long, "deep")]);
    set_mode(&source.path().join("run.sh"), 0o4755);
    let target = unpacked(&packed(&source).unwrap());
    let read = |name: &str| fs::read_to_string(target.path().join(name)).unwrap();
    let mode = |name: &str| {
        let metadata = fs::metadata(target.path().join(name)).unwrap();
        metadata.permissions().mode() & 0o7777
    };
    assert_eq!(read("manifest.yaml"), GOOD);
    assert_eq!(read(&long), "deep");
    assert_eq!((mode("run.sh"), mode("manifest.yaml")), (0o755, 0o644));
}

#[test]
fn a_manifest_alone_is_a_bundle() {
    let source = directory(&[("site.yaml", GOOD)]);
    let packed = pack(&source.path().join("site.yaml"), &Facts::Unknown).unwrap();
    assert_eq!(packed.files, [Path::new("manifest.yaml")]);
    let target = unpacked(&packed);
    let text = fs::read_to_string(target.path().join("manifest.yaml")).unwrap();
    assert_eq!(text, GOOD);
}

#[test]
fn an_empty_directory_is_kept() {
    let source = directory(&[("manifest.yaml", GOOD)]);
    fs::create_dir(source.path().join("spool")).unwrap();
    let target = unpacked(&packed(&source).unwrap());
    assert!(target.path().join("spool").is_dir());
}

#[test]
fn an_invalid_manifest_is_refused_with_its_problems() {
    for (manifest, problem) in [
        ("ccm:\n  resources: []\n", "manifest must contain resources"),
        (
            "ccm:\n  resources:\n    - pakage: {}\n",
            "did you mean \"package\"?",
        ),
        (
            "ccm:\n  resources:\n    - exec:\n        - /bin/true: {subscribe: [file#/x]}\n",
            "no events found for file#/x",
        ),
    ] {
        let error = packed(&directory(&[("manifest.yaml", manifest)])).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn a_directory_without_a_manifest_is_no_bundle() {
    let error = packed(&directory(&[("a/manifest.yaml", GOOD)])).unwrap_err();
    assert!(error.ends_with("has no manifest.yaml"), "{error}");
    let missing = directory(&[]);
    let path = missing.path().join("gone");
    let error = pack(&path, &Facts::Unknown).unwrap_err().to_string();
    assert!(error.ends_with("gone does not exist"), "{error}");
}

#[test]
fn a_link_to_a_file_inside_is_packed_as_that_file() {
    let source = directory(&[("manifest.yaml", GOOD), ("real", "content")]);
    symlink("real", source.path().join("alias")).unwrap();
    let target = unpacked(&packed(&source).unwrap());
    let text = fs::read_to_string(target.path().join("alias")).unwrap();
    assert_eq!(text, "content");
}

#[test]
fn links_out_of_the_bundle_and_special_files_are_refused() {
    let outside = directory(&[("secret", "x")]);
    for (target, reason) in [
        (
            outside.path().join("secret"),
            "symlink to a path outside the bundle, or dangling",
        ),
        (
            "gone".into(),
            "symlink to a path outside the bundle, or dangling",
        ),
        (".".into(), "symlink to a directory"),
    ] {
        let source = directory(&[("manifest.yaml", GOOD)]);
        symlink(target, source.path().join("link")).unwrap();
        let error = packed(&source).unwrap_err();
        assert!(error.ends_with(&format!("link: {reason}")), "{error}");
    }
    let source = directory(&[("manifest.yaml", GOOD)]);
    let _socket = std::os::unix::net::UnixListener::bind(source.path().join("s")).unwrap();
    let error = packed(&source).unwrap_err();
    assert!(
        error.ends_with("s: neither a file nor a directory"),
        "{error}"
    );
}

#[test]
fn too_deep_nesting_is_refused() {
    let deep = format!("{}x", "d/".repeat(MAX_DEPTH));
    let error = packed(&directory(&[("manifest.yaml", GOOD), (&deep, "")])).unwrap_err();
    assert!(error.ends_with("more than 128 directories deep"), "{error}");
    let deepest = format!("{}x", "d/".repeat(MAX_DEPTH - 1));
    let source = directory(&[("manifest.yaml", GOOD), (&deepest, "")]);
    unpacked(&packed(&source).unwrap());
}

#[test]
fn the_limits_of_nodes_are_checked_when_packing() {
    let source = directory(&[("manifest.yaml", GOOD)]);
    let zeros = fs::File::create(source.path().join("zeros")).unwrap();
    zeros.set_len(1 << 20).unwrap();
    for (limits, reason) in [
        (
            Limits {
                entries: 1,
                ..Limits::BUNDLE
            },
            "zeros: a bundle holds at most 1 files and directories",
        ),
        (
            Limits {
                bytes: 1 << 20,
                ..Limits::BUNDLE
            },
            "zeros: a bundle holds at most 1048576 bytes",
        ),
        (
            Limits {
                free_bytes: 1 << 20,
                ..Limits::BUNDLE
            },
            ": the compression ratio of a bundle is at most 100",
        ),
    ] {
        let error = pack_within(source.path(), &Facts::Unknown, limits).unwrap_err();
        assert!(error.to_string().ends_with(reason), "{error}");
    }
    packed(&source).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_bundle_unpacks(
        names in prop::collection::btree_set("([a-cé ]{1,3}/){0,3}[a-cé ]{1,3}\\.f", 0..8),
        content in ".{0,64}",
    ) {
        let source = directory(&[("manifest.yaml", GOOD)]);
        for name in &names {
            put(source.path(), name, &content);
        }
        let target = unpacked(&packed(&source).unwrap());
        for name in &names {
            let text = fs::read_to_string(target.path().join(name)).unwrap();
            prop_assert_eq!(&text, &content);
        }
    }
}
