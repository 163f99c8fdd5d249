//! Patterns of policy rules, compared with names, paths and command lines.
//!
//! `*` matches any number of characters and `?` matches one, but not across boundaries: `/` in a
//! path; word boundaries, `/` and shell metacharacters in a command line. `**` matches across all
//! of them. `..` is matched only by a pattern that contains it. The run time is proportional to
//! the length of the pattern times the length of the text.

use crate::model::text::{clean_path, split_words};

/// Separator of the words of a command line during comparison; no word contains it.
const SEPARATOR: char = '\0';

/// Matches a whole name.
pub(super) fn name(pattern: &str, name: &str) -> bool {
    glob(pattern, name, |c| c == '/')
}

/// Matches a whole path, which must be clean: no `..`, `.` or double slash.
pub(super) fn path(pattern: &str, path: &str) -> bool {
    clean_path(path) == path && glob(pattern, path, |c| c == '/')
}

/// Matches one word of a command line, such as an environment variable.
pub(super) fn word(pattern: &str, word: &str) -> bool {
    has_no_parent(pattern, word) && glob(pattern, word, is_boundary)
}

/// Matches a command line word by word, or character by character if a shell runs it.
pub(super) fn line(pattern: &str, line: &str, is_shell: bool) -> bool {
    if is_shell {
        return has_no_parent(pattern, line) && glob(pattern, line, is_boundary);
    }
    let (Some(wanted), Some(found)) = (words(pattern), words(line)) else {
        return false;
    };
    has_no_parent(&wanted, &found) && glob(&wanted, &found, is_boundary)
}

/// Matches a text in any reading: as a name, as a command line, and with normalized spaces.
pub(super) fn matches_loosely(pattern: &str, text: &str) -> bool {
    let spaced = |text: &str| words(text).map(|words| words.replace(SEPARATOR, " "));
    pattern == "*"
        || name(pattern, text)
        || line(pattern, text, false)
        || line(pattern, text, true)
        || spaced(text).is_some_and(|text| name(pattern, &text))
}

/// Returns why a pattern of a command line can't match anything, if it can't.
pub(super) fn problem(pattern: &str) -> Option<String> {
    match split_words(pattern) {
        Err(err) => Some(err.to_string()),
        Ok(words) if words.is_empty() => Some("a command line is empty".into()),
        Ok(_) => None,
    }
}

/// Returns the words of a command line, joined by the separator.
fn words(line: &str) -> Option<String> {
    if line.contains(SEPARATOR) {
        return None;
    }
    let words = split_words(line).ok().filter(|words| !words.is_empty())?;
    Some(words.join("\0"))
}

/// Reports whether `*` does not match a character in a command line.
fn is_boundary(c: char) -> bool {
    c == '/'
        || c == SEPARATOR
        || c.is_whitespace()
        || c.is_control()
        || ";&|<>()$`'\"\\*?[]{}~#!".contains(c)
}

/// Reports whether a text contains no `..`, unless the pattern contains it or allows every word.
fn has_no_parent(pattern: &str, text: &str) -> bool {
    let parts = |c: char| is_boundary(c) || c == '=' || c == ':' || c == ',';
    let has_parent = |text: &str| text.split(parts).any(|part| part == "..");
    let mut words = pattern.split([SEPARATOR, ' ']);
    !has_parent(text) || has_parent(pattern) || words.any(|word| word == "**")
}

/// Matches a whole text; `*` and `?` match no boundary character.
fn glob(pattern: &str, text: &str, is_boundary: impl Fn(char) -> bool) -> bool {
    let text: Vec<char> = text.chars().collect();
    // The prefix lengths of the text that the pattern so far matches.
    let mut reached = vec![false; text.len() + 1];
    if let Some(first) = reached.first_mut() {
        *first = true;
    }
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        let deep = c == '*' && rest.next_if_eq(&'*').is_some();
        let mut next = Vec::with_capacity(reached.len());
        let mut before = false;
        let mut left = None;
        for (index, &here) in reached.iter().enumerate() {
            let passed: Option<char> = index.checked_sub(1).and_then(|at| text.get(at)).copied();
            let now = match (c, passed) {
                ('*', Some(passed)) => here || (before && (deep || !is_boundary(passed))),
                ('*', None) => here,
                ('?', Some(passed)) => left.unwrap_or(false) && !is_boundary(passed),
                (c, Some(passed)) => left.unwrap_or(false) && c == passed,
                (_, None) => false,
            };
            next.push(now);
            before = now;
            left = Some(here);
        }
        reached = next;
    }
    reached.last().copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_star_stops_at_a_slash_and_two_do_not() {
        for (pattern, text, expected) in [
            ("/etc/app/*", "/etc/app/x.conf", true),
            ("/etc/app/*", "/etc/app/a/b", false),
            ("/etc/app/*", "/etc/app/a b", true),
            ("/etc/app/**", "/etc/app/a/b", true),
            ("/etc/app/**", "/etc/app/../shadow", false),
            ("/etc/*/b", "/etc/a/b", true),
            ("/etc/*/b", "/etc/a/c", false),
            ("*", "/anything/at all", false),
            ("**", "/anything/at all", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("a", "b", false),
            ("a*", "a", true),
            ("*a*a*b", &"a".repeat(200), false),
        ] {
            assert_eq!(path(pattern, text), expected, "{pattern} {text}");
        }
        assert!(name("", "") && !name("", "a"));
        assert!(name("*", "nginx") && !name("*", "/etc/shadow"));
    }

    #[test]
    fn a_command_line_is_compared_word_by_word() {
        for (pattern, text, expected) in [
            ("systemctl restart app", "systemctl  restart 'app'", true),
            ("systemctl restart app", "systemctl restart app now", false),
            ("systemctl restart *", "systemctl restart app", true),
            ("systemctl restart *", "systemctl restart 'app now'", false),
            ("systemctl restart *", "systemctl restart a b", false),
            ("systemctl restart *", "systemctl restart a/b", false),
            ("systemctl restart *", "systemctl restart a;id", false),
            ("systemctl **", "systemctl restart /a 'b c'", true),
            ("rm /srv/app/*", "rm /srv/app/..", false),
            ("rm /srv/**", "rm /srv/../etc", false),
            ("rm --dir=/srv/*", "rm --dir=/srv/..", false),
            ("rm /srv/../etc", "rm /srv/../etc", true),
            ("echo 'a b'", "echo 'a b'", true),
            ("echo 'a b'", "echo a b", false),
            ("*", "id", true),
            ("*", "/bin/id", false),
            ("echo *", "echo 'unbalanced", false),
        ] {
            assert_eq!(line(pattern, text, false), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_shell_command_is_compared_character_by_character() {
        for (pattern, text, expected) in [
            ("a && b", "a && b", true),
            ("a && b", "a  && b", false),
            ("echo *", "echo x", true),
            ("echo *", "echo x;id", false),
            ("echo *", "echo $(id)", false),
            ("echo *", "echo x\nid", false),
            ("echo *", "echo 'x'", false),
            ("echo **", "echo x; id", true),
        ] {
            assert_eq!(line(pattern, text, true), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_loose_match_covers_other_spellings() {
        for (pattern, text) in [
            ("rm *", "rm -rf x"),
            ("rm *", "rm    -rf x"),
            ("rm *", "'rm' x"),
            ("*", "/anything at all"),
            ("/etc/**", "/etc/a/b"),
        ] {
            assert!(matches_loosely(pattern, text), "{pattern} {text}");
        }
        assert!(!matches_loosely("rm *", "ls x"));
    }
}
