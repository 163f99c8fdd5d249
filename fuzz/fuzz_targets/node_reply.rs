//! Replies of nodes to every verb. Property: the displayed text is one short printable line.

#![no_main]

use std::time::Duration;

use ccm_fleet::node_reply::interpret;
use ccm_fleet::scatter::RawReply;
use ccm_fuzz::split_at_zero;
use ccm_nats::{Headers, Reply, Verb, micro};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (refusal, body) = split_at_zero(bytes);
    let mut headers = Headers::new();
    if let Ok(text) = std::str::from_utf8(refusal)
        && let Some((code, text)) = text.split_once(' ')
    {
        let _ = headers.set(micro::ERROR_CODE, code);
        let _ = headers.set(micro::ERROR, text);
    }
    for verb in Verb::ALL {
        let reply = interpret(
            verb,
            RawReply {
                node: "node.example.net".parse().expect("parse a node name"),
                reply: Ok(Reply {
                    subject: "reply".into(),
                    reply: None,
                    headers: headers.clone(),
                    body: body.to_vec().into(),
                }),
                elapsed: Duration::ZERO,
            },
        );
        assert!(!reply.text.contains(char::is_control), "{:?}", reply.text);
        assert!(
            reply.text.chars().count() <= 501,
            "{verb}: {}",
            reply.text.len()
        );
    }
});
