//! Enrolment tokens as text: everything a node needs for its request, in one argument.
//!
//! A token contains a bearer JWT that permits nothing but enrolment requests, the CA of the server,
//! and the key that must have signed the reply. It is a secret: its holder can request enrolment.

use std::fmt;

use data_encoding::{BASE64, BASE64URL_NOPAD};
use serde::{Deserialize, Serialize};

use super::jwt::{self, User};
use super::request_signature::PublicKey;
use ccm_core::model::node::Token;
use ccm_value::secret::Secret;

/// First field of a token; names the version.
const VERSION: &str = "ccm-enroll-1";

/// Line length of a PEM file.
const PEM_LINE: usize = 64;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// An invalid token. The text is not shown: it may be a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("not an enrolment token: it begins with {VERSION}")]
    Format,
    #[error("the enrolment token is incomplete or damaged")]
    Damaged,
    #[error("the CA file contains no certificate")]
    NoCertificate,
}

/// The content of an enrolment token.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenContent {
    /// Bearer JWT of the token's NATS user; its name is the id of the token.
    pub jwt: Secret,
    /// Public key that signs replies to requests.
    pub issuer: String,
    /// CA certificates of the server in PEM; empty for those of the system.
    pub ca: String,
    pub fleet: TokenFleet,
}

/// The fleet that a token is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenFleet {
    pub servers: Vec<String>,
    pub collective: Token,
    pub prefix: String,
}

impl TokenContent {
    /// Returns the id of the token.
    pub fn id(&self) -> Result<Token, TokenError> {
        let verified = jwt::verify::<User>(self.jwt.reveal()).map_err(|_| TokenError::Damaged)?;
        verified
            .claims
            .name
            .parse()
            .map_err(|_| TokenError::Damaged)
    }

    /// Returns the token as text without characters that are special in a shell.
    pub fn encode(&self) -> Result<Secret, TokenError> {
        let fleet = serde_json::to_vec(&self.fleet).map_err(|_| TokenError::Damaged)?;
        let certificates = certificates(&self.ca)?;
        let ca: Vec<String> = certificates
            .iter()
            .map(|der| BASE64URL_NOPAD.encode(der))
            .collect();
        Ok(Secret::new(format!(
            "{VERSION}:{}:{}:{}:{}",
            self.jwt.reveal(),
            self.issuer,
            ca.join(","),
            BASE64URL_NOPAD.encode(&fleet)
        )))
    }

    /// Parses the text of a token.
    pub fn parse(text: &Secret) -> Result<Self, TokenError> {
        let mut fields = text.reveal().trim().split(':');
        if fields.next() != Some(VERSION) {
            return Err(TokenError::Format);
        }
        let mut field = || fields.next().ok_or(TokenError::Damaged);
        let (jwt, issuer, ca, fleet) = (field()?, field()?, field()?, field()?);
        if fields.next().is_some() || PublicKey::parse(issuer).is_err() {
            return Err(TokenError::Damaged);
        }
        let decode = |text: &str| {
            BASE64URL_NOPAD
                .decode(text.as_bytes())
                .map_err(|_| TokenError::Damaged)
        };
        let mut certificates = String::new();
        for one in ca.split(',').filter(|one| !one.is_empty()) {
            certificates.push_str(&pem(&decode(one)?));
        }
        let content = Self {
            jwt: Secret::new(jwt),
            issuer: issuer.into(),
            ca: certificates,
            fleet: serde_json::from_slice(&decode(fleet)?).map_err(|_| TokenError::Damaged)?,
        };
        content.id()?;
        Ok(content)
    }
}

impl fmt::Debug for TokenContent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "TokenContent({:?})", self.fleet)
    }
}

/// Returns the certificates of a PEM file.
fn certificates(text: &str) -> Result<Vec<Vec<u8>>, TokenError> {
    let mut found = Vec::new();
    for block in text.split(BEGIN).skip(1) {
        let (block, _) = block.split_once(END).ok_or(TokenError::NoCertificate)?;
        let block: String = block.split_whitespace().collect();
        let der = BASE64.decode(block.as_bytes());
        found.push(der.map_err(|_| TokenError::NoCertificate)?);
    }
    if found.is_empty() && !text.is_empty() {
        return Err(TokenError::NoCertificate);
    }
    Ok(found)
}

/// Returns a certificate in PEM.
fn pem(der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let mut out = format!("{BEGIN}\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, next) = rest.split_at(PEM_LINE.min(rest.len()));
        out.push_str(line);
        out.push('\n');
        rest = next;
    }
    out.push_str(END);
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jwt::{Claims, Key, KeyKind};

    fn content() -> TokenContent {
        let issuer = Key::generate(KeyKind::Account);
        let claims = Claims {
            name: "a1b2".into(),
            subject: Key::generate(KeyKind::User).public_key(),
            issued: chrono::DateTime::UNIX_EPOCH,
            expires: None,
            body: User::default(),
        };
        TokenContent {
            jwt: Secret::new(claims.sign(&issuer).unwrap()),
            issuer: issuer.public_key(),
            ca: pem(&[7; 100]) + &pem(&[8; 48]),
            fleet: TokenFleet {
                servers: vec!["tls://nats.example.net:4222".into()],
                collective: "default".parse().unwrap(),
                prefix: "ccm.v1".into(),
            },
        }
    }

    #[test]
    fn a_token_is_equal_after_it_is_written_and_read() {
        let content = content();
        let text = content.encode().unwrap();
        let read = TokenContent::parse(&text).unwrap();
        assert_eq!(read, content);
        assert_eq!(read.id().unwrap().as_str(), "a1b2");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ":,._-".contains(c);
        assert!(text.reveal().chars().all(is_plain));
    }

    #[test]
    fn damaged_tokens_are_rejected_without_showing_them() {
        let text = content().encode().unwrap().reveal().to_owned();
        let cut = &text[..text.len() - 5];
        let swapped = text.replacen("eyJ", "eyK", 1);
        for bad in ["", "hunter2", "ccm-enroll-1:hunter2", cut, &swapped] {
            let error = TokenContent::parse(&Secret::new(bad)).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
