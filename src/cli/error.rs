//! Errors as people and scripts see them: what was asked for wrongly (2) apart from what went
//! wrong (1).

use std::fmt;

/// Why a command ended without doing, or without finishing, what it was asked.
#[derive(Debug)]
pub(super) struct CliError {
    message: String,
    code: u8,
}

impl CliError {
    /// The request itself is wrong; nothing was touched.
    pub(super) fn usage(message: impl ToString) -> Self {
        Self {
            message: message.to_string(),
            code: 2,
        }
    }

    /// The request was right, carrying it out was not possible.
    pub(super) fn failed(message: impl ToString) -> Self {
        Self {
            message: message.to_string(),
            code: 1,
        }
    }

    pub(super) fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}
