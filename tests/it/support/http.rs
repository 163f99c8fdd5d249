//! A web server on loopback that does what a test says, well or badly, and records its
//! requests. Speaks HTTP/1.1, one request per connection, with or without TLS.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::poll::wait_for;

/// A request that the server received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub method: String,
    /// The target as it was sent.
    pub path: String,
    pub body: String,
    headers: Vec<(String, String)>,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers(name).first().copied()
    }

    /// Returns all values of a header.
    pub fn headers(&self, name: &str) -> Vec<&str> {
        let named = |(key, _): &&(String, String)| key.eq_ignore_ascii_case(name);
        let headers = self.headers.iter().filter(named);
        headers.map(|(_, value)| value.as_str()).collect()
    }
}

/// The response of the server.
#[derive(Clone, Debug)]
pub struct Response {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// What Content-Length says, if that is not the truth.
    length: Option<usize>,
    /// Sends the head, and then nothing more until the server goes.
    hangs: bool,
}

impl Response {
    pub fn new(status: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            length: None,
            hangs: false,
        }
    }

    pub fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self::new("200 OK", body)
    }

    pub fn redirect(to: impl Into<String>) -> Self {
        Self::new("302 Found", "elsewhere").with("Location", to)
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Announces another length than the body has.
    pub fn announcing(mut self, length: usize) -> Self {
        self.length = Some(length);
        self
    }

    pub fn hanging(mut self) -> Self {
        self.hangs = true;
        self
    }
}

type Handler = dyn Fn(&ReceivedRequest) -> Response + Send + Sync;

struct Shared {
    handler: Box<Handler>,
    requests: Mutex<Vec<ReceivedRequest>>,
    is_over: AtomicBool,
    tls: Option<Arc<ServerConfig>>,
}

/// A running server; it ends when dropped.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(handler: impl Fn(&ReceivedRequest) -> Response + Send + Sync + 'static) -> Self {
        Self::listen(Box::new(handler), None)
    }

    /// Serves the same bytes at every path.
    pub fn serving(body: impl Into<Vec<u8>>) -> Self {
        let answer = Response::ok(body);
        Self::start(move |_| answer.clone())
    }

    /// Speaks TLS; who signs for it is written to a file.
    pub fn start_tls(
        ca_file: &Path,
        handler: impl Fn(&ReceivedRequest) -> Response + Send + Sync + 'static,
    ) -> Self {
        let authority = Authority::new(ca_file);
        let config = tls_config(&authority, WebPkiClientVerifier::no_client_auth());
        Self::listen(Box::new(handler), Some(config))
    }

    /// Speaks TLS with who shows a certificate of the same authority. Writes `ca.pem`,
    /// `client.pem`, a certificate that will do, and its key, `client.key`.
    pub fn start_mutual_tls(
        directory: &Path,
        handler: impl Fn(&ReceivedRequest) -> Response + Send + Sync + 'static,
    ) -> Self {
        let authority = Authority::new(&directory.join("ca.pem"));
        let (certificate, key) = authority.sign("client");
        std::fs::write(directory.join("client.pem"), certificate.pem()).unwrap();
        std::fs::write(directory.join("client.key"), key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.certificate.clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let config = tls_config(&authority, verifier.build().unwrap());
        Self::listen(Box::new(handler), Some(config))
    }

    fn listen(handler: Box<Handler>, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            handler,
            requests: Mutex::default(),
            is_over: AtomicBool::new(false),
            tls,
        });
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if for_thread.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&for_thread);
                std::thread::spawn(move || shared.accept(stream));
            }
        });
        Self {
            address,
            shared,
            thread: Some(thread),
        }
    }

    /// Returns the URL of a path, whose text may start with `user:password@`.
    pub fn url(&self, path: &str) -> String {
        let (credentials, path) = path.split_at(path.find('/').unwrap());
        let scheme = match self.shared.tls {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{credentials}{}{path}", self.address)
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.requests.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the listener, which then finds that it is over.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn accept(&self, stream: TcpStream) {
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).unwrap();
        stream.set_write_timeout(limit).unwrap();
        match &self.tls {
            None => self.converse(stream),
            Some(config) => {
                let connection = ServerConnection::new(Arc::clone(config)).unwrap();
                self.converse(StreamOwned::new(connection, stream));
            }
        }
    }

    /// Takes one request and answers it. A client that goes away is its own business.
    fn converse(&self, stream: impl Read + Write) {
        let mut stream = BufReader::new(stream);
        let Some(request) = read_request(&mut stream) else {
            return;
        };
        self.requests.lock().unwrap().push(request.clone());
        let answer = (self.handler)(&request);
        let length = answer.length.unwrap_or(answer.body.len());
        let mut head = format!("HTTP/1.1 {}\r\nConnection: close\r\n", answer.status);
        if answer.status != "304 Not Modified" {
            head.push_str(&format!("Content-Length: {length}\r\n"));
        }
        for (name, value) in &answer.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        let stream = stream.get_mut();
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.flush();
        wait_for("the end of the server", || {
            !answer.hangs || self.is_over.load(Ordering::SeqCst)
        });
        let _ = stream.write_all(&answer.body);
        let _ = stream.flush();
    }
}

fn read_request(stream: &mut impl std::io::BufRead) -> Option<ReceivedRequest> {
    let mut stream = stream.take(64 * 1024);
    let mut lines = stream.by_ref().lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = Vec::new();
    for line in lines {
        let line = line.ok()?;
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    let mut request = ReceivedRequest {
        method,
        path,
        body: String::new(),
        headers,
    };
    let length = request
        .header("Content-Length")
        .unwrap_or("0")
        .parse()
        .ok()?;
    stream.take(length).read_to_string(&mut request.body).ok()?;
    Some(request)
}

/// Who signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    /// Makes one, and writes its certificate to a file.
    fn new(file: &Path) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(file, certificate.pem()).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            certificate: certificate.der().clone(),
        }
    }

    fn sign(&self, name: &str) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.into()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns how a server speaks TLS on loopback.
fn tls_config(authority: &Authority, clients: Arc<dyn ClientCertVerifier>) -> Arc<ServerConfig> {
    let (certificate, key) = authority.sign("127.0.0.1");
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    Arc::new(config)
}
