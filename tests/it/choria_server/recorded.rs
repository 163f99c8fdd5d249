//! Exchanges of the real `choria` command with `ccm agent` alone, recorded by `scripts/interop
//! --record`: the recorded messages are authentic at their time, and the same requests with keys of
//! this test get replies of the same form, which the real client accepted.

use std::path::{Path, PathBuf};

use ccm_nats::choria::message::{Reply, SecureReply, SecureRequest};
use ccm_nats::choria::{Request, TransportMessage, TrustChain};
use serde_json::Value;

use super::{Call, Lab};
use crate::interop::assert_form;

struct Exchange {
    name: String,
    document: Value,
    transport: TransportMessage,
    request: Request,
    reply: Reply,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/interop/choria_server")
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn trust_chain() -> TrustChain {
    let keys = read(&directory().join("keys.json"));
    let issuer = keys["issuer"].as_str().unwrap().parse().unwrap();
    TrustChain::new([("choria".to_owned(), issuer)])
}

fn exchanges() -> Vec<Exchange> {
    let entries = std::fs::read_dir(directory()).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.file_name().is_some_and(|name| name != "keys.json"));
    files.sort();
    assert!(!files.is_empty(), "nothing is recorded");
    let exchange = |file: &PathBuf| {
        let document = read(file);
        let decode =
            |key: &str| TransportMessage::decode(document[key].to_string().as_bytes()).unwrap();
        let (transport, reply) = (decode("request"), decode("reply"));
        let secure = SecureRequest::decode(transport.data()).unwrap();
        let secure_reply = SecureReply::decode(reply.data()).unwrap();
        Exchange {
            name: file.file_stem().unwrap().to_str().unwrap().to_owned(),
            request: Request::decode(secure.request()).unwrap(),
            reply: Reply::decode(secure_reply.reply()).unwrap(),
            transport,
            document,
        }
    };
    files.iter().map(exchange).collect()
}

#[test]
fn recorded_requests_of_the_choria_command_are_authentic_at_their_time_only() {
    for Exchange {
        name,
        transport,
        request,
        ..
    } in exchanges()
    {
        let authentic = trust_chain()
            .authenticate(&transport, request.time())
            .unwrap();
        assert_eq!(authentic.claims.caller, "choria=ann", "{name}");
        let later = request.time() + chrono::TimeDelta::hours(2);
        assert!(
            trust_chain().authenticate(&transport, later).is_err(),
            "{name}"
        );
        let foreign = TrustChain::new([("choria".to_owned(), super::seed(2).public_key())]);
        assert!(
            foreign.authenticate(&transport, request.time()).is_err(),
            "{name}"
        );
    }
}

#[test]
fn recorded_replies_verify_with_the_token_of_the_node() {
    for Exchange {
        name,
        document,
        request,
        reply,
        ..
    } in exchanges()
    {
        let transport = TransportMessage::decode(document["reply"].to_string().as_bytes()).unwrap();
        let secure = SecureReply::decode(transport.data()).unwrap();
        let claims = trust_chain()
            .verify_server(secure.sender_token(), request.time())
            .unwrap();
        let key = claims.public_key().unwrap();
        assert!(
            key.is_signature_valid(secure.reply(), secure.signature()),
            "{name}"
        );
        assert_eq!(
            (reply.request, claims.identity),
            (request.id, "web1.lab".to_owned()),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_the_choria_command_get_replies_that_it_accepted() {
    let lab = Lab::new().await;
    for Exchange {
        name,
        document,
        request,
        reply,
        ..
    } in exchanges()
    {
        let call = Call {
            agent: request.agent.clone(),
            collective: request.collective.clone(),
            subject: document["subject"].as_str().unwrap().into(),
            message: String::from_utf8(request.message().to_vec()).unwrap(),
            filter: Some(serde_json::to_value(request.filter()).unwrap()),
            ..Call::ping()
        };
        let text = lab.text(&call).await;
        let recorded = std::str::from_utf8(reply.message()).unwrap();
        let Ok(recorded) = serde_json::from_str::<Value>(recorded) else {
            assert_eq!(text, recorded, "{name}");
            continue;
        };
        let found: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            found["statuscode"], recorded["statuscode"],
            "{name}: {found}"
        );
        assert_form(&name, &recorded["data"], &found["data"]);
        // What the agent replied is what the client showed.
        if let Some(shown) = document["client"]["replies"].get(0) {
            assert_eq!(shown["statuscode"], recorded["statuscode"], "{name}");
            assert_form(&name, &shown["data"], &recorded["data"]);
        }
    }
    lab.setup.agent.stop().await;
}
