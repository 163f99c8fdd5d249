//! Functions of sprig 3.3, by group.
//!
//! Argument orders are sprig's: the subject comes last, so that it can be piped. The `must`
//! variants are aliases, because all functions here report errors where sprig's plain ones panic;
//! the two differ only where sprig ignores an error.
//!
//! Each group's table is a `match` in its `find`.

mod codec;
mod date;
mod defaults;
mod dicts;
mod json;
mod lists;
mod numbers;
mod path;
mod random;
mod regex;
mod text;
mod types;
mod url;
mod version;
mod words;

use super::call::{Native, takes, takes_from};

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    text::find(name)
        .or_else(|| words::find(name))
        .or_else(|| numbers::find(name))
        .or_else(|| defaults::find(name))
        .or_else(|| json::find(name))
        .or_else(|| lists::find(name))
        .or_else(|| dicts::find(name))
        .or_else(|| date::find(name))
        .or_else(|| types::find(name))
        .or_else(|| path::find(name))
        .or_else(|| url::find(name))
        .or_else(|| codec::find(name))
        .or_else(|| random::find(name))
        .or_else(|| version::find(name))
        .or_else(|| regex::find(name))
        .or_else(|| other(name))
}

fn other(name: &str) -> Option<Native> {
    Some(match name {
        "hello" => takes(0, |_| Ok("Hello!".into())),
        "fail" => takes(1, |args| Err(args.str(0)?.to_owned().into())),
        // Keys and certificates generated while rendering differ on every run, so a resource that
        // contains one would never be stable.
        "bcrypt"
        | "htpasswd"
        | "genPrivateKey"
        | "derivePassword"
        | "buildCustomCert"
        | "genCA"
        | "genCAWithKey"
        | "genSelfSignedCert"
        | "genSelfSignedCertWithKey"
        | "genSignedCert"
        | "genSignedCertWithKey"
        | "encryptAES"
        | "decryptAES" => {
            takes_from(0, |_| {
                Err("not supported: templates cannot generate keys and certificates or encrypt text".into())
            })
        }
        _ => return None,
    })
}
