//! What templates see when a person runs us: the process environment, a `.env` file, data.

use std::path::Path;
use std::sync::Arc;

use super::CliError;
use crate::model::value::{Map, Value};
use crate::system::files;
use crate::template::Env;

/// The largest file a template may read.
const MAX_READ_BYTES: u64 = 16 * 1024 * 1024;

/// Builds the environment of a run whose relative paths start at `directory`.
pub(super) fn environment(directory: &Path, read_env: bool) -> Result<Env, CliError> {
    let mut environ: Map = std::env::vars_os()
        .filter_map(|(key, value)| {
            let value = value.into_string().ok()?;
            Some((key.into_string().ok()?.into(), value.into()))
        })
        .collect();
    if read_env {
        let file = Path::new(".env");
        if files::inspect(file, true)
            .map_err(CliError::usage)?
            .is_some()
        {
            let text = files::read_to_string(file, MAX_READ_BYTES).map_err(CliError::usage)?;
            environ.extend(parse_env(&text));
        }
    }
    Ok(Env {
        environ: environ.into(),
        data: Value::empty_map(),
        working_dir: directory.to_owned(),
        read_file: Some(Arc::new(|path: &Path| {
            files::read_to_string(path, MAX_READ_BYTES).map_err(|err| err.to_string())
        })),
        ..Env::default()
    })
}

/// Reads `KEY=value` lines; one pair of double quotes around a value is not part of it.
fn parse_env(text: &str) -> impl Iterator<Item = (Arc<str>, Value)> + '_ {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once('=').filter(|(key, _)| !key.is_empty())?;
        let value = match value.strip_prefix('"') {
            Some(rest) => rest.strip_suffix('"').unwrap_or(rest),
            None => value,
        };
        Some((key.into(), value.into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_around_a_value_are_not_part_of_it() {
        let found: Vec<_> = parse_env("A=1\nB=\"two words\"\nC=\nno line\n=x\nD=a=b\n").collect();
        let expected: Vec<(Arc<str>, Value)> = vec![
            ("A".into(), "1".into()),
            ("B".into(), "two words".into()),
            ("C".into(), "".into()),
            ("D".into(), "a=b".into()),
        ];
        assert_eq!(found, expected);
    }
}
