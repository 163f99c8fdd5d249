//! A connection to NATS that breaks, or starts a fault, when a client sends a certain text.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What is done once, before a text is passed on.
type Fault = (String, Box<dyn FnOnce() + Send>);

/// Passes bytes between clients and a server, and drops the connection of every client that sends a
/// certain text. Its threads end with the test.
pub struct Proxy {
    address: String,
    fault: Arc<Mutex<Option<Fault>>>,
    forbidden: Arc<Mutex<Option<String>>>,
    dropped: Arc<AtomicUsize>,
}

impl Proxy {
    /// Starts a proxy for a server, given by its URL.
    pub fn start(server: &str) -> Self {
        let server = server.trim_start_matches("nats://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap().to_string(),
            fault: Arc::default(),
            forbidden: Arc::default(),
            dropped: Arc::default(),
        };
        let (forbidden, dropped) = (proxy.forbidden.clone(), proxy.dropped.clone());
        let fault = proxy.fault.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else {
                    continue;
                };
                let (back_from, back_to) = (server.try_clone(), client.try_clone());
                std::thread::spawn(move || pass(back_from.unwrap(), back_to.unwrap(), |_| true));
                let (forbidden, dropped) = (forbidden.clone(), dropped.clone());
                let fault = fault.clone();
                std::thread::spawn(move || {
                    pass(client, server, |bytes| {
                        let text = String::from_utf8_lossy(bytes);
                        let mut fault = fault.lock().unwrap();
                        if let Some((_, start)) = fault.take_if(|(on, _)| text.contains(&**on)) {
                            start();
                        }
                        let forbidden = forbidden.lock().unwrap();
                        let is_bad = forbidden.as_ref().is_some_and(|bad| text.contains(bad));
                        dropped.fetch_add(usize::from(is_bad), Ordering::Relaxed);
                        !is_bad
                    });
                });
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Drops connections from now on when they send this text; `None` passes everything.
    pub fn forbid(&self, text: Option<&str>) {
        *self.forbidden.lock().unwrap() = text.map(str::to_owned);
    }

    /// Starts a fault once, before this text is passed on.
    pub fn fault_on(&self, text: &str, start: impl FnOnce() + Send + 'static) {
        *self.fault.lock().unwrap() = Some((text.to_owned(), Box::new(start)));
    }

    /// Returns how many connections were dropped.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, accept: impl Fn(&[u8]) -> bool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !accept(&buffer[..count]) || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
