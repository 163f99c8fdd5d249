//! Nagios plugins: the exit code is the status, and output after a `|` is performance data.
//!
//! The command is split into words and run without a shell. Performance data is parsed but not
//! evaluated. The output is passed on unchanged.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

use super::{ProbeError, TryResult};
use crate::model::health::HealthStatus;
use crate::model::text::split_words;
use crate::system::{Command, Runner};

/// Maximum number of measurements of a plugin.
const MAX_DATA: usize = 1_000;

/// Runs a plugin once.
pub(super) fn run(
    runner: &dyn Runner,
    line: &str,
    timeout: Option<Duration>,
) -> Result<TryResult, ProbeError> {
    let mut words = split_words(line)?.into_iter();
    let program = words.next().ok_or(ProbeError::NoCommand)?;
    let command = Command {
        timeout,
        ..Command::new(program, words)
    };
    let output = runner.run(&command)?;
    let text = output.stdout_text().trim().to_owned();
    Ok(TryResult {
        status: HealthStatus::from_code(output.code.into()),
        perfdata: perfdata(&text),
        output: text,
        failed_rules: None,
        details: output.stderr_text().into_owned(),
    })
}

/// One measurement of a plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub label: String,
    /// `None` if the plugin reported `U`.
    pub value: Option<f64>,
    /// `s`, `%`, `B`, `c` and so on; empty for a plain number.
    pub unit: String,
    /// Thresholds as written by the plugin.
    pub warn: String,
    pub critical: String,
    pub min: Option<f64>,
    pub max: Option<f64>,
}

/// Formats as in performance data, without thresholds.
impl fmt::Display for Measurement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Some(value) => write!(out, "{}={value}{}", self.label, self.unit),
            None => write!(out, "{}=U", self.label),
        }
    }
}

/// Returns the performance data: the text after the first `|` of the first line, and after the
/// first `|` of the following lines. Invalid data is skipped.
pub(super) fn perfdata(output: &str) -> Vec<Measurement> {
    let (first, rest) = output.split_once('\n').unwrap_or((output, ""));
    let after_bar = |text: &'_ str| text.split_once('|').map(|(_, data)| data.to_owned());
    [after_bar(first), after_bar(rest)]
        .into_iter()
        .flatten()
        .flat_map(|text| data(&text))
        .take(MAX_DATA)
        .collect()
}

fn data(text: &str) -> Vec<Measurement> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() && found.len() < MAX_DATA {
        let after_word = |text: &'_ str| text.find(char::is_whitespace).unwrap_or(text.len());
        let Some((label, measured)) = label(rest) else {
            let (_, after) = rest.split_at(after_word(rest));
            rest = after.trim_start();
            continue;
        };
        let (fields, after) = measured.split_at(after_word(measured));
        found.extend(datum(label, fields));
        rest = after.trim_start();
    }
    found
}

/// Returns the label at the start of a text and the rest after its `=`. In a quoted label a quote
/// is doubled.
fn label(text: &str) -> Option<(String, &str)> {
    let Some(mut quoted) = text.strip_prefix('\'') else {
        // Searches the current word only, to stay linear on many words without a value.
        let end = text.find(|c: char| c == '=' || c.is_whitespace())?;
        let (label, rest) = text.split_at(end);
        let rest = rest.strip_prefix('=').filter(|_| !label.is_empty())?;
        return Some((label.to_owned(), rest));
    };
    let mut label = String::new();
    loop {
        let (part, rest) = quoted.split_once('\'')?;
        label.push_str(part);
        if let Some(rest) = rest.strip_prefix('=') {
            return Some((label, rest));
        }
        quoted = rest.strip_prefix('\'')?;
        label.push('\'');
    }
}

fn datum(label: String, fields: &str) -> Option<Measurement> {
    let mut fields = fields.split(';');
    let measured = fields.next()?;
    let digits = measured
        .find(|c: char| !(c.is_ascii_digit() || "+-.,".contains(c)))
        .unwrap_or(measured.len());
    let (number, unit) = measured.split_at(digits);
    let (value, unit) = match measured {
        "U" => (None, ""),
        // Some plugins use a decimal comma.
        _ => (Some(finite(&number.replace(',', "."))?), unit),
    };
    let mut next = || fields.next().unwrap_or_default();
    Some(Measurement {
        label,
        value,
        unit: unit.to_owned(),
        warn: next().to_owned(),
        critical: next().to_owned(),
        min: finite(next()),
        max: finite(next()),
    })
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(output: &str) -> Vec<String> {
        perfdata(output).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_datum_has_value_unit_ranges_and_bounds() {
        assert_eq!(
            perfdata("DISK OK | /=2643MB;5948;@10:20;0;5968"),
            [Measurement {
                label: "/".into(),
                value: Some(2643.0),
                unit: "MB".into(),
                warn: "5948".into(),
                critical: "@10:20".into(),
                min: Some(0.0),
                max: Some(5968.0),
            }]
        );
    }

    #[test]
    fn data_is_found_after_the_first_line_and_after_the_long_text() {
        let output = "OK | a=1s b=2%\nlong text\nmore | c=3\nd=4c\n";
        assert_eq!(shown(output), ["a=1s", "b=2%", "c=3", "d=4c"]);
    }

    #[test]
    fn labels_may_be_quoted_and_values_unknown() {
        assert_eq!(
            shown("x | 'it''s a label'=-1.5 'b=c'=U"),
            ["it's a label=-1.5", "b=c=U"]
        );
    }

    #[test]
    fn invalid_data_is_skipped() {
        assert_eq!(shown("x | junk a=1 =5 b=x 'open=1 c=2"), ["a=1", "c=2"]);
        assert!(perfdata("no data").is_empty());
        assert!(perfdata("").is_empty());
    }

    #[test]
    fn values_are_finite_numbers_or_missing() {
        let huge = "9".repeat(400);
        let output = format!("x | a={huge} b=1;;;nan;inf word word c=2;;;0;1e999");
        let found = perfdata(&output);
        assert_eq!(shown(&output), ["b=1", "c=2"]);
        let bounds: Vec<_> = found.iter().map(|datum| (datum.min, datum.max)).collect();
        assert_eq!(bounds, [(None, None), (Some(0.0), None)]);
    }

    proptest! {
        #[test]
        fn any_output_is_read(output in "[ -~|='\n;]{0,200}") {
            prop_assert!(perfdata(&output).len() <= MAX_DATA);
        }
    }
}
