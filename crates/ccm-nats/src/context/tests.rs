//! Tests of context resolution.

use super::*;
use ccm_core::system::files::{Attributes, Durability};

/// A configuration directory with contexts.
struct TestConfig {
    directory: tempfile::TempDir,
    env: BTreeMap<String, String>,
}

impl TestConfig {
    fn new(contexts: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("nats/context");
        files::create_directory(&folder, &Attributes::default()).unwrap();
        let root = directory.path().to_str().unwrap().to_owned();
        let env = [("XDG_CONFIG_HOME".into(), root)].into();
        let config = Self { directory, env };
        for (name, text) in contexts {
            config.write(&format!("context/{name}.json"), text);
        }
        config
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.directory.path().join("nats").join(name);
        files::write_private(&path, text.as_bytes(), Durability::Cached).unwrap();
    }

    fn set(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    fn resolve(&self, given: &ContextOptions) -> Result<Settings, String> {
        resolve(given, &self.env, Some("CCM")).map_err(|err| err.to_string())
    }

    fn servers(&self, given: &ContextOptions) -> String {
        self.resolve(given).unwrap().server_list()
    }
}

fn context(name: &str) -> ContextOptions {
    ContextOptions {
        context: Some(name.into()),
        ..ContextOptions::default()
    }
}

#[test]
fn default_server_is_local() {
    let settings = TestConfig::new(&[])
        .resolve(&ContextOptions::default())
        .unwrap();
    assert_eq!(settings.server_list(), "nats://127.0.0.1:4222");
    assert_eq!(settings.context, None);
}

#[test]
fn default_context_overrides_the_selected_one() {
    let config = TestConfig::new(&[("other", r#"{"url":"nats://other"}"#)]);
    config.write("context.txt", "other\n");
    assert_eq!(config.servers(&ContextOptions::default()), "nats://other");
    config.write("context/CCM.json", r#"{"url":"nats://ccm"}"#);
    assert_eq!(config.servers(&ContextOptions::default()), "nats://ccm");
}

#[test]
fn flag_overrides_variable_overrides_configuration() {
    let contexts = ["a", "b", "c"].map(|name| (name, format!(r#"{{"url":"nats://{name}"}}"#)));
    let contexts: Vec<(&str, &str)> = contexts.iter().map(|(n, t)| (*n, t.as_str())).collect();
    let configured = ContextOptions {
        configured_context: Some("c".into()),
        ..ContextOptions::default()
    };
    assert_eq!(TestConfig::new(&contexts).servers(&configured), "nats://c");
    let config = TestConfig::new(&contexts).set("NATS_CONTEXT", "b");
    assert_eq!(config.servers(&configured), "nats://b");
    let given = ContextOptions {
        context: Some("a".into()),
        ..configured
    };
    assert_eq!(config.servers(&given), "nats://a");
    let given = ContextOptions {
        server: Some("nats://flag".into()),
        ..given
    };
    assert_eq!(
        config.set("NATS_URL", "nats://env").servers(&given),
        "nats://flag"
    );
}

#[test]
fn server_variable_overrides_the_context() {
    let config = TestConfig::new(&[("CCM", r#"{"url":"nats://ccm","user":"a","password":"b"}"#)])
        .set("NATS_URL", "nats://one,two:4333");
    let settings = config.resolve(&ContextOptions::default()).unwrap();
    assert_eq!(settings.server_list(), "nats://one,nats://two:4333");
    assert!(matches!(settings.login, Login::Password { .. }));
}

#[test]
fn named_context_must_exist() {
    let error = TestConfig::new(&[]).resolve(&context("nope")).unwrap_err();
    assert!(error.starts_with("unknown context \"nope\""), "{error}");
    for bad in ["../x", "a/b"] {
        let error = TestConfig::new(&[]).resolve(&context(bad)).unwrap_err();
        assert!(error.starts_with("invalid context name"), "{error}");
    }
}

#[test]
fn context_can_be_a_path() {
    let config = TestConfig::new(&[("a", r#"{"url":"nats://a"}"#)]);
    let path = config.directory.path().join("nats/context/a.json");
    assert_eq!(config.servers(&context(path.to_str().unwrap())), "nats://a");
}

#[test]
fn credentials_have_an_order_of_precedence() {
    let login = |text: &str| {
        let settings = TestConfig::new(&[("a", text)])
            .resolve(&context("a"))
            .unwrap();
        match settings.login {
            Login::Anonymous => "anonymous",
            Login::Password { .. } => "password",
            Login::Creds(_) => "creds",
            Login::Nkey(_) => "nkey",
            Login::Jwt { .. } => "jwt",
            Login::Choria { .. } => "choria",
        }
    };
    assert_eq!(
        login(r#"{"user":"a","creds":"/c","nkey":"/n"}"#),
        "password"
    );
    assert_eq!(login(r#"{"user":"","creds":"/c","nkey":"/n"}"#), "creds");
    assert_eq!(login(r#"{"nkey":"/n","user_jwt":"j"}"#), "nkey");
    assert_eq!(login(r#"{"user_jwt":"j"}"#), "jwt");
    assert_eq!(
        login(r#"{"color_scheme":"green","token":"t"}"#),
        "anonymous"
    );
}

#[test]
fn credential_of_the_environment_replaces_those_of_the_context() {
    let config = TestConfig::new(&[("CCM", r#"{"user":"a","password":"b"}"#)]);
    let settings = config
        .set("NATS_CREDS", "/x.creds")
        .resolve(&ContextOptions::default())
        .unwrap();
    assert!(matches!(settings.login, Login::Creds(_)));
    let config = TestConfig::new(&[("CCM", r#"{"creds":"/c"}"#)]).set("NATS_USER", "tok");
    let settings = config.resolve(&ContextOptions::default()).unwrap();
    assert!(matches!(settings.login, Login::Anonymous));
    assert_eq!(settings.token, Some(Secret::new("tok")));
}

fn flags(credentials: CredentialFlags) -> ContextOptions {
    ContextOptions {
        server: Some("nats://carl:c@h".into()),
        credentials,
        ..ContextOptions::default()
    }
}

#[test]
fn a_login_by_flag_replaces_every_other_one() {
    let config = || {
        TestConfig::new(&[("CCM", r#"{"creds":"/c"}"#)])
            .set("NATS_USER", "ann")
            .set("NATS_PASSWORD", "a")
            .set("NATS_TOKEN", "t")
    };
    let settings = config().resolve(&flags(CredentialFlags {
        nkey: Some("/n".into()),
        ..CredentialFlags::default()
    }));
    let settings = settings.unwrap();
    assert!(matches!(settings.login, Login::Nkey(_)), "{settings:?}");
    assert_eq!(settings.token, None);
    let settings = config().resolve(&flags(CredentialFlags {
        user: Some("bob".into()),
        ..CredentialFlags::default()
    }));
    match settings.unwrap().login {
        Login::Password { user, password } => {
            assert_eq!((user.as_str(), password.reveal()), ("bob", "a"));
        }
        other => panic!("{other:?}"),
    }
    let settings = config().resolve(&flags(CredentialFlags::default()));
    assert!(matches!(settings.unwrap().login, Login::Password { user, .. } if user == "carl"));
}

#[test]
fn certificates_are_overridden_one_by_one() {
    let config = TestConfig::new(&[("CCM", r#"{"ca":"/ca"}"#)]).set("NATS_CERT", "/env");
    let settings = config.resolve(&ContextOptions {
        credentials: CredentialFlags {
            tls_key: Some("/key".into()),
            ..CredentialFlags::default()
        },
        ..ContextOptions::default()
    });
    let tls = settings.unwrap().tls;
    assert_eq!(tls.ca, Some("/ca".into()));
    assert_eq!(tls.identity, Some(("/env".into(), "/key".into())));
}

#[test]
fn unsupported_fields_are_errors() {
    for (field, text) in [
        ("socks_proxy", r#"{"socks_proxy":"socks5://x"}"#),
        ("nsc", r#"{"nsc":"nsc://o/a/u"}"#),
        ("windows_cert_store", r#"{"windows_cert_store":"machine"}"#),
    ] {
        let error = TestConfig::new(&[("a", text)])
            .resolve(&context("a"))
            .unwrap_err();
        assert_eq!(error, format!("context a: {field} is not supported"));
    }
    let empty = r#"{"socks_proxy":"","nsc":"","color_scheme":null}"#;
    assert!(
        TestConfig::new(&[("a", empty)])
            .resolve(&context("a"))
            .is_ok()
    );
}

#[test]
fn errors_contain_no_secret() {
    for text in [
        r#"{"password":"hunter2","#,
        r#"{"user":"hunter2","password":5}"#,
        r#"{"user":"a","password":"data:;base64,hunter2!"}"#,
        r#"{"url":"http://hunter2:hunter2@h"}"#,
        r#"{"cert":"/c","password":"hunter2"}"#,
    ] {
        let error = TestConfig::new(&[("a", text)])
            .resolve(&context("a"))
            .unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn other_fields_of_a_context_are_used() {
    let text = r#"{"ca":"/ca","cert":"/c","key":"/k","tls_first":true,
        "inbox_prefix":"_INBOX_ann.","jetstream_domain":"hub","unknown":{"x":1}}"#;
    let settings = TestConfig::new(&[("a", text)])
        .resolve(&context("a"))
        .unwrap();
    assert_eq!(settings.tls.ca, Some("/ca".into()));
    assert_eq!(settings.tls.identity, Some(("/c".into(), "/k".into())));
    assert!(settings.tls.first);
    assert_eq!(settings.inbox_prefix.as_deref(), Some("_INBOX_ann"));
    assert_eq!(settings.api, Api::Domain("hub".into()));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test opens a file")]
fn credentials_writable_by_other_users_are_rejected() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("user.nk");
    std::fs::write(&file, "seed").unwrap();
    let material = CredentialSource::File(file.clone());
    for (mode, is_read) in [(0o600, true), (0o644, true), (0o620, false), (0o602, false)] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(material.read().is_ok(), is_read, "{mode:o}");
    }
    let error = material.read().unwrap_err().to_string();
    assert!(
        error.ends_with(&format!("run chmod go-w {}", file.display())),
        "{error}"
    );
}
