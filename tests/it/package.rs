//! Packages without a package manager: what is refused, and the small helpers.

use crate::support::TestEnv;

#[test]
fn versions_are_compared_by_the_given_rules() {
    let env = TestEnv::new();
    for (rules, a, b, order) in [
        ("debian", "1:1.0", "2.0", "1\n"),
        ("debian", "1.0~rc1", "1.0", "-1\n"),
        ("debian", "1.0", "1.0-0", "0\n"),
        ("rpm", "1.0~rc1", "1.0", "-1\n"),
        ("rpm", "1.0^git1", "1.0", "1\n"),
        ("generic", "1.0~rc1", "1.0", "1\n"),
        ("generic", "01", "1", "-1\n"),
    ] {
        let printed = env.ccm(&["util", "vercmp", rules, a, b]).ok();
        assert_eq!(printed, order, "{rules} {a} {b}");
    }
    let error = env.ccm(&["util", "vercmp", "debian", "1 0", "1"]).error(2);
    assert!(error.contains("invalid version \"1 0\""), "{error}");
}

#[test]
fn hostile_names_and_versions_never_reach_a_package_manager() {
    let env = TestEnv::new();
    for (name, ensure, error) in [
        (
            "a;b",
            "present",
            "package name contains dangerous characters: \"a;b\"",
        ),
        (
            "a b",
            "present",
            "package name contains invalid characters: \"a b\"",
        ),
        (
            "../a",
            "present",
            "package name contains invalid characters: \"../a\"",
        ),
        (
            "~n.",
            "present",
            "package name must start with a letter or digit: \"~n.\"",
        ),
        (
            "a-",
            "present",
            "package name must not end with a hyphen: \"a-\"",
        ),
        (
            "a",
            "1$(id)",
            "package version/ensure contains dangerous characters: \"1$(id)\"",
        ),
        (
            "a",
            "1 --yes",
            "package version/ensure contains invalid characters: \"1 --yes\"",
        ),
    ] {
        let stderr = env.ccm(&["ensure", "package", name, ensure]).error(2);
        assert!(stderr.contains(error), "{stderr}");
    }
    let stderr = env.ccm(&["ensure", "pkg", "--", "-rf"]).error(2);
    assert!(stderr.contains("must not start with a hyphen"), "{stderr}");
    let stderr = env.ccm(&["status", "package", "a;b"]).error(1);
    assert!(stderr.contains("dangerous characters"), "{stderr}");
}

#[test]
fn an_unknown_provider_is_bad_usage() {
    let env = TestEnv::new();
    let stderr = env
        .ccm(&["ensure", "package", "a", "--provider", "brew"])
        .error(2);
    assert!(
        stderr.contains("invalid resource: provider not found"),
        "{stderr}"
    );
}
