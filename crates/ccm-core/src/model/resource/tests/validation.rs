//! Invalid properties of each type, and the order of their errors.

use super::*;

#[test]
fn errors_of_common_properties_come_first_and_in_order() {
    for (text, error) in [
        ("ensure: present", "name is required"),
        ("name: x", "ensure is required"),
        (
            "{name: x, ensure: present, require: [foo]}",
            "invalid require properties",
        ),
    ] {
        assert_eq!(validation_error(TypeName::Package, text), error);
    }
    for require in ["'#x'", "'type#'", "'file#/a#b'"] {
        let text = format!("{{name: x, ensure: present, require: [{require}]}}");
        read(TypeName::Package, &text)[0]
            .clone()
            .complete()
            .unwrap();
    }
}

#[test]
fn package_names_and_versions_are_validated() {
    for name in [
        "python3.11",
        "g++",
        "gcc-c++",
        "lib_name",
        "package:1.0",
        "package~test",
    ] {
        let package = Properties::Package(Package::default());
        Resource::new(name, "present", package).complete().unwrap();
    }
    let package_error = |name: &str, ensure: &str| {
        let package = Properties::Package(Package::default());
        Resource::new(name, ensure, package)
            .complete()
            .unwrap_err()
            .to_string()
    };
    for name in [
        "a; b", "a | b", "a & b", "a$B", "a`b`", "a'b", "a(b)", "a[b]", "a*", "a?", "a > b",
        "a\\b", "a\nb", "a\tb",
    ] {
        assert!(
            package_error(name, "present")
                .starts_with("package name contains dangerous characters: \""),
            "{name}"
        );
    }
    for name in ["a b", " a", "a ", "a@b"] {
        assert_eq!(
            package_error(name, "present"),
            format!(
                "package name contains invalid characters: \"{name}\" (allowed: alphanumeric, ._+:~-)"
            )
        );
    }
    for ensure in ["1.2.3; rm", "1.2.3$(x)"] {
        assert_eq!(
            package_error("a", ensure),
            format!("package version/ensure contains dangerous characters: \"{ensure}\"")
        );
    }
    assert!(package_error("-rf", "present").contains("must not start with a hyphen"));
    assert!(package_error("a", "-1").contains("must not start with a hyphen"));
}

#[test]
fn names_with_a_meaning_to_package_managers_are_rejected() {
    let package_error = |name: &str, ensure: &str| {
        let package = Properties::Package(Package::default());
        let result = Resource::new(name, ensure, package).complete();
        result.unwrap_err().to_string()
    };
    for name in ["~n.", "~i", ".a", ":amd64", "+a"] {
        let wanted = format!("package name must start with a letter or digit: \"{name}\"");
        assert_eq!(package_error(name, "present"), wanted);
    }
    assert!(package_error("zsh-", "present").contains("must not end with a hyphen"));
    for name in ["/etc/passwd", "a/b", "../a.deb", "a.deb/b", "/a b.deb"] {
        assert!(
            package_error(name, "present").contains("invalid characters"),
            "{name}"
        );
    }
    assert!(package_error("/a/../b.deb", "present").contains("not a canonical path"));
    for ensure in ["1.0 -o x", "1/2", "a=b", "1,2", "1@2", "ä"] {
        assert!(
            package_error("a", ensure).contains("contains invalid characters"),
            "{ensure}"
        );
    }
}

#[test]
fn package_files_are_named_by_their_path() {
    for (name, provider) in [
        ("/srv/zip_3.0-4_amd64.deb", ""),
        ("/srv/zip-3.0-4.x86_64.rpm", "dnf"),
        ("/srv/zip.msi", "cfengine/msiexec"),
    ] {
        let package = Properties::Package(Package::default());
        let mut resource = Resource::new(name, "present", package);
        resource.common.provider = provider.into();
        resource.complete().unwrap();
    }
}

#[test]
fn package_timeouts_are_durations() {
    let package = Package {
        lock_timeout: "soon".into(),
        ..Package::default()
    };
    let mut resource = Resource::new("a", "present", Properties::Package(package));
    let fault = resource.complete().unwrap_err();
    assert_eq!(
        (fault.property, &*fault.message),
        ("lock_timeout", "invalid duration")
    );
}

#[test]
fn service_validation_errors() {
    for (text, error) in [
        (
            "{name: a, ensure: present}",
            "invalid ensure value: invalid ensure property \"present\" expects \"running\" or \"stopped\"",
        ),
        (
            "{name: a, subscribe: ['file:/x']}",
            "invalid subscribe format",
        ),
        ("{name: a, subscribe: ['']}", "invalid subscribe format"),
        (
            "{name: a@b}",
            "service name contains invalid characters: \"a@b\" (allowed: alphanumeric, ._+:~-)",
        ),
    ] {
        assert_eq!(validation_error(TypeName::Service, text), error);
    }
    let mut service = read(TypeName::Service, "name: a").remove(0);
    service.complete().unwrap();
    assert_eq!(service.common.ensure, "running");
}

#[test]
fn file_validation_errors_in_order() {
    for (text, error) in [
        (
            "{name: /a, ensure: latest}",
            "invalid ensure value: must be one of \"present\", \"absent\" or \"directory\"",
        ),
        (
            "{name: /a/../b, ensure: present}",
            "file path must be canonical",
        ),
        ("{name: a/b, ensure: present}", "file path must be absolute"),
        (
            "{name: /a, ensure: present, force: true}",
            "'force: true' is only valid with 'ensure: absent', got 'ensure: present'",
        ),
        (
            "{name: /, ensure: absent, force: true}",
            "'force: true' cannot be used with the filesystem root",
        ),
        (
            "{name: /a, ensure: present, content: '', source: /b}",
            "'content' and 'source' are mutually exclusive",
        ),
        ("{name: /a, ensure: present}", "owner cannot be empty"),
        (
            "{name: /a, ensure: present, owner: r}",
            "group cannot be empty",
        ),
        (
            "{name: /a, ensure: present, owner: r, group: r}",
            "mode cannot be empty",
        ),
        (
            "{name: /a, ensure: absent, mode: invalid}",
            "mode \"invalid\" is not a valid octal number",
        ),
        (
            "{name: /a, ensure: present, owner: r, group: r, mode: '1777'}",
            "mode \"1777\" exceeds maximum value 0777",
        ),
    ] {
        assert_eq!(validation_error(TypeName::File, text), error);
    }
    read(TypeName::File, "{name: '/with space', ensure: absent}")[0]
        .clone()
        .complete()
        .unwrap();
}

#[test]
fn every_octal_spelling_of_a_mode_is_the_same_mode() {
    for mode in ["0644", "644", "0o644", "0O644"] {
        assert_eq!(parse_mode(mode).unwrap(), 0o644);
    }
}

#[test]
fn exec_validation_errors_in_order() {
    for (text, error) in [
        ("{name: x, timeout: invalid}", "invalid duration"),
        (
            "{name: \"'unterminated\"}",
            "Unterminated single-quoted string",
        ),
        ("{name: ' '}", "invalid command"),
        (
            "{name: x, subscribe: [foo]}",
            "invalid subscribe format foo",
        ),
        (
            "{name: x, path: '/bin:'}",
            "invalid path: empty directory in path",
        ),
        (
            "{name: x, path: 'a:b'}",
            "invalid path: \"a\" is not an absolute path",
        ),
        (
            "{name: x, environment: [FOO]}",
            "invalid environment variable \"FOO\": missing '='",
        ),
        (
            "{name: x, environment: ['=v']}",
            "invalid environment variable \"=v\": empty key",
        ),
        (
            "{name: x, environment: ['FOO=']}",
            "invalid environment variable \"FOO=\": empty value",
        ),
        (
            "{name: x, environment: ['1A=b']}",
            "invalid environment variable \"1A=b\": invalid key",
        ),
    ] {
        assert_eq!(validation_error(TypeName::Exec, text), error);
    }
}

#[test]
fn an_exec_name_is_only_a_command_line_when_it_is_used_as_one() {
    for text in [
        "{name: \"don't panic\", command: /bin/true}",
        "{name: \"echo don't\", provider: shell}",
        "{name: x, subscribe: ['file#/a#b']}",
        "{name: x, environment: ['FOO=a=b']}",
    ] {
        read(TypeName::Exec, text)[0].clone().complete().unwrap();
    }
}

#[test]
fn archive_validation_errors_in_order() {
    let archive = |rest: &str| format!("{{ensure: present, {rest}}}");
    for (rest, error) in [
        ("name: /a.zip", "url cannot be empty"),
        (
            "name: /a.zip, url: example.net/a.zip",
            "url must be absolute (include scheme like http:// or https://)",
        ),
        (
            "name: /a.zip, url: '://example.net/a.zip'",
            "invalid url: parse \"://example.net/a.zip\": missing protocol scheme",
        ),
        (
            "name: /a.zip, url: 'http://u:p@h:x/a.zip'",
            "invalid url: parse \"http://REDACTED@h:x/a.zip\": invalid port \":x\" after host",
        ),
        (
            "name: /a.zip, url: 'http://[::1/a.zip'",
            "invalid url: parse \"http://[::1/a.zip\": missing ']' in host",
        ),
        (
            "name: /a.zip, url: 'http://h/%2z.zip'",
            "invalid url: parse \"http://h/%2z.zip\": invalid URL escape \"%2z\"",
        ),
        (
            "name: /a.zip, url: 'https://example.net'",
            "url must have a filename in the path",
        ),
        (
            "name: /a.zip, url: 'https://h/a.tar.xz'",
            "url filename must end in .zip, .tar.gz, .tgz, or .tar",
        ),
        (
            "name: /a.exe, url: 'https://h/a.zip'",
            "name must end in .zip, .tar.gz, .tgz, or .tar",
        ),
        (
            "name: /a.zip, url: 'https://h/a.tar.gz'",
            "url and name must have the same archive type: url is tar.gz, name is zip",
        ),
        (
            "name: /a.zip, url: 'https://h/a.zip', cleanup: true",
            "cleanup requires extract_parent to be set",
        ),
        (
            "name: /a.zip, url: 'https://h/a.zip', cleanup: true, extract_parent: /x",
            "cleanup requires creates to be set",
        ),
        (
            "name: a.zip, url: 'https://h/a.zip'",
            "file path must be absolute",
        ),
        (
            "name: /a.zip, url: 'https://h/a.zip', creates: x",
            "creates path must be absolute",
        ),
        (
            "name: /a.zip, url: 'https://h/a.zip', extract_parent: x",
            "extract_parent path must be absolute",
        ),
        (
            "name: /a.zip, url: 'https://h/a.zip'",
            "owner cannot be empty",
        ),
    ] {
        assert_eq!(validation_error(TypeName::Archive, &archive(rest)), error);
    }
    for rest in [
        "name: /A.TGZ, url: 'https://h/a.tar.gz?x=1', owner: r, group: r",
        "name: /a.tar, url: 'https://h/a.tar', owner: r, group: r",
    ] {
        read(TypeName::Archive, &archive(rest))[0]
            .clone()
            .complete()
            .unwrap();
    }
}

#[test]
fn scaffold_defaults_to_jet_and_fills_its_delimiters() {
    let mut scaffold = read(TypeName::Scaffold, "{name: /t, ensure: present, source: s}").remove(0);
    scaffold.complete().unwrap();
    assert_eq!(
        json::compact(&scaffold).unwrap(),
        r#"{"name":"/t","ensure":"present","source":"s","left_delimiter":"[[","right_delimiter":"]]","engine":"jet"}"#
    );
}

#[test]
fn scaffold_and_apply_validation_errors() {
    for (type_name, text, error) in [
        (
            TypeName::Scaffold,
            "{name: t, ensure: present}",
            "name must be an absolute path",
        ),
        (
            TypeName::Scaffold,
            "{name: /t/, ensure: present}",
            "name must be a canonical path",
        ),
        (
            TypeName::Scaffold,
            "{name: /t, ensure: present}",
            "source cannot be empty",
        ),
        (
            TypeName::Scaffold,
            "{name: /t, ensure: present, source: s, post: [{'': x}]}",
            "post keys cannot be empty",
        ),
        (
            TypeName::Scaffold,
            "{name: /t, ensure: present, source: s, post: [{'*.go': ''}]}",
            "post value for key \"*.go\" cannot be empty",
        ),
        (
            TypeName::Scaffold,
            "{name: /t, ensure: present, source: s, post: [{a: b, c: d}]}",
            "post entries must have one key, a pattern, and its command",
        ),
        (
            TypeName::Scaffold,
            "{name: /t, ensure: present, source: s, data: [1]}",
            "sequence was used where mapping is expected",
        ),
        (
            TypeName::Apply,
            "{name: m, data: x}",
            "string was used where mapping is expected",
        ),
        (
            TypeName::Apply,
            "name: 'https://h/m.yaml'",
            "name must be a file path, not a URL",
        ),
        (
            TypeName::Apply,
            "{name: m, ensure: absent}",
            "invalid ensure value: must be \"present\"",
        ),
    ] {
        assert_eq!(validation_error(type_name, text), error);
    }
}
