//! Every way to log in, from a context file to a server that requires it.

use std::collections::BTreeMap;
use std::path::Path;

use ccm_nats::context::resolve;
use ccm_nats::{ConnectMode, Connection, ContextOptions, NatsError, connect};
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

use crate::support::nats::NatsServer;
use crate::support::poll::{LIMIT, eventually, when};

/// A directory with a context in it.
pub(super) struct World(tempfile::TempDir);

impl World {
    pub(super) fn new() -> Self {
        let world = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(world.0.path().join("nats/context")).unwrap();
        world
    }

    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Connects with a context that holds these fields.
    async fn connect(&self, server: &NatsServer, fields: Value) -> Result<Connection, NatsError> {
        let mut fields = fields;
        fields["url"] = server.url().into();
        self.write("nats/context/CCM.json", &fields.to_string());
        let root = self.0.path().to_str().unwrap().to_owned();
        let env = BTreeMap::from([("XDG_CONFIG_HOME".to_owned(), root)]);
        let settings = resolve(&ContextOptions::default(), &env, Some("CCM"))?;
        assert_eq!(settings.context.as_deref(), Some("CCM"));
        connect(&settings, ConnectMode::Once(LIMIT), "test").await
    }
}

/// Checks that a context logs in and that a client without credentials does not.
async fn leads_in(server: &NatsServer, world: &World, fields: Value, wrong: Value) {
    let connection = world.connect(server, fields).await.unwrap();
    connection.flush().await.unwrap();
    let stranger = connect(&server.settings(), ConnectMode::Once(LIMIT), "stranger").await;
    assert!(stranger.is_err(), "the server requires nothing");
    let error = world.connect(server, wrong).await.unwrap_err().to_string();
    let start = format!("can't connect to NATS at {}: ", server.url());
    assert!(error.starts_with(&start), "{error}");
    assert!(!error.contains("hunter"), "{error}");
}

#[tokio::test]
async fn a_user_and_password() {
    let server = NatsServer::with("authorization { user: ann, password: hunter2 }");
    let world = World::new();
    let fields = json!({"user": "ann", "password": "hunter2"});
    leads_in(
        &server,
        &world,
        fields,
        json!({"user": "ann", "password": "hunter3"}),
    )
    .await;
    let file = world.write("pw", "hunter2\n");
    let fields = json!({"user": "ann", "password": format!("file://{file}")});
    assert!(world.connect(&server, fields).await.is_ok());
}

#[tokio::test]
async fn credentials_in_the_url() {
    let server = NatsServer::with("authorization { user: ann, password: \"hunter@2\" }");
    let url = server.url().replace("nats://", "nats://ann:hunter%402@");
    let given = ContextOptions {
        server: Some(url),
        ..ContextOptions::default()
    };
    let settings = resolve(&given, &BTreeMap::new(), None).unwrap();
    assert_eq!(settings.server_list(), server.url());
    let connection = connect(&settings, ConnectMode::Once(LIMIT), "test")
        .await
        .unwrap();
    assert!(connection.is_up());
}

#[tokio::test]
async fn a_token() {
    let server = NatsServer::with("authorization { token: hunter2 }");
    let wrong = json!({"token": "hunter3"});
    leads_in(&server, &World::new(), json!({"token": "hunter2"}), wrong).await;
}

#[tokio::test]
async fn an_nkey() {
    let (known, other) = (KeyPair::new_user(), KeyPair::new_user());
    let users = format!(
        "authorization {{ users: [ {{ nkey: {} }} ] }}",
        known.public_key()
    );
    let world = World::new();
    let fields = json!({"nkey": world.write("known.nk", &known.seed().unwrap())});
    let wrong = json!({"nkey": world.write("other.nk", &other.seed().unwrap())});
    leads_in(&NatsServer::with(&users), &world, fields, wrong).await;
}

#[tokio::test]
async fn credentials_with_a_jwt() {
    let trust = Trust::new();
    let server = NatsServer::with(&trust.config());
    let world = World::new();
    let fields = json!({"creds": world.write("good.creds", &trust.creds(&trust.account))});
    let stranger = KeyPair::new_account();
    let wrong = json!({"creds": world.write("bad.creds", &trust.creds(&stranger))});
    leads_in(&server, &world, fields, wrong).await;
    let (jwt, seed) = trust.user(&trust.account);
    let fields = json!({"user_jwt": jwt, "user_seed": seed});
    assert!(world.connect(&server, fields).await.is_ok());
}

#[tokio::test]
async fn certificates_of_an_own_authority() {
    let world = World::new();
    let tls = Certificates::new(&world);
    let server = NatsServer::with(&tls.config(""));
    let fields = json!({"ca": tls.ca, "cert": tls.client.0, "key": tls.client.1});
    leads_in(&server, &world, fields, json!({"ca": tls.ca})).await;
}

#[tokio::test]
async fn tls_before_the_first_word() {
    let world = World::new();
    let tls = Certificates::new(&world);
    let server = NatsServer::with(&tls.config("handshake_first: true"));
    let fields = json!({
        "ca": tls.ca, "cert": tls.client.0, "key": tls.client.1, "tls_first": true
    });
    let connection = world.connect(&server, fields).await.unwrap();
    assert!(connection.is_up());
}

#[tokio::test]
async fn credentials_that_were_renewed_count_at_the_next_try() {
    let trust = Trust::new();
    let server = NatsServer::with(&trust.config());
    let world = World::new();
    let file = world.write("a.creds", &trust.creds(&KeyPair::new_account()));
    let mut settings = server.settings();
    settings.login = ccm_nats::context::Login::Creds(ccm_nats::context::CredentialSource::File(
        Path::new(&file).to_owned(),
    ));
    let connection = connect(&settings, ConnectMode::Forever, "test")
        .await
        .unwrap();
    let mut state = connection.state();
    eventually("a login that is refused", async || {
        let log = server.log();
        when(log.contains("authentication error"), log)
    })
    .await;
    assert!(!connection.is_up());
    world.write("a.creds", &trust.creds(&trust.account));
    let up = tokio::time::timeout(LIMIT, state.wait_for(|link| link.is_up())).await;
    up.expect("connected with the new credentials").unwrap();
}

/// An operator, its account, and users of it.
pub(super) struct Trust {
    operator: KeyPair,
    pub(super) account: KeyPair,
}

impl Trust {
    pub(super) fn new() -> Self {
        Self {
            operator: KeyPair::new_operator(),
            account: KeyPair::new_account(),
        }
    }

    pub(super) fn config(&self) -> String {
        let operator = jwt(
            &self.operator,
            &self.operator,
            json!({"type": "operator", "version": 2}),
        );
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1,
            "wildcards": true, "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1,
            "streams": -1, "consumer": -1
        });
        let mut claims = json!({"type": "account", "version": 2, "limits": limits});
        let account = jwt(&self.operator, &self.account, claims.clone());
        claims["limits"]["mem_storage"] = 0.into();
        claims["limits"]["disk_storage"] = 0.into();
        // JetStream does not start without one.
        let system = KeyPair::new_account();
        format!(
            "operator: {operator}\nresolver: MEMORY\nsystem_account: {}\n\
             resolver_preload: {{ {}: {account}, {}: {} }}",
            system.public_key(),
            self.account.public_key(),
            system.public_key(),
            jwt(&self.operator, &system, claims)
        )
    }

    /// Returns the JWT, signed by `account`, and the seed of a new user.
    fn user(&self, account: &KeyPair) -> (String, String) {
        let user = KeyPair::new_user();
        let claims = json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1});
        (jwt(account, &user, claims), user.seed().unwrap())
    }

    pub(super) fn creds(&self, account: &KeyPair) -> String {
        let (jwt, seed) = self.user(account);
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )
    }
}

/// Returns claims about a subject, signed by an issuer.
fn jwt(issuer: &KeyPair, subject: &KeyPair, claims: Value) -> String {
    let encode = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
    let head = encode(&json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let body = encode(&json!({
        "jti": "id", "iat": 1_700_000_000, "iss": issuer.public_key(), "name": "test",
        "sub": subject.public_key(), "nats": claims
    }));
    let signed = format!("{head}.{body}");
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", BASE64URL_NOPAD.encode(&signature))
}

/// An authority, and what it signed for a server and a client: files of certificate and key.
pub(super) struct Certificates {
    pub(super) ca: String,
    server: (String, String),
    pub(super) client: (String, String),
}

impl Certificates {
    pub(super) fn new(world: &World) -> Self {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = authority.self_signed(&key).unwrap();
        let ca = world.write("ca.pem", &certificate.pem());
        let issuer = Issuer::new(authority, key);
        let signed = |name: &str, host: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap();
            (
                world.write(&format!("{name}.pem"), &certificate.pem()),
                world.write(&format!("{name}.key"), &key.serialize_pem()),
            )
        };
        Self {
            ca,
            server: signed("server", "127.0.0.1"),
            client: signed("client", "ann"),
        }
    }

    pub(super) fn config(&self, more: &str) -> String {
        format!(
            "tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true\n{more} }}",
            self.server.0, self.server.1, self.ca
        )
    }
}
