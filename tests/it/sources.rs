//! Where a manifest may come from, and what is left of it afterwards.

use crate::support::http::{Response, Server};
use crate::support::{TestEnv, pack};

/// A manifest that copies a file from beside it.
fn manifest(env: &TestEnv) -> String {
    let target = env.at("made");
    format!(
        "ccm:\n  resources:\n    - file:\n        - {target}: {{ensure: present, source: data/src, \
         owner: root, group: root, mode: '0644'}}\n"
    )
}

/// Returns a bundle with a manifest in this directory.
fn bundle(env: &TestEnv, directory: &str) -> Vec<u8> {
    pack::tgz(&[
        (&format!("{directory}README"), "read me"),
        (&format!("{directory}manifest.yaml"), &manifest(env)),
        (&format!("{directory}data/src"), "from the bundle"),
        ("later/manifest.yaml", "not: this one"),
    ])
}

/// Checks that the program removed what it unpacked.
fn assert_tidy(env: &TestEnv) {
    let left = std::fs::read_dir(env.root()).unwrap().flatten();
    let left: Vec<String> = left
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name.starts_with("manifest-"))
        .collect();
    assert_eq!(left.len(), 0, "{left:?}");
}

#[test]
fn a_directory_stands_for_its_manifest() {
    let env = TestEnv::new();
    env.write("site/manifest.yaml", manifest(&env));
    env.write("site/data/src", "beside");
    env.ccm(&["apply", "./site/"]).ok();
    assert_eq!(env.read("made"), "beside");
}

#[test]
fn a_bundle_on_disk_is_unpacked_and_gone_afterwards() {
    for (name, directory) in [("b.tar.gz", ""), ("b.tgz", "deep/er/")] {
        let env = TestEnv::new();
        env.write(name, bundle(&env, directory));
        let stdout = env.ccm(&["apply", name]).ok();
        assert!(!stdout.contains("Using manifest"), "{stdout}");
        assert_eq!(env.read("made"), "from the bundle");
        assert_tidy(&env);
    }
}

#[test]
fn a_bundle_on_a_server_is_unpacked_and_gone_afterwards() {
    let env = TestEnv::new();
    let bytes = bundle(&env, "site/");
    let server = Server::start(move |request| match request.header("Authorization") {
        Some("Basic YW5uOmh1c2g=") => Response::ok(bytes.clone()),
        _ => Response::new("401 Unauthorized", ""),
    });
    let url = server.url("ann:hush@/site.tar.gz");
    let stdout = env.ccm(&["apply", &url]).ok();
    let line = stdout.lines().next().unwrap();
    let start =
        " INFO  Using manifest from HTTP URL in temporary directory manifest=$DIR/manifest-";
    assert!(line.starts_with(start), "{line}");
    let end = format!(
        "/site/manifest.yaml url={}",
        url.replace("ann:hush", "REDACTED")
    );
    assert!(line.ends_with(&end), "{line}");
    assert_eq!(env.read("made"), "from the bundle");
    assert_tidy(&env);
}

#[test]
fn a_noop_run_of_a_bundle_changes_nothing() {
    let env = TestEnv::new();
    let server = Server::serving(bundle(&env, ""));
    let stdout = env.ccm(&["apply", &server.url("/b.tgz"), "--noop"]).ok();
    assert!(
        stdout.contains("noop=Would have created the file"),
        "{stdout}"
    );
    assert!(!env.exists("made"));
    assert_tidy(&env);
}

#[test]
fn a_fault_in_a_directory_is_shown_in_its_manifest() {
    let env = TestEnv::new();
    env.write("site/manifest.yaml", "ccm:\n  resorces: []\n");
    let error = env.ccm(&["apply", "site/"]).error(2);
    assert!(error.contains("--> site/manifest.yaml:2:3\n"), "{error}");
}

#[test]
fn documents_are_not_mixed_with_lines() {
    let env = TestEnv::new();
    let server = Server::serving(bundle(&env, ""));
    let url = server.url("/b.tgz");
    let rendered = env.ccm(&["apply", &url, "--render"]).ok();
    assert!(rendered.starts_with("ccm:\n"), "{rendered}");
    let json = env.ccm(&["apply", &url, "--json"]).json();
    assert_eq!(json["summary"]["changed_resources"], 1, "{json:#}");
    assert_tidy(&env);
}

#[test]
fn a_fault_in_a_fetched_manifest_is_shown_at_the_url_without_its_password() {
    let env = TestEnv::new();
    let server = Server::serving(pack::tgz(&[("manifest.yaml", "ccm:\n  resorces: []\n")]));
    let url = server.url("ann:hush@/b.tgz");
    let stderr = env.ccm(&["apply", &url]).error(2);
    let shown = url.replace("ann:hush", "REDACTED");
    assert!(stderr.contains(&format!("{shown}:2:3")), "{stderr}");
    assert!(!stderr.contains("hush"), "{stderr}");
    assert_tidy(&env);
}

#[test]
fn a_server_that_does_not_give_it_is_an_error_without_secrets() {
    let env = TestEnv::new();
    let server = Server::start(|_| Response::new("404 Not Found", ""));
    let stderr = env.ccm(&["apply", &server.url("ann:hush@/b.tgz")]).error(1);
    assert_eq!(
        stderr,
        "ccm: error: HTTP request failed with status 404: 404 Not Found\n"
    );
    let url = server.url("ann:hush@/b.tgz");
    drop(server);
    let stderr = env.ccm(&["apply", &url]).error(1);
    let shown = url.replace("ann:hush", "REDACTED");
    assert_eq!(
        stderr,
        format!(
            "ccm: error: failed to perform HTTP request: Get \"{shown}\": connection refused\n"
        )
    );
    assert_tidy(&env);
}

#[test]
fn a_bundle_that_cannot_be_one_says_why() {
    let env = TestEnv::new();
    for (bytes, error) in [
        (
            pack::tgz(&[("other.yaml", "")]),
            "manifest.yaml not found in archive",
        ),
        (
            pack::tgz(&[("manifest.yaml", ""), ("../evil", "")]),
            "invalid tar file detected: entry \"../evil\": its path leaves the directory",
        ),
        (
            pack::gzip(&pack::tar_with_link("manifest.yaml", "/etc/passwd")),
            "only regular files and directories are supported: entry \"manifest.yaml\": \
             a symbolic link is not supported",
        ),
    ] {
        let server = Server::serving(bytes);
        let stderr = env.ccm(&["apply", &server.url("/b.tgz")]).error(2);
        let start = format!("ccm: error: {error}");
        assert!(stderr.starts_with(&start), "{stderr}");
        assert!(!env.exists("evil"));
        assert_tidy(&env);
    }
}

#[test]
fn a_source_that_is_none_is_refused() {
    let env = TestEnv::new();
    for (source, error) in [
        ("", "source is required"),
        (
            "ftp://h/b.tgz",
            "unsupported manifest source: ftp://h/b.tgz",
        ),
        (
            "ftp://ann:hush@h/b.tgz",
            "unsupported manifest source: ftp://REDACTED@h/b.tgz",
        ),
        (
            "obj:///b.tgz",
            "bucket name is required for object store manifest source",
        ),
        (
            "obj://bucket/",
            "key is required for object store manifest source",
        ),
    ] {
        let stderr = env.ccm(&["apply", source]).error(2);
        assert_eq!(stderr, format!("ccm: error: {error}\n"));
    }
    let stderr = env.ccm(&["apply", "gone.yaml"]).error(2);
    assert!(
        stderr.contains("$DIR/gone.yaml: no such file or directory"),
        "{stderr}"
    );
    let stderr = env.ccm(&["apply", "gone.tgz"]).error(2);
    assert!(
        stderr.contains("$DIR/gone.tgz: no such file or directory"),
        "{stderr}"
    );
    assert_tidy(&env);
}
