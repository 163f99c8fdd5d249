//! Edits of a file's lines. Pure: bytes in, bytes out.
//!
//! Lines are compared without their ends, and every byte that is not part of the edit is kept: other
//! encodings, CRLF, a byte order mark and a missing final newline survive. A line that is added gets
//! the line end of the file's first line.

use regex::bytes::Regex;

use crate::model::resource::Line;

/// UTF-8 byte order mark, which is not part of the first line.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What an edit does, for the message of a noop run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditKind {
    AddLine,
    ReplaceLine,
    RemoveLine,
    AddBlock,
    UpdateBlock,
    RemoveBlock,
}

/// An edit that can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("lines {0} match; only one may be replaced: make 'match' more specific")]
    SeveralMatches(Numbers),
    #[error("no line matches '{0}'; the place for the new line is not known")]
    NoPlace(&'static str),
    #[error("line must not contain line breaks; use block for several lines")]
    LineBreak,
    #[error("block contains one of its own markers")]
    MarkerInBlock,
    #[error(
        "the markers of the block are damaged: begin in lines {begin}, end in lines {end}; repair or remove them"
    )]
    Markers { begin: Numbers, end: Numbers },
    #[error("the file is UTF-16 text, which is not supported")]
    Utf16,
    #[error("the result would change again in the next run")]
    NotIdempotent,
    #[error("{0}")]
    Expression(String),
}

/// Line numbers for people, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(Vec<usize>);

impl std::fmt::Display for Numbers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return out.write_str("none");
        }
        let numbers: Vec<String> = self.0.iter().map(|index| (index + 1).to_string()).collect();
        out.write_str(&numbers.join(", "))
    }
}

/// Returns the new content of a file and what the edit does; `None` if the file is as wanted. An edit
/// whose result would be edited again is an error.
pub(super) fn edit(
    content: &[u8],
    name: &str,
    line: &Line,
    is_present: bool,
) -> Result<Option<(Vec<u8>, EditKind)>, EditError> {
    let Some((edited, kind)) = edit_once(content, name, line, is_present)? else {
        return Ok(None);
    };
    match edit_once(&edited, name, line, is_present) {
        Ok(None) => Ok(Some((edited, kind))),
        _ => Err(EditError::NotIdempotent),
    }
}

fn edit_once(
    content: &[u8],
    name: &str,
    line: &Line,
    is_present: bool,
) -> Result<Option<(Vec<u8>, EditKind)>, EditError> {
    let mut text = Text::split(content)?;
    let kind = match (&line.block, is_present) {
        (Some(block), true) => text.add_block(block, name, line)?,
        (Some(_), false) => text.remove_block(name, line)?,
        (None, true) => text.add_line(line)?,
        (None, false) => text.remove_lines(line)?,
    };
    Ok(kind.map(|kind| (text.join(), kind)))
}

/// A file as lines with their ends.
struct Text {
    has_mark: bool,
    lines: Vec<Vec<u8>>,
    end: &'static [u8],
}

impl Text {
    fn split(content: &[u8]) -> Result<Self, EditError> {
        if content.starts_with(b"\xff\xfe") || content.starts_with(b"\xfe\xff") {
            return Err(EditError::Utf16);
        }
        let (has_mark, content) = match content.strip_prefix(BYTE_ORDER_MARK) {
            Some(rest) => (true, rest),
            None => (false, content),
        };
        let lines: Vec<Vec<u8>> = content
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        let is_crlf = lines.first().is_some_and(|line| line.ends_with(b"\r\n"));
        let end: &'static [u8] = if is_crlf { b"\r\n" } else { b"\n" };
        Ok(Self {
            has_mark,
            lines,
            end,
        })
    }

    fn join(self) -> Vec<u8> {
        let mut content = match self.has_mark {
            true => BYTE_ORDER_MARK.to_vec(),
            false => Vec::new(),
        };
        content.extend(self.lines.into_iter().flatten());
        content
    }

    /// Returns the numbers of the lines that satisfy a condition.
    fn find(&self, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<usize> {
        let lines = self.lines.iter().enumerate();
        let found = lines.filter(|(_, line)| is_wanted(body(line)));
        found.map(|(index, _)| index).collect()
    }

    /// Adds lines at the place that the properties name.
    fn insert(&mut self, new: &[&[u8]], line: &Line) -> Result<(), EditError> {
        let place = if let Some(after) = expression(&line.after)? {
            let found = self.find(|text| after.is_match(text));
            found.last().ok_or(EditError::NoPlace("after"))? + 1
        } else if let Some(before) = expression(&line.before)? {
            let found = self.find(|text| before.is_match(text));
            *found.first().ok_or(EditError::NoPlace("before"))?
        } else {
            self.lines.len()
        };
        let end = self.end;
        if place == self.lines.len()
            && let Some(last) = self.lines.last_mut()
            && !last.ends_with(b"\n")
        {
            last.extend_from_slice(end);
        }
        let new = new.iter().map(|text| [text, end].concat());
        self.lines.splice(place..place, new);
        Ok(())
    }

    fn add_line(&mut self, line: &Line) -> Result<Option<EditKind>, EditError> {
        let wanted = line.line.as_deref().unwrap_or_default();
        if wanted.contains(['\n', '\r']) {
            return Err(EditError::LineBreak);
        }
        let wanted = wanted.as_bytes();
        let exists = !self.find(|text| text == wanted).is_empty();
        let matches = match expression(&line.pattern)? {
            Some(pattern) => self.find(|text| pattern.is_match(text)),
            None => Vec::new(),
        };
        let is_other =
            |index: &&usize| self.lines.get(**index).is_some_and(|it| body(it) != wanted);
        match (matches.iter().find(is_other), matches.len()) {
            (None, _) if exists => Ok(None),
            (None, _) => {
                self.insert(&[wanted], line)?;
                Ok(Some(EditKind::AddLine))
            }
            (Some(_), 2..) => Err(EditError::SeveralMatches(Numbers(matches))),
            // The file has the line already: one is enough.
            (Some(&index), _) if exists => {
                self.lines.remove(index);
                Ok(Some(EditKind::ReplaceLine))
            }
            (Some(&index), _) => {
                if let Some(old) = self.lines.get_mut(index) {
                    let end = old.split_off(body(old).len());
                    *old = [wanted, &end].concat();
                }
                Ok(Some(EditKind::ReplaceLine))
            }
        }
    }

    fn remove_lines(&mut self, line: &Line) -> Result<Option<EditKind>, EditError> {
        let pattern = expression(&line.pattern)?;
        let wanted = line.line.as_deref().map(str::as_bytes);
        let before = self.lines.len();
        self.lines.retain(|text| {
            let text = body(text);
            let is_match = pattern.as_ref().is_some_and(|it| it.is_match(text));
            !is_match && wanted != Some(text)
        });
        Ok((self.lines.len() < before).then_some(EditKind::RemoveLine))
    }

    /// Returns the numbers of the lines with the markers, if the file has them.
    fn markers(&self, begin: &str, end: &str) -> Result<Option<(usize, usize)>, EditError> {
        let find = |marker: &str| {
            self.find(|text| text.trim_ascii_end() == marker.as_bytes().trim_ascii_end())
        };
        match (find(begin).as_slice(), find(end).as_slice()) {
            ([], []) => Ok(None),
            (&[first], &[last]) if first < last => Ok(Some((first, last))),
            (begin, end) => Err(EditError::Markers {
                begin: Numbers(begin.to_vec()),
                end: Numbers(end.to_vec()),
            }),
        }
    }

    fn add_block(
        &mut self,
        block: &str,
        name: &str,
        line: &Line,
    ) -> Result<Option<EditKind>, EditError> {
        let (begin, end) = line.markers(name);
        let wanted: Vec<&[u8]> = block.lines().map(str::as_bytes).collect();
        let is_marker = |text: &&[u8]| {
            let text = text.trim_ascii_end();
            [&begin, &end]
                .iter()
                .any(|it| it.as_bytes().trim_ascii_end() == text)
        };
        if wanted.iter().any(is_marker) {
            return Err(EditError::MarkerInBlock);
        }
        let Some((first, last)) = self.markers(&begin, &end)? else {
            let mut new = vec![begin.as_bytes()];
            new.extend(wanted);
            new.push(end.as_bytes());
            self.insert(&new, line)?;
            return Ok(Some(EditKind::AddBlock));
        };
        let inside = self.lines.get(first + 1..last).unwrap_or_default();
        if inside
            .iter()
            .map(|text| body(text))
            .eq(wanted.iter().copied())
        {
            return Ok(None);
        }
        let end = self.end;
        let new = wanted.iter().map(|text| [*text, end].concat());
        self.lines.splice(first + 1..last, new);
        Ok(Some(EditKind::UpdateBlock))
    }

    fn remove_block(&mut self, name: &str, line: &Line) -> Result<Option<EditKind>, EditError> {
        let (begin, end) = line.markers(name);
        let Some((first, last)) = self.markers(&begin, &end)? else {
            return Ok(None);
        };
        self.lines.drain(first..=last);
        Ok(Some(EditKind::RemoveBlock))
    }
}

/// Returns a line without its end.
fn body(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Returns the compiled expression; nothing for an empty text.
fn expression(text: &str) -> Result<Option<Regex>, EditError> {
    if text.is_empty() {
        return Ok(None);
    }
    let compiled = Regex::new(text).map_err(|err| EditError::Expression(err.to_string()))?;
    Ok(Some(compiled))
}
