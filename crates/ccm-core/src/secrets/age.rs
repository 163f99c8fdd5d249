//! File format of age (age-encryption.org/v1), for X25519 recipients.
//!
//! Stanzas of other recipient types are skipped. Limits keep hostile files from using memory or time:
//! files are at most [`MAX_FILE`] bytes with [`MAX_STANZAS`] stanzas.

use data_encoding::{BASE64, BASE64_NOPAD};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::hmac;
use x25519_dalek::{PublicKey, StaticSecret};

use super::keys::{Identity, KeyError, Recipient, random};

const VERSION: &str = "age-encryption.org/v1";
const MAC_LINE: &str = "---";
const STANZA: &str = "-> ";
const X25519: &str = "X25519";

/// Start and end of the text form.
const ARMOR_BEGIN: &str = "-----BEGIN AGE ENCRYPTED FILE-----";
const ARMOR_END: &str = "-----END AGE ENCRYPTED FILE-----";

/// Longest encrypted file.
pub(super) const MAX_FILE: usize = 16 << 20;

/// Most recipients of a file.
const MAX_STANZAS: usize = 20_000;

/// Length of a full line of a stanza's body.
const LINE: usize = 64;

const FILE_KEY: usize = 16;
const NONCE: usize = 16;
const TAG: usize = 16;
const CHUNK: usize = 64 * 1024;

/// Value that can't be encrypted or decrypted. Texts contain no part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgeError {
    #[error("it is not an age file")]
    Format,
    #[error("it is longer than {MAX_FILE} bytes")]
    TooLong,
    #[error("it has more than {MAX_STANZAS} recipients")]
    TooManyRecipients,
    #[error("it is not encrypted for this key")]
    NoRecipient,
    #[error("it was changed or is damaged")]
    Damaged,
    #[error("it has no recipient")]
    NoRecipients,
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Reports whether a file starts as an age file does.
pub(super) fn has_header(file: &[u8]) -> bool {
    file.starts_with(VERSION.as_bytes())
}

/// Encrypts a text for recipients.
pub(super) fn encrypt(plain: &[u8], recipients: &[Recipient]) -> Result<Vec<u8>, AgeError> {
    match recipients.len() {
        0 => return Err(AgeError::NoRecipients),
        count if count > MAX_STANZAS => return Err(AgeError::TooManyRecipients),
        _ => {}
    }
    let file_key: [u8; FILE_KEY] = random()?;
    let mut header = format!("{VERSION}\n");
    for recipient in recipients {
        let ephemeral = StaticSecret::from(random()?);
        let share = PublicKey::from(&ephemeral);
        let shared = ephemeral.diffie_hellman(&recipient.key());
        if !shared.was_contributory() {
            return Err(KeyError::Recipient(recipient.to_string()).into());
        }
        let wrap = wrap_key(share.as_bytes(), recipient.bytes(), shared.as_bytes())?;
        let body = seal(&wrap, [0; 12], file_key.to_vec())?;
        header.push_str(&format!(
            "{STANZA}{X25519} {}\n{}\n",
            BASE64_NOPAD.encode(share.as_bytes()),
            BASE64_NOPAD.encode(&body)
        ));
    }
    header.push_str(MAC_LINE);
    let mac = hmac::sign(&mac_key(&file_key)?, header.as_bytes());
    header.push_str(&format!(" {}\n", BASE64_NOPAD.encode(mac.as_ref())));
    let mut file = header.into_bytes();
    let nonce: [u8; NONCE] = random()?;
    file.extend(nonce);
    let key = derive(&nonce, &file_key, b"payload")?;
    let count = plain.len().div_ceil(CHUNK).max(1);
    for index in 0..count {
        let start = index * CHUNK;
        let end = plain.len().min(start + CHUNK);
        let chunk = plain.get(start..end).unwrap_or_default();
        file.extend(seal(
            &key,
            chunk_nonce(index, index + 1 == count),
            chunk.to_vec(),
        )?);
    }
    Ok(file)
}

/// Decrypts a file, in binary or text form, with the first key that it is encrypted for.
pub(super) fn decrypt(file: &[u8], identities: &[Identity]) -> Result<Vec<u8>, AgeError> {
    if file.len() > MAX_FILE {
        return Err(AgeError::TooLong);
    }
    let binary;
    let file = match file.trim_ascii_start().starts_with(ARMOR_BEGIN.as_bytes()) {
        true => {
            binary = dearmor(file).ok_or(AgeError::Format)?;
            &binary[..]
        }
        false => file,
    };
    let Header {
        stanzas,
        signed,
        mac,
        payload,
    } = Header::parse(file)?;
    let keys = stanzas
        .iter()
        .filter_map(|stanza| stanza.file_key(identities));
    let file_key = keys.into_iter().next().ok_or(AgeError::NoRecipient)?;
    hmac::verify(&mac_key(&file_key)?, signed, &mac).map_err(|_| AgeError::Damaged)?;
    let (nonce, sealed) = payload.split_at_checked(NONCE).ok_or(AgeError::Damaged)?;
    let key = derive(nonce, &file_key, b"payload")?;
    let mut plain = Vec::with_capacity(sealed.len());
    let count = sealed.len().div_ceil(CHUNK + TAG);
    for (index, chunk) in sealed.chunks(CHUNK + TAG).enumerate() {
        let is_last = index + 1 == count;
        let opened = open(&key, chunk_nonce(index, is_last), chunk.to_vec())?;
        // Only an empty file has an empty chunk.
        if opened.is_empty() && index > 0 {
            return Err(AgeError::Damaged);
        }
        plain.extend(opened);
    }
    match count {
        0 => Err(AgeError::Damaged),
        _ => Ok(plain),
    }
}

/// Parsed header of a file.
struct Header<'f> {
    stanzas: Vec<Stanza<'f>>,
    /// Part of the header that the MAC covers.
    signed: &'f [u8],
    mac: Vec<u8>,
    payload: &'f [u8],
}

/// X25519 recipient of a file.
struct Stanza<'f> {
    share: &'f str,
    body: &'f str,
}

impl<'f> Header<'f> {
    fn parse(file: &'f [u8]) -> Result<Self, AgeError> {
        let mut lines = Lines { file, at: 0 };
        if lines.next() != Some(VERSION) {
            return Err(AgeError::Format);
        }
        let mut stanzas = Vec::new();
        let mut count = 0;
        loop {
            let start = lines.at;
            let line = lines.next().ok_or(AgeError::Format)?;
            if let Some(mac) = line.strip_prefix(MAC_LINE) {
                let mac = mac.strip_prefix(' ').ok_or(AgeError::Format)?;
                let mac = BASE64_NOPAD.decode(mac.as_bytes());
                let signed = file.get(..start + MAC_LINE.len());
                return Ok(Self {
                    stanzas,
                    signed: signed.ok_or(AgeError::Format)?,
                    mac: mac.map_err(|_| AgeError::Format)?,
                    payload: file.get(lines.at..).unwrap_or_default(),
                });
            }
            let arguments = line.strip_prefix(STANZA).ok_or(AgeError::Format)?;
            count += 1;
            if count > MAX_STANZAS {
                return Err(AgeError::TooManyRecipients);
            }
            let body = lines.body()?;
            let mut arguments = arguments.split(' ');
            let kind = arguments.next();
            if let (Some(X25519), Some(share), None) = (kind, arguments.next(), arguments.next()) {
                stanzas.push(Stanza { share, body });
            }
        }
    }
}

/// Lines of a header.
struct Lines<'f> {
    file: &'f [u8],
    at: usize,
}

impl<'f> Lines<'f> {
    /// Returns the next line, which must be ASCII and end with a line feed.
    fn next(&mut self) -> Option<&'f str> {
        let rest = self.file.get(self.at..)?;
        let length = rest.iter().position(|byte| *byte == b'\n')?;
        let line = std::str::from_utf8(rest.get(..length)?).ok()?;
        self.at += length + 1;
        line.bytes()
            .all(|byte| (32..127).contains(&byte))
            .then_some(line)
    }

    /// Skips the body of a stanza, which ends with a line that is not full. Returns the first line: that
    /// of an X25519 recipient has one only.
    fn body(&mut self) -> Result<&'f str, AgeError> {
        let mut first = None;
        loop {
            let line = self.next().ok_or(AgeError::Format)?;
            if line.len() > LINE {
                return Err(AgeError::Format);
            }
            let first = *first.get_or_insert(line);
            if line.len() < LINE {
                return Ok(first);
            }
        }
    }
}

impl Stanza<'_> {
    /// Returns the file key, if the stanza is for one of the keys.
    fn file_key(&self, identities: &[Identity]) -> Option<[u8; FILE_KEY]> {
        let share = BASE64_NOPAD.decode(self.share.as_bytes()).ok()?;
        let share: [u8; 32] = share.try_into().ok()?;
        let body = BASE64_NOPAD.decode(self.body.as_bytes()).ok()?;
        if body.len() != FILE_KEY + TAG {
            return None;
        }
        identities.iter().find_map(|identity| {
            let shared = identity.key().diffie_hellman(&PublicKey::from(share));
            if !shared.was_contributory() {
                return None;
            }
            let recipient = identity.recipient();
            let wrap = wrap_key(&share, recipient.bytes(), shared.as_bytes()).ok()?;
            open(&wrap, [0; 12], body.clone()).ok()?.try_into().ok()
        })
    }
}

fn wrap_key(share: &[u8; 32], recipient: &[u8; 32], shared: &[u8]) -> Result<[u8; 32], AgeError> {
    let salt = [share.as_slice(), recipient].concat();
    derive(&salt, shared, b"age-encryption.org/v1/X25519")
}

fn mac_key(file_key: &[u8]) -> Result<hmac::Key, AgeError> {
    let key = derive(&[], file_key, b"header")?;
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &key))
}

/// Derives a key with HKDF-SHA-256.
fn derive(salt: &[u8], secret: &[u8], info: &[u8]) -> Result<[u8; 32], AgeError> {
    let mut key = [0; 32];
    Salt::new(HKDF_SHA256, salt)
        .extract(secret)
        .expand(&[info], HKDF_SHA256)
        .and_then(|expanded| expanded.fill(&mut key))
        .map_err(|_| AgeError::Damaged)?;
    Ok(key)
}

/// Returns the nonce of a chunk: its number and whether it is the last.
fn chunk_nonce(index: usize, is_last: bool) -> [u8; 12] {
    let mut nonce = [0; 12];
    let number = u64::try_from(index).unwrap_or(u64::MAX).to_be_bytes();
    for (to, from) in nonce.iter_mut().skip(3).zip(number) {
        *to = from;
    }
    if let Some(last) = nonce.last_mut() {
        *last = u8::from(is_last);
    }
    nonce
}

fn cipher(key: &[u8; 32]) -> Result<LessSafeKey, AgeError> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).map_err(|_| AgeError::Damaged)?;
    Ok(LessSafeKey::new(key))
}

fn seal(key: &[u8; 32], nonce: [u8; 12], mut text: Vec<u8>) -> Result<Vec<u8>, AgeError> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    cipher(key)?
        .seal_in_place_append_tag(nonce, Aad::empty(), &mut text)
        .map_err(|_| AgeError::Damaged)?;
    Ok(text)
}

fn open(key: &[u8; 32], nonce: [u8; 12], mut sealed: Vec<u8>) -> Result<Vec<u8>, AgeError> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    let length = cipher(key)?
        .open_in_place(nonce, Aad::empty(), &mut sealed)
        .map_err(|_| AgeError::Damaged)?
        .len();
    sealed.truncate(length);
    Ok(sealed)
}

/// Returns the binary form of a file in text form.
fn dearmor(file: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(file).ok()?.trim();
    let inside = text.strip_prefix(ARMOR_BEGIN)?.strip_suffix(ARMOR_END)?;
    let encoded: String = inside.split_ascii_whitespace().collect();
    BASE64.decode(encoded.as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> Identity {
        Identity::generate().unwrap()
    }

    fn sealed(text: &[u8], keys: &[&Identity]) -> Vec<u8> {
        let recipients: Vec<_> = keys.iter().map(|key| key.recipient()).collect();
        encrypt(text, &recipients).unwrap()
    }

    #[test]
    fn every_recipient_can_decrypt_and_nobody_else() {
        let (a, b, other) = (key(), key(), key());
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let text = vec![7; length];
            let file = sealed(&text, &[&a, &b]);
            assert_eq!(decrypt(&file, std::slice::from_ref(&a)).unwrap(), text);
            assert_eq!(decrypt(&file, &[key(), b.clone()]).unwrap(), text);
            assert_eq!(
                decrypt(&file, std::slice::from_ref(&other)),
                Err(AgeError::NoRecipient)
            );
        }
    }

    #[test]
    fn a_changed_file_is_refused() {
        let key = key();
        let file = sealed(b"hunter2", &[&key]);
        let keys = [key];
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            assert!(decrypt(&changed, &keys).is_err(), "byte {at}");
        }
        for length in 0..file.len() {
            assert!(decrypt(&file[..length], &keys).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_file_without_a_chunk_or_with_one_more_is_refused() {
        let key = key();
        let file = sealed(&vec![1; 2 * CHUNK], &[&key]);
        let keys = [key];
        assert_eq!(
            decrypt(&file[..file.len() - CHUNK - TAG], &keys),
            Err(AgeError::Damaged)
        );
        let longer = [&file[..], &[0; TAG]].concat();
        assert_eq!(decrypt(&longer, &keys), Err(AgeError::Damaged));
    }

    #[test]
    fn no_recipients_or_too_many_are_refused() {
        assert_eq!(encrypt(b"x", &[]), Err(AgeError::NoRecipients));
        let stanza = "-> X25519 x\ny\n".repeat(MAX_STANZAS + 1);
        let file = format!("{VERSION}\n{stanza}--- x\n");
        assert_eq!(
            decrypt(file.as_bytes(), &[key()]),
            Err(AgeError::TooManyRecipients)
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(age-encryption.org/v1\n|-> X25519 [a-z]{0,3}\n|[A-Za-z/+]{0,70}\n|--- ?|\n){0,12}") {
            let _ = decrypt(text.as_bytes(), &[key()]);
        }
    }
}
