//! Rules in files of their own: `gossfile` entries, gathered into one document before it is read.
//!
//! A name may be a pattern and is relative to the document that has it. What a file says of a
//! thing replaces what the one that includes it says. Files are templates like the rules
//! themselves. How many may be read, and how deep they may include each other, is bounded, so that
//! a file that includes itself is an error and nothing worse.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::document::{Entry, IncludeError, RuleError};
use super::expand;
use super::probe::{Family, First, LookError};
use crate::health::{ProbeError, Probes};
use crate::model::document;
use crate::model::value::{Map, Value};
use crate::system::files;

/// A file of rules as an entry of a document: there is nothing to look at.
const FAMILY: Family = Family {
    key: "gossfile",
    name: "Gossfile",
    target: "file",
    settings: &[],
    attributes: &[],
    first: First::Optional,
    look: |_, _| Err(LookError::Gossfile),
};

/// How deep files may include each other.
const MAX_DEPTH: usize = 50;

/// How many files are read in all.
const MAX_FILES: usize = 1000;

/// The largest file of rules.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Returns rules with all that they include, every text resolved.
pub(super) fn gather(probes: &Probes<'_>, rules: &Value) -> Result<Value, ProbeError> {
    let mut reading = Reading { probes, files: 0 };
    let base = &probes.env.working_dir;
    reading.document(rules, base, 1).map(Value::from)
}

/// Files on their way into one document.
struct Reading<'a> {
    probes: &'a Probes<'a>,
    files: usize,
}

impl Reading<'_> {
    fn document(
        &mut self,
        rules: &Value,
        directory: &Path,
        depth: usize,
    ) -> Result<Map, ProbeError> {
        let rules = expand(rules, self.probes.env, self.probes.programs)?;
        let mut types = match rules {
            Value::Map(types) => Arc::unwrap_or_clone(types),
            other => return Err(RuleError::NotAMapping(other.kind()).into()),
        };
        let Some(includes) = types
            .remove(FAMILY.key)
            .filter(|includes| !includes.is_null())
        else {
            return Ok(types);
        };
        let includes = includes
            .as_map()
            .ok_or(RuleError::NotIds(FAMILY.key, includes.kind()))?;
        for (id, attributes) in includes {
            let entry = Entry::read(&FAMILY, id, attributes)?;
            if entry.skip {
                continue;
            }
            for file in fitting(&directory.join(entry.target()))? {
                let more = self.file(&file, depth)?;
                lay_over(&mut types, more);
            }
        }
        Ok(types)
    }

    fn file(&mut self, file: &Path, depth: usize) -> Result<Map, ProbeError> {
        if depth >= MAX_DEPTH {
            return Err(RuleError::TooDeep(MAX_DEPTH).into());
        }
        self.files += 1;
        if self.files > MAX_FILES {
            return Err(RuleError::TooManyFiles(MAX_FILES).into());
        }
        let failed = |cause: IncludeError| RuleError::File {
            file: file.display().to_string(),
            cause,
        };
        let text = files::read_to_string(file, MAX_FILE_BYTES).map_err(|err| failed(err.into()))?;
        let rules = document::parse(&text).map_err(|err| failed(err.into()))?;
        let directory = file.parent().unwrap_or(file);
        self.document(&rules.to_value(), directory, depth + 1)
            .map_err(|err| match err {
                // These name what they are about.
                ProbeError::Rule(
                    RuleError::File { .. }
                    | RuleError::NoFile(_)
                    | RuleError::TooDeep(_)
                    | RuleError::TooManyFiles(_),
                ) => err,
                other => failed(IncludeError::Rules(other.into())).into(),
            })
    }
}

/// Lays what a file says over what was said before, thing by thing.
fn lay_over(types: &mut Map, more: Map) {
    for (key, things) in more {
        let merged = match types.get(&key) {
            Some(known) if things.is_null() => known.clone(),
            Some(known) => known.merge_shallow(&things),
            None => things,
        };
        types.insert(key, merged);
    }
}

/// Returns the files that fit a name, at least one.
fn fitting(pattern: &Path) -> Result<Vec<PathBuf>, RuleError> {
    let shown = || pattern.display().to_string();
    let found = files::expand(pattern).map_err(|err| RuleError::File {
        file: shown(),
        cause: err.into(),
    })?;
    if found.is_empty() {
        return Err(RuleError::NoFile(shown()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{Accounts, ScriptedRunner, SystemClock};
    use ccm_template::Env;
    use ccm_template::expr::Cache;

    /// Gathers rules whose files lie in one directory.
    #[expect(clippy::disallowed_methods, reason = "a test's own files")]
    fn gathered(files: &[(&str, &str)], rules: &str) -> Result<String, String> {
        let room = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = room.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let env = Env {
            working_dir: room.path().to_owned(),
            data: [("port", Value::from(80_i64))].into_iter().collect(),
            ..Env::default()
        };
        let probes = Probes {
            runner: &ScriptedRunner::new(),
            clock: &SystemClock,
            accounts: &Accounts::default(),
            env: &env,
            programs: &Cache::default(),
        };
        let here = room.path().to_str().unwrap().to_owned();
        let rules = document::parse(rules).unwrap().to_value();
        let gathered = gather(&probes, &rules).map_err(|err| err.to_string());
        gathered
            .map(|rules| serde_json::to_string(&rules).unwrap())
            .map_err(|err| err.replace(&here, "$DIR"))
    }

    #[test]
    fn files_are_found_by_name_pattern_and_setting_beside_who_includes_them() {
        let files = [
            ("a.yaml", "gossfile: {sub/b.json: {}}\nport: {1: {}}"),
            ("sub/b.json", r#"{"gossfile": {"c.yaml": {}}}"#),
            ("sub/c.yaml", "port: {'{{ Data.port }}': {}}"),
            ("d1.yaml", "user: {x: {}}"),
            ("d2.yaml", "user: {y: {}}\nport: null"),
            ("skipped.yaml", "no: rules"),
        ];
        let rules = "
gossfile:
  a.yaml: {}
  many: {file: 'd?.yaml', title: t}
  skipped.yaml: {skip: true}
group: {z: {}}";
        assert_eq!(
            gathered(&files, rules).unwrap(),
            r#"{"group":{"z":{}},"port":{"1":{},"80":{}},"user":{"x":{},"y":{}}}"#
        );
    }

    #[test]
    fn what_a_file_says_of_a_thing_replaces_what_was_said_before() {
        let files = [("a.yaml", "port: {1: {listening: false}}")];
        let rules = "gossfile: {a.yaml: {}}\nport: {1: {listening: true, ip: []}, 2: {}}";
        assert_eq!(
            gathered(&files, rules).unwrap(),
            r#"{"port":{"1":{"listening":false},"2":{}}}"#
        );
    }

    #[test]
    fn what_cannot_be_included_says_why() {
        let files = [
            ("list.yaml", "[1]"),
            ("bad.yaml", "a: [\n"),
            ("loop.yaml", "gossfile: {loop.yaml: {}}"),
            ("many/1.yaml", "gossfile: {'*.yaml': {}}"),
            ("many/2.yaml", "gossfile: {'*.yaml': {}}"),
        ];
        for (entry, reason) in [
            (
                "gone.yaml: {}",
                "no matched files were found: \"$DIR/gone.yaml\"",
            ),
            (
                "list.yaml: {}",
                "could not read goss file $DIR/list.yaml: goss rules must be a mapping of types, not a sequence",
            ),
            (
                "loop.yaml: {}",
                "max depth of 50 reached, possibly due to dependency loop in goss file",
            ),
            (
                "x: {file: '[a'}",
                "could not read goss file $DIR/[a: syntax error in pattern",
            ),
            ("x: {files: a}", "invalid Attribute for Gossfile:x: files"),
            ("x:", "Could not parse resource Gossfile:x"),
        ] {
            let rules = format!("gossfile: {{{entry}}}").replace("x:}", "x: }");
            assert_eq!(gathered(&files, &rules), Err(reason.into()), "{entry}");
        }
        let error = gathered(&files, "gossfile: {bad.yaml: {}}").unwrap_err();
        assert!(
            error.starts_with("could not read goss file $DIR/bad.yaml: "),
            "{error}"
        );
    }

    #[test]
    fn files_that_include_each_other_without_end_are_counted() {
        let text = "gossfile: {'*.yaml': {}}";
        let names: Vec<String> = (0..30).map(|number| format!("{number}.yaml")).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), text)).collect();
        // The first of them goes down to the limit; that is an error before many are read.
        let error = gathered(&files, text).unwrap_err();
        assert!(error.starts_with("max depth of 50 reached"), "{error}");
        // Wide and not deep, it is the count that ends it.
        let wide: Vec<String> = (0..MAX_FILES + 1)
            .map(|number| format!("w/{number}"))
            .collect();
        let files: Vec<(&str, &str)> = wide.iter().map(|name| (name.as_str(), "{}")).collect();
        let error = gathered(&files, "gossfile: {'w/*': {}}").unwrap_err();
        assert_eq!(error, "more than 1000 goss files are included");
    }
}
