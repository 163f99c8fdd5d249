//! Response body: decompresses, counts, hashes and writes it, up to a size limit.

use std::io::{self, Write};

use flate2::write::MultiGzDecoder;
use reqwest::header::{CONTENT_ENCODING, HeaderMap};

use super::super::{Digest, Digester};

/// Returns the error text for a body that is too long.
pub(super) fn too_large(limit: u64) -> String {
    format!("larger than {limit} bytes")
}

/// Whether the body has content encoding gzip.
pub(super) fn is_gzip(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_ENCODING)
        .is_some_and(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"gzip"))
}

/// A writer for the bytes of a response body.
pub(super) enum Body<'a> {
    Plain(Counted<'a>),
    Gzip(Box<MultiGzDecoder<Counted<'a>>>),
}

impl<'a> Body<'a> {
    pub(super) fn new(into: &'a mut dyn Write, limit: u64, is_encoded: bool) -> Self {
        let counted = Counted {
            into,
            limit,
            size: 0,
            digester: Digester::default(),
        };
        if is_encoded {
            Self::Gzip(Box::new(MultiGzDecoder::new(counted)))
        } else {
            Self::Plain(counted)
        }
    }

    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(counted) => counted.write_all(bytes),
            Self::Gzip(decoder) => decoder.write_all(bytes),
        }
    }

    /// Returns size and digest of the decoded body.
    pub(super) fn finish(self) -> io::Result<(u64, Digest)> {
        let counted = match self {
            Self::Plain(counted) => counted,
            Self::Gzip(decoder) => decoder.finish()?,
        };
        counted.into.flush()?;
        Ok((counted.size, counted.digester.finish()))
    }
}

/// A writer that counts and hashes, with a size limit.
pub(super) struct Counted<'a> {
    into: &'a mut dyn Write,
    limit: u64,
    size: u64,
    digester: Digester,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let added = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let size = self.size.saturating_add(added);
        if size > self.limit {
            return Err(io::Error::other(too_large(self.limit)));
        }
        self.into.write_all(bytes)?;
        self.digester.update(bytes);
        self.size = size;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(body: &[u8], limit: u64, is_encoded: bool) -> Result<(Vec<u8>, Digest), String> {
        let mut out = Vec::new();
        let mut writer = Body::new(&mut out, limit, is_encoded);
        let result = writer.write_all(body).and_then(|()| writer.finish());
        let (size, digest) = result.map_err(|err| err.to_string())?;
        assert_eq!(size, out.len() as u64);
        Ok((out, digest))
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_body_up_to_the_limit_is_accepted() {
        assert_eq!(
            pass(b"abc", 3, false),
            Ok((b"abc".to_vec(), Digest::of(b"abc")))
        );
        assert_eq!(pass(b"abcd", 3, false), Err("larger than 3 bytes".into()));
    }

    #[test]
    fn a_compressed_body_is_counted_and_hashed_decoded() {
        let text = vec![b'a'; 100_000];
        let body = gzip(&text);
        assert_eq!(
            pass(&body, 100_000, true),
            Ok((text.clone(), Digest::of(&text)))
        );
        let limit = u64::try_from(body.len()).unwrap();
        assert_eq!(pass(&body, limit, true), Err(too_large(limit)));
    }

    #[test]
    fn a_truncated_or_invalid_gzip_body_is_an_error() {
        let body = gzip(b"some text");
        for cut in [1, 9, body.len() - 9, body.len() - 1] {
            assert!(pass(&body[..cut], 100, true).is_err(), "{cut}");
        }
        assert!(pass(b"plain text, no gzip", 100, true).is_err());
    }
}
