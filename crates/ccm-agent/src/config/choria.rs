//! Configuration of Choria: events, published by `choria_events`, and the agent as a server of
//! Choria's network, in `choria_server`.

use std::path::PathBuf;
use std::time::Duration;

use super::keys::{Keys, at_least, directory, flag, list, non_empty, parsed};
use super::source;
use ccm_core::model::node::Token;
use ccm_nats::choria::ChoriaKey;
use ccm_nats::context::{CredentialSource, Login};
use ccm_nats::{NatsError, Settings};
use ccm_value::secret::Secret;

/// Shortest interval between alive events.
const MIN_ALIVE: Duration = Duration::from_secs(1);

/// Shortest interval between registrations.
const MIN_REGISTRATION: Duration = Duration::from_secs(10);

/// Directory of action policies, as Choria's packages have it.
const POLICIES: &str = "/etc/choria/policies";

/// Settings of Choria events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choria {
    /// Publish events for Choria.
    pub events: bool,
    /// Component name in lifecycle events.
    pub component: Token,
    /// Autonomous agent that manifests belong to.
    pub machine: String,
    /// Collective of the governors that limit runs.
    pub collective: Token,
    /// Interval between alive events; the first is sent at a random time within it.
    pub alive_interval: Duration,
    /// Settings of the server, if this node is one.
    pub server: Option<ChoriaServerConfig>,
}

/// Settings of a node that replies to requests of Choria's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoriaServerConfig {
    /// Collectives of the node; the first is the main one.
    pub collectives: Vec<Token>,
    /// File with the token of the node.
    pub token: PathBuf,
    /// File with the seed of the token.
    pub seed: PathBuf,
    /// Issuers that are trusted.
    pub issuers: Vec<Issuer>,
    /// Directory of action policies.
    pub policies: PathBuf,
    /// Choria's brokers; those of the agent if empty.
    pub servers: Vec<Secret>,
    /// CA certificates of the brokers, instead of the system's.
    pub ca: Option<PathBuf>,
    /// Interval between registrations, if they are published.
    pub registration_interval: Option<Duration>,
}

/// Issuer of tokens of an organization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// Name of the organization.
    pub name: String,
    pub key: ChoriaKey,
}

impl Default for Choria {
    fn default() -> Self {
        Self {
            events: false,
            component: Token::program(),
            machine: "ccm".into(),
            collective: Token::choria_collective(),
            alive_interval: Duration::from_secs(30 * 60),
            server: None,
        }
    }
}

impl Choria {
    pub(super) fn read(&mut self, keys: &mut Keys<'_>) {
        let mut is_server = false;
        keys.read("server", &mut is_server, flag);
        if is_server {
            // As Choria's server publishes them.
            self.events = true;
            self.component = Token::choria_server();
        }
        keys.read("events", &mut self.events, flag);
        keys.read("component", &mut self.component, parsed);
        keys.read("machine", &mut self.machine, non_empty);
        keys.read("collective", &mut self.collective, parsed);
        keys.read("alive_interval", &mut self.alive_interval, |node| {
            at_least(node, MIN_ALIVE)
        });
        let server = ChoriaServerConfig::read(keys, is_server, &self.collective);
        self.server = is_server.then_some(server);
    }
}

impl ChoriaServerConfig {
    /// Returns the settings of the connection to Choria's brokers, if it has one of its own.
    pub fn settings(&self) -> Result<Option<Settings>, NatsError> {
        if self.servers.is_empty() {
            return Ok(None);
        }
        let servers: Vec<&str> = self.servers.iter().map(Secret::reveal).collect();
        let mut settings = Settings::plain(&servers.join(","))?;
        settings.login = Login::Choria {
            token: CredentialSource::File(self.token.clone()),
            seed: CredentialSource::File(self.seed.clone()),
        };
        settings.tls.ca.clone_from(&self.ca);
        Ok(Some(settings))
    }

    fn read(keys: &mut Keys<'_>, is_server: bool, collective: &Token) -> Self {
        let mut server = Self {
            collectives: vec![collective.clone()],
            token: PathBuf::new(),
            seed: PathBuf::new(),
            issuers: Vec::new(),
            policies: POLICIES.into(),
            servers: Vec::new(),
            ca: None,
            registration_interval: None,
        };
        keys.read("collectives", &mut server.collectives, |node| {
            list(node, parsed)
        });
        keys.read("token", &mut server.token, directory);
        keys.read("seed", &mut server.seed, directory);
        keys.sections("issuers", |keys| {
            let (mut name, mut key) = (String::new(), None);
            keys.read("name", &mut name, non_empty);
            keys.read("key", &mut key, |node| parsed(node).map(Some));
            keys.require("name");
            keys.require("key");
            if server.issuers.iter().any(|issuer| issuer.name == name) {
                keys.add_problem("another issuer has the same name");
            }
            server.issuers.extend(key.map(|key| Issuer { name, key }));
        });
        keys.read("policies", &mut server.policies, directory);
        keys.read("servers", &mut server.servers, source::servers);
        keys.read("ca", &mut server.ca, |node| directory(node).map(Some));
        keys.read(
            "registration_interval",
            &mut server.registration_interval,
            |node| at_least(node, MIN_REGISTRATION).map(Some),
        );
        if is_server {
            keys.require("token");
            keys.require("seed");
            keys.require("issuers");
            if keys.contains("issuers") && server.issuers.is_empty() {
                keys.add_problem("no issuer: requests could not be verified; list issuers");
            }
            if server.collectives.is_empty() {
                keys.add_problem("no collective: list collectives, or leave the key out");
            }
        }
        server
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const KEY: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    fn problems(choria: &str) -> String {
        let text = format!("identity: web1\nchoria: {choria}");
        Config::parse(&text).unwrap_err().to_string()
    }

    #[test]
    fn a_server_has_events_as_choria_s_server_publishes_them() {
        let text = format!(
            "identity: web1\nchoria: {{server: true, token: /t, seed: /s, \
             issuers: [{{name: choria, key: {KEY}}}]}}"
        );
        let choria = Config::parse(&text).unwrap().choria;
        assert!(choria.events);
        assert_eq!(choria.component.as_str(), "server");
        let server = choria.server.unwrap();
        assert_eq!(server.collectives, [Token::choria_collective()]);
        assert_eq!(server.policies, PathBuf::from(POLICIES));
        assert!(server.settings().unwrap().is_none());
    }

    #[test]
    fn there_is_no_server_unless_the_file_says_so() {
        let text = "identity: web1\nchoria: {token: /t, seed: /s}";
        assert_eq!(Config::parse(text).unwrap().choria.server, None);
    }

    #[test]
    fn a_server_without_a_trust_chain_is_refused() {
        for (choria, wanted) in [
            ("{server: true}", "token"),
            ("{server: true, token: /t, seed: /s}", "issuers"),
            (
                "{server: true, token: /t, seed: /s, issuers: []}",
                "no issuer",
            ),
            (
                "{server: true, token: /t, seed: /s, issuers: [{name: choria, key: abc}]}",
                "not an ed25519 public key",
            ),
            ("{server: true, token: t}", "token"),
        ] {
            let found = problems(choria);
            assert!(found.contains(wanted), "{choria}: {found}");
        }
    }
}
