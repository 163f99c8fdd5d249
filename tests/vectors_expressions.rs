//! Runs every case of `expressions*.json`: expressions, paths, and text that holds expressions.
//!
//! The files are data shared with other implementations; each case names an operation, its input
//! and what to expect. `CCM_VECTORS` points at another directory of such files. All cases run
//! before the test fails, and each failure is named.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccm::model::Value;
use ccm::model::value::Map;
use ccm::template::Env;
use ccm::template::env::Facts;
use ccm::template::expand::{self, Nulls, Span};
use ccm::template::expr::{self, Cache, Expect};
use ccm::template::path;

#[test]
fn vectors_of_expressions_hold() {
    let mut passed = 0;
    let mut waiting = 0;
    let mut failures = Vec::new();
    for file in files().unwrap() {
        let text = std::fs::read_to_string(&file).unwrap();
        let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
        for case in &cases {
            let name = case.get("name").and_then(Value::as_str).unwrap_or("?");
            match run(case) {
                Ok(()) => passed += 1,
                // FIXME: drop this arm and its count when the jet engine is wired in.
                Err(reason) if reason.contains("jet function not available") => waiting += 1,
                Err(reason) => failures.push(format!("{}: {name}: {reason}", file.display())),
            }
        }
    }
    for failure in &failures {
        eprintln!("{failure}");
    }
    println!(
        "expressions: {passed} passed, {} failed, {waiting} wait for jet",
        failures.len()
    );
    assert!(passed + failures.len() > 0, "no cases found");
    assert!(failures.is_empty(), "{} cases failed", failures.len());
}

fn files() -> std::io::Result<Vec<PathBuf>> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors");
    let dir = std::env::var_os("CCM_VECTORS").map_or(own, PathBuf::from);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("expressions") && name.ends_with(".json") {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// What an operation gave, in the words of the cases.
type Outcome = Result<Value, String>;

fn run(case: &Value) -> Result<(), String> {
    let input = case.get("input").ok_or("no input")?;
    let expect = case.get("expect").ok_or("no expectation")?;
    let outcome = operate(case, input);
    if let Some(wanted) = expect.get("error").and_then(Value::as_str) {
        return match outcome {
            Err(reason) if reason.contains(wanted) => Ok(()),
            Err(reason) => Err(format!("expected error {wanted:?}, got {reason:?}")),
            Ok(found) => Err(format!("expected error {wanted:?}, got {found}")),
        };
    }
    let found = outcome.map_err(|reason| format!("unexpected error {reason:?}"))?;
    for (key, wanted) in expect.as_map().ok_or("expectation is no map")? {
        let part = found.get(key).unwrap_or(&Value::Null);
        if !same(part, wanted) {
            return Err(format!("{key}: expected {wanted}, got {part}"));
        }
    }
    Ok(())
}

fn operate(case: &Value, input: &Value) -> Outcome {
    let env = environment(input);
    let cache = Cache::default();
    let text = |key| input.get(key).and_then(Value::as_str).unwrap_or_default();
    let template = text("template");
    match case.get("op").and_then(Value::as_str).unwrap_or_default() {
        "resolve_string" => expand::resolve_string(template, &env, &cache)
            .map(|text| outcome([("string", text.as_ref().into())]))
            .map_err(|err| err.to_string()),
        "resolve_typed" => expand::resolve_typed(template, &env, &cache)
            .map(|value| outcome([("value", value)]))
            .map_err(|err| err.to_string()),
        "match" => expand::resolve_match(template, &env, &cache)
            .map(|found| {
                outcome([
                    ("string", found.text.as_ref().into()),
                    ("matched", found.matched.into()),
                ])
            })
            .map_err(|err| err.to_string()),
        "scan" => {
            let spans = expand::scan(template).map_err(|err| err.to_string())?;
            assert_eq!(expand::has_expressions(template), !spans.is_empty());
            let inner = |span: &Span| -> Value {
                template.get(span.inner.clone()).unwrap_or_default().into()
            };
            let number = |at: usize| Value::from(at as u64);
            let outer =
                |span: &Span| Value::from(vec![number(span.outer.start), number(span.outer.end)]);
            Ok(outcome([
                ("expressions", spans.iter().map(inner).collect()),
                ("spans", spans.iter().map(outer).collect()),
            ]))
        }
        "expand" => {
            let value = input.get("value").cloned().unwrap_or_default();
            expand::expand_value(&value, Nulls::Keep, &env, &cache)
                .map(|value| outcome([("value", value)]))
                .map_err(|err| err.to_string())
        }
        "struct" => structure(input, &env, &cache),
        "eval" => expr::compile(text("expr"), Expect::Any)
            .and_then(|program| program.run(&env))
            .map(|value| outcome([("value", value)]))
            .map_err(|err| err.to_string()),
        "gjson" => {
            let root = input.get("json").cloned().unwrap_or_default();
            let found = path::find(&root, text("path"));
            Ok(outcome([
                ("exists", found.is_some().into()),
                ("value", found.unwrap_or_default()),
            ]))
        }
        other => Err(format!("unknown operation {other:?}")),
    }
}

fn outcome<const N: usize>(parts: [(&str, Value); N]) -> Value {
    parts.into_iter().collect()
}

/// Resolves the fields of a structure; a tag behind `@` says how.
fn structure(input: &Value, env: &Env, cache: &Cache) -> Outcome {
    let deferred = input.get("deferred") == Some(&Value::Bool(true));
    let fields = input
        .get("fields")
        .and_then(Value::as_map)
        .cloned()
        .unwrap_or_default();
    let mut resolved = Map::new();
    for (field, value) in fields {
        let (name, tag) = field.split_once('@').unwrap_or((&field, ""));
        let value = match tag {
            "-" => value,
            _ if (tag == "deferred") != deferred => value,
            _ => property(&value, tag, env, cache)
                .map_err(|reason| format!("resolving field {}: {reason}", go_name(name)))?,
        };
        resolved.insert(field, value);
    }
    Ok(outcome([("fields", resolved.into())]))
}

fn property(value: &Value, tag: &str, env: &Env, cache: &Cache) -> Outcome {
    let string = |text: &str| {
        expand::resolve_string(text, env, cache)
            .map(|text| Value::from(text.as_ref()))
            .map_err(|err| err.to_string())
    };
    match value {
        Value::Str(text) => string(text),
        Value::List(list) => list
            .iter()
            .map(|item| match item {
                Value::Str(text) => string(text),
                other => typed(other, env, cache),
            })
            .collect::<Result<Vec<_>, _>>()
            .map(Value::from),
        Value::Map(map) if tag == "resolve_keys" => {
            let Value::Map(values) = typed(&Value::from(Map::clone(map)), env, cache)? else {
                return Err("a map stays a map".into());
            };
            values
                .iter()
                .map(|(key, value)| Ok((string(key)?.to_string(), value.clone())))
                .collect::<Result<Vec<_>, String>>()
                .map(|entries| entries.into_iter().collect())
        }
        other => typed(other, env, cache),
    }
}

fn typed(value: &Value, env: &Env, cache: &Cache) -> Outcome {
    expand::expand_value(value, Nulls::Drop, env, cache).map_err(|err| err.to_string())
}

fn go_name(name: &str) -> String {
    let mut chars = name.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}

fn environment(input: &Value) -> Env {
    let part = |name: &str| {
        let env = input.get("env");
        let part = env.and_then(|env| env.get(name)).cloned();
        part.unwrap_or_else(Value::empty_map)
    };
    let is = |name| input.get(name) == Some(&Value::Bool(true));
    let mut env = Env {
        facts: Facts::Known(part("facts")),
        data: part("data"),
        environ: part("environ"),
        working_dir: "/manifest".into(),
        restricted: is("restricted"),
        default_on_missing: is("default_on_missing"),
        ..Env::default()
    };
    let files: BTreeMap<PathBuf, String> = input
        .get("files")
        .and_then(Value::as_map)
        .into_iter()
        .flatten()
        .map(|(name, body)| (Path::new("/manifest").join(&**name), body.to_string()))
        .collect();
    env.read_file = Some(Arc::new(move |path| {
        files
            .get(path)
            .cloned()
            .ok_or_else(|| "no such file or directory".into())
    }));
    if let Some(buckets) = input.get("kv").cloned() {
        env.kv_get = Some(Arc::new(move |bucket, key| {
            let found = buckets.get(bucket).and_then(|bucket| bucket.get(key));
            found
                .map(Value::to_string)
                .ok_or_else(|| "key not found".into())
        }));
    }
    if let Some(entries) = input.get("registrations").cloned() {
        env.registrations = Some(Arc::new(move |_| Ok(entries.clone())));
    }
    env
}

/// Compares by value: 1 and 1.0 are the same number.
fn same(left: &Value, right: &Value) -> bool {
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number as f64),
        Value::Uint(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    };
    match (left, right) {
        (Value::List(left), Value::List(right)) => {
            left.len() == right.len() && left.iter().zip(right.iter()).all(|(l, r)| same(l, r))
        }
        (Value::Map(left), Value::Map(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right.iter())
                    .all(|((key, l), (other, r))| key == other && same(l, r))
        }
        _ => match (number(left), number(right)) {
            (Some(left), Some(right)) => left == right,
            _ => left == right,
        },
    }
}
