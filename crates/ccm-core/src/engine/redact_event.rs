//! Removal of opened secrets from the texts of events: output and errors of commands may contain one even
//! if the resource does not depend on it.

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
        if let std::borrow::Cow::Owned(redacted) = secrets.redact(text) {
            *text = redacted;
        }
    }
}
