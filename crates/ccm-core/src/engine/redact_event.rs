//! Removal of opened secrets from events and log lines: output and errors of commands may contain one
//! even if the resource does not depend on it.

use std::borrow::Cow;

use super::Line;
use crate::model::event::TransactionEvent;
use ccm_template::secrets::Secrets;

/// Removes opened secrets from errors, output and health checks of an event.
pub(super) fn redact_event(event: &mut TransactionEvent, secrets: &Secrets) {
    if !secrets.has_opened() {
        return;
    }
    let checks = event.health_check.iter_mut().flatten();
    let texts = event.errors.iter_mut();
    let texts = texts.chain([&mut event.output, &mut event.noop_message]);
    for text in texts.chain(checks.map(|check| &mut check.output)) {
        redact(text, secrets);
    }
}

/// Removes opened secrets from the fields of a log line.
pub(super) fn redact_line(line: &mut Line, secrets: &Secrets) {
    if secrets.has_opened() {
        for (_, text) in &mut line.fields {
            redact(text, secrets);
        }
    }
}

fn redact(text: &mut String, secrets: &Secrets) {
    if let Cow::Owned(redacted) = secrets.redact(text) {
        *text = redacted;
    }
}
