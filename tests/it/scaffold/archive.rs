//! Scaffolds whose templates are in an archive: on disk, on a server that behaves, and on others.

use super::{ABSENT, PRESENT, converge, listing};
use crate::support::http::{Response, Server};
use crate::support::{TestEnv, pack};

const FILES: [(&str, &str); 4] = [
    ("a.txt", "port [[ data.port ]]\n"),
    ("sub/b.txt", "plain\n"),
    ("sub/c.txt", "[[ render(\"_partials/p\", .) ]]"),
    ("_partials/p", "partial [[ data.port ]]\n"),
];

fn entry(env: &TestEnv, source: &str, properties: &str) -> String {
    let path = env.at("out");
    format!("- scaffold:\n    - {path}: {{source: '{source}', data: {{port: 80}}, {properties}}}\n")
}

fn assert_rendered(env: &TestEnv) {
    let found: Vec<_> = listing(env).into_iter().map(|(path, ..)| path).collect();
    let wanted = ["a.txt", "sub", "sub/b.txt", "sub/c.txt"];
    assert_eq!(found, wanted.map(|path| env.at(&format!("out/{path}"))));
    assert_eq!(env.read("out/a.txt"), "port 80\n");
    assert_eq!(env.read("out/sub/c.txt"), "partial 80\n");
}

/// Returns a world whose temporary files are its own.
fn world() -> TestEnv {
    let mut env = TestEnv::new();
    std::fs::create_dir(env.path("tmp")).unwrap();
    let temporary = env.at("tmp");
    env.set("TMPDIR", &temporary);
    env
}

/// Checks that a run left nothing in the temporary directory.
#[track_caller]
fn assert_tidy(env: &TestEnv) {
    let mut left = std::fs::read_dir(env.path("tmp")).unwrap();
    assert!(left.next().is_none(), "a run left a directory behind");
}

#[test]
fn an_archive_from_a_server_is_rendered_and_stays() {
    for (name, archive) in [
        ("x.tar.gz", pack::tgz(&FILES)),
        ("x.TGZ", pack::tgz(&FILES)),
        ("x.tar", pack::tar(&FILES)),
        ("x.zip", pack::zip(&FILES)),
    ] {
        let env = world();
        let server = Server::serving(archive);
        let source = server.url(&format!("/{name}?version=1#top"));
        let message = converge(&env, &entry(&env, &source, PRESENT));
        assert_eq!(message, "Would have changed 3 scaffold files", "{name}");
        assert_rendered(&env);
        let message = converge(&env, &entry(&env, &source, ABSENT));
        assert_eq!(message, "Would have removed 3 scaffold files", "{name}");
        assert!(!env.exists("out"));
        assert_tidy(&env);
    }
}

#[test]
fn an_archive_on_disk_is_rendered_where_the_manifest_lies() {
    let env = world();
    env.write("x.tgz", pack::tgz(&FILES));
    converge(&env, &entry(&env, "x.tgz", PRESENT));
    assert_rendered(&env);
    let out = env.at("other");
    env.ccm(&["ensure", "scaffold", &out, "x.tgz", "--skip-empty"])
        .ok();
    assert_eq!(env.read("other/sub/b.txt"), "plain\n");
    assert_tidy(&env);
}

#[test]
fn a_run_fetches_an_archive_once() {
    let env = world();
    let server = Server::serving(pack::tgz(&FILES));
    let source = server.url("ann:secret@/x.tgz");
    let other = env.at("other");
    let both = entry(&env, &source, PRESENT)
        + &format!("    - {other}: {{source: '{source}', data: {{port: 81}}, ensure: present}}\n");
    let applied = env.apply(&both, &["--diff"]);
    assert_eq!(applied.outcomes(), ["changed", "changed"]);
    assert_eq!(env.read("other/a.txt"), "port 81\n");
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].header("Authorization").is_some());
    let shown = applied.document.to_string();
    assert!(!shown.contains("secret"), "{shown}");
}

#[test]
fn an_archive_that_an_earlier_resource_replaced_is_read_again() {
    let env = world();
    env.write("one.tar", pack::tar(&[("a.txt", "one")]));
    env.write("two.tar", pack::tar(&[("a.txt", "two, longer")]));
    let (out, other, archive) = (env.at("out"), env.at("other"), env.at("x.tar"));
    let copy = |name: &str| format!("- exec: {{name: /bin/cp {} {archive}}}\n", env.at(name));
    let render = |to: &str| format!("- scaffold: {{name: {to}, source: x.tar, ensure: present}}\n");
    let entries = copy("one.tar") + &render(&out) + &copy("two.tar") + &render(&other);
    // Both have the size of their blocks; only the time of the copy tells them apart.
    assert_eq!(env.apply(&entries, &[]).outcomes(), ["changed"; 4]);
    assert_eq!(env.read("out/a.txt"), "one");
    assert_eq!(env.read("other/a.txt"), "two, longer");
}

#[test]
fn hostile_archives_are_refused_and_nothing_is_written() {
    let bomb = "0".repeat(65 << 20);
    for (archive, reason) in [
        (
            pack::tgz(&[("a.txt", "x"), ("../../out/b.txt", "x")]),
            "cannot unpack source: invalid tar file detected: entry \"../../out/b.txt\": its path leaves the directory",
        ),
        (
            pack::tgz(&[("/etc/x", "x")]),
            "cannot unpack source: invalid tar file detected: entry \"/etc/x\": its path is absolute",
        ),
        (
            pack::gzip(&pack::tar_with_link("link", "a.txt")),
            "cannot unpack source: only regular files and directories are supported: entry \"link\"",
        ),
        (
            pack::tgz(&[("bomb", &bomb)]),
            "the archive unpacks to more than 100 times its size",
        ),
        (b"no archive".to_vec(), "is not in gzip format"),
    ] {
        let env = world();
        let server = Server::serving(archive);
        let applied = env.apply(&entry(&env, &server.url("/x.tgz"), PRESENT), &[]);
        let failure = applied.failure(0);
        assert!(failure.contains(reason), "{failure}");
        assert!(!env.exists("out"));
        assert_tidy(&env);
    }
}

#[test]
fn a_server_that_does_not_give_an_archive_fails_the_scaffold() {
    let env = world();
    let server = Server::start(|_| Response::new("404 Not Found", ""));
    for flags in [&["--noop"][..], &[]] {
        let applied = env.apply(&entry(&env, &server.url("/x.tgz"), PRESENT), flags);
        assert_eq!(
            applied.failure(0),
            "cannot get source: HTTP request failed with status 404: 404 Not Found"
        );
    }
    assert!(!env.exists("out"));
    assert_tidy(&env);
}
