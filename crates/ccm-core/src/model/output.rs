//! Output of commands for events, replies and errors: bounded, without control characters and
//! without the secrets of URLs.
//!
//! The end of an output is kept, because the reason of a failure is usually there. Whether an
//! output may be shown at all (`sensitive`) is decided by the engine.

use serde::{Deserialize, Serialize};

use super::secret::redact_urls;

/// Maximum number of lines of the output in an event.
const MAX_LINES: usize = 20;

/// Maximum size of the output in an event, in bytes.
const MAX_BYTES: usize = 4 * 1024;

/// Maximum size of each stream in a reply, in bytes.
const MAX_STREAM: usize = 64 * 1024;

/// Maximum number of lines and bytes of a diff in a report.
const MAX_HEAD_LINES: usize = 40;
const MAX_HEAD_BYTES: usize = 4 * 1024;

/// Maximum length of a line in an error, in characters.
const MAX_LINE_CHARS: usize = 300;

/// Output of a command, cleaned and bounded for a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandOutput {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stdout: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stderr: String,
    /// The beginning of a stream was left out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl CommandOutput {
    /// Returns the cleaned ends of both streams; `truncated` if their beginning is already missing.
    pub fn new(stdout: &str, stderr: &str, truncated: bool) -> Self {
        let (stdout, stderr) = (clean(stdout), clean(stderr));
        let truncated = truncated || stdout.len().max(stderr.len()) > MAX_STREAM;
        Self {
            stdout: last_bytes(&stdout, MAX_STREAM).into(),
            stderr: last_bytes(&stderr, MAX_STREAM).into(),
            truncated,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.stdout.is_empty() && self.stderr.is_empty()
    }

    /// Returns the last lines for an event: standard output, then standard error. If both are long,
    /// each gets half of the space.
    pub fn tail(&self) -> String {
        let both = format!("{}{}", with_newline(&self.stdout), self.stderr);
        if self.stdout.is_empty() || self.stderr.is_empty() || fits(&both) {
            return tail(&both);
        }
        let half = |text: &str| ending(text, MAX_LINES / 2, MAX_BYTES / 2).to_owned();
        let (stdout, stderr) = (half(&self.stdout), half(&self.stderr));
        format!("{}{stderr}", with_newline(&stdout))
    }

    /// Returns the last lines of standard error, or of standard output if that is empty.
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        match last_lines(&self.stderr, count) {
            lines if lines.is_empty() => last_lines(&self.stdout, count),
            lines => lines,
        }
    }
}

fn with_newline(text: &str) -> String {
    match text {
        "" => String::new(),
        ended if ended.ends_with('\n') => ended.to_owned(),
        open => format!("{open}\n"),
    }
}

fn fits(text: &str) -> bool {
    ending(text, MAX_LINES, MAX_BYTES).len() == text.trim_end().len()
}

/// Returns the last lines of an output for an event.
pub fn tail(text: &str) -> String {
    ending(&clean(text), MAX_LINES, MAX_BYTES).to_owned()
}

/// Returns the beginning of a text, such as a diff: at most `MAX_HEAD_LINES` and `MAX_HEAD_BYTES`.
pub fn head(text: &str) -> String {
    let text = clean(text);
    let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
    let end = newlines.take(MAX_HEAD_LINES).nth(MAX_HEAD_LINES - 1);
    let end = end.unwrap_or(text.len()).min(MAX_HEAD_BYTES);
    let kept = text.get(..text.floor_char_boundary(end));
    match kept.unwrap_or_default() {
        kept if kept.len() == text.len() => text,
        kept => format!("{}\n(shortened)\n", kept.trim_end()),
    }
}

/// Returns the last non-empty lines of an output for an error, each shortened.
pub fn last_lines(text: &str, count: usize) -> Vec<String> {
    let text = clean(text);
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let skipped = lines.len().saturating_sub(count);
    let shorten = |line: &str| line.chars().take(MAX_LINE_CHARS).collect();
    lines.into_iter().skip(skipped).map(shorten).collect()
}

/// Returns the end of a text, without trailing white space: at most this number of lines and bytes.
fn ending(text: &str, lines: usize, bytes: usize) -> &str {
    let text = text.trim_end();
    let newlines = text.rmatch_indices('\n').map(|(at, _)| at + 1);
    let start = newlines.take(lines).nth(lines.saturating_sub(1));
    let text = text.get(start.unwrap_or_default()..).unwrap_or_default();
    last_bytes(text, bytes)
}

/// Returns the last bytes of a text, from the start of a line if there is one.
fn last_bytes(text: &str, bytes: usize) -> &str {
    let excess = text.len().saturating_sub(bytes);
    if excess == 0 {
        return text;
    }
    let kept = text.get(text.ceil_char_boundary(excess)..);
    let kept = kept.unwrap_or_default();
    match kept.split_once('\n') {
        Some((_, rest)) if !rest.is_empty() => rest,
        _ => kept,
    }
}

/// Removes escape sequences, control characters except newlines and tabs, and secrets of URLs. As on
/// a terminal, a carriage return overwrites its line.
fn clean(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        let line = line.trim_end_matches('\r');
        let line = line.rsplit('\r').next().unwrap_or_default();
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match c {
                '\x1b' => skip_escape(&mut chars),
                '\t' => shown.push(c),
                c if c.is_control() => {}
                c => shown.push(c),
            }
        }
        shown.push_str(end);
    }
    redact_urls(&shown).into_owned()
}

/// Skips the rest of an escape sequence.
fn skip_escape(chars: &mut std::str::Chars<'_>) {
    match chars.next() {
        // Ends with a letter or one of @[\]^_`{|}~.
        Some('[') => {
            chars.find(|c| ('@'..='~').contains(c));
        }
        // A title or link, ends with BEL or ESC \.
        Some(']') => {
            let end = chars.find(|c| matches!(c, '\x07' | '\x1b'));
            if end == Some('\x1b') {
                chars.next();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_and_control_characters_are_removed() {
        for (text, shown) in [
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b]0;title\x07x\x1b]8;;u\x1b\\y", "xy"),
            ("a\x08\x00b\tc", "ab\tc"),
            ("10%\r50%\r100%\r\ndone\r\n", "100%\ndone\n"),
            ("\x1b[", ""),
            ("\x1b", ""),
        ] {
            assert_eq!(clean(text), shown, "{text:?}");
        }
    }

    #[test]
    fn a_tail_has_the_last_lines() {
        let text: String = (1..=30).map(|n| format!("line {n}\n")).collect();
        let lines: Vec<String> = tail(&text).lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), MAX_LINES);
        assert_eq!(lines[0], "line 11");
        assert_eq!(lines[19], "line 30");
        assert_eq!(tail("only\n"), "only");
        assert_eq!(tail(""), "");
    }

    #[test]
    fn a_tail_is_bounded_in_bytes_and_starts_with_a_line() {
        let text: String = (0..9)
            .map(|n| format!("{n}{}\n", "é".repeat(400)))
            .collect();
        let tail = tail(&text);
        assert!(tail.len() <= MAX_BYTES);
        assert!(tail.starts_with('4'), "{}", tail.len());
        let long = super::tail(&"é".repeat(10_000));
        assert!(long.len() <= MAX_BYTES && long.len() > MAX_BYTES - 2);
    }

    #[test]
    fn a_head_is_shortened_with_a_notice() {
        assert_eq!(head("a\nb\n"), "a\nb\n");
        let long = head(&"line\n".repeat(100));
        assert_eq!(long.lines().count(), MAX_HEAD_LINES + 1);
        assert!(long.ends_with("line\n(shortened)\n"));
        assert!(head(&"é".repeat(9_000)).len() < MAX_HEAD_BYTES + 20);
    }

    #[test]
    fn secrets_of_urls_are_removed_before_the_text_is_cut() {
        let text = format!("https://ann:{}@h/", "s".repeat(5_000));
        assert_eq!(tail(&text), "https://REDACTED@h/");
    }

    #[test]
    fn both_streams_are_in_the_tail_of_a_long_output() {
        let many = "out\n".repeat(50);
        let output = CommandOutput::new(&many, "the reason", false);
        let tail = output.tail();
        assert!(tail.starts_with("out\nout\n") && tail.ends_with("out\nthe reason"));
        assert!(tail.lines().count() <= MAX_LINES);
        assert_eq!(CommandOutput::new("a", "b\n", false).tail(), "a\nb");
    }

    #[test]
    fn a_reply_has_the_end_of_long_streams() {
        let output = CommandOutput::new(&"x\n".repeat(MAX_STREAM), "", false);
        assert!(output.truncated && output.stdout.len() <= MAX_STREAM);
        assert!(!CommandOutput::new("x", "y", false).truncated);
    }

    #[test]
    fn error_lines_come_from_standard_error_first() {
        let output = CommandOutput::new("out\n", "\n a \n\nb\n", false);
        assert_eq!(output.last_lines(3), ["a", "b"]);
        assert_eq!(
            CommandOutput::new("out\n", " ", false).last_lines(3),
            ["out"]
        );
    }
}
