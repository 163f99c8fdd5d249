//! Facts of recorded machines, of this machine, and of custom facts files.
//!
//! Each directory below `tests/data/facts` holds the files of one machine and, in `expect.json`,
//! expected facts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use chrono::DateTime;
use tempfile::TempDir;

use super::*;
use crate::system::{FixedClock, SystemClock};

/// The first second of 2026.
const NOW: i64 = 1_767_225_600;

fn machine(root: &Path) -> Gatherer {
    let path = |name: &str| root.join(name);
    let paths = FactPaths {
        proc: path("proc"),
        sys: path("sys"),
        etc: path("etc"),
        dev: path("dev"),
        root: path("root"),
        config: Vec::new(),
    };
    let now = DateTime::from_timestamp(NOW, 0).unwrap();
    Gatherer::new(paths, Arc::new(FixedClock::new(now)))
}

fn this_machine() -> Gatherer {
    let mut paths = FactPaths::from_env(&BTreeMap::new());
    paths.config.clear();
    Gatherer::new(paths, Arc::new(SystemClock))
}

fn with_config(config: Vec<PathBuf>) -> Gatherer {
    let mut paths = FactPaths::from_env(&BTreeMap::new());
    paths.config = config;
    Gatherer::new(paths, Arc::new(SystemClock))
}

/// Lists the differences from the expected facts. Facts that are not mentioned are ignored.
fn differences(path: &str, expected: &Value, found: Option<&Value>, list: &mut Vec<String>) {
    match (expected, found) {
        (Value::Map(expected), Some(Value::Map(found))) => {
            for (key, value) in expected.iter() {
                differences(&format!("{path}.{key}"), value, found.get(key), list);
            }
        }
        (expected, Some(found)) if expected == found => {}
        _ => list.push(format!("{path}: expected {expected:?}, found {found:?}")),
    }
}

#[test]
fn recorded_machines_have_the_expected_facts() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/facts");
    let mut list = Vec::new();
    let mut machines = 0;
    for entry in fs::read_dir(root).unwrap() {
        let directory = entry.unwrap().path();
        let name = directory
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(directory.join("expect.json")).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        let gatherer = machine(&directory);
        for (section, expected) in expected.as_map().unwrap() {
            let found = gatherer.section(section);
            differences(
                &format!("{name}: {section}"),
                expected,
                found.as_ref(),
                &mut list,
            );
        }
        machines += 1;
    }
    assert!(machines > 20, "only {machines} machines");
    assert!(list.is_empty(), "{}", list.join("\n"));
}

#[test]
fn a_mapped_device_has_the_name_its_link_leads_to() {
    let root = TempDir::new().unwrap();
    let root = root.path().canonicalize().unwrap();
    put(&root.join("proc/filesystems"), "\text4\n");
    put(
        &root.join("proc/1/mountinfo"),
        "1 0 254:0 / / rw - ext4 /dev/mapper/vg-root rw\n",
    );
    put(&root.join("dev/dm-0"), "");
    fs::create_dir(root.join("dev/mapper")).unwrap();
    symlink("../dm-0", root.join("dev/mapper/vg-root")).unwrap();
    let partition = machine(&root).section("partition").unwrap();
    let first = &partition.get("partitions").unwrap().as_list().unwrap()[0];
    assert_eq!(
        first.get("device").and_then(Value::as_str),
        root.join("dev/dm-0").to_str()
    );
}

#[test]
fn this_machine_has_its_own_name_and_kernel() {
    let host = this_machine().section("host").unwrap();
    let info = host.get("info").unwrap();
    let read = |name: &str| fs::read_to_string(name).unwrap().trim().to_owned();
    let fact = |name: &str| info.get(name).unwrap().as_str().unwrap().to_owned();
    assert_eq!(fact("hostname"), read("/proc/sys/kernel/hostname"));
    assert_eq!(fact("kernelVersion"), read("/proc/sys/kernel/osrelease"));
    assert_eq!(fact("os"), "linux");
}

#[test]
fn this_machine_is_up_and_runs_something() {
    let host = this_machine().section("host").unwrap();
    for name in ["uptime", "bootTime", "procs"] {
        let Some(Value::Int(number)) = host.get("info").unwrap().get(name) else {
            panic!("{name} is a number");
        };
        assert!(*number > 0, "{name}");
    }
}

#[test]
fn this_machine_has_memory_and_processors() {
    let gatherer = this_machine();
    let memory = gatherer.section("memory").unwrap();
    let total = memory.get("virtual").unwrap().get("total");
    assert!(matches!(total, Some(Value::Int(1..))), "{total:?}");
    let cpu = gatherer.section("cpu").unwrap();
    assert!(!cpu.get("info").unwrap().as_list().unwrap().is_empty());
}

#[test]
fn this_machine_has_a_loopback_interface() {
    let gatherer = this_machine();
    let network = gatherer.section("network").unwrap();
    let interfaces = network.get("interfaces").unwrap().as_list().unwrap();
    let is_lo = |link: &&Value| link.get("name") == Some(&"lo".into());
    let lo = interfaces.iter().find(is_lo).unwrap();
    assert_eq!(lo.get("hardwareAddr"), Some(&"".into()));
    let flags = lo.get("flags").unwrap().as_list().unwrap();
    assert!(flags.contains(&"loopback".into()));
    assert!(matches!(lo.get("mtu"), Some(Value::Int(1..))));
    let addresses = network.get("addresses").unwrap().as_list().unwrap();
    let is_local = |address: &Value| address.get("address") == Some(&"127.0.0.1".into());
    assert!(!addresses.iter().any(is_local));
    assert_eq!(gatherer.warnings(), Vec::<String>::new());
}

#[test]
fn all_facts_have_every_section() {
    let all = this_machine().all();
    let names: Vec<&str> = all.as_map().unwrap().keys().map(|name| &**name).collect();
    assert_eq!(names, ["cpu", "host", "memory", "network", "partition"]);
}

#[test]
fn a_section_is_gathered_alone() {
    let gatherer = this_machine();
    gatherer.section("cpu").unwrap();
    assert!(gatherer.age("cpu").is_some());
    for other in ["host", "network", "partition", "memory"] {
        assert_eq!(gatherer.age(other), None, "{other}");
    }
}

#[test]
fn an_unknown_section_is_none() {
    let gatherer = this_machine();
    assert_eq!(gatherer.section("weather"), None);
    assert_eq!(gatherer.age("weather"), None);
}

#[test]
fn a_section_is_gathered_once_and_grows_old() {
    let root = TempDir::new().unwrap();
    let file = root.path().join("etc/alpine-release");
    put(&file, "3.20.1\n");
    let clock = Arc::new(FixedClock::new(DateTime::UNIX_EPOCH));
    let mut paths = FactPaths::from_env(&BTreeMap::new());
    paths.config.clear();
    paths.etc = root.path().join("etc");
    let gatherer = Gatherer::new(paths, clock.clone());
    let first = gatherer.section("host");
    put(&file, "4.0.0\n");
    clock.advance(Duration::from_secs(90));
    assert_eq!(gatherer.section("host"), first);
    assert_eq!(gatherer.age("host"), Some(Duration::from_secs(90)));
}

#[test]
fn concurrent_threads_get_the_same_facts() {
    let gatherer = this_machine();
    let start = Barrier::new(4);
    let results: Vec<_> = std::thread::scope(|scope| {
        let gather = || {
            start.wait();
            gatherer.section("host").unwrap()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(gather)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let Value::Map(first) = &results[0] else {
        panic!("a section is a map");
    };
    for result in &results {
        assert!(matches!(result, Value::Map(other) if Arc::ptr_eq(first, other)));
    }
}

#[test]
fn a_source_returns_one_section_or_all() {
    let config = config(&[("facts.yaml", "role: web\n")]);
    let source = Arc::new(with_config(vec![config.path().into()])).into_source();
    assert_eq!(source(Some("role")).to_string(), "map[role:web]");
    assert_eq!(source(Some("weather")), Value::empty_map());
    let host = source(Some("host"));
    assert_eq!(host.as_map().unwrap().len(), 1);
    assert_eq!(source(None).get("host"), host.get("host"));
}

/// Writes a file and creates missing directories.
#[expect(clippy::disallowed_methods, reason = "a test's own file")]
fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Returns a configuration directory with files in it.
fn config(files: &[(&str, &str)]) -> TempDir {
    let directory = TempDir::new().unwrap();
    for (name, text) in files {
        put(&directory.path().join(name), text);
    }
    directory
}

fn read(directory: &TempDir) -> (String, Vec<String>) {
    let (facts, errors) = custom::read(&[directory.path().into()]);
    let errors = errors.iter().map(|error| {
        let text = error.to_string();
        text.replace(directory.path().to_str().unwrap(), "DIR")
    });
    (facts.to_string(), errors.collect())
}

fn good(facts: &str) -> (String, Vec<String>) {
    (facts.into(), Vec::new())
}

#[test]
fn missing_directories_and_files_are_no_warnings() {
    let empty = config(&[]);
    assert_eq!(read(&empty), good("map[]"));
    let (facts, errors) = custom::read(&[empty.path().join("missing")]);
    assert_eq!(facts, Value::empty_map());
    assert!(errors.is_empty());
}

#[test]
fn later_files_are_merged_over_earlier_ones() {
    let directory = config(&[
        ("facts.json", r#"{"a": 1, "b": {"x": 1, "y": 1}, "l": [1]}"#),
        ("facts.yaml", "a: 2\nb: {x: 2}\nl: [2]\n"),
        ("facts.d/10-one.yaml", "a: 3\nl: [3]\n"),
        ("facts.d/9-two.json", r#"{"a": 4}"#),
    ]);
    assert_eq!(read(&directory), good("map[a:4 b:map[x:2 y:1] l:[1 2 3]]"));
}

#[test]
fn later_directories_are_merged_over_earlier_ones() {
    let system = config(&[("facts.d/z.yaml", "role: web\nteam: a\n")]);
    let user = config(&[("facts.json", r#"{"role": "db"}"#)]);
    let (facts, _) = custom::read(&[system.path().into(), user.path().into()]);
    assert_eq!(facts.to_string(), "map[role:db team:a]");
}

#[test]
fn only_json_and_yaml_files_of_facts_d_count() {
    let directory = config(&[
        ("facts.d/a.YAML", "a: 1\n"),
        ("facts.d/b.Json", r#"{"b": 1}"#),
        ("facts.d/c.yml", "c: 1\n"),
        ("facts.d/d.yaml.bak", "d: 1\n"),
        ("facts.d/yaml", "e: 1\n"),
        ("facts.d/sub.yaml/f.yaml", "f: 1\n"),
    ]);
    assert_eq!(read(&directory), good("map[a:1 b:1]"));
}

#[test]
fn a_relative_directory_is_refused() {
    let (facts, errors) = custom::read(&["etc/ccm".into()]);
    assert_eq!(facts, Value::empty_map());
    assert_eq!(
        errors[0].to_string(),
        "skipping facts directory etc/ccm with a relative path"
    );
}

#[test]
fn a_directory_is_cleaned_before_it_is_read() {
    let directory = config(&[("facts.yaml", "a: 1\n")]);
    let detour = directory.path().join("missing/.././");
    let (facts, _) = custom::read(&[detour]);
    assert_eq!(facts.to_string(), "map[a:1]");
}

#[test]
fn symlinks_are_skipped_with_a_warning() {
    let elsewhere = config(&[("facts.yaml", "evil: 1\n"), ("d/x.yaml", "evil: 2\n")]);
    let target = elsewhere.path().join("facts.yaml");
    let directory = config(&[("facts.json", r#"{"a": 1}"#), ("facts.d/b.yaml", "b: 1\n")]);
    symlink(&target, directory.path().join("facts.yaml")).unwrap();
    symlink(&target, directory.path().join("facts.d/c.yaml")).unwrap();
    let (facts, warnings) = read(&directory);
    assert_eq!(facts, "map[a:1 b:1]");
    assert_eq!(
        warnings,
        [
            "skipping facts file DIR/facts.yaml that is a symlink",
            "skipping facts file DIR/facts.d/c.yaml that is a symlink"
        ]
    );
    let linked = config(&[]);
    symlink(elsewhere.path().join("d"), linked.path().join("facts.d")).unwrap();
    let (facts, warnings) = read(&linked);
    assert_eq!(facts, "map[]");
    assert_eq!(
        warnings,
        ["skipping facts directory DIR/facts.d that is a symlink"]
    );
}

#[test]
fn a_linked_configuration_directory_is_followed() {
    let directory = config(&[("facts.yaml", "a: 1\n")]);
    let links = config(&[]);
    let link = links.path().join("ccm");
    symlink(directory.path(), &link).unwrap();
    let (facts, _) = custom::read(&[link]);
    assert_eq!(facts.to_string(), "map[a:1]");
}

#[test]
fn invalid_files_are_named_and_the_others_used() {
    let directory = config(&[
        ("facts.json", "a: 1\n"),
        ("facts.yaml", "a: [1\n"),
        ("facts.d/1.yaml", "- a\n"),
        ("facts.d/2.yaml", ""),
        ("facts.d/3.json", "null"),
        ("facts.d/4.yaml", "good: 1\n"),
    ]);
    let (facts, warnings) = read(&directory);
    assert_eq!(facts, "map[good:1]");
    let starts: Vec<_> = warnings
        .iter()
        .map(|text| text.split(": ").next().unwrap())
        .collect();
    assert_eq!(
        starts,
        [
            "could not parse facts file DIR/facts.json",
            "could not parse facts file DIR/facts.yaml",
            "could not parse facts file DIR/facts.d/1.yaml",
        ]
    );
    assert!(warnings[2].ends_with(": expected a mapping, found a sequence"));
}

#[test]
fn fifos_and_directories_are_skipped() {
    let directory = config(&[("facts.json/x", "")]);
    let pipe = directory.path().join("facts.yaml");
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert_eq!(
        read(&directory).1,
        [
            "skipping facts file DIR/facts.json that is not a regular file",
            "skipping facts file DIR/facts.yaml that is not a regular file"
        ]
    );
}

#[test]
fn files_beyond_the_total_limit_are_skipped() {
    let filler = format!(r#"{{"a": "{}"}}"#, "x".repeat(9 * 1024 * 1024));
    let directory = config(&[
        ("facts.d/1.json", &filler),
        ("facts.d/2.json", &filler),
        ("facts.d/3.yaml", "small: 1\n"),
    ]);
    let (facts, warnings) = read(&directory);
    assert!(facts.ends_with("small:1]"));
    assert_eq!(
        warnings,
        ["skipping facts file DIR/facts.d/2.json: all facts files together exceed 16777216 bytes"]
    );
}

#[test]
fn deep_nesting_is_refused() {
    let deep = "[".repeat(100_000);
    let json = format!("{{\"a\": {deep}");
    let yaml = format!("a: {deep}");
    let directory = config(&[("facts.json", &json), ("facts.yaml", &yaml)]);
    assert_eq!(read(&directory).1.len(), 2);
}

#[test]
fn whole_numbers_of_json_stay_whole() {
    let directory = config(&[("facts.json", r#"{"n": 1000000, "f": 0.5}"#)]);
    assert_eq!(read(&directory), good("map[f:0.5 n:1000000]"));
}

#[test]
fn custom_facts_add_to_a_section_and_win() {
    let directory = config(&[(
        "facts.yaml",
        "host: {info: {hostname: other, rack: r1}}\nnetwork: {addresses: [x]}\nrole: web\n",
    )]);
    let gatherer = with_config(vec![directory.path().into()]);
    let host = gatherer.section("host").unwrap();
    let info = host.get("info").unwrap();
    assert_eq!(info.get("hostname"), Some(&"other".into()));
    assert_eq!(info.get("rack"), Some(&"r1".into()));
    assert_eq!(info.get("os"), Some(&"linux".into()));
    let network = gatherer.section("network").unwrap();
    let addresses = network.get("addresses").unwrap().as_list().unwrap();
    assert_eq!(addresses.last(), Some(&"x".into()));
    assert_eq!(gatherer.section("role"), Some("web".into()));
    assert!(gatherer.age("role").is_some());
    let all = gatherer.all();
    assert_eq!(all.get("role"), Some(&"web".into()));
    assert_eq!(all.get("host"), Some(&host));
}

#[test]
fn warnings_are_reported_once() {
    let gatherer = with_config(vec!["relative".into()]);
    assert_eq!(gatherer.warnings(), Vec::<String>::new());
    gatherer.section("cpu");
    gatherer.section("memory");
    assert_eq!(
        gatherer.warnings(),
        ["skipping facts directory relative with a relative path"]
    );
}
