//! Whom to believe that a server is who it says: the authorities of the machine, or a file, or
//! anyone; and who we say we are.
//!
//! `SSL_CERT_FILE` and `SSL_CERT_DIR` replace those of the machine, as they do for other programs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::HttpError;
use crate::system::files::{self, FileError};

/// The largest file of certificates that is read.
const MAX_PEM_BYTES: u64 = 16 * 1024 * 1024;

/// Who may be spoken to, and as whom.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trust<'a> {
    /// Who may sign for a server, as PEM; those the machine trusts unless given.
    pub ca_file: Option<&'a Path>,
    /// Any certificate will do, whoever signed it for whomever.
    pub believes_anyone: bool,
    /// Our own certificate and its key, as PEM. Shown to the host of the URL and to no other.
    pub identity: Option<(&'a Path, &'a Path)>,
}

/// Why certificates or a key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {cause:?}", file.display())]
    Pem {
        file: PathBuf,
        #[source]
        cause: rustls::pki_types::pem::Error,
    },
    #[error("no private key in {}: {cause:?}", file.display())]
    Key {
        file: PathBuf,
        #[source]
        cause: rustls::pki_types::pem::Error,
    },
    #[error("{0} has none")]
    None(String),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Client(reqwest::Error),
}

impl Trust<'_> {
    /// Returns how to speak TLS. Where none is spoken nothing is read: a machine without any
    /// authority can speak http.
    pub(super) fn config(&self, is_spoken: bool, is_home: bool) -> Result<ClientConfig, HttpError> {
        // Named here, not installed for the process: no one else is to notice.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|err| HttpError::Trust(err.into()))?;
        let builder = if self.believes_anyone {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        } else {
            builder.with_root_certificates(if is_spoken {
                roots(self.ca_file)?
            } else {
                RootCertStore::empty()
            })
        };
        match self.identity.filter(|_| is_spoken && is_home) {
            None => Ok(builder.with_no_client_auth()),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|err| HttpError::Identity(err.into())),
        }
    }
}

/// Returns the authorities of a file, or of the machine.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, HttpError> {
    let mut roots = RootCertStore::empty();
    let (added, source) = match ca_file {
        Some(file) => {
            let certificates = read_certificates(file).map_err(HttpError::Trust)?;
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
        0 => Err(HttpError::Trust(TrustError::None(source))),
        _ => Ok(roots),
    }
}

/// Returns our certificate and those that lead from it to an authority.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    match read_certificates(file) {
        Ok(chain) if chain.is_empty() => {
            let file = file.display().to_string();
            Err(HttpError::Identity(TrustError::None(file)))
        }
        chain => chain.map_err(HttpError::Identity),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, HttpError> {
    let pem = files::read(file, MAX_PEM_BYTES).map_err(TrustError::from);
    let key = pem.and_then(|pem| {
        PrivateKeyDer::from_pem_slice(&pem).map_err(|cause| TrustError::Key {
            file: file.to_owned(),
            cause,
        })
    });
    key.map_err(HttpError::Identity)
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let pem = files::read(file, MAX_PEM_BYTES)?;
    CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|cause| TrustError::Pem {
            file: file.to_owned(),
            cause,
        })
}

/// Believes every server. Only for who asks how a server answers and not who it is.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
