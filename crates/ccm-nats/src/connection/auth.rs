//! Authentication: the reply to the server's nonce, computed at every connect.
//!
//! Credential files are read at every connect, so renewed credentials apply at the next one.

use std::sync::Arc;

use async_nats::{Auth, AuthError, ConnectOptions};
use nkeys::KeyPair;

use crate::choria::{ChoriaKeyError, ChoriaSeed};
use crate::context::{Login, SecretError, Settings};
use ccm_value::secret::Secret;

/// Why authentication failed on the client. No message contains a secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("the credentials contain no JWT and seed")]
    Credentials,
    #[error("the nkey file contains no seed")]
    NoSeed,
    #[error("the seed is invalid")]
    Seed,
    #[error("the seed can't sign")]
    Sign,
    #[error(transparent)]
    ChoriaSeed(#[from] ChoriaKeyError),
}

/// Returns connect options with the authentication of the settings.
pub(super) fn options(settings: &Settings) -> ConnectOptions {
    let identity = Arc::new((settings.login.clone(), settings.token.clone()));
    if let (Login::Anonymous, None) = &*identity {
        return ConnectOptions::new();
    }
    ConnectOptions::with_auth_callback(move |nonce| {
        let (login, token) = &*identity;
        let auth = respond(login, &nonce).map(|mut auth| {
            if let Some(token) = token {
                auth.token = Some(token.reveal().to_owned());
            }
            auth
        });
        std::future::ready(auth.map_err(AuthError::new))
    })
}

/// Returns the authentication of a login, with the signed nonce.
fn respond(login: &Login, nonce: &[u8]) -> Result<Auth, LoginError> {
    let mut auth = Auth::new();
    match login {
        Login::Anonymous => {}
        Login::Password { user, password } => {
            auth.username = Some(user.clone());
            auth.password = Some(password.reveal().to_owned());
        }
        Login::Creds(source) => {
            let text = source.read()?;
            let mut parts = decorated(text.reveal());
            let (Some(jwt), Some(seed)) = (parts.next(), parts.next()) else {
                return Err(LoginError::Credentials);
            };
            auth.jwt = Some(jwt.to_owned());
            auth.signature = Some(sign(seed, nonce)?.1);
        }
        Login::Nkey(source) => {
            let text = source.read()?;
            let seed = seed(text.reveal()).ok_or(LoginError::NoSeed)?;
            let (public, signature) = sign(seed, nonce)?;
            auth.nkey = Some(public);
            auth.signature = Some(signature);
        }
        Login::Jwt { jwt, seed } => {
            auth.jwt = Some(jwt.reveal().to_owned());
            if let Some(seed) = seed.as_ref().map(Secret::reveal) {
                auth.signature = Some(sign(seed, nonce)?.1);
            }
        }
        Login::Choria { token, seed } => {
            let seed = ChoriaSeed::parse(&seed.read()?)?;
            let token = token.read()?.reveal().trim().to_owned();
            auth.signature = Some(seed.sign(nonce));
            // Choria's brokers read the token from either, depending on their configuration.
            auth.jwt = Some(token.clone());
            auth.token = Some(token);
        }
    }
    Ok(auth)
}

impl Login {
    /// Returns the nkey seed of the login; nothing for a password or a token.
    pub fn seed(&self) -> Result<Option<Secret>, SecretError> {
        let text = match self {
            Self::Creds(source) | Self::Nkey(source) => source.read()?,
            Self::Jwt { seed, .. } => return Ok(seed.clone()),
            _ => return Ok(None),
        };
        Ok(seed(text.reveal()).map(Secret::new))
    }

    /// Returns the user JWT of the login; nothing for a login without one.
    pub fn jwt(&self) -> Result<Option<Secret>, SecretError> {
        match self {
            Self::Creds(source) => {
                let text = source.read()?;
                let jwt = decorated(text.reveal()).next().map(Secret::new);
                Ok(jwt)
            }
            Self::Jwt { jwt, .. } => Ok(Some(jwt.clone())),
            _ => Ok(None),
        }
    }
}

/// Returns the public key of a seed, and its signature of the nonce.
fn sign(seed: &str, nonce: &[u8]) -> Result<(String, Vec<u8>), LoginError> {
    let pair = KeyPair::from_seed(seed.trim()).map_err(|_| LoginError::Seed)?;
    let signature = pair.sign(nonce).map_err(|_| LoginError::Sign)?;
    Ok((pair.public_key(), signature))
}

/// Returns the lines between `-----BEGIN …-----` and `------END …------`, in order.
fn decorated(text: &str) -> impl Iterator<Item = &str> {
    let mut lines = text.lines().map(str::trim);
    std::iter::from_fn(move || {
        lines.find(|line| line.starts_with("---") && line.contains("BEGIN"))?;
        lines.find(|line| !line.is_empty())
    })
}

/// Returns the seed of a file, with or without BEGIN and END lines.
fn seed(text: &str) -> Option<&str> {
    let is_seed = |line: &&str| line.starts_with('S') && line.len() > 40;
    decorated(text)
        .chain(text.lines().map(str::trim))
        .find(is_seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::CredentialSource;

    fn user() -> (String, String) {
        let pair = KeyPair::new_user();
        (pair.seed().unwrap(), pair.public_key())
    }

    fn text(text: String) -> CredentialSource {
        CredentialSource::Text(Secret::new(text))
    }

    fn verify(public: &str, auth: &Auth) {
        let signature = auth.signature.as_ref().unwrap();
        let pair = KeyPair::from_public_key(public).unwrap();
        pair.verify(b"nonce", signature).unwrap();
    }

    #[test]
    fn creds_file_yields_jwt_and_signature() {
        let (seed, public) = user();
        let creds = format!(
            "-----BEGIN NATS USER JWT-----\r\nthe.jwt\r\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        let auth = respond(&Login::Creds(text(creds)), b"nonce").unwrap();
        assert_eq!(auth.jwt.as_deref(), Some("the.jwt"));
        verify(&public, &auth);
    }

    #[test]
    fn nkey_seed_is_read_plain_or_decorated() {
        let (seed, public) = user();
        for file in [
            seed.clone(),
            format!("\n{seed}\n"),
            format!("-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"),
        ] {
            let auth = respond(&Login::Nkey(text(file)), b"nonce").unwrap();
            assert_eq!(auth.nkey.as_deref(), Some(public.as_str()));
            verify(&public, &auth);
        }
    }

    #[test]
    fn a_choria_login_signs_the_nonce_and_sends_its_token() {
        let seed = "07".repeat(32);
        let login = Login::Choria {
            token: text("the.jwt\n".into()),
            seed: text(seed.clone()),
        };
        let auth = respond(&login, b"nonce").unwrap();
        assert_eq!(auth.jwt.as_deref(), Some("the.jwt"));
        assert_eq!(auth.token.as_deref(), Some("the.jwt"));
        let key = ChoriaSeed::parse(&Secret::new(seed)).unwrap().public_key();
        let signature = auth.signature.unwrap();
        assert!(key.is_signature_valid(b"nonce", &signature));
        assert!(!key.is_signature_valid(b"other", &signature));
    }

    #[test]
    fn jwt_without_seed_is_a_bearer_token() {
        let login = Login::Jwt {
            jwt: Secret::new("the.jwt"),
            seed: None,
        };
        let auth = respond(&login, b"nonce").unwrap();
        assert_eq!(
            (auth.jwt.as_deref(), auth.signature),
            (Some("the.jwt"), None)
        );
    }

    #[test]
    fn errors_of_invalid_credentials_contain_no_secret() {
        for (login, reason) in [
            (
                Login::Creds(text("hunter2".into())),
                "the credentials contain no JWT and seed",
            ),
            (
                Login::Nkey(text("hunter2".into())),
                "the nkey file contains no seed",
            ),
            (
                Login::Nkey(text(format!("SUhunter2{}", "A".repeat(50)))),
                "the seed is invalid",
            ),
            (
                Login::Nkey(CredentialSource::File("/nonexistent/x.nk".into())),
                "open /nonexistent/x.nk: no such file or directory",
            ),
        ] {
            let error = respond(&login, b"nonce").err().unwrap();
            assert_eq!(error.to_string(), reason);
        }
    }
}
