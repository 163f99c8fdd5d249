//! Errors of fetching, parsing and resolving data. The messages are upstream's; credentials in URLs
//! are redacted.

use std::path::PathBuf;

use super::data_file::DataFile;
use super::sources::Source;
use super::validate::InvalidData;
use crate::model::diagnostic::Location;
use crate::model::document::{DocumentError, describe_kind};
use ccm_template::CallError;
use ccm_template::expr::ExprError;

/// Error of a data source or its document.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HieraError {
    #[error("root document must be a map, found {}", describe_kind(.0))]
    Root(&'static str),
    #[error("hierarchy section is required")]
    Hierarchy,
    #[error("hierarchy.order must be a list")]
    Order,
    #[error("hierarchy.order must contain only strings")]
    OrderEntry,
    #[error("overrides must be a map, found {}", describe_kind(.0))]
    Overrides(&'static str),
    #[error("overrides {level:?} must be a map, found {}", describe_kind(.found))]
    Override { level: String, found: &'static str },
    #[error("unsupported merge mode: {0}")]
    Merge(String),
    #[error("unsupported merge strategy of key {key:?}: {found}")]
    MergeStrategy { key: String, found: String },
    #[error("data file {0:?} of the hierarchy is not inside the directory of its document")]
    DataFileOutside(String),
    #[error("data file {file} must be a map, found {}", describe_kind(.found))]
    DataFileRoot { file: DataFile, found: &'static str },
    /// Set by callers that read data files.
    #[error("can't read data file {file}: {cause}")]
    DataFile {
        file: DataFile,
        #[source]
        cause: CallError,
    },
    /// Failed expression; `section` names the part of the document that contains it.
    #[error("{section}: {cause}")]
    Expression {
        section: String,
        #[source]
        cause: ExprError,
    },
    #[error("the hierarchy merges too much data, at level {level:?}")]
    TooLarge { level: String },
    #[error(transparent)]
    Invalid(#[from] InvalidData),

    #[error("source is required")]
    NoSource,
    #[error("unsupported hiera data source: {0}")]
    UnsupportedSource(String),
    #[error("bucket name is required for kv hiera data source")]
    NoBucket,
    #[error("key is required for kv hiera data source")]
    NoKey,
    #[error("expected obj://BUCKET/NAME as hiera data source")]
    NoObject,
    #[error("invalid URL escape {escape:?} in hiera data source {url}")]
    Escape { url: String, escape: String },
    /// Set by callers that read files; some of them ignore a missing file.
    #[error("file not found: {}", .0.display())]
    FileNotFound(PathBuf),
    /// Set by callers that fetch over the network.
    #[error("failed to fetch hiera data from {from}: {cause}")]
    Fetch {
        from: Source,
        #[source]
        cause: CallError,
    },
    #[error("HTTP request to {from} failed with status {code}: {status}")]
    Status {
        from: Source,
        code: u16,
        status: String,
    },
    #[error("{0} is not a put operation")]
    NotPut(Source),
    #[error("{}{from} is empty", .from.response_prefix())]
    Empty { from: Source },
    #[error("failed to parse {format} from {from}: {cause}")]
    Parse {
        format: &'static str,
        from: Source,
        #[source]
        cause: Box<DocumentError>,
    },
    #[error("can't write the data as JSON: {0}")]
    Output(#[source] CallError),
    /// Error with its position in the document: one for each failure of `Invalid`, otherwise one.
    #[error("{cause}")]
    At {
        locations: Vec<Location>,
        #[source]
        cause: Box<HieraError>,
    },
}

impl HieraError {
    /// Reports whether the data could not be fetched, as opposed to being invalid.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::At { cause, .. } => cause.is_unreachable(),
            error => matches!(
                error,
                Self::FileNotFound(_) | Self::Fetch { .. } | Self::Status { .. }
            ),
        }
    }
}
