//! Sprig functions for semantic versions.

use std::rc::Rc;

use crate::go::call::{Native, takes};
use crate::go::datum::Datum;
use crate::go::version::{Version, satisfies};

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "semver" => takes(1, |args| {
            Ok(Version::parse(args.str(0)?).map(|version| Datum::Version(Rc::new(version)))?)
        }),
        "semverCompare" => takes(2, |args| {
            let version = Version::parse(args.str(1)?);
            Ok(satisfies(args.str(0)?, &version?)?.into())
        }),
        _ => return None,
    })
}
