//! Conditions of a resource: control expressions (`if`, `unless`), requirements and subscriptions.

use super::{Engine, FlowError, Level, NoEvents, Scope};
use crate::model::id::Reference;
use crate::model::resource::Resource;
use crate::model::secret::REDACTED;
use ccm_template::expr::{self, ExprError};

impl Engine<'_> {
    /// Reports whether a resource is managed: `if` is true and `unless` is false.
    pub(super) fn is_managed(&self, scope: &Scope, resource: &Resource) -> Result<bool, FlowError> {
        let Some(control) = &resource.common.control else {
            return Ok(true);
        };
        let is_hidden = resource.common.sensitive;
        let evaluate = |code: &str, unset: bool| match code {
            "" => Ok(unset),
            code => {
                let result = expr::eval_bool(code, &scope.env, &self.programs);
                result.map_err(|err| if is_hidden { ExprError::Hidden } else { err })
            }
        };
        // Both are evaluated, so that an error in one is never hidden by the other.
        let (manage_if, unless) = (
            evaluate(&control.manage_if, true),
            evaluate(&control.unless, false),
        );
        let (manage_if, unless) = (manage_if?, unless?);
        let reason = match (manage_if, unless) {
            (false, _) => Some(("if is false", &control.manage_if)),
            (true, true) => Some(("unless is true", &control.unless)),
            (true, false) => None,
        };
        if let Some((reason, expression)) = reason {
            let message = "Resource is not managed";
            let expression = if is_hidden { REDACTED } else { expression };
            self.detail(scope, Level::Info, resource, message, |line| {
                line.with("reason", reason).with("expression", expression)
            });
        }
        Ok(reason.is_none())
    }

    /// Returns the requirements that failed or were skipped.
    pub(super) fn unmet_requirements(&self, resource: &Resource) -> Result<Vec<String>, FlowError> {
        let mut unmet = Vec::new();
        for item in &resource.common.require {
            if let Some(reference) = Reference::parse(item)
                && self.session.last(reference)?.blocks()
            {
                unmet.push(item.clone());
            }
        }
        Ok(unmet)
    }

    /// Reports whether a resource this one subscribes to has changed, in this run or in an earlier run
    /// that left the refresh pending.
    pub(super) fn is_refreshed(
        &self,
        scope: &Scope,
        resource: &Resource,
    ) -> Result<bool, NoEvents> {
        let message = "Refreshing resource";
        let is_pending = self.pending_refreshes.borrow().is_due(&resource.label());
        if let Some(item) = self.changed_subscription(resource)? {
            self.detail(scope, Level::Info, resource, message, |line| {
                line.with("changed", item)
            });
            return Ok(true);
        }
        if is_pending {
            self.detail(scope, Level::Info, resource, message, |line| {
                line.with("reason", "left pending by an earlier run")
            });
        }
        Ok(is_pending)
    }

    /// Returns the first reference of `subscribe` to a resource that has changed in this run.
    pub(super) fn changed_subscription<'r>(
        &self,
        resource: &'r Resource,
    ) -> Result<Option<&'r str>, NoEvents> {
        for item in resource.subscribe() {
            if let Some(reference) = Reference::parse(item)
                && self.session.last(reference)?.changed
            {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }
}
