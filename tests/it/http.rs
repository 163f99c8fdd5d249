//! The HTTP client against servers that behave well and badly.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use ccm_core::system::http::{self, Head, OnProgress, Reply, Request, Validators};
use ccm_core::system::{Digest, FixedClock, SystemClock};
use ccm_value::secret::Secret;

use crate::support::http::{Response, Server};
use crate::support::{TestEnv, pack};

const LIMIT: Duration = Duration::from_secs(20);

fn request(url: &str) -> Request<'_> {
    Request::new(url, LIMIT, 1_000_000)
}

/// Returns the body, or why there is none.
fn body(request: &Request<'_>) -> Result<String, String> {
    let mut body = Vec::new();
    match http::get(request, &SystemClock, &mut body) {
        Ok(Reply::Complete(received)) => {
            assert_eq!(received.digest, Digest::of(&body));
            assert_eq!(received.size, u64::try_from(body.len()).unwrap());
            Ok(String::from_utf8(body).unwrap())
        }
        Ok(Reply::NotModified) => Err("not modified".into()),
        Err(err) => Err(err.to_string()),
    }
}

fn get(url: &str) -> Result<String, String> {
    body(&request(url))
}

#[test]
fn a_body_arrives_whole_with_its_digest() {
    let text = "body ".repeat(50_000);
    let server = Server::serving(text.clone());
    assert_eq!(get(&server.url("/x")), Ok(text));
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].header("Authorization"), None);
    assert!(
        requests[0]
            .header("User-Agent")
            .unwrap()
            .starts_with("ccm/")
    );
}

#[test]
fn any_status_but_200_is_an_error_with_its_words() {
    for (status, text) in [
        (
            "500 Oops",
            "HTTP request failed with status 500: 500 Internal Server Error",
        ),
        (
            "404 Not Found",
            "HTTP request failed with status 404: 404 Not Found",
        ),
        (
            "204 No Content",
            "HTTP request failed with status 204: 204 No Content",
        ),
        (
            "304 Not Modified",
            "HTTP request failed with status 304: 304 Not Modified",
        ),
        // A redirect to nowhere.
        (
            "302 Found",
            "HTTP request failed with status 302: 302 Found",
        ),
    ] {
        let server = Server::start(move |_| Response::new(status, ""));
        assert_eq!(get(&server.url("/x")), Err(text.into()));
    }
}

#[test]
fn redirects_are_followed_ten_times_and_no_more() {
    let server =
        Server::start(
            |received| match received.path.trim_start_matches('/').parse::<usize>() {
                Ok(0) => Response::ok("arrived"),
                Ok(left) => Response::redirect(format!("/{}", left - 1)),
                Err(_) => Response::redirect(received.path.clone()),
            },
        );
    assert_eq!(get(&server.url("/10")), Ok("arrived".into()));
    for path in ["/11", "/around"] {
        let url = server.url(path);
        let expected =
            format!("failed to perform HTTP request: Get \"{url}\": stopped after 10 redirects");
        assert_eq!(get(&url), Err(expected));
    }
}

#[test]
fn credentials_and_headers_are_not_sent_to_another_server() {
    let other = Server::serving("other");
    let elsewhere = other.url("/there");
    let server = Server::start(move |received| match received.path.as_str() {
        "/same" => Response::redirect("/leave"),
        _ => Response::redirect(elsewhere.clone()),
    });
    let url = server.url("ann:pw@/same");
    let mut request = request(&url);
    let token = Secret::new("t");
    request.headers.push(("X-Token", &token));
    assert_eq!(body(&request), Ok("other".into()));
    for received in server.requests() {
        assert_eq!(
            received.header("Authorization"),
            Some("Basic YW5uOnB3"),
            "{received:?}"
        );
        assert_eq!(received.header("X-Token"), Some("t"), "{received:?}");
    }
    let received = &other.requests()[0];
    assert_eq!(received.header("Authorization"), None);
    assert_eq!(received.header("X-Token"), None);
}

#[test]
fn credentials_are_given_in_the_url_or_beside_it_and_a_header_beats_both() {
    let server = Server::serving("");
    let last = || {
        let received = server.requests().pop().unwrap();
        received.header("Authorization").unwrap().to_owned()
    };
    let url = server.url("ann:p%40w@/");
    let mut request = request(&url);
    body(&request).unwrap();
    assert_eq!(last(), "Basic YW5uOnBAdw=="); // ann:p@w
    let password = Secret::new("a%b");
    request.credentials = Some(("bob", &password));
    body(&request).unwrap();
    assert_eq!(last(), "Basic Ym9iOmElYg=="); // bob:a%b
    let bearer = Secret::new("Bearer x");
    request.headers.push(("Authorization", &bearer));
    body(&request).unwrap();
    assert_eq!(last(), "Bearer x");
}

#[test]
fn a_body_that_is_cut_off_is_an_error() {
    let server = Server::start(|_| Response::ok("short").announcing(100));
    let error = get(&server.url("/x")).unwrap_err();
    assert!(error.starts_with("could not copy file: "), "{error}");
}

#[test]
fn what_follows_the_announced_length_is_not_the_body() {
    let server = Server::start(|_| Response::ok("body and more").announcing(4));
    assert_eq!(get(&server.url("/x")), Ok("body".into()));
}

#[test]
fn a_body_that_is_too_long_is_refused_as_announced_and_as_it_comes() {
    let expected = Err("could not copy file: larger than 10 bytes".to_owned());
    for answer in [
        Response::ok("12345678901"),
        Response::ok("small").announcing(usize::MAX / 2),
        Response::ok(pack::gzip("0".repeat(1000).as_bytes())).with("Content-Encoding", "gzip"),
    ] {
        let server = Server::start(move |_| answer.clone());
        let url = server.url("/x");
        let mut request = request(&url);
        request.size_limit = 10;
        assert_eq!(body(&request), expected);
    }
}

#[test]
fn a_server_that_hangs_is_given_up() {
    let server = Server::start(|_| Response::ok("never").hanging());
    let url = server.url("/x");
    let mut request = request(&url);
    // Enough to connect, also on a busy machine.
    request.time_limit = Duration::from_secs(3);
    assert_eq!(
        body(&request),
        Err("could not copy file: not complete within 3s".into())
    );
}

#[test]
fn a_body_compressed_for_the_journey_is_the_body() {
    let server = Server::start(|received| {
        assert_eq!(received.header("Accept-Encoding"), Some("gzip"));
        Response::ok(pack::gzip(b"plain")).with("Content-Encoding", "gzip")
    });
    assert_eq!(get(&server.url("/x")), Ok("plain".into()));
}

#[test]
fn what_is_known_is_not_sent_again() {
    let server = Server::start(|received| match received.header("If-None-Match") {
        Some("\"v1\"") => Response::new("304 Not Modified", ""),
        _ => Response::ok("text")
            .with("ETag", "\"v1\"")
            .with("Last-Modified", "Sun, 01 Feb 2026 00:00:00 GMT"),
    });
    let url = server.url("/x");
    let mut request = request(&url);
    let mut out = Vec::new();
    let Reply::Complete(first) = http::get(&request, &SystemClock, &mut out).unwrap() else {
        panic!("there is a body");
    };
    let validators = Validators {
        etag: Some("\"v1\"".into()),
        last_modified: Some("Sun, 01 Feb 2026 00:00:00 GMT".into()),
    };
    assert_eq!(first.validators, validators);
    request.known = first.validators;
    let second = http::get(&request, &SystemClock, &mut Vec::new()).unwrap();
    assert_eq!(second, Reply::NotModified);
    let received = server.requests().pop().unwrap();
    assert_eq!(
        received.header("If-Modified-Since"),
        Some("Sun, 01 Feb 2026 00:00:00 GMT")
    );
}

#[test]
fn a_connection_that_cannot_be_made_is_tried_three_times() {
    let server = Server::serving("");
    let url = server.url("ann:secret@/x");
    drop(server);
    let clock = FixedClock::new(chrono::DateTime::UNIX_EPOCH);
    let error = http::get(&request(&url), &clock, &mut Vec::new()).unwrap_err();
    let shown = url.replace("ann:secret", "REDACTED");
    assert_eq!(
        error.to_string(),
        format!("failed to perform HTTP request: Get \"{shown}\": connection refused")
    );
    let waits = [Duration::from_millis(500), Duration::from_secs(1)];
    assert_eq!(clock.sleeps(), waits);
}

#[test]
fn a_failed_response_is_not_retried() {
    let server = Server::start(|_| Response::new("503 Service Unavailable", ""));
    get(&server.url("/x")).unwrap_err();
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_server_is_believed_if_the_authority_is() {
    let env = TestEnv::new();
    let ca_file = env.path("ca.pem");
    let server = Server::start_tls(&ca_file, |_| Response::ok("secret"));
    let url = server.url("/x");
    let mut request = request(&url);
    request.tls.ca_file = Some(&ca_file);
    assert_eq!(body(&request), Ok("secret".into()));
}

#[test]
fn a_server_that_a_stranger_signed_for_is_refused_at_once() {
    let env = TestEnv::new();
    let server = Server::start_tls(&env.path("ca.pem"), |_| Response::ok("secret"));
    drop(Server::start_tls(&env.path("other.pem"), |_| {
        Response::ok("")
    }));
    let other = env.path("other.pem");
    let url = server.url("/x");
    let mut request = request(&url);
    request.tls.ca_file = Some(&other);
    let clock = FixedClock::new(chrono::DateTime::UNIX_EPOCH);
    let error = http::get(&request, &clock, &mut Vec::new()).unwrap_err();
    assert!(
        error.to_string().contains("invalid peer certificate"),
        "{error}"
    );
    assert_eq!(clock.sleeps().len(), 0);
    assert_eq!(server.requests().len(), 0);
}

#[test]
fn authorities_that_cannot_be_read_are_named() {
    let env = TestEnv::new();
    env.write("ca.pem", "no certificate");
    for (file, reason) in [
        ("ca.pem", "no certificates in "),
        ("gone.pem", "no such file"),
    ] {
        let file = env.path(file);
        let mut request = request("https://127.0.0.1:1/x");
        request.tls.ca_file = Some(Path::new(&file));
        let error = body(&request).unwrap_err();
        assert!(
            error.starts_with("could not use CA certificates: "),
            "{error}"
        );
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_redirect_from_https_to_http_is_refused() {
    let env = TestEnv::new();
    let plain = Server::serving("for all to read");
    let to = plain.url("/x");
    let ca_file = env.path("ca.pem");
    let server = Server::start_tls(&ca_file, move |_| Response::redirect(to.clone()));
    let url = server.url("/x");
    let mut request = request(&url);
    request.tls.ca_file = Some(&ca_file);
    let error = body(&request).unwrap_err();
    assert!(
        error.ends_with("refusing redirect from https to http://127.0.0.1"),
        "{error}"
    );
    assert_eq!(plain.requests().len(), 0);
}

/// Returns how an answer begins and its body, or why there is none.
fn send(request: &Request<'_>) -> Result<(Head, String), String> {
    let mut body = Vec::new();
    let head =
        http::fetch(request, &SystemClock, Some(&mut body)).map_err(|err| err.to_string())?;
    Ok((head, String::from_utf8(body).unwrap()))
}

#[test]
fn a_plain_request_returns_any_status() {
    for (status, code) in [("200 OK", 200), ("404 Not Found", 404), ("503 Busy", 503)] {
        let server = Server::start(move |_| Response::new(status, "said").with("X-A", "1"));
        let (head, body) = send(&request(&server.url("/x"))).unwrap();
        assert_eq!((head.status, body.as_str()), (code, "said"));
        assert!(head.headers.contains(&("x-a".into(), "1".into())));
    }
}

#[test]
fn a_plain_request_is_not_retried() {
    let server = Server::serving("");
    let url = server.url("/x");
    drop(server);
    let clock = FixedClock::new(chrono::DateTime::UNIX_EPOCH);
    http::fetch(&request(&url), &clock, None).unwrap_err();
    assert_eq!(clock.sleeps().len(), 0);
}

#[test]
fn a_head_does_not_tell_how_a_body_was_compressed_that_is_no_longer() {
    let server =
        Server::start(|_| Response::ok(pack::gzip(b"plain")).with("Content-Encoding", "gzip"));
    let url = server.url("/x");
    let has = |head: &Head, name: &str| head.headers.iter().any(|(known, _)| known == name);
    let mut request = request(&url);
    let (head, body) = send(&request).unwrap();
    assert_eq!(body, "plain");
    assert!(!has(&head, "content-encoding") && !has(&head, "content-length"));
    // A caller that requests it gets it unchanged.
    let gzip = Secret::new("gzip");
    request.headers.push(("Accept-Encoding", &gzip));
    let head = http::fetch(&request, &SystemClock, None).unwrap();
    assert!(has(&head, "content-encoding") && has(&head, "content-length"));
}

#[test]
fn a_body_is_redirected_only_to_its_own_host_and_not_with_303() {
    let other = Server::serving("other");
    let elsewhere = other.url("/there");
    let server = Server::start(move |received| match received.path.as_str() {
        "/again" => Response::new("307 Temporary Redirect", "").with("Location", "/end"),
        "/see" => Response::new("303 See Other", "").with("Location", "/end"),
        "/away" => Response::new("308 Permanent Redirect", "").with("Location", elsewhere.clone()),
        _ => Response::ok(format!("{} {}", received.method, received.body)),
    });
    let post = |path: &str| {
        let url = server.url(path);
        let mut request = request(&url);
        (request.method, request.body) = ("POST", b"data");
        send(&request).map(|(_, body)| body)
    };
    assert_eq!(post("/again"), Ok("POST data".into()));
    assert_eq!(post("/see"), Ok("GET ".into()));
    let refused = format!(
        "failed to perform HTTP request: Post \"{}\": refusing to send the request body to 127.0.0.1 after a redirect",
        server.url("/away")
    );
    assert_eq!(post("/away"), Err(refused));
    assert_eq!(other.requests().len(), 0);
}

#[test]
fn our_certificate_is_shown_to_the_host_of_the_url_and_to_no_other() {
    let env = TestEnv::new();
    let members = Server::start_mutual_tls(env.root(), |_| Response::ok("for members"));
    let to = members.url("/x");
    let server = Server::start_tls(&env.path("other.pem"), move |_| {
        Response::redirect(to.clone())
    });
    let (certificate, key) = (env.path("client.pem"), env.path("client.key"));
    let get = |url: &str| {
        let mut request = request(url);
        request.tls.accepts_any_certificate = true;
        request.tls.client_certificate = Some((&certificate, &key));
        send(&request).map(|(_, body)| body)
    };
    assert_eq!(get(&members.url("/x")), Ok("for members".into()));
    assert!(get(&server.url("/x")).is_err());
    assert_eq!(members.requests().len(), 1);
}

#[test]
fn progress_of_a_body_is_reported() {
    let server = Server::serving("body ".repeat(50_000));
    let url = server.url("/x");
    let progress = RefCell::new(Vec::new());
    let watch = |bytes, of| progress.borrow_mut().push((bytes, of));
    let mut request = request(&url);
    request.progress = Some(OnProgress(&watch));
    body(&request).unwrap();
    let progress = progress.into_inner();
    assert!(progress.is_sorted());
    assert_eq!(progress.last(), Some(&(250_000, Some(250_000))));
}
