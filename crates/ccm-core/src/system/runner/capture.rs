//! Bounded capture of output, and its split into lines.
//!
//! Works on bytes, not on pipes.

/// The longest line that is passed on untruncated, in bytes.
pub(super) const MAX_LINE: usize = 64 * 1024;

/// The beginning or the end of a stream.
pub(super) struct Capture {
    bytes: Vec<u8>,
    limit: usize,
    keeps_end: bool,
    truncated: bool,
}

impl Capture {
    /// Returns an empty capture of a stream's beginning.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
            keeps_end: false,
            truncated: false,
        }
    }

    /// Returns an empty capture of a stream's end.
    pub(super) fn of_end(limit: usize) -> Self {
        Self {
            keeps_end: true,
            ..Self::new(limit)
        }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        if self.keeps_end {
            self.bytes.extend(chunk);
            // Twice the limit, so that bytes are rarely moved.
            if self.bytes.len() > self.limit.saturating_mul(2) {
                self.drop_beginning();
            }
            return;
        }
        let free = self.limit.saturating_sub(self.bytes.len());
        self.truncated |= chunk.len() > free;
        self.bytes.extend(chunk.iter().take(free));
    }

    /// Returns the captured bytes and whether there were more.
    pub(super) fn finish(mut self) -> (Vec<u8>, bool) {
        if self.keeps_end {
            self.drop_beginning();
        }
        (self.bytes, self.truncated)
    }

    fn drop_beginning(&mut self) {
        let excess = self.bytes.len().saturating_sub(self.limit);
        self.truncated |= excess > 0;
        self.bytes.drain(..excess);
    }
}

/// A stream split into lines, each passed to a callback.
pub(super) struct Lines<'a> {
    on_line: Option<&'a dyn Fn(&str)>,
    line: Capture,
}

impl<'a> Lines<'a> {
    pub(super) fn new(on_line: Option<&'a dyn Fn(&str)>) -> Self {
        Self {
            on_line,
            line: Capture::new(MAX_LINE),
        }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        if self.on_line.is_none() {
            return;
        }
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) => {
                    self.line.push(end);
                    self.emit_line();
                }
                None => self.line.push(piece),
            }
        }
    }

    /// Passes on the last line if it does not end with a newline.
    pub(super) fn finish(&mut self) {
        if !self.line.bytes.is_empty() {
            self.emit_line();
        }
    }

    fn emit_line(&mut self) {
        let bytes = self.line.bytes.as_slice();
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let mut text = String::from_utf8_lossy(bytes);
        if self.line.truncated {
            text.to_mut()
                .push_str(&format!(" [line cut after {MAX_LINE} bytes]"));
        }
        if let Some(on_line) = self.on_line {
            on_line(&text);
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
        let all = RefCell::new(Vec::new());
        let on_line = |line: &str| all.borrow_mut().push(line.to_owned());
        let mut lines = Lines::new(Some(&on_line));
        for chunk in chunks {
            lines.push(chunk);
        }
        lines.finish();
        all.into_inner()
    }

    #[test]
    fn a_capture_keeps_the_beginning_and_reports_truncation() {
        let mut capture = Capture::new(4);
        capture.push(b"abc");
        capture.push(b"def");
        assert_eq!(capture.finish(), (b"abcd".to_vec(), true));
    }

    #[test]
    fn a_capture_of_the_end_keeps_the_last_bytes() {
        let mut capture = Capture::of_end(4);
        for chunk in [&b"abc"[..], b"def", b"ghijkl", b"m"] {
            capture.push(chunk);
        }
        assert_eq!(capture.finish(), (b"jklm".to_vec(), true));
        let mut capture = Capture::of_end(4);
        capture.push(b"abcd");
        assert_eq!(capture.finish(), (b"abcd".to_vec(), false));
    }

    #[test]
    fn a_capture_at_its_limit_is_not_truncated() {
        let mut capture = Capture::new(3);
        capture.push(b"abc");
        assert_eq!(capture.finish(), (b"abc".to_vec(), false));
    }

    #[test]
    fn lines_are_joined_across_chunks_and_blank_ones_are_passed_on() {
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
    fn a_long_line_is_truncated_with_a_notice() {
        let long = [b'x'; MAX_LINE];
        let lines = lines_of(&[&long, b"y\nz\n"]);
        let kept = lines[0].strip_suffix(" [line cut after 65536 bytes]");
        assert_eq!(kept.map(str::len), Some(MAX_LINE));
        assert_eq!(lines[1], "z");
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(lines_of(&[b"a\xff\n"]), ["a\u{fffd}"]);
    }
}
