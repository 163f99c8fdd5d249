//! Governor slots: waits for the slot of a run, holds it during the run and releases it.
//!
//! A run without a slot does not begin. A run that loses its slot continues: a half-applied manifest is
//! worse than one concurrent run too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::RunContext;
use super::nats_client::{
    NatsClientError, NatsClientErrorKind, Slot, SlotRelease, SlotRequest, StopCheck,
};
use crate::engine::{Level, Line, Mode, Sink};
use crate::model::governor::{GovernorClaim, GovernorName, SlotLoss, SlotProgress};
use crate::model::node::Token;
use crate::system::Cancel;

/// Called when a running run loses its slot.
pub type SlotLossCallback = Arc<dyn Fn(&GovernorName, u64, SlotLoss) + Send + Sync>;

/// The governor settings of a node.
pub struct Governors {
    /// The Choria collective of the governors.
    pub collective: Token,
    /// The default slot for runs that name none.
    pub default: Option<GovernorClaim>,
    /// Runs need no slots.
    pub ignored: bool,
    /// Called while a run waits for its slot; a returned reason ends the wait.
    pub give_up: StopCheck,
    pub lost: SlotLossCallback,
}

/// The slot of a run.
pub(super) struct HeldSlot {
    claim: GovernorClaim,
    slot: Box<dyn Slot>,
    is_lost: Arc<AtomicBool>,
}

/// Returns the claim of a run: that of the manifest, else of the request, else the node's default. Noop
/// and health-check-only runs need none.
fn claim_of(mode: Mode, claims: [Option<&GovernorClaim>; 3]) -> Option<&GovernorClaim> {
    if mode.noop || mode.health_check_only {
        return None;
    }
    claims.into_iter().flatten().next()
}

/// Waits for the slot of a run; returns nothing if it needs none.
pub(super) fn enter(
    mode: Mode,
    own: Option<&GovernorClaim>,
    requested: Option<&GovernorClaim>,
    context: &RunContext<'_>,
    sink: &mut dyn Sink,
) -> Result<Option<HeldSlot>, NatsClientError> {
    let governors = &context.governors;
    let claims = [own, requested, governors.default.as_ref()];
    let Some(claim) = claim_of(mode, claims).filter(|_| !governors.ignored) else {
        return Ok(None);
    };
    // An interrupted run gives the slot back.
    context.cancel.iter().for_each(Cancel::prepare);
    sink.slot(&claim.name, SlotProgress::Waiting);
    sink.line(&line(Level::Info, "Waiting for a slot", claim));
    let is_lost = Arc::new(AtomicBool::new(false));
    let entered = context.nats.enter(SlotRequest {
        collective: governors.collective.clone(),
        governor: claim.name.clone(),
        holder: (context.identity)().to_string(),
        limit: claim.timeout.duration(),
        give_up: governors.give_up.clone(),
        lost: {
            let (is_lost, lost) = (is_lost.clone(), governors.lost.clone());
            let name = claim.name.clone();
            Box::new(move |sequence, loss| {
                if !is_lost.swap(true, Ordering::Relaxed) {
                    lost(&name, sequence, loss);
                }
            })
        },
    });
    let slot = entered.inspect_err(|err| {
        let given_up = err.kind == NatsClientErrorKind::GivenUp;
        sink.slot(&claim.name, SlotProgress::NotEntered { given_up });
    })?;
    sink.slot(&claim.name, SlotProgress::Entered(slot.sequence()));
    sink.line(&line(Level::Info, "Got a slot", claim).with("slot", slot.sequence()));
    Ok(Some(HeldSlot {
        claim: claim.clone(),
        slot,
        is_lost,
    }))
}

impl HeldSlot {
    /// Releases the slot.
    pub(super) fn leave(self, context: &RunContext<'_>, sink: &mut dyn Sink) {
        let Self {
            claim,
            slot,
            is_lost,
        } = self;
        let sequence = slot.sequence();
        let slot_line = |level, text| line(level, text, &claim).with("slot", sequence);
        match slot.leave() {
            Ok(SlotRelease::Freed) => {
                sink.slot(&claim.name, SlotProgress::Left(sequence));
                sink.line(&slot_line(Level::Info, "Released the slot"));
            }
            Ok(SlotRelease::Lost(loss)) => {
                if !is_lost.swap(true, Ordering::Relaxed) {
                    (context.governors.lost)(&claim.name, sequence, loss);
                }
            }
            Err(err) => {
                let text = "Could not release the slot; it is freed when its lease expires";
                sink.line(&slot_line(Level::Warn, text).with("error", err));
            }
        }
    }
}

fn line(level: Level, text: &str, claim: &GovernorClaim) -> Line {
    Line::new(level, text).with("governor", &claim.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> GovernorClaim {
        GovernorClaim::new(name.parse().unwrap())
    }

    #[test]
    fn claims_are_taken_from_manifest_then_request_then_default() {
        let [own, requested, default] = ["own", "requested", "default"].map(claim);
        let mode = Mode::default();
        let all = [Some(&own), Some(&requested), Some(&default)];
        assert_eq!(claim_of(mode, all), Some(&own));
        assert_eq!(
            claim_of(mode, [None, Some(&requested), Some(&default)]),
            Some(&requested)
        );
        assert_eq!(claim_of(mode, [None, None, Some(&default)]), Some(&default));
        assert_eq!(claim_of(mode, [None, None, None]), None);
    }

    #[test]
    fn a_run_that_changes_nothing_needs_no_slot() {
        let own = claim("own");
        for (noop, health_check_only) in [(true, false), (false, true)] {
            let mode = Mode {
                noop,
                health_check_only,
                ..Mode::default()
            };
            assert_eq!(claim_of(mode, [Some(&own), None, None]), None);
        }
    }
}
