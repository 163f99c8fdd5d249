//! Data files of a manifest's hierarchy, read from its directory.

use std::path::Path;

use crate::hiera::{DATA_KEY, DataFile, Document, HieraError, Source};
use crate::secrets::{self, is_sops};
use crate::system::files;
use ccm_template::secrets::Secrets;
use ccm_template::{CallError, Env};

/// Maximum size of a data file.
const MAX_DATA_FILE: u64 = 16 << 20;

/// Reads a data file below the directory of its manifest; `None` if there is no such file. The file is
/// read only if templates of `env` may read it.
pub fn read_data_file(
    directory: &Path,
    env: &Env,
    file: &DataFile,
) -> Result<Option<Document>, HieraError> {
    let failed = |cause| HieraError::DataFile {
        file: file.clone(),
        cause,
    };
    let body = files::read_beneath(directory, file.path(), MAX_DATA_FILE)
        .map_err(|err| failed(CallError::new(err)))?;
    let Some(body) = body else {
        return Ok(None);
    };
    env.check_read(&directory.join(file.path()))
        .map_err(failed)?;
    let source = Source::File(file.path().to_owned());
    let document = source.read(&body, DATA_KEY)?;
    unseal(document, &env.secrets).map(Some).map_err(failed)
}

/// Returns a document with the values of one that SOPS encrypted as encrypted values.
pub fn unseal(document: Document, secrets: &Secrets) -> Result<Document, CallError> {
    if !is_sops(&document.root) {
        return Ok(document);
    }
    let root = secrets::unseal(&document.root, &document.text, secrets)?;
    Ok(Document { root, ..document })
}
