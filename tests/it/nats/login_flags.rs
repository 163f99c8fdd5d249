//! The flags with which every command that connects logs in, with servers that require it.

use nkeys::KeyPair;

use super::contexts::{Certificates, Trust, World};
use crate::support::nats::NatsServer;
use crate::support::{Outcome, TestEnv};

/// An environment without contexts of this machine, for one server.
struct Client {
    env: TestEnv,
    url: String,
}

impl Client {
    fn of(server: &NatsServer) -> Self {
        let mut env = TestEnv::new();
        env.set("XDG_CONFIG_HOME", &env.at("config"));
        Self {
            env,
            url: server.url(),
        }
    }

    /// Runs a command that uses the server, with these flags.
    fn init(&self, flags: &[&str]) -> Outcome {
        let command = ["fleet", "init", "--server", &self.url];
        self.env.ccm(&[&command, flags].concat())
    }

    fn accepts(&self, flags: &[&str]) {
        let output = self.init(flags).ok();
        assert!(output.contains("CCM_EVENTS"), "{flags:?}: {output}");
    }

    /// Checks that the server refuses the login, and that no secret is printed.
    fn refuses(&self, flags: &[&str]) {
        let error = self.init(flags).error(1);
        assert!(error.contains("can't connect to NATS"), "{error}");
        assert!(!error.contains("hunter"), "{error}");
    }
}

#[test]
fn a_user_and_a_password() {
    let server = NatsServer::with("authorization { user: ann, password: hunter2 }");
    let mut client = Client::of(&server);
    client.refuses(&[]);
    client.refuses(&["--user", "ann", "--password", "hunter3"]);
    client.accepts(&["--user", "ann", "--password", "hunter2"]);
    let file = client.env.write_secret("password", "hunter2\n");
    client.accepts(&["--user", "ann", "--password", &format!("file://{file}")]);
    let error = client.init(&["--password", "hunter2"]).error(2);
    assert!(
        error.contains("a password needs a user: use --user"),
        "{error}"
    );
    client.env.set("NATS_PASSWORD", "hunter2");
    client.accepts(&["--user", "ann"]);
    client.env.set("NATS_USER", "ann");
    client.accepts(&[]);
}

#[test]
fn a_user_without_a_password_is_a_token() {
    let server = NatsServer::with("authorization { token: hunter2 }");
    let client = Client::of(&server);
    client.refuses(&["--user", "hunter3"]);
    client.accepts(&["--user", "hunter2"]);
}

#[test]
fn an_nkey() {
    let (known, other) = (KeyPair::new_user(), KeyPair::new_user());
    let users = format!(
        "authorization {{ users: [ {{ nkey: {} }} ] }}",
        known.public_key()
    );
    let server = NatsServer::with(&users);
    let client = Client::of(&server);
    let known = client.env.write_secret("known.nk", known.seed().unwrap());
    let other = client.env.write_secret("other.nk", other.seed().unwrap());
    client.refuses(&["--nkey", &other]);
    client.accepts(&["--nkey", &known]);
}

#[test]
fn credentials_with_a_jwt() {
    let trust = Trust::new();
    let server = NatsServer::with(&trust.config());
    let mut client = Client::of(&server);
    let good = trust.creds(&trust.account);
    let good = client.env.write_secret("good.creds", good);
    let bad = trust.creds(&KeyPair::new_account());
    let bad = client.env.write_secret("bad.creds", bad);
    client.refuses(&["--creds", &bad]);
    client.accepts(&["--creds", &good]);
    let error = client.init(&["--creds", &good, "--nkey", &bad]).error(2);
    assert!(error.contains("cannot be used with"), "{error}");
    client.env.set("NATS_CREDS", &good);
    client.accepts(&[]);
}

#[test]
fn certificates_of_server_and_client() {
    let world = World::new();
    let tls = Certificates::new(&world);
    let server = NatsServer::with(&tls.config(""));
    let mut client = Client::of(&server);
    let (certificate, key) = &tls.client;
    client.refuses(&["--tlsca", &tls.ca]);
    let flags = [
        "--tlsca",
        &tls.ca,
        "--tlscert",
        certificate,
        "--tlskey",
        key,
    ];
    client.accepts(&flags);
    let error = client.init(&flags[..4]).error(2);
    assert!(error.contains("cert needs a key"), "{error}");
    client.env.set("NATS_CA", &tls.ca);
    client.env.set("NATS_CERT", certificate);
    client.env.set("NATS_KEY", key);
    client.accepts(&[]);
}

#[test]
fn flags_override_the_environment_which_overrides_the_context() {
    let server = NatsServer::with(
        "authorization { users: [ {user: ann, password: a}, {user: bob, password: b} ] }",
    );
    let mut client = Client::of(&server);
    let context = |user: &str| format!(r#"{{"user": "{user}", "password": "wrong"}}"#);
    client
        .env
        .write("config/nats/context/site.json", context("carl"));
    client.refuses(&["--context", "site"]);
    client.env.set("NATS_USER", "ann");
    client.env.set("NATS_PASSWORD", "a");
    client.accepts(&["--context", "site"]);
    client.accepts(&["--context", "site", "--user", "bob", "--password", "b"]);
    // Of another kind than that of the environment.
    let none = client.env.at("none.creds");
    client.refuses(&["--creds", &none]);
    client.env.set("NATS_CREDS", &none);
    client.accepts(&["--user", "bob", "--password", "b"]);
}

#[test]
fn every_command_that_connects_has_the_flags() {
    let env = TestEnv::new();
    let commands: [&[&str]; 12] = [
        &["agent"],
        &["apply"],
        &["ensure", "file"],
        &["ensure", "archive"],
        &["fleet", "nodes"],
        &["fleet", "ensure", "archive"],
        &["fleet", "rollout", "start"],
        &["hiera", "parse"],
        &["registration", "query"],
        &["status"],
        &["template"],
        &["validate"],
    ];
    for command in commands {
        let help = env.ccm(&[command, &["--help"]].concat()).ok();
        for flag in [
            "--server",
            "--context",
            "--user",
            "--password",
            "--creds",
            "--nkey",
            "--tlsca",
            "--tlscert",
            "--tlskey",
        ] {
            let is_listed = help.contains(&format!("{flag} <"));
            assert!(is_listed, "{command:?} {flag}: {help}");
        }
    }
}

#[test]
fn flags_may_precede_the_command() {
    let server = NatsServer::with("authorization { user: ann, password: hunter2 }");
    let client = Client::of(&server);
    let context = format!(
        r#"{{"url": "{}", "user": "ann", "password": "hunter2"}}"#,
        client.url
    );
    client.env.write("config/nats/context/site.json", context);
    let init = |flags: &[&str]| client.env.ccm(&[flags, &["fleet", "init"]].concat()).ok();
    assert!(init(&["--context", "site"]).contains("created"));
    let login = [
        "--server",
        &client.url,
        "--user",
        "ann",
        "--password",
        "hunter2",
    ];
    assert!(init(&login).contains("unchanged"));
}

#[test]
fn the_password_of_an_archive_is_not_that_of_nats() {
    let server = NatsServer::with("authorization { user: ann, password: hunter2 }");
    let client = Client::of(&server);
    let archive = client.env.at("a.tgz");
    let ensure = |flags: &[&str]| {
        let url = "http://127.0.0.1:1/{{ kvGet('none', 'none') }}.tgz";
        let command = ["ensure", "archive", &archive, url, "--server", &client.url];
        let user = ["--user", "ann", "--owner", "root", "--group", "root"];
        client
            .env
            .ccm(&[&command[..], &user, flags].concat())
            .stderr
    };
    let error = ensure(&["--username", "x", "--password", "hunter2"]);
    assert!(error.contains("can't connect to NATS"), "{error}");
    let error = ensure(&[
        "--username",
        "x",
        "--password",
        "y",
        "--nats-password",
        "hunter2",
    ]);
    assert!(!error.contains("can't connect to NATS"), "{error}");
}
