//! Documents of SOPS with age recipients: each value is encrypted with a data key, which is encrypted
//! for the recipients, and a MAC covers all values.
//!
//! Reads only. Each value of a verified document is encrypted again for one recipient, so that it stays
//! encrypted until its data is used.

use std::fmt;

use aes_gcm::aead::consts::U32;
use aes_gcm::aead::{Aead as _, Nonce, Payload};
use aes_gcm::aes::Aes256;
use aes_gcm::{AesGcm, KeyInit as _};
use data_encoding::{BASE64, HEXUPPER};
use sha2::{Digest as _, Sha512};

use super::age::{self, AgeError};
use super::keys::Identity;
use super::sealed::{SealedType, seal};
use crate::model::Value;
use crate::model::document::{Node, parse_message};
use crate::model::secret::SEALED;
use crate::model::value::Map;

/// Key of the section with keys and MAC.
const SECTION: &str = "sops";

const BEGIN: &str = "ENC[AES256_GCM,";

/// SOPS uses longer nonces than most.
type Cipher = AesGcm<Aes256, U32>;

/// Document that can't be read. Texts contain no value of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SopsError {
    #[error("the sops section has no {0}")]
    Missing(&'static str),
    #[error("the data key can't be opened: {0}")]
    DataKey(#[source] AgeError),
    #[error("there is no key to open it with")]
    NoKey,
    #[error("value {0:?} was changed or is damaged")]
    Value(String),
    #[error("its MAC does not match: values were changed, added or removed")]
    Mac,
    #[error("it is not a mapping")]
    Document,
}

/// Reports whether a document was encrypted by SOPS.
pub fn is_sops(root: &Value) -> bool {
    let section = root.get(SECTION);
    section.is_some_and(|section| section.get("mac").is_some())
}

/// Returns the values of a document of SOPS, each encrypted for the first of the keys that can open it.
pub fn unseal_document(text: &str, identities: &[Identity]) -> Result<Value, SopsError> {
    let Some(own) = identities.first() else {
        return Err(SopsError::NoKey);
    };
    let document = parse_message(text).map_err(|_| SopsError::Document)?;
    let section = document.get(SECTION).ok_or(SopsError::Missing("keys"))?;
    let cipher = data_key(section, identities)?;
    let mut leaves = Leaves {
        cipher: &cipher,
        only_encrypted: flag(section, "mac_only_encrypted"),
        comments: comments(text).into_iter().rev().collect(),
        previous: Vec::new(),
        hash: Sha512::new(),
        own,
    };
    let entries = document.entries().ok_or(SopsError::Document)?;
    let mut values = Map::new();
    for (key, node) in entries {
        let name = key_name(key);
        if name != SECTION {
            let value = leaves.value(node, &mut vec![name.clone()])?;
            values.insert(name.into(), value);
        }
    }
    leaves.comments_before(u32::MAX, &[])?;
    leaves.verify(section)?;
    Ok(values.into())
}

/// Returns the values of a document with an encrypted value that nobody can open in place of each
/// encrypted one.
pub(super) fn without_key(root: &Value) -> Value {
    match root {
        Value::Str(text) if text.starts_with(BEGIN) => format!("{SEALED}]").into(),
        Value::List(items) => items.iter().map(without_key).collect(),
        Value::Map(map) => {
            let entries = map.iter().filter(|(key, _)| &***key != SECTION);
            let entries = entries.map(|(key, value)| (key.clone(), without_key(value)));
            entries.collect::<Map>().into()
        }
        other => other.clone(),
    }
}

/// Opens the data key with the first recipient that one of the keys is for.
fn data_key(section: &Node, identities: &[Identity]) -> Result<Cipher, SopsError> {
    let recipients = section.get("age").and_then(Node::items);
    let recipients = recipients.ok_or(SopsError::Missing("age recipients"))?;
    let mut problem = AgeError::NoRecipient;
    for recipient in recipients {
        let Some(file) = recipient.get("enc").and_then(Node::text) else {
            continue;
        };
        match age::decrypt(file.as_bytes(), identities) {
            Ok(key) => {
                return Cipher::new_from_slice(&key)
                    .map_err(|_| SopsError::DataKey(AgeError::Damaged));
            }
            Err(AgeError::NoRecipient) => {}
            Err(err) => problem = err,
        }
    }
    Err(SopsError::DataKey(problem))
}

fn flag(section: &Node, key: &str) -> bool {
    let value = section.get(key).map(Node::to_value);
    value == Some(Value::Bool(true))
}

fn key_name(key: &Node) -> String {
    match key.text() {
        Some(text) => text.to_string(),
        None => key.to_value().to_string(),
    }
}

/// Comment lines before the `sops` section, with their line numbers from 1.
fn comments(text: &str) -> Vec<(u32, &str)> {
    let lines = (1..).zip(text.lines());
    let own = lines.take_while(|(_, line)| !line.starts_with("sops:"));
    let comments = own.filter_map(|(at, line)| Some((at, line.trim_start().strip_prefix('#')?)));
    comments.collect()
}

/// Opens the values of a document in order, and hashes them for the MAC.
struct Leaves<'a> {
    cipher: &'a Cipher,
    /// Whether the MAC covers encrypted values only.
    only_encrypted: bool,
    /// Comments that were not reached yet, the next one last.
    comments: Vec<(u32, &'a str)>,
    /// Path of the last value.
    previous: Vec<String>,
    hash: Sha512,
    own: &'a Identity,
}

impl Leaves<'_> {
    /// Returns a value with its encrypted texts encrypted for the own key. Items of a list have the path
    /// of the list.
    fn value(&mut self, node: &Node, path: &mut Vec<String>) -> Result<Value, SopsError> {
        if let Some(entries) = node.entries() {
            let mut map = Map::new();
            for (key, node) in entries {
                let name = key_name(key);
                path.push(name.clone());
                map.insert(name.into(), self.value(node, path)?);
                path.pop();
            }
            return Ok(map.into());
        }
        if let Some(items) = node.items() {
            let mut list = Vec::with_capacity(items.len());
            for item in items {
                list.push(self.value(item, path)?);
            }
            return Ok(list.into());
        }
        self.comments_before(node.mark.line, path)?;
        self.previous.clone_from(path);
        let value = node.to_value();
        let Some(sealed) = value.as_str().filter(|text| text.starts_with(BEGIN)) else {
            if !self.only_encrypted {
                self.hash.update(plain_bytes(&value));
            }
            return Ok(value);
        };
        let failed = || SopsError::Value(path.join("."));
        let (plain, kind) = self.open(sealed, aad(path)).ok_or_else(failed)?;
        self.hash.update(plain.as_bytes());
        let kind = match kind.as_str() {
            "int" => SealedType::Int,
            "float" => SealedType::Float,
            "bool" => SealedType::Bool,
            _ => SealedType::Str,
        };
        let sealed = seal(&plain, kind, &[self.own.recipient()]);
        sealed.map(Value::from).map_err(|_| failed())
    }

    /// Hashes the comments before a line. SOPS does not say which mapping an encrypted comment belongs
    /// to: it is one on the path of the value before or after it.
    fn comments_before(&mut self, line: u32, path: &[String]) -> Result<(), SopsError> {
        while let Some((_, text)) = self.comments.pop_if(|(at, _)| *at < line) {
            if !text.starts_with(BEGIN) {
                if !self.only_encrypted {
                    self.hash.update(text.as_bytes());
                }
                continue;
            }
            let candidates = [path, &self.previous];
            let opened = candidates.into_iter().find_map(|path| {
                let mut above = (0..=path.len())
                    .rev()
                    .filter_map(|length| path.get(..length));
                above.find_map(|path| self.open(text, aad(path)))
            });
            let (plain, _) = opened.ok_or_else(|| SopsError::Value("a comment".into()))?;
            self.hash.update(plain.as_bytes());
        }
        Ok(())
    }

    fn verify(self, section: &Node) -> Result<(), SopsError> {
        let text = |key| section.get(key).and_then(Node::text);
        let mac = text("mac").ok_or(SopsError::Missing("mac"))?;
        let time = text("lastmodified").ok_or(SopsError::Missing("lastmodified"))?;
        let (expected, _) = self.open(mac, time).ok_or(SopsError::Mac)?;
        let found = HEXUPPER.encode(&self.hash.finalize());
        match found == expected {
            true => Ok(()),
            false => Err(SopsError::Mac),
        }
    }

    /// Decrypts a value and returns its text and type.
    fn open(&self, text: &str, aad: impl fmt::Display) -> Option<(String, String)> {
        let inside = text.trim().strip_prefix(BEGIN)?.strip_suffix(']')?;
        let field = |name: &str| {
            let mut fields = inside.split(',').filter_map(|field| field.split_once(':'));
            fields.find_map(|(key, value)| (key == name).then_some(value))
        };
        let bytes = |name| BASE64.decode(field(name)?.as_bytes()).ok();
        let nonce = Nonce::<Cipher>::try_from(bytes("iv")?.as_slice()).ok()?;
        let mut message = bytes("data")?;
        message.extend(bytes("tag")?);
        let aad = aad.to_string();
        let payload = Payload {
            msg: &message,
            aad: aad.as_bytes(),
        };
        let plain = self.cipher.decrypt(&nonce, payload).ok()?;
        Some((String::from_utf8(plain).ok()?, field("type")?.into()))
    }
}

/// Returns the authenticated text of a path.
fn aad(path: &[String]) -> String {
    path.iter().map(|key| format!("{key}:")).collect()
}

/// Returns a value that is not encrypted as the MAC covers it.
fn plain_bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::Null => Vec::new(),
        Value::Bool(true) => b"True".into(),
        Value::Bool(false) => b"False".into(),
        Value::Float(number) => number.to_string().into_bytes(),
        other => other.to_string().into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document;
    use crate::secrets::{open_values, parse_identities, sealed};

    /// Written by an independent program: encrypted comments, several types and a value in the clear.
    const DOCUMENT: &str = include_str!("../../../../tests/data/secrets/sops.yaml");

    fn keys() -> Vec<Identity> {
        parse_identities(include_str!("../../../../tests/data/secrets/node.key")).unwrap()
    }

    #[test]
    fn a_document_is_verified_and_its_values_stay_encrypted() {
        let values = unseal_document(DOCUMENT, &keys()).unwrap();
        assert!(!format!("{values:?}").contains("hunter2"));
        let opened = open_values(&values, &mut |text| sealed::open(text, &keys())).unwrap();
        let expected = "{database: {password: hunter2, port: 5432, tls: true}, hosts: [a, b], \
                        empty: '', region_unencrypted: ams}";
        assert_eq!(opened, document::parse(expected).unwrap().to_value());
        assert!(is_sops(&document::parse(DOCUMENT).unwrap().to_value()));
    }

    #[test]
    fn a_changed_added_moved_or_removed_value_is_refused() {
        let line = |start: &str| {
            let mut lines = DOCUMENT.lines();
            lines.find(|line| line.trim().starts_with(start)).unwrap()
        };
        let password = line("password:");
        for changed in [
            DOCUMENT.replace("ams", "fra"),
            DOCUMENT.replace("empty: \"\"", "empty: x"),
            DOCUMENT.replace(&format!("{password}\n"), ""),
            DOCUMENT.replace("port:", "other:"),
            DOCUMENT.replace(line("#ENC"), ""),
            DOCUMENT.replace("03:04:05", "03:04:06"),
            DOCUMENT
                .replace("type:int", "type:str")
                .replace("data:", "data:AAAA"),
        ] {
            assert_ne!(changed, DOCUMENT);
            assert!(unseal_document(&changed, &keys()).is_err(), "{changed}");
        }
    }

    #[test]
    fn a_document_for_another_key_is_refused() {
        let other = [Identity::generate().unwrap()];
        assert_eq!(
            unseal_document(DOCUMENT, &other),
            Err(SopsError::DataKey(AgeError::NoRecipient))
        );
        assert_eq!(unseal_document(DOCUMENT, &[]), Err(SopsError::NoKey));
    }
}
