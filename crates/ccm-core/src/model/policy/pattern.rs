//! Patterns: how a rule's texts are compared with names, paths and command lines.
//!
//! Everywhere `*` stands for any number of characters and `?` for one, within bounds: of a path
//! neither crosses a `/`, of a command line neither crosses a word, a `/` or anything that a shell
//! reads as more than itself. `**` crosses all of these. Nothing but a pattern that says so reaches
//! a `..`. Time grows with pattern times text and no faster.

use crate::model::text::{clean_path, split_words};

/// Stands between the words of a command line while it is compared; no word holds it.
const BETWEEN: char = '\0';

/// Matches a whole name.
pub(super) fn name(pattern: &str, name: &str) -> bool {
    glob(pattern, name, |c| c == '/')
}

/// Matches a whole path, which must lead where it seems to lead.
pub(super) fn path(pattern: &str, path: &str) -> bool {
    clean_path(path) == path && glob(pattern, path, |c| c == '/')
}

/// Matches a text that is one word of a command line, such as a variable.
pub(super) fn word(pattern: &str, word: &str) -> bool {
    stays(pattern, word) && glob(pattern, word, bounds)
}

/// Matches a command line word by word, or letter by letter where a shell will read it.
pub(super) fn line(pattern: &str, line: &str, is_shell: bool) -> bool {
    if is_shell {
        return stays(pattern, line) && glob(pattern, line, bounds);
    }
    let (Some(wanted), Some(found)) = (words(pattern), words(line)) else {
        return false;
    };
    stays(&wanted, &found) && glob(&wanted, &found, bounds)
}

/// Matches also what could be meant: as a name, as a command line, and with other spaces.
pub(super) fn loosely(pattern: &str, text: &str) -> bool {
    let spaced = |text: &str| words(text).map(|words| words.replace(BETWEEN, " "));
    pattern == "*"
        || name(pattern, text)
        || line(pattern, text, false)
        || line(pattern, text, true)
        || spaced(text).is_some_and(|text| name(pattern, &text))
}

/// Returns why a pattern of a command line can't match anything.
pub(super) fn problem(pattern: &str) -> Option<String> {
    match split_words(pattern) {
        Err(err) => Some(err.to_string()),
        Ok(words) if words.is_empty() => Some("a command line is empty".into()),
        Ok(_) => None,
    }
}

/// Returns the words of a command line in one text.
fn words(line: &str) -> Option<String> {
    if line.contains(BETWEEN) {
        return None;
    }
    let words = split_words(line).ok().filter(|words| !words.is_empty())?;
    Some(words.join("\0"))
}

/// What a star does not cross in a command line.
fn bounds(c: char) -> bool {
    c == '/'
        || c == BETWEEN
        || c.is_whitespace()
        || c.is_control()
        || ";&|<>()$`'\"\\*?[]{}~#!".contains(c)
}

/// Whether a text goes up no directory, unless the pattern does or permits every word.
fn stays(pattern: &str, text: &str) -> bool {
    let parts = |c: char| bounds(c) || c == '=' || c == ':' || c == ',';
    let goes_up = |text: &str| text.split(parts).any(|part| part == "..");
    let mut words = pattern.split([BETWEEN, ' ']);
    !goes_up(text) || goes_up(pattern) || words.any(|word| word == "**")
}

/// Matches a whole text; `*` and `?` match nothing that is a bound.
fn glob(pattern: &str, text: &str, is_bound: impl Fn(char) -> bool) -> bool {
    let text: Vec<char> = text.chars().collect();
    // Which ends of the text the pattern so far can reach.
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
                ('*', Some(passed)) => here || (before && (deep || !is_bound(passed))),
                ('*', None) => here,
                ('?', Some(passed)) => left.unwrap_or(false) && !is_bound(passed),
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
    fn a_star_stops_at_a_slash_and_two_do_not() {
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
    fn what_a_shell_reads_is_compared_letter_by_letter() {
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
    fn what_is_denied_is_denied_in_other_spellings() {
        for (pattern, text) in [
            ("rm *", "rm -rf x"),
            ("rm *", "rm    -rf x"),
            ("rm *", "'rm' x"),
            ("*", "/anything at all"),
            ("/etc/**", "/etc/a/b"),
        ] {
            assert!(loosely(pattern, text), "{pattern} {text}");
        }
        assert!(!loosely("rm *", "ls x"));
    }
}
