//! Runs the recorded cases of the Go template engine and of scaffolds.
//!
//! Cases are found in every `gotemplate*.json` of `tests/data/vectors`, or of the directory that
//! `CCM_VECTORS` names. A `render` case is a template and either its output or a part of the
//! error. A `scaffold` case is a source directory, a target, and what becomes of the target.
//!
//! Scaffold cases record the renderer, which judges content alone. That the resource repairs
//! permissions too is its own decision, tested with it.

#![expect(clippy::disallowed_methods, reason = "cases arrange the world by hand")]

use std::collections::BTreeMap;
use std::fmt::Display;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ccm::model::Value;
use ccm::model::resource::Engine;
use ccm::resource::Host;
use ccm::resource::scaffold::{self, Item, Job, Posts, Verdict};
use ccm::system::{Accounts, SystemClock, SystemRunner};
use ccm::template::Env;
use ccm::template::env::{Function, Functions};
use ccm::template::go::{Options, render};

#[test]
fn vectors_render_as_recorded() {
    let mut passed = 0;
    let mut failures = Vec::new();
    for case in cases().unwrap() {
        let name = text(&case, "name").to_owned();
        let result = match text(&case, "op") {
            "render" => run(&case),
            "scaffold" => run_scaffold(&case),
            op => Err(format!("unknown op {op:?}")),
        };
        match result {
            Ok(()) => passed += 1,
            Err(reason) => failures.push(format!("{name}: {reason}")),
        }
    }
    for failure in &failures {
        println!("FAILED {failure}");
    }
    println!("gotemplate: {passed} passed, {} failed", failures.len());
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

fn run_scaffold(case: &Value) -> Result<(), String> {
    let room = tempfile::tempdir().map_err(|err| err.to_string())?;
    let expect = case.get("expect").ok_or("no expect")?;
    let target = room.path().join("target");
    let result = arrange(case, room.path()).and_then(|job| scaffolded(case, job));
    let items = match (expect.get("error").and_then(Value::as_str), result) {
        (Some(part), Err(err)) if err.contains(part) => return Ok(()),
        (Some(part), Err(err)) => return Err(format!("error {err} does not contain {part:?}")),
        (Some(part), Ok(_)) => return Err(format!("expected an error with {part:?}")),
        (None, result) => result?,
    };
    if let Some(actions) = expect.get("actions").and_then(Value::as_list) {
        let expected: Vec<(&str, &str)> = actions
            .iter()
            .map(|action| (text(action, "path"), text(action, "action")))
            .collect();
        let found: Vec<(&str, &str)> = items
            .iter()
            .map(|item| (item.path.to_str().unwrap_or(""), action(item)))
            .collect();
        if found != expected {
            return Err(format!("expected {expected:?}, got {found:?}"));
        }
    }
    for (name, content) in entries(expect, "files") {
        let found = std::fs::read(target.join(name)).map_err(|err| format!("{name}: {err}"))?;
        if found != content.as_bytes() {
            let found = String::from_utf8_lossy(&found);
            return Err(format!("{name}: expected {content:?}, got {found:?}"));
        }
    }
    for (name, mode) in entries(expect, "modes") {
        let found = target.join(name).metadata();
        let found = found.map_err(|err| format!("{name}: {err}"))?;
        let found = format!("{:04o}", found.permissions().mode() & 0o7777);
        if found != mode {
            return Err(format!("{name}: expected mode {mode}, got {found}"));
        }
    }
    let absent = expect.get("absent").and_then(Value::as_list).unwrap_or(&[]);
    let left = absent
        .iter()
        .filter_map(Value::as_str)
        .find(|name| target.join(name).symlink_metadata().is_ok());
    left.map_or(Ok(()), |name| Err(format!("{name} should not be there")))
}

/// Writes source and target of a case and returns what is to be rendered.
fn arrange(case: &Value, room: &Path) -> Result<Job, String> {
    let input = case.get("input").ok_or("no input")?;
    let at = |directory: &str, name: &str| room.join(directory).join(name);
    std::fs::create_dir(room.join("source")).map_err(|err| err.to_string())?;
    for directory in ["source", "target"] {
        for (name, content) in entries(input, directory) {
            write_file(&at(directory, name), content, 0o644)?;
        }
    }
    for (name, leads_to) in entries(input, "symlinks") {
        symlink(leads_to, at("source", name)).map_err(|err| err.to_string())?;
    }
    for (directory, key) in [("source", "source_modes"), ("target", "target_modes")] {
        for (name, mode) in entries(input, key) {
            let mode = u32::from_str_radix(mode, 8).map_err(|err| err.to_string())?;
            set_mode(&at(directory, name), mode)?;
        }
    }
    let data = input.get("data").and_then(Value::as_map);
    let data = data.cloned().unwrap_or_default();
    Ok(Job {
        source: room.join("source"),
        target: room.join("target"),
        engine: Engine::parse(text(input, "engine")).unwrap_or(Engine::Go),
        left: text(input, "left_delimiter").into(),
        right: text(input, "right_delimiter").into(),
        skip_empty: input.get("skip_empty") == Some(&Value::Bool(true)),
        functions: functions(input),
        variables: Arc::new(move |_| data.clone()),
    })
}

/// Renders, compares and, unless the case is a noop, writes what differs in content.
fn scaffolded(case: &Value, job: Job) -> Result<Vec<Item>, String> {
    let input = case.get("input").ok_or("no input")?;
    let steps = input.get("post").and_then(Value::as_list).unwrap_or(&[]);
    let steps: Vec<BTreeMap<String, String>> = steps
        .iter()
        .filter_map(Value::as_map)
        .map(|step| step.iter().map(|(k, v)| (k.to_string(), v.to_string())))
        .map(Iterator::collect)
        .collect();
    let posts = Posts::parse(&steps).map_err(|err| err.to_string())?;
    let target = job.target.clone();
    let rendered = scaffold::render(job).map_err(|err| err.to_string())?;
    let survey = scaffold::survey(&target, &rendered, &posts).map_err(|err| err.to_string())?;
    if let Some(obstacle) = survey.obstacle {
        return Err(obstacle.to_string());
    }
    if input.get("noop") != Some(&Value::Bool(true)) {
        let (runner, accounts, env) = (SystemRunner::new(), Accounts::default(), Env::default());
        let host = Host {
            runner: &runner,
            clock: &SystemClock,
            accounts: &accounts,
            working_dir: Path::new("/"),
            env: &env,
        };
        let differs = |item: &&Item| matches!(item.verdict, Verdict::Add | Verdict::Update);
        let items = survey.items.iter().filter(differs);
        scaffold::write(&target, &rendered, items, &posts, false, host)
            .map_err(|err| err.to_string())?;
    }
    Ok(survey.items)
}

fn action(item: &Item) -> &'static str {
    match item.verdict {
        Verdict::Add => "add",
        Verdict::Update => "update",
        Verdict::Equal => "equal",
        Verdict::Remove => "remove",
    }
}

fn entries<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let map = value.get(key).and_then(Value::as_map);
    map.into_iter()
        .flatten()
        .map(|(name, text)| (&**name, text.as_str().unwrap_or("")))
}

fn write_file(path: &Path, content: &str, mode: u32) -> Result<(), String> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent)
        .and_then(|()| std::fs::write(path, content))
        .map_err(|err| format!("{}: {err}", path.display()))?;
    set_mode(path, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|err| format!("{}: {err}", path.display()))
}
