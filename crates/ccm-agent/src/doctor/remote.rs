//! Checks of the NATS connection: credentials, server, permissions and clock.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::config::Config;
use crate::enroll::is_login_error;
use ccm_core::model::diagnosis::Check;
use ccm_core::model::node::NodeName;
use ccm_core::system::{Clock, files};
use ccm_nats::context::{CredentialSource, Login};
use ccm_nats::jwt::{self, User};
use ccm_nats::streams::{DESIRED, FACTS, NODES, REPORTED};
use ccm_nats::{ConnectMode, Connection, NatsError, Settings, Subjects, Verb, connect};
use ccm_value::text::{go_duration, to_the_second};

const CREDENTIALS: &str = "credentials";
const SERVER: &str = "server";
const PERMISSIONS: &str = "permissions";
const CLOCK: &str = "clock";

/// Names of the checks.
pub(super) const NAMES: [&str; 4] = [CREDENTIALS, SERVER, PERMISSIONS, CLOCK];

/// Time limit for connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Time before their end at which credentials should be renewed.
const RENEW: TimeDelta = TimeDelta::days(14);

/// Difference of clocks above which signatures may be refused, without a `trust` section.
const MAX_SKEW: Duration = Duration::from_secs(60);

const ENROLL: &str = "enroll the node again with `ccm agent enroll` and a new token";

/// Returns the checks of a connection whose settings are invalid.
pub(super) fn without_settings(reason: &str) -> Vec<Check> {
    let remedy = "correct nats_context or servers in agent.yaml, or enroll the node";
    let mut checks = vec![Check::failed(CREDENTIALS, reason, remedy)];
    let skipped = [SERVER, PERMISSIONS, CLOCK];
    checks.extend(skipped.map(|name| Check::not_checked(name, "no connection settings")));
    checks
}

/// Connects as the agent does, and runs all checks.
pub(super) async fn checks(config: &Config, settings: &Settings, clock: &dyn Clock) -> Vec<Check> {
    let mut checks = vec![credentials(&settings.login, &config.identity, clock.now())];
    let mode = ConnectMode::Once(CONNECT_LIMIT);
    let connection = match connect(settings, mode, "ccm doctor").await {
        Ok(connection) => connection,
        Err(err) => {
            let is_configured = config.nats_context.is_some()
                || !config.servers.is_empty()
                || !matches!(settings.login, Login::Anonymous);
            checks.push(unreachable(&err, is_configured));
            let skipped = [PERMISSIONS, CLOCK];
            checks.extend(skipped.map(|name| Check::not_checked(name, "not connected to NATS")));
            return checks;
        }
    };
    checks.push(Check::ok(
        SERVER,
        format!(
            "connected to {}, version {}",
            connection.servers(),
            connection.server_version()
        ),
    ));
    checks.push(permissions(config, &connection).await);
    let limit = config.trust.as_ref();
    let limit = limit.map_or(MAX_SKEW, |trust| trust.clock_skew);
    checks.push(server_clock(&connection, limit, clock).await);
    checks
}

fn credentials(login: &Login, node: &NodeName, now: DateTime<Utc>) -> Check {
    let shown = match login {
        Login::Anonymous => return Check::ok(CREDENTIALS, "none configured"),
        Login::Password { user, .. } => {
            return Check::ok(CREDENTIALS, format!("password of {user}"));
        }
        Login::Nkey(CredentialSource::File(path)) | Login::Creds(CredentialSource::File(path)) => {
            path.display().to_string()
        }
        _ => "given by value".to_owned(),
    };
    if let Login::Nkey(CredentialSource::File(path)) | Login::Creds(CredentialSource::File(path)) =
        login
        && let Ok(Some(found)) = files::inspect(path, true)
        && found.mode & 0o044 != 0
    {
        let found = format!("{shown} can be read by other users");
        return Check::warning(CREDENTIALS, found, format!("run `chmod 0600 {shown}`"));
    }
    let jwt = match login.jwt() {
        Ok(Some(jwt)) => jwt,
        Ok(None) if matches!(login, Login::Creds(_)) => {
            let found = format!("{shown} contains no JWT and seed");
            return Check::failed(CREDENTIALS, found, ENROLL);
        }
        Ok(None) => return Check::ok(CREDENTIALS, shown),
        Err(err) => return Check::failed(CREDENTIALS, err.to_string(), ENROLL),
    };
    let claims = match jwt::verify::<User>(jwt.reveal()) {
        Ok(verified) => verified.claims,
        Err(err) => return Check::failed(CREDENTIALS, format!("{shown}: {err}"), ENROLL),
    };
    let own_tag = format!("node:{}", node.token());
    let mut node_tags = claims
        .body
        .tags
        .iter()
        .filter(|tag| tag.starts_with("node:"));
    if node_tags.next().is_some_and(|tag| *tag != own_tag) {
        let found = format!("{shown} belongs to {}, this node is {node}", claims.name);
        let remedy =
            "set identity in agent.yaml, or enroll the node with `ccm agent enroll --new-key`";
        return Check::failed(CREDENTIALS, found, remedy);
    }
    match claims.expires {
        None => Check::ok(
            CREDENTIALS,
            format!("{shown} of {}, without expiry", claims.name),
        ),
        Some(end) => {
            let time = to_the_second(&end);
            let found = format!("{shown} of {}", claims.name);
            match end.signed_duration_since(now) {
                left if left <= TimeDelta::zero() => {
                    Check::failed(CREDENTIALS, format!("{found} expired at {time}"), ENROLL)
                }
                left if left < RENEW => {
                    Check::warning(CREDENTIALS, format!("{found} expires at {time}"), ENROLL)
                }
                _ => Check::ok(CREDENTIALS, format!("{found} expires at {time}")),
            }
        }
    }
}

/// Names the remedy for a server that can't be used. Without a configuration, the default server was tried.
fn unreachable(err: &NatsError, is_configured: bool) -> Check {
    let remedy = match err {
        _ if !is_configured => {
            "agent.yaml names no server: enroll this node with `ccm agent enroll`, or set \
             nats_context or servers"
        }
        NatsError::Connect { reason, .. } if is_tls_error(reason) => {
            "compare the CA in the NATS context with the certificate of the server, and the host \
             name with its names; `ccm agent enroll` writes a new CA file"
        }
        NatsError::Connect { reason, .. } if is_login_error(reason) => {
            "the server refuses these credentials: they may be revoked, expired or of another \
             fleet; see `ccm fleet trust list`, or enroll the node again"
        }
        NatsError::Connect { reason, .. } if reason.starts_with("host lookup") => {
            "correct the host name in nats_context or servers, or the DNS of this node"
        }
        _ => "check that the server runs, its address and port, and firewalls between",
    };
    Check::failed(SERVER, err.to_string(), remedy)
}

fn is_tls_error(reason: &str) -> bool {
    reason.starts_with("TLS") || reason.contains("certificate")
}

/// Tries what an agent needs to read and to receive. What it publishes is not tried: that would
/// change its records.
async fn permissions(config: &Config, connection: &Connection) -> Check {
    match try_permissions(config, connection).await {
        Ok(()) => Check::ok(PERMISSIONS, "requests, assignment and records can be read"),
        Err(err @ NatsError::Denied(_)) => Check::failed(
            PERMISSIONS,
            err.to_string(),
            "give the user the permissions of `ccm fleet permissions agent`, or run \
             `ccm fleet trust push` after an upgrade",
        ),
        Err(err @ (NatsError::NoBucket(_) | NatsError::NoStream(_))) => {
            Check::failed(PERMISSIONS, err.to_string(), "run `ccm fleet init`")
        }
        Err(err) => {
            let remedy = "check that the server has JetStream; see `ccm fleet doctor`";
            Check::failed(PERMISSIONS, err.to_string(), remedy)
        }
    }
}

async fn try_permissions(config: &Config, connection: &Connection) -> Result<(), NatsError> {
    let subjects = Subjects::new(&config.subject_prefix, config.collective.clone())?;
    let token = config.identity.token();
    for verb in [Verb::Ping, Verb::Ensure, Verb::Apply] {
        connection.subscribe(&subjects.node(&token, verb)).await?;
        connection.subscribe(&subjects.all(verb)).await?;
    }
    for group in &config.groups {
        let subject = subjects.group(group, Verb::Ensure);
        connection.subscribe(&subject).await?;
    }
    for bucket in [NODES, FACTS, REPORTED] {
        connection.bucket(bucket).await?;
    }
    let desired = connection.bucket(DESIRED).await?;
    desired.get(&subjects.key(&token)).await?;
    Ok(())
}

/// Compares the clocks of this node and of the server.
async fn server_clock(connection: &Connection, limit: Duration, clock: &dyn Clock) -> Check {
    let before = clock.now();
    let server = match connection.server_time(NODES).await {
        Ok(Some(server)) => server,
        Ok(None) => return Check::not_checked(CLOCK, "the server does not state its time"),
        Err(err) => return Check::not_checked(CLOCK, err.to_string()),
    };
    let middle = before + clock.now().signed_duration_since(before) / 2;
    compare_clocks(middle.signed_duration_since(server), limit)
}

fn compare_clocks(difference: TimeDelta, limit: Duration) -> Check {
    let size = difference.abs().to_std().unwrap_or_default();
    let word = if difference < TimeDelta::zero() {
        "behind"
    } else {
        "ahead of"
    };
    // The exchange itself takes some milliseconds.
    if size < Duration::from_secs(1) {
        return Check::ok(CLOCK, "less than 1s from the NATS server");
    }
    let shown = go_duration(Duration::from_secs(size.as_secs()));
    let found = format!("{shown} {word} the NATS server");
    let remedy = "synchronize the clocks, for example with chrony or systemd-timesyncd";
    match size {
        size if size >= limit => {
            let limit = go_duration(limit);
            let found = format!("{found}: signed requests are refused beyond {limit}");
            Check::failed(CLOCK, found, remedy)
        }
        size if size >= limit / 2 => Check::warning(CLOCK, found, remedy),
        _ => Check::ok(CLOCK, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::diagnosis::CheckState;

    #[test]
    fn clocks_are_compared_with_the_limit_of_signatures() {
        let limit = Duration::from_secs(60);
        let check = |millis| compare_clocks(TimeDelta::milliseconds(millis), limit);
        assert_eq!(check(200).state, CheckState::Ok);
        assert_eq!(check(-5_000).found, "5s behind the NATS server");
        assert_eq!(check(-5_000).state, CheckState::Ok);
        assert_eq!(check(31_000).state, CheckState::Warning);
        assert_eq!(check(-61_000).state, CheckState::Failed);
    }

    #[test]
    fn a_node_that_has_no_server_is_told_to_enroll() {
        let error = || NatsError::Connect {
            servers: "nats://127.0.0.1:4222".into(),
            reason: "connection refused".into(),
            source: None,
        };
        let found = unreachable(&error(), false);
        assert!(found.remedy.contains("ccm agent enroll"), "{found:?}");
        let found = unreachable(&error(), true);
        assert!(!found.remedy.contains("ccm agent enroll"), "{found:?}");
    }
}
