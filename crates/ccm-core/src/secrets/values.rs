//! Encrypted values inside data: found, opened and redacted.

use std::fmt;

use super::sealed::is_sealed;
use crate::model::Value;
use crate::model::secret::REDACTED;
use crate::model::value::Map;

/// Encrypted value that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnopenedValue {
    /// Path of keys and positions in the data.
    pub path: String,
    pub reason: String,
}

/// All encrypted values of some data that could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct UnopenedValues(pub Vec<UnopenedValue>);

impl fmt::Display for UnopenedValues {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, UnopenedValue { path, reason }) in self.0.iter().enumerate() {
            if index > 0 {
                out.write_str("\n")?;
            }
            write!(out, "can't open the encrypted value {path:?}: {reason}")?;
        }
        Ok(())
    }
}

/// Reports whether data has an encrypted value.
pub fn has_sealed(data: &Value) -> bool {
    match data {
        Value::Str(text) => is_sealed(text),
        Value::List(items) => items.iter().any(has_sealed),
        Value::Map(map) => map.values().any(has_sealed),
        _ => false,
    }
}

/// Returns data with its encrypted values opened by `open`; the error names all that could not be.
pub fn open_values<E: fmt::Display>(
    data: &Value,
    open: &mut dyn FnMut(&str) -> Result<Value, E>,
) -> Result<Value, UnopenedValues> {
    let mut unopened = Vec::new();
    let opened = replace(data, "", &mut |path, text| match open(text) {
        Ok(value) => value,
        Err(err) => {
            unopened.push(UnopenedValue {
                path: path.into(),
                reason: err.to_string(),
            });
            Value::Null
        }
    });
    match unopened.is_empty() {
        true => Ok(opened),
        false => Err(UnopenedValues(unopened)),
    }
}

/// Returns data with [`REDACTED`] in place of encrypted values.
pub fn redact_sealed(data: &Value) -> Value {
    match has_sealed(data) {
        true => replace(data, "", &mut |_, _| REDACTED.into()),
        false => data.clone(),
    }
}

fn replace(value: &Value, path: &str, with: &mut dyn FnMut(&str, &str) -> Value) -> Value {
    match value {
        Value::Str(text) if is_sealed(text) => with(path, text),
        Value::List(items) => {
            let items = items.iter().enumerate();
            items
                .map(|(index, item)| replace(item, &format!("{path}[{index}]"), with))
                .collect()
        }
        Value::Map(map) => {
            let entries = map.iter().map(|(key, item)| {
                let path = match path {
                    "" => key.to_string(),
                    path => format!("{path}.{key}"),
                };
                (key.clone(), replace(item, &path, with))
            });
            entries.collect::<Map>().into()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::document;

    fn data(text: &str) -> Value {
        document::parse(text).unwrap().to_value()
    }

    const DATA: &str =
        "{db: {password: 'ENC[age,a]', port: 1}, users: [{key: 'ENC[age,b]'}], x: y}";

    #[test]
    fn only_encrypted_values_are_replaced() {
        assert!(has_sealed(&data(DATA)));
        assert!(!has_sealed(&data("{a: [ENC, 'ENC[x'], b: {c: 1}}")));
        assert_eq!(
            redact_sealed(&data(DATA)),
            data("{db: {password: REDACTED, port: 1}, users: [{key: REDACTED}], x: y}")
        );
        let opened = open_values::<String>(&data(DATA), &mut |_| Ok(Value::Int(7)));
        assert_eq!(
            opened,
            Ok(data(
                "{db: {password: 7, port: 1}, users: [{key: 7}], x: y}"
            ))
        );
    }

    #[test]
    fn every_value_that_cant_be_opened_is_named() {
        let error = open_values(&data(DATA), &mut |_| Err("no key")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "can't open the encrypted value \"db.password\": no key\n\
             can't open the encrypted value \"users[0].key\": no key"
        );
    }
}
