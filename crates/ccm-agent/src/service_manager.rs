//! Service manager notifications: readiness, status, watchdog pings and reloads, by the `sd_notify`
//! protocol.
//!
//! Sends one datagram of `NAME=value` lines to the socket in `NOTIFY_SOCKET`; does nothing without
//! that variable. Implemented here because the sd-notify crate (0.5) has no send timeout and does
//! not support abstract socket names.

use std::collections::BTreeMap;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use ccm_core::system::{Cause, Clock};
use ccm_value::text::quote;

/// Longest time to wait for a service manager that does not read its socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest status in bytes; the service manager shows one line.
const MAX_STATUS: usize = 512;

/// Why a notification could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    #[error("NOTIFY_SOCKET {} is not supported: expected a path or @name", quote(.0))]
    Address(String),
    #[error("notify the service manager through {}: {cause}", quote(.address))]
    Socket { address: String, cause: Cause },
}

/// Connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    manager: Option<(UnixDatagram, String)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Connects to the socket that the environment names; without one, notifications do nothing.
    /// `process` is the id of this process: a watchdog for another process is ignored.
    pub fn from_env(environ: &BTreeMap<String, String>, process: u32) -> Result<Self, NotifyError> {
        let variable = |name: &str| environ.get(name).filter(|value| !value.is_empty());
        let Some(text) = variable("NOTIFY_SOCKET") else {
            return Ok(Self::default());
        };
        let failed = |err: io::Error| NotifyError::Socket {
            address: text.clone(),
            cause: err.into(),
        };
        let address = match (text.strip_prefix('@'), text.starts_with('/')) {
            (Some(name), _) => SocketAddr::from_abstract_name(name),
            (None, true) => SocketAddr::from_pathname(text),
            (None, false) => return Err(NotifyError::Address(text.clone())),
        };
        let address = address.map_err(failed)?;
        let socket = UnixDatagram::unbound().map_err(failed)?;
        socket.connect_addr(&address).map_err(failed)?;
        socket
            .set_write_timeout(Some(SEND_TIMEOUT))
            .map_err(failed)?;
        let is_ours = variable("WATCHDOG_PID").is_none_or(|pid| *pid == process.to_string());
        let watchdog = variable("WATCHDOG_USEC")
            .and_then(|text| text.parse().ok())
            .filter(|usec| is_ours && *usec > 0)
            .map(Duration::from_micros);
        Ok(Self {
            manager: Some((socket, text.clone())),
            watchdog,
        })
    }

    /// Returns the interval for [`keep_alive`](Self::keep_alive), if the watchdog is enabled: half
    /// of its timeout.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|limit| limit / 2)
    }

    /// Reports that start-up or reloading has finished.
    pub fn ready(&self, status: &str) -> Result<(), NotifyError> {
        self.send(&format!("READY=1\n{}", status_field(status)))
    }

    /// Reports a status text for people.
    pub fn status(&self, status: &str) -> Result<(), NotifyError> {
        self.send(&status_field(status))
    }

    /// Pings the watchdog.
    pub fn keep_alive(&self) -> Result<(), NotifyError> {
        self.send("WATCHDOG=1\n")
    }

    /// Reports that the configuration is being reloaded; [`ready`](Self::ready) ends it.
    pub fn reloading(&self, clock: &dyn Clock) -> Result<(), NotifyError> {
        let now = clock.monotonic().as_micros();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={now}\n"))
    }

    /// Reports that the agent is stopping.
    pub fn stopping(&self) -> Result<(), NotifyError> {
        self.send("STOPPING=1\n")
    }

    fn send(&self, text: &str) -> Result<(), NotifyError> {
        let Some((socket, address)) = &self.manager else {
            return Ok(());
        };
        match socket.send(text.as_bytes()) {
            Ok(_) => Ok(()),
            Err(err) => Err(NotifyError::Socket {
                address: address.clone(),
                cause: err.into(),
            }),
        }
    }
}

/// Returns the `STATUS` field, as a single line of limited length.
fn status_field(status: &str) -> String {
    let end = status.floor_char_boundary(MAX_STATUS);
    let status = status.get(..end).unwrap_or_default();
    format!("STATUS={}\n", status.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccm_core::system::FixedClock;

    fn environ(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    }

    fn received(manager: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn all_notifications_reach_a_socket_with_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let environ = environ(&[("NOTIFY_SOCKET", path.to_str().unwrap())]);
        let notifier = Notifier::from_env(&environ, 1).unwrap();
        let clock = FixedClock::new(chrono::DateTime::UNIX_EPOCH);
        clock.advance(Duration::from_millis(5));
        notifier.ready("2 manifests").unwrap();
        notifier.status("applying\n/srv/site").unwrap();
        notifier.keep_alive().unwrap();
        notifier.reloading(&clock).unwrap();
        notifier.stopping().unwrap();
        for expected in [
            "READY=1\nSTATUS=2 manifests\n",
            "STATUS=applying /srv/site\n",
            "WATCHDOG=1\n",
            "RELOADING=1\nMONOTONIC_USEC=5000\n",
            "STOPPING=1\n",
        ] {
            assert_eq!(received(&manager), expected);
        }
    }

    #[test]
    fn notifications_reach_an_abstract_socket() {
        let name = format!("ccm-notify-{:032x}", ccm_core::system::random().unwrap());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let environ = environ(&[("NOTIFY_SOCKET", &format!("@{name}"))]);
        let notifier = Notifier::from_env(&environ, 1).unwrap();
        notifier.ready("up").unwrap();
        assert_eq!(received(&manager), "READY=1\nSTATUS=up\n");
    }

    #[test]
    fn nothing_is_sent_without_a_service_manager() {
        for environ in [environ(&[]), environ(&[("NOTIFY_SOCKET", "")])] {
            let notifier = Notifier::from_env(&environ, 1).unwrap();
            notifier.ready("up").unwrap();
            assert_eq!(notifier.watchdog_interval(), None);
        }
    }

    #[test]
    fn an_unsupported_or_missing_socket_is_an_error() {
        let error = |text| {
            let environ = environ(&[("NOTIFY_SOCKET", text)]);
            Notifier::from_env(&environ, 1).unwrap_err().to_string()
        };
        assert_eq!(
            error("vsock:2:1"),
            "NOTIFY_SOCKET \"vsock:2:1\" is not supported: expected a path or @name"
        );
        let gone = error("/no/such/socket");
        assert!(gone.ends_with("no such file or directory"), "{gone}");
    }

    #[test]
    fn the_watchdog_interval_is_half_the_timeout_of_our_own_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let _manager = UnixDatagram::bind(&path).unwrap();
        let watchdog = |pid| {
            let environ = environ(&[
                ("NOTIFY_SOCKET", path.to_str().unwrap()),
                ("WATCHDOG_USEC", "30000000"),
                ("WATCHDOG_PID", pid),
            ]);
            Notifier::from_env(&environ, 7).unwrap().watchdog_interval()
        };
        assert_eq!(watchdog("7"), Some(Duration::from_secs(15)));
        assert_eq!(watchdog("8"), None);
    }

    #[test]
    fn a_long_status_is_cut() {
        let field = status_field(&"é".repeat(1000));
        assert_eq!(field.len(), "STATUS=\n".len() + MAX_STATUS);
    }
}
