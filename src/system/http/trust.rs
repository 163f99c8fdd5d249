//! Whom to believe that a server is who it says: the authorities of the machine, or a file, or
//! anyone; and who we say we are.
//!
//! `SSL_CERT_FILE` and `SSL_CERT_DIR` replace those of the machine, as they do for other programs.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::HttpError;
use crate::system::files;

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

impl Trust<'_> {
    /// Returns how to speak TLS. Where none is spoken nothing is read: a machine without any
    /// authority can speak http.
    pub(super) fn config(&self, is_spoken: bool, is_home: bool) -> Result<ClientConfig, HttpError> {
        // Named here, not installed for the process: no one else is to notice.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|err| HttpError::Trust(err.to_string()))?;
        let builder = if self.believes_anyone {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        } else {
            builder.with_root_certificates(match is_spoken {
                true => roots(self.ca_file)?,
                false => RootCertStore::empty(),
            })
        };
        match self.identity.filter(|_| is_spoken && is_home) {
            None => Ok(builder.with_no_client_auth()),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|err| HttpError::Identity(err.to_string())),
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
        0 => Err(HttpError::Trust(format!("{source} has none"))),
        _ => Ok(roots),
    }
}

/// Returns our certificate and those that lead from it to an authority.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    match read_certificates(file) {
        Ok(chain) if chain.is_empty() => {
            let reason = format!("{} has none", file.display());
            Err(HttpError::Identity(reason))
        }
        chain => chain.map_err(HttpError::Identity),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, HttpError> {
    let pem = files::read(file, MAX_PEM_BYTES).map_err(|err| err.to_string());
    let key = pem.and_then(|pem| {
        PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|err| format!("no private key in {}: {err:?}", file.display()))
    });
    key.map_err(HttpError::Identity)
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = files::read(file, MAX_PEM_BYTES).map_err(|err| err.to_string())?;
    CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|err| format!("{}: {err:?}", file.display()))
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
