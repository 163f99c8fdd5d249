//! A command line cut into words, as a POSIX shell quotes them.
//!
//! Quotes and backslashes only: no variables, globs, braces, comments or operators, so nothing
//! in a word can start anything. Crates for this know comments and one error for everything;
//! authors rely on `#` being plain text and on being told which quote is open.

use std::iter::Peekable;
use std::str::Chars;

/// What was still open when the command line ended. The texts are those upstream shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    #[error("Unterminated single-quoted string")]
    SingleQuote,
    #[error("Unterminated double-quoted string")]
    DoubleQuote,
    #[error("Unterminated backslash-escape")]
    Escape,
}

/// Returns the words of a command line: none for a blank one.
pub fn split(line: &str) -> Result<Vec<String>, WordsError> {
    let mut words = Vec::new();
    // `Some("")` is a word that has begun, as after `''`.
    let mut word: Option<String> = None;
    let mut chars = line.chars().peekable();
    while let Some(next) = chars.next() {
        match next {
            ' ' | '\t' | '\n' => words.extend(word.take()),
            '\'' => single_quoted(&mut chars, word.get_or_insert_default())?,
            '"' => double_quoted(&mut chars, word.get_or_insert_default())?,
            '\\' => match chars.next().ok_or(WordsError::Escape)? {
                // A line that goes on: neither a word nor the end of one.
                '\n' => {}
                escaped => word.get_or_insert_default().push(escaped),
            },
            plain => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    Ok(words)
}

fn single_quoted(chars: &mut Peekable<Chars<'_>>, word: &mut String) -> Result<(), WordsError> {
    for next in chars {
        if next == '\'' {
            return Ok(());
        }
        word.push(next);
    }
    Err(WordsError::SingleQuote)
}

fn double_quoted(chars: &mut Peekable<Chars<'_>>, word: &mut String) -> Result<(), WordsError> {
    while let Some(next) = chars.next() {
        match next {
            '"' => return Ok(()),
            '\\' => match chars.next_if(|escaped| "$`\"\\\n".contains(*escaped)) {
                Some('\n') => {}
                Some(escaped) => word.push(escaped),
                None => word.push('\\'),
            },
            plain => word.push(plain),
        }
    }
    Err(WordsError::DoubleQuote)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        split(line).unwrap()
    }

    #[test]
    fn words_end_at_spaces_tabs_and_newlines() {
        assert_eq!(words(" a  b\tc\nd "), ["a", "b", "c", "d"]);
        assert_eq!(words("a\u{a0}b\rc"), ["a\u{a0}b\rc"]);
    }

    #[test]
    fn a_blank_line_has_no_words() {
        assert!(words("").is_empty());
        assert!(words(" \t\n \\\n").is_empty());
    }

    #[test]
    fn single_quotes_keep_everything() {
        assert_eq!(words(r#"'a \ "b" $c'"#), [r#"a \ "b" $c"#]);
    }

    #[test]
    fn double_quotes_escape_five_characters_only() {
        assert_eq!(words(r#""\$ \` \" \\ \n \a""#), [r#"$ ` " \ \n \a"#]);
        assert_eq!(words("\"a\\\nb\""), ["ab"]);
    }

    #[test]
    fn a_backslash_outside_quotes_escapes_any_character() {
        assert_eq!(words(r"a\ b \n \é \'"), ["a b", "n", "é", "'"]);
        assert_eq!(words("a\\\nb \\\n c"), ["ab", "c"]);
    }

    #[test]
    fn quoted_parts_join_to_one_word_and_empty_quotes_are_a_word() {
        assert_eq!(words(r#"a'b'"c"d '' """#), ["abcd", "", ""]);
    }

    #[test]
    fn nothing_else_is_special() {
        assert_eq!(
            words("# a;b | $HOME `id` *.c {a,b} ~ $'x'"),
            ["#", "a;b", "|", "$HOME", "`id`", "*.c", "{a,b}", "~", "$x"]
        );
    }

    #[test]
    fn an_open_quote_or_escape_is_named() {
        assert_eq!(split("a 'b"), Err(WordsError::SingleQuote));
        assert_eq!(split("a \"b"), Err(WordsError::DoubleQuote));
        assert_eq!(split("a \"b\\"), Err(WordsError::DoubleQuote));
        assert_eq!(split("a \\"), Err(WordsError::Escape));
        assert_eq!(
            WordsError::SingleQuote.to_string(),
            "Unterminated single-quoted string"
        );
    }
}
