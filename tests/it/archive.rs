//! The archive type against a real server: every row of its decision table, every noop text, and
//! malicious archives.

use std::os::unix::fs::{MetadataExt as _, chown, symlink};
use std::process::{Command, Stdio};

use ccm_core::system::Digest;

use crate::support::http::{Response, Server};
use crate::support::{Applied, TestEnv, pack};

/// Returns a manifest entry for one archive with these properties.
fn archive(env: &TestEnv, name: &str, url: &str, properties: &str) -> String {
    let path = env.at(name);
    format!(
        "- archive:\n    - {path}: {{url: '{url}', owner: root, group: root, ensure: present, \
         {properties}}}\n"
    )
}

fn absent(env: &TestEnv, name: &str) -> String {
    archive(env, name, "http://127.0.0.1:1/x.tar", "").replace("ensure: present", "ensure: absent")
}

fn failure(applied: &Applied, env: &TestEnv) -> String {
    applied
        .failure(0)
        .replace(env.root().to_str().unwrap(), "$DIR")
}

/// Returns the names in the directory of a test, without the state directory.
fn left(env: &TestEnv) -> Vec<String> {
    let entries = std::fs::read_dir(env.root()).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != ".state").collect();
    names.sort();
    names
}

fn content() -> Vec<u8> {
    pack::tgz(&[("app/bin", "v1"), ("app/conf", "x")])
}

fn sum(bytes: &[u8]) -> String {
    Digest::of(bytes).to_string()
}

#[test]
fn a_missing_archive_is_downloaded_for_its_owner_alone() {
    let env = TestEnv::new();
    let server = Server::serving(content());
    let entry = archive(&env, "a.tar.gz", &server.url("/a.tgz?version=1"), "");
    assert_eq!(env.converge(&entry), "Would have downloaded");
    assert_eq!(std::fs::read(env.path("a.tar.gz")).unwrap(), content());
    let found = env.path("a.tar.gz").metadata().unwrap();
    assert_eq!(found.mode() & 0o7777, 0o600);
    assert_eq!((found.uid(), found.gid()), (0, 0));
    // Neither noop nor a stable run sends a request.
    assert_eq!(server.requests().len(), 1);
    assert!(!env.exists("app"));
}

#[test]
fn the_state_has_what_upstream_shows() {
    let env = TestEnv::new();
    let server = Server::serving(content());
    let entry = archive(&env, "a.tar.gz", &server.url("/a.tgz"), "");
    let noop = env.apply(&entry, &["--noop"]);
    let event = noop.event(0);
    assert_eq!(event["provider"], "http");
    assert_eq!(event["status"]["ensure"], "absent");
    assert_eq!(
        event["status"]["metadata"]["archive_exists"],
        serde_json::Value::Null
    );
    let real = env.apply(&entry, &[]);
    let metadata = &real.event(0)["status"]["metadata"];
    assert_eq!(real.event(0)["final_ensure"], "present");
    assert_eq!(metadata["checksum"], sum(&content()));
    assert_eq!(metadata["archive_exists"], true);
    assert_eq!(metadata["owner"], "root");
    assert_eq!(metadata["group"], "root");
    assert_eq!(metadata["provider"], "http");
    assert_eq!(metadata["size"], content().len());
}

#[test]
fn an_owner_given_by_number_owns_it() {
    let env = TestEnv::new();
    let server = Server::serving(content());
    let entry = archive(&env, "a.tgz", &server.url("/a.tgz"), "")
        .replace("owner: root, group: root", "owner: '1234', group: '2345'");
    let _ = env.converge(&entry);
    let found = env.path("a.tgz").metadata().unwrap();
    assert_eq!((found.uid(), found.gid()), (1234, 2345));
}

#[test]
fn every_format_is_unpacked() {
    let files = [("app/bin", "v1"), ("app/conf", "x")];
    for (name, bytes) in [
        ("a.tar", pack::tar(&files)),
        ("a.tar.gz", pack::tgz(&files)),
        ("a.tgz", pack::tgz(&files)),
        ("a.ZIP", pack::zip(&files)),
    ] {
        let env = TestEnv::new();
        let server = Server::serving(bytes);
        let properties = format!("extract_parent: {}", env.at("deep/out"));
        let entry = archive(&env, name, &server.url(&format!("/{name}")), &properties);
        assert_eq!(
            env.converge(&entry),
            "Would have downloaded. Would have extracted"
        );
        assert_eq!(env.read("deep/out/app/bin"), "v1");
        assert_eq!(
            env.path("deep/out").metadata().unwrap().mode() & 0o777,
            0o755
        );
    }
}

#[test]
fn after_cleanup_only_what_it_creates_is_looked_at() {
    let env = TestEnv::new();
    let server = Server::serving(content());
    let properties = format!(
        "extract_parent: {}, creates: {}, cleanup: true",
        env.at("out"),
        env.at("out/app/bin")
    );
    let entry = archive(&env, "a.tgz", &server.url("/a.tgz"), &properties);
    assert_eq!(
        env.converge(&entry),
        "Would have downloaded. Would have extracted. Would have cleaned up"
    );
    assert!(!env.exists("a.tgz"));
    assert_eq!(server.requests().len(), 1);
    std::fs::remove_file(env.path("out/app/bin")).unwrap();
    let _ = env.converge(&entry);
    assert_eq!(env.read("out/app/bin"), "v1");
}

#[test]
fn what_was_created_does_not_replace_an_archive_that_should_stay() {
    let env = TestEnv::new();
    let server = Server::serving(content());
    env.write("out/app/bin", "old");
    let properties = format!(
        "extract_parent: {}, creates: {}",
        env.at("out"),
        env.at("out/app/bin")
    );
    let entry = archive(&env, "a.tgz", &server.url("/a.tgz"), &properties);
    assert_eq!(
        env.converge(&entry),
        "Would have downloaded. Would have extracted"
    );
    assert_eq!(env.read("out/app/bin"), "v1");
}

#[test]
fn the_right_archive_is_only_unpacked_again() {
    let env = TestEnv::new();
    env.write("a.tgz", content());
    let properties = format!(
        "extract_parent: {}, creates: {}, checksum: {}",
        env.at("out"),
        env.at("out/app/bin"),
        sum(&content())
    );
    // Nothing listens there: no request may be sent.
    let entry = archive(&env, "a.tgz", "http://127.0.0.1:1/a.tgz", &properties);
    assert_eq!(env.converge(&entry), "Would have extracted");
    assert_eq!(env.read("out/app/bin"), "v1");
}

#[test]
fn another_archive_than_the_checksum_says_is_replaced() {
    let env = TestEnv::new();
    let server = Server::serving(content());
    env.write("a.tgz", "something else");
    let checksum = format!("checksum: {}", sum(&content()).to_uppercase());
    let entry = archive(&env, "a.tgz", &server.url("/a.tgz"), &checksum);
    assert_eq!(env.converge(&entry), "Would have downloaded");
    assert_eq!(std::fs::read(env.path("a.tgz")).unwrap(), content());
}

#[test]
fn a_download_that_is_not_what_the_checksum_says_changes_nothing() {
    let env = TestEnv::new();
    let server = Server::serving(content());
    let wrong = "0".repeat(64);
    let entry = archive(
        &env,
        "a.tgz",
        &server.url("/a.tgz"),
        &format!("checksum: '{wrong}'"),
    );
    let expected = format!(
        "download failed: checksum mismatch, expected \"{wrong}\" got \"{}\"",
        sum(&content())
    );
    assert_eq!(failure(&env.apply(&entry, &[]), &env), expected);
    assert!(!env.exists("a.tgz"));
    env.write("a.tgz", "old");
    assert_eq!(failure(&env.apply(&entry, &[]), &env), expected);
    assert_eq!(env.read("a.tgz"), "old");
    assert_eq!(left(&env), ["a.tgz", "manifest.yaml"]);
}

#[test]
fn an_owner_is_put_right_without_a_download_when_the_checksum_is_known() {
    let env = TestEnv::new();
    env.write("a.tgz", content());
    chown(env.path("a.tgz"), Some(1234), Some(2345)).unwrap();
    let checksum = format!("checksum: {}", sum(&content()));
    let entry = archive(&env, "a.tgz", "http://127.0.0.1:1/a.tgz", &checksum);
    assert_eq!(env.converge(&entry), "Would have updated attributes");
    let found = env.path("a.tgz").metadata().unwrap();
    assert_eq!((found.uid(), found.gid()), (0, 0));
}

#[test]
fn an_archive_of_another_owner_and_no_checksum_is_downloaded_again() {
    let env = TestEnv::new();
    let server = Server::serving(content());
    env.write("a.tgz", "old");
    chown(env.path("a.tgz"), None, Some(2345)).unwrap();
    let entry = archive(&env, "a.tgz", &server.url("/a.tgz"), "");
    assert_eq!(env.converge(&entry), "Would have downloaded");
    assert_eq!(std::fs::read(env.path("a.tgz")).unwrap(), content());
}

#[test]
fn an_unwanted_archive_is_removed_and_what_was_unpacked_stays() {
    let env = TestEnv::new();
    env.write("a.tar", "x");
    env.write("out/app", "x");
    assert_eq!(env.converge(&absent(&env, "a.tar")), "Would have removed");
    assert!(!env.exists("a.tar"));
    assert!(env.exists("out/app"));
    symlink("nowhere", env.path("a.tar")).unwrap();
    assert_eq!(env.converge(&absent(&env, "a.tar")), "Would have removed");
    assert!(!env.exists("a.tar"));
}

#[test]
fn an_archive_that_does_not_create_what_it_should_fails() {
    let env = TestEnv::new();
    let server = Server::serving(content());
    let creates = format!("creates: {}", env.at("out/missing"));
    let extract = format!("{creates}, extract_parent: {}", env.at("out"));
    let checksum = format!("{creates}, checksum: {}", sum(&content()));
    for properties in [extract, checksum.clone(), checksum] {
        let entry = archive(&env, "a.tgz", &server.url("/a.tgz"), &properties);
        assert_eq!(
            failure(&env.apply(&entry, &[]), &env),
            "failed to reach desired state: present: creates path missing: $DIR/out/missing"
        );
    }
}

#[test]
fn unpacking_again_replaces_files() {
    for (name, pack) in [("a.zip", pack::zip as fn(&_) -> _), ("a.tar", pack::tar)] {
        let env = TestEnv::new();
        env.write("out/app/bin", "old");
        let server = Server::serving(pack(&[("app/bin", "new"), ("app/mark", "")]));
        let properties = format!(
            "extract_parent: {}, creates: {}",
            env.at("out"),
            env.at("out/app/mark")
        );
        let entry = archive(&env, name, &server.url(&format!("/{name}")), &properties);
        let _ = env.converge(&entry);
        assert_eq!(env.read("out/app/bin"), "new");
    }
}

#[test]
fn an_archive_that_means_harm_is_refused_and_tried_again_next_time() {
    for (bytes, entry, reason) in [
        (
            pack::tar(&[("fine", "x"), ("../evil", "x")]),
            "../evil",
            "its path leaves the directory",
        ),
        (
            pack::tar(&[("/tmp/evil", "x")]),
            "/tmp/evil",
            "its path is absolute",
        ),
        (
            pack::tar_with_link("link", "../../etc"),
            "link",
            "the link leads out of the directory",
        ),
    ] {
        let env = TestEnv::new();
        let server = Server::serving(bytes);
        let properties = format!("extract_parent: {}", env.at("out"));
        let resource = archive(&env, "a.tar", &server.url("/a.tar"), &properties);
        for tries in 1..=2 {
            assert_eq!(
                failure(&env.apply(&resource, &[]), &env),
                format!("refusing to unpack $DIR/a.tar: entry {entry:?}: {reason}")
            );
            assert_eq!(server.requests().len(), tries);
        }
        assert!(!env.exists("evil") && !env.exists("a.tar"));
        assert_eq!(std::fs::read_dir(env.path("out")).unwrap().count(), 0);
    }
}

#[test]
fn a_server_that_fails_fails_the_resource() {
    let env = TestEnv::new();
    let server = Server::start(|_| Response::new("500 Internal Server Error", "no"));
    let entry = archive(&env, "a.tgz", &server.url("/a.tgz"), "");
    assert_eq!(
        failure(&env.apply(&entry, &[]), &env),
        "download failed: HTTP request failed with status 500: 500 Internal Server Error"
    );
    assert!(!env.exists("a.tgz"));
}

#[test]
fn a_download_that_is_cut_off_leaves_nothing() {
    let env = TestEnv::new();
    let server = Server::start(|_| Response::ok(content()).announcing(1_000_000));
    let entry = archive(&env, "a.tgz", &server.url("/a.tgz"), "");
    let error = failure(&env.apply(&entry, &[]), &env);
    assert!(
        error.starts_with("download failed: could not copy file: "),
        "{error}"
    );
    assert_eq!(left(&env), ["manifest.yaml"]);
}

#[test]
fn what_stands_in_the_way_is_named() {
    let env = TestEnv::new();
    let server = Server::serving(content());
    let url = server.url("/a.tgz");
    std::fs::create_dir(env.path("dir.tgz")).unwrap();
    let entry = archive(&env, "dir.tgz", &url, "");
    assert_eq!(
        failure(&env.apply(&entry, &[]), &env),
        "$DIR/dir.tgz is not a regular file"
    );
    let entry = archive(&env, "missing/a.tgz", &url, "");
    assert_eq!(
        failure(&env.apply(&entry, &[]), &env),
        "download failed: \"$DIR/missing\" is not a directory"
    );
    let entry = archive(&env, "a.tgz", &url, "").replace("owner: root", "owner: nobody-here");
    let error = failure(&env.apply(&entry, &[]), &env);
    assert!(
        error.contains("could not lookup user \"nobody-here\""),
        "{error}"
    );
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn passwords_and_headers_reach_the_server_and_nothing_else() {
    let env = TestEnv::new();
    let server = Server::start(|request| {
        assert_eq!(request.header("X-Token"), Some("hush-header"));
        match request.header("Authorization") {
            Some("Basic YW5uOmh1c2g=") => Response::ok(content()), // ann:hush
            _ => Response::new("401 Unauthorized", ""),
        }
    });
    let headers = "headers: {X-Token: hush-header}";
    let beside = format!("{headers}, username: ann, password: hush");
    for (url, properties) in [
        (server.url("/a.tgz"), beside.as_str()),
        (server.url("ann:hush@/a.tgz"), headers),
    ] {
        let applied = env.apply(&archive(&env, "a.tgz", &url, properties), &[]);
        assert_eq!(applied.outcomes(), ["changed"], "{:#}", applied.document);
        let text = applied.document.to_string();
        assert!(!text.contains("hush"), "{text}");
        std::fs::remove_file(env.path("a.tgz")).unwrap();
    }
    let wrong = server.url("ann:hush-wrong@/a.tgz");
    let applied = env.apply(&archive(&env, "a.tgz", &wrong, headers), &[]);
    assert_eq!(
        failure(&applied, &env),
        "download failed: HTTP request failed with status 401: 401 Unauthorized"
    );
    assert!(!applied.document.to_string().contains("hush"));
}

#[test]
fn only_http_has_a_provider() {
    let env = TestEnv::new();
    for (url, properties, error) in [
        ("ftp://h/a.tgz", "", "no suitable provider found"),
        ("file:///a.tgz", "", "no suitable provider found"),
        (
            "ftp://h/a.tgz",
            "provider: http",
            "provider is not manageable: not applicable to instance",
        ),
        ("http://h/a.tgz", "provider: curl", "provider not found"),
    ] {
        let entry = archive(&env, "a.tgz", url, properties);
        let entry = entry.replace('\n', "\n    ");
        env.write("manifest.yaml", format!("ccm:\n  resources:\n    {entry}"));
        let stderr = env.ccm(&["apply", "manifest.yaml"]).error(1);
        assert!(stderr.contains(error), "{stderr}");
    }
}

#[test]
fn a_proxy_of_the_environment_is_used() {
    let mut env = TestEnv::new();
    let server = Server::serving(content());
    env.set("http_proxy", &server.url("/"));
    let entry = archive(&env, "a.tgz", "http://archives.invalid/a.tgz", "");
    assert_eq!(env.converge(&entry), "Would have downloaded");
    assert_eq!(server.requests()[0].path, "http://archives.invalid/a.tgz");
}

#[test]
fn https_uses_the_trusted_certificates_of_the_machine() {
    let mut env = TestEnv::new();
    let server = Server::start_tls(&env.path("ca.pem"), |_| Response::ok(content()));
    let entry = archive(&env, "a.tgz", &server.url("/a.tgz"), "");
    env.set("SSL_CERT_FILE", &env.at("ca.pem"));
    assert_eq!(env.converge(&entry), "Would have downloaded");
}

#[test]
fn the_command_line_takes_headers_and_a_password_from_the_environment() {
    let mut env = TestEnv::new();
    let server = Server::serving(content());
    env.set("HTTP_PASSWORD", "hush");
    let url = server.url("/a.tgz");
    let args = [
        "ensure",
        "archive",
        "a.tgz",
        &url,
        "-H",
        "X-One:1",
        "--header",
        "X-Two: a=b",
        "--username",
        "ann",
        "--extract",
        "out",
        "--creates",
        "out/app/bin",
        "--json",
    ];
    let event = env.ccm(&args).json();
    assert_eq!(event["changed"], true, "{event:#}");
    assert_eq!(event["name"], "$DIR/a.tgz");
    assert_eq!(env.read("out/app/bin"), "v1");
    let request = &server.requests()[0];
    assert_eq!(request.header("X-One"), Some("1"));
    assert_eq!(request.header("X-Two"), Some("a=b"));
    assert_eq!(request.header("Authorization"), Some("Basic YW5uOmh1c2g="));
    assert_eq!(env.ccm(&args).json()["changed"], false);
    let removed = env.ccm(&["ensure", "archive", "a.tgz", &url, "absent", "--json"]);
    assert_eq!(removed.json()["final_ensure"], "absent");
}

#[test]
fn the_command_line_refuses_what_a_manifest_would() {
    let env = TestEnv::new();
    for (args, error) in [
        (
            vec!["a.zip", "http://h/a.tar"],
            "url and name must have the same archive type",
        ),
        (
            vec!["a.tar", "http://h/a.tar", "--cleanup"],
            "cleanup requires extract_parent to be set",
        ),
        (
            vec!["a.tar", "http://h/a.tar", "-H", "broken"],
            "expected KEY=VALUE",
        ),
    ] {
        let args = [&["ensure", "archive"], args.as_slice()].concat();
        let stderr = env.ccm(&args).error(2);
        assert!(stderr.contains(error), "{stderr}");
    }
}

#[test]
fn the_status_of_an_archive_needs_no_url() {
    let env = TestEnv::new();
    env.write("a.tgz", content());
    let state = env.ccm(&["status", "archive", "a.tgz", "--json"]).json();
    assert_eq!(state["name"], "$DIR/a.tgz");
    assert_eq!(state["checksum"], sum(&content()));
    assert_eq!(state["archive_exists"], true);
    let state = env.ccm(&["status", "archive", "gone.tgz", "--json"]).json();
    assert_eq!(state["archive_exists"], serde_json::Value::Null);
}

/// Runs a shell line on a terminal of its own and returns what it showed.
fn on_a_terminal(env: &TestEnv, line: &str) -> String {
    let output = Command::new("script")
        .args(["-qec", &format!("stty cols 120; {line}"), "/dev/null"])
        .current_dir(env.root())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_download_is_watched_on_a_terminal_and_nowhere_else() {
    let env = TestEnv::new();
    let length = 300 * 1024;
    let server = Server::serving(vec![b'x'; length]);
    let program = env!("CARGO_BIN_EXE_ccm");
    let line = |name: &str| {
        let url = server.url("/a.tgz");
        format!("{program} ensure archive {name} {url}")
    };

    let shown = on_a_terminal(&env, &line("a.tgz"));
    let (before, _) = shown.split_once("/300.00 KiB").expect(&shown);
    assert!(before.contains(&format!("archive#{}", env.at("a.tgz"))));
    // What is left is the line of the event, on a screen without the bar.
    let last = shown.rsplit("\x1b[2K").next().unwrap();
    assert!(last.contains("changed"), "{shown:?}");
    assert!(!last.contains("KiB"), "{shown:?}");

    for (name, ending) in [
        ("b.tgz", " --json"),
        ("c.tgz", " | cat"),
        ("d.tgz", " 2>&1 | cat"),
        ("e.tgz", " 2>/dev/null"),
    ] {
        let shown = on_a_terminal(&env, &(line(name) + ending));
        assert!(!shown.contains("KiB"), "{ending} {shown:?}");
        let found = env.path(name).metadata().unwrap();
        assert_eq!(usize::try_from(found.len()).unwrap(), length);
    }
}
