//! Keys: X25519 keys in the text format of age. `age1…` is a recipient, `AGE-SECRET-KEY-1…` an identity.

use std::fmt;
use std::str::FromStr;

use bech32::primitives::decode::CheckedHrpstring;
use bech32::{Bech32, Hrp};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use x25519_dalek::{PublicKey, StaticSecret};

/// Prefix of a recipient.
const RECIPIENT: &str = "age";

/// Prefix of an identity, in lower case as Bech32 requires for the checksum.
const IDENTITY: &str = "age-secret-key-";

/// Start of the text of an identity.
const IDENTITY_TEXT: &str = "AGE-SECRET-KEY-1";

/// Invalid key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("{0:?} is not an age recipient: expected age1 and 58 characters")]
    Recipient(String),
    /// Never quotes the text: it may be most of a key.
    #[error("expected AGE-SECRET-KEY-1 and 58 characters")]
    Identity,
    #[error("the file has no AGE-SECRET-KEY-1 line")]
    NoIdentity,
    #[error("could not get random bytes")]
    Random,
}

/// Public key: values can be encrypted for it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recipient([u8; 32]);

impl Recipient {
    pub(super) fn key(&self) -> PublicKey {
        PublicKey::from(self.0)
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for Recipient {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text, RECIPIENT)
            .filter(|_| text.starts_with("age1"))
            .map(Self)
            .ok_or_else(|| KeyError::Recipient(text.chars().take(80).collect()))
    }
}

impl fmt::Display for Recipient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hrp = Hrp::parse(RECIPIENT).map_err(|_| fmt::Error)?;
        bech32::encode_lower_to_fmt::<Bech32, _>(out, hrp, &self.0).map_err(|_| fmt::Error)
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl Serialize for Recipient {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Recipient {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Private key: opens values that are encrypted for its recipient. Erased from memory on drop.
#[derive(Clone)]
pub struct Identity(StaticSecret);

impl Identity {
    /// Returns a new random key.
    pub fn generate() -> Result<Self, KeyError> {
        Ok(Self(StaticSecret::from(random()?)))
    }

    pub fn recipient(&self) -> Recipient {
        Recipient(PublicKey::from(&self.0).to_bytes())
    }

    pub(super) fn key(&self) -> &StaticSecret {
        &self.0
    }

    /// Returns the content of a key file, as `age-keygen` writes it.
    pub fn to_file(&self) -> Result<String, KeyError> {
        let hrp = Hrp::parse(IDENTITY).map_err(|_| KeyError::Identity)?;
        let secret = bech32::encode_upper::<Bech32>(hrp, self.0.as_bytes())
            .map_err(|_| KeyError::Identity)?;
        Ok(format!("# public key: {}\n{secret}\n", self.recipient()))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Identity of {}", self.recipient())
    }
}

impl FromStr for Identity {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text, IDENTITY)
            .filter(|_| text.starts_with(IDENTITY_TEXT))
            .map(|key| Self(StaticSecret::from(key)))
            .ok_or(KeyError::Identity)
    }
}

/// Returns the keys of a key file: one on each line, besides comments and empty lines.
pub fn parse_identities(text: &str) -> Result<Vec<Identity>, KeyError> {
    let lines = text.lines().map(str::trim);
    let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<Identity> = keys.map(str::parse).collect::<Result<_, _>>()?;
    match keys.is_empty() {
        true => Err(KeyError::NoIdentity),
        false => Ok(keys),
    }
}

/// Returns random bytes of the operating system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| KeyError::Random)?;
    Ok(bytes)
}

fn decode(text: &str, prefix: &str) -> Option<[u8; 32]> {
    let parsed = CheckedHrpstring::new::<Bech32>(text).ok()?;
    if !parsed.hrp().as_str().eq_ignore_ascii_case(prefix) {
        return None;
    }
    let bytes: Vec<u8> = parsed.byte_iter().collect();
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_as_they_print() {
        let identity = Identity::generate().unwrap();
        let file = identity.to_file().unwrap();
        let read = parse_identities(&format!("\n{file}\n")).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].recipient(), identity.recipient());
        let text = identity.recipient().to_string();
        assert!(text.starts_with("age1") && text.len() == 62, "{text}");
        assert_eq!(text.parse(), Ok(identity.recipient()));
    }

    #[test]
    fn a_wrong_key_is_refused_and_a_secret_one_not_quoted() {
        let identity = Identity::generate().unwrap();
        let file = identity.to_file().unwrap();
        let secret = file.lines().last().unwrap();
        let damaged = secret.replace("KEY-1", "KEY-1Q");
        let error = damaged.parse::<Identity>().unwrap_err().to_string();
        assert_eq!(error, "expected AGE-SECRET-KEY-1 and 58 characters");
        assert_eq!(
            format!("{identity:?}"),
            format!("Identity of {}", identity.recipient())
        );
        let recipient = identity.recipient().to_string();
        for text in [
            "",
            "age1",
            &recipient[1..],
            &recipient.to_uppercase(),
            secret,
        ] {
            assert!(text.parse::<Recipient>().is_err(), "{text}");
        }
        assert_eq!(
            parse_identities("# none\n").unwrap_err(),
            KeyError::NoIdentity
        );
    }
}
