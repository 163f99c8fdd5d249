//! Subjects and bucket keys of enrolment.

use super::{Subject, Subjects};
use ccm_core::model::node::Token;

/// Prefix of the inboxes of nodes that are not enrolled yet; the id of their token follows.
pub const ENROLMENT_INBOX: &str = "_INBOX_ENROLL";

impl Subjects {
    /// Returns the subject of enrolment requests with a token. The server permits it to holders of
    /// that token only.
    pub fn enrolment(&self, token: &Token) -> Subject {
        self.below(&format!("enroll.{token}"))
    }

    /// Returns the filter for all enrolment requests.
    pub fn enrolments(&self) -> Subject {
        self.below("enroll.*")
    }

    /// Returns the token of the subject of an enrolment request.
    pub fn parse_enrolment(&self, subject: &str) -> Option<Token> {
        let prefix = self.below("enroll");
        let token = subject.strip_prefix(prefix.as_str())?.strip_prefix('.')?;
        token.parse().ok()
    }

    /// Returns the key of an enrolment token.
    pub fn enrolment_token_key(&self, token: &Token) -> String {
        format!("{}.token.{token}", self.collective)
    }

    /// Returns the filter for the keys of all enrolment tokens.
    pub fn enrolment_token_keys(&self) -> String {
        format!("{}.token.*", self.collective)
    }

    /// Returns the key of an enrolled node.
    pub fn enrolled_key(&self, node: &Token) -> String {
        format!("{}.node.{node}", self.collective)
    }

    /// Returns the filter for the keys of all enrolled nodes.
    pub fn enrolled_keys(&self) -> String {
        format!("{}.node.*", self.collective)
    }

    /// Returns the key of a pending request; several may claim the same name.
    pub fn pending_key(&self, node: &Token, public_key: &str) -> String {
        format!("{}.request.{node}.{public_key}", self.collective)
    }

    /// Returns the filter for the pending requests of one node, or of all.
    pub fn pending_keys(&self, node: Option<&Token>) -> String {
        let node = node.map_or("*", Token::as_str);
        format!("{}.request.{node}.*", self.collective)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::DEFAULT_PREFIX;

    #[test]
    fn the_subject_of_a_request_names_its_token() {
        let all = Subjects::new(DEFAULT_PREFIX, "lab".parse().unwrap()).unwrap();
        let token: Token = "a1b2".parse().unwrap();
        let subject = all.enrolment(&token);
        assert_eq!(subject.as_str(), "ccm.v1.lab.enroll.a1b2");
        assert!(all.enrolments().matches(subject.as_str()));
        assert_eq!(all.parse_enrolment(subject.as_str()), Some(token));
        for other in [
            "ccm.v1.lab.enroll",
            "ccm.v1.lab.enroll.a.b",
            "ccm.v1.x.enroll.a",
        ] {
            assert_eq!(all.parse_enrolment(other), None, "{other}");
        }
    }
}
