//! Any text as a list of servers and as a context file: where we say that we go is where we go,
//! and no password is in it.

#![no_main]

use std::collections::BTreeMap;

use ccm_fuzz::{put, room};
use ccm_nats::context::resolve;
use ccm_nats::{Given, Settings};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(settings) = Settings::plain(text) {
        let shown = settings.shown();
        assert!(!shown.contains('@'), "{shown}");
        let again = Settings::plain(&shown).expect("what is shown can be given");
        assert_eq!(again.shown(), shown);
    }
    let room = room();
    let file = room.path().join("nats/context/it.json");
    put(&file, text.as_bytes());
    let home = room.path().to_string_lossy().into_owned();
    let env = BTreeMap::from([
        ("XDG_CONFIG_HOME".into(), home.clone()),
        ("HOME".into(), home),
    ]);
    let given = Given {
        context: Some("it".into()),
        ..Given::default()
    };
    let _ = resolve(&given, &env, None);
});
