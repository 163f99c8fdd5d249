//! Runs the recorded `render` cases of the Go template engine.
//!
//! Cases are found in every `gotemplate*.json` of `tests/data/vectors`, or of the directory that
//! `CCM_VECTORS` names. `scaffold` cases in the same files belong to the scaffold's own test and
//! are only counted here. A case is a name, an input and either the output or a part of the error.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccm::model::Value;
use ccm::template::env::{Function, Functions};
use ccm::template::go::{Options, render};

#[test]
fn vectors_render_as_recorded() {
    let (mut passed, mut left) = (0, 0);
    let mut failures = Vec::new();
    for case in cases().unwrap() {
        let name = text(&case, "name").to_owned();
        match text(&case, "op") {
            "render" => match run(&case) {
                Ok(()) => passed += 1,
                Err(reason) => failures.push(format!("{name}: {reason}")),
            },
            "scaffold" => left += 1,
            op => failures.push(format!("{name}: unknown op {op:?}")),
        }
    }
    for failure in &failures {
        println!("FAILED {failure}");
    }
    println!(
        "gotemplate: {passed} passed, {} failed, {left} left to the scaffold test",
        failures.len()
    );
    assert!(failures.is_empty(), "{} cases failed", failures.len());
    assert!(passed > 0, "no cases found");
}

fn cases() -> Result<Vec<Value>, String> {
    let dir = std::env::var_os("CCM_VECTORS").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors"),
        PathBuf::from,
    );
    let failed = |path: &Path, err: &dyn Display| format!("{}: {err}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(|err| failed(&dir, &err))? {
        let path = entry.map_err(|err| failed(&dir, &err))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("gotemplate") && name.ends_with(".json") {
            files.push(path);
        }
    }
    files.sort();
    let mut cases = Vec::new();
    for path in files {
        let json = std::fs::read_to_string(&path).map_err(|err| failed(&path, &err))?;
        let found: Vec<Value> = serde_json::from_str(&json).map_err(|err| failed(&path, &err))?;
        cases.extend(found);
    }
    Ok(cases)
}

fn text<'a>(case: &'a Value, key: &str) -> &'a str {
    case.get(key).and_then(Value::as_str).unwrap_or("")
}

fn run(case: &Value) -> Result<(), String> {
    let input = case.get("input").ok_or("no input")?;
    let expect = case.get("expect").ok_or("no expect")?;
    let delims = input.get("delims").and_then(Value::as_list).unwrap_or(&[]);
    let delim = |index: usize| delims.get(index).and_then(Value::as_str).unwrap_or("");
    let options = Options {
        name: "case",
        left: delim(0),
        right: delim(1),
    };
    let root = input.get("data").cloned().unwrap_or_default();
    let result = render(text(input, "template"), &options, &root, &functions(input));
    match (expect.get("error").and_then(Value::as_str), result) {
        (Some(part), Err(err)) if err.to_string().contains(part) => Ok(()),
        (Some(part), Err(err)) => Err(format!("error {err} does not contain {part:?}")),
        (Some(part), Ok(out)) => Err(format!("expected an error with {part:?}, got {out:?}")),
        (None, Ok(out)) if out == text(expect, "output") => Ok(()),
        (None, Ok(out)) => Err(format!(
            "expected {:?}, got {out:?}",
            text(expect, "output")
        )),
        (None, Err(err)) => Err(err.to_string()),
    }
}

/// Returns just enough of CCM's functions for the cases.
fn functions(input: &Value) -> Functions {
    let root = input.get("data").cloned().unwrap_or_default();
    let section = |key: &str| input.get(key).cloned().unwrap_or_default();
    let (files, kv, registrations) = (section("files"), section("kv"), section("registrations"));
    let lookup_root = root.clone();
    let read: Function = Arc::new(move |args| {
        let name = string(args, 0)?;
        files.get(&name).cloned().ok_or(format!("no file {name}"))
    });
    Functions::from([
        (
            "lookup",
            Arc::new(move |args: &[Value]| {
                let path = string(args, 0)?;
                find(&lookup_root, &path)
                    .or_else(|| args.get(1).filter(|v| !v.is_null()).cloned())
                    .ok_or(format!("missing key '{path}' in environment"))
            }) as Function,
        ),
        (
            "kvGet",
            Arc::new(move |args: &[Value]| {
                let (bucket, key) = (string(args, 0)?, string(args, 1)?);
                let found = kv.get(&bucket).and_then(|bucket| bucket.get(&key));
                found.cloned().ok_or(format!("no key {bucket}#{key}"))
            }),
        ),
        ("readFile", read.clone()),
        ("file", read),
        (
            "registrations",
            Arc::new(move |_: &[Value]| Ok(registrations.clone())),
        ),
        (
            "jet",
            Arc::new(move |args: &[Value]| {
                // Only paths between the delimiters: enough to prove the call.
                let template = string(args, 0)?;
                let mut out = String::new();
                for (index, part) in template.split("[[").enumerate() {
                    match part.split_once("]]") {
                        Some((path, rest)) if index > 0 => {
                            let found = find(&root, path.trim()).unwrap_or_default();
                            out.push_str(&format!("{found}{rest}"));
                        }
                        _ => out.push_str(part),
                    }
                }
                Ok(out.into())
            }),
        ),
    ])
}

fn string(args: &[Value], index: usize) -> Result<String, String> {
    match args.get(index) {
        Some(Value::Str(text)) => Ok(text.to_string()),
        _ => Err("requires a string argument".into()),
    }
}

fn find(root: &Value, path: &str) -> Option<Value> {
    path.split('.')
        .try_fold(root.clone(), |value, key| match &value {
            Value::List(list) => list.get(key.parse::<usize>().ok()?).cloned(),
            value => value.get(key).cloned(),
        })
}
