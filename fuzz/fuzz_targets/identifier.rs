//! Short texts: ids, names, labels, amounts, subjects, fact filters, paths and command lines. Property:
//! an accepted text round-trips.

#![no_main]

use ccm_core::filter::parse_fact;
use ccm_core::model::amount::{Amount, Percent};
use ccm_core::model::id::{EventId, Reference, TypeName};
use ccm_core::model::label::{LabelName, parse_label};
use ccm_core::model::node::{BundleDigest, NodeName, Token};
use ccm_core::run::ManifestLocation;
use ccm_fleet::bundle_store::BundleSelector;
use ccm_fleet::selection::parse_nodes;
use ccm_fuzz::text_round_trip;
use ccm_nats::request_signature::{PublicKey, Signer};
use ccm_nats::{Subject, Verb};
use ccm_value::text::{clean_path, parse_wait, split_words, unescape, url_scheme};
use chrono::DateTime;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    text_round_trip::<LabelName>(text);
    text_round_trip::<NodeName>(text);
    text_round_trip::<Token>(text);
    text_round_trip::<BundleDigest>(text);
    text_round_trip::<Amount>(text);
    text_round_trip::<Percent>(text);
    text_round_trip::<TypeName>(text);
    text_round_trip::<Verb>(text);
    text_round_trip::<BundleSelector>(text);
    if let Ok(subject) = text.parse::<Subject>() {
        assert_eq!(subject.to_string(), text);
    }
    if let Ok(name) = text.parse::<NodeName>() {
        let token = name.token();
        assert!(
            token
                .as_str()
                .parse::<Subject>()
                .is_ok_and(|it| !it.is_wildcard())
        );
    }
    if let Ok(id) = text.parse::<EventId>() {
        assert_eq!(decode_and_encode(text), id, "an id has one text form");
    }
    if let Ok((name, value)) = parse_label(text) {
        assert_eq!(parse_label(&format!("{name}={value}")), Ok((name, value)));
    }
    if let Some(reference) = Reference::parse(text) {
        assert_eq!(reference.to_string(), text);
    }
    if let Ok(amount) = text.parse::<Amount>() {
        assert!(
            [0, 1, 7, usize::MAX]
                .into_iter()
                .all(|whole| amount.of(whole) <= whole)
        );
    }
    if let Ok(nodes) = parse_nodes(text) {
        let list: String = nodes.iter().map(|node| format!("{node}\n")).collect();
        assert_eq!(parse_nodes(&list), Ok(nodes));
    }
    if let Ok(fact) = parse_fact(text) {
        assert_eq!(parse_fact(&fact.to_string()), Ok(fact));
    }
    if let Ok(words) = split_words(text) {
        let quoted = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
        let line: Vec<String> = words.iter().map(quoted).collect();
        assert_eq!(split_words(&line.join(" ")), Ok(words));
    }
    let clean = clean_path(text);
    assert_eq!(clean_path(&clean), clean);
    let _ = (text.parse::<ManifestLocation>(), parse_wait(text));
    let _ = (unescape(text), url_scheme(text));
    let _ = (PublicKey::parse(text), Signer::from_seed(text));
});

/// Decodes a KSUID into its time and payload, and returns their id.
fn decode_and_encode(text: &str) -> EventId {
    let mut words = [0_u32; 5];
    for digit in text.bytes() {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'A'..=b'Z' => digit - b'A' + 10,
            b'a'..=b'z' => digit - b'a' + 36,
            other => panic!("{other} is not a digit"),
        };
        let mut carry = u64::from(value);
        for word in words.iter_mut().rev() {
            let product = u64::from(*word) * 62 + carry;
            *word = product as u32;
            carry = product >> 32;
        }
        assert_eq!(carry, 0, "{text} does not fit into 20 bytes");
    }
    let [seconds, payload @ ..] = words;
    let payload = payload
        .iter()
        .fold(0, |all, word| all << 32 | u128::from(*word));
    let time = DateTime::from_timestamp(1_400_000_000 + i64::from(seconds), 0);
    EventId::new(time.expect("a valid time"), payload)
}
