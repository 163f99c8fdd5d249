//! Users and groups with the real programs, in a system of its own for each test. The commands are a
//! table, `tests/data/provider/account`.

use crate::support::root::ScratchRoot;

const HASH: &str = "$6$saltsalt$UfJl5fY8sGvXnZ0aWg8mC0S2o0t6m1k1eZQ3zq8lqj3v9w0o6h1r5x7y2b4d8f0g";

fn entry(type_name: &str, name: &str, properties: &str) -> String {
    format!("    - {type_name}:\n        - {name}: {{{properties}}}\n")
}

/// Applies an entry twice: it changes, and is stable then.
fn converge(root: &ScratchRoot, entry: &str) {
    let noop = root.apply(entry, &["--noop"]);
    let all = |outcome: &'static str| vec![outcome; noop.outcomes().len()];
    assert_eq!(noop.outcomes(), all("changed"), "{:#}", noop.document);
    let applied = root.apply(entry, &[]);
    assert_eq!(applied.outcomes(), all("changed"), "{:#}", applied.document);
    let again = root.apply(entry, &[]);
    assert_eq!(again.outcomes(), all("stable"), "{:#}", again.document);
}

#[test]
fn a_group_is_created_changed_and_removed() {
    let root = ScratchRoot::new();
    converge(&root, &entry("group", "app", "gid: 4242"));
    assert!(root.read("/etc/group").contains("app:x:4242:\n"));
    let applied = root.apply(&entry("group", "app", "gid: 4243"), &[]);
    assert_eq!(applied.event(0)["previous"]["attributes"]["gid"], "4242");
    assert!(root.read("/etc/group").contains("app:x:4243:\n"));
    converge(&root, &entry("group", "app", "ensure: absent"));
    assert!(!root.read("/etc/group").contains("app:"));
}

#[test]
fn a_user_is_created_with_everything_and_is_stable_then() {
    let root = ScratchRoot::new();
    let user = format!(
        "uid: 4300, gid: app, groups: [games, adm], home: /srv/deploy, managehome: true, \
         shell: /bin/bash, comment: 'Deploy, Ops', password: '{HASH}', expiry: 2037-12-31"
    );
    let group = entry("group", "app", "gid: 4200");
    converge(&root, &format!("{group}{}", entry("user", "deploy", &user)));
    let passwd = root.read("/etc/passwd");
    assert!(
        passwd.contains("deploy:x:4300:4200:Deploy, Ops:/srv/deploy:/bin/bash\n"),
        "{passwd}"
    );
    assert!(
        root.read("/etc/shadow")
            .contains(&format!("deploy:{HASH}:"))
    );
    let home = root.shell("stat -c %U:%G /srv/deploy; id -nG deploy").ok();
    assert_eq!(home, "deploy:app\napp adm games\n");
}

#[test]
fn every_attribute_of_a_user_is_changed() {
    let root = ScratchRoot::new();
    root.shell("useradd -m -G adm -s /bin/sh app").ok();
    for properties in [
        "uid: 4400",
        "gid: games",
        "groups: [mail]",
        "groups: [news], membership: minimum",
        "home: /srv/moved, managehome: true",
        "shell: /usr/sbin/nologin",
        "comment: J\u{f6}rg",
        "expiry: 2037-01-01",
        "expiry: never",
        "password: '$6$a$b'",
        "locked: true",
        "locked: false",
    ] {
        converge(&root, &entry("user", "app", properties));
    }
    let passwd = root.read("/etc/passwd");
    assert!(
        passwd.contains(":J\u{f6}rg:/srv/moved:/usr/sbin/nologin\n"),
        "{passwd}"
    );
    assert_eq!(root.shell("id -nG app").ok(), "games mail news\n");
    assert!(root.read("/etc/shadow").contains("app:$6$a$b:"));
    root.shell("test -e /srv/moved/.bashrc && ! test -e /home/app")
        .ok();
}

#[test]
fn a_user_is_removed_with_and_without_its_home_directory() {
    let root = ScratchRoot::new();
    root.shell("useradd -m one; useradd -m two").ok();
    converge(&root, &entry("user", "one", "ensure: absent"));
    converge(
        &root,
        &entry("user", "two", "ensure: absent, managehome: true"),
    );
    root.shell("test -d /home/one && ! test -e /home/two").ok();
}

#[test]
fn a_user_with_processes_is_not_removed_and_the_error_says_so() {
    let root = ScratchRoot::new();
    root.write(
        "/root/m.yaml",
        format!(
            "ccm:\n  resources:\n{}",
            entry("user", "app", "ensure: absent")
        ),
    );
    let shown = root
        .shell(
            "useradd -m app\n\
             setpriv --reuid=app --regid=app --clear-groups sleep 600 & pid=$!\n\
             until grep -q sleep /proc/$pid/comm; do sleep 0.05; done\n\
             ccm apply /root/m.yaml --json || true\n\
             kill $pid",
        )
        .ok();
    assert!(
        shown.contains("user app is logged in or has running processes; end them first"),
        "{shown}"
    );
    assert!(root.read("/etc/passwd").contains("app:"));
}

/// Returns the path of a library of the name service, whatever the architecture of the machine.
fn library(name: &str) -> String {
    let directories = std::fs::read_dir("/usr/lib").unwrap().flatten();
    let mut paths = directories.map(|it| it.path().join(name));
    let path = paths.find(|path| path.is_file());
    path.unwrap().display().to_string()
}

/// Adds a second source of the name service, which knows `nobody`, as LDAP knows its users.
fn with_foreign_nobody() -> ScratchRoot {
    let root = ScratchRoot::new();
    let library = library("libnss_systemd.so.2");
    std::fs::copy(&library, root.path(&library)).unwrap();
    root.shell(
        "for file in passwd shadow group; do grep -v -e ^nobody: -e ^nogroup: /etc/$file >/tmp/x; \
         cat /tmp/x >/etc/$file; done; \
         printf 'passwd: files systemd\\ngroup: files systemd\\n' >/etc/nsswitch.conf; \
         getent passwd nobody; ! grep ^nobody: /etc/passwd",
    )
    .ok();
    root
}

#[test]
fn a_user_of_another_source_is_present_and_never_created_again() {
    let root = with_foreign_nobody();
    let applied = root.apply(&entry("user", "nobody", "uid: 65534"), &[]);
    assert_eq!(applied.outcomes(), ["stable"], "{:#}", applied.document);
    assert_eq!(applied.event(0)["status"]["metadata"]["foreign"], true);
    for properties in [
        "shell: /bin/bash",
        "ensure: absent",
        "uid: 65533",
        "locked: true",
    ] {
        let applied = root.apply(&entry("user", "nobody", properties), &[]);
        assert_eq!(
            applied.failure(0),
            "user nobody is not in /etc/passwd: it comes from another source of the name service, \
             such as LDAP; change it there",
            "{properties}"
        );
    }
    let applied = root.apply(&entry("group", "nogroup", "gid: 65534"), &[]);
    assert_eq!(applied.outcomes(), ["stable"], "{:#}", applied.document);
    assert!(!root.read("/etc/passwd").contains("nobody:"));
    assert!(!root.read("/etc/group").contains("nogroup:"));
}

#[test]
fn a_group_of_another_source_is_no_difference_for_its_members_and_an_error_for_others() {
    let root = with_foreign_nobody();
    root.write(
        "/etc/userdb/ldapstaff.group",
        r#"{"groupName": "ldapstaff", "gid": 60123}"#,
    );
    root.shell(
        "useradd app; useradd other; cd /etc/userdb; \
         ln -s ldapstaff.group 60123.group; echo '{}' >app:ldapstaff.membership; \
         printf 'passwd: files systemd\\ngroup: files [SUCCESS=merge] systemd\\n' >/etc/nsswitch.conf; \
         getent group ldapstaff; id -nG app | grep ldapstaff",
    )
    .ok();
    let groups = "groups: [ldapstaff, games]";
    converge(&root, &entry("user", "app", groups));
    assert_eq!(root.shell("id -nG app").ok(), "app games ldapstaff\n");
    let applied = root.apply(&entry("user", "other", groups), &[]);
    assert_eq!(
        applied.failure(0),
        "group ldapstaff is not in /etc/group: it comes from another source of the name service, \
         such as LDAP; change it there"
    );
    assert_eq!(root.shell("id -nG other").ok(), "other\n");
}

#[test]
fn a_password_hash_is_shown_nowhere() {
    let root = ScratchRoot::new();
    // The programs log their arguments, as ps would show them.
    for program in ["useradd", "usermod", "chpasswd"] {
        let path = format!("/usr/sbin/{program}");
        let script = format!(
            "#!/bin/sh\nprintf '%s\\n' \"{program} $*\" >>/var/tmp/started\nexec {path}.real \"$@\"\n"
        );
        root.wrap(&path, &script);
    }
    let user = entry(
        "user",
        "app",
        &format!("password: '{HASH}', shell: /bin/sh"),
    );
    let applied = root.apply(&user, &["--diff"]);
    assert_eq!(applied.outcomes(), ["changed"], "{:#}", applied.document);
    let started = root.read("/var/tmp/started");
    assert!(started.contains("chpasswd -e\n"), "{started}");
    for text in [started, applied.document.to_string()] {
        assert!(!text.contains("saltsalt"), "{text}");
    }
    root.write(
        "/root/m.yaml",
        format!(
            "ccm:\n  resources:\n{}",
            entry("user", "app", "password: '$6$other$secret'")
        ),
    );
    let outcome = root.ccm(&["apply", "/root/m.yaml", "--diff", "--debug", "--noop"]);
    let all = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(all.contains("user app: password changes"), "{all}");
    assert!(
        !all.contains("saltsalt") && !all.contains("other$secret"),
        "{all}"
    );
}

#[test]
fn accounts_that_a_change_creates_are_found_by_the_next_resource() {
    let root = ScratchRoot::new();
    let mut entries = String::new();
    for index in 0..20 {
        entries.push_str(&entry("user", &format!("u{index}"), "shell: /bin/sh"));
        entries.push_str(&entry("group", &format!("u{index}"), ""));
    }
    let applied = root.apply(&entries, &[]);
    // Each user brings its group, which the next resource finds: nothing old is used.
    let wanted: Vec<&str> = (0..20).flat_map(|_| ["changed", "stable"]).collect();
    assert_eq!(applied.outcomes(), wanted);
    assert_eq!(root.apply(&entries, &[]).outcomes(), vec!["stable"; 40]);
}

#[test]
fn hostile_names_and_fields_are_refused_before_anything_is_touched() {
    let env = crate::support::TestEnv::new();
    for (type_name, properties, error) in [
        (
            "user",
            r#"{name: "a\nroot2:x:0:0::/:/bin/sh"}"#,
            "invalid characters",
        ),
        ("user", r#"{name: "a:b"}"#, "invalid characters"),
        ("user", r#"{name: "-o"}"#, "must not start with a hyphen"),
        ("user", r#"{name: "0"}"#, "is a number"),
        ("user", r#"{name: "a/../b"}"#, "invalid characters"),
        ("user", r#"{name: "a b"}"#, "invalid characters"),
        ("group", r#"{name: "a\n"}"#, "invalid characters"),
        ("group", r#"{name: "-g"}"#, "must not start with a hyphen"),
        (
            "user",
            r#"{name: a, comment: "x:0:0"}"#,
            "comment must not contain colons",
        ),
        (
            "user",
            r#"{name: a, comment: "x\ny"}"#,
            "comment must not contain colons",
        ),
        (
            "user",
            r#"{name: a, home: "/a:b"}"#,
            "home must not contain colons",
        ),
        ("user", r#"{name: a, home: "a"}"#, "home must be absolute"),
        (
            "user",
            r#"{name: a, shell: "/bin/sh\n"}"#,
            "shell must not contain colons",
        ),
        (
            "user",
            r#"{name: a, groups: ["b,root"]}"#,
            "invalid characters",
        ),
        (
            "user",
            r#"{name: a, password: hunter2}"#,
            "password must be a hash",
        ),
        (
            "user",
            r#"{name: a, password: "$6$x:0"}"#,
            "password must be a hash",
        ),
        (
            "user",
            r#"{name: a, password: "*", locked: false}"#,
            "locked must not be false",
        ),
        (
            "user",
            r#"{name: a, expiry: tomorrow}"#,
            "expiry must be a day",
        ),
        (
            "user",
            r#"{name: a, membership: all}"#,
            "membership must be one of",
        ),
        (
            "user",
            r#"{name: a, uid: 4294967295}"#,
            "uid 4294967295 is out of range",
        ),
    ] {
        env.write(
            "m.yaml",
            format!("ccm:\n  resources:\n    - {type_name}: {properties}\n"),
        );
        let shown = env.ccm(&["apply", "m.yaml", "--noop"]).error(2);
        assert!(shown.contains(error), "{properties}: {shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
