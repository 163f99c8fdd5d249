//! Bundles: what the controller packs is what a node fetches, reads and takes.

use std::fs;
use std::path::Path;

use ccm_core::run::manifest_source;
use ccm_core::system::SystemClock;
use ccm_fleet::bundle;
use ccm_nats::{BlockingClient, Settings};
use ccm_template::Env;

#[test]
fn a_packed_directory_is_a_source_that_a_node_can_fetch() {
    let source = tempfile::tempdir().unwrap();
    let manifest = "ccm:\n  resources:\n    - exec:\n        - /bin/true: {}\n";
    fs::create_dir(source.path().join("a")).unwrap();
    // Sorts before the manifest, and must not be taken for it.
    fs::write(source.path().join("a/manifest.yaml"), "another").unwrap();
    fs::write(source.path().join("manifest.yaml"), manifest).unwrap();
    let packed = bundle::pack(source.path(), &Env::default()).unwrap();

    let room = tempfile::tempdir().unwrap();
    fs::write(room.path().join("app.tar.gz"), &packed.bytes).unwrap();
    let bus = BlockingClient::lazy("test", || Settings::plain("nats://127.0.0.1:1"));
    let fetched =
        manifest_source::fetch("app.tar.gz", room.path(), room.path(), &SystemClock, &bus).unwrap();
    assert_eq!(
        fs::read_to_string(&fetched.manifest_path).unwrap(),
        manifest
    );
    assert!(
        fetched
            .directory
            .join(Path::new("a/manifest.yaml"))
            .is_file()
    );
}
