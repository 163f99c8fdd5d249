//! Slots: a run that a governor limits waits for its turn here, holds it, and gives it back.
//!
//! Waiting happens on the thread of the desk, so it blocks the next run and nothing else; whoever
//! asks sees what is waited for. A run that gets no slot does not begin. One that loses its slot
//! goes on: half a manifest is worse than one too many at work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

use super::desk::Permit;
use super::node::Node;
use crate::engine::{Level, Line, Mode};
use crate::model::cloudevent::SlotEvent;
use crate::model::governor::Claim;
use crate::nats::NatsError;
use crate::nats::governor::{Governor, Left, Slot};

/// A slot that a run holds.
pub(super) struct Held<'n> {
    node: &'n Node,
    claim: Claim,
    slot: Slot,
    /// Notices when the slot is taken away.
    watch: JoinHandle<()>,
    is_evicted: Arc<AtomicBool>,
}

/// Returns the claim of a run: the manifest's own, else that of who asked, else the node's. A run
/// that changes nothing needs none.
pub(super) fn claim_of(mode: Mode, claims: [Option<&Claim>; 3]) -> Option<&Claim> {
    match mode.noop || mode.health_check_only {
        true => None,
        false => claims.into_iter().flatten().next(),
    }
}

impl Node {
    /// Waits for a slot and returns it, or says why there is none.
    pub(super) fn take_slot(&self, claim: &Claim, permit: &Permit) -> Result<Held<'_>, String> {
        let name = claim.name.to_string();
        self.desk.wait_for(Some(format!("governor {name}")));
        let fields = [("governor", name.clone())];
        self.say(Level::Info, "Waiting for a slot", &fields);
        let entered = self.enter(claim, permit);
        self.desk.wait_for(None);
        let held = entered.map_err(|err| {
            if !matches!(err, NatsError::NotAwaited { .. }) {
                self.herald.slot(&claim.name, 0, SlotEvent::Timeout);
            }
            err.to_string()
        })?;
        let sequence = held.slot.sequence();
        self.herald.slot(&claim.name, sequence, SlotEvent::Enter);
        let fields = [("governor", name), ("slot", sequence.to_string())];
        self.say(Level::Info, "Got a slot", &fields);
        Ok(held)
    }

    fn enter(&self, claim: &Claim, permit: &Permit) -> Result<Held<'_>, NatsError> {
        let is_evicted = Arc::new(AtomicBool::new(false));
        let told = self.on_eviction(claim, is_evicted.clone());
        let given_up = {
            let (permit, clock, desk) = (permit.clone(), self.clock.clone(), self.desk.clone());
            move || {
                let closing = || {
                    desk.is_closed()
                        .then(|| "the agent is shutting down".into())
                };
                permit.stop_reason(clock.now()).or_else(closing)
            }
        };
        let (collective, who) = (self.choria.clone(), self.identity.to_string());
        let wanted = claim.clone();
        let (slot, watch) = self.bus.run(|connection| async move {
            let governor = Governor::new(connection, &collective, &wanted.name);
            let slot = governor
                .enter(&who, wanted.timeout.duration(), given_up)
                .await?;
            let (evicted, sequence) = (slot.evicted(), slot.sequence());
            let watch = tokio::spawn(async move {
                evicted.await;
                told(sequence);
            });
            Ok((slot, watch))
        })?;
        Ok(Held {
            node: self,
            claim: claim.clone(),
            slot,
            watch,
            is_evicted,
        })
    }

    /// Returns what is to be done when a slot is taken away.
    fn on_eviction(
        &self,
        claim: &Claim,
        is_evicted: Arc<AtomicBool>,
    ) -> impl FnOnce(u64) + Send + 'static {
        let (herald, log, name) = (self.herald.clone(), self.log.clone(), claim.name.clone());
        move |sequence| {
            if is_evicted.swap(true, Ordering::Relaxed) {
                return;
            }
            herald.slot(&name, sequence, SlotEvent::Eviction);
            let text = "Lost the slot before the run was over; the run goes on";
            let line = Line::new(Level::Warn, text).with("governor", &name);
            log.line(&line.with("slot", sequence));
        }
    }
}

impl Held<'_> {
    /// Gives the slot back.
    pub(super) fn leave(self) {
        let Self {
            node,
            claim,
            slot,
            watch,
            is_evicted,
        } = self;
        watch.abort();
        let sequence = slot.sequence();
        let fields = |more: Option<(&'static str, String)>| {
            let mut fields = vec![
                ("governor", claim.name.to_string()),
                ("slot", sequence.to_string()),
            ];
            fields.extend(more);
            fields
        };
        if is_evicted.load(Ordering::Relaxed) {
            // That was told, and there is nothing to give back.
            return;
        }
        match node.bus.run(|_| async move { slot.leave().await }) {
            Ok(Left::Freed) => {
                node.herald.slot(&claim.name, sequence, SlotEvent::Exit);
                node.say(Level::Info, "Left the slot", &fields(None));
            }
            Ok(Left::Evicted) => node.on_eviction(&claim, is_evicted)(sequence),
            Err(err) => {
                let error = Some(("error", err.to_string()));
                let text = "Could not leave the slot, its lease will free it";
                node.say(Level::Warn, text, &fields(error));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> Claim {
        Claim::new(name.parse().unwrap())
    }

    #[test]
    fn the_manifest_s_claim_goes_before_the_request_s_and_that_before_the_node_s() {
        let [own, asked, node] = ["own", "asked", "node"].map(claim);
        let mode = Mode::default();
        let all = [Some(&own), Some(&asked), Some(&node)];
        assert_eq!(claim_of(mode, all), Some(&own));
        assert_eq!(
            claim_of(mode, [None, Some(&asked), Some(&node)]),
            Some(&asked)
        );
        assert_eq!(claim_of(mode, [None, None, Some(&node)]), Some(&node));
        assert_eq!(claim_of(mode, [None, None, None]), None);
    }

    #[test]
    fn a_run_that_changes_nothing_needs_no_slot() {
        let own = claim("own");
        for mode in [
            Mode {
                noop: true,
                ..Mode::default()
            },
            Mode {
                health_check_only: true,
                ..Mode::default()
            },
        ] {
            assert_eq!(claim_of(mode, [Some(&own), None, None]), None);
        }
    }
}
