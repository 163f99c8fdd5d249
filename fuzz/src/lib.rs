//! What the targets share: rooms to write in, commands that print what the fuzzer likes, and the
//! check that what was decoded can be encoded and decoded again.
//!
//! A target decodes bytes from outside and checks something that must hold of whatever was
//! accepted. It holds no rules of its own: those are the library's.

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

/// Returns a directory in memory, where there is one: disks are slow and wear out.
pub fn room() -> TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    }
    .expect("a directory can be made")
}

/// Writes a file that a target finds, with the directories it is in.
#[expect(
    clippy::disallowed_methods,
    reason = "targets arrange the world by hand, as tests do"
)]
pub fn put(path: &Path, content: &[u8]) {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).expect("directories are made");
    }
    std::fs::write(path, content).expect("a file is written");
}

/// A machine on which every program is there and prints the same.
pub struct Answering<'a> {
    pub code: i32,
    pub stdout: &'a [u8],
}

impl Runner for Answering<'_> {
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

/// Checks that a message that can be read is the same after it was written and read again.
pub fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(json: &[u8]) {
    let Ok(message) = serde_json::from_slice::<T>(json) else {
        return;
    };
    let text = serde_json::to_string(&message).expect("what was read can be written");
    match serde_json::from_str::<T>(&text) {
        Ok(again) => assert_eq!(message, again, "{text}"),
        Err(err) => panic!("{text} can't be read again: {err}"),
    }
}

/// Checks that a word that is accepted prints as a word that means the same.
pub fn prints_back<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(word) = text.parse::<T>() {
        let printed = word.to_string();
        let again: T = printed.parse().expect(&printed);
        assert_eq!(word, again, "{printed:?}");
    }
}

/// Splits bytes at the first zero.
pub fn halves(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let first = parts.next().unwrap_or_default();
    (first, parts.next().unwrap_or_default())
}

/// Renders a template over a little data of each sort; whatever comes of it, it ends.
pub fn renders(engine: Engine, text: &[u8]) {
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
