//! Sprig functions for Go type names.

use crate::go::call::{Native, takes};

/// Returns the function with this name.
pub(super) fn find(name: &str) -> Option<Native> {
    Some(match name {
        "typeOf" => takes(1, |args| Ok(args.any(0).type_name().into())),
        "typeIs" => takes(2, |args| {
            Ok((args.any(1).type_name() == args.str(0)?).into())
        }),
        "typeIsLike" => takes(2, |args| {
            let (wanted, found) = (args.str(0)?, args.any(1).type_name());
            let is_like = wanted == found || found.strip_prefix('*') == Some(wanted);
            Ok(is_like.into())
        }),
        "kindOf" => takes(1, |args| Ok(args.any(0).kind_name().into())),
        "kindIs" => takes(2, |args| {
            Ok((args.any(1).kind_name() == args.str(0)?).into())
        }),
        "deepEqual" => takes(2, |args| {
            Ok(args.any(0).deep_equal(args.any(1), args.meter())?.into())
        }),
        _ => return None,
    })
}
