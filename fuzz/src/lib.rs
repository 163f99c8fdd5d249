//! Helpers of the fuzz targets: temporary directories, a fake command runner and round-trip checks.
//!
//! A target decodes untrusted bytes and checks a property of every accepted input. The rules are in
//! the libraries, not in the targets.

use std::fmt::{Debug, Display};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ccm_core::system::{Command, Output, RunError, Runner};
use ccm_template::engines::{Template, render};
use ccm_template::{Engine, Env};
use ccm_value::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

/// Returns a temporary directory, in memory if possible.
pub fn temp_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    }
    .expect("create a temporary directory")
}

/// Writes a file and creates its parent directories.
#[expect(
    clippy::disallowed_methods,
    reason = "fuzz targets write files directly, like tests"
)]
pub fn write_file(path: &Path, content: &[u8]) {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).expect("create directories");
    }
    std::fs::write(path, content).expect("write a file");
}

/// Fake command runner: every program exists and prints the same output.
pub struct FixedOutput<'a> {
    pub code: i32,
    pub stdout: &'a [u8],
}

impl Runner for FixedOutput<'_> {
    fn run(&self, _command: &Command<'_>) -> Result<Output, RunError> {
        Ok(Output {
            code: self.code,
            stdout: self.stdout.to_vec(),
            ..Output::default()
        })
    }

    fn locate(&self, program: &str) -> Option<PathBuf> {
        Some(Path::new("/usr/bin").join(program))
    }
}

/// Checks that a message that is deserialized round-trips through JSON.
pub fn json_round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(json: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(json) else {
        return;
    };
    let text = serde_json::to_string(&message).expect("serialize a message");
    match serde_json::from_str::<T>(&text) {
        Ok(again) => assert_eq!(message, again, "{text}"),
        Err(err) => panic!("{text} can't be deserialized: {err}"),
    }
}

/// Checks that a parsed value round-trips through its displayed text.
pub fn text_round_trip<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let printed = value.to_string();
        let again: T = printed.parse().expect(&printed);
        assert_eq!(value, again, "{printed:?}");
    }
}

/// Splits bytes at the first zero byte.
pub fn split_at_zero(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let first = parts.next().unwrap_or_default();
    (first, parts.next().unwrap_or_default())
}

/// Renders a template with sample data; any result is accepted.
pub fn render_template(engine: Engine, text: &[u8]) {
    let env = Env {
        data: [
            ("list", [1_i64, 2, 3].map(Value::from).into_iter().collect()),
            ("text", Value::from("some text")),
            ("map", [("k", Value::from("v"))].into_iter().collect()),
        ]
        .into_iter()
        .collect(),
        ..Env::default()
    };
    let template = Template {
        engine,
        name: "input",
        text,
        left: "",
        right: "",
    };
    let _ = render(template, &env);
}
