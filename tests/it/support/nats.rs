//! Real NATS servers: one or a cluster, each with a store of its own, gone when dropped.
//!
//! The program comes from PATH, else from where `scripts/lib/setup.sh` puts it below `target/`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ccm::nats::{Connection, Patience, Settings, connect};

/// How long anything here may take before a test gives up.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A server with JetStream.
pub struct NatsServer {
    directory: tempfile::TempDir,
    config: String,
    host: &'static str,
    port: u16,
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
            port: free_port(),
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
        format!("nats://{host}:{}", self.port)
    }

    /// Kills the server as a power cut would.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts a stopped server again, with the same port and store.
    pub fn resume(&mut self) {
        let store = self.directory.path().join("store");
        let file = self.directory.path().join("server.conf");
        let text = format!(
            "listen: \"{}:{}\"\njetstream {{ store_dir: {store:?} }}\n{}\n",
            self.host, self.port, self.config
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
        self.child = Some(child);
        let since = Instant::now();
        while !self.log().contains("Server is ready") {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            let is_late = since.elapsed() > LIMIT;
            assert!(ended.is_none() && !is_late, "no server: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
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
        connect(&self.settings(), Patience::Once(LIMIT), "test")
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
        let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let all: Vec<String> = routes
            .iter()
            .map(|port| format!("\"nats://127.0.0.1:{port}\""))
            .collect();
        let servers = (1..).zip(&routes).map(|(number, port)| {
            NatsServer::with(&format!(
                "server_name: n{number}\n\
                 cluster {{ name: c, listen: \"127.0.0.1:{port}\", routes: [{}] }}",
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

    /// Returns a connection of ours, once the cluster has a leader.
    pub async fn client(&self) -> Connection {
        let settings = Settings::plain(&self.url()).unwrap();
        let client = connect(&settings, Patience::Once(LIMIT), "test")
            .await
            .unwrap();
        let raw = async_nats::connect(self.servers[0].url()).await.unwrap();
        let jetstream = async_nats::jetstream::new(raw);
        let since = Instant::now();
        while let Err(err) = jetstream.query_account().await {
            assert!(since.elapsed() < LIMIT, "no leader: {err}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        client
    }
}

/// Runs a Python program with nats-py, a client that nobody here wrote, and returns what it says.
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

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
