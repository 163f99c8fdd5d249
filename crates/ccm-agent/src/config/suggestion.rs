//! Suggestions for the problems of a configuration file.
//!
//! Many messages end with their remedy, because logs show them on one line. For the terminal the
//! remedy becomes the suggestion.

use ccm_value::diagnostic::Diagnostic;
use ccm_value::document::DocumentError;

/// First words of a remedy at the end of a message.
const REMEDIES: [&str; 5] = [": give ", ": keep ", ": list ", ": use ", ": must be "];

/// Parts of messages, and their suggestions. The first match is used.
const SUGGESTIONS: [(&str, &str); 9] = [
    ("is required", "add the key"),
    ("is not one of", "write one of these words"),
    ("begins with /", "write an absolute path"),
    ("at least", "write a larger value"),
    (
        "unknown verb",
        "write verbs such as ensure, apply, status and facts",
    ),
    ("governor timeout", "write a number with a unit, such as 5m"),
    (
        "public nkey",
        "write the public key, which `ccm keys` prints with its seed",
    ),
    ("same key", "list each key once"),
    ("absolute path", "start the path with /"),
];

/// Keys of upstream's configuration that have no equivalent, and what replaces them.
const UPSTREAM_KEYS: [(&str, &str); 5] = [
    (
        "choria_token_file",
        "put the credentials into a NATS context and name it in nats_context, or set choria: {server: true, token: …}",
    ),
    (
        "choria_seed_file",
        "put the credentials into a NATS context and name it in nats_context, or set choria: {server: true, seed: …}",
    ),
    ("choria_collective", "set choria: {collective: …}"),
    (
        "nats_tls_ca",
        "set ca in a NATS context and name it in nats_context",
    ),
    (
        "nats_tls_insecure",
        "remove it, and set ca in the NATS context: certificates are always verified",
    ),
];

/// Returns what replaces a key of upstream's configuration that is not supported.
pub(super) fn of_upstream_key(name: &str) -> Option<&'static str> {
    let mut known = UPSTREAM_KEYS.iter();
    known.find(|(key, _)| *key == name).map(|(_, help)| *help)
}

/// Suggestion for every other problem.
const OTHER: &str = "the agent.yaml of the package describes every key";

/// Returns a problem with its source line and one suggestion.
pub(super) fn diagnostic(file: &str, text: &str, problem: &DocumentError) -> Diagnostic {
    let mut found = Diagnostic::of_document(file, text, problem);
    if found.help.is_some() {
        return found;
    }
    let remedy = REMEDIES.iter().find_map(|words| found.message.find(words));
    found.help = Some(match remedy {
        Some(at) => {
            let remedy = found.message.split_off(at);
            remedy.trim_start_matches(": ").into()
        }
        None => {
            let mut known = SUGGESTIONS.iter();
            let suggestion = known.find(|(part, _)| found.message.contains(part));
            suggestion.map_or(OTHER, |(_, help)| help).into()
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_value::document::Mark;

    #[test]
    fn keys_of_upstream_are_accepted_or_name_what_replaces_them() {
        let config = crate::config::Config::parse("nats_servers: 'tls://a:4222, tls://b:4222'\n");
        assert_eq!(config.unwrap().servers.len(), 2);
        for (key, remedy) in UPSTREAM_KEYS {
            let error = crate::config::Config::parse(&format!("{key}: x\n")).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("key {key:?} of upstream")), "{text}");
            assert!(text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn a_remedy_in_the_message_becomes_the_suggestion() {
        for (message, expected) in [
            (
                "no signer: list signers, or set required: false",
                ("no signer", "list signers, or set required: false"),
            ),
            (
                "\"a\" is not one of b, c",
                ("\"a\" is not one of b, c", "write one of these words"),
            ),
            ("odd", ("odd", OTHER)),
        ] {
            let problem = DocumentError::new(Mark::default(), message);
            let found = diagnostic("agent.yaml", "", &problem);
            assert_eq!(
                (found.message.as_str(), found.help.as_deref().unwrap()),
                expected
            );
        }
    }
}
