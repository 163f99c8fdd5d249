//! Plain ed25519 keys in hexadecimal, as Choria stores them; nkeys are the same keys in another
//! encoding.

use std::fmt;
use std::str::FromStr;

use data_encoding::{BASE32_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

use ccm_value::secret::Secret;

/// Prefix of the nkey of a user.
const USER_PREFIX: u8 = 20 << 3;

/// An invalid key. No message contains the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoriaKeyError {
    #[error("not an ed25519 public key of 64 hexadecimal digits")]
    Public,
    #[error("not an ed25519 seed of 64 hexadecimal digits")]
    Seed,
}

/// An ed25519 public key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChoriaKey(VerifyingKey);

impl ChoriaKey {
    /// Returns the key in hexadecimal.
    pub fn to_hex(&self) -> String {
        HEXLOWER.encode(self.0.as_bytes())
    }

    /// Returns the key as the nkey of a user, as in the `trust` section of an agent.
    pub fn to_user_nkey(&self) -> String {
        let mut bytes = vec![USER_PREFIX];
        bytes.extend_from_slice(self.0.as_bytes());
        bytes.extend_from_slice(&crc16(&bytes).to_le_bytes());
        BASE32_NOPAD.encode(&bytes)
    }

    /// Reports whether this key signed the bytes. Weak keys and malleable signatures are refused.
    pub fn is_signature_valid(&self, bytes: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.0.verify_strict(bytes, &signature).is_ok())
    }
}

impl FromStr for ChoriaKey {
    type Err = ChoriaKeyError;

    fn from_str(text: &str) -> Result<Self, ChoriaKeyError> {
        let bytes = decode(text).ok_or(ChoriaKeyError::Public)?;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| ChoriaKeyError::Public)?;
        if key.is_weak() {
            return Err(ChoriaKeyError::Public);
        }
        Ok(Self(key))
    }
}

impl fmt::Debug for ChoriaKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ChoriaKey({})", self.to_hex())
    }
}

/// The secret seed of an ed25519 key.
#[derive(Clone)]
pub struct ChoriaSeed(SigningKey);

impl ChoriaSeed {
    /// Parses the text of a seed file.
    pub fn parse(text: &Secret) -> Result<Self, ChoriaKeyError> {
        let bytes = decode(text.reveal().trim()).ok_or(ChoriaKeyError::Seed)?;
        Ok(Self(SigningKey::from_bytes(&bytes)))
    }

    pub fn public_key(&self) -> ChoriaKey {
        ChoriaKey(self.0.verifying_key())
    }

    pub fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        self.0.sign(bytes).to_bytes().to_vec()
    }
}

impl fmt::Debug for ChoriaSeed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ChoriaSeed({})", self.public_key().to_hex())
    }
}

fn decode(text: &str) -> Option<[u8; 32]> {
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
    bytes.try_into().ok()
}

/// Returns the checksum of an nkey: CRC-16 with polynomial 0x1021, as in XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(byte: u8) -> ChoriaSeed {
        ChoriaSeed::parse(&Secret::new(HEXLOWER.encode(&[byte; 32]))).unwrap()
    }

    #[test]
    fn a_key_survives_hexadecimal() {
        let key = seed(7).public_key();
        assert_eq!(key.to_hex().parse::<ChoriaKey>().unwrap(), key);
        assert_eq!(
            key.to_hex().to_uppercase().parse::<ChoriaKey>().unwrap(),
            key
        );
    }

    #[test]
    fn the_nkey_of_a_key_is_valid_and_verifies_the_same_signatures() {
        let seed = seed(9);
        let pair = nkeys::KeyPair::from_public_key(&seed.public_key().to_user_nkey()).unwrap();
        pair.verify(b"text", &seed.sign(b"text")).unwrap();
    }

    #[test]
    fn a_signature_is_valid_for_its_text_and_key_only() {
        let seed = seed(1);
        let signature = seed.sign(b"text");
        assert!(seed.public_key().is_signature_valid(b"text", &signature));
        assert!(!seed.public_key().is_signature_valid(b"texu", &signature));
        assert!(
            !seed
                .public_key()
                .is_signature_valid(b"text", &signature[1..])
        );
        assert!(
            !self::seed(2)
                .public_key()
                .is_signature_valid(b"text", &signature)
        );
    }

    #[test]
    fn invalid_keys_are_refused_without_being_quoted() {
        let weak = format!("01{}", "00".repeat(31));
        for text in ["", "xx", "ab", &"zz".repeat(32), &"ab".repeat(33), &weak] {
            let error = text.parse::<ChoriaKey>().unwrap_err();
            assert_eq!(error, ChoriaKeyError::Public);
        }
        let error = ChoriaSeed::parse(&Secret::new("hunter2")).unwrap_err();
        assert!(!error.to_string().contains("hunter2"));
    }
}
