//! Version ranges of goss (blang/semver): `>=1.2.0 <2.0.0 || 3.x`.
//!
//! Blanks mean and, `||` means or, and a last part `x` is a wildcard. The `semver` crate parses and
//! orders versions; its own range syntax differs from that of goss.

use semver::{BuildMetadata, Version};

use super::MatchError;
use crate::model::Value;

/// A version range.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range(Vec<Vec<Bound>>);

#[derive(Debug, PartialEq, Eq)]
struct Bound {
    relation: Relation,
    version: Version,
    /// For a wildcard: the first version after it.
    end: Option<Version>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Equal,
    NotEqual,
    Above,
    AtLeast,
    Below,
    AtMost,
}

/// Operators, longer ones first.
const RELATIONS: [(&str, Relation); 9] = [
    (">=", Relation::AtLeast),
    ("<=", Relation::AtMost),
    ("!=", Relation::NotEqual),
    ("==", Relation::Equal),
    (">", Relation::Above),
    ("<", Relation::Below),
    ("!", Relation::NotEqual),
    ("=", Relation::Equal),
    ("", Relation::Equal),
];

impl Range {
    /// Parses a range; `None` if it is invalid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let groups = text.split("||").map(|group| {
            let bounds: Option<Vec<Bound>> = conditions(group)
                .iter()
                .map(|condition| Bound::parse(condition))
                .collect();
            bounds.filter(|bounds| !bounds.is_empty())
        });
        groups.collect::<Option<_>>().map(Self)
    }

    /// Whether a version, or every version of a list, is in the range.
    pub(super) fn holds_all(&self, actual: &Value) -> Result<bool, MatchError> {
        let error = || MatchError::expected("one or more semantic versions", actual);
        let version = |value: &Value| {
            let text = value.as_str().ok_or_else(error)?;
            parse_version(text).ok_or_else(error)
        };
        let versions: Vec<Version> = match actual {
            Value::List(list) => list.iter().map(version).collect::<Result<_, _>>()?,
            one => vec![version(one)?],
        };
        if versions.is_empty() {
            return Err(error());
        }
        Ok(versions.iter().all(|version| self.holds(version)))
    }

    fn holds(&self, version: &Version) -> bool {
        let holds = |group: &Vec<Bound>| group.iter().all(|bound| bound.holds(version));
        self.0.iter().any(holds)
    }
}

/// Returns the conditions of a group; an operator may be separated from its version.
fn conditions(group: &str) -> Vec<String> {
    let mut conditions = Vec::new();
    let mut condition = String::new();
    for word in group.split_whitespace() {
        condition.push_str(word);
        if !word.ends_with(['<', '>', '=', '!']) {
            conditions.push(std::mem::take(&mut condition));
        }
    }
    conditions.extend(Some(condition).filter(|condition| !condition.is_empty()));
    conditions
}

impl Bound {
    fn parse(condition: &str) -> Option<Self> {
        let (relation, text) = RELATIONS.iter().find_map(|(operator, relation)| {
            Some((*relation, condition.strip_prefix(operator)?))
        })?;
        let parts: Vec<&str> = text.split('.').collect();
        let part = |index: usize| parts.get(index)?.parse().ok();
        let (version, end) = match parts.as_slice() {
            [_, "x"] => {
                let major: u64 = part(0)?;
                let end = Version::new(major.checked_add(1)?, 0, 0);
                (Version::new(major, 0, 0), Some(end))
            }
            [_, _, "x"] => {
                let (major, minor): (u64, u64) = (part(0)?, part(1)?);
                let end = Version::new(major, minor.checked_add(1)?, 0);
                (Version::new(major, minor, 0), Some(end))
            }
            _ => (parse_version(text)?, None),
        };
        Some(Self {
            relation,
            version,
            end,
        })
    }

    fn holds(&self, version: &Version) -> bool {
        let order = version.cmp(&self.version);
        // Without a wildcard the range is a single version; `1.x` ends before 2.0.0.
        let is_before_end = match &self.end {
            Some(end) => version < end,
            None => order.is_le(),
        };
        let is_within = order.is_ge() && is_before_end;
        match self.relation {
            Relation::Equal => is_within,
            Relation::NotEqual => !is_within,
            Relation::Above => !is_before_end,
            Relation::AtLeast => order.is_ge(),
            Relation::Below => order.is_lt(),
            Relation::AtMost => is_before_end,
        }
    }
}

/// Parses a version without its build metadata, which does not affect the order.
fn parse_version(text: &str) -> Option<Version> {
    let mut version = Version::parse(text).ok()?;
    version.build = BuildMetadata::EMPTY;
    Some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(range: &str, version: &str) -> bool {
        Range::parse(range)
            .unwrap()
            .holds_all(&version.into())
            .unwrap()
    }

    #[test]
    fn ranges_match_versions() {
        for (range, yes, no) in [
            ("1.2.3", "1.2.3", "1.2.4"),
            ("==1.2.3", "1.2.3+build", "1.2.3-rc.1"),
            ("!1.2.3", "1.2.4", "1.2.3"),
            ("!=1.x", "2.0.0", "1.9.9"),
            (">1.2.3", "1.2.4", "1.2.3"),
            (">= 1.2.3", "1.2.3", "1.2.2"),
            ("<1.2.3", "1.2.3-rc.1", "1.2.3"),
            ("<=1.2.3", "1.2.3", "1.2.4"),
            (">1.0.0 <2.0.0", "1.5.0", "2.0.0"),
            (">1.0.0 <2.0.0 !1.5.0", "1.5.1", "1.5.0"),
            ("<1.0.0 || >=2.0.0", "0.9.0", "1.5.0"),
            ("1.2.x", "1.2.9", "1.3.0"),
            (">1.x", "2.0.0", "1.9.9"),
            ("<=1.x", "1.9.9", "2.0.0"),
            ("<1.x", "0.9.9", "1.0.0"),
            (">1.0.0-alpha.2", "1.0.0-alpha.10", "1.0.0-alpha.1"),
            (">1.0.0-2", "1.0.0-a", "1.0.0-1"),
        ] {
            assert!(holds(range, yes), "{range} {yes}");
            assert!(!holds(range, no), "{range} {no}");
        }
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for range in [
            "", "x", "1", "1.2", ">", "foo", "1.2.3 ||", "~1.2.3", "^1.2.3", "1.2.3.4", "01.2.3",
            "1.2.3-", "1.2.3+", "1.2.3-01",
        ] {
            assert_eq!(Range::parse(range), None, "{range}");
        }
    }

    #[test]
    fn all_versions_of_a_list_must_be_valid_and_in_range() {
        let range = Range::parse(">=1.0.0").unwrap();
        let check = |json: &str| range.holds_all(&serde_json::from_str(json).unwrap());
        assert!(check(r#"["1.0.0", "2.0.0"]"#).unwrap());
        assert!(!check(r#"["1.0.0", "0.1.0"]"#).unwrap());
        for invalid in [r#"["1.0.0", "1.0"]"#, "[]", "1", r#""v1.0.0""#] {
            assert!(check(invalid).is_err(), "{invalid}");
        }
    }
}
