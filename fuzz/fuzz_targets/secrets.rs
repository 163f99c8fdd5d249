//! Encrypted values, age files, documents of SOPS and key files. Property: no panic, and no text opens
//! without its key.

#![no_main]

use std::sync::LazyLock;

use ccm_core::secrets::{Identity, open, parse_identities, rekey, unseal_document};
use libfuzzer_sys::fuzz_target;

static KEYS: LazyLock<Vec<Identity>> = LazyLock::new(|| {
    Identity::generate()
        .map(|key| vec![key])
        .unwrap_or_default()
});

fuzz_target!(|text: &str| {
    let _ = parse_identities(text);
    assert!(open(text, &KEYS).is_err());
    assert!(unseal_document(text, &KEYS).is_err());
    let recipients: Vec<_> = KEYS.iter().map(Identity::recipient).collect();
    if let Ok((rewritten, count)) = rekey(text, &KEYS, &recipients) {
        assert!(count == 0 && rewritten == text);
    }
});
