//! What a process says: the beginning of it kept, and its lines passed on as they come.
//!
//! Both are bounded, whatever the process writes. Knows bytes, not pipes.

/// The longest line that is passed on whole.
pub(super) const LONGEST_LINE: usize = 64 * 1024;

/// The beginning of a stream.
pub(super) struct Capture {
    bytes: Vec<u8>,
    limit: usize,
    truncated: bool,
}

impl Capture {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
            truncated: false,
        }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        let room = self.limit.saturating_sub(self.bytes.len());
        self.truncated |= chunk.len() > room;
        self.bytes.extend(chunk.iter().take(room));
    }

    /// Returns what was kept, and whether there was more.
    pub(super) fn finish(self) -> (Vec<u8>, bool) {
        (self.bytes, self.truncated)
    }
}

/// A stream cut into lines, each told once.
pub(super) struct Lines<'a> {
    tell: Option<&'a dyn Fn(&str)>,
    line: Capture,
}

impl<'a> Lines<'a> {
    pub(super) fn new(tell: Option<&'a dyn Fn(&str)>) -> Self {
        Self {
            tell,
            line: Capture::new(LONGEST_LINE),
        }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        if self.tell.is_none() {
            return;
        }
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) => {
                    self.line.push(end);
                    self.tell_line();
                }
                None => self.line.push(piece),
            }
        }
    }

    /// Tells the last line, if it has no end of its own.
    pub(super) fn finish(&mut self) {
        if !self.line.bytes.is_empty() {
            self.tell_line();
        }
    }

    fn tell_line(&mut self) {
        let bytes = self.line.bytes.as_slice();
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let mut text = String::from_utf8_lossy(bytes);
        if self.line.truncated {
            text.to_mut()
                .push_str(&format!(" [line cut after {LONGEST_LINE} bytes]"));
        }
        if let Some(tell) = self.tell {
            tell(&text);
        }
        self.line.bytes.clear();
        self.line.truncated = false;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn lines_of(chunks: &[&[u8]]) -> Vec<String> {
        let told = RefCell::new(Vec::new());
        let tell = |line: &str| told.borrow_mut().push(line.to_owned());
        let mut lines = Lines::new(Some(&tell));
        for chunk in chunks {
            lines.push(chunk);
        }
        lines.finish();
        told.into_inner()
    }

    #[test]
    fn a_capture_keeps_the_beginning_and_says_that_there_was_more() {
        let mut capture = Capture::new(4);
        capture.push(b"abc");
        capture.push(b"def");
        assert_eq!(capture.finish(), (b"abcd".to_vec(), true));
    }

    #[test]
    fn a_capture_that_is_exactly_full_is_whole() {
        let mut capture = Capture::new(3);
        capture.push(b"abc");
        assert_eq!(capture.finish(), (b"abc".to_vec(), false));
    }

    #[test]
    fn lines_are_joined_across_chunks_and_blank_ones_are_told() {
        assert_eq!(
            lines_of(&[b"a", b"b\n\nc\r\n", b"last"]),
            ["ab", "", "c", "last"]
        );
    }

    #[test]
    fn a_final_newline_makes_no_extra_line() {
        assert_eq!(lines_of(&[b"a\n"]), ["a"]);
    }

    #[test]
    fn a_long_line_is_cut_with_a_notice_and_the_next_one_is_whole() {
        let long = [b'x'; LONGEST_LINE];
        let told = lines_of(&[&long, b"y\nz\n"]);
        let kept = told[0].strip_suffix(" [line cut after 65536 bytes]");
        assert_eq!(kept.map(str::len), Some(LONGEST_LINE));
        assert_eq!(told[1], "z");
    }

    #[test]
    fn what_is_not_text_is_marked() {
        assert_eq!(lines_of(&[b"a\xff\n"]), ["a\u{fffd}"]);
    }
}
