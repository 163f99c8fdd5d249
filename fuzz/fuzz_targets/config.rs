//! Agent configurations and policies. Property: a request that a policy allows is also allowed while it
//! is only partially complete.

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
        let partial = PolicyRequest {
            verb,
            noop: verb == "apply",
            ..PolicyRequest::default()
        };
        let complete = PolicyRequest {
            type_name: Some(TypeName::File),
            name: Some(name),
            provider: Some("posix"),
            ..partial
        };
        if policy.decide(&complete).is_allowed() {
            assert!(policy.decide_partial(&partial).is_allowed());
        }
    }
});
