//! Slots: a run that a governor limits waits for its slot here, holds it, and gives it back.
//!
//! A run that gets no slot does not begin. One that loses its slot goes on: half a manifest is worse
//! than one run too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Host;
use super::bus::{BusError, BusErrorKind, Left, Slot, SlotRequest, StopReason};
use crate::engine::{Level, Line, Mode, Sink};
use crate::model::governor::{Claim, GovernorName, SlotProgress};
use crate::model::node::Token;

/// Called when a slot is taken away from a run that goes on.
pub type Evicted = Arc<dyn Fn(&GovernorName, u64) + Send + Sync>;

/// Which governors limit the runs of a host.
pub struct Governors {
    /// The Choria collective that they belong to.
    pub collective: Token,
    /// The slot that a run needs unless it names one itself.
    pub default: Option<Claim>,
    /// Runs need no slots at all.
    pub ignored: bool,
    /// Asked while a run waits for its slot.
    pub give_up: StopReason,
    pub evicted: Evicted,
}

/// A slot that a run holds.
pub(super) struct Held {
    claim: Claim,
    slot: Box<dyn Slot>,
    is_evicted: Arc<AtomicBool>,
}

/// Returns the claim of a run: the manifest's own, else that of the request, else the host's. A run
/// that changes nothing needs none.
fn claim_of(mode: Mode, claims: [Option<&Claim>; 3]) -> Option<&Claim> {
    if mode.noop || mode.health_check_only {
        return None;
    }
    claims.into_iter().flatten().next()
}

/// Waits for the slot of a run, if it needs one.
pub(super) fn enter(
    mode: Mode,
    own: Option<&Claim>,
    requested: Option<&Claim>,
    host: &Host<'_>,
    sink: &mut dyn Sink,
) -> Result<Option<Held>, BusError> {
    let governors = &host.governors;
    let claims = [own, requested, governors.default.as_ref()];
    let Some(claim) = claim_of(mode, claims).filter(|_| !governors.ignored) else {
        return Ok(None);
    };
    sink.slot(&claim.name, SlotProgress::Waiting);
    sink.line(&line(Level::Info, "Waiting for a slot", claim));
    let is_evicted = Arc::new(AtomicBool::new(false));
    let entered = host.bus.enter(SlotRequest {
        collective: governors.collective.clone(),
        governor: claim.name.clone(),
        holder: host.identity.to_string(),
        limit: claim.timeout.duration(),
        give_up: governors.give_up.clone(),
        evicted: {
            let (is_evicted, evicted) = (is_evicted.clone(), governors.evicted.clone());
            let name = claim.name.clone();
            Box::new(move |sequence| {
                if !is_evicted.swap(true, Ordering::Relaxed) {
                    evicted(&name, sequence);
                }
            })
        },
    });
    let slot = entered.inspect_err(|err| {
        let given_up = err.kind == BusErrorKind::GivenUp;
        sink.slot(&claim.name, SlotProgress::NotEntered { given_up });
    })?;
    sink.slot(&claim.name, SlotProgress::Entered(slot.sequence()));
    sink.line(&line(Level::Info, "Got a slot", claim).with("slot", slot.sequence()));
    Ok(Some(Held {
        claim: claim.clone(),
        slot,
        is_evicted,
    }))
}

impl Held {
    /// Gives the slot back.
    pub(super) fn leave(self, host: &Host<'_>, sink: &mut dyn Sink) {
        let Self {
            claim,
            slot,
            is_evicted,
        } = self;
        let sequence = slot.sequence();
        let told = |level, text| line(level, text, &claim).with("slot", sequence);
        match slot.leave() {
            Ok(Left::Freed) => {
                sink.slot(&claim.name, SlotProgress::Left(sequence));
                sink.line(&told(Level::Info, "Left the slot"));
            }
            Ok(Left::Evicted) => {
                if !is_evicted.swap(true, Ordering::Relaxed) {
                    (host.governors.evicted)(&claim.name, sequence);
                }
            }
            Err(err) => {
                let text = "Could not leave the slot, its lease will free it";
                sink.line(&told(Level::Warn, text).with("error", err));
            }
        }
    }
}

fn line(level: Level, text: &str, claim: &Claim) -> Line {
    Line::new(level, text).with("governor", &claim.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> Claim {
        Claim::new(name.parse().unwrap())
    }

    #[test]
    fn the_manifest_s_claim_goes_before_the_request_s_and_that_before_the_host_s() {
        let [own, requested, host] = ["own", "requested", "host"].map(claim);
        let mode = Mode::default();
        let all = [Some(&own), Some(&requested), Some(&host)];
        assert_eq!(claim_of(mode, all), Some(&own));
        assert_eq!(
            claim_of(mode, [None, Some(&requested), Some(&host)]),
            Some(&requested)
        );
        assert_eq!(claim_of(mode, [None, None, Some(&host)]), Some(&host));
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
