//! Functions shared by all engines: `lookup`, `readFile`, `template`, `jet`, `kvGet`,
//! `registrations`.
//!
//! Each checks its arguments and calls the closure of the [`Env`]; none does I/O itself. Engines
//! get them as [`Functions`]; expressions call them directly.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::engines::{self, Template};
use super::env::{Env, Facts, Function, Functions};
use super::expr::Cache;
use super::{expand, path};
use crate::{CallError, Engine};
use ccm_value::text::quote;
use ccm_value::{Value, json};

/// Maximum depth of templates that include templates.
const MAX_INCLUDES: u32 = 10;

type SharedFunction = fn(&[Value], &Env, &Cache) -> Result<Value, CallError>;

const FUNCTIONS: [(&str, SharedFunction); 7] = [
    ("lookup", |args, env, _| lookup(args, env)),
    ("readFile", |args, env, _| read_file(args, env)),
    ("file", |args, env, _| read_file(args, env)),
    ("template", template),
    ("jet", |args, env, _| jet(args, env)),
    ("kvGet", |args, env, _| kv_get(args, env)),
    ("registrations", |args, env, _| registrations(args, env)),
];

/// Returns the functions of an environment, by name.
pub fn functions(env: &Env) -> Functions {
    let shared = Arc::new((env.clone(), Cache::default()));
    FUNCTIONS
        .into_iter()
        .filter(|(name, _)| exists(name, env.restricted))
        .map(|(name, function)| {
            let shared = Arc::clone(&shared);
            let call: Function = Arc::new(move |args| {
                let (env, cache) = shared.as_ref();
                function(args, env, cache)
            });
            (name, call)
        })
        .collect()
}

/// Returns whether a function exists; Hiera documents (`restricted`) have only `lookup`.
pub(super) fn exists(name: &str, restricted: bool) -> bool {
    if restricted {
        return name == "lookup";
    }
    FUNCTIONS.iter().any(|(known, _)| *known == name)
}

/// Returns the names of all functions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|(name, _)| *name)
}

/// Calls a function by name.
pub(super) fn call(
    name: &str,
    args: &[Value],
    env: &Env,
    cache: &Cache,
) -> Result<Value, CallError> {
    let found = FUNCTIONS.iter().find(|(known, _)| *known == name);
    match found.filter(|_| exists(name, env.restricted)) {
        Some((_, function)) => function(args, env, cache),
        None => Err(format!("unknown function {name}").into()),
    }
}

/// Implements `lookup`: follows a path into facts, data and environment variables.
fn lookup(args: &[Value], env: &Env) -> Result<Value, CallError> {
    let (key, default) = match args {
        [key] => (key, None),
        [key, default] => (key, Some(default)),
        _ => return Err("lookup requires 1 or 2 arguments".into()),
    };
    let Some(key) = key.as_str() else {
        return Err("lookup requires a string argument".into());
    };
    // Other paths to the environment variables find an empty map.
    if plain_part(key).map_or_else(|| key.contains("environ"), |(root, _)| root == "environ") {
        env.check_environ()?;
    }
    check_known(key, env)?;
    if let Some(found) = find_in_env(key, env) {
        return Ok(path::as_lookup_result(found));
    }
    match default {
        Some(default) if !default.is_null() => Ok(default.clone()),
        _ if env.default_on_missing => Ok("".into()),
        _ => Err(format!("missing key '{key}' in environment").into()),
    }
}

/// Checks that the values that a path may reach are known.
fn check_known(path: &str, env: &Env) -> Result<(), CallError> {
    match plain_part(path) {
        Some(("data", _)) => env.check_data(),
        Some(("facts", rest)) => match rest.and_then(plain_part) {
            Some((section, _)) => env.facts.check_section(section),
            None => env.facts.check(),
        },
        Some(_) => Ok(()),
        None => env.check_data().and_then(|()| env.facts.check()),
    }
}

/// Follows a path, gathering only the fact section that its first parts name.
fn find_in_env(path: &str, env: &Env) -> Option<Value> {
    if let Some((root, rest)) = plain_part(path) {
        match root {
            "data" => return follow(env.data.clone(), rest),
            "environ" => return follow(env.environ.clone(), rest),
            "facts" => {
                return match rest {
                    Some(path) => find_fact(&env.facts, path),
                    None => Some(env.facts.all()),
                };
            }
            _ => return None,
        }
    }
    let roots = [
        ("data", env.data.clone()),
        ("environ", env.environ.clone()),
        ("facts", env.facts.all()),
    ];
    path::find(&roots.into_iter().collect(), path)
}

/// Follows a path into the facts, gathering only one section when its first part names one.
pub fn find_fact(facts: &Facts, path: &str) -> Option<Value> {
    match plain_part(path) {
        Some((section, rest)) => follow(facts.section(section)?, rest),
        None => path::find(&facts.all(), path),
    }
}

fn follow(value: Value, rest: Option<&str>) -> Option<Value> {
    match rest {
        Some(rest) => path::find(&value, rest),
        None => Some(value),
    }
}

/// Splits off the first part of a path if it is a plain name.
fn plain_part(path: &str) -> Option<(&str, Option<&str>)> {
    let end = path
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'))
        .unwrap_or(path.len());
    let (part, rest) = path.split_at(end);
    if part.is_empty() {
        return None;
    }
    match rest.strip_prefix(['.', '|']) {
        Some(rest) => Some((part, Some(rest))),
        None => rest.is_empty().then_some((part, None)),
    }
}

fn read_file(args: &[Value], env: &Env) -> Result<Value, CallError> {
    let Some(name) = args.first().and_then(Value::as_str) else {
        return Err("readFile requires a string argument".into());
    };
    read(name, env).map(Value::from)
}

fn read(name: &str, env: &Env) -> Result<String, CallError> {
    let path = env.working_dir.join(name);
    let Some(read) = &env.read_file else {
        return Err("readFile function not available".into());
    };
    let quoted = |path: &Path| quote(&path.to_string_lossy());
    read(&path).map_err(|err| {
        err.reword(|reason| {
            format!(
                "failed to read file {}: working dir: {}: {reason}",
                quoted(&path),
                quoted(&env.working_dir)
            )
        })
    })
}

/// Implements `template`: expands a text or the file that it names; with an engine, renders a file.
fn template(args: &[Value], env: &Env, cache: &Cache) -> Result<Value, CallError> {
    let Some(text) = args.first().and_then(Value::as_str) else {
        return Err("template requires a string argument".into());
    };
    let _level = IncludeGuard::enter()?;
    let is_file = |suffix: &str| text.len() > suffix.len() && text.ends_with(suffix);
    let engine = match args {
        [_, engine] => {
            let name = engine.as_str().unwrap_or_default();
            Some(Engine::parse(name).ok_or_else(|| {
                format!(
                    "template: unknown engine {}, expected go, jet or jinja",
                    quote(name)
                )
            })?)
        }
        [_] if is_file(".j2") => Some(Engine::Jinja),
        [_] => None,
        _ => return Err("template requires 1 or 2 arguments: text or file, engine".into()),
    };
    if let Some(engine) = engine {
        return rendered(text, engine, &read(text, env)?, ("", ""), env);
    }
    if is_file(".jet") {
        return jet(&[text.into()], env);
    }
    let body = if is_file(".templ") {
        read(text, env)?
    } else {
        text.to_owned()
    };
    Ok(expand::resolve_typed(&body, env, cache)?)
}

fn jet(args: &[Value], env: &Env) -> Result<Value, CallError> {
    let text = |value: &'_ Value, what: &str| match value {
        Value::Str(text) => Ok(Arc::clone(text)),
        _ => Err(format!("jet requires a string argument for {what}")),
    };
    let (body, left, right) = match args {
        [body] => (text(body, "template body")?, "[[".into(), "]]".into()),
        [body, left, right] => (
            text(body, "template body")?,
            text(left, "left delimiter")?,
            text(right, "right delimiter")?,
        ),
        _ => return Err("jet requires 1 or 3 arguments".into()),
    };
    let _level = IncludeGuard::enter()?;
    let (name, source) = if body.ends_with(".jet") {
        (&*body, read(&body, env)?)
    } else {
        ("input", body.as_ref().to_owned())
    };
    rendered(name, Engine::Jet, &source, (&left, &right), env)
}

/// Renders a whole template to text.
fn rendered(
    name: &str,
    engine: Engine,
    source: &str,
    (left, right): (&str, &str),
    env: &Env,
) -> Result<Value, CallError> {
    let template = Template {
        engine,
        name,
        text: source.as_bytes(),
        left,
        right,
    };
    let rendered = engines::render(template, env)?;
    String::from_utf8(rendered)
        .map(Value::from)
        .map_err(|_| format!("template {name} did not render to text").into())
}

fn kv_get(args: &[Value], env: &Env) -> Result<Value, CallError> {
    let [bucket, key] = args else {
        return Err("kvGet requires 2 string arguments: bucket, key".into());
    };
    let text = |value: &'_ Value, number| match value {
        Value::Str(text) => Ok(Arc::clone(text)),
        _ => Err(format!("kvGet argument {number} must be a string")),
    };
    let (bucket, key) = (text(bucket, 1)?, text(key, 2)?);
    match &env.kv_get {
        Some(get) => env.secrets.open_text(get(&bucket, &key)?),
        None => Err("kvGet function not available".into()),
    }
}

fn registrations(args: &[Value], env: &Env) -> Result<Value, CallError> {
    let [cluster, protocol, service, ip] = args else {
        return Err(
            "registrations requires 4 string arguments: cluster, protocol, service, ip".into(),
        );
    };
    let mut texts = [""; 4];
    let given = [cluster, protocol, service, ip];
    for (number, (slot, value)) in texts.iter_mut().zip(given).enumerate() {
        *slot = value
            .as_str()
            .ok_or_else(|| format!("registrations argument {} must be a string", number + 1))?;
    }
    match &env.registrations {
        Some(find) => find(texts),
        None => Err("registrations function not available".into()),
    }
}

/// Guard for one level of included templates.
///
/// It limits use of the stack, so the count is per thread: it must hold even when another engine
/// runs between two levels.
struct IncludeGuard;

thread_local! {
    static INCLUDE_DEPTH: Cell<u32> = const { Cell::new(0) };
}

impl IncludeGuard {
    fn enter() -> Result<Self, CallError> {
        let level = INCLUDE_DEPTH.get();
        if level >= MAX_INCLUDES {
            return Err(format!("templates nest deeper than {MAX_INCLUDES} levels").into());
        }
        INCLUDE_DEPTH.set(level + 1);
        Ok(Self)
    }
}

impl Drop for IncludeGuard {
    fn drop(&mut self) {
        INCLUDE_DEPTH.set(INCLUDE_DEPTH.get().saturating_sub(1));
    }
}

/// One group of targets in Prometheus' file-based service discovery.
#[derive(Serialize)]
struct TargetGroup {
    labels: BTreeMap<String, String>,
    targets: Vec<String>,
}

/// Returns registrations as a Prometheus service discovery file, in indented JSON.
pub(crate) fn prometheus_file_sd(entries: &Value) -> Result<String, CallError> {
    let Some(entries) = entries.as_list() else {
        return Err(format!("registrations are a list, not a {}", entries.kind()).into());
    };
    let mut groups: Vec<TargetGroup> = Vec::new();
    let mut known: BTreeMap<[String; 3], usize> = BTreeMap::new();
    for entry in entries {
        let field = |name| match entry.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(value) => value.to_string(),
        };
        let port = field("Port");
        let names = [field("Cluster"), field("Service"), field("Protocol")];
        if port.is_empty() || port == "0" || !is_scraped(entry, &names) {
            continue;
        }
        let target = format!("{}:{port}", field("Address"));
        let index = *known.entry(names.clone()).or_insert_with(|| {
            groups.push(TargetGroup {
                labels: labels(entry, names),
                targets: Vec::new(),
            });
            groups.len() - 1
        });
        if let Some(group) = groups.get_mut(index) {
            group.targets.push(target);
        }
    }
    json::pretty(&groups).map_err(|err| {
        CallError::new(err)
            .reword(|reason| format!("could not marshal prometheus file SD: {reason}"))
    })
}

/// Returns whether Prometheus scrapes a service: its own services unless they opt out, all others
/// if they opt in.
fn is_scraped(entry: &Value, [_, service, protocol]: &[String; 3]) -> bool {
    let annotation = entry
        .get("Annotations")
        .and_then(|annotations| annotations.get("prometheus.io/scrape"));
    match annotation {
        Some(value) => value.to_string() == "true",
        None => service == "prometheus" || protocol == "prometheus",
    }
}

fn labels(entry: &Value, [cluster, service, protocol]: [String; 3]) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        ("cluster".to_owned(), cluster),
        ("service".to_owned(), service),
        ("protocol".to_owned(), protocol),
    ]);
    let annotations = entry.get("Annotations").and_then(Value::as_map);
    for (name, value) in annotations.into_iter().flatten() {
        let value = value.to_string();
        if is_label(name) && !value.is_empty() {
            labels.insert(name.to_string(), value);
        }
    }
    labels
}

/// Returns whether a name is a valid label; names starting with two underscores are reserved.
fn is_label(name: &str) -> bool {
    name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
        && !name.starts_with("__")
        && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Value {
        value.into()
    }

    fn env() -> Env {
        Env {
            data: serde_json::from_str(r#"{"a": {"b": 1.5, "c": 2.0}, "n": null}"#).unwrap(),
            environ: serde_json::from_str(r#"{"HOME": "/root"}"#).unwrap(),
            working_dir: "/m".into(),
            read_file: Some(Arc::new(|path| match path.to_str() {
                Some("/m/x.txt") => Ok("body".into()),
                Some("/m/t.templ") => Ok("{{ Data.a.b }}".into()),
                Some("/m/self.templ") => Ok("{{ template('self.templ') }}".into()),
                _ => Err("no such file or directory".into()),
            })),
            ..Env::default()
        }
    }

    fn run(name: &str, args: &[Value]) -> Result<Value, CallError> {
        let functions = functions(&env());
        functions[name](args)
    }

    #[test]
    fn lookup_finds_reports_and_defaults() {
        assert_eq!(run("lookup", &[text("data.a.b")]), Ok(Value::Float(1.5)));
        assert_eq!(run("lookup", &[text("data.a.c")]), Ok(Value::Int(2)));
        assert_eq!(run("lookup", &[text("data.n"), text("d")]), Ok(Value::Null));
        assert_eq!(run("lookup", &[text("environ.HOME")]), Ok(text("/root")));
        assert_eq!(run("lookup", &[text("data.x"), text("d")]), Ok(text("d")));
        assert_eq!(
            run("lookup", &[text("{data.a.b}")]).map(|v| v.to_string()),
            Ok("map[b:1.5]".into())
        );
        assert_eq!(
            run("lookup", &[text("data.x"), Value::Null]),
            Err("missing key 'data.x' in environment".into())
        );
        assert_eq!(
            run("lookup", &[]),
            Err("lookup requires 1 or 2 arguments".into())
        );
        assert_eq!(
            run("lookup", &[Value::Int(1)]),
            Err("lookup requires a string argument".into())
        );
    }

    #[test]
    fn files_are_read_relative_to_the_working_directory() {
        assert_eq!(run("readFile", &[text("x.txt")]), Ok(text("body")));
        assert_eq!(run("file", &[text("/m/x.txt")]), Ok(text("body")));
        assert_eq!(
            run("file", &[text("nope")]),
            Err(
                "failed to read file \"/m/nope\": working dir: \"/m\": no such file or directory"
                    .into()
            )
        );
        assert_eq!(
            run("file", &[]),
            Err("readFile requires a string argument".into())
        );
    }

    #[test]
    fn templates_keep_the_type_and_cannot_recurse_for_ever() {
        assert_eq!(run("template", &[text("t.templ")]), Ok(Value::Float(1.5)));
        assert_eq!(run("template", &[text("a {{ 1 }}")]), Ok(text("a 1")));
        let err = run("template", &[text("self.templ")]).unwrap_err();
        assert!(
            err.as_str()
                .contains("templates nest deeper than 10 levels"),
            "{err}"
        );
        assert_eq!(
            run("template", &[text("still works")]),
            Ok(text("still works"))
        );
    }

    #[test]
    fn functions_without_a_closure_are_not_available() {
        let four = [text("a"), text("b"), text("c"), text("d")];
        assert_eq!(
            run("kvGet", &[text("a"), text("b")]),
            Err("kvGet function not available".into())
        );
        assert_eq!(
            run("kvGet", &[text("a"), Value::Int(1)]),
            Err("kvGet argument 2 must be a string".into())
        );
        assert_eq!(
            run("registrations", &four),
            Err("registrations function not available".into())
        );
    }

    #[test]
    fn a_restricted_environment_offers_only_lookup() {
        let env = Env {
            restricted: true,
            ..env()
        };
        assert_eq!(functions(&env).keys().collect::<Vec<_>>(), [&"lookup"]);
    }

    #[test]
    fn registrations_become_targets_of_prometheus() {
        let entries: Value = serde_json::from_str(
            r#"[
            {"Cluster": "c", "Service": "web", "Protocol": "http", "Address": "10.0.0.1", "Port": 80,
             "Annotations": {"prometheus.io/scrape": "true", "env": "prod", "__x": "y", "e": ""}},
            {"Cluster": "c", "Service": "web", "Protocol": "http", "Address": "10.0.0.2", "Port": 81,
             "Annotations": {"prometheus.io/scrape": "true"}},
            {"Cluster": "c", "Service": "db", "Protocol": "tcp", "Address": "10.0.0.3", "Port": 82},
            {"Cluster": "c", "Service": "x", "Protocol": "prometheus", "Address": "10.0.0.4", "Port": 83},
            {"Cluster": "c", "Service": "x", "Protocol": "prometheus", "Address": "10.0.0.5", "Port": 0}
        ]"#,
        )
        .unwrap();
        let groups: Value = serde_json::from_str(&prometheus_file_sd(&entries).unwrap()).unwrap();
        assert_eq!(
            groups.to_string(),
            "[map[labels:map[cluster:c env:prod protocol:http service:web] \
             targets:[10.0.0.1:80 10.0.0.2:81]] \
             map[labels:map[cluster:c protocol:prometheus service:x] targets:[10.0.0.4:83]]]"
        );
    }
}
