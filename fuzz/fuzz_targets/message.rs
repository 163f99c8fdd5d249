//! Any bytes as each of the messages that nodes, controllers and files of state hold: what can be
//! read is the same after it was written and read again.

#![no_main]

use ccm::model::audit::AuditEvent;
use ccm::model::envelope::Filter;
use ccm::model::event::{SessionStart, Summary, TransactionEvent};
use ccm::model::health::{HealthCheck, HealthResult};
use ccm::model::label::Labels;
use ccm::model::node::{Assignment, NodeStatus, Pause, Report};
use ccm::model::registration::Entry;
use ccm::model::rollout::{Plan, Progress, Settings};
use ccm::model::run::{ApplyRequest, ApplyResponse, RunSummary};
use ccm_fuzz::survives;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    survives::<TransactionEvent>(bytes);
    survives::<SessionStart>(bytes);
    survives::<Summary>(bytes);
    survives::<RunSummary>(bytes);
    survives::<ApplyRequest>(bytes);
    survives::<ApplyResponse>(bytes);
    survives::<NodeStatus>(bytes);
    survives::<Assignment>(bytes);
    survives::<Report>(bytes);
    survives::<Pause>(bytes);
    survives::<AuditEvent>(bytes);
    survives::<Entry>(bytes);
    survives::<HealthCheck>(bytes);
    survives::<HealthResult>(bytes);
    survives::<Filter>(bytes);
    survives::<Labels>(bytes);
    survives::<Settings>(bytes);
    survives::<Plan>(bytes);
    survives::<Progress>(bytes);
});
