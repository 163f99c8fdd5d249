//! The body of a reply: kept as the node sent it, and parsed only as far as it is needed.
//!
//! A parsed document takes ten times the memory of its text, and most replies are only counted. What a
//! reply means is decided in `node_reply`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::Value;

use ccm_nats::Bytes;

/// The body of a reply; null without one, and if it is no JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyBody(Bytes);

impl ReplyBody {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Returns the whole document.
    pub fn document(&self) -> Value {
        self.parse().unwrap_or(Value::Null)
    }

    /// Returns a text of the document, if it is an object that has one of this name.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.field(name) {
            Ok(Some(Value::String(text))) => Some(text),
            _ => None,
        }
    }

    /// Returns a field of the document, or nothing if it is no object or has no such field.
    pub fn field<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, serde_json::Error> {
        let mut json = serde_json::Deserializer::from_slice(&self.0);
        let found = Field(name, PhantomData).deserialize(&mut json)?;
        json.end()?;
        Ok(found)
    }

    /// Parses the whole document.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }

    /// Returns the body with a buffer of its own: that of a message may be a part of a larger one.
    #[must_use]
    pub fn detached(self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl From<Value> for ReplyBody {
    fn from(document: Value) -> Self {
        Self(document.to_string().into())
    }
}

impl Serialize for ReplyBody {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.document().serialize(to)
    }
}

/// Reads one field of an object and skips the others.
struct Field<'n, T>(&'n str, PhantomData<T>);

impl<'de, T: DeserializeOwned> DeserializeSeed<'de> for Field<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: DeserializeOwned> Visitor<'de> for Field<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a document")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_wanted) = map.next_key_seed(IsName(self.0))? {
            if is_wanted {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Compares a key with a name, without a copy of the key.
struct IsName<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for IsName<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for IsName<'_> {
    type Value = bool;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name")
    }

    fn visit_str<E>(self, text: &str) -> Result<bool, E> {
        Ok(text == self.0)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_read_from_objects_only() {
        let body = ReplyBody::from(json!({"a": [1, {"b": 2}], "b": "text", "c": null}));
        assert_eq!(body.text("b").as_deref(), Some("text"));
        assert_eq!(body.text("a"), None);
        assert_eq!(body.field::<Vec<Value>>("a").unwrap().unwrap().len(), 2);
        assert_eq!(body.field::<Value>("c").unwrap(), Some(Value::Null));
        assert_eq!(body.field::<Value>("d").unwrap(), None);
        assert!(body.field::<u64>("b").is_err());
        for other in [json!([1]), json!(null), json!(1.5), json!("b"), json!(-1)] {
            assert_eq!(ReplyBody::from(other).field::<Value>("b").unwrap(), None);
        }
    }

    #[test]
    fn a_body_that_is_no_json_is_null() {
        for text in ["", "{", "{} x"] {
            let body = ReplyBody::new(Bytes::from_static(text.as_bytes()));
            assert_eq!(body.document(), Value::Null);
            assert_eq!(body.text("a"), None);
            assert_eq!(serde_json::to_string(&body).unwrap(), "null");
        }
    }
}
