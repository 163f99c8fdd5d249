//! Plans: what a type decided to do, before anything is done.

/// The actions that bring a resource to its wanted state, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan<A> {
    pub actions: Vec<A>,
    /// The message of a noop run; empty if there is nothing to do.
    pub message: String,
    /// The plan was caused by a subscription.
    pub refreshed: bool,
    /// The resource was already in its wanted state.
    pub satisfied: bool,
    /// The resource is stable after the change.
    pub settles: bool,
    /// The actions may change nothing: the resource counts as changed only if its state differs afterwards.
    pub tentative: bool,
}

impl<A> Plan<A> {
    /// Returns the empty plan of a resource in its wanted state.
    pub(super) fn stable() -> Self {
        Self {
            actions: Vec::new(),
            message: String::new(),
            refreshed: false,
            satisfied: true,
            settles: true,
            tentative: false,
        }
    }

    /// Returns the plan of a resource that differs from its wanted state.
    pub(super) fn with_actions(actions: Vec<A>, message: impl Into<String>) -> Self {
        Self {
            actions,
            message: message.into(),
            refreshed: false,
            satisfied: false,
            settles: true,
            tentative: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Returns the plan with converted actions.
    pub(super) fn map<B>(self, convert: impl FnMut(A) -> B) -> Plan<B> {
        Plan {
            actions: self.actions.into_iter().map(convert).collect(),
            message: self.message,
            refreshed: self.refreshed,
            satisfied: self.satisfied,
            settles: self.settles,
            tentative: self.tentative,
        }
    }
}
