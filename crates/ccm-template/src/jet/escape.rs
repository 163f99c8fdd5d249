//! The commands that end a pipeline: they write their argument, made safe or as it is.

use crate::text;

/// What writes its argument straight to the output, and so ends a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    Html,
    Js,
    Raw,
}

impl Writer {
    /// Returns the bytes to write for some bytes; those that are not UTF-8 stay as they are.
    pub(super) fn escape(self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            let escaped = match self {
                Self::Html => text::html(chunk.valid(), "\u{fffd}"),
                Self::Js => text::js(chunk.valid()),
                Self::Raw => chunk.valid().into(),
            };
            out.extend_from_slice(escaped.as_bytes());
            out.extend_from_slice(chunk.invalid());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_escape_around_bytes_that_are_not_utf8() {
        assert_eq!(Writer::Html.escape(b"<\xff>"), b"&lt;\xff&gt;");
    }
}
