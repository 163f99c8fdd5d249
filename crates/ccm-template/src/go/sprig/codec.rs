//! Sprig functions for checksums and encodings.

use data_encoding::{BASE32, BASE64, Encoding, HEXLOWER};
use sha1::Digest;

use crate::base64;
use crate::go::call::{Args, CallResult, Native, takes};

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "sha1sum" => takes(1, |args| {
            Ok(HEXLOWER.encode(&sha1::Sha1::digest(args.str(0)?)).into())
        }),
        "sha256sum" => takes(1, |args| {
            Ok(HEXLOWER.encode(&sha2::Sha256::digest(args.str(0)?)).into())
        }),
        "sha512sum" => takes(1, |args| {
            Ok(HEXLOWER.encode(&sha2::Sha512::digest(args.str(0)?)).into())
        }),
        "adler32sum" => takes(1, |args| Ok(adler32(args.str(0)?).to_string().into())),
        "b64enc" => takes(1, |args| encode(args, &BASE64)),
        "b64dec" => takes(1, |args| decoded("base64", base64::decode(args.str(0)?))),
        "b32enc" => takes(1, |args| encode(args, &BASE32)),
        "b32dec" => takes(1, |args| decoded("base32", base32(args.str(0)?))),
        _ => return None,
    })
}

fn encode(args: &Args<'_>, encoding: &Encoding) -> CallResult {
    let text = args.str(0)?;
    args.meter().spend(text.len().saturating_mul(2))?;
    Ok(encoding.encode(text.as_bytes()).into())
}

/// Returns the decoded text, or the error message as text, as sprig does.
fn decoded<E: std::fmt::Display>(name: &str, bytes: Result<Vec<u8>, E>) -> CallResult {
    match bytes {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Into::into)
            .map_err(|_| format!("the decoded {name} data is not text").into()),
        Err(reason) => Ok(reason.to_string().into()),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("illegal base32 data at input byte {0}")]
struct Base32Error(usize);

fn base32(text: &str) -> Result<Vec<u8>, Base32Error> {
    // Go ignores line breaks.
    let text = text.replace(['\r', '\n'], "");
    BASE32
        .decode(text.as_bytes())
        .map_err(|err| Base32Error(err.position))
}

fn adler32(text: &str) -> u32 {
    const MODULUS: u32 = 65_521;
    let (a, b) = text.bytes().fold((1, 0), |(a, b), byte| {
        let a = (a + u32::from(byte)) % MODULUS;
        (a, (b + a) % MODULUS)
    });
    b << 16 | a
}
