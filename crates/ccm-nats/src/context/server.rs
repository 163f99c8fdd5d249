//! Server URLs, split into address and credentials.

use std::fmt;

use super::{ContextError, Secret};
use ccm_value::secret::redact_url;
use ccm_value::text::unescape;

/// Address of a server: `nats://host:port` or `tls://host:port`, without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server(String);

impl Server {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A user and its password, or a token.
type Credentials = (Secret, Option<Secret>);

/// Parses a URL; the default scheme is `nats://`.
pub(super) fn parse(url: &str) -> Result<(Server, Option<Credentials>), ContextError> {
    let bad = |reason: &str| ContextError::Server {
        server: redact_url(&with_scheme(url)).into_owned(),
        reason: reason.into(),
    };
    let full = with_scheme(url);
    let (scheme, rest) = full.split_once("://").unwrap_or_default();
    let scheme = scheme.to_ascii_lowercase();
    if scheme != "nats" && scheme != "tls" {
        return Err(bad("expected nats:// or tls://"));
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (userinfo, host) = match authority.rsplit_once('@') {
        Some((userinfo, host)) => (Some(userinfo), host),
        None => (None, authority),
    };
    // The client's parser skips these characters and would connect to another host.
    if host.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err(bad("expected a host and a port"));
    }
    let server = format!("{scheme}://{host}");
    server
        .parse::<async_nats::ServerAddr>()
        .ok()
        .filter(|address| !address.host().is_empty())
        .ok_or_else(|| bad("expected a host and a port"))?;
    let credentials = match userinfo.filter(|userinfo| !userinfo.is_empty()) {
        None => None,
        Some(userinfo) => {
            let decoded = |text: &str| {
                unescape(text)
                    .map(Secret::new)
                    .ok_or_else(|| bad("invalid escape in credentials"))
            };
            Some(match userinfo.split_once(':') {
                Some((user, password)) => (decoded(user)?, Some(decoded(password)?)),
                None => (decoded(userinfo)?, None),
            })
        }
    };
    Ok((Server(server), credentials))
}

fn with_scheme(url: &str) -> String {
    if url.contains("://") {
        url.into()
    } else {
        format!("nats://{url}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> (String, Option<(String, Option<String>)>) {
        let (server, credentials) = parse(url).unwrap();
        let credentials = credentials.map(|(user, password)| {
            let password = password.map(|password| password.reveal().to_owned());
            (user.reveal().to_owned(), password)
        });
        (server.as_str().to_owned(), credentials)
    }

    #[test]
    fn url_is_split_into_address_and_credentials() {
        for (url, server, credentials) in [
            ("example.net", "nats://example.net", None),
            ("nats://h:4333/", "nats://h:4333", None),
            ("TLS://[::1]:4222", "tls://[::1]:4222", None),
            ("nats://tok@h", "nats://h", Some(("tok", None))),
            ("ann:p%40w@h:1", "nats://h:1", Some(("ann", Some("p@w")))),
        ] {
            let credentials = credentials.map(|(user, password): (&str, Option<&str>)| {
                (user.to_owned(), password.map(str::to_owned))
            });
            assert_eq!(parsed(url), (server.to_owned(), credentials));
        }
    }

    #[test]
    fn errors_of_invalid_urls_contain_no_password() {
        for (url, error) in [
            (
                "ws://ann:pw@h",
                "invalid server \"ws://REDACTED@h\": expected nats:// or tls://",
            ),
            (
                "nats://ann:pw@h:port",
                "invalid server \"nats://REDACTED@h:port\": expected a host and a port",
            ),
            (
                "h\u{1}\0:4222",
                "invalid server \"nats://h\\x01\\x00:4222\": expected a host and a port",
            ),
            (
                "ann:%zz@h",
                "invalid server \"nats://REDACTED@h\": invalid escape in credentials",
            ),
        ] {
            assert_eq!(parse(url).unwrap_err().to_string(), error);
        }
    }
}
