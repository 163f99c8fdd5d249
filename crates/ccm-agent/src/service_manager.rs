//! What the service manager wants to hear: that we are ready, what we do, that we still live.
//!
//! The protocol of `sd_notify`: one datagram of `NAME=value` lines to the socket that
//! `NOTIFY_SOCKET` names. Without that variable nobody listens and everything here is silent.
//! When to say what is decided elsewhere.

use std::collections::BTreeMap;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use ccm_core::system::{Cause, Clock};
use ccm_value::text::quote;

/// How long a manager that does not read may hold us up.
const PATIENCE: Duration = Duration::from_secs(1);

/// How much of a status is sent; the manager shows one line.
const MAX_STATUS: usize = 512;

/// Why the service manager can't be told.
#[derive(Debug, thiserror::Error)]
pub enum NotifyError {
    #[error("NOTIFY_SOCKET {} is not supported: expected a path or @name", quote(.0))]
    Address(String),
    #[error("tell the service manager through {}: {cause}", quote(.address))]
    Socket { address: String, cause: Cause },
}

/// A way to the service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    manager: Option<(UnixDatagram, String)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Returns the way that the environment names, or a silent one. `process` is our own id: a
    /// watchdog for another process is not ours to feed.
    pub fn from_env(environ: &BTreeMap<String, String>, process: u32) -> Result<Self, NotifyError> {
        let given = |name: &str| environ.get(name).filter(|value| !value.is_empty());
        let Some(text) = given("NOTIFY_SOCKET") else {
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
        socket.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
        let is_ours = given("WATCHDOG_PID").is_none_or(|pid| *pid == process.to_string());
        let watchdog = given("WATCHDOG_USEC")
            .and_then(|text| text.parse().ok())
            .filter(|usec| is_ours && *usec > 0)
            .map(Duration::from_micros);
        Ok(Self {
            manager: Some((socket, text.clone())),
            watchdog,
        })
    }

    /// Returns how often [`alive`](Self::alive) should be said, if anyone wants to hear it: twice
    /// in the time after which we would be killed.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog.map(|limit| limit / 2)
    }

    /// Says that we started, or finished reloading.
    pub fn ready(&self, status: &str) -> Result<(), NotifyError> {
        self.send(&format!("READY=1\n{}", status_field(status)))
    }

    /// Says what we do, for a person.
    pub fn status(&self, status: &str) -> Result<(), NotifyError> {
        self.send(&status_field(status))
    }

    /// Says that we are not stuck.
    pub fn alive(&self) -> Result<(), NotifyError> {
        self.send("WATCHDOG=1\n")
    }

    /// Says that we read our file again; [`ready`](Self::ready) ends it.
    pub fn reloading(&self, clock: &dyn Clock) -> Result<(), NotifyError> {
        let now = clock.monotonic().as_micros();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={now}\n"))
    }

    /// Says that we are about to end.
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

/// Returns the field of a status, on the one line it may have.
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

    fn heard(manager: &UnixDatagram) -> String {
        let mut buffer = [0; 4096];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_manager_with_a_path_hears_every_word() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let environ = environ(&[("NOTIFY_SOCKET", path.to_str().unwrap())]);
        let notifier = Notifier::from_env(&environ, 1).unwrap();
        let clock = FixedClock::new(chrono::DateTime::UNIX_EPOCH);
        clock.advance(Duration::from_millis(5));
        notifier.ready("2 manifests").unwrap();
        notifier.status("applying\n/srv/site").unwrap();
        notifier.alive().unwrap();
        notifier.reloading(&clock).unwrap();
        notifier.stopping().unwrap();
        for expected in [
            "READY=1\nSTATUS=2 manifests\n",
            "STATUS=applying /srv/site\n",
            "WATCHDOG=1\n",
            "RELOADING=1\nMONOTONIC_USEC=5000\n",
            "STOPPING=1\n",
        ] {
            assert_eq!(heard(&manager), expected);
        }
    }

    #[test]
    fn a_manager_with_an_abstract_name_hears_us_too() {
        let name = format!("ccm-notify-{:032x}", ccm_core::system::random().unwrap());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let environ = environ(&[("NOTIFY_SOCKET", &format!("@{name}"))]);
        let notifier = Notifier::from_env(&environ, 1).unwrap();
        notifier.ready("up").unwrap();
        assert_eq!(heard(&manager), "READY=1\nSTATUS=up\n");
    }

    #[test]
    fn without_a_manager_everything_is_silent() {
        for environ in [environ(&[]), environ(&[("NOTIFY_SOCKET", "")])] {
            let notifier = Notifier::from_env(&environ, 1).unwrap();
            notifier.ready("up").unwrap();
            assert_eq!(notifier.watchdog(), None);
        }
    }

    #[test]
    fn an_address_that_is_no_socket_of_ours_is_refused() {
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
    fn a_watchdog_is_fed_twice_in_its_time_if_it_is_ours() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("notify");
        let _manager = UnixDatagram::bind(&path).unwrap();
        let watchdog = |pid| {
            let environ = environ(&[
                ("NOTIFY_SOCKET", path.to_str().unwrap()),
                ("WATCHDOG_USEC", "30000000"),
                ("WATCHDOG_PID", pid),
            ]);
            Notifier::from_env(&environ, 7).unwrap().watchdog()
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
