//! The decision table of links, `tests/data/provider/link`, on a real file system: what is at the path and
//! the properties in, the message and what is left out.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde::Deserialize;

use crate::model::TypeName;
use crate::resource::package::scripted_host::{ScriptedHost, run_cases};
use crate::resource::tests::{declared, plan_and_change};
use crate::resource::{SelectedProvider, select_provider};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// `absent`, `file`, `directory`, `socket`, or `link` with its target.
    found: String,
    properties: serde_json::Value,
    /// The noop message; nothing for an empty plan.
    #[serde(default)]
    message: String,
    #[serde(default)]
    error: String,
    left: String,
}

fn create(path: &Path, what: &str) {
    match what.split_once(' ') {
        Some(("link", target)) => symlink(target, path).unwrap(),
        _ if what == "file" => fs::write(path, "").unwrap(),
        _ if what == "directory" => {
            fs::create_dir(path).unwrap();
            fs::write(path.join("file"), "").unwrap();
        }
        _ if what == "socket" => drop(UnixListener::bind(path).unwrap()),
        _ => assert_eq!(what, "absent"),
    }
}

fn describe(path: &Path) -> String {
    let Ok(found) = path.symlink_metadata() else {
        return "absent".into();
    };
    let kind = found.file_type();
    if kind.is_symlink() {
        return format!("link {}", fs::read_link(path).unwrap().display());
    }
    let names = [
        (kind.is_dir(), "directory"),
        (kind.is_file(), "file"),
        (kind.is_socket(), "socket"),
    ];
    let name = names.into_iter().find(|(is, _)| *is);
    name.map_or("other", |(_, name)| name).into()
}

fn run(case: &Case) -> Result<(), String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("l");
    create(&path, &case.found);
    let mut properties = case.properties.clone();
    properties["name"] = path.to_str().unwrap().into();
    let resource = declared(TypeName::Link, &properties)?;
    let test = ScriptedHost::new();
    let host = test.host();
    let Ok(SelectedProvider::Managed(managed)) = select_provider(&resource, host) else {
        return Err("no provider".into());
    };
    let before = managed.inspect(host).map_err(|err| err.to_string())?;
    let (message, error) = match plan_and_change(&managed, &before, host) {
        Ok(message) => (message, String::new()),
        Err(err) => {
            let error = err.to_string();
            (
                String::new(),
                error.replace(path.to_str().unwrap(), "$PATH"),
            )
        }
    };
    let result = (message.as_str(), error.as_str(), describe(&path));
    let wanted = (
        case.message.as_str(),
        case.error.as_str(),
        case.left.clone(),
    );
    match result == wanted {
        true => Ok(()),
        false => Err(format!("{result:?}")),
    }
}

#[test]
fn links_follow_the_table() {
    let count = run_cases("link", |case: &Case| (case.name.clone(), run(case)));
    assert!(count > 20, "{count}");
}
