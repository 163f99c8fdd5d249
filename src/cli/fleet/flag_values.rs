//! Values of flags: why one is refused, in the words that follow "invalid value".

use ccm_core::model::amount::BadAmount;
use ccm_core::model::node::BadName;
use ccm_value::text::DurationError;

/// Why the value of a flag is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadValue {
    #[error("must be 1 or more")]
    Zero,
    #[error("must be more than 0s")]
    NoTime,
    #[error("must be 1s or more")]
    TooShort,
    #[error("must not be negative")]
    Negative,
    #[error("expected a number from 0 to 1")]
    Part,
    #[error("expected an IP address and a port, such as 127.0.0.1:8480")]
    Address,
    #[error("expected a time such as 2027-01-15T08:00:00Z, or 2h")]
    Deadline,
    #[error("expected a duration such as 2h, or an RFC 3339 time")]
    Since,
    #[error("that is in the future")]
    Future,
    #[error("that is too long ago")]
    TooLongAgo,
    #[error("that is beyond all calendars")]
    TooLate,
    #[error(transparent)]
    Number(#[from] std::num::ParseIntError),
    #[error(transparent)]
    Amount(#[from] BadAmount),
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error(transparent)]
    Name(#[from] BadName),
}
