//! Whose seed signs: a file that is ours alone, or the NATS context in use.

use std::os::unix::fs::PermissionsExt as _;

use nkeys::KeyPair;
use serde_json::json;

use crate::support::{Outcome, TestEnv};

/// Returns a world with these contexts, the first of which is in use.
fn world(contexts: &[(&str, serde_json::Value)]) -> TestEnv {
    let mut env = TestEnv::new();
    let config = env.at("config");
    env.set("XDG_CONFIG_HOME", &config);
    for (name, fields) in contexts {
        env.write(
            &format!("config/nats/context/{name}.json"),
            fields.to_string(),
        );
    }
    env.write("config/nats/context.txt", contexts[0].0);
    env.set("NATS_CONTEXT", contexts[0].0);
    env
}

fn sign(env: &TestEnv, with: &str) -> Outcome {
    env.ccm(&[
        "fleet",
        "sign",
        "ccm.v1.default.all.ping",
        "--sign-with",
        with,
    ])
}

fn signer_of(outcome: Outcome) -> String {
    let headers = outcome.ok();
    let line = headers
        .lines()
        .find_map(|line| line.strip_prefix("Ccm-Signer:"));
    line.unwrap().to_owned()
}

#[test]
fn the_seed_of_the_context_signs_whichever_way_it_is_kept() {
    let pair = KeyPair::new_user();
    let (seed, public) = (pair.seed().unwrap(), pair.public_key());
    let creds = format!(
        "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    let env = TestEnv::new();
    let files = (env.write("user.nk", &seed), env.write("user.creds", creds));
    for fields in [
        json!({"nkey": files.0}),
        json!({"creds": files.1}),
        json!({"user_jwt": "eyJ0", "user_seed": seed}),
    ] {
        let env = world(&[("OPS", fields.clone()), ("PLAIN", json!({}))]);
        assert_eq!(signer_of(sign(&env, "context")), public, "{fields}");
        let env = world(&[("PLAIN", json!({})), ("OPS", fields)]);
        assert_eq!(signer_of(sign(&env, "context:OPS")), public);
    }
}

#[test]
fn a_context_without_a_seed_signs_nothing_and_says_so() {
    let env = world(&[("PLAIN", json!({"user": "ann", "password": "hunter2"}))]);
    let error = sign(&env, "context").error(2);
    assert!(
        error.contains("NATS context PLAIN has no nkey seed"),
        "{error}"
    );
    assert!(!error.contains("hunter2"), "{error}");
    let error = sign(&env, "context:NONE").error(2);
    assert!(error.contains("NONE"), "{error}");
}

#[test]
fn a_file_that_others_may_read_is_no_seed_and_no_token() {
    let env = TestEnv::new();
    env.ccm(&["keys", "new", "ops.seed"]).ok();
    env.write("token", "0123456789abcdef0123456789abcdef");
    for mode in [0o640, 0o620, 0o604] {
        for name in ["ops.seed", "token"] {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(env.path(name), mode).unwrap();
        }
        let error = sign(&env, "ops.seed").error(2);
        assert!(error.contains("run chmod 600 ops.seed"), "{error}");
        let error = env
            .ccm(&["fleet", "serve", "--token-file", "token"])
            .error(2);
        assert!(error.contains("run chmod 600 token"), "{error}");
    }
}
