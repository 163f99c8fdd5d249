//! Real NATS servers: one or a cluster, each with a store of its own, gone when dropped.
//!
//! The program comes from PATH, else from where `scripts/lib/setup.sh` puts it below `target/`.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use ccm_nats::{ConnectMode, Connection, Settings, connect};
use rustix::process::{Pid, Signal, kill_process};

use super::poll::{LIMIT, eventually, wait_for};

/// A server or a cluster, as a fleet sees it.
pub trait Bus {
    /// Returns the URLs of all servers, joined by commas.
    fn urls(&self) -> String;

    /// Returns how many servers keep each stream.
    fn replicas(&self) -> usize;
}

impl Bus for NatsServer {
    fn urls(&self) -> String {
        self.url()
    }

    fn replicas(&self) -> usize {
        1
    }
}

impl Bus for Cluster {
    fn urls(&self) -> String {
        self.url()
    }

    fn replicas(&self) -> usize {
        self.servers.len()
    }
}

/// A server with JetStream.
pub struct NatsServer {
    directory: tempfile::TempDir,
    config: String,
    host: &'static str,
    /// The port that the server was given at its first start, and keeps.
    port: Option<u16>,
    child: Option<Child>,
}

impl NatsServer {
    /// Starts a server that everyone may use.
    pub fn start() -> Self {
        Self::with("")
    }

    /// Starts a server with more lines in its configuration.
    pub fn with(config: &str) -> Self {
        Self::on("127.0.0.1", config)
    }

    /// Starts a server that listens on every address, for tests in a network of their own.
    pub fn on_all_addresses(config: &str) -> Self {
        Self::on("0.0.0.0", config)
    }

    fn on(host: &'static str, config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut server = Self {
            directory,
            config: config.into(),
            host,
            port: None,
            child: None,
        };
        server.resume();
        server
    }

    pub fn url(&self) -> String {
        self.url_at("127.0.0.1")
    }

    /// Returns the URL of the server at another address it listens on.
    pub fn url_at(&self, host: &str) -> String {
        format!("nats://{host}:{}", self.port.unwrap())
    }

    /// Kills the server as a power cut would.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Freezes the server: its connections stay open and nothing is answered.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Returns a function that does the same as [`NatsServer::freeze`], for another thread.
    pub fn freezer(&self) -> impl FnOnce() + Send + 'static {
        let pid = Pid::from_child(self.child.as_ref().unwrap());
        move || kill_process(pid, Signal::STOP).unwrap()
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.child.as_ref().unwrap());
        kill_process(pid, signal).unwrap();
    }

    /// Starts a stopped server again, with the same port and store.
    pub fn resume(&mut self) {
        let directory = self.directory.path();
        let (store, file) = (directory.join("store"), directory.join("server.conf"));
        let port = self.port.map_or(-1, i32::from);
        let text = format!(
            "listen: \"{}:{port}\"\nports_file_dir: {directory:?}\n\
             jetstream {{ store_dir: {store:?} }}\n{}\n",
            self.host, self.config
        );
        std::fs::write(&file, text).unwrap();
        let log = std::fs::File::create(self.directory.path().join("log")).unwrap();
        let child = Command::new(tool("nats-server"))
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let ports = directory.join(format!("nats-server_{}.ports", child.id()));
        self.child = Some(child);
        let port = wait_for("a server that is ready", || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "no server: {}", self.log());
            let is_ready = self.log().contains("Server is ready");
            let port = is_ready.then(|| client_port(&ports)).flatten();
            port.ok_or_else(|| self.log())
        });
        self.port = Some(port);
    }

    /// Kills the server and starts it again without anything that it had stored.
    pub fn lose_storage(&mut self) {
        self.stop();
        std::fs::remove_dir_all(self.directory.path().join("store")).unwrap();
        self.resume();
    }

    pub fn restart(&mut self) {
        self.stop();
        self.resume();
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub fn settings(&self) -> Settings {
        Settings::plain(&self.url()).unwrap()
    }

    /// Returns a connection of ours.
    pub async fn client(&self) -> Connection {
        connect(&self.settings(), ConnectMode::Once(LIMIT), "test")
            .await
            .unwrap()
    }

    /// Returns a JetStream client that knows nothing of ours.
    pub async fn jetstream(&self) -> async_nats::jetstream::Context {
        let client = async_nats::connect(self.url()).await.unwrap();
        async_nats::jetstream::new(client)
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Three servers that keep each other's data.
pub struct Cluster {
    pub servers: Vec<NatsServer>,
}

impl Cluster {
    pub fn start() -> Self {
        // JetStream wants to know all routes before the first server starts.
        let address = own_address();
        let ports = [6222, 6223, 6224];
        let all = ports.map(|port| format!("\"nats://{address}:{port}\""));
        let servers = (1..).zip(ports).map(|(number, port)| {
            NatsServer::with(&format!(
                "server_name: n{number}\n\
                 cluster {{ name: c, listen: \"{address}:{port}\", routes: [{}] }}",
                all.join(", ")
            ))
        });
        Self {
            servers: servers.collect(),
        }
    }

    /// Returns the URLs of all servers, joined by commas.
    pub fn url(&self) -> String {
        let urls: Vec<String> = self.servers.iter().map(NatsServer::url).collect();
        urls.join(",")
    }

    /// Returns the position of the server that leads a stream, as another server knows it.
    pub async fn leader(&self, stream: &str, asked: usize) -> Option<usize> {
        let jetstream = self.servers[asked].jetstream().await;
        let mut stream = jetstream.get_stream(stream).await.ok()?;
        let leader = stream.info().await.ok()?.cluster.clone()?.leader?;
        let number: usize = leader.strip_prefix('n')?.parse().ok()?;
        Some(number - 1)
    }

    /// Returns a connection of ours, once the cluster has a leader.
    pub async fn client(&self) -> Connection {
        let settings = Settings::plain(&self.url()).unwrap();
        let client = connect(&settings, ConnectMode::Once(LIMIT), "test")
            .await
            .unwrap();
        let raw = async_nats::connect(self.servers[0].url()).await.unwrap();
        let jetstream = async_nats::jetstream::new(raw);
        eventually("a leader", async || jetstream.query_account().await).await;
        client
    }
}

/// Runs a Python program with nats-py, a client of another project, and returns its output.
pub fn python(program: &str, args: &[&str]) -> String {
    let output = Command::new(tool("python3"))
        .arg(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("tests/data/nats")
                .join(program),
        )
        .args(args)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a program that `scripts/lib/setup.sh` installs. Python must be the one beside the
/// server: another has no nats-py.
pub fn tool(name: &str) -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/python/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain([installed]);
    let found =
        places.find(|place| place.join("nats-server").is_file() && place.join(name).exists());
    match found {
        Some(place) => place.join(name),
        None => panic!("{name} is missing: `scripts/test` installs it below target/tools"),
    }
}

/// Returns the port for clients from the file in which a server reports its ports, once it is
/// whole.
fn client_port(file: &Path) -> Option<u16> {
    let text = std::fs::read(file).ok()?;
    let ports: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let (_, port) = ports["nats"][0].as_str()?.rsplit_once(':')?;
    port.parse().ok()
}

/// The port of an agent's monitor at an address of its own.
pub const MONITOR: u16 = 9100;

/// Returns a loopback address that no other test uses, for what can't be given port 0: there, every
/// port is free.
pub fn own_address() -> Ipv4Addr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    assert!(number < u8::MAX, "too many addresses");
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, number, high, low)
}
