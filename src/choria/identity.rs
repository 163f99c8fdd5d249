//! Identity of the Choria server that started the agent.
//!
//! The protocol does not pass it, but the path of the agent's configuration is next to the server's
//! configuration. `identity` in the former takes precedence over `identity` in the latter; without
//! both, Choria and this program use the fully qualified host name.

use std::path::{Path, PathBuf};

use super::config::Config;
use ccm_core::model::node::{NameError, NodeName};
use ccm_core::run::{IdentityError, local_identity};
use ccm_core::system::{FileError, files};

/// Size limit of the server's configuration.
const MAX_BYTES: u64 = 1024 * 1024;

/// Names of the server's configuration, in its packages and those of Puppet.
const FILES: [&str; 2] = ["server.conf", "server.cfg"];

/// Reason why the identity is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnknownIdentity {
    #[error("{}: {reason}, or set identity in plugin.d/ccm", path.display())]
    Name {
        path: PathBuf,
        #[source]
        reason: NameError,
    },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Host(#[from] IdentityError),
}

/// Returns the identity of the server. `file` is the path of the agent's configuration, which may
/// not exist.
pub(super) fn identity(config: &Config, file: Option<&Path>) -> Result<NodeName, UnknownIdentity> {
    if let Some(identity) = &config.identity {
        return Ok(identity.clone());
    }
    let directory = file.and_then(Path::parent).and_then(Path::parent);
    for path in FILES
        .iter()
        .filter_map(|name| directory.map(|it| it.join(name)))
    {
        let text = match files::read_to_string(&path, MAX_BYTES) {
            Err(error) if error.is_not_found() => continue,
            text => text?,
        };
        if let Some(name) = configured(&text) {
            let name = name.to_lowercase().parse();
            return name.map_err(|reason| UnknownIdentity::Name { path, reason });
        }
    }
    Ok(local_identity()?)
}

/// Returns the last `identity` of a configuration, as Choria reads it.
fn configured(text: &str) -> Option<&str> {
    text.lines().rev().find_map(|line| {
        let (key, value) = line.trim().split_once('=')?;
        let value = value.trim();
        (key.trim_end() == "identity" && !value.is_empty()).then_some(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::system::files::Durability;

    fn directory(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        files::write_private(&path, text.as_bytes(), Durability::Cached).unwrap();
        let agent = directory.path().join("plugin.d/ccm");
        (directory, agent)
    }

    #[test]
    fn the_last_identity_counts_and_comments_do_not() {
        let text =
            "# identity = a\nidentity = b\nplugin.identity = c\n  identity=d \n#identity=e\n";
        assert_eq!(configured(text), Some("d"));
        assert_eq!(configured("identity =\n"), None);
    }

    #[test]
    fn the_agent_s_own_key_takes_precedence_over_the_server_s() {
        for name in FILES {
            let (_directory, agent) = directory(name, "identity = Web1.Example.NET\n");
            let mut config = Config::default();
            let found = identity(&config, Some(&agent)).unwrap();
            assert_eq!(found.as_str(), "web1.example.net");
            config.identity = Some("web2".parse().unwrap());
            assert_eq!(identity(&config, Some(&agent)).unwrap().as_str(), "web2");
        }
    }

    #[test]
    fn an_invalid_identity_is_an_error_with_its_remedy() {
        let (_directory, agent) = directory("server.conf", "identity = web_1\n");
        let error = identity(&Config::default(), Some(&agent)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("server.conf: invalid identity \"web_1\""),
            "{text}"
        );
        assert!(text.ends_with("set identity in plugin.d/ccm"), "{text}");
    }

    #[test]
    fn without_a_configured_identity_it_is_the_host_name() {
        let (_directory, agent) = directory("server.conf", "loglevel = info\n");
        let found = identity(&Config::default(), Some(&agent)).unwrap();
        assert_eq!(found, local_identity().unwrap());
    }
}
