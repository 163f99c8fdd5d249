//! Recursion depth of the Jinja compiler, estimated before compiling.
//!
//! minijinja limits nesting, but not chains: every link of `a.b.c`, `a|b|c`, `a + b + c`, `not not
//! a`, and every `{% elif %}` of an `{% if %}`, is compiled inside the previous one by recursion,
//! so a chain of a few thousand links overflows the stack. This module measures chains first. It
//! knows just enough syntax to find tags, texts and brackets; other syntax errors are left to the
//! compiler.

/// Maximum number of links in a chain, including those of enclosing brackets.
pub(super) const MAX_LINKS: usize = 200;

/// Keywords that add a link to a chain.
const LINKS: [&str; 7] = ["and", "else", "if", "in", "is", "not", "or"];

/// Returns the offset where a template exceeds the limit, if any. `left` and `right` are the
/// delimiters of values.
pub(super) fn too_deep(template: &str, left: &str, right: &str) -> Option<usize> {
    let mut at = 0;
    // The number of links of each open `if`, and their sum.
    let (mut open_ifs, mut elifs) = (Vec::new(), 0);
    while let Some(rest) = template.get(at..).filter(|rest| !rest.is_empty()) {
        let marks = [("{#", "#}"), ("{%", "%}"), (left, right)];
        let opened = marks.into_iter().find(|(open, _)| rest.starts_with(open));
        let Some((open, close)) = opened else {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        let begin = at + open.len();
        let inside = template.get(begin..).unwrap_or_default();
        if open == "{#" {
            at = begin + after(inside, close);
            continue;
        }
        let tag = match read_tag(inside, close) {
            Ok(length) => inside.get(..length).unwrap_or(inside),
            Err(offset) => return Some(begin + offset),
        };
        at = begin + tag.len();
        let word = tag.trim_start_matches(['-', '+']).trim_start();
        match (open, word.split(|c: char| !is_word_char(c)).next()) {
            ("{%", Some("raw")) => at += after(template.get(at..).unwrap_or_default(), "endraw"),
            ("{%", Some("if")) => open_ifs.push(0),
            ("{%", Some("elif")) => {
                elifs += 1;
                if let Some(links) = open_ifs.last_mut() {
                    *links += 1;
                }
            }
            ("{%", Some("endif")) => elifs -= open_ifs.pop().unwrap_or(0),
            _ => {}
        }
        if elifs > MAX_LINKS {
            return Some(begin);
        }
    }
    None
}

/// Returns the offset after the next `mark`, or the length of the text if there is none.
fn after(text: &str, mark: &str) -> usize {
    text.find(mark).map_or(text.len(), |at| at + mark.len())
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the length of a tag including its closing delimiter, or the offset where it exceeds the
/// limit.
fn read_tag(text: &str, close: &str) -> Result<usize, usize> {
    // The number of links so far, for each open bracket.
    let mut levels = vec![0_usize];
    let mut depth = 0;
    let mut at = 0;
    while let Some((rest, c)) = text
        .get(at..)
        .and_then(|rest| Some((rest, rest.chars().next()?)))
    {
        if levels.len() == 1 && rest.starts_with(close) {
            return Ok(at + close.len());
        }
        let word: &str = match rest.find(|c| !is_word_char(c)) {
            Some(end) => rest.get(..end).unwrap_or_default(),
            None => rest,
        };
        let is_link = match c {
            '(' | '[' | '{' => true,
            _ if word.is_empty() => ".|+-*/%~=<>!".contains(c),
            _ => LINKS.contains(&word),
        };
        if is_link {
            depth += 1;
            if let Some(links) = levels.last_mut() {
                *links += 1;
            }
        }
        match c {
            '(' | '[' | '{' => levels.push(0),
            ')' | ']' | '}' if levels.len() > 1 => depth -= levels.pop().unwrap_or(0),
            // Items of a list are siblings, so the chain starts again.
            ',' => depth -= levels.last_mut().map_or(0, std::mem::take),
            _ => {}
        }
        if depth > MAX_LINKS {
            return Err(at);
        }
        at += match c {
            '"' | '\'' => quoted(rest, c),
            _ => word.len().max(c.len_utf8()),
        };
    }
    Ok(text.len())
}

/// Returns the length of a quoted text including its quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_fine(template: &str) -> bool {
        too_deep(template, "{{", "}}").is_none()
    }

    #[test]
    fn every_kind_of_chain_is_measured() {
        for link in [
            ".b",
            "|f",
            " + b",
            " ~ b",
            "[0]",
            "()",
            " and b",
            " is x",
            " if b else c",
            " == b",
            "(1, 2)",
        ] {
            let chain = |count| format!("{{{{ a{} }}}}", link.repeat(count));
            assert!(is_fine(&chain(20)), "{link}");
            assert!(!is_fine(&chain(1000)), "{link}");
        }
        for before in ["not ", "-", "("] {
            assert!(
                !is_fine(&format!("{{{{ {}a }}}}", before.repeat(1000))),
                "{before}"
            );
        }
        let elifs = |count| format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(count));
        assert!(is_fine(&elifs(100)) && !is_fine(&elifs(1000)));
        assert!(is_fine(&elifs(100).repeat(10)));
    }

    #[test]
    fn siblings_are_not_deep() {
        let list = "a.b|f(1, 'x.y.z'), ".repeat(1000);
        assert!(is_fine(&format!("{{{{ [{list}] }}}}")));
        assert!(is_fine(&"{{ a.b.c|d }}".repeat(1000)));
        assert!(is_fine(&format!("{{{{ '{}' }}}}", "a.\\'".repeat(1000))));
        assert!(is_fine(&"a.b|c = ".repeat(1000)));
    }

    #[test]
    fn text_that_is_not_compiled_is_not_measured() {
        let dots = ".".repeat(1000);
        assert!(is_fine(&format!("{{# {{{{ {dots} #}} x")));
        assert!(is_fine(&format!(
            "{{% raw %}} {{{{ {dots} }}}} {{%- endraw %}} {{{{ a }}}}"
        )));
        assert!(too_deep(&format!("<{dots}>"), "<", ">").is_some());
    }
}
