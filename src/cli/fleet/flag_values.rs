//! Errors about flag values, which clap prints after "invalid value".

use ccm_core::model::amount::AmountError;
use ccm_core::model::node::NameError;
use ccm_value::text::DurationError;

/// Reason why the value of a flag is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadValue {
    #[error("must be 1 or more")]
    Zero,
    #[error("must be more than 0s")]
    ZeroDuration,
    #[error("must be 1s or more")]
    TooShort,
    #[error("must not be negative")]
    Negative,
    #[error("expected a number from 0 to 1")]
    Fraction,
    #[error("expected an IP address and a port, such as 127.0.0.1:8480")]
    Address,
    #[error("expected a duration such as 2h, or an RFC 3339 time")]
    Since,
    #[error("expected Facts.PATH, Labels.NAME or one of {0}")]
    Column(String),
    #[error(
        "expected an id of 27 letters and digits, as `ccm fleet apply` and `ccm fleet runs` print it"
    )]
    RunId,
    #[error("is in the future")]
    Future,
    #[error("is too long ago")]
    TooLongAgo,
    #[error(transparent)]
    Number(#[from] std::num::ParseIntError),
    #[error(transparent)]
    Amount(#[from] AmountError),
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error(transparent)]
    Name(#[from] NameError),
}
