//! The gates before a resource is touched: its control expressions and its requirements.

use super::{Engine, FlowError, Scope};
use crate::model::id::Reference;
use crate::model::resource::Resource;
use ccm_template::expr;

impl Engine<'_> {
    /// Reports whether a resource is managed: `if` holds and `unless` does not.
    pub(super) fn is_managed(&self, scope: &Scope, resource: &Resource) -> Result<bool, FlowError> {
        let Some(control) = &resource.common.control else {
            return Ok(true);
        };
        let holds = |code: &str, unset: bool| match code {
            "" => Ok(unset),
            code => expr::eval_bool(code, &scope.env, &self.programs),
        };
        // Both are evaluated, so that a broken one is never hidden by the other.
        let (manage_if, unless) = (
            holds(&control.manage_if, true),
            holds(&control.unless, false),
        );
        Ok(manage_if? && !unless?)
    }

    /// Returns the requirements that did not come out well.
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

    /// Reports whether something this resource subscribes to has changed, now or in an earlier run
    /// that could not refresh it.
    pub(super) fn is_refreshed(&self, resource: &Resource) -> Result<bool, super::NoEvents> {
        let is_owed = self.owed.borrow().is_due(&resource.label());
        for item in resource.subscribe() {
            if let Some(reference) = Reference::parse(item)
                && self.session.last(reference)?.changed
            {
                return Ok(true);
            }
        }
        Ok(is_owed)
    }
}
