//! Encrypted values in data: `ENC[age,BASE64]`, the Base64 form of an age file. White space inside is
//! ignored, so that a value can be written on several lines.
//!
//! The content is text. `ENC[age,BASE64,type:int]` has the content of another type.

use data_encoding::BASE64;

use super::age::{self, AgeError, MAX_FILE};
use super::keys::{Identity, Recipient};
use crate::model::Value;
use crate::model::secret::SEALED;
pub use crate::model::secret::is_sealed;

const END: char = ']';

/// Value that can't be opened. Texts contain no part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealedError {
    #[error("expected ENC[age,BASE64]")]
    Format,
    #[error("unknown type {0:?}; known are str, int, float and bool")]
    Type(String),
    #[error("its content is not of the type {0}")]
    Content(&'static str),
    #[error("there is no key to open it with")]
    NoKey,
    #[error(transparent)]
    Age(#[from] AgeError),
}

/// Type of the content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SealedType {
    #[default]
    Str,
    Int,
    Float,
    Bool,
}

impl SealedType {
    const ALL: [Self; 4] = [Self::Str, Self::Int, Self::Float, Self::Bool];

    /// Returns the type of a value.
    pub fn of(value: &Value) -> Self {
        match value {
            Value::Int(_) | Value::Uint(_) => Self::Int,
            Value::Float(_) => Self::Float,
            Value::Bool(_) => Self::Bool,
            _ => Self::Str,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Str => "str",
            Self::Int => "int",
            Self::Float => "float",
            Self::Bool => "bool",
        }
    }

    fn parse(name: &str) -> Result<Self, SealedError> {
        let mut all = Self::ALL.into_iter();
        all.find(|it| it.name() == name)
            .ok_or_else(|| SealedError::Type(name.chars().take(20).collect()))
    }

    /// Returns a text as a value of this type.
    pub(super) fn read(self, text: String) -> Result<Value, SealedError> {
        let value = match self {
            Self::Str => Some(Value::from(text)),
            Self::Int => text.parse().ok().map(Value::Int),
            Self::Float => text.parse().ok().map(Value::Float),
            Self::Bool => match text.as_str() {
                "true" | "True" => Some(Value::Bool(true)),
                "false" | "False" => Some(Value::Bool(false)),
                _ => None,
            },
        };
        value.ok_or(SealedError::Content(self.name()))
    }
}

/// Encrypts a text for recipients.
pub fn seal(text: &str, kind: SealedType, recipients: &[Recipient]) -> Result<String, SealedError> {
    let encoded = BASE64.encode(&age::encrypt(text.as_bytes(), recipients)?);
    Ok(match kind {
        SealedType::Str => format!("{SEALED}{encoded}{END}"),
        kind => format!("{SEALED}{encoded},type:{}{END}", kind.name()),
    })
}

/// Decrypts a value with one of the keys.
pub fn open(text: &str, identities: &[Identity]) -> Result<Value, SealedError> {
    let (file, kind) = parse(text)?;
    if identities.is_empty() {
        return Err(SealedError::NoKey);
    }
    let plain = age::decrypt(&file, identities)?;
    let plain = String::from_utf8(plain).map_err(|_| SealedError::Content("str"))?;
    kind.read(plain)
}

/// Reports whether a text is an encrypted value with an age file, which may be for other keys.
pub(super) fn is_age_file(text: &str) -> bool {
    parse(text).is_ok_and(|(file, _)| age::has_header(&file))
}

/// Returns the age file of a value, and the type of its content.
fn parse(text: &str) -> Result<(Vec<u8>, SealedType), SealedError> {
    if text.len() > 2 * MAX_FILE {
        return Err(AgeError::TooLong.into());
    }
    let text: String = text.split_ascii_whitespace().collect();
    let inside = text
        .strip_prefix(SEALED)
        .and_then(|it| it.strip_suffix(END));
    let inside = inside.ok_or(SealedError::Format)?;
    let (encoded, kind) = match inside.split_once(",type:") {
        Some((encoded, kind)) => (encoded, SealedType::parse(kind)?),
        None => (inside, SealedType::Str),
    };
    let file = BASE64.decode(encoded.as_bytes());
    Ok((file.map_err(|_| SealedError::Format)?, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_opened_by_its_recipient_with_its_type() {
        let key = Identity::generate().unwrap();
        let recipients = [key.recipient()];
        let keys = [key];
        for (text, kind, value) in [
            ("hunter2", SealedType::Str, Value::from("hunter2")),
            ("", SealedType::Str, "".into()),
            ("5432", SealedType::Int, Value::Int(5432)),
            ("0.5", SealedType::Float, Value::Float(0.5)),
            ("true", SealedType::Bool, Value::Bool(true)),
        ] {
            let sealed = seal(text, kind, &recipients).unwrap();
            assert!(is_sealed(&sealed));
            assert_eq!(open(&sealed, &keys), Ok(value));
            let folded = sealed.replace('a', "a\n  ").replace("\n  ge", "ge");
            assert!(open(&folded, &keys).is_ok());
        }
    }

    #[test]
    fn values_of_the_age_command_are_opened() {
        let key = include_str!("../../../../tests/data/secrets/node.key");
        let keys = crate::secrets::parse_identities(key).unwrap();
        let sealed = include_str!("../../../../tests/data/secrets/age-1.3.2.txt");
        assert_eq!(open(sealed, &keys), Ok("hunter2".into()));
        let armored = include_str!("../../../../tests/data/secrets/age-1.3.2-armored.txt");
        let plain = age::decrypt(armored.as_bytes(), &keys).unwrap();
        assert_eq!(plain, b"hunter2");
    }

    #[test]
    fn an_invalid_value_is_an_error_without_its_content() {
        let keys = [Identity::generate().unwrap()];
        for (text, error) in [
            ("ENC[age,]", "it is not an age file"),
            ("ENC[age,%]", "expected ENC[age,BASE64]"),
            ("ENC[age,aGVsbG8=]", "it is not an age file"),
            (
                "ENC[age,aGVsbG8=,type:date]",
                "unknown type \"date\"; known are str, int, float and bool",
            ),
            ("ENC[PKCS7,aGVsbG8=]", "expected ENC[age,BASE64]"),
        ] {
            assert_eq!(open(text, &keys).unwrap_err().to_string(), error, "{text}");
        }
        let sealed = seal("many", SealedType::Int, &[keys[0].recipient()]).unwrap();
        assert_eq!(
            open(&sealed, &keys).unwrap_err().to_string(),
            "its content is not of the type int"
        );
        assert_eq!(open(&sealed, &[]), Err(SealedError::NoKey));
        for text in ["ENC[age,x", "x ENC[age,x]", "ENC[AES256_GCM,data:x]"] {
            assert!(!is_sealed(text), "{text}");
        }
    }
}
