//! Encrypted values: encrypted for nodes, opened on the node alone, and shown nowhere.

mod age;
mod edit;
mod fleet;
mod templates;

use serde_json::Value;

use crate::support::TestEnv;

const SECRET: &str = "hunter2-correct-horse";

/// A node with a key, and a manifest whose data has a value that is encrypted for it.
struct Site {
    env: TestEnv,
    recipient: String,
}

impl Site {
    fn new() -> Self {
        let env = TestEnv::new();
        let recipient = env.ccm(&["secrets", "new", "node.key"]).ok();
        let recipient = recipient.trim().to_owned();
        let site = Self { env, recipient };
        let target = site.env.path("app.conf").display().to_string();
        site.env.write(
            "site/data/prod.yaml",
            format!("db: {{password: \"{}\"}}\n", site.seal(SECRET)),
        );
        site.env.write(
            "site/manifest.yaml",
            format!(
                "hierarchy: {{order: ['data/{{{{ Facts.env }}}}.yaml'], merge: deep}}
data:
  db:
    user: app
    # @require
    # @validate isShellSafe(value)
    password: ''
ccm:
  post_message: \"done with {{{{ Data.db.password }}}}\"
  resources:
    - file:
        name: {target}
        ensure: present
        owner: root
        group: root
        mode: '0600'
        content: \"password={{{{ Data.db.password }}}}\\n\"
    - exec:
        name: use
        command: /bin/sh -c 'echo $PASSWORD; echo {{{{ upper(Data.db.password) }}}}; exit 3'
        environment: ['PASSWORD={{{{ Data.db.password }}}}']
        logoutput: true
    - exec: {{name: '/bin/echo {{{{ Data.db.user }}}}'}}
"
            ),
        );
        site
    }

    fn seal(&self, text: &str) -> String {
        let args = ["secrets", "encrypt", "--recipient", &self.recipient];
        self.env.ccm_with_input(&args, text).ok().trim().to_owned()
    }

    fn apply(&self, more: &[&str]) -> crate::support::Outcome {
        self.apply_with("node.key", more)
    }

    /// Applies the site as a node with another key.
    fn apply_with(&self, key: &str, more: &[&str]) -> crate::support::Outcome {
        let args = ["apply", "site", "--fact", "env=prod", "--secret-key", key];
        self.env.ccm(&[&args[..], more].concat())
    }

    /// Writes a shell script and returns its path.
    fn script(&self, name: &str, text: &str) -> String {
        let path = self.env.write(name, format!("#!/bin/sh\n{text}\n"));
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        path
    }

    fn has_no_secret(text: &str) {
        assert!(!text.contains(SECRET), "{text}");
        assert!(!text.contains(&SECRET.to_uppercase()), "{text}");
    }
}

#[test]
fn a_secret_is_written_to_a_file_and_shown_nowhere() {
    let site = Site::new();
    for flags in [
        &["--diff", "--debug"][..],
        &["--noop", "--diff"],
        &["--json"],
    ] {
        let outcome = site.apply(flags);
        Site::has_no_secret(&format!("{outcome:?}"));
    }
    let written = std::fs::read_to_string(site.env.path("app.conf")).unwrap();
    assert_eq!(written, format!("password={SECRET}\n"));
}

#[test]
fn a_resource_that_depends_on_a_secret_is_sensitive_and_others_are_not() {
    let site = Site::new();
    let text = site.apply(&["--json"]).stdout;
    let report: Value = serde_json::from_str(&text).unwrap();
    let events = report["events"].as_array().unwrap();
    assert_eq!(events[0]["properties"]["content"], "REDACTED");
    assert_eq!(events[2]["name"], "/bin/echo app");
    assert_ne!(events[2]["properties"]["sensitive"], true);
}

#[test]
fn a_rendered_manifest_has_no_secret() {
    let site = Site::new();
    let text = site.apply(&["--render"]).ok();
    Site::has_no_secret(&text);
    assert!(text.contains("password: REDACTED"), "{text}");
    assert!(text.contains("user: app"), "{text}");
}

#[test]
fn a_node_that_cant_open_a_value_names_it_before_anything_is_changed() {
    let site = Site::new();
    site.env.ccm(&["secrets", "new", "other.key"]).ok();
    let text = site.apply_with("other.key", &[]).error(2);
    assert!(
        text.contains("can't open the encrypted value \"db.password\""),
        "{text}"
    );
    assert!(text.contains("it is not encrypted for this key"), "{text}");
    assert!(!site.env.path("app.conf").exists());
}

#[test]
fn a_value_that_no_level_of_the_node_has_is_not_opened() {
    let site = Site::new();
    site.env
        .write("site/data/dev.yaml", "db: {password: plain}\n");
    let args = [
        "apply",
        "site",
        "--fact",
        "env=dev",
        "--noop",
        "--no-report",
    ];
    site.env.ccm(&args).ok();
}

#[test]
fn a_name_that_depends_on_a_secret_is_refused() {
    let site = Site::new();
    let sealed = site.seal(SECRET);
    site.env.write(
        "name.yaml",
        format!("data: {{p: '{sealed}'}}\nccm: {{resources: [{{exec: {{name: '/bin/echo {{{{ Data.p }}}}'}}}}]}}\n"),
    );
    let text = site
        .env
        .ccm(&["apply", "name.yaml", "--secret-key", "node.key"])
        .error(2);
    Site::has_no_secret(&text);
    assert!(text.contains("depends on a secret"), "{text}");
}

#[test]
fn a_manifest_is_validated_without_a_key() {
    let site = Site::new();
    let text = site
        .env
        .ccm(&["validate", "site", "--fact", "env=prod"])
        .ok();
    assert!(text.contains("3 resources, no problems"), "{text}");
}

#[test]
fn a_failed_validation_does_not_quote_the_secret() {
    let site = Site::new();
    let sealed = site.seal(&format!("{SECRET};x"));
    site.env.write(
        "site/data/prod.yaml",
        format!("db: {{password: '{sealed}'}}\n"),
    );
    let text = site.apply(&[]).error(2);
    assert!(text.contains("db.password"), "{text}");
    Site::has_no_secret(&text);
}

#[test]
fn a_nested_manifest_gets_secrets_and_shows_none() {
    let site = Site::new();
    let sealed = site.seal(SECRET);
    site.env.write(
        "parent.yaml",
        format!(
            "data: {{p: '{sealed}'}}\nccm: {{resources: [{{apply: [{{child.yaml: {{data: {{q: '{{{{ Data.p }}}}'}}}}}}, {{heir.yaml: {{}}}}]}}]}}\n"
        ),
    );
    for (name, key) in [("child.yaml", "q"), ("heir.yaml", "p")] {
        let target = site.env.path(&format!("{key}.conf")).display().to_string();
        site.env.write(
            name,
            format!("ccm: {{resources: [{{file: {{name: {target}, ensure: present, owner: root, group: root, mode: '0600', content: 'x={{{{ Data.{key} }}}}'}}}}]}}\n"),
        );
    }
    let outcome = site.env.ccm(&[
        "apply",
        "parent.yaml",
        "--secret-key",
        "node.key",
        "--diff",
        "--debug",
        "--json",
    ]);
    Site::has_no_secret(&format!("{outcome:?}"));
    for key in ["q", "p"] {
        let written = std::fs::read_to_string(site.env.path(&format!("{key}.conf"))).unwrap();
        assert_eq!(written, format!("x={SECRET}"));
    }
}

#[test]
fn a_scaffold_with_secrets_shows_no_diff_of_them() {
    let site = Site::new();
    let sealed = site.seal(SECRET);
    site.env
        .write("templates/app.conf", "password={{ Data.p }}\n");
    let target = site.env.path("out").display().to_string();
    site.env.write(
        "scaffold.yaml",
        format!("data: {{p: '{sealed}'}}\nccm: {{resources: [{{scaffold: {{name: {target}, ensure: present, source: templates, engine: jinja}}}}]}}\n"),
    );
    let outcome = site.env.ccm(&[
        "apply",
        "scaffold.yaml",
        "--secret-key",
        "node.key",
        "--diff",
        "--debug",
    ]);
    Site::has_no_secret(&format!("{outcome:?}"));
    let written = std::fs::read_to_string(site.env.path("out/app.conf")).unwrap();
    assert_eq!(written.trim(), format!("password={SECRET}"));
}

#[test]
fn an_explanation_shows_no_encrypted_value() {
    let site = Site::new();
    let args = ["hiera", "explain", "db.password", "env=prod", "-m", "site"];
    let text = site.env.ccm(&args).ok();
    assert!(text.contains("Result: \"REDACTED\""), "{text}");
    assert!(!text.contains("ENC["), "{text}");
}

#[test]
fn a_data_file_of_sops_is_read_with_the_key_of_the_node() {
    let env = TestEnv::new();
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/secrets");
    let read = |name: &str| std::fs::read_to_string(format!("{data}/{name}")).unwrap();
    env.write_secret("node.key", read("node.key"));
    env.write("sops.yaml", read("sops.yaml"));
    let target = env.path("port").display().to_string();
    env.write(
        "m.yaml",
        format!("hierarchy: {{order: [sops.yaml]}}\nccm: {{resources: [{{file: {{name: {target}, ensure: present, owner: root, group: root, mode: '0600', content: '{{{{ Data.database.port + 1 }}}} {{{{ Data.database.password }}}}'}}}}]}}\n"),
    );
    let text = env.ccm(&["apply", "m.yaml"]).error(2);
    assert!(text.contains("\"database.password\""), "{text}");
    let outcome = env.ccm(&["apply", "m.yaml", "--secret-key", "node.key", "--diff"]);
    assert!(!format!("{outcome:?}").contains("hunter2"), "{outcome:?}");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "5433 hunter2");
}
