//! Sprig functions for words and their case: titles, initials, snake_case, wrapping.
//!
//! The rules for word boundaries are those of the Go libraries behind sprig, including their
//! peculiarities: `HTTPServer` becomes `http-server`, and digits belong to the letters after them.

use super::text::cut;
use crate::go::call::{Args, CallResult, Native, takes};
use crate::text::{lower_char, upper_char};

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "title" => takes(1, |args| Ok(title(args.str(0)?).into())),
        "untitle" => takes(1, |args| Ok(untitle(args.str(0)?).into())),
        "initials" => takes(1, |args| Ok(initials(args.str(0)?).into())),
        "swapcase" => takes(1, |args| Ok(swap_case(args.str(0)?).into())),
        "snakecase" => takes(1, |args| Ok(joined_words(args.str(0)?, '_').into())),
        "kebabcase" => takes(1, |args| Ok(joined_words(args.str(0)?, '-').into())),
        "camelcase" => takes(1, |args| Ok(camel_case(args.str(0)?).into())),
        "wrap" => takes(2, |args| wrap(args, "\n", args.str(1)?, false)),
        "wrapWith" => takes(3, |args| match args.str(1)? {
            "" => wrap(args, "\n", args.str(2)?, true),
            between => wrap(args, between, args.str(2)?, true),
        }),
        _ => return None,
    })
}

fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if inside {
            out.push(c);
        } else {
            out.push(upper_char(c));
        }
        inside = if c.is_ascii() {
            c.is_ascii_alphanumeric() || c == '_'
        } else {
            !c.is_whitespace()
        };
    }
    out
}

fn untitle(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if inside || c.is_whitespace() {
            out.push(c);
        } else {
            out.push(lower_char(c));
        }
        inside = !c.is_whitespace();
    }
    out
}

fn initials(text: &str) -> String {
    text.split_whitespace()
        .filter_map(|word| word.chars().next())
        .collect()
}

fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() {
            out.push(lower_char(c));
        } else {
            out.push(upper_char(c));
        }
    }
    out
}

fn is_connector(c: char) -> bool {
    c == '-' || c == '_' || c.is_whitespace()
}

fn camel_case(text: &str) -> String {
    let start = text.trim_start_matches(is_connector);
    let mut out = text.strip_suffix(start).unwrap_or("").to_owned();
    let mut chars = start.chars();
    let Some(first) = chars.next() else {
        return out;
    };
    // Output lags one character behind, because a connector is dropped only if a word follows it.
    let mut pending = upper_char(first);
    let mut in_upper_run = first.is_uppercase();
    for c in chars {
        let mut next = c;
        if is_connector(pending) {
            if is_connector(c) {
                out.push(pending);
                pending = c;
                continue;
            }
            in_upper_run = c.is_uppercase();
            next = upper_char(c);
        } else {
            if in_upper_run {
                if c.is_uppercase() {
                    next = lower_char(c);
                } else {
                    in_upper_run = false;
                }
            }
            out.push(pending);
        }
        pending = next;
    }
    out.push(pending);
    out
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Number,
    Upper,
    Letters,
    Connector,
    Punctuation,
    Other,
}

/// Splits text into runs of one kind; the last of several capitals belongs to the lower-case
/// letters after it.
struct Runs<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Runs<'a> {
    type Item = (Kind, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.rest.chars().next()?;
        let kind = kind(first);
        let len = match kind {
            Kind::Upper => self.upper_len(first),
            kind => self.run_len(0, |c| self::kind(c) == kind),
        };
        let (run, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some((kind, run))
    }
}

impl<'a> Runs<'a> {
    fn peek(&self) -> Option<(Kind, &'a str)> {
        Runs { rest: self.rest }.next()
    }

    /// Returns the end of the run of characters from `start` that satisfy a predicate.
    fn run_len(&self, start: usize, holds: impl Fn(char) -> bool) -> usize {
        let rest = self.rest.get(start..).unwrap_or("");
        start + rest.find(|c| !holds(c)).unwrap_or(rest.len())
    }

    fn upper_len(&self, first: char) -> usize {
        let capitals = self.run_len(0, |c| kind(c) == Kind::Upper);
        if capitals == first.len_utf8() {
            return self.run_len(capitals, |c| kind(c) == Kind::Letters);
        }
        let rest = self.rest.get(capitals..).unwrap_or("");
        let run = self.rest.get(..capitals).unwrap_or("");
        match (rest.chars().next(), run.chars().next_back()) {
            (Some(next), Some(last)) if kind(next) == Kind::Letters => capitals - last.len_utf8(),
            _ => capitals,
        }
    }
}

fn kind(c: char) -> Kind {
    match c {
        c if is_connector(c) => Kind::Connector,
        '$' | '+' | '<' | '=' | '>' | '^' | '`' | '|' | '~' => Kind::Other,
        c if c.is_ascii_punctuation() => Kind::Punctuation,
        '\u{a1}' | '\u{a7}' | '\u{ab}' | '\u{b6}' | '\u{b7}' | '\u{bb}' | '\u{bf}' => {
            Kind::Punctuation
        }
        '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}' => Kind::Punctuation,
        c if c.is_uppercase() => Kind::Upper,
        // Ideographs do not form words.
        '\u{3400}'..='\u{9fff}' | '\u{20000}'..='\u{2fa1f}' => Kind::Other,
        c if c.is_alphabetic() => Kind::Letters,
        c if c.is_numeric() => Kind::Number,
        _ => Kind::Other,
    }
}

/// Returns the words in lower case, joined with a connector.
fn joined_words(text: &str, connector: char) -> String {
    let mut runs = Runs { rest: text };
    let mut out = String::with_capacity(text.len() + 8);
    let write = |out: &mut String, (kind, run): (Kind, &str)| match kind {
        Kind::Upper => out.extend(run.chars().map(lower_char)),
        Kind::Connector => out.extend(run.chars().map(|_| connector)),
        _ => out.push_str(run),
    };
    // Whether a connector goes between a word and what follows it.
    let joins = |next: Option<(Kind, &str)>| {
        next.is_some_and(|(kind, _)| !matches!(kind, Kind::Connector | Kind::Punctuation))
    };
    // Digits and the lower-case letters after them are one word.
    let numbered = |out: &mut String, runs: &mut Runs<'_>| {
        while let Some(run @ (Kind::Letters | Kind::Number, _)) = runs.peek() {
            write(out, run);
            runs.next();
        }
    };
    while let Some(run) = runs.next() {
        write(&mut out, run);
        match run.0 {
            Kind::Number => {
                numbered(&mut out, &mut runs);
                if joins(runs.peek()) {
                    out.push(connector);
                }
            }
            Kind::Connector | Kind::Punctuation => {}
            Kind::Upper | Kind::Letters | Kind::Other => {
                let Some(next) = runs.peek() else { continue };
                if next.0 != Kind::Number {
                    if joins(Some(next)) {
                        out.push(connector);
                    }
                    continue;
                }
                runs.next();
                let after = runs.peek();
                // A number after a word belongs to it, unless lower-case letters follow.
                if after.is_some_and(|(kind, _)| kind == Kind::Letters) {
                    out.push(connector);
                    write(&mut out, next);
                    numbered(&mut out, &mut runs);
                } else {
                    write(&mut out, next);
                }
                if joins(runs.peek()) {
                    out.push(connector);
                }
            }
        }
    }
    out
}

/// Wraps lines at spaces to at most `width` bytes; longer words are cut only if `cuts` is set.
fn wrap(args: &Args<'_>, between: &str, text: &str, cuts: bool) -> CallResult {
    let width = usize::try_from(args.int(0)?.max(1)).unwrap_or(usize::MAX);
    // In the worst case every byte gets its own line.
    let breaks = text.len() / width + text.matches(' ').count();
    args.meter().spend(
        text.len()
            .saturating_add(breaks.saturating_mul(between.len())),
    )?;
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut start = 0;
    while bytes.len() - start > width {
        if bytes.get(start) == Some(&b' ') {
            start += 1;
            continue;
        }
        let window = bytes.get(start..=start + width).unwrap_or_default();
        let long_word_end = || {
            let rest = bytes.get(start + width..).unwrap_or_default();
            rest.iter()
                .position(|byte| *byte == b' ')
                .map(|at| start + width + at)
        };
        let (end, next) = match window.iter().rposition(|byte| *byte == b' ') {
            Some(at) => (start + at, start + at + 1),
            None if cuts => (start + width, start + width),
            None => match long_word_end() {
                Some(end) => (end, end + 1),
                None => break,
            },
        };
        out.push_str(&cut(text, start, end));
        out.push_str(between);
        start = next;
    }
    out.push_str(&cut(text, start, bytes.len()));
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_by_case_and_digits() {
        let cases = [
            ("FirstName", "first_name"),
            ("HTTPServer", "http_server"),
            ("http2xx", "http_2xx"),
            ("HTTP20xOK", "http_20x_ok"),
            ("some words-and_more", "some_words_and_more"),
            ("Duration2m3s", "duration_2m3s"),
            ("No.12 Bus", "no.12_bus"),
        ];
        for (text, expected) in cases {
            assert_eq!(joined_words(text, '_'), expected, "{text}");
        }
    }

    #[test]
    fn camel_case_drops_connectors_between_words() {
        assert_eq!(camel_case("http_server"), "HttpServer");
        assert_eq!(camel_case("_no-HTTPS"), "_NoHttps");
        assert_eq!(camel_case("no_"), "No_");
    }
}
