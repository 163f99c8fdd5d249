//! Any bytes as a node's answer to any verb: what is shown of it is one short, printable line.

#![no_main]

use std::time::Duration;

use ccm_fleet::node_reply::understand;
use ccm_fleet::scatter::Heard;
use ccm_fuzz::halves;
use ccm_nats::{Headers, Reply, Verb, micro};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (refusal, body) = halves(bytes);
    let mut headers = Headers::new();
    if let Ok(text) = std::str::from_utf8(refusal)
        && let Some((code, text)) = text.split_once(' ')
    {
        let _ = headers.set(micro::ERROR_CODE, code);
        let _ = headers.set(micro::ERROR, text);
    }
    for verb in Verb::ALL {
        let told = understand(
            verb,
            Heard {
                node: "node.example.net".parse().expect("a name"),
                reply: Ok(Reply {
                    subject: "reply".into(),
                    reply: None,
                    headers: headers.clone(),
                    body: body.to_vec().into(),
                }),
                took: Duration::ZERO,
            },
        );
        assert!(!told.text.contains(char::is_control), "{:?}", told.text);
        assert!(
            told.text.chars().count() <= 501,
            "{verb}: {}",
            told.text.len()
        );
    }
});
