//! `ccm agent` as a server of Choria's network: replies to Choria's clients, and requests that must
//! be refused. Keys and tokens are made for the purpose.

mod actions;
mod brokers;
mod diagnosis;
mod parity;
mod permissions;
mod recorded;
mod refusals;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use ccm_agent::Agent;
use ccm_agent::config::{ChoriaServerConfig, Config, Issuer};
use ccm_core::model::id::EventId;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_nats::choria::message::{Reply, SecureReply, SecureRequest};
use ccm_nats::choria::{ChoriaSeed, Request, TransportMessage};
use ccm_value::secret::Secret;
use chrono::{DateTime, TimeDelta, Utc};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde_json::{Value, json};

use crate::support::TestEnv;
use crate::support::poll::LIMIT;
use crate::support::setup::Setup;

pub const NODE: &str = "web1.lab";

const ISSUER: u8 = 1;
pub const STRANGER: u8 = 2;
pub const ANN: u8 = 3;
const WEB1: u8 = 6;

/// Makes ids and times of requests differ.
static NEXT: AtomicU64 = AtomicU64::new(1);

pub fn seed(byte: u8) -> ChoriaSeed {
    ChoriaSeed::parse(&Secret::new(HEXLOWER.encode(&[byte; 32]))).unwrap()
}

/// Returns a token of ann with other claims, signed by a key.
pub fn token(signer: u8, changes: Value) -> String {
    let now = SystemClock.now();
    let mut claims = json!({
        "purpose": "choria_client_id",
        "callerid": "choria=ann",
        "public_key": seed(ANN).public_key().to_hex(),
        "permissions": {"fleet_management": true},
        "agents": ["*"],
        "ou": "choria",
        "jti": EventId::new(now, 1).as_str(),
        "iat": now.timestamp(),
        "exp": now.timestamp() + 3600,
    });
    for (key, value) in changes.as_object().unwrap() {
        claims[key] = value.clone();
    }
    let header = BASE64URL_NOPAD.encode(br#"{"alg":"EdDSA","typ":"JWT"}"#);
    let claims = BASE64URL_NOPAD.encode(claims.to_string().as_bytes());
    let signed = format!("{header}.{claims}");
    let signature = BASE64URL_NOPAD.encode(&seed(signer).sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

/// Returns the configuration of the server, with its files below a directory.
pub fn server_config(env: &TestEnv) -> ChoriaServerConfig {
    let server = token(
        ISSUER,
        json!({"purpose": "choria_server", "identity": NODE, "collectives": ["mcollective", "ops"],
               "public_key": seed(WEB1).public_key().to_hex()}),
    );
    let write = |name: &str, text: &str| -> PathBuf { env.write(name, text).into() };
    ChoriaServerConfig {
        collectives: vec!["mcollective".parse().unwrap(), "ops".parse().unwrap()],
        token: write("server.jwt", &server),
        seed: write("server.seed", &HEXLOWER.encode(&[WEB1; 32])),
        issuers: vec![Issuer {
            name: "choria".into(),
            key: seed(ISSUER).public_key(),
        }],
        policies: env.at("policies").into(),
        servers: Vec::new(),
        ca: None,
        registration_interval: None,
    }
}

/// A request of a client; each field can be changed.
pub struct Call {
    pub agent: String,
    pub collective: String,
    pub subject: String,
    pub message: String,
    pub filter: Option<Value>,
    pub caller: String,
    pub token: String,
    /// Token of the delegator that signs, if there is one.
    pub delegator: String,
    pub signer: u8,
    pub time: DateTime<Utc>,
}

impl Call {
    /// Returns an RPC request of ann to all nodes.
    pub fn rpc(agent: &str, action: &str, data: Value) -> Self {
        let message = json!({"agent": agent, "action": action, "data": data}).to_string();
        Self {
            agent: agent.into(),
            collective: "mcollective".into(),
            subject: format!("mcollective.broadcast.agent.{agent}"),
            message,
            filter: None,
            caller: "choria=ann".into(),
            token: token(ISSUER, json!({})),
            delegator: String::new(),
            signer: ANN,
            time: SystemClock.now(),
        }
    }

    /// Returns a discovery request.
    pub fn ping() -> Self {
        Self {
            message: "ping".into(),
            ..Self::rpc("discovery", "ping", Value::Null)
        }
    }

    #[must_use]
    pub fn filtered(self, filter: Value) -> Self {
        let mut complete =
            json!({"fact": [], "cf_class": [], "agent": [], "identity": [], "compound": []});
        for (key, value) in filter.as_object().unwrap() {
            complete[key] = value.clone();
        }
        Self {
            filter: Some(complete),
            ..self
        }
    }

    /// Returns the message as it is sent, with a subject for replies.
    pub fn encode(&self, reply_to: &str) -> Vec<u8> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let request = Request::new(
            (&self.agent, &self.collective),
            (&self.caller, "client.lab"),
            &format!("request{number}"),
            60,
            self.time + TimeDelta::nanoseconds(i64::try_from(number).unwrap()),
            self.message.clone().into_bytes(),
        );
        let mut request: Value = serde_json::from_slice(&request.encode().unwrap()).unwrap();
        if let Some(filter) = &self.filter {
            request["filter"] = filter.clone();
        }
        let request = request.to_string().into_bytes();
        let signature = seed(self.signer).sign(&request);
        let secure = SecureRequest::new(request, signature, &self.token);
        let mut secure: Value = serde_json::from_slice(&secure.encode().unwrap()).unwrap();
        if !self.delegator.is_empty() {
            secure["signer"] = self.delegator.clone().into();
        }
        TransportMessage::new(secure.to_string().into_bytes(), "client.lab")
            .replying_to(reply_to)
            .encode()
            .unwrap()
    }
}

/// Returns the lines of agent.yaml for a server, with its files below a directory.
pub fn server_lines(env: &TestEnv) -> String {
    let server = server_config(env);
    let issuer = seed(ISSUER).public_key().to_hex();
    format!(
        "choria:\n  server: true\n  token: {}\n  seed: {}\n  \
         issuers: [{{name: choria, key: {issuer}}}]\n",
        server.token.display(),
        server.seed.display(),
    )
}

/// A client of Choria.
pub struct Client(async_nats::Client);

impl Client {
    pub async fn connect(url: &str) -> Self {
        Self(async_nats::connect(url).await.unwrap())
    }

    /// Sends a message and returns the text of its reply, whose signature is verified.
    pub async fn send(&self, subject: &str, message: Vec<u8>, reply_to: &str) -> Option<String> {
        use futures_util::StreamExt as _;
        let mut replies = self.0.subscribe(reply_to.to_owned()).await.unwrap();
        self.publish(subject, message).await;
        let reply = tokio::time::timeout(LIMIT, replies.next()).await.ok()??;
        let transport = TransportMessage::decode(&reply.payload).unwrap();
        let secure = SecureReply::decode(transport.data()).unwrap();
        let key = seed(WEB1).public_key();
        assert!(key.is_signature_valid(secure.reply(), secure.signature()));
        let reply = Reply::decode(secure.reply()).unwrap();
        assert_eq!(reply.sender, NODE);
        Some(String::from_utf8(reply.message().to_vec()).unwrap())
    }

    /// Sends a request and returns the text of its reply.
    pub async fn text(&self, call: &Call) -> String {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let reply_to = format!("{}.reply.abc.{number}", call.collective);
        let message = call.encode(&reply_to);
        let sent = self.send(&call.subject, message, &reply_to).await;
        sent.expect("a reply")
    }

    /// Sends an RPC request and returns the document of its reply.
    pub async fn reply(&self, call: &Call) -> Value {
        serde_json::from_str(&self.text(call).await).unwrap()
    }

    /// Sends an RPC request that succeeds and returns its data.
    pub async fn data(&self, agent: &str, action: &str, data: Value) -> Value {
        let reply = self.reply(&Call::rpc(agent, action, data)).await;
        assert_eq!(reply["statuscode"], 0, "{reply}");
        assert_eq!(reply["action"], action);
        reply["data"].clone()
    }

    /// Publishes a message that gets no reply.
    pub async fn publish(&self, subject: &str, message: Vec<u8>) {
        self.0.flush().await.unwrap();
        let sent = self.0.publish(subject.to_owned(), message.into());
        sent.await.unwrap();
        self.0.flush().await.unwrap();
    }
}

/// An agent that serves Choria's clients, and a client.
pub struct Lab {
    pub setup: Setup<Agent>,
    client: Client,
}

impl std::ops::Deref for Lab {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Lab {
    pub async fn new() -> Self {
        Self::with(|_, _| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut Config, &TestEnv)) -> Self {
        let setup = Setup::inside_with(NODE, |config, env| {
            config.choria.server = Some(server_config(env));
            config.groups = vec!["web".parse().unwrap()];
            change(config, env);
        })
        .await;
        let client = Client::connect(&setup.server.url()).await;
        Self { setup, client }
    }

    /// Returns the reason of the last refusal.
    pub fn last_refusal(&self) -> Option<String> {
        let trust = self.setup.agent.node().status().trust?;
        trust.last_refusal.map(|refusal| refusal.reason)
    }
}
