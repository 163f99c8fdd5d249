//! Tests of policies: what rules allow and deny.

use super::operation::MAX_NAME;
use super::*;
use crate::model::document::parse;
use crate::model::request::parse_ensure;

fn policy(text: &str) -> Policy {
    Policy::read(&parse(text).unwrap()).unwrap()
}

fn resource(type_name: &str, properties: &str) -> Resource {
    let text = format!(
        r#"{{"protocol":"io.choria.ccm.v1.resource.ensure.request","type":"{type_name}","properties":{properties}}}"#
    );
    let mut resource = parse_ensure(&text).unwrap();
    resource.complete().unwrap();
    resource
}

fn request<'a>(verb: &'a str, type_name: TypeName, name: &'a str) -> PolicyRequest<'a> {
    PolicyRequest {
        verb,
        type_name: Some(type_name),
        name: Some(name),
        ..PolicyRequest::default()
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let policy = policy(
        "- {action: deny, types: [exec]}\n- {verbs: [ensure], names: ['/etc/app/*']}\n- {verbs: [ping]}",
    );
    let decide = |request| {
        let PolicyDecision { action, rule } = policy.decide(&request);
        (action, rule)
    };
    assert_eq!(
        decide(request("ensure", TypeName::Exec, "/etc/app/x")),
        (Action::Deny, Some(1))
    );
    assert_eq!(
        decide(request("ensure", TypeName::File, "/etc/app/x")),
        (Action::Allow, Some(2))
    );
    assert_eq!(
        decide(request("ensure", TypeName::File, "/etc/passwd")),
        (Action::Deny, None)
    );
    let ping = PolicyRequest {
        verb: "ping",
        ..PolicyRequest::default()
    };
    assert_eq!(decide(ping), (Action::Allow, Some(3)));
}

#[test]
fn a_partial_request_is_allowed_if_a_rule_could_match() {
    let policy = policy("- {action: deny, types: [exec]}\n- {verbs: [apply], types: [file]}");
    let verb = |verb| PolicyRequest {
        verb,
        ..PolicyRequest::default()
    };
    assert!(policy.decide_partial(&verb("apply")).is_allowed());
    assert!(!policy.decide(&verb("apply")).is_allowed());
    assert!(!policy.decide_partial(&verb("ensure")).is_allowed());
    let exec = request("apply", TypeName::Exec, "x");
    assert!(!policy.decide_partial(&exec).is_allowed());
}

#[test]
fn a_rule_for_noop_matches_nothing_else() {
    let policy = policy("{noop_only: true}");
    let file = request("ensure", TypeName::File, "/a");
    assert!(!policy.decide(&file).is_allowed());
    assert!(
        policy
            .decide(&PolicyRequest { noop: true, ..file })
            .is_allowed()
    );
}

#[test]
fn an_empty_policy_allows_nothing() {
    let nothing = policy("[]");
    assert!(!nothing.decide(&PolicyRequest::default()).is_allowed());
    assert!(
        !nothing
            .decide_partial(&PolicyRequest::default())
            .is_allowed()
    );
}

#[test]
fn commands_in_health_checks_and_post_need_a_grant() {
    let files = policy("{types: [file, scaffold, archive]}");
    let plain = resource("file", r#"{"name":"/a","ensure":"absent"}"#);
    assert_eq!(
        files.check_resource("ensure", &plain, "posix", false),
        Ok(())
    );
    let health_check =
        r#"{"name":"/a","ensure":"absent","health_checks":[{"command":"/bin/evil"}]}"#;
    for (type_name, properties) in [
        ("file", health_check),
        (
            "file",
            r#"{"name":"/a","ensure":"absent","health_checks":[{"goss_rules":{"command":{"evil":{"exit-status":0}}}}]}"#,
        ),
        (
            "scaffold",
            r#"{"name":"/a","ensure":"present","source":"/s","engine":"jet","post":[{"*":"evil"}]}"#,
        ),
    ] {
        let hidden = resource(type_name, properties);
        assert!(
            files
                .check_resource("ensure", &hidden, "posix", false)
                .is_err(),
            "{properties}"
        );
    }
}

#[test]
fn the_command_of_an_exec_is_checked_not_only_its_name() {
    let policy = policy("{types: [exec], names: ['/bin/true']}");
    let good = resource("exec", r#"{"name":"/bin/true"}"#);
    assert_eq!(
        policy.check_resource("ensure", &good, "posix", false),
        Ok(())
    );
    let evil = resource("exec", r#"{"name":"/bin/true","command":"/bin/evil"}"#);
    let denied = policy
        .check_resource("ensure", &evil, "posix", false)
        .unwrap_err();
    assert_eq!(
        denied.to_string(),
        "denied by policy: resource exec#/bin/true"
    );
}

#[test]
fn the_extras_of_an_exec_need_grants() {
    let bare = policy("{types: [exec], names: [date]}");
    let full = policy(
        "{types: [exec], commands: [date], path: [/bin, /opt/*/bin], environment: ['A=*'], \
         cwd: [/srv], shell: true, guards: ['test -e *', /run/x], checks: [check]}",
    );
    let open = policy("{types: [exec]}");
    for (more, provider, missing_grant, is_in_full) in [
        ("", "posix", None, true),
        (
            r#","path":"/bin:/opt/a/bin""#,
            "posix",
            Some("path of"),
            true,
        ),
        (r#","path":"/bin:/tmp""#, "posix", Some("path of"), false),
        (
            r#","path":"/bin:/opt/../bin""#,
            "posix",
            Some("path of"),
            false,
        ),
        (
            r#","environment":["A=1"]"#,
            "posix",
            Some("environment of"),
            true,
        ),
        (
            r#","environment":["A=1","B=1"]"#,
            "posix",
            Some("environment of"),
            false,
        ),
        (
            r#","environment":["A=/x"]"#,
            "posix",
            Some("environment of"),
            false,
        ),
        (r#","cwd":"/srv""#, "posix", Some("cwd of"), true),
        (r#","cwd":"/tmp""#, "posix", Some("cwd of"), false),
        ("", "shell", Some("shell of"), true),
        (r#","onlyif":"test -e x""#, "posix", Some("guard of"), true),
        (r#","unless":"test -d x""#, "posix", Some("guard of"), false),
        (r#","creates":"/run/x""#, "posix", Some("creates of"), true),
        (r#","creates":"/run/y""#, "posix", Some("creates of"), false),
        (
            r#","health_checks":[{"command":"check"}]"#,
            "posix",
            Some("health check of"),
            true,
        ),
        (
            r#","health_checks":[{"command":"date"}]"#,
            "posix",
            Some("health check of"),
            false,
        ),
    ] {
        let exec = resource("exec", &format!(r#"{{"name":"date"{more}}}"#));
        let found = bare.check_resource("ensure", &exec, provider, false);
        assert_eq!(
            found.err().map(|denied| denied.what),
            missing_grant,
            "{more}"
        );
        let found = full.check_resource("ensure", &exec, provider, false);
        assert_eq!(found.is_ok(), is_in_full, "{more} {found:?}");
        // A rule that allows every command line needs no grants.
        assert_eq!(
            open.check_resource("ensure", &exec, provider, false),
            Ok(()),
            "{more}"
        );
    }
}

#[test]
fn a_package_module_needs_a_rule_that_names_it() {
    let module = |provider: &str| {
        resource(
            "package",
            &format!(r#"{{"name":"zsh","ensure":"present","provider":"{provider}"}}"#),
        )
    };
    let check = |text: &str, provider: &str, noop: bool| {
        policy(text)
            .check_resource("ensure", &module(provider), provider, noop)
            .is_ok()
    };
    let path = "cfengine//opt/m";
    for text in [
        "{}",
        "{types: [package, exec]}",
        "{types: [package], providers: ['**']}",
        "{types: [exec], names: ['/opt/m']}",
        "{types: [package], modules: ['/opt/*/m']}",
    ] {
        assert!(!check(text, path, false), "{text}");
    }
    let named = "{types: [package], names: [zsh], modules: ['/opt/*']}";
    assert!(check(named, path, false));
    assert!(!check(named, "cfengine/../../opt/m", false));
    assert!(check("{types: [package]}", "cfengine/apt_get", false));
    let noop = "{types: [package], modules: ['/opt/*'], noop_only: true}";
    assert!(!check(noop, path, true), "a module runs in noop, too");
    let denied = "- {action: deny, types: [exec]}\n- {modules: ['/opt/*']}";
    assert!(!check(denied, path, false));
}

#[test]
fn lookups_need_an_explicit_grant() {
    let request = PolicyRequest {
        verb: "ensure",
        type_name: Some(TypeName::File),
        name: Some("/srv/a"),
        ..PolicyRequest::default()
    };
    for (text, expected) in [
        ("{}", false),
        ("{lookups: [kv]}", false),
        ("{lookups: [files, kv]}", true),
        ("{names: ['/srv/*'], lookups: [files]}", true),
        ("{names: ['/etc/*'], lookups: [files]}", false),
        ("{verbs: [apply], lookups: [files]}", false),
        (
            "- {action: deny, lookups: [files]}\n- {lookups: [files]}",
            false,
        ),
    ] {
        assert_eq!(
            policy(text).allows_lookup(&request, Lookup::Files),
            expected,
            "{text}"
        );
    }
    let missing = Lookup::Kv.denial();
    let text = format!("expr: secret: {missing} (1:1)");
    assert_eq!(Lookup::denial_in(&text), Some(missing));
    assert_eq!(Lookup::denial_in("secret"), None);
}

#[test]
fn a_denied_command_is_denied_in_every_property() {
    let text = "- {action: deny, commands: ['rm **']}\n- {}";
    let policy = policy(text);
    for (properties, is_allowed) in [
        (r#"{"name":"ls"}"#, true),
        (r#"{"name":"rm -rf /"}"#, false),
        (r#"{"name":"x","command":"'rm'  -rf /"}"#, false),
        (r#"{"name":"ls","onlyif":"rm x"}"#, false),
        (
            r#"{"name":"ls","health_checks":[{"command":"rm x"}]}"#,
            false,
        ),
    ] {
        let found = policy.check_resource("ensure", &resource("exec", properties), "posix", false);
        assert_eq!(found.is_ok(), is_allowed, "{properties}");
    }
}

#[test]
fn a_noop_rule_does_not_allow_guards() {
    let policy = policy("{noop_only: true}");
    let plain = resource("exec", r#"{"name":"/bin/true"}"#);
    assert_eq!(
        policy.check_resource("ensure", &plain, "posix", true),
        Ok(())
    );
    let guarded = resource("exec", r#"{"name":"/bin/true","onlyif":"/bin/evil"}"#);
    assert!(
        policy
            .check_resource("ensure", &guarded, "posix", true)
            .is_err()
    );
}

#[test]
fn the_unpack_directory_of_an_archive_must_match_too() {
    let policy = policy("{types: [archive], names: ['/srv/**']}");
    let archive = |parent: &str| {
        let text = format!(
            r#"{{"name":"/srv/a.tar.gz","ensure":"present","url":"https://example.net/a.tar.gz","extract_parent":"{parent}","owner":"root","group":"root"}}"#
        );
        resource("archive", &text)
    };
    assert_eq!(
        policy.check_resource("ensure", &archive("/srv/app"), "http", false),
        Ok(())
    );
    assert!(
        policy
            .check_resource("ensure", &archive("/etc"), "http", false)
            .is_err()
    );
}

#[test]
fn providers_are_patterns_too() {
    let policy = policy("{types: [package], providers: [apt, 'cfengine/*']}");
    let package = resource("package", r#"{"name":"zsh","ensure":"present"}"#);
    for (provider, is_allowed) in [("apt", true), ("cfengine/pip", true), ("dnf", false)] {
        let found = policy.check_resource("ensure", &package, provider, false);
        assert_eq!(found.is_ok(), is_allowed, "{provider}");
    }
}

#[test]
fn a_name_that_is_too_long_is_denied() {
    let policy = policy("- {action: deny, names: ['a*']}\n- {}");
    let decide = |name: &str| policy.decide(&request("ensure", TypeName::Exec, name));
    assert!(decide("b").is_allowed());
    assert!(!decide(&"b".repeat(MAX_NAME + 1)).is_allowed());
}

#[test]
fn an_invalid_rule_is_reported() {
    for (text, error) in [
        ("{verb: [ping]}", "did you mean \"verbs\"?"),
        ("{guard: [x]}", "did you mean \"guards\"?"),
        ("{lookup: [kv]}", "did you mean \"lookups\"?"),
        ("{commands: ['a \"b']}", "commands: "),
        ("{checks: ['']}", "checks: a command line is empty"),
        ("{path: [bin]}", "path: \"bin\" is not an absolute path"),
        (
            "{environment: [LANG]}",
            "environment: \"LANG\" is not NAME=value",
        ),
        ("{lookups: [everything]}", "everything"),
        ("{types: [nope]}", "nope"),
        ("{action: maybe}", "maybe"),
    ] {
        let found = Policy::read(&parse(text).unwrap()).unwrap_err().to_string();
        assert!(found.contains(error), "{found}");
    }
}

#[test]
fn what_the_new_types_reach_needs_a_grant() {
    for (rules, type_name, properties, denial) in [
        // The target of a link.
        (
            "{types: [link], names: ['/srv/**']}",
            "link",
            r#"{"name":"/srv/a/l","target":"../b"}"#,
            "",
        ),
        (
            "{types: [link], names: ['/srv/**']}",
            "link",
            r#"{"name":"/srv/a/l","target":"../../etc"}"#,
            "resource",
        ),
        (
            "{types: [link], names: ['/srv/**']}",
            "link",
            r#"{"name":"/srv/l","target":"/etc/shadow"}"#,
            "resource",
        ),
        (
            "{types: [link], names: ['/srv/**'], targets: ['/usr/**']}",
            "link",
            r#"{"name":"/srv/l","target":"/usr/x"}"#,
            "",
        ),
        (
            "{types: [link], names: ['/srv/**'], targets: ['/usr/**']}",
            "link",
            r#"{"name":"/etc/l","target":"/usr/x"}"#,
            "resource",
        ),
        (
            "{types: [link]}",
            "link",
            r#"{"name":"/srv/l","target":"/etc"}"#,
            "",
        ),
        (
            "{types: [link], names: ['/srv/**']}",
            "link",
            r#"{"name":"/srv/l","ensure":"absent"}"#,
            "",
        ),
        (
            "[{action: deny, targets: ['/etc/**']}, {types: [link]}]",
            "link",
            r#"{"name":"/srv/l","target":"/etc/x"}"#,
            "target of",
        ),
        // The path of a line is its name.
        (
            "{types: [line], names: ['/srv/**']}",
            "line",
            r#"{"name":"/srv/f","line":"a"}"#,
            "",
        ),
        (
            "{types: [line], names: ['/srv/**']}",
            "line",
            r#"{"name":"/srv/f","path":"/etc/passwd","line":"a"}"#,
            "resource",
        ),
        (
            "{types: [line], names: ['/srv/**']}",
            "line",
            r#"{"name":"port","path":"/srv/f","line":"a"}"#,
            "",
        ),
        // The command that validates a file.
        (
            "{types: [file], names: ['/srv/**']}",
            "file",
            r#"{"name":"/srv/f","ensure":"present","content":"","owner":"root","group":"root","mode":"0644","validate":"evil %"}"#,
            "validate command of",
        ),
        (
            "{types: [file], names: ['/srv/**'], validate: ['visudo -cf %']}",
            "file",
            r#"{"name":"/srv/f","ensure":"present","content":"","owner":"root","group":"root","mode":"0644","validate":"visudo -cf %"}"#,
            "",
        ),
        (
            "{types: [file], names: ['/srv/**'], validate: ['visudo -cf %']}",
            "file",
            r#"{"name":"/srv/f","ensure":"present","content":"","owner":"root","group":"root","mode":"0644","validate":"evil %"}"#,
            "validate command of",
        ),
        // Groups and home directory of a user.
        (
            "{types: [user], names: [deploy]}",
            "user",
            r#"{"name":"deploy","shell":"/bin/sh"}"#,
            "",
        ),
        (
            "{types: [user], names: [deploy]}",
            "user",
            r#"{"name":"root"}"#,
            "resource",
        ),
        (
            "{types: [user], names: [deploy]}",
            "user",
            r#"{"name":"deploy","groups":["sudo"]}"#,
            "group of",
        ),
        (
            "{types: [user], names: [deploy]}",
            "user",
            r#"{"name":"deploy","gid":"0"}"#,
            "group of",
        ),
        (
            "{types: [user], names: [deploy], groups: [app]}",
            "user",
            r#"{"name":"deploy","gid":"app","groups":["app"]}"#,
            "",
        ),
        (
            "{types: [user], names: [deploy], groups: [app]}",
            "user",
            r#"{"name":"deploy","groups":["app","sudo"]}"#,
            "group of",
        ),
        (
            "{types: [user], names: [deploy]}",
            "user",
            r#"{"name":"deploy","home":"/etc"}"#,
            "home of",
        ),
        (
            "{types: [user], names: [deploy], homes: ['/home/*']}",
            "user",
            r#"{"name":"deploy","home":"/home/deploy"}"#,
            "",
        ),
        (
            "{types: [group], names: [app]}",
            "group",
            r#"{"name":"app","gid":990}"#,
            "",
        ),
        ("{types: [file]}", "group", r#"{"name":"app"}"#, "resource"),
    ] {
        let resource = resource(type_name, properties);
        let result = policy(rules).check_resource("ensure", &resource, "posix", false);
        let found = result.map_err(|denied| denied.to_string());
        match denial {
            "" => assert_eq!(found, Ok(()), "{rules} {properties}"),
            // The first denied operation of a link is its target.
            "resource" => assert!(found.is_err(), "{rules} {properties}"),
            what => {
                let wanted = format!("denied by policy: {what} {}", resource.label());
                assert_eq!(found, Err(wanted), "{rules} {properties}");
            }
        }
    }
}
