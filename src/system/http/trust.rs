//! Whom to believe that a server is who it says: the authorities of the machine, or a file.
//!
//! `SSL_CERT_FILE` and `SSL_CERT_DIR` replace those of the machine, as they do for other programs.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::HttpError;
use crate::system::files;

/// The largest file of authorities that is read.
const MAX_CA_BYTES: u64 = 16 * 1024 * 1024;

/// Returns the authorities of a file, or of the machine.
pub(super) fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, HttpError> {
    let mut roots = RootCertStore::empty();
    let (added, source) = match ca_file {
        Some(file) => {
            let failed = |err: &dyn ToString| HttpError::Trust(err.to_string());
            let pem = files::read(file, MAX_CA_BYTES).map_err(|err| failed(&err))?;
            let certificates: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(&pem)
                .collect::<Result<_, _>>()
                .map_err(|err| HttpError::Trust(format!("{}: {err:?}", file.display())))?;
            let (added, _) = roots.add_parsable_certificates(certificates);
            (added, file.display().to_string())
        }
        None => {
            // Some of many may be damaged; that matters only if none is left.
            let found = rustls_native_certs::load_native_certs();
            let (added, _) = roots.add_parsable_certificates(found.certs);
            (added, "this machine".into())
        }
    };
    match added {
        0 => Err(HttpError::Trust(format!("{source} has none"))),
        _ => Ok(roots),
    }
}

/// Returns how to speak TLS with those who are signed for by these.
pub(super) fn config(roots: RootCertStore) -> Result<ClientConfig, HttpError> {
    // Named here, not installed for the process: no one else is to notice.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|err| HttpError::Trust(err.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
