//! Line patterns: `foo` is in some line, `!foo` in none, `/re/` matches some line, `!/re/` none. A
//! leading backslash escapes the first character: `\!foo`.

use std::borrow::Cow;

use regex::{Captures, Regex};

use super::MatchError;
use crate::model::Value;

/// The longest line that is searched.
const MAX_LINE: usize = 1024 * 1024;

/// Patterns that must all hold.
#[derive(Debug)]
pub(super) struct Patterns(Vec<Pattern>);

#[derive(Debug)]
struct Pattern {
    test: LineTest,
    /// No line may match.
    inverse: bool,
}

#[derive(Debug)]
enum LineTest {
    Contains(String),
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

    /// Whether all patterns hold.
    pub(super) fn check(&self, text: &str) -> Result<bool, MatchError> {
        let mut pending: Vec<&Pattern> = self.0.iter().collect();
        // A trailing newline does not start another line.
        let text = text.strip_suffix('\n').unwrap_or(text);
        let lines = text.split('\n').filter(|_| !text.is_empty());
        for line in lines {
            if line.len() > MAX_LINE {
                return Err(MatchError::LongLine(MAX_LINE));
            }
            let line = line.strip_suffix('\r').unwrap_or(line);
            if pending
                .iter()
                .any(|found| found.inverse && found.test(line))
            {
                return Ok(false);
            }
            pending.retain(|pattern| pattern.inverse || !pattern.test(line));
            if pending.is_empty() {
                break;
            }
        }
        // The empty pattern is in every text, even in one without lines.
        Ok(pending
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
            None => LineTest::Contains(rest.trim_start_matches(['\\', '/', '!']).to_owned()),
        };
        Ok(Self { test, inverse })
    }

    fn test(&self, line: &str) -> bool {
        match &self.test {
            LineTest::Contains(part) => line.contains(part.as_str()),
            LineTest::Matches(pattern) => pattern.is_match(line),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(&self.test, LineTest::Contains(part) if part.is_empty())
    }
}

/// Compiles a regular expression. As in RE2, a `{` that does not start a repetition is literal, so
/// JSON can be matched without escapes.
pub(super) fn compile(pattern: &str) -> Result<Regex, MatchError> {
    Regex::new(pattern)
        .or_else(|error| Regex::new(&with_literal_braces(pattern)).map_err(|_| error))
        .map_err(|cause| MatchError::Regexp {
            pattern: pattern.to_owned(),
            cause,
        })
}

fn with_literal_braces(pattern: &str) -> Cow<'_, str> {
    // Escapes, classes and repetitions are matched first and kept; what remains is a literal brace.
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
