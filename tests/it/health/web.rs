//! Goss rules of type `http` against servers of every sort, from manifest to event.

use serde_json::Value;

use crate::support::TestEnv;
use crate::support::http::{Response, Server};

/// Applies a resource whose one check has this `http` entry; returns the result of the check, and
/// every line about it.
fn check(env: &TestEnv, url: &str, attributes: &str) -> (Value, String) {
    let rules = format!("goss_rules: {{http: {{'{url}': {{{attributes}}}}}}}");
    let entry = format!("- exec: {{name: /bin/true, health_checks: [{{{rules}}}]}}\n");
    let applied = env.apply(&entry, &[]);
    let outcome = env.ccm(&["apply", "manifest.yaml", "--debug"]);
    (
        applied.event(0)["health_check"][0].clone(),
        outcome.stdout + &outcome.stderr,
    )
}

#[track_caller]
fn passes(url: &str, attributes: &str) {
    let (result, lines) = check(&TestEnv::new(), url, attributes);
    assert_eq!(result["status"], 0, "{result}\n{lines}");
}

/// Checks that an entry is CRITICAL, and that one line says why.
#[track_caller]
fn fails(url: &str, attributes: &str, reason: &str) {
    let (result, lines) = check(&TestEnv::new(), url, attributes);
    assert_eq!(result["status"], 2, "{result}\n{lines}");
    let is_told = |line: &&str| line.contains("ERROR") && line.contains(reason);
    assert_eq!(lines.lines().filter(is_told).count(), 1, "{lines}");
}

#[test]
fn the_status_of_a_page_is_what_the_rule_says_or_critical() {
    let server = Server::start(|request| match request.path.as_str() {
        "/gone" => Response::new("410 Gone", "was here"),
        _ => Response::ok("here"),
    });
    passes(&server.url("/"), "status: 200");
    passes(&server.url("/gone"), "status: 410, body: [was]");
    passes(&server.url("/gone"), "status: {ge: 400}");
    let url = server.url("/gone");
    let reason = format!("HTTP: {url}: status: Expected 410 to be numerically eq 200");
    fails(&url, "status: 200", &reason);
}

#[test]
fn a_rule_that_fails_fails_the_resource() {
    let env = TestEnv::new();
    let server = Server::start(|_| Response::new("500 Oops", ""));
    let rules = format!(
        "goss_rules: {{http: {{'{}': {{status: 200, body: [x]}}}}}}",
        server.url("/")
    );
    let entry = format!("- exec: {{name: /bin/true, health_checks: [{{{rules}}}]}}\n");
    let applied = env.apply(&entry, &[]);
    let failure = applied.failure(0);
    let start = "health check status \"CRITICAL\": HTTP: ";
    assert!(failure.starts_with(start), "{failure}");
    let output = applied.event(0)["health_check"][0]["Output"].clone();
    let output = output.as_str().unwrap();
    assert!(output.starts_with("Count: 2, Failed: 1, "), "{output}");
}

#[test]
fn the_body_and_the_headers_are_searched_by_line() {
    let server = Server::start(|_| {
        Response::ok("<h1>\nversion 1.2.3\n</h1>\n")
            .with("content-type", "text/html")
            .with("X-Odd", "b")
            .with("x-odd", "a")
    });
    let url = server.url("/");
    passes(
        &url,
        "status: 200, body: [version, '/^version \\d/', '!error'], \
         headers: ['Content-Type: text/html', 'X-Odd: a', '!Location']",
    );
    passes(&url, "status: 200, body: {contain-substring: 1.2.3}");
    passes(
        &url,
        "status: 200, headers: {match-regexp: 'X-Odd: a\\nX-Odd: b'}",
    );
    fails(&url, "status: 200, body: ['version 2']", "Body: Expected");
    fails(
        &url,
        "status: 200, headers: ['Server:']",
        "Headers: Expected",
    );
}

#[test]
fn a_request_is_sent_as_the_rule_words_it_and_once() {
    let server = Server::start(|request| match request.body.as_str() {
        "a=1" => Response::ok("thanks"),
        _ => Response::new("400 Bad Request", ""),
    });
    passes(
        &server.url("/form"),
        "status: 200, body: [thanks], headers: ['Content-Length: 6'], method: POST, \
         request-body: a=1, request-headers: ['X-A: 1', 'X-A: 2', 'Host: example.net'], \
         username: ann, password: 'p:w'",
    );
    let requests = server.requests();
    assert_eq!(requests.len(), 2, "one for each of two runs");
    let request = &requests[0];
    assert_eq!(request.method, "POST");
    assert_eq!(request.path, "/form");
    assert_eq!(request.header("Host"), Some("example.net"));
    assert_eq!(request.headers("X-A"), ["1", "2"]);
    assert_eq!(request.header("Authorization"), Some("Basic YW5uOnA6dw=="));
    assert!(request.header("User-Agent").unwrap().starts_with("goss/"));

    let named = Server::serving("");
    passes(
        &named.url("/"),
        "status: 200, request-headers: ['user-agent: me']",
    );
    assert_eq!(named.requests()[0].headers("User-Agent"), ["me"]);
}

#[test]
fn redirects_are_followed_unless_the_rule_forbids_it() {
    let server = Server::start(|request| match request.path.as_str() {
        "/old" => Response::redirect("/new"),
        _ => Response::ok("new"),
    });
    let url = server.url("/old");
    passes(&url, "status: 200, body: [new]");
    passes(
        &url,
        "status: 302, no-follow-redirects: true, body: [elsewhere], headers: ['Location: /new']",
    );
    fails(
        &url,
        "status: 200, no-follow-redirects: true",
        "Expected 302",
    );
}

#[test]
fn a_server_that_no_authority_signed_for_passes_only_with_allow_insecure() {
    let env = TestEnv::new();
    let ca_file = env.path("ca.pem");
    let server = Server::start_tls(&ca_file, |_| Response::ok("secret"));
    let url = server.url("/");
    let other = env.path("other.pem");
    drop(Server::start_tls(&other, |_| Response::ok("")));
    let strange = format!("status: 200, ca-file: {}", other.display());
    fails(&url, &strange, "invalid peer certificate");
    assert_eq!(server.requests().len(), 0);
    passes(
        &url,
        &format!("status: 200, ca-file: {}", ca_file.display()),
    );
    passes(&url, "status: 200, body: [secret], allow-insecure: true");
    // A name that is not in the certificate.
    let named = url.replace("127.0.0.1", "localhost");
    passes(&named, "status: 200, allow-insecure: true");
}

#[test]
fn a_server_that_wants_a_certificate_gets_the_rule_s() {
    let env = TestEnv::new();
    let server = Server::start_mutual_tls(env.root(), |_| Response::ok("for members"));
    let url = server.url("/");
    let at = |name: &str| env.at(name);
    let ca = format!("status: 200, body: [members], ca-file: {}", at("ca.pem"));
    let (certificate, key) = (at("client.pem"), at("client.key"));
    passes(
        &url,
        &format!("{ca}, cert-file: {certificate}, key-file: {key}"),
    );
    fails(&url, &ca, "status: Error failed to perform HTTP request");
    fails(
        &url,
        &format!("{ca}, cert-file: {certificate}"),
        "cert-file and key-file must be given together",
    );
    fails(
        &url,
        &format!("{ca}, cert-file: {key}, key-file: {key}"),
        "could not use client certificate: ",
    );
    fails(
        &url,
        &format!("{ca}, cert-file: {certificate}, key-file: {certificate}"),
        "could not use client certificate: no private key in ",
    );
}

#[test]
fn a_server_that_does_not_answer_in_time_is_critical() {
    let server = Server::start(|_| Response::ok("never").hanging());
    let url = server.url("/");
    // The head came in time; only who wants the body waits for it.
    passes(&url, "status: 200, timeout: 2000");
    let reason = "could not copy file: not complete within 300ms";
    fails(&url, "status: 200, body: [never], timeout: 300", reason);
}

#[test]
fn an_unreachable_server_is_tried_once_and_critical() {
    let server = Server::serving("");
    let url = server.url("ann:secret@/");
    drop(server);
    let (result, lines) = check(&TestEnv::new(), &url, "status: 200, method: HEAD");
    assert_eq!(result["status"], 2, "{lines}");
    assert!(lines.contains("request: Head \""), "{lines}");
    assert!(lines.contains("connection refused"), "{lines}");
    assert!(!lines.contains("secret"), "{lines}");
}

#[test]
fn a_proxy_that_the_rule_names_is_used() {
    let proxy = Server::serving("by proxy");
    passes(
        "http://nowhere.example.net/x",
        &format!("status: 200, body: [by proxy], proxy: '{}'", proxy.url("/")),
    );
    assert_eq!(proxy.requests()[0].path, "http://nowhere.example.net/x");
}

#[test]
fn a_page_can_get_well_between_two_tries() {
    let env = TestEnv::new();
    let marker = env.path("marker");
    let server = Server::start(move |_| match marker.exists() {
        true => Response::ok(""),
        false => {
            std::fs::write(&marker, "").unwrap();
            Response::new("503 Service Unavailable", "")
        }
    });
    let rules = format!(
        "goss_rules: {{http: {{'{}': {{status: 200}}}}}}",
        server.url("/")
    );
    let entry = format!(
        "- exec: {{name: /bin/true, health_checks: [{{{rules}, tries: 3, try_sleep: 1ms}}]}}\n"
    );
    let applied = env.apply(&entry, &[]);
    let result = &applied.event(0)["health_check"][0];
    assert_eq!(
        (&result["status"], &result["tries"]),
        (&0.into(), &2.into())
    );
}
