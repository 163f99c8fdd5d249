use std::time::Duration;

use super::*;
use crate::config::{Signer as Listed, Trust};
use ccm_core::model::envelope::{REQUEST_ID, SIGNATURE, SIGNER};
use ccm_core::model::node::ASSIGNMENT;
use ccm_core::model::signature::BundleSignature;
use ccm_core::system::{Digest, SystemClock};
use ccm_nats::Subject;
use ccm_nats::request_signature::Signer;
use ccm_value::document::parse;

const SUBJECT: &str = "ccm.v1.default.all.ensure";

fn now() -> DateTime<Utc> {
    SystemClock.now()
}

fn trust(signer: &Signer, policy: Option<&str>) -> Trust {
    Trust {
        required: true,
        sources: true,
        clock_skew: Duration::from_secs(60),
        signers: vec![Listed {
            key: signer.public_key(),
            name: "ops".into(),
            policy: policy.map(|text| Policy::read(&parse(text).unwrap()).unwrap()),
        }],
    }
}

fn open(trust: &Trust, room: &Path) -> Authorizer {
    Authorizer::open(Some(trust), room, "boot", Arc::new(SystemClock)).unwrap()
}

fn signed(signer: &Signer, time: DateTime<Utc>) -> Headers {
    let mut headers = Headers::new();
    let subject: Subject = SUBJECT.parse().unwrap();
    signer.sign_at(time, &subject, &mut headers, b"x").unwrap();
    headers
}

fn admit(keeper: &Authorizer, headers: &Headers) -> String {
    match keeper.admit(Verb::Ensure, SUBJECT, headers, b"x") {
        Ok(asker) => format!("admitted {}", asker.name),
        Err(denied) => denied.to_string(),
    }
}

#[test]
fn only_a_fresh_request_of_a_known_signer_is_admitted_and_only_once() {
    let room = tempfile::tempdir().unwrap();
    let (signer, stranger) = (Signer::generate(), Signer::generate());
    let keeper = open(&trust(&signer, None), room.path());
    let later = now() + TimeDelta::seconds(1);
    let good = signed(&signer, later);
    let moved = |by: i64| signed(&signer, now() + TimeDelta::seconds(by));
    for (headers, expected) in [
        (Headers::new(), "request is not signed"),
        (signed(&stranger, later), "signer is not trusted here"),
        (moved(-90), "signature is too old"),
        (moved(90), "signature is from the future"),
        (
            good.clone().with(REQUEST_ID, "y").unwrap(),
            "signature does not fit the request",
        ),
        (
            signed(&stranger, later)
                .with(SIGNER, &signer.public_key())
                .unwrap(),
            "signature does not fit the request",
        ),
        (
            good.clone().with(SIGNATURE, "").unwrap(),
            "header Ccm-Signature is missing",
        ),
        (good.clone(), "admitted ops"),
        (good.clone(), "request was seen before"),
    ] {
        assert_eq!(admit(&keeper, &headers), expected);
    }
    drop(keeper);
    let again = open(&trust(&signer, None), room.path());
    assert_eq!(admit(&again, &good), "request was seen before");
}

#[test]
fn a_request_for_one_subject_is_none_for_another() {
    let room = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let keeper = open(&trust(&signer, None), room.path());
    let headers = signed(&signer, now() + TimeDelta::seconds(1));
    for other in ["ccm.v1.prod.all.ensure", "ccm.v1.default.all.apply"] {
        let denied = keeper
            .admit(Verb::Ensure, other, &headers, b"x")
            .unwrap_err();
        assert_eq!(denied.to_string(), "signature does not fit the request");
    }
}

#[test]
fn where_signatures_are_optional_a_bad_one_is_still_refused() {
    let room = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let optional = Trust {
        required: false,
        ..trust(&signer, None)
    };
    let keeper = open(&optional, room.path());
    assert_eq!(admit(&keeper, &Headers::new()), "admitted ");
    let stranger = signed(&Signer::generate(), now());
    assert_eq!(admit(&keeper, &stranger), "signer is not trusted here");
}

fn assignment(generation: u64, signer: Option<&Signer>, node: &NodeName) -> Assignment {
    let mut assignment = Assignment {
        protocol: ASSIGNMENT.into(),
        generation,
        manifests: Vec::new(),
        data: ccm_value::Value::Null,
        noop: false,
        governor: None,
        rollout: None,
        assigned: now(),
        signature: None,
    };
    if let Some(signer) = signer {
        signer.sign_assignment(&mut assignment, node).unwrap();
    }
    assignment
}

#[test]
fn an_assignment_counts_when_it_is_signed_for_this_node_and_never_goes_back() {
    let room = tempfile::tempdir().unwrap();
    let (signer, stranger) = (Signer::generate(), Signer::generate());
    let node: NodeName = "web1.lab".parse().unwrap();
    let other: NodeName = "web2.lab".parse().unwrap();
    let trust = trust(&signer, None);
    let accept = |assignment: &Assignment| {
        let accepted = open(&trust, room.path()).accept(assignment, &node);
        accepted.map_or_else(|unfit| unfit.to_string(), |_| "accepted".into())
    };
    let mut raised = assignment(3, Some(&signer), &node);
    raised.generation = 9;
    for (assignment, expected) in [
        (assignment(3, None, &node), "assignment is not signed"),
        (
            assignment(3, Some(&stranger), &node),
            "signer of the assignment is not trusted here",
        ),
        (
            assignment(3, Some(&signer), &other),
            "signature does not fit the assignment",
        ),
        (raised, "signature does not fit the assignment"),
        (assignment(3, Some(&signer), &node), "accepted"),
        (assignment(3, Some(&signer), &node), "accepted"),
        (
            assignment(2, Some(&signer), &node),
            "assignment of generation 2 is older than the accepted 3",
        ),
        (assignment(4, Some(&signer), &node), "accepted"),
    ] {
        assert_eq!(accept(&assignment), expected);
    }
}

#[test]
fn a_signer_that_may_not_apply_assigns_nothing() {
    let room = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let node: NodeName = "web1.lab".parse().unwrap();
    let keeper = open(&trust(&signer, Some("{verbs: [ping]}")), room.path());
    let unfit = keeper.accept(&assignment(1, Some(&signer), &node), &node);
    assert_eq!(
        unfit.unwrap_err().to_string(),
        "the policy of the assignment's signer allows no apply"
    );
}

const SOURCE: &str = "obj://SITE/site.tgz";

/// Returns the text that a signer puts beside the source, so many seconds from now.
fn beside_source(signer: &Signer, source: &str, seconds: i64) -> Vec<u8> {
    let time = now() + TimeDelta::seconds(seconds);
    let signature = signer.sign_bundle(source, &Digest::of(b"x"), time).unwrap();
    serde_json::to_vec(&signature).unwrap()
}

fn believe(keeper: &Authorizer, text: &[u8], holds: Holds) -> Result<BundleSignature, String> {
    let sources = keeper.sources().unwrap();
    let believed = sources.believe(Some(text), SOURCE, holds, None);
    believed.map_err(|refusal| refusal.to_string())
}

#[test]
fn a_source_that_was_accepted_never_goes_back() {
    let room = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let trust = trust(&signer, None);
    let [old, new] = [-20, -10].map(|when| beside_source(&signer, SOURCE, when));
    let keeper = open(&trust, room.path());
    let newer = believe(&keeper, &new, Holds::Bundle).unwrap();
    // What is only looked at is not accepted yet: fetching it may fail.
    believe(&keeper, &old, Holds::Bundle).unwrap();
    let sources = keeper.sources().unwrap();
    sources.accept(Some(&newer), SOURCE, Holds::Bundle).unwrap();
    drop(keeper);
    let keeper = open(&trust, room.path());
    let error = believe(&keeper, &old, Holds::Bundle).unwrap_err();
    assert!(error.contains("sign it again to go back"), "{error}");
    let again = beside_source(&signer, SOURCE, 0);
    believe(&keeper, &again, Holds::Bundle).unwrap();
}

#[test]
fn a_copy_tells_what_was_accepted_when_the_state_is_lost() {
    let room = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let keeper = open(&trust(&signer, None), room.path());
    let [old, new] = [-20, -10].map(|when| beside_source(&signer, SOURCE, when));
    let copy: BundleSignature = serde_json::from_slice(&new).unwrap();
    let sources = keeper.sources().unwrap();
    let refused = sources.believe(Some(&old), SOURCE, Holds::Bundle, Some(&copy));
    assert!(matches!(refused, Err(UnsignedSource::Older { .. })));
}

#[test]
fn a_signature_from_the_future_makes_nothing_else_look_old() {
    let room = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let keeper = open(&trust(&signer, None), room.path());
    let error = believe(&keeper, &beside_source(&signer, SOURCE, 90), Holds::Bundle);
    assert!(error.unwrap_err().contains("signed in the future"));
    believe(&keeper, &beside_source(&signer, SOURCE, 30), Holds::Bundle).unwrap();
}

#[test]
fn a_signer_with_a_policy_stands_for_bundles_and_not_for_data() {
    let room = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let text = beside_source(&signer, SOURCE, 0);
    let keeper = open(&trust(&signer, Some("{types: [file]}")), room.path());
    believe(&keeper, &text, Holds::Bundle).unwrap();
    let error = believe(&keeper, &text, Holds::Data).unwrap_err();
    assert!(error.contains("its signer has a policy"), "{error}");
    let keeper = open(&trust(&signer, Some("{verbs: [ping]}")), room.path());
    let error = believe(&keeper, &text, Holds::Bundle).unwrap_err();
    assert_eq!(error, "the policy of its signer allows no apply");
}

#[test]
fn without_trust_nothing_is_asked() {
    let room = tempfile::tempdir().unwrap();
    let keeper = Authorizer::open(None, room.path(), "boot", Arc::new(SystemClock)).unwrap();
    let admitted = keeper.admit(Verb::Ensure, SUBJECT, &Headers::new(), b"");
    assert!(admitted.is_ok());
    assert!(!room.path().join("seen").exists());
}
