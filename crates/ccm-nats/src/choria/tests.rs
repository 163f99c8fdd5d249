//! Requests that are authentic, and every way in which they are not.

use chrono::{DateTime, TimeDelta, Utc};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde_json::{Value, json};

use super::message::{Reply, SecureReply, SecureRequest};
use super::*;
use ccm_core::model::id::EventId;
use ccm_value::secret::Secret;

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

fn seed(byte: u8) -> ChoriaSeed {
    ChoriaSeed::parse(&Secret::new(HEXLOWER.encode(&[byte; 32]))).unwrap()
}

const ISSUER: u8 = 1;
const OTHER_ISSUER: u8 = 2;
const ANN: u8 = 3;
const DELEGATOR: u8 = 4;
const CHAIN: u8 = 5;
const WEB1: u8 = 6;

fn chain() -> TrustChain {
    TrustChain::new([("choria".to_owned(), seed(ISSUER).public_key())])
}

/// Returns a token with claims changed from those of ann, signed by a key.
fn token(signer: u8, changes: Value) -> String {
    let mut claims = json!({
        "purpose": "choria_client_id",
        "callerid": "choria=ann",
        "public_key": seed(ANN).public_key().to_hex(),
        "permissions": {"fleet_management": true},
        "ou": "choria",
        "iss": format!("I-{}", seed(ISSUER).public_key().to_hex()),
        "jti": EventId::new(now(), 1).as_str(),
        "iat": now().timestamp(),
        "nbf": now().timestamp(),
        "exp": now().timestamp() + 3600,
    });
    for (key, value) in changes.as_object().unwrap() {
        claims[key] = value.clone();
    }
    let header = BASE64URL_NOPAD.encode(br#"{"alg":"EdDSA","typ":"JWT"}"#);
    let signed = format!(
        "{header}.{}",
        BASE64URL_NOPAD.encode(claims.to_string().as_bytes())
    );
    let signature = BASE64URL_NOPAD.encode(&seed(signer).sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

/// Returns a token of a client that a chain issuer made, with changed claims.
fn chained_token(issuer: u8, signing: u8, changes: Value) -> String {
    let id = EventId::new(now(), 2).to_string();
    let key = seed(CHAIN).public_key().to_hex();
    let certified = HEXLOWER.encode(&seed(issuer).sign(format!("c1.{key}").as_bytes()));
    let made = HEXLOWER.encode(&seed(signing).sign(format!("{id}.{certified}").as_bytes()));
    let mut claims = json!({
        "iss": format!("C-c1.{key}"),
        "jti": id,
        "tcs": format!("{certified}.{made}"),
        "issexp": now().timestamp() + 3600,
    });
    for (key, value) in changes.as_object().unwrap() {
        claims[key] = value.clone();
    }
    token(signing, claims)
}

fn request(caller: &str, at: DateTime<Utc>) -> Vec<u8> {
    let names = (("rpcutil", "mcollective"), (caller, "client.lab"));
    let request = Request::new(names.0, names.1, "r1", 60, at, b"{}".to_vec());
    request.encode().unwrap()
}

fn transport(secure: &Value) -> TransportMessage {
    TransportMessage::new(secure.to_string().into_bytes(), "client.lab")
}

/// Returns a secure request as JSON, signed by a key.
fn secure(request: &[u8], signer: u8, caller: &str, delegator: &str) -> Value {
    let secure = SecureRequest::new(request.to_vec(), seed(signer).sign(request), caller);
    let mut document: Value = serde_json::from_slice(&secure.encode().unwrap()).unwrap();
    if !delegator.is_empty() {
        document["signer"] = delegator.into();
    }
    document
}

fn authenticate(secure: &Value) -> Result<AuthenticRequest, SecurityError> {
    chain().authenticate(&transport(secure), now())
}

fn by_ann(token: &str) -> Result<AuthenticRequest, SecurityError> {
    authenticate(&secure(&request("choria=ann", now()), ANN, token, ""))
}

fn delegator(changes: Value) -> String {
    let mut claims = json!({
        "callerid": "choria=aaa",
        "public_key": seed(DELEGATOR).public_key().to_hex(),
        "permissions": {"authentication_delegator": true},
    });
    for (key, value) in changes.as_object().unwrap() {
        claims[key] = value.clone();
    }
    token(ISSUER, claims)
}

#[test]
fn a_request_of_a_client_is_authentic() {
    let authentic = by_ann(&token(ISSUER, json!({}))).unwrap();
    assert_eq!(authentic.request.caller, "choria=ann");
    assert_eq!(authentic.signer, seed(ANN).public_key());
    assert_eq!(authentic.expiry, now() + TimeDelta::seconds(60));
}

#[test]
fn a_request_with_a_token_of_a_chain_issuer_is_authentic() {
    by_ann(&chained_token(ISSUER, CHAIN, json!({}))).unwrap();
}

#[test]
fn a_request_that_a_delegator_signed_is_authentic() {
    let caller = token(
        ISSUER,
        json!({"permissions": {"signed_fleet_management": true}}),
    );
    let request = request("choria=ann", now());
    let authentic =
        authenticate(&secure(&request, DELEGATOR, &caller, &delegator(json!({})))).unwrap();
    assert_eq!(authentic.signer, seed(DELEGATOR).public_key());
    assert_eq!(authentic.signer_name, "choria=aaa");
    assert_eq!(authentic.claims.caller, "choria=ann");
}

#[test]
fn tokens_that_do_not_prove_who_calls_are_refused() {
    let expired = now().timestamp() - 1;
    let caller = |error| Err(SecurityError::CallerToken(error));
    let table: Vec<(&str, String, Result<(), SecurityError>)> = vec![
        (
            "of another issuer",
            token(OTHER_ISSUER, json!({})),
            caller(TokenError::Signature),
        ),
        (
            "of another organization",
            token(ISSUER, json!({"ou": "acme"})),
            caller(TokenError::UnknownIssuer),
        ),
        (
            "naming another issuer",
            token(
                ISSUER,
                json!({"iss": format!("I-{}", seed(OTHER_ISSUER).public_key().to_hex())}),
            ),
            caller(TokenError::Signature),
        ),
        (
            "expired",
            token(ISSUER, json!({"exp": expired})),
            caller(TokenError::Expired),
        ),
        (
            "without an expiry",
            token(ISSUER, json!({"exp": null})),
            caller(TokenError::Expired),
        ),
        (
            "not yet valid",
            token(ISSUER, json!({"nbf": now().timestamp() + 1})),
            caller(TokenError::NotYetValid),
        ),
        (
            "of a server",
            token(ISSUER, json!({"purpose": "choria_server"})),
            caller(TokenError::Purpose("client")),
        ),
        (
            "without a key",
            token(ISSUER, json!({"public_key": ""})),
            caller(TokenError::PublicKey),
        ),
        (
            "without permissions",
            token(ISSUER, json!({"permissions": {}})),
            Err(SecurityError::NoFleetManagement),
        ),
        (
            "without a permissions claim",
            token(ISSUER, json!({"permissions": null})),
            caller(TokenError::Format),
        ),
        (
            "that needs a delegator",
            token(
                ISSUER,
                json!({"permissions": {"fleet_management": true, "signed_fleet_management": true}}),
            ),
            Err(SecurityError::NeedsDelegator),
        ),
        (
            "with an OPA policy",
            token(ISSUER, json!({"opa_policy": "package io.choria.aaasvc"})),
            Err(SecurityError::OpaPolicy),
        ),
        (
            "of another caller",
            token(ISSUER, json!({"callerid": "choria=bob"})),
            Err(SecurityError::OtherCaller),
        ),
        (
            "with another key",
            token(
                ISSUER,
                json!({"public_key": seed(WEB1).public_key().to_hex()}),
            ),
            Err(SecurityError::Signature),
        ),
        (
            "of a chain that the issuer does not know",
            chained_token(OTHER_ISSUER, CHAIN, json!({})),
            caller(TokenError::Chain),
        ),
        (
            "of a chain signed by another key",
            chained_token(ISSUER, OTHER_ISSUER, json!({})),
            caller(TokenError::Chain),
        ),
        (
            "of a chain issuer that expired",
            chained_token(ISSUER, CHAIN, json!({"issexp": expired})),
            caller(TokenError::Expired),
        ),
        (
            "of a chain issuer without expiry",
            chained_token(ISSUER, CHAIN, json!({"issexp": null})),
            caller(TokenError::Chain),
        ),
        (
            "of a chain with another id",
            chained_token(
                ISSUER,
                CHAIN,
                json!({"jti": EventId::new(now(), 9).as_str()}),
            ),
            caller(TokenError::Chain),
        ),
        (
            "of a chain with another time",
            chained_token(ISSUER, CHAIN, json!({"iat": 1})),
            caller(TokenError::Chain),
        ),
        ("that is none", "x".into(), caller(TokenError::Format)),
        ("that is empty", String::new(), caller(TokenError::Format)),
    ];
    for (name, token, expected) in table {
        assert_eq!(by_ann(&token).map(|_| ()), expected, "a token {name}");
    }
}

#[test]
fn a_token_that_is_signed_otherwise_is_refused() {
    for header in [
        r#"{"alg":"none"}"#,
        r#"{"alg":"RS256"}"#,
        r#"{"alg":"HS256"}"#,
    ] {
        let valid = token(ISSUER, json!({}));
        let (_, rest) = valid.split_once('.').unwrap();
        let token = format!("{}.{rest}", BASE64URL_NOPAD.encode(header.as_bytes()));
        let expected = SecurityError::CallerToken(TokenError::Algorithm);
        assert_eq!(by_ann(&token).unwrap_err(), expected, "{header}");
    }
}

#[test]
fn delegators_need_their_permission_and_the_organization_of_the_caller() {
    let caller = token(ISSUER, json!({}));
    let request = request("choria=ann", now());
    let signer = |error| SecurityError::SignerToken(error);
    for (name, caller, by, expected) in [
        (
            "no permission",
            caller.clone(),
            delegator(json!({"permissions": {"fleet_management": true}})),
            SecurityError::NoDelegator,
        ),
        (
            "expired",
            caller.clone(),
            delegator(json!({"exp": 1})),
            signer(TokenError::Expired),
        ),
        (
            "another organization",
            caller.clone(),
            delegator(json!({"ou": "acme"})),
            signer(TokenError::UnknownIssuer),
        ),
        (
            "another key",
            caller.clone(),
            delegator(json!({"public_key": seed(ANN).public_key().to_hex()})),
            SecurityError::Signature,
        ),
        (
            "caller of another issuer",
            token(OTHER_ISSUER, json!({})),
            delegator(json!({})),
            SecurityError::CallerToken(TokenError::Signature),
        ),
        (
            "caller without permission",
            token(ISSUER, json!({"permissions": {}})),
            delegator(json!({})),
            SecurityError::NoFleetManagement,
        ),
        (
            "caller with an OPA policy",
            token(ISSUER, json!({"opa_policy": "x"})),
            delegator(json!({})),
            SecurityError::OpaPolicy,
        ),
    ] {
        let refused = authenticate(&secure(&request, DELEGATOR, &caller, &by)).unwrap_err();
        assert_eq!(refused, expected, "{name}");
    }
}

#[test]
fn changed_old_and_future_requests_are_refused() {
    let ann = token(ISSUER, json!({}));
    let at = |seconds| request("choria=ann", now() + TimeDelta::seconds(seconds));
    for (name, document, expected) in [
        (
            "signed by another",
            secure(&at(0), WEB1, &ann, ""),
            SecurityError::Signature,
        ),
        (
            "old",
            secure(&at(-61), ANN, &ann, ""),
            SecurityError::Expired,
        ),
        (
            "from the future",
            secure(&at(61), ANN, &ann, ""),
            SecurityError::Future,
        ),
        (
            "of another caller",
            secure(&request("choria=bob", now()), ANN, &ann, ""),
            SecurityError::OtherCaller,
        ),
    ] {
        assert_eq!(authenticate(&document).unwrap_err(), expected, "{name}");
    }
    let mut changed = secure(&at(0), ANN, &ann, "");
    changed["request"] = secure(&at(1), ANN, &ann, "")["request"].clone();
    assert_eq!(
        authenticate(&changed).unwrap_err(),
        SecurityError::Signature
    );
}

#[test]
fn malformed_requests_are_refused_by_field() {
    let valid: Value = serde_json::from_slice(&request("choria=ann", now())).unwrap();
    for (key, value, expected) in [
        (
            "protocol",
            json!("io.choria.protocol.v1.request"),
            MessageError::Protocol("io.choria.protocol.v2.request"),
        ),
        (
            "message",
            json!(""),
            MessageError::Document("io.choria.protocol.v2.request"),
        ),
        (
            "message",
            json!("%%%"),
            MessageError::Document("io.choria.protocol.v2.request"),
        ),
        ("id", json!(""), MessageError::Name("id")),
        ("sender", json!("a\nb"), MessageError::Name("sender")),
        ("caller", json!("ann"), MessageError::Name("caller")),
        ("caller", json!("choria=a b"), MessageError::Name("caller")),
        (
            "collective",
            json!("x".repeat(600)),
            MessageError::Name("collective"),
        ),
        ("ttl", json!(0), MessageError::Ttl),
        (
            "ttl",
            json!(-1),
            MessageError::Document("io.choria.protocol.v2.request"),
        ),
        ("time", json!(0), MessageError::Time),
        (
            "time",
            json!("now"),
            MessageError::Document("io.choria.protocol.v2.request"),
        ),
        (
            "filter",
            json!({"fact": [{"fact": "a", "operator": "~", "value": "b"}]}),
            MessageError::Document("io.choria.protocol.v2.request"),
        ),
    ] {
        let mut document = valid.clone();
        document[key] = value.clone();
        let error = Request::decode(document.to_string().as_bytes()).unwrap_err();
        assert_eq!(error, expected, "{key}: {value}");
    }
}

#[test]
fn replies_return_the_federation_headers_and_verify() {
    let federation =
        json!({"request": "r1", "reply": "mcollective.reply.x", "targets": ["web1.lab"]});
    let received = json!({
        "protocol": "io.choria.protocol.v2.transport",
        "data": "",
        "headers": {"reply": "choria.federation.eu.collective", "sender": "x", "federation": federation,
                    "trace": [["a", "b", "c"]]},
    });
    let received = TransportMessage::decode(received.to_string().as_bytes()).unwrap();
    let server = token(
        ISSUER,
        json!({"purpose": "choria_server", "identity": "web1.lab", "collectives": ["mcollective"],
               "public_key": seed(WEB1).public_key().to_hex()}),
    );
    let key = ServerKey::new(
        &Secret::new(server.clone()),
        &Secret::new(HEXLOWER.encode(&[WEB1; 32])),
        "web1.lab",
        &chain(),
        now(),
    )
    .unwrap();
    let request = Request::decode(&request("choria=ann", now())).unwrap();
    let reply = Reply::new(&request, "web1.lab", now(), b"pong".to_vec());
    let sent = received.reply(key.reply(&reply).unwrap(), "web1.lab");
    let document: Value = serde_json::from_slice(&sent.encode().unwrap()).unwrap();
    assert_eq!(document["headers"]["federation"], federation);
    assert_eq!(document["headers"]["trace"], json!([["a", "b", "c"]]));
    let secure = SecureReply::decode(sent.data()).unwrap();
    assert_eq!(secure.sender_token(), server);
    assert!(
        seed(WEB1)
            .public_key()
            .is_signature_valid(secure.reply(), secure.signature())
    );
    let reply = Reply::decode(secure.reply()).unwrap();
    assert_eq!(
        (reply.message(), reply.request.as_str()),
        (&b"pong"[..], "r1")
    );
}

#[test]
fn a_server_key_must_belong_to_the_token_and_the_node() {
    let claims = json!({"purpose": "choria_server", "identity": "web1.lab",
                        "public_key": seed(WEB1).public_key().to_hex()});
    let load = |token: String, byte: u8, identity: &str| {
        let seed = Secret::new(HEXLOWER.encode(&[byte; 32]));
        ServerKey::new(&Secret::new(token), &seed, identity, &chain(), now()).map(|_| ())
    };
    let valid = token(ISSUER, claims.clone());
    assert_eq!(load(valid.clone(), WEB1, "web1.lab"), Ok(()));
    assert_eq!(
        load(valid.clone(), ANN, "web1.lab"),
        Err(ServerKeyError::OtherKey)
    );
    let other = ServerKeyError::OtherIdentity("web1.lab".into());
    assert_eq!(load(valid, WEB1, "web2.lab"), Err(other));
    let foreign = load(token(OTHER_ISSUER, claims), WEB1, "web1.lab");
    assert_eq!(foreign, Err(TokenError::Signature.into()));
    let client = load(token(ISSUER, json!({})), ANN, "web1.lab");
    assert_eq!(client, Err(TokenError::Purpose("server").into()));
}

#[test]
fn the_policy_of_a_token_names_agents_and_actions() {
    let allows = |agents: Value, agent: &str, action: &str| {
        let token = token(ISSUER, json!({"agents": agents}));
        let claims = ClientClaims::verify(&token, &seed(ISSUER).public_key(), now()).unwrap();
        claims.allows(agent, action)
    };
    assert_eq!(allows(json!([]), "ccm", "ping"), None);
    assert_eq!(allows(json!(["*"]), "ccm", "ping"), Some(true));
    assert_eq!(allows(json!(["ccm.*"]), "ccm", "ping"), Some(true));
    assert_eq!(allows(json!(["ccm.ping"]), "ccm", "apply"), Some(false));
    assert_eq!(allows(json!(["rpcutil.*"]), "ccm", "ping"), Some(false));
    assert_eq!(
        allows(json!(["ccm.ping", "ccm"]), "ccm", "ping"),
        Some(false)
    );
}
