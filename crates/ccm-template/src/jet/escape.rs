//! Writers: the commands that end a pipeline and write their argument, escaped or raw.

use crate::text;

/// A command that writes its argument directly to the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    Html,
    Js,
    Raw,
}

impl Writer {
    /// Escapes bytes; invalid UTF-8 is kept.
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
