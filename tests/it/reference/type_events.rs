//! The part of an event that depends on the type of its resource, from a real run of each type.

use serde_json::{Value, json};

use crate::support::http::Server;
use crate::support::packages::write_nginx_module;
use crate::support::root::ScratchRoot;
use crate::support::systemd::systemd_host;
use crate::support::{TestEnv, pack};

/// Fields of an event that do not depend on the type of the resource.
const COMMON: [&str; 9] = [
    "protocol",
    "event_id",
    "timestamp",
    "duration",
    "failed",
    "skipped",
    "noop",
    "unmet_requirements",
    "error",
];

/// Fields of a state that do not depend on the type of the resource.
const COMMON_STATE: [&str; 8] = [
    "timestamp",
    "protocol",
    "type",
    "name",
    "changed",
    "refreshed",
    "stable",
    "noop",
];

/// Returns the part of the event of a changed resource that depends on its type, and the directory
/// that is replaced by `/`.
pub(super) fn event(type_name: &str) -> (Value, String) {
    match type_name {
        "user" | "group" => return (account_event(type_name), String::new()),
        "service" => return (service_event(), String::new()),
        _ => {}
    }
    let env = TestEnv::new();
    std::fs::create_dir(env.path("srv")).unwrap();
    let mut server = None;
    let resource = match type_name {
        "file" => {
            env.write("srv/app.conf", "listen 80\n");
            json!({"name": env.at("srv/app.conf"), "ensure": "present", "content": "listen 8080\n",
                   "owner": "root", "group": "root", "mode": "0640"})
        }
        "exec" => {
            let touch = format!("/usr/bin/touch {}", env.at("srv/initialized"));
            json!({"name": touch, "creates": env.at("srv/initialized")})
        }
        "package" => {
            let provider = write_nginx_module(&env, "srv");
            json!({"name": "nginx", "ensure": "1.24", "provider": provider})
        }
        "scaffold" => {
            env.write("templates/app.conf", "listen [[ data.port ]]\n");
            json!({"name": env.at("srv/app"), "ensure": "present", "source": env.at("templates"),
                   "engine": "jet", "data": {"port": 8080}})
        }
        "archive" => {
            let web = Server::serving(pack::tgz(&[("app/VERSION", "1.0\n")]));
            let url = web.url("/app.tgz");
            server = Some(web);
            json!({"name": env.at("srv/app.tgz"), "ensure": "present", "url": url,
                   "extract_parent": env.at("srv"), "creates": env.at("srv/app"),
                   "owner": "root", "group": "root"})
        }
        "link" => {
            std::os::unix::fs::symlink("app-1.0", env.path("srv/app")).unwrap();
            json!({"name": env.at("srv/app"), "ensure": "present", "target": "app-1.1"})
        }
        "line" => {
            env.write("srv/app.conf", "port = 80\n");
            json!({"name": env.at("srv/app.conf"), "match": "^port *=", "line": "port = 8080"})
        }
        "apply" => {
            let nested = json!({"ccm": {"resources": [{"exec": {"name": "/bin/true"}}]}});
            env.write("common.yaml", nested.to_string());
            json!({"name": "common.yaml"})
        }
        _ => panic!("no sample of {type_name}"),
    };
    let manifest = json!({"ccm": {"resources": [{type_name: resource}]}});
    env.write("site.json", manifest.to_string());
    let outcome = env.ccm(&["apply", "site.json", "--json"]);
    let document: Value = serde_json::from_str(&outcome.ok()).unwrap();
    // The resources of a nested manifest come before it.
    let event = document["events"].as_array().unwrap().last().unwrap();
    let text = type_fields(event.clone()).to_string();
    let text = match &server {
        Some(server) => text.replace(
            server.url("/").trim_end_matches('/'),
            "http://files.example.net",
        ),
        None => text,
    };
    (serde_json::from_str(&text).unwrap(), "$DIR".into())
}

/// Returns the event of a changed user or group, in a system of its own.
fn account_event(type_name: &str) -> Value {
    let root = ScratchRoot::new();
    root.shell("groupadd -g 4200 app && useradd -u 4200 -g app -s /bin/sh app")
        .ok();
    let properties = match type_name {
        "user" => "{shell: /usr/sbin/nologin, locked: true}",
        _ => "{gid: 4300}",
    };
    let entry = format!("    - {type_name}:\n        - app: {properties}\n");
    type_fields(root.apply(&entry, &[]).event(0).clone())
}

/// Returns the event of a service that was started, on a booted system.
fn service_event() -> Value {
    let host = systemd_host();
    host.unit(
        "app.service",
        "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n",
    );
    host.sh("systemctl daemon-reload; systemctl disable --now app");
    let entry = "- service: {name: app, ensure: running, enable: true}\n";
    let event = type_fields(host.apply(entry, &[]).event(0).clone());
    host.sh(
        "systemctl disable --now app; rm /etc/systemd/system/app.service; systemctl daemon-reload",
    );
    event
}

/// Returns the fields of the event of a changed resource that depend on its type.
fn type_fields(mut event: Value) -> Value {
    assert_eq!(event["changed"], true, "{event:#}");
    let fields = event.as_object_mut().unwrap();
    fields.retain(|name, _| !COMMON.contains(&name.as_str()));
    let state = fields["status"].as_object_mut().unwrap();
    state.retain(|name, _| !COMMON_STATE.contains(&name.as_str()));
    event
}
