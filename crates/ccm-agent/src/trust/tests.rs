use std::time::Duration;

use super::*;
use crate::config::{Signer as ConfiguredSigner, Trust};
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
        signers: vec![ConfiguredSigner {
            key: signer.public_key(),
            name: "ops".into(),
            policy: policy.map(|text| Policy::read(&parse(text).unwrap()).unwrap()),
        }],
    }
}

fn lab() -> Token {
    "lab".parse().unwrap()
}

fn open(trust: &Trust, directory: &Path) -> Authorizer {
    Authorizer::open(
        Some(trust),
        &lab(),
        directory,
        "boot",
        Arc::new(SystemClock),
    )
    .unwrap()
}

fn signed(signer: &Signer, time: DateTime<Utc>) -> Headers {
    let mut headers = Headers::new();
    let subject: Subject = SUBJECT.parse().unwrap();
    signer.sign_at(time, &subject, &mut headers, b"x").unwrap();
    headers
}

fn admit(authorizer: &Authorizer, headers: &Headers) -> String {
    match authorizer.admit(Verb::Ensure, SUBJECT, headers, b"x") {
        Ok(requester) => format!("admitted {}", requester.name),
        Err(denied) => denied.to_string(),
    }
}

#[test]
fn only_a_fresh_request_of_a_known_signer_is_admitted_and_only_once() {
    let directory = tempfile::tempdir().unwrap();
    let (signer, stranger) = (Signer::generate(), Signer::generate());
    let authorizer = open(&trust(&signer, None), directory.path());
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
            "signature does not match the request",
        ),
        (
            signed(&stranger, later)
                .with(SIGNER, &signer.public_key())
                .unwrap(),
            "signature does not match the request",
        ),
        (
            good.clone().with(SIGNATURE, "").unwrap(),
            "header Ccm-Signature is missing",
        ),
        (good.clone(), "admitted ops"),
        (good.clone(), "request was seen before"),
    ] {
        assert_eq!(admit(&authorizer, &headers), expected);
    }
    drop(authorizer);
    let again = open(&trust(&signer, None), directory.path());
    assert_eq!(admit(&again, &good), "request was seen before");
}

#[test]
fn a_signature_is_valid_for_one_subject_only() {
    let directory = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let authorizer = open(&trust(&signer, None), directory.path());
    let headers = signed(&signer, now() + TimeDelta::seconds(1));
    for other in ["ccm.v1.prod.all.ensure", "ccm.v1.default.all.apply"] {
        let denied = authorizer
            .admit(Verb::Ensure, other, &headers, b"x")
            .unwrap_err();
        assert_eq!(denied.to_string(), "signature does not match the request");
    }
}

#[test]
fn where_signatures_are_optional_a_bad_one_is_still_refused() {
    let directory = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let optional = Trust {
        required: false,
        ..trust(&signer, None)
    };
    let authorizer = open(&optional, directory.path());
    assert_eq!(admit(&authorizer, &Headers::new()), "admitted ");
    let stranger = signed(&Signer::generate(), now());
    assert_eq!(admit(&authorizer, &stranger), "signer is not trusted here");
}

fn assignment(generation: u64, signer: Option<&Signer>, node: &NodeName) -> Assignment {
    let mut assignment = Assignment {
        protocol: ASSIGNMENT.into(),
        generation,
        incarnation: None,
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
fn nobody_without_the_key_can_move_an_assignment_to_another_incarnation() {
    let directory = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let node: NodeName = "web1.lab".parse().unwrap();
    let trust = trust(&signer, None);
    let at = |minutes| Some(Incarnation::new(now() + TimeDelta::minutes(minutes), 1));
    let signed = |incarnation, generation| {
        let mut signed = assignment(generation, None, &node);
        signed.incarnation = incarnation;
        signer.sign_assignment(&mut signed, &node).unwrap();
        signed
    };
    let accept = |assignment: &Assignment| {
        let authorizer = open(&trust, directory.path());
        let accepted = authorizer.accept(assignment, &node, AcceptContext::default());
        accepted.map_or_else(|refusal| refusal.to_string(), |_| "accepted".into())
    };
    let old = signed(at(-9), 7);
    assert_eq!(accept(&old), "accepted");
    // The storage was lost: generations start again.
    assert_eq!(accept(&signed(at(-5), 1)), "accepted");
    let older = "assignment is of an earlier incarnation of the fleet than the accepted one";
    assert_eq!(accept(&old), older);
    for incarnation in [at(-5), at(-1), None] {
        let moved = Assignment {
            incarnation,
            ..old.clone()
        };
        assert_eq!(accept(&moved), "signature does not match the assignment");
    }
    let future = accept(&signed(at(9), 1));
    assert!(future.contains("from the future"), "{future}");
}

#[test]
fn an_assignment_must_be_signed_for_this_node_and_not_be_older() {
    let directory = tempfile::tempdir().unwrap();
    let (signer, stranger) = (Signer::generate(), Signer::generate());
    let node: NodeName = "web1.lab".parse().unwrap();
    let other: NodeName = "web2.lab".parse().unwrap();
    let trust = trust(&signer, None);
    let accept = |assignment: &Assignment| {
        let accepted =
            open(&trust, directory.path()).accept(assignment, &node, AcceptContext::default());
        accepted.map_or_else(|refusal| refusal.to_string(), |_| "accepted".into())
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
            "signature does not match the assignment",
        ),
        (raised, "signature does not match the assignment"),
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
fn a_signer_that_may_not_apply_can_not_assign() {
    let directory = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let node: NodeName = "web1.lab".parse().unwrap();
    let authorizer = open(&trust(&signer, Some("{verbs: [ping]}")), directory.path());
    let refusal = authorizer.accept(
        &assignment(1, Some(&signer), &node),
        &node,
        AcceptContext::default(),
    );
    assert_eq!(
        refusal.unwrap_err().to_string(),
        "the policy of the assignment's signer does not allow apply"
    );
}

const SOURCE: &str = "obj://SITE/site.tgz";

/// Returns the signature file of a source, signed so many seconds from now.
fn signature_for(signer: &Signer, source: &str, seconds: i64) -> Vec<u8> {
    let time = now() + TimeDelta::seconds(seconds);
    let signature = signer.sign_bundle(source, &Digest::of(b"x"), time).unwrap();
    serde_json::to_vec(&signature).unwrap()
}

fn verify(
    authorizer: &Authorizer,
    text: &[u8],
    kind: SourceKind,
) -> Result<BundleSignature, String> {
    let sources = authorizer.sources().unwrap();
    let verified = sources.verify(Some(text), SOURCE, kind, None);
    verified.map_err(|refusal| refusal.to_string())
}

#[test]
fn an_older_signature_than_the_accepted_one_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let trust = trust(&signer, None);
    let [old, new] = [-20, -10].map(|when| signature_for(&signer, SOURCE, when));
    let authorizer = open(&trust, directory.path());
    let newer = verify(&authorizer, &new, SourceKind::Bundle).unwrap();
    // A verified signature is not accepted yet: fetching the content may fail.
    verify(&authorizer, &old, SourceKind::Bundle).unwrap();
    let sources = authorizer.sources().unwrap();
    sources
        .accept(Some(&newer), SOURCE, SourceKind::Bundle)
        .unwrap();
    drop(authorizer);
    let authorizer = open(&trust, directory.path());
    let error = verify(&authorizer, &old, SourceKind::Bundle).unwrap_err();
    assert!(error.contains("sign it again to go back"), "{error}");
    let again = signature_for(&signer, SOURCE, 0);
    verify(&authorizer, &again, SourceKind::Bundle).unwrap();
}

#[test]
fn the_signature_of_the_cached_bundle_counts_when_the_state_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let authorizer = open(&trust(&signer, None), directory.path());
    let [old, new] = [-20, -10].map(|when| signature_for(&signer, SOURCE, when));
    let copy: BundleSignature = serde_json::from_slice(&new).unwrap();
    let sources = authorizer.sources().unwrap();
    let refused = sources.verify(Some(&old), SOURCE, SourceKind::Bundle, Some(&copy));
    assert!(matches!(refused, Err(UnsignedSource::Older { .. })));
}

#[test]
fn a_signature_from_the_future_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let authorizer = open(&trust(&signer, None), directory.path());
    let error = verify(
        &authorizer,
        &signature_for(&signer, SOURCE, 90),
        SourceKind::Bundle,
    );
    assert!(error.unwrap_err().contains("signed in the future"));
    verify(
        &authorizer,
        &signature_for(&signer, SOURCE, 30),
        SourceKind::Bundle,
    )
    .unwrap();
}

#[test]
fn a_signer_with_a_policy_may_sign_bundles_but_not_data() {
    let directory = tempfile::tempdir().unwrap();
    let signer = Signer::generate();
    let text = signature_for(&signer, SOURCE, 0);
    let authorizer = open(&trust(&signer, Some("{types: [file]}")), directory.path());
    verify(&authorizer, &text, SourceKind::Bundle).unwrap();
    let error = verify(&authorizer, &text, SourceKind::Data).unwrap_err();
    assert!(error.contains("its signer has a policy"), "{error}");
    let authorizer = open(&trust(&signer, Some("{verbs: [ping]}")), directory.path());
    let error = verify(&authorizer, &text, SourceKind::Bundle).unwrap_err();
    assert_eq!(error, "the policy of its signer does not allow apply");
}

#[test]
fn without_trust_every_request_is_admitted() {
    let directory = tempfile::tempdir().unwrap();
    let authorizer = Authorizer::open(
        None,
        &"lab".parse().unwrap(),
        directory.path(),
        "boot",
        Arc::new(SystemClock),
    )
    .unwrap();
    let admitted = authorizer.admit(Verb::Ensure, SUBJECT, &Headers::new(), b"");
    assert!(admitted.is_ok());
    assert!(!directory.path().join("seen").exists());
}
