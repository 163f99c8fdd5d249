//! Runs every Jet vector: `jet*.json` in `tests/data/vectors`, or in `CCM_VECTORS` when it is set.
//!
//! A case holds a template, its variables and context, and the output or a part of the error.
//! The functions here are the least that the vectors need; the real ones have tests of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use ccm::model::Value;
use ccm::model::value::Map;
use ccm::template::env::{Function, Functions};
use ccm::template::jet::{self, Options};

#[test]
fn vectors_of_jet_all_render_as_expected() {
    let mut total = 0;
    let mut failures = Vec::new();
    for file in vector_files().unwrap() {
        for case in cases(&file).unwrap() {
            total += 1;
            if let Err(reason) = check(&case) {
                let name = case.get("name").map(Value::to_string).unwrap_or_default();
                failures.push(format!("{}: {name}: {reason}", file.display()));
            }
        }
    }
    for failure in &failures {
        println!("FAILED {failure}");
    }
    println!("jet vectors: {total} run, {} failed", failures.len());
    assert!(total > 0, "no jet vectors were found");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn vector_files() -> Result<Vec<PathBuf>, String> {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vectors");
    let folder = env::var_os("CCM_VECTORS").map_or_else(own, PathBuf::from);
    let broken = |error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).map_err(broken)? {
        let path = entry.map_err(broken)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("jet") && name.ends_with(".json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn cases(file: &Path) -> Result<Vec<Value>, String> {
    let text = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", file.display()))
}

fn check(case: &Value) -> Result<(), String> {
    let input = case.get("input").ok_or("no input")?;
    let expect = case.get("expect").ok_or("no expectation")?;
    let result = render(input)?;
    let wanted = |key| expect.get(key).and_then(Value::as_str);
    match (wanted("output"), wanted("error"), result) {
        (Some(wanted), _, Ok(output)) if output == wanted => Ok(()),
        (Some(wanted), _, Ok(output)) => Err(format!("wanted {wanted:?}, got {output:?}")),
        (Some(wanted), _, Err(error)) => Err(format!("wanted {wanted:?}, got error {error}")),
        (None, Some(part), Err(error)) if error.contains(part) => Ok(()),
        (None, Some(part), Err(error)) => Err(format!("wanted error {part:?}, got {error}")),
        (None, Some(part), Ok(output)) => Err(format!("wanted error {part:?}, got {output:?}")),
        (None, None, _) => Err("expects neither output nor error".into()),
    }
}

/// Renders the input of a case. The outer error means that the case itself is broken.
fn render(input: &Value) -> Result<Result<String, String>, String> {
    let template = input.get("template").and_then(Value::as_str);
    let template = template.ok_or("no template")?;
    let mut options = Options::default();
    if let Some([left, right]) = input.get("delims").and_then(Value::as_list) {
        options.left = left.to_string();
        options.right = right.to_string();
    }
    if let Some(name) = input.get("name").and_then(Value::as_str) {
        options.name = name.into();
    }
    let none = Map::new();
    let variables = input.get("vars").and_then(Value::as_map).unwrap_or(&none);
    let context = input.get("context").unwrap_or(&Value::Null);
    let output = jet::render(
        template.as_bytes(),
        &options,
        variables,
        context,
        &functions(input),
    );
    let output = output.map_err(|error| error.to_string());
    Ok(output.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn functions(input: &Value) -> Functions {
    let part = |name| input.get(name).cloned().unwrap_or_default();
    let (variables, registrations) = (part("vars"), part("registrations"));
    let (files, kv) = (part("files"), part("kv"));
    let lookup: Function = Arc::new(move |arguments| {
        let path = arguments
            .first()
            .and_then(Value::as_str)
            .unwrap_or_default();
        let found = find(&variables, path);
        let default = arguments.get(1).filter(|default| !default.is_null());
        let answer = found.or(default).cloned();
        answer.ok_or_else(|| format!("missing key '{path}' in environment"))
    });
    let file: Function = Arc::new(move |arguments| {
        let path = arguments
            .first()
            .and_then(Value::as_str)
            .unwrap_or_default();
        let text = files.get(path).cloned();
        text.ok_or_else(|| format!("failed to read file {path:?}: no such file or directory"))
    });
    let kv_get: Function = Arc::new(move |arguments| {
        let mut keys = arguments.iter().filter_map(Value::as_str);
        let entry = kv.get(keys.next().unwrap_or_default());
        let entry = entry.and_then(|bucket| bucket.get(keys.next()?)).cloned();
        entry.ok_or_else(|| "kvGet function not available".into())
    });
    let registrations: Function = Arc::new(move |_| Ok(registrations.clone()));
    let template: Function =
        Arc::new(|arguments| Ok(arguments.first().cloned().unwrap_or_default()));
    Functions::from([
        ("lookup", lookup),
        ("file", file.clone()),
        ("readFile", file),
        ("kvGet", kv_get),
        ("registrations", registrations),
        ("template", template),
    ])
}

/// Finds a dotted path; a number picks an element of a list.
fn find<'v>(variables: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.')
        .try_fold(variables, |value, key| match value {
            Value::List(list) => list.get(key.parse::<usize>().ok()?),
            value => value.get(key),
        })
}
