//! TLS options: CA certificates, certificate verification and client certificate.
//!
//! The CA certificates are those of a file or of the system; `SSL_CERT_FILE` and `SSL_CERT_DIR`
//! replace those of the system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::HttpError;
use crate::system::files::{self, FileError};

/// The largest PEM file that is read.
const MAX_PEM_BYTES: u64 = 16 * 1024 * 1024;

/// TLS options of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct TlsOptions<'a> {
    /// PEM file of CA certificates, instead of those of the system.
    pub ca_file: Option<&'a Path>,
    /// Accepts any server certificate.
    pub accepts_any_certificate: bool,
    /// PEM files of client certificate and key. Sent to the server of the URL only.
    pub client_certificate: Option<(&'a Path, &'a Path)>,
}

/// Certificates or a key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
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
    #[error("no certificates in {0}")]
    None(String),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Client(reqwest::Error),
}

impl TlsOptions<'_> {
    /// Returns the TLS configuration. For http URLs no file is read, so that they work on a machine
    /// without CA certificates.
    pub(super) fn config(
        &self,
        is_https: bool,
        is_first_host: bool,
    ) -> Result<ClientConfig, HttpError> {
        // Passed explicitly, not installed as the default of the process.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|err| HttpError::CaCertificates(err.into()))?;
        let builder = if self.accepts_any_certificate {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(NoVerification(provider)))
        } else {
            builder.with_root_certificates(if is_https {
                roots(self.ca_file)?
            } else {
                RootCertStore::empty()
            })
        };
        match self
            .client_certificate
            .filter(|_| is_https && is_first_host)
        {
            None => Ok(builder.with_no_client_auth()),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|err| HttpError::ClientCertificate(err.into())),
        }
    }
}

/// Returns the CA certificates of a file, or of the system.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, HttpError> {
    let mut roots = RootCertStore::empty();
    let (added, source) = match ca_file {
        Some(file) => {
            let certificates = read_certificates(file).map_err(HttpError::CaCertificates)?;
            let (added, _) = roots.add_parsable_certificates(certificates);
            (added, file.display().to_string())
        }
        None => {
            // Unreadable certificates are skipped; it is an error only if none is left.
            let found = rustls_native_certs::load_native_certs();
            let (added, _) = roots.add_parsable_certificates(found.certs);
            (added, "the trust store of the system".into())
        }
    };
    match added {
        0 => Err(HttpError::CaCertificates(TlsError::None(source))),
        _ => Ok(roots),
    }
}

/// Returns the client certificate and its intermediate certificates.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    match read_certificates(file) {
        Ok(chain) if chain.is_empty() => {
            let file = file.display().to_string();
            Err(HttpError::ClientCertificate(TlsError::None(file)))
        }
        chain => chain.map_err(HttpError::ClientCertificate),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, HttpError> {
    let pem = files::read(file, MAX_PEM_BYTES).map_err(TlsError::from);
    let key = pem.and_then(|pem| {
        PrivateKeyDer::from_pem_slice(&pem).map_err(|cause| TlsError::Key {
            file: file.to_owned(),
            cause,
        })
    });
    key.map_err(HttpError::ClientCertificate)
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = files::read(file, MAX_PEM_BYTES)?;
    CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|cause| TlsError::Pem {
            file: file.to_owned(),
            cause,
        })
}

/// Accepts every server certificate, for health checks that request it.
#[derive(Debug)]
struct NoVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerification {
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
