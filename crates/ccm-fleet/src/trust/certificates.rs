//! The certificate authority of a fleet, and the certificates of its NATS servers.

use std::net::IpAddr;

use chrono::{DateTime, Datelike as _, Days, Utc};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::TrustError;
use ccm_value::secret::Secret;

/// Validity of certificates in years.
const YEARS: i32 = 10;

/// Common name of the authority.
const AUTHORITY: &str = "ccm fleet CA";

/// A certificate and its private key, in PEM.
pub(super) struct CertificateFiles {
    pub(super) certificate: String,
    pub(super) key: Secret,
}

/// Creates a certificate authority.
pub(super) fn create_authority(now: DateTime<Utc>) -> Result<CertificateFiles, TrustError> {
    let key = KeyPair::generate().map_err(TrustError::Certificate)?;
    let certificate = authority(now)?
        .self_signed(&key)
        .map_err(TrustError::Certificate)?;
    Ok(CertificateFiles {
        certificate: certificate.pem(),
        key: Secret::new(key.serialize_pem()),
    })
}

/// Creates the certificate of a server with these host names and addresses.
pub(super) fn create_server_certificate(
    authority_key: &Secret,
    hosts: &[String],
    now: DateTime<Utc>,
) -> Result<CertificateFiles, TrustError> {
    let authority_key =
        KeyPair::from_pem(authority_key.reveal()).map_err(TrustError::Certificate)?;
    let authority = authority(now)?;
    let issuer = Issuer::from_params(&authority, authority_key);
    let mut params = CertificateParams::new(hosts).map_err(TrustError::Certificate)?;
    let name = hosts.first().map_or("nats", String::as_str);
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        // Routes between servers use the same certificate.
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    set_validity(&mut params, now);
    let key = KeyPair::generate().map_err(TrustError::Certificate)?;
    let certificate = params
        .signed_by(&key, &issuer)
        .map_err(TrustError::Certificate)?;
    Ok(CertificateFiles {
        certificate: certificate.pem(),
        key: Secret::new(key.serialize_pem()),
    })
}

/// Returns the parameters of the authority. As an issuer only its name and key matter.
fn authority(now: DateTime<Utc>) -> Result<CertificateParams, TrustError> {
    let mut params = CertificateParams::new(Vec::new()).map_err(TrustError::Certificate)?;
    params
        .distinguished_name
        .push(DnType::CommonName, AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now);
    Ok(params)
}

/// Sets the validity from the day before: clocks of nodes may be slow.
fn set_validity(params: &mut CertificateParams, now: DateTime<Utc>) {
    let start = now.checked_sub_days(Days::new(1)).unwrap_or(now);
    let day = |years: i32| {
        let month = u8::try_from(start.month()).unwrap_or(1);
        // Every year has a 28th of February.
        let day = u8::try_from(start.day().min(28)).unwrap_or(1);
        rcgen::date_time_ymd(start.year() + years, month, day)
    };
    params.not_before = day(0);
    params.not_after = day(YEARS);
}

/// Returns a host of a URL: IPv6 addresses in brackets.
pub(super) fn url_host(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host.to_owned(),
    }
}
