//! Deserializer from nodes to typed structures, with errors that name the property and its
//! position.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess,
    SeqAccess, VariantAccess, Visitor,
};

use super::{DocumentError, Mark, Node, NodeKind, float_text};
use crate::text::quote;
use crate::value::Value;

impl de::Error for DocumentError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Mark::default(), message.to_string())
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::unknown_name(Mark::default(), "property", field, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let mut error = Self::unknown_name(Mark::default(), "value", variant, expected);
        // The value does not identify the property.
        error.is_named = false;
        error.without_value = Some("unknown value".into());
        error
    }

    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = expected.to_string();
        let message =
            |found: &str| format!("expected {}, found {found}", plain_expected(&expected));
        Self::about_value(message(&plain_found(found)), message(found_kind(found)))
    }

    fn invalid_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::invalid_type(found, expected)
    }
}

/// Returns the suggestion for messages of this crate and of readers with the same words.
pub(super) fn suggestion(message: &str) -> Option<&'static str> {
    const SUGGESTIONS: [(&str, &str); 14] = [
        ("expected a whole number", "write digits only, such as 3"),
        ("expected an exit code", "write digits only, such as 3"),
        ("expected a number", "write a number, such as 1.5"),
        (
            "expected true or false",
            "write true or false, without quotes",
        ),
        (
            "expected a list",
            "write [a, b], or one item on each line with \"- \"",
        ),
        ("expected a mapping", "write keys and values"),
        ("expected keys and values", "write keys and values"),
        ("where mapping is expected", "write keys and values"),
        (
            "expected text",
            "write text, in quotes if it looks like another type",
        ),
        ("is too short", "write a longer time, such as 5m"),
        ("duplicate key", "remove one of them, or rename it"),
        (
            "only one document",
            "remove ---, or move the second document to another file",
        ),
        ("missing field", "add the property"),
        ("multiple resource names", "start each name with \"- \""),
    ];
    let mut known = SUGGESTIONS.iter();
    known
        .find(|(words, _)| message.contains(words))
        .map(|(_, suggestion)| *suggestion)
}

/// Returns what a type expects in the terms of a document instead of a program.
fn plain_expected(expected: &str) -> &str {
    match expected {
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "a borrowed string" => "text",
        "a sequence" => "a list",
        "a map" => "a mapping",
        other if other.starts_with("struct ") => "a mapping",
        other => other,
    }
}

/// Returns the found value in the terms of a document.
fn plain_found(found: de::Unexpected<'_>) -> String {
    match found {
        de::Unexpected::Bool(value) => value.to_string(),
        de::Unexpected::Unsigned(value) => value.to_string(),
        de::Unexpected::Signed(value) => value.to_string(),
        de::Unexpected::Float(value) => float_text(value),
        de::Unexpected::Str(text) => format!("text {}", quote(text)),
        de::Unexpected::Unit | de::Unexpected::Option => "null".into(),
        de::Unexpected::Seq => "a list".into(),
        de::Unexpected::Map => "a mapping".into(),
        other => other.to_string(),
    }
}

/// Returns the kind of the found value, without the value.
fn found_kind(found: de::Unexpected<'_>) -> &'static str {
    match found {
        de::Unexpected::Bool(_) => "true or false",
        de::Unexpected::Unsigned(_) | de::Unexpected::Signed(_) | de::Unexpected::Float(_) => {
            "a number"
        }
        de::Unexpected::Str(_) | de::Unexpected::Char(_) => "text",
        de::Unexpected::Unit | de::Unexpected::Option => "null",
        de::Unexpected::Seq => "a list",
        de::Unexpected::Map => "a mapping",
        _ => "another value",
    }
}

/// Maximum length of a name for which suggestions are searched, because comparing takes quadratic
/// time.
const MAX_COMPARED_LENGTH: usize = 64;

/// Returns the error message for an unknown name, with the nearest valid one.
pub fn unknown_name(what: &str, found: &str, known: &[&str]) -> String {
    DocumentError::unknown_name(Mark::default(), what, found, known).text()
}

/// Returns the most similar known name, if any is similar enough.
pub fn nearest<'a>(found: &str, known: &[&'a str]) -> Option<&'a str> {
    if found.len() > MAX_COMPARED_LENGTH {
        return None;
    }
    let plain = |text: &str| -> String {
        text.chars()
            .filter(|c| c.is_alphanumeric())
            .flat_map(char::to_lowercase)
            .collect()
    };
    let wanted = plain(found);
    known
        .iter()
        .map(|name| (strsim::jaro_winkler(&wanted, &plain(name)), *name))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

impl<'de> IntoDeserializer<'de, DocumentError> for &'de Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Gives text fields the source text, parses numbers and booleans from plain scalars, and treats
/// `null` as an absent option.
impl<'de> Deserializer<'de> for &'de Node {
    type Error = DocumentError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DocumentError> {
        match &self.kind {
            NodeKind::List(items) => visitor.visit_seq(Items(items.iter())),
            NodeKind::Map(entries) => visitor.visit_map(Entries::of(entries.iter())),
            NodeKind::Scalar { text, .. } => match self.scalar_value() {
                Value::Null => visitor.visit_unit(),
                Value::Bool(value) => visitor.visit_bool(value),
                Value::Int(value) => visitor.visit_i64(value),
                Value::Uint(value) => visitor.visit_u64(value),
                Value::Float(value) => visitor.visit_f64(value),
                _ => visitor.visit_borrowed_str(text),
            },
        }
        .map_err(|err: DocumentError| err.at(self.mark))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DocumentError> {
        match &self.kind {
            NodeKind::Scalar { text, .. } if !self.is_null() => visitor
                .visit_borrowed_str(text)
                .map_err(|err: DocumentError| err.at(self.mark)),
            _ => Err(DocumentError::new(
                self.mark,
                format!("expected text, found a {}", self.kind_name()),
            )),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DocumentError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DocumentError> {
        if self.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_identifier<V: Visitor<'de>>(
        self,
        visitor: V,
    ) -> Result<V::Value, DocumentError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DocumentError> {
        visitor.visit_newtype_struct(self)
    }

    /// A key without a value counts as absent.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DocumentError> {
        let NodeKind::Map(entries) = &self.kind else {
            return self.deserialize_any(visitor);
        };
        // An unknown key stays, so that it is an error.
        let is_unset = |(key, value): &&(Node, Node)| {
            value.is_null() && key.text().is_some_and(|name| fields.contains(&&**name))
        };
        visitor
            .visit_map(Entries::of(entries.iter().filter(|entry| !is_unset(entry))))
            .map_err(|err: DocumentError| err.at(self.mark))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DocumentError> {
        match self.text() {
            Some(text) => visitor
                .visit_enum(VariantName(text))
                .map_err(|err| err.at(self.mark)),
            None => Err(DocumentError::new(
                self.mark,
                format!("expected a word, found a {}", self.kind_name()),
            )),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char
        bytes byte_buf unit unit_struct seq tuple tuple_struct map ignored_any
    }
}

/// Deserializes a structure from entries of several maps.
pub fn from_entries<'de, T: Deserialize<'de>>(
    entries: impl Iterator<Item = &'de (Node, Node)>,
) -> Result<T, DocumentError> {
    T::deserialize(MapAccessDeserializer::new(Entries::of(entries)))
}

/// Returns the names of a structure's fields, as spelled in documents.
pub fn field_names<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    struct FieldNames<'n>(&'n mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for FieldNames<'_> {
        type Error = DocumentError;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, DocumentError> {
            Err(de::Error::custom("only structures have fields"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _name: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, DocumentError> {
            *self.0 = fields;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string
            bytes byte_buf option unit unit_struct newtype_struct seq tuple
            tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    // The names are recorded by `deserialize_struct`; deserializing itself always fails.
    let _ = T::deserialize(FieldNames(&mut names));
    names
}

struct Items<'de>(std::slice::Iter<'de, Node>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = DocumentError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DocumentError> {
        self.0.next().map(|item| seed.deserialize(item)).transpose()
    }
}

struct Entries<'de, I> {
    rest: I,
    value: Option<(&'de Node, &'de Node)>,
}

impl<I> Entries<'_, I> {
    fn of(rest: I) -> Self {
        Self { rest, value: None }
    }
}

impl<'de, I: Iterator<Item = &'de (Node, Node)>> MapAccess<'de> for Entries<'de, I> {
    type Error = DocumentError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DocumentError> {
        let Some((key, value)) = self.rest.next() else {
            return Ok(None);
        };
        self.value = Some((key, value));
        let text = key.text().map_or("", |text| &**text);
        let text: StrDeserializer<'_, DocumentError> = text.into_deserializer();
        seed.deserialize(text)
            .map(Some)
            .map_err(|err| err.at(key.mark))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, DocumentError> {
        let Some((key, value)) = self.value.take() else {
            return Err(de::Error::custom("value requested before its key"));
        };
        seed.deserialize(value).map_err(|err| {
            let name = key.text().map_or("", |text| &**text);
            err.in_property(name).at(value.mark)
        })
    }
}

struct VariantName<'de>(&'de str);

impl<'de> EnumAccess<'de> for VariantName<'de> {
    type Error = DocumentError;
    type Variant = UnitVariant;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, UnitVariant), DocumentError> {
        let word: StrDeserializer<'_, DocumentError> = self.0.into_deserializer();
        Ok((seed.deserialize(word)?, UnitVariant))
    }
}

struct UnitVariant;

impl<'de> VariantAccess<'de> for UnitVariant {
    type Error = DocumentError;

    fn unit_variant(self) -> Result<(), DocumentError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        _seed: T,
    ) -> Result<T::Value, DocumentError> {
        Err(de::Error::custom("expected a single word"))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        _len: usize,
        _visitor: V,
    ) -> Result<V::Value, DocumentError> {
        Err(de::Error::custom("expected a single word"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, DocumentError> {
        Err(de::Error::custom("expected a single word"))
    }
}
