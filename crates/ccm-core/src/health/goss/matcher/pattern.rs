//! Patterns of lines: `foo` some line holds it, `!foo` none does, `/re/` some line matches, `!/re/`
//! none does. A backslash in front makes the next sign an ordinary one: `\!foo`.

use std::borrow::Cow;

use regex::{Captures, Regex};

use super::MatchError;
use crate::model::Value;

/// The longest line that is searched.
const MAX_LINE: usize = 1024 * 1024;

/// Patterns that must all come out as they say.
#[derive(Debug)]
pub(super) struct Patterns(Vec<Pattern>);

#[derive(Debug)]
struct Pattern {
    test: LineTest,
    /// No line may pass.
    inverse: bool,
}

#[derive(Debug)]
enum LineTest {
    Holds(String),
    Matches(Regex),
}

impl Patterns {
    pub(super) fn parse(wanted: &Value) -> Result<Self, MatchError> {
        let list = wanted.as_list().unwrap_or_default();
        let patterns = list.iter().map(|item| match item {
            Value::Str(text) => Pattern::parse(text),
            other => Err(MatchError::Pattern(other.clone())),
        });
        Ok(Self(patterns.collect::<Result<_, _>>()?))
    }

    /// Tells whether every pattern comes out as it says.
    pub(super) fn check(&self, text: &str) -> Result<bool, MatchError> {
        let mut open: Vec<&Pattern> = self.0.iter().collect();
        // A line break at the end starts no line.
        let text = text.strip_suffix('\n').unwrap_or(text);
        let lines = text.split('\n').filter(|_| !text.is_empty());
        for line in lines {
            if line.len() > MAX_LINE {
                return Err(MatchError::LongLine(MAX_LINE));
            }
            let line = line.strip_suffix('\r').unwrap_or(line);
            if open.iter().any(|found| found.inverse && found.test(line)) {
                return Ok(false);
            }
            open.retain(|pattern| pattern.inverse || !pattern.test(line));
            if open.is_empty() {
                break;
            }
        }
        // Nothing is in every text, even in one without lines.
        Ok(open
            .iter()
            .all(|pattern| pattern.inverse || pattern.is_empty()))
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, MatchError> {
        let (inverse, rest) = match text.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let test = match rest
            .strip_prefix('/')
            .and_then(|rest| rest.strip_suffix('/'))
        {
            Some(pattern) => LineTest::Matches(compile(pattern)?),
            None => LineTest::Holds(rest.trim_start_matches(['\\', '/', '!']).to_owned()),
        };
        Ok(Self { test, inverse })
    }

    fn test(&self, line: &str) -> bool {
        match &self.test {
            LineTest::Holds(part) => line.contains(part.as_str()),
            LineTest::Matches(pattern) => pattern.is_match(line),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(&self.test, LineTest::Holds(part) if part.is_empty())
    }
}

/// Compiles a regular expression. As in RE2 a `{` that opens no repetition stands for itself, so
/// that JSON can be matched without escapes.
pub(super) fn compile(pattern: &str) -> Result<Regex, MatchError> {
    Regex::new(pattern)
        .or_else(|error| Regex::new(&with_literal_braces(pattern)).map_err(|_| error))
        .map_err(|cause| MatchError::Regexp {
            pattern: pattern.to_owned(),
            cause,
        })
}

fn with_literal_braces(pattern: &str) -> Cow<'_, str> {
    // Escapes, classes and repetitions are matched first, and kept; what remains is a lone brace.
    match Regex::new(r"\\[pPx]\{[^}]*\}|\\.|\{\d+(?:,\d*)?\}|\{") {
        Ok(parts) => parts.replace_all(pattern, |found: &Captures<'_>| {
            match found.get(0).map_or("", |part| part.as_str()) {
                "{" => r"\{".to_owned(),
                kept => kept.to_owned(),
            }
        }),
        Err(_) => pattern.into(),
    }
}
