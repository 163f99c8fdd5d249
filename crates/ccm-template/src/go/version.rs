//! Semantic versions and constraints, like the Go library that sprig uses (Masterminds/semver).
//!
//! Versions are loose: `v1.2` is 1.2.0. A constraint is `||` between groups and spaces or commas
//! within one: `>=1.2 <2 || ~3.1`. Not for packages: Debian and RPM have their own version rules.

use std::cmp::Ordering;
use std::fmt;

/// A semantic version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub(crate) major: u64,
    pub(crate) minor: u64,
    pub(crate) patch: u64,
    pub(crate) prerelease: String,
    pub(crate) metadata: String,
    /// The original text.
    pub(crate) original: String,
}

/// Error of an invalid version or constraint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    #[error("invalid semantic version")]
    Invalid,
    #[error("version segment starts with 0")]
    LeadingZero,
    #[error("improper constraint: {0}")]
    Constraint(String),
}

impl Version {
    /// Parses a version; minor and patch may be missing.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        let (version, rest) = PartialVersion::read(text).ok_or(VersionError::Invalid)?;
        if !rest.is_empty() || version.wildcard_at.is_some_and(|at| at < version.given) {
            return Err(VersionError::Invalid);
        }
        let zero_led = |part: &str| {
            part.len() > 1 && part.starts_with('0') && part.bytes().all(|b| b.is_ascii_digit())
        };
        if version.prerelease.split('.').any(zero_led) {
            return Err(VersionError::LeadingZero);
        }
        Ok(version.into_version(text))
    }

    /// Compares by precedence; build metadata is ignored.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        (self.major, self.minor, self.patch)
            .cmp(&(other.major, other.minor, other.patch))
            .then_with(|| compare_prereleases(&self.prerelease, &other.prerelease))
    }

    pub(super) fn next_major(&self) -> Self {
        self.bumped(self.major.saturating_add(1), 0, 0)
    }

    pub(super) fn next_minor(&self) -> Self {
        self.bumped(self.major, self.minor.saturating_add(1), 0)
    }

    /// Returns the next patch version; for a prerelease, its release.
    pub(super) fn next_patch(&self) -> Self {
        let step = u64::from(self.prerelease.is_empty());
        self.bumped(self.major, self.minor, self.patch.saturating_add(step))
    }

    fn bumped(&self, major: u64, minor: u64, patch: u64) -> Self {
        let v = if self.original.starts_with('v') {
            "v"
        } else {
            ""
        };
        Self {
            major,
            minor,
            patch,
            prerelease: String::new(),
            metadata: String::new(),
            original: format!("{v}{major}.{minor}.{patch}"),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}.{}", self.major, self.minor, self.patch)?;
        if !self.prerelease.is_empty() {
            write!(out, "-{}", self.prerelease)?;
        }
        if !self.metadata.is_empty() {
            write!(out, "+{}", self.metadata)?;
        }
        Ok(())
    }
}

fn compare_prereleases(a: &str, b: &str) -> Ordering {
    match (a.is_empty(), b.is_empty()) {
        (true, true) => return Ordering::Equal,
        // A release comes after its prereleases.
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    let (mut a, mut b) = (a.split('.'), b.split('.'));
    loop {
        let order = match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => Ordering::Less,
            (Some(_), None) => Ordering::Greater,
            (Some(a), Some(b)) => match (a.parse::<u64>(), b.parse::<u64>()) {
                (Ok(a), Ok(b)) => a.cmp(&b),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                (Err(_), Err(_)) => a.cmp(b),
            },
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// A version in which numbers may be missing or wildcards.
struct PartialVersion {
    numbers: [u64; 3],
    /// Number of numbers or wildcards in the text.
    given: usize,
    /// Index of the first number that is a wildcard or missing.
    wildcard_at: Option<usize>,
    prerelease: String,
    metadata: String,
}

impl PartialVersion {
    /// Parses a version at the start of a text; returns the rest.
    fn read(text: &str) -> Option<(Self, &str)> {
        let mut rest = text.strip_prefix('v').unwrap_or(text);
        let mut version = Self {
            numbers: [0; 3],
            given: 0,
            wildcard_at: None,
            prerelease: String::new(),
            metadata: String::new(),
        };
        for (index, number) in version.numbers.iter_mut().enumerate() {
            let segment = if index == 0 {
                rest
            } else {
                match rest.strip_prefix('.') {
                    Some(segment) => segment,
                    None => break,
                }
            };
            if let Some(after) = segment.strip_prefix(['x', 'X', '*']) {
                version.wildcard_at = version.wildcard_at.or(Some(index));
                rest = after;
            } else {
                let len = segment.bytes().take_while(u8::is_ascii_digit).count();
                let (digits, after) = segment.split_at_checked(len)?;
                let value = digits.parse().ok()?;
                // Numbers after a wildcard are ignored.
                if version.wildcard_at.is_none() {
                    *number = value;
                }
                rest = after;
            }
            version.given = index + 1;
        }
        if version.given < 3 {
            version.wildcard_at = version.wildcard_at.or(Some(version.given));
        }
        if let Some(after) = rest.strip_prefix('-') {
            (version.prerelease, rest) = identifiers(after)?;
        }
        if let Some(after) = rest.strip_prefix('+') {
            (version.metadata, rest) = identifiers(after)?;
        }
        Some((version, rest))
    }

    fn into_version(self, original: &str) -> Version {
        let [major, minor, patch] = self.numbers;
        Version {
            major,
            minor,
            patch,
            prerelease: self.prerelease,
            metadata: self.metadata,
            original: original.to_owned(),
        }
    }
}

/// Parses dotted identifiers of letters, digits and dashes, none of them empty.
fn identifiers(text: &str) -> Option<(String, &str)> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let len = text.find(|c| !allowed(c)).unwrap_or(text.len());
    let (found, rest) = text.split_at_checked(len)?;
    let whole = found.split('.').all(|part| !part.is_empty());
    whole.then(|| (found.to_owned(), rest))
}

/// An operator and the version it compares with.
struct Comparison {
    operator: Operator,
    version: Version,
    /// Number of numbers before the first wildcard or gap: 0 to 3.
    exact: usize,
}

#[derive(Clone, Copy)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    Less,
    AtLeast,
    AtMost,
    Tilde,
    Caret,
}

/// Operators; longer ones before their prefixes.
const OPERATORS: [(&str, Operator); 11] = [
    ("!=", Operator::NotEqual),
    (">=", Operator::AtLeast),
    ("=>", Operator::AtLeast),
    ("<=", Operator::AtMost),
    ("=<", Operator::AtMost),
    ("~>", Operator::Tilde),
    ("=", Operator::Equal),
    (">", Operator::Greater),
    ("<", Operator::Less),
    ("~", Operator::Tilde),
    ("^", Operator::Caret),
];

/// Returns whether a version satisfies a constraint.
pub fn satisfies(constraint: &str, version: &Version) -> Result<bool, VersionError> {
    let mut groups = Vec::new();
    for group in constraint.split("||") {
        let improper = || VersionError::Constraint(group.into());
        groups.push(comparisons(group).ok_or_else(improper)?);
    }
    Ok(groups.iter().any(|group| {
        // Prereleases match only a group that names one.
        let prereleases = group.iter().any(|c| !c.version.prerelease.is_empty());
        (prereleases || version.prerelease.is_empty())
            && group.iter().all(|comparison| comparison.matches(version))
    }))
}

fn comparisons(group: &str) -> Option<Vec<Comparison>> {
    let mut found: Vec<Comparison> = Vec::new();
    let mut rest = group.trim();
    while !rest.is_empty() || found.is_empty() {
        let (operator, after) = OPERATORS
            .iter()
            .find_map(|(text, operator)| Some((Some(*operator), rest.strip_prefix(text)?)))
            .unwrap_or((None, rest));
        let after = after.trim_start();
        let (loose, after) = PartialVersion::read(after)?;
        let mut comparison = Comparison {
            operator: operator.unwrap_or(Operator::Equal),
            exact: loose.wildcard_at.unwrap_or(3),
            version: loose.into_version(""),
        };
        let trimmed = after.trim_start();
        let spaced = trimmed.len() < after.len();
        // `1.2 - 1.4` is a range.
        let range = trimmed
            .strip_prefix('-')
            .filter(|upper| spaced && upper.starts_with(char::is_whitespace));
        if let (Some(upper), None) = (range, operator) {
            let (loose, after) = PartialVersion::read(upper.trim_start())?;
            comparison.operator = Operator::AtLeast;
            found.push(comparison);
            comparison = Comparison {
                operator: Operator::AtMost,
                exact: loose.wildcard_at.unwrap_or(3),
                version: loose.into_version(""),
            };
            rest = separated(after)?;
        } else {
            rest = separated(after)?;
        }
        found.push(comparison);
    }
    Some(found)
}

/// Skips the separator between two comparisons: spaces, one comma, or the end.
fn separated(text: &str) -> Option<&str> {
    let rest = text.trim_start();
    if let Some(after) = rest.strip_prefix(',') {
        let after = after.trim_start();
        return (!after.is_empty()).then_some(after);
    }
    (rest.is_empty() || rest.len() < text.len()).then_some(rest)
}

impl Comparison {
    fn matches(&self, version: &Version) -> bool {
        let own = &self.version;
        let order = version.compare(own);
        let same_major = version.major == own.major;
        let same_minor = same_major && version.minor == own.minor;
        match self.operator {
            Operator::Equal if self.exact == 3 => order.is_eq(),
            Operator::Equal | Operator::Tilde => match self.exact {
                0 => order.is_ge(),
                1 => order.is_ge() && same_major,
                2 => order.is_ge() && same_minor,
                _ => {
                    order.is_ge() && (same_minor || (own.major, own.minor, own.patch) == (0, 0, 0))
                }
            },
            Operator::NotEqual => match self.exact {
                0 => version.major != own.major || order.is_ne(),
                1 => !same_major,
                2 => {
                    !same_minor || compare_prereleases(&version.prerelease, &own.prerelease).is_ne()
                }
                _ => order.is_ne(),
            },
            Operator::Greater => match self.exact {
                1 => version.major > own.major,
                2 => (version.major, version.minor) > (own.major, own.minor),
                _ => order.is_gt(),
            },
            Operator::Less => order.is_lt(),
            Operator::AtLeast => order.is_ge(),
            Operator::AtMost => match self.exact {
                1 => version.major <= own.major,
                0 | 2 => (version.major, version.minor) <= (own.major, own.minor),
                _ => order.is_le(),
            },
            Operator::Caret => {
                order.is_ge()
                    && match (own.major, own.minor) {
                        (1.., _) => same_major,
                        _ if self.exact == 1 => same_major,
                        // `^0.2` keeps the minor, `^0.0.3` the patch.
                        (0, 1..) => same_minor,
                        _ if self.exact == 2 => same_minor,
                        _ => same_minor && version.patch == own.patch,
                    }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints_hold_as_in_the_go_library() {
        let cases = [
            ("^1.2.0", "1.2.3", true),
            ("^1.2.0", "2.0.0", false),
            ("^0.2.3", "0.3.0", false),
            ("~1.2.3", "1.2.9", true),
            ("~1.2.3", "1.3.0", false),
            (">=1.2, <2", "1.9.9", true),
            (">=1.2 <2 || 3.x", "3.4.5", true),
            ("1.2 - 1.4.5", "1.4.5", true),
            ("1.2 - 1.4.5", "1.4.6", false),
            (">1.2.3", "1.2.4-beta", false),
            (">1.2.3-alpha", "1.2.4-beta", true),
            ("*", "9.9.9", true),
            ("!=1.x", "1.5.0", false),
            (">2", "2.9.0", false),
            ("<=2", "2.9.0", true),
        ];
        for (constraint, version, expected) in cases {
            let version = Version::parse(version).unwrap();
            assert_eq!(
                satisfies(constraint, &version),
                Ok(expected),
                "{constraint} {version}"
            );
        }
    }

    #[test]
    fn an_invalid_constraint_is_refused() {
        let version = Version::parse("1").unwrap();
        for constraint in ["", "foo", "1.2,", ">", "1..2", "1.2.3.4", ">> 1"] {
            assert!(satisfies(constraint, &version).is_err(), "{constraint}");
        }
    }

    #[test]
    fn prereleases_order_by_number_then_text() {
        let order = |a: &str, b: &str| {
            Version::parse(a)
                .unwrap()
                .compare(&Version::parse(b).unwrap())
        };
        assert_eq!(order("1.0.0-2", "1.0.0-10"), Ordering::Less);
        assert_eq!(order("1.0.0-rc", "1.0.0"), Ordering::Less);
        assert_eq!(order("1.0.0-a.1", "1.0.0-a"), Ordering::Greater);
    }
}
