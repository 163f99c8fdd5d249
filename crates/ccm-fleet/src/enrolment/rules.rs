//! The rules of enrolment, as functions of the records and the time.

use chrono::{DateTime, Utc};

use ccm_core::model::enrolment::{EnrolledNode, EnrolmentToken, PendingNode};
use ccm_core::model::node::NodeName;
use ccm_core::system::files::Glob;

/// A verified request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) node: &'a NodeName,
    /// Key that signed the request.
    pub(super) public_key: &'a str,
}

/// What is known about the node and the token of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) token: Option<&'a EnrolmentToken>,
    pub(super) enrolled: Option<&'a EnrolledNode>,
    /// Earlier request with the same key.
    pub(super) pending: Option<&'a PendingNode>,
    /// A node of this name is online.
    pub(super) is_online: bool,
    /// The name was issued by hand, to another key.
    pub(super) is_issued: bool,
    /// The key of the request was revoked.
    pub(super) is_revoked: bool,
}

/// The decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Approved before: the same credentials again.
    Repeat,
    /// Approved by its token.
    Approve,
    /// Waits for an operator.
    Wait,
    /// Rejected by an operator, with the reason.
    Rejected(String),
    /// Refused by a rule.
    Refuse(String),
}

/// Decides about a request.
pub(super) fn decide(request: Request<'_>, known: Known<'_>, now: DateTime<Utc>) -> Decision {
    let refuse = |reason: &str| Decision::Refuse(reason.to_owned());
    let has_key = |node: &&EnrolledNode| node.public_key == request.public_key;
    let enrolled = known.enrolled.filter(has_key);
    if known.is_revoked || enrolled.is_some_and(|node| node.revoked.is_some()) {
        return refuse("this key was revoked: create a new one with --new-key");
    }
    if enrolled.is_some() {
        return Decision::Repeat;
    }
    let Some(token) = known.token else {
        return refuse("unknown token");
    };
    if token.revoked {
        return refuse("the token was revoked");
    }
    if token.expires.is_some_and(|expires| expires <= now) {
        return refuse("the token has expired");
    }
    if !is_permitted(&token.patterns, request.node) {
        return refuse("the token does not permit this node name");
    }
    if let Some(rejection) = known.pending.and_then(|pending| pending.rejected.as_ref()) {
        return Decision::Rejected(rejection.reason.clone());
    }
    if !token.automatic {
        return Decision::Wait;
    }
    if known.enrolled.is_some_and(|node| node.revoked.is_none()) {
        return refuse("the name is taken by an enrolled node");
    }
    if known.is_issued {
        return refuse("the name is taken by issued credentials");
    }
    if known.is_online {
        return refuse("the name is taken by a node that is online");
    }
    if token.max_nodes.is_some_and(|max| token.approved >= max) {
        return refuse("the token is used up");
    }
    Decision::Approve
}

/// Reports whether a name matches one of the patterns; without patterns every name does.
fn is_permitted(patterns: &[String], node: &NodeName) -> bool {
    let matches =
        |pattern: &String| Glob::parse(pattern).is_ok_and(|pattern| pattern.matches(node.as_str()));
    patterns.is_empty() || patterns.iter().any(matches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::enrolment::{NodeGrants, Rejection};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn name() -> NodeName {
        "web1.example.net".parse().unwrap()
    }

    fn token() -> EnrolmentToken {
        EnrolmentToken {
            id: "t1".parse().unwrap(),
            public_key: "UT".into(),
            created: at(0),
            created_by: "ann".into(),
            expires: Some(at(100)),
            automatic: true,
            max_nodes: Some(2),
            approved: 0,
            patterns: vec!["web*".into()],
            grants: NodeGrants::default(),
            revoked: false,
        }
    }

    fn enrolled(public_key: &str) -> EnrolledNode {
        EnrolledNode {
            node: name(),
            public_key: public_key.into(),
            approved_by: "ann".into(),
            approved: at(0),
            grants: NodeGrants::default(),
            jwt: "j".into(),
            revoked: None,
        }
    }

    fn decide_with<'a>(token: &'a EnrolmentToken, change: impl FnOnce(&mut Known<'a>)) -> Decision {
        let node = name();
        let request = Request {
            node: &node,
            public_key: "UA",
        };
        let mut known = Known {
            token: Some(token),
            enrolled: None,
            pending: None,
            is_online: false,
            is_issued: false,
            is_revoked: false,
        };
        change(&mut known);
        decide(request, known, at(1))
    }

    fn refused(token: &EnrolmentToken) -> String {
        match decide_with(token, |_| {}) {
            Decision::Refuse(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_valid_token_approves() {
        assert_eq!(decide_with(&token(), |_| {}), Decision::Approve);
    }

    #[test]
    fn a_revoked_key_of_a_forgotten_node_is_refused() {
        let decided = decide_with(&token(), |known| known.is_revoked = true);
        let reason = "this key was revoked: create a new one with --new-key";
        assert_eq!(decided, Decision::Refuse(reason.into()));
    }

    #[test]
    fn every_limit_of_a_token_is_enforced() {
        let expired = EnrolmentToken {
            expires: Some(at(1)),
            ..token()
        };
        assert_eq!(refused(&expired), "the token has expired");
        let used = EnrolmentToken {
            approved: 2,
            ..token()
        };
        assert_eq!(refused(&used), "the token is used up");
        let foreign = EnrolmentToken {
            patterns: vec!["db*".into(), "[".into()],
            ..token()
        };
        assert_eq!(
            refused(&foreign),
            "the token does not permit this node name"
        );
        let revoked = EnrolmentToken {
            revoked: true,
            ..token()
        };
        assert_eq!(refused(&revoked), "the token was revoked");
        let none = decide_with(&token(), |known| known.token = None);
        assert_eq!(none, Decision::Refuse("unknown token".into()));
    }

    #[test]
    fn a_name_that_is_taken_is_refused() {
        let other = enrolled("UB");
        let token = token();
        for decision in [
            decide_with(&token, |known| known.enrolled = Some(&other)),
            decide_with(&token, |known| known.is_issued = true),
            decide_with(&token, |known| known.is_online = true),
        ] {
            assert!(matches!(decision, Decision::Refuse(reason) if reason.contains("taken")));
        }
    }

    #[test]
    fn a_node_gets_its_credentials_again_even_if_the_token_is_used_up() {
        let same = enrolled("UA");
        let used = EnrolmentToken {
            approved: 2,
            ..token()
        };
        let decision = decide_with(&used, |known| known.enrolled = Some(&same));
        assert_eq!(decision, Decision::Repeat);
    }

    #[test]
    fn a_revoked_key_is_refused_and_its_name_is_free_again() {
        let revoked = |key| EnrolledNode {
            revoked: Some(at(0)),
            ..enrolled(key)
        };
        let (token, same, other) = (token(), revoked("UA"), revoked("UB"));
        let decision = decide_with(&token, |known| known.enrolled = Some(&same));
        assert!(matches!(decision, Decision::Refuse(reason) if reason.contains("revoked")));
        let decision = decide_with(&token, |known| known.enrolled = Some(&other));
        assert_eq!(decision, Decision::Approve);
    }

    #[test]
    fn a_manual_token_waits_for_an_operator_until_rejected() {
        let manual = EnrolmentToken {
            automatic: false,
            ..token()
        };
        assert_eq!(decide_with(&manual, |_| {}), Decision::Wait);
        let pending = PendingNode {
            node: name(),
            public_key: "UA".into(),
            token: manual.id.clone(),
            version: String::new(),
            requested: at(0),
            rejected: Some(Rejection {
                time: at(0),
                by: "ann".into(),
                reason: "unknown machine".into(),
            }),
        };
        let decision = decide_with(&manual, |known| known.pending = Some(&pending));
        assert_eq!(decision, Decision::Rejected("unknown machine".into()));
    }
}
