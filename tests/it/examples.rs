//! Examples of every resource type, property, data source and template language, run for real.
//!
//! Each directory of `tests/data/examples` has the files of one example and a `session.txt`: commands
//! after `$ `, each followed by its output. `ccm apply` prints one line for each resource, all other
//! commands print their standard output. `$DIR` is the directory of the example; `$URL` is a web
//! server with the files of `www` (those of `www/NAME.tgz/` as an archive) and `$NATS` a server with
//! the buckets of `kv` and `obj`. With `CCM_UPDATE_EXPECTED=1` the outputs are written instead of
//! compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use async_nats::jetstream::{kv, object_store};
use serde_json::Value;

use crate::support::http::{Response, Server};
use crate::support::nats::NatsServer;
use crate::support::{TestEnv, files_below, pack};

const SESSION: &str = "session.txt";

/// Returns the directories of all examples.
fn examples() -> Vec<PathBuf> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/examples");
    let mut found: Vec<PathBuf> = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    found.sort();
    found
}

/// Returns all text of an example.
fn text_of(example: &Path) -> String {
    files_below(example)
        .iter()
        .map(|name| std::fs::read_to_string(example.join(name)).unwrap())
        .collect()
}

/// One example with the servers that it uses.
struct Example {
    env: TestEnv,
    web: Option<Server>,
    nats: Option<NatsServer>,
}

impl Example {
    async fn start(directory: &Path) -> Self {
        let text = text_of(directory);
        let mut example = Self {
            env: TestEnv::new(),
            web: None,
            nats: None,
        };
        let files = files_below(directory);
        if text.contains("$URL") {
            example.web = Some(serve(directory, &files));
        }
        if text.contains("$NATS") {
            let server = NatsServer::start();
            fill_buckets(&server, directory, &files).await;
            example.nats = Some(server);
        }
        for name in files.iter().filter(|name| *name != SESSION) {
            let text = std::fs::read_to_string(directory.join(name)).unwrap();
            example.env.write(name, example.expand(&text));
        }
        example
    }

    /// Returns the placeholders with their values.
    fn placeholders(&self) -> Vec<(&'static str, String)> {
        let mut values = vec![("$DIR", self.env.root().to_str().unwrap().to_owned())];
        if let Some(web) = &self.web {
            let url = web.url("/");
            values.push(("$URL", url.trim_end_matches('/').to_owned()));
        }
        if let Some(nats) = &self.nats {
            values.push(("$NATS", nats.url()));
        }
        values
    }

    fn expand(&self, text: &str) -> String {
        let values = self.placeholders();
        values.iter().fold(text.to_owned(), |text, (name, value)| {
            text.replace(name, value)
        })
    }

    fn collapse(&self, text: &str) -> String {
        let values = self.placeholders();
        values.iter().fold(text.to_owned(), |text, (name, value)| {
            text.replace(value, name)
        })
    }

    /// Runs one command and returns what it prints.
    fn run(&self, command: &str) -> String {
        let expanded = self.expand(command);
        let is_apply = expanded.starts_with("ccm apply ") && !expanded.contains("--render");
        let script = match (is_apply, expanded.strip_prefix("ccm ")) {
            (true, Some(rest)) => format!("exec $CCM {rest} --json"),
            (false, Some(rest)) => format!("exec $CCM {rest}"),
            _ => expanded,
        };
        let output = self
            .env
            .program("/bin/sh")
            .args(["-c", &script])
            .env("CCM", env!("CARGO_BIN_EXE_ccm"))
            .output()
            .unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{command}: {stderr}{stdout}");
        let shown = match is_apply {
            true => outcomes(&stdout),
            false => stdout,
        };
        self.collapse(&shown)
    }
}

/// Returns one line for each event: label, outcome, and what noop would have done.
fn outcomes(stdout: &str) -> String {
    let document: Value = serde_json::from_str(stdout).unwrap();
    let mut text = String::new();
    for event in document["events"].as_array().unwrap() {
        let label = format!("{}#{}", event["type"], event["name"]).replace('"', "");
        let is = |key: &str| event[key].as_bool().unwrap();
        let mut outcome = match () {
            () if is("failed") => "failed",
            () if is("skipped") => "skipped",
            () if is("refreshed") => "refreshed",
            () if is("changed") => "changed",
            () => "stable",
        }
        .to_owned();
        if let Some(message) = event["noop_message"].as_str() {
            write!(outcome, ": {message}").unwrap();
        }
        for check in event["health_check"].as_array().into_iter().flatten() {
            write!(outcome, ", check {}", check["status"]).unwrap();
        }
        writeln!(text, "{label} {outcome}").unwrap();
    }
    text
}

/// Serves the files below `www`; a directory with the name of an archive is served as one.
fn serve(directory: &Path, files: &[String]) -> Server {
    let mut archives: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut bodies: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for name in files {
        let Some(path) = name.strip_prefix("www/") else {
            continue;
        };
        let text = std::fs::read_to_string(directory.join(name)).unwrap();
        match path.split_once('/') {
            Some((archive, inside)) => {
                let archive = archives.entry(format!("/{archive}")).or_default();
                archive.push((inside.into(), text));
            }
            None => {
                bodies.insert(format!("/{path}"), text.into());
            }
        }
    }
    for (path, files) in archives {
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_str()))
            .collect();
        let body = match path.rsplit_once('.') {
            Some((_, "zip")) => pack::zip(&files),
            Some((_, "tar")) => pack::tar(&files),
            _ => pack::tgz(&files),
        };
        bodies.insert(path, body);
    }
    Server::start(move |request| {
        let is_allowed = !request.path.starts_with("/private")
            || request.header("Authorization").is_some()
                && request.header("X-Site") == Some("example");
        match bodies.get(&request.path) {
            Some(body) if is_allowed => Response::ok(body.clone()),
            Some(_) => Response::new("401 Unauthorized", "no credentials"),
            None => Response::new("404 Not Found", "no such file"),
        }
    })
}

/// Creates the buckets `kv/BUCKET/KEY` and `obj/BUCKET/NAME`.
async fn fill_buckets(server: &NatsServer, directory: &Path, files: &[String]) {
    let jetstream = server.jetstream().await;
    for name in files {
        let parts: Vec<&str> = name.splitn(3, '/').collect();
        let content = std::fs::read(directory.join(name)).unwrap();
        match parts[..] {
            ["kv", bucket, key] => {
                let config = kv::Config {
                    bucket: bucket.into(),
                    ..kv::Config::default()
                };
                let store = jetstream.create_key_value(config).await.unwrap();
                store.put(key, content.into()).await.unwrap();
            }
            ["obj", bucket, name] => {
                let config = object_store::Config {
                    bucket: bucket.into(),
                    ..object_store::Config::default()
                };
                let store = jetstream.create_object_store(config).await.unwrap();
                store.put(name, &mut &content[..]).await.unwrap();
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn every_example_prints_what_it_shows() {
    let update = std::env::var_os("CCM_UPDATE_EXPECTED").is_some();
    let mut differences = String::new();
    for directory in examples() {
        let file = directory.join(SESSION);
        let expected = std::fs::read_to_string(&file).unwrap();
        let example = Example::start(&directory).await;
        let mut found = String::new();
        for command in expected.lines().filter_map(|line| line.strip_prefix("$ ")) {
            write!(found, "$ {command}\n{}", example.run(command)).unwrap();
        }
        if update {
            std::fs::write(&file, found).unwrap();
        } else if found != expected {
            write!(
                differences,
                "{directory:?}:\n{found}\nexpected:\n{expected}\n"
            )
            .unwrap();
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn every_example_with_a_manifest_is_validated_and_applied_or_rendered() {
    for directory in examples() {
        if !directory.join("manifest.yaml").exists() {
            continue;
        }
        let session = std::fs::read_to_string(directory.join(SESSION)).unwrap();
        assert!(session.contains("$ ccm validate "), "{directory:?}");
        assert!(session.contains("$ ccm apply "), "{directory:?}");
    }
}

/// Adds the properties of all resources in a document, as `TYPE.PROPERTY`.
fn collect_properties(types: &BTreeSet<&str>, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => {
            for item in items {
                collect_properties(types, item, found);
            }
        }
        Value::Object(map) => {
            for (key, value) in map {
                if types.contains(key.as_str()) {
                    add_properties(key, value, found);
                }
                collect_properties(types, value, found);
            }
        }
        _ => {}
    }
}

fn add_properties(type_name: &str, value: &Value, found: &mut BTreeSet<String>) {
    let mut add = |type_name: &str, value: &Value| {
        for key in value.as_object().into_iter().flatten().map(|(key, _)| key) {
            found.insert(format!("{type_name}.{key}"));
        }
    };
    add(type_name, value);
    let entries = value.as_array().into_iter().flatten();
    let named = entries.filter_map(|entry| entry.as_object());
    let resources: Vec<&Value> = named.flat_map(|entry| entry.values()).collect();
    for resource in resources.into_iter().chain([value]) {
        add(type_name, resource);
        for (part, key) in [
            ("health_check", "health_checks"),
            ("registration", "register_when_stable"),
        ] {
            for item in resource[key].as_array().into_iter().flatten() {
                add(part, item);
            }
        }
    }
}

#[test]
fn every_property_of_every_type_has_an_example() {
    let schema = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/schemas/resource.json"
    ));
    let schema: Value = serde_json::from_str(&schema.unwrap()).unwrap();
    let definitions = schema["$defs"].as_object().unwrap();
    let types: BTreeSet<&str> = definitions.keys().map(String::as_str).collect();
    let mut found = BTreeSet::new();
    for directory in examples() {
        for name in files_below(&directory) {
            if name.ends_with(".yaml") {
                let text = std::fs::read_to_string(directory.join(name)).unwrap();
                let document = ccm_value::document::parse(&text).unwrap().to_value();
                let document = serde_json::to_value(document).unwrap();
                collect_properties(&types, &document, &mut found);
            }
        }
    }
    let mut missing = Vec::new();
    for (type_name, definition) in definitions {
        for property in definition["properties"].as_object().unwrap().keys() {
            // The name of a list entry is its key; common properties are shown with one type.
            let is_shown = found.contains(&format!("{type_name}.{property}"))
                || COMMON.contains(&property.as_str())
                    && found.iter().any(|it| it.ends_with(&format!(".{property}")));
            if !is_shown {
                missing.push(format!("{type_name}.{property}"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

/// Properties of all types.
const COMMON: [&str; 9] = [
    "name",
    "alias",
    "ensure",
    "provider",
    "health_checks",
    "require",
    "control",
    "register_when_stable",
    "sensitive",
];

/// Texts that show a feature of data and templates.
const FEATURES: [&str; 46] = [
    // Sections and resource lists.
    "hierarchy:",
    "merge: first",
    "merge: deep",
    "overrides:",
    "defaults:",
    "pre_message:",
    "post_message:",
    "fail_on_error:",
    "governor:",
    "resources_jet_file:",
    "resources_template:",
    // Annotations of data.
    "@require",
    "isIP(",
    "isInt(",
    "isFloat(",
    "isDuration(",
    "isRegex(",
    "isShellSafe(",
    "isHostname(",
    "isFQDN(",
    // Data from elsewhere.
    "--hiera ",
    "--fact ",
    "--facts ",
    "kv://",
    "obj://",
    "--data ",
    "--data-file ",
    "--query ",
    "--env",
    "--yaml",
    ".env",
    // Expressions and functions.
    "{{ ",
    "${ ",
    "lookup(",
    "readFile(",
    "template(",
    "jet(",
    "kvGet",
    "registrations(",
    "PrometheusFileSD",
    "Environ.",
    "Facts.",
    // Template languages and their functions.
    "engine: go",
    "engine: jinja",
    "[[ render(",
    "[[ write(",
];

#[test]
fn every_feature_of_data_and_templates_has_an_example() {
    let text: String = examples().iter().map(|it| text_of(it)).collect();
    let missing: Vec<&str> = FEATURES
        .into_iter()
        .filter(|feature| !text.contains(feature))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}
