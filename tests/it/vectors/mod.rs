//! Recorded cases that other implementations share: an input, and what must come of it.
//!
//! The cases of a kind are in `KIND*.json` of `tests/data/vectors`, or of the directory that
//! `CCM_VECTORS` names. A case has a `name`, an `input`, an `expect`, and an `op` where its kind
//! has several. A part of the expected error is enough. Every case runs before a test fails, and
//! each that fails is named.
//!
//! For a new kind: a line in [`KINDS`], a file beside this one, and [`check`] in its one test.

mod expressions;
mod gotemplate;
mod hiera;
mod jet;
mod scaffold;
mod versions;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use ccm_template::Env;
use ccm_template::env::Facts;
use ccm_value::Value;

/// The kinds of cases that some test runs.
const KINDS: [&str; 6] = [
    "debian_versions",
    "expressions",
    "generic_versions",
    "gotemplate",
    "hiera",
    "jet",
];

/// Runs every case of a kind; panics when one fails or when there is none.
fn check(kind: &str, run: impl Fn(&Value) -> Result<(), String>) {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors");
    let directory = env::var_os("CCM_VECTORS").map_or_else(own, PathBuf::from);
    let files = files(&directory, kind);
    if files.is_empty() {
        let others: Vec<_> = KINDS
            .into_iter()
            .filter(|other| !self::files(&directory, other).is_empty())
            .collect();
        let place = directory.display();
        assert!(!others.is_empty(), "no vectors of any kind in {place}");
        println!("{kind}: none in {place}, only {}", others.join(", "));
        return;
    }
    let (mut held, mut failed) = (0, 0);
    for file in files {
        let place = file.display();
        let text = fs::read(&file).unwrap_or_else(|err| panic!("{place}: {err}"));
        let cases: Vec<Value> =
            serde_json::from_slice(&text).unwrap_or_else(|err| panic!("{place}: {err}"));
        for case in &cases {
            match run(case) {
                Ok(()) => held += 1,
                Err(reason) => {
                    failed += 1;
                    println!("FAILED {place}: {}: {reason}", text_of(case, "name"));
                }
            }
        }
    }
    println!("{kind}: {held} passed, {failed} failed");
    assert_eq!(failed, 0, "cases of {kind} failed");
    assert!(held > 0, "no cases of {kind} found");
}

fn files(directory: &Path, kind: &str) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(directory).unwrap_or_else(|err| panic!("{}: {err}", directory.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with(kind) && name.ends_with(".json")
        })
        .collect();
    files.sort();
    files
}

/// Returns a text of a map; an absent one is empty.
fn text_of<'v>(map: &'v Value, key: &str) -> &'v str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the input and the expectation of a case.
fn parts(case: &Value) -> Result<(&Value, &Value), String> {
    let input = case.get("input").ok_or("no input")?;
    let expect = case.get("expect").ok_or("no expectation")?;
    Ok((input, expect))
}

/// Holds an outcome against an expectation: the parts it names, or a part of the error.
fn compare(expect: &Value, outcome: Result<Value, String>) -> Result<(), String> {
    if let Some(wanted) = expect.get("error").and_then(Value::as_str) {
        return match outcome {
            Err(reason) if reason.contains(wanted) => Ok(()),
            Err(reason) => Err(format!("expected error {wanted:?}, got {reason:?}")),
            Ok(found) => Err(format!("expected error {wanted:?}, got {found}")),
        };
    }
    let found = outcome.map_err(|reason| format!("unexpected error {reason:?}"))?;
    let wanted: Vec<_> = expect
        .as_map()
        .ok_or("expectation is no map")?
        .iter()
        // What upstream does where we differ is there for readers.
        .filter(|(key, _)| !key.starts_with("upstream"))
        .collect();
    if wanted.is_empty() {
        return Err("nothing is expected".into());
    }
    for (key, wanted) in wanted {
        let part = found.get(key).unwrap_or(&Value::Null);
        if !same(part, wanted) {
            return Err(format!("{key}: expected {wanted:?}, got {part:?}"));
        }
    }
    Ok(())
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

fn outcome<const N: usize>(parts: [(&str, Value); N]) -> Value {
    parts.into_iter().collect()
}

/// Returns an environment with the facts, data and environ of `root`, and with the files, keys
/// and registrations of the input.
fn environment(root: Option<&Value>, input: &Value) -> Env {
    let part = |name: &str| {
        let part = root.and_then(|root| root.get(name)).cloned();
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
