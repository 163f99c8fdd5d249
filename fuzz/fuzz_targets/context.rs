//! Server lists and NATS context files. Properties: the displayed server list parses to the same
//! servers and contains no password.

#![no_main]

use std::collections::BTreeMap;

use ccm_fuzz::{temp_dir, write_file};
use ccm_nats::context::resolve;
use ccm_nats::{ContextOptions, Settings};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(settings) = Settings::plain(text) {
        let shown = settings.server_list();
        assert!(!shown.contains('@'), "{shown}");
        let again = Settings::plain(&shown).expect("parse the displayed servers");
        assert_eq!(again.server_list(), shown);
    }
    let dir = temp_dir();
    let file = dir.path().join("nats/context/it.json");
    write_file(&file, text.as_bytes());
    let home = dir.path().to_string_lossy().into_owned();
    let env = BTreeMap::from([
        ("XDG_CONFIG_HOME".into(), home.clone()),
        ("HOME".into(), home),
    ]);
    let options = ContextOptions {
        context: Some("it".into()),
        ..ContextOptions::default()
    };
    let _ = resolve(&options, &env, None);
});
