//! Resources whose templates render a secret when they are applied: they become sensitive before anything
//! of them is shown. What a manifest resolves is checked when it is read.

use std::sync::Arc;

use super::{Engine, Scope};
use crate::model::event::{EventField, TransactionEvent};
use crate::model::resource::Resource;
use crate::resource::{self, ResourceError};

impl Engine<'_> {
    /// Returns the resource as a sensitive one if its templates render a secret, also in the event; nothing
    /// if it needs no change. Without rendering, a secret of the data is assumed to be in the templates.
    pub(super) fn hide_rendered_secret(
        &self,
        scope: &Scope,
        resource: &Resource,
        event: &mut TransactionEvent,
    ) -> Result<Option<Arc<Resource>>, ResourceError> {
        if resource.common.sensitive || !resource::has_templates(resource) {
            return Ok(None);
        }
        let is_secret = if scope.mode.health_check_only {
            scope.env.has_secrets()
        } else {
            resource::renders_secret(resource, self.host(scope))?
        };
        if !is_secret {
            return Ok(None);
        }
        let mut hidden = resource.clone();
        hidden.common.sensitive = true;
        let hidden = Arc::new(hidden);
        event.properties = EventField::Typed(hidden.redacted());
        Ok(Some(hidden))
    }
}
