//! Checks of the node without its agent: configuration, state directory, disk and run lock.

use std::path::Path;

use chrono::TimeDelta;

use crate::choria_server;
use crate::config::{Config, ConfigError};
use ccm_core::model::diagnosis::Check;
use ccm_core::model::node::Token;
use ccm_core::run::RunLock;
use ccm_core::system::Clock;
use ccm_core::system::files::{self, FileError, FreeSpace};
use ccm_value::text::{byte_size, to_the_second};

const CONFIGURATION: &str = "configuration";
const STATE_DIRECTORY: &str = "state_directory";
const DISK_SPACE: &str = "disk_space";
const RUN_LOCK: &str = "run_lock";
const CHORIA: &str = "choria";

/// Validity of the token of Choria below which it should be renewed.
const MIN_VALIDITY: TimeDelta = TimeDelta::days(14);

/// Names of the checks that need a configuration.
pub(super) const NAMES: [&str; 3] = [STATE_DIRECTORY, DISK_SPACE, RUN_LOCK];

/// Free bytes below which runs fail: less does not hold a package or a bundle.
const MIN_BYTES: u64 = 16 << 20;

/// Free files below which runs fail.
const MIN_FILES: u64 = 64;

/// Checks the configuration file.
pub(super) fn configuration(file: &Path, config: &Result<Config, ConfigError>) -> Check {
    match config {
        Ok(_) => Check::ok(CONFIGURATION, format!("{} is valid", file.display())),
        Err(ConfigError::File(err)) if err.is_not_found() => Check::failed(
            CONFIGURATION,
            err.to_string(),
            "run `ccm agent enroll` to become a member of a fleet, or write the file",
        ),
        Err(err @ ConfigError::File(_)) => Check::failed(
            CONFIGURATION,
            err.to_string(),
            format!(
                "run `chown root:root {0} && chmod 0640 {0}`",
                file.display()
            ),
        ),
        Err(err @ ConfigError::Invalid { .. }) => {
            Check::failed(CONFIGURATION, err.to_string(), "correct the named lines")
        }
    }
}

/// Runs the other checks.
pub(super) fn checks(config: &Config) -> [Check; 3] {
    let usable = state_directory(&config.state_dir);
    let space = match files::free_space(&config.state_dir) {
        Ok(space) => disk_space(&config.state_dir, space, config.spool.max_size),
        Err(err) => Check::not_checked(DISK_SPACE, err.to_string()),
    };
    [usable, space, run_lock(&config.state_dir)]
}

/// Checks token, seed and issuers, if the agent serves Choria's clients.
pub(super) fn choria(config: &Config, clock: &dyn Clock) -> Option<Check> {
    let server = config.choria.server.as_ref()?;
    let now = clock.now();
    let chain = choria_server::trust_chain(server);
    let key = choria_server::load_key(server, &chain, config.identity.as_str(), now);
    let key = match key {
        Ok(key) => key,
        Err(err) => {
            let remedy = "issue a token for this node with `choria jwt server`, and list its issuer \
                          in choria.issuers";
            return Some(Check::failed(CHORIA, err.to_string(), remedy));
        }
    };
    let collectives: Vec<&str> = server.collectives.iter().map(Token::as_str).collect();
    let expiry = key.claims().expiry().unwrap_or(now);
    let found = format!(
        "serves Choria's clients in {}; the token expires {}",
        collectives.join(", "),
        to_the_second(&expiry)
    );
    Some(match expiry - now < MIN_VALIDITY {
        true => Check::warning(CHORIA, found, "issue a new token with `choria jwt server`"),
        false => Check::ok(CHORIA, found),
    })
}

fn state_directory(directory: &Path) -> Check {
    let shown = directory.display();
    let checked =
        files::check_private_dir(directory).and_then(|()| files::check_writable(directory));
    match checked {
        Ok(()) => Check::ok(STATE_DIRECTORY, format!("{shown} is private and writable")),
        Err(err) if err.is_not_found() => Check::failed(
            STATE_DIRECTORY,
            format!("{shown} does not exist"),
            "start the agent, which creates it",
        ),
        Err(err @ (FileError::NotOwned { .. } | FileError::NotPrivate(_))) => Check::failed(
            STATE_DIRECTORY,
            err.to_string(),
            format!("run `chown root:root {shown} && chmod 0700 {shown}`"),
        ),
        Err(err) => Check::failed(
            STATE_DIRECTORY,
            err.to_string(),
            "run this as root; if the file system is read-only, repair it and mount it read-write",
        ),
    }
}

fn disk_space(directory: &Path, space: FreeSpace, spool: u64) -> Check {
    let found = format!(
        "{} free in the file system of {}",
        byte_size(space.bytes),
        directory.display()
    );
    if let Some(files) = space.files.filter(|files| *files < MIN_FILES) {
        let found = format!("{found}, but only {files} more files can be created");
        return Check::failed(DISK_SPACE, found, "remove files that are not needed");
    }
    if space.bytes < MIN_BYTES {
        return Check::failed(DISK_SPACE, found, "free some space: runs and events fail");
    }
    if space.bytes < spool {
        let found = format!("{found}, less than spool.max_size ({})", byte_size(spool));
        let remedy = "free some space, or lower spool.max_size in agent.yaml";
        return Check::warning(DISK_SPACE, found, remedy);
    }
    Check::ok(DISK_SPACE, found)
}

fn run_lock(state_dir: &Path) -> Check {
    match RunLock::of(state_dir).holder() {
        Ok(None) => Check::ok(RUN_LOCK, "free"),
        Ok(Some(holder)) => Check::ok(RUN_LOCK, format!("held by {holder}")),
        Err(err) => Check::failed(RUN_LOCK, err.to_string(), "run this as root"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::model::diagnosis::CheckState;

    #[test]
    fn disk_space_is_compared_with_what_runs_and_the_spool_need() {
        let check = |bytes, files| {
            let space = FreeSpace { bytes, files };
            disk_space(Path::new("/var"), space, 256 << 20).state
        };
        assert_eq!(check(1 << 30, Some(1000)), CheckState::Ok);
        assert_eq!(check(1 << 30, None), CheckState::Ok);
        assert_eq!(check(100 << 20, None), CheckState::Warning);
        assert_eq!(check(1 << 20, None), CheckState::Failed);
        assert_eq!(check(1 << 30, Some(3)), CheckState::Failed);
    }
}
