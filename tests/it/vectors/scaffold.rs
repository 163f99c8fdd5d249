//! Scaffolds. Cases record the renderer, which judges content alone; that the resource repairs
//! permissions too is its own decision, tested with it.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use ccm_core::resource::Host;
use ccm_core::resource::package::PackageCache;
use ccm_core::resource::scaffold::{
    self, FileStatus, PostCommands, RenderJob, SourceCache, TargetFile,
};
use ccm_core::resource::service::ServiceCache;
use ccm_core::system::{Accounts, SystemClock, SystemRunner};
use ccm_template::functions::functions;
use ccm_template::{Engine, Env};
use ccm_value::Value;

use super::{environment, text_of};

/// Runs one case: a source directory, a target, and what becomes of the target.
pub(super) fn run(case: &Value) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|err| err.to_string())?;
    let expect = case.get("expect").ok_or("no expect")?;
    let target = dir.path().join("target");
    let result = arrange(case, dir.path()).and_then(|job| scaffolded(case, job));
    let items = match (expect.get("error").and_then(Value::as_str), result) {
        (Some(part), Err(err)) if err.contains(part) => return Ok(()),
        (Some(part), Err(err)) => return Err(format!("error {err} does not contain {part:?}")),
        (Some(part), Ok(_)) => return Err(format!("expected an error with {part:?}")),
        (None, result) => result?,
    };
    if let Some(actions) = expect.get("actions").and_then(Value::as_list) {
        let expected: Vec<(&str, &str)> = actions
            .iter()
            .map(|action| (text_of(action, "path"), text_of(action, "action")))
            .collect();
        let found: Vec<(&str, &str)> = items
            .iter()
            .map(|item| (item.path.to_str().unwrap_or(""), action(item)))
            .collect();
        if found != expected {
            return Err(format!("expected {expected:?}, got {found:?}"));
        }
    }
    for (name, expected) in contents(expect, "files")? {
        let found = std::fs::read(target.join(name)).map_err(|err| format!("{name}: {err}"))?;
        if found != expected {
            let [expected, found] = [&expected, &found].map(|it| String::from_utf8_lossy(it));
            return Err(format!("{name}: expected {expected:?}, got {found:?}"));
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
fn arrange(case: &Value, dir: &Path) -> Result<RenderJob, String> {
    let input = case.get("input").ok_or("no input")?;
    let at = |directory: &str, name: &str| dir.join(directory).join(name);
    // A case without a source records what becomes of a missing one.
    if input.get("source") != Some(&Value::Null) {
        std::fs::create_dir(dir.join("source")).map_err(|err| err.to_string())?;
    }
    for directory in ["source", "target"] {
        for (name, content) in contents(input, directory)? {
            write_file(&at(directory, name), &content, 0o644)?;
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
    Ok(RenderJob {
        source: dir.join("source"),
        target: dir.join("target"),
        engine: Engine::parse(text_of(input, "engine")).unwrap_or(Engine::Go),
        left: text_of(input, "left_delimiter").into(),
        right: text_of(input, "right_delimiter").into(),
        skip_empty: input.get("skip_empty") == Some(&Value::Bool(true)),
        functions: functions(&environment(Some(&Value::from(data.clone())), input)),
        variables: Arc::new(move |_| data.clone()),
    })
}

/// Renders, compares and, unless the case is a noop, writes what differs in content.
fn scaffolded(case: &Value, job: RenderJob) -> Result<Vec<TargetFile>, String> {
    let input = case.get("input").ok_or("no input")?;
    let steps = input.get("post").and_then(Value::as_list).unwrap_or(&[]);
    let steps: Vec<BTreeMap<String, String>> = steps
        .iter()
        .filter_map(Value::as_map)
        .map(|step| step.iter().map(|(k, v)| (k.to_string(), v.to_string())))
        .map(Iterator::collect)
        .collect();
    let posts = PostCommands::parse(&steps).map_err(|err| err.to_string())?;
    let target = job.target.clone();
    let rendered = scaffold::render(job).map_err(|err| err.to_string())?;
    let comparison =
        scaffold::compare(&target, &rendered, &posts).map_err(|err| err.to_string())?;
    if let Some(conflict) = comparison.conflict {
        return Err(conflict.to_string());
    }
    if input.get("noop") != Some(&Value::Bool(true)) {
        let (runner, accounts, env) = (SystemRunner::new(), Accounts::default(), Env::default());
        let host = Host {
            runner: &runner,
            clock: &SystemClock,
            accounts: &accounts,
            working_dir: Path::new("/"),
            state_dir: None,
            files: ccm_core::system::files::Writer::default(),
            env: &env,
            packages: &PackageCache::default(),
            services: &ServiceCache::default(),
            scaffolds: &SourceCache::default(),
        };
        let differs =
            |item: &&TargetFile| matches!(item.status, FileStatus::Add | FileStatus::Update);
        let items = comparison.items.iter().filter(differs);
        scaffold::write(&target, &rendered, items, &posts, false, host)
            .map_err(|err| err.to_string())?;
    }
    Ok(comparison.items)
}

fn action(item: &TargetFile) -> &'static str {
    match item.status {
        FileStatus::Add => "add",
        FileStatus::Update => "update",
        FileStatus::Equal => "equal",
        FileStatus::Remove => "remove",
    }
}

fn entries<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let map = value.get(key).and_then(Value::as_map);
    map.into_iter()
        .flatten()
        .map(|(name, text)| (&**name, text.as_str().unwrap_or("")))
}

/// Returns files and their bytes: a text, or `{"base64": …}`.
fn contents<'a>(value: &'a Value, key: &str) -> Result<Vec<(&'a str, Vec<u8>)>, String> {
    let map = value.get(key).and_then(Value::as_map);
    let files = map.into_iter().flatten().map(|(name, content)| {
        let encoded = content.get("base64").and_then(Value::as_str);
        let bytes = match (content.as_str(), encoded) {
            (Some(text), _) => Ok(text.as_bytes().to_vec()),
            (None, Some(encoded)) => data_encoding::BASE64
                .decode(encoded.as_bytes())
                .map_err(|err| format!("{name}: {err}")),
            (None, None) => Err(format!("{name}: neither text nor base64")),
        };
        Ok((&**name, bytes?))
    });
    files.collect()
}

fn write_file(path: &Path, content: &[u8], mode: u32) -> Result<(), String> {
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

#[test]
fn a_case_whose_bytes_differ_fails() {
    let case = |content: &str| -> Value {
        let text = format!(
            r#"{{"input": {{"source": {{"a.bin": {{"base64": "AP+A/g=="}}}}, "engine": "go"}},
                 "expect": {{"files": {{"a.bin": {content}}}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    };
    run(&case(r#"{"base64": "AP+A/g=="}"#)).unwrap();
    run(&case(r#"{"base64": "AP+A/w=="}"#)).unwrap_err();
    run(&case(r#""""#)).unwrap_err();
}
