//! Any text as the agent's file and as a policy: what a policy allows when all is known, it has
//! not denied before.

#![no_main]

use ccm_agent::config::Config;
use ccm_core::model::TypeName;
use ccm_core::model::policy::{Policy, PolicyRequest};
use ccm_value::document::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(config) = Config::parse(text) {
        assert!(config.splay_offset() <= config.interval);
        let _ = config.server_list();
    }
    let Ok(policy) = parse(text).and_then(|node| Policy::read(&node)) else {
        return;
    };
    for (verb, name) in [("ensure", "/srv/app/a"), ("apply", "zsh"), ("ping", text)] {
        let so_far = PolicyRequest {
            verb,
            noop: verb == "apply",
            ..PolicyRequest::default()
        };
        let known = PolicyRequest {
            type_name: Some(TypeName::File),
            name: Some(name),
            provider: Some("posix"),
            ..so_far
        };
        if policy.decide(&known).is_allowed() {
            assert!(policy.decide_partial(&so_far).is_allowed());
        }
    }
});
