//! Labels of nodes in their bucket, changed by compare-and-set.

use std::fmt;
use std::str::FromStr;

use ccm_core::model::label::{LabelError, LabelName, Labels, parse_label};
use ccm_core::model::node::NodeName;
use ccm_nats::streams::LABELS;
use ccm_nats::{Connection, NatsError, Subjects};

/// Number of attempts when another client changes the labels at the same time.
const MAX_ATTEMPTS: usize = 10;

/// Why labels can't be changed.
#[derive(Debug, thiserror::Error)]
pub enum LabelsError {
    #[error("invalid labels of node {node}: {source}")]
    Unreadable {
        node: NodeName,
        source: serde_json::Error,
    },
    #[error("labels of node {0} are changed concurrently; try again")]
    Busy(NodeName),
    #[error(transparent)]
    Nats(#[from] NatsError),
}

/// One change of a label, written `NAME=VALUE` or `NAME-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelChange {
    Set(LabelName, String),
    Remove(LabelName),
}

impl LabelChange {
    /// Returns the change that sets a label, unless its value is too long.
    pub fn set(name: LabelName, value: String) -> Result<Self, LabelError> {
        let (name, value) = parse_label(&format!("{name}={value}"))?;
        Ok(Self::Set(name, value))
    }

    fn apply(&self, labels: &mut Labels) {
        match self {
            Self::Set(name, value) => labels.set(name.clone(), value.clone()),
            Self::Remove(name) => labels.remove(name),
        };
    }
}

impl FromStr for LabelChange {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        match text.strip_suffix('-').filter(|_| !text.contains('=')) {
            Some(name) => Ok(Self::Remove(name.parse()?)),
            None => parse_label(text).map(|(name, value)| Self::Set(name, value)),
        }
    }
}

impl fmt::Display for LabelChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(name, value) => write!(out, "{name}={value}"),
            Self::Remove(name) => write!(out, "{name}-"),
        }
    }
}

/// Changes the labels of a node and returns them; retries on concurrent changes.
pub async fn update(
    connection: &Connection,
    subjects: &Subjects,
    node: &NodeName,
    changes: &[LabelChange],
) -> Result<Labels, LabelsError> {
    let bucket = connection.bucket(LABELS).await?;
    let key = subjects.key(&node.token());
    for _ in 0..MAX_ATTEMPTS {
        let found = bucket.get(&key).await?;
        let unreadable = |source| LabelsError::Unreadable {
            node: node.clone(),
            source,
        };
        let before: Labels = match &found {
            Some(entry) => serde_json::from_slice(&entry.value).map_err(unreadable)?,
            None => Labels::default(),
        };
        let mut labels = before.clone();
        for change in changes {
            change.apply(&mut labels);
        }
        if labels == before {
            return Ok(labels);
        }
        let text = serde_json::to_string(&labels).map_err(unreadable)?;
        let put = match found {
            Some(entry) => bucket.update(&key, text.into(), entry.revision).await,
            None => bucket.create(&key, text.into()).await,
        };
        match put {
            Ok(_) => return Ok(labels),
            Err(err) if err.is_conflict() => {}
            Err(err) => return Err(err.into()),
        }
    }
    Err(LabelsError::Busy(node.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LabelName {
        text.parse().unwrap()
    }

    #[test]
    fn a_change_sets_or_removes_a_label() {
        for (text, change) in [
            ("role=web", LabelChange::Set(name("role"), "web".into())),
            ("role=", LabelChange::Set(name("role"), String::new())),
            ("note=a-", LabelChange::Set(name("note"), "a-".into())),
            ("role-", LabelChange::Remove(name("role"))),
        ] {
            assert_eq!(change.to_string(), text);
            assert_eq!(text.parse(), Ok(change));
        }
        assert!("role".parse::<LabelChange>().is_err());
        assert!("-".parse::<LabelChange>().is_err());
    }

    #[test]
    fn a_long_value_is_refused() {
        assert!(LabelChange::set(name("role"), "x".repeat(10_000)).is_err());
    }
}
