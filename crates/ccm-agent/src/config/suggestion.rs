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
