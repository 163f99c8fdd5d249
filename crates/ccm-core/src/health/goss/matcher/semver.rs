//! Ranges of semantic versions, as goss reads them: `>=1.2.0 <2.0.0 || 3.x`.
//!
//! Blanks mean and, `||` means or, a last part `x` stands for any. Versions have all three parts;
//! a prerelease is older than its release and otherwise a version like any other.

use semver::{BuildMetadata, Version};

use super::MatchError;
use crate::model::Value;

/// Versions that will do.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range(Vec<Vec<Bound>>);

#[derive(Debug, PartialEq, Eq)]
struct Bound {
    relation: Relation,
    version: Version,
    /// The first version that the last part of `1.2.x` does not stand for.
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

/// What may stand in front of a version, the longer ones first.
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
    /// Reads a range; nothing if it is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let groups = text.split("||").map(|group| {
            let bounds: Option<Vec<Bound>> =
                words(group).iter().map(|word| Bound::parse(word)).collect();
            bounds.filter(|bounds| !bounds.is_empty())
        });
        groups.collect::<Option<_>>().map(Self)
    }

    /// Tells whether a version, or every one of a list, will do.
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

/// Returns the words of a group; a sign may stand apart from its version.
fn words(group: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut sign = String::new();
    for word in group.split_whitespace() {
        sign.push_str(word);
        if !word.ends_with(['<', '>', '=', '!']) {
            words.push(std::mem::take(&mut sign));
        }
    }
    words.extend(Some(sign).filter(|sign| !sign.is_empty()));
    words
}

impl Bound {
    fn parse(word: &str) -> Option<Self> {
        let (relation, text) = RELATIONS
            .iter()
            .find_map(|(sign, relation)| Some((*relation, word.strip_prefix(sign)?)))?;
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
        // A plain version is all there is of its kind; `1.x` ends where 2.0.0 begins.
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
    fn ranges_hold_for_what_they_say() {
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
    fn text_that_is_no_range_is_refused() {
        for range in [
            "", "x", "1", "1.2", ">", "foo", "1.2.3 ||", "~1.2.3", "^1.2.3", "1.2.3.4", "01.2.3",
            "1.2.3-", "1.2.3+", "1.2.3-01",
        ] {
            assert_eq!(Range::parse(range), None, "{range}");
        }
    }

    #[test]
    fn all_versions_of_a_list_must_hold_and_be_versions() {
        let range = Range::parse(">=1.0.0").unwrap();
        let check = |json: &str| range.holds_all(&serde_json::from_str(json).unwrap());
        assert!(check(r#"["1.0.0", "2.0.0"]"#).unwrap());
        assert!(!check(r#"["1.0.0", "0.1.0"]"#).unwrap());
        for odd in [r#"["1.0.0", "1.0"]"#, "[]", "1", r#""v1.0.0""#] {
            assert!(check(odd).is_err(), "{odd}");
        }
    }
}
