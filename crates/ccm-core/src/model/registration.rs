//! Service registration entries: the address of a service on this node.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::text::{go_duration, parse_wait, quote};
use super::value::Value;

/// Keys of an entry, in the order of serialization.
const KEYS: [&str; 8] = [
    "cluster",
    "service",
    "protocol",
    "address",
    "port",
    "priority",
    "annotations",
    "ttl",
];

/// Shortest TTL that NATS servers accept.
const MIN_TTL: Duration = Duration::from_secs(1);

/// Service that is published while its resource is stable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Entry {
    pub cluster: String,
    pub service: String,
    pub protocol: String,
    pub address: String,
    pub port: Port,
    pub priority: i64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
}

/// Port number, or a template that resolves to one.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Port {
    #[default]
    Unset,
    Number(i64),
    Template(String),
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unset => to.serialize_unit(),
            Self::Number(port) => to.serialize_i64(*port),
            Self::Template(text) => to.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Value::deserialize(from)? {
            Value::Null => Ok(Self::Unset),
            Value::Int(port) => Ok(Self::Number(port)),
            Value::Str(text) => Ok(Self::from_text(&text)),
            other => Err(serde::de::Error::custom(format_args!(
                "port must be an integer number, not {}",
                other.kind()
            ))),
        }
    }
}

impl Port {
    /// Parses a port number; any other text is a template.
    pub(crate) fn from_text(text: &str) -> Self {
        match text.trim().parse() {
            Ok(port) => Self::Number(port),
            Err(_) => Self::Template(text.into()),
        }
    }
}

/// Lifetime of an entry that is not published again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    Never,
    After(Duration),
}

impl fmt::Display for Ttl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => out.write_str("never"),
            Self::After(duration) => out.write_str(&go_duration(*duration)),
        }
    }
}

impl Serialize for Ttl {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ttl {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Value::deserialize(from)? {
            Value::Int(nanos) => Ok(Self::After(Duration::from_nanos(
                u64::try_from(nanos).unwrap_or(0),
            ))),
            Value::Str(text) => text.parse().map_err(serde::de::Error::custom),
            other => Err(serde::de::Error::custom(format_args!(
                "invalid TTL duration, found a {}",
                other.kind()
            ))),
        }
    }
}

/// Invalid TTL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid TTL duration {}: {reason}", quote(.text))]
pub struct TtlError {
    text: String,
    reason: String,
}

impl FromStr for Ttl {
    type Err = TtlError;

    fn from_str(text: &str) -> Result<Self, TtlError> {
        match text {
            "never" => Ok(Self::Never),
            _ => parse_wait(text).map(Self::After).map_err(|err| TtlError {
                text: text.into(),
                reason: err.to_string(),
            }),
        }
    }
}

/// Invalid registration entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("registration is invalid: {0}")]
pub struct InvalidEntry(String);

impl Entry {
    /// Validates the entry; a port may still be a template.
    pub fn validate(&self) -> Result<(), InvalidEntry> {
        for (what, name) in [
            ("cluster", &self.cluster),
            ("protocol", &self.protocol),
            ("service", &self.service),
        ] {
            if name.is_empty() {
                return Err(InvalidEntry(format!("{what} is required")));
            }
            if !is_name(name) {
                let name = quote(name);
                return Err(InvalidEntry(format!("{what} {name} is not a valid name")));
            }
        }
        if self.address.is_empty() {
            return Err(InvalidEntry("address is required".into()));
        }
        if self.address.parse::<IpAddr>().is_err() {
            let address = quote(&self.address);
            return Err(InvalidEntry(format!(
                "address {address} is not a valid Address address"
            )));
        }
        match &self.port {
            Port::Number(port) if !(1..=65535).contains(port) => {
                return Err(InvalidEntry(format!(
                    "port '{port}' must be between 1 and 65535"
                )));
            }
            Port::Template(text) if !text.contains("{{") && !text.contains("${") => {
                return Err(InvalidEntry(
                    "port must be an integer number, not string".into(),
                ));
            }
            _ => {}
        }
        if !(1..=255).contains(&self.priority) {
            let priority = self.priority;
            return Err(InvalidEntry(format!(
                "priority '{priority}' must be between 1 and 255"
            )));
        }
        match self.ttl {
            Some(Ttl::After(life)) if life < MIN_TTL => Err(InvalidEntry(format!(
                "ttl '{}' must be 1s or more, or never",
                go_duration(life)
            ))),
            _ => Ok(()),
        }
    }

    /// Reads a published entry. Unknown keys are ignored; an entry that fails validation is rejected,
    /// because templates write entries into files.
    pub fn from_wire(body: &[u8]) -> Result<Self, InvalidEntry> {
        let unreadable = |err: serde_json::Error| InvalidEntry(err.to_string());
        let mut fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(body).map_err(unreadable)?;
        fields.retain(|key, _| KEYS.contains(&key.as_str()));
        let entry: Self = serde_json::from_value(fields.into()).map_err(unreadable)?;
        entry.validate()?;
        match entry.port {
            Port::Template(_) => Err(InvalidEntry(
                "port must be an integer number, not string".into(),
            )),
            _ => Ok(entry),
        }
    }

    /// Returns the port number, if set.
    pub fn port(&self) -> Option<i64> {
        match self.port {
            Port::Number(port) => Some(port),
            Port::Unset | Port::Template(_) => None,
        }
    }

    /// Returns the entry as a template value, with upstream's field names.
    pub fn to_value(&self) -> Value {
        let text = |text: &str| Value::from(text);
        let annotations = self.annotations.iter();
        let annotations = annotations.map(|(key, value)| (key.as_str(), text(value)));
        [
            ("Cluster", text(&self.cluster)),
            ("Service", text(&self.service)),
            ("Protocol", text(&self.protocol)),
            ("Address", text(&self.address)),
            ("Port", self.port().map_or(Value::Null, Value::from)),
            ("Priority", Value::from(self.priority)),
            ("Annotations", annotations.collect()),
            (
                "TTL",
                self.ttl.map_or(Value::Null, |ttl| ttl.to_string().into()),
            ),
        ]
        .into_iter()
        .collect()
    }

    /// Returns the id of this instance of the service: 16 hex digits of FNV-1a-64.
    pub fn instance(&self) -> String {
        let port = match &self.port {
            Port::Number(port) => port.to_string(),
            // Upstream hashes what Go prints for a nil number; ids must be equal.
            Port::Unset | Port::Template(_) => "%!d(<nil>)".into(),
        };
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for part in [
            &self.cluster,
            &self.service,
            &self.protocol,
            &self.address,
            &port,
        ] {
            for byte in part.bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        format!("{hash:016x}")
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::json;

    /// Returns an entry whose instance id is known from upstream.
    fn entry() -> Entry {
        Entry {
            cluster: "prod".into(),
            service: "shop".into(),
            protocol: "grpc".into(),
            address: "10.4.0.7".into(),
            port: Port::Number(9090),
            priority: 10,
            ..Entry::default()
        }
    }

    #[test]
    fn the_instance_is_the_hash_upstream_computes() {
        assert_eq!(entry().instance(), "d163224028c8732e");
    }

    #[test]
    fn keys_keep_upstreams_order_and_empty_ones_are_left_out() {
        let mut entry = entry();
        entry.ttl = Some(Ttl::After(Duration::from_secs(600)));
        assert_eq!(
            json::compact(&entry).unwrap(),
            r#"{"cluster":"prod","service":"shop","protocol":"grpc","address":"10.4.0.7","port":9090,"priority":10,"ttl":"10m0s"}"#
        );
    }

    #[test]
    fn a_ttl_reads_never_durations_and_nanoseconds() {
        for (text, ttl) in [
            ("\"never\"", Ttl::Never),
            ("\"30s\"", Ttl::After(Duration::from_secs(30))),
            ("30000000000", Ttl::After(Duration::from_secs(30))),
        ] {
            assert_eq!(serde_json::from_str::<Ttl>(text).unwrap(), ttl);
        }
        let error = serde_json::from_str::<Ttl>("\"soon\"").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("invalid TTL duration \"soon\": invalid duration")
        );
    }

    #[test]
    fn each_invalid_entry_has_its_message() {
        let error = |change: fn(&mut Entry)| {
            let mut entry = entry();
            change(&mut entry);
            entry.validate().unwrap_err().to_string()
        };
        for (text, found) in [
            ("cluster is required", error(|e| e.cluster.clear())),
            (
                "protocol \"9p\" is not a valid name",
                error(|e| e.protocol = "9p".into()),
            ),
            ("address is required", error(|e| e.address.clear())),
            (
                "address \"web1\" is not a valid Address address",
                error(|e| e.address = "web1".into()),
            ),
            (
                "port '70000' must be between 1 and 65535",
                error(|e| e.port = Port::Number(70000)),
            ),
            (
                "port must be an integer number, not string",
                error(|e| e.port = Port::Template("http".into())),
            ),
            (
                "priority '0' must be between 1 and 255",
                error(|e| e.priority = 0),
            ),
            (
                "ttl '500ms' must be 1s or more, or never",
                error(|e| e.ttl = Some(Ttl::After(Duration::from_millis(500)))),
            ),
        ] {
            assert_eq!(found, format!("registration is invalid: {text}"));
        }
    }

    #[test]
    fn a_missing_port_hashes_what_upstream_prints_for_it() {
        let mut entry = entry();
        entry.port = Port::Unset;
        // FNV-1a-64 of "prodshopgrpc10.4.0.7%!d(<nil>)".
        assert_eq!(entry.instance(), "07507523d0b81f96");
    }

    #[test]
    fn unknown_keys_of_a_published_entry_are_ignored() {
        let body = br#"{"cluster":"prod","service":"shop","protocol":"grpc","address":"10.4.0.7",
            "port":9090,"priority":10,"ttl":null,"zone":"a"}"#;
        assert_eq!(Entry::from_wire(body), Ok(entry()));
    }

    #[test]
    fn an_invalid_published_entry_is_rejected() {
        let body = |address: &str, port: &str| {
            format!(
                r#"{{"cluster":"c","service":"s","protocol":"p","priority":1,"address":{address},"port":{port}}}"#
            )
        };
        assert!(Entry::from_wire(body("\"::1\"", "null").as_bytes()).is_ok());
        for (address, port) in [
            ("\"10.0.0.1\\nserver evil\"", "80"),
            ("\"10.0.0.1\"", "\"{{ 1 }}\""),
            ("\"10.0.0.1\"", "0"),
            ("7", "80"),
        ] {
            assert!(Entry::from_wire(body(address, port).as_bytes()).is_err());
        }
        for garbage in ["", "[]", "null", "{}", "\u{0}"] {
            assert!(Entry::from_wire(garbage.as_bytes()).is_err(), "{garbage}");
        }
    }

    #[test]
    fn a_template_value_has_upstream_s_field_names() {
        let mut entry = entry();
        entry.ttl = Some(Ttl::Never);
        entry.annotations.insert("zone".into(), "a".into());
        assert_eq!(
            entry.to_value().to_string(),
            "map[Address:10.4.0.7 Annotations:map[zone:a] Cluster:prod Port:9090 Priority:10 \
             Protocol:grpc Service:shop TTL:never]"
        );
    }
}
