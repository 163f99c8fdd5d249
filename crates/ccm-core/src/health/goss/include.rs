//! Included rule files: `gossfile` entries, merged into one document.
//!
//! A file name may be a pattern and is relative to the including document. An included resource
//! replaces one of the same id in the including document. Files are templates, too. Number and
//! depth of included files are limited, so a file that includes itself is an error.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::document::{Entry, IncludeError, RuleError};
use super::expand;
use super::probe::{FirstAttribute, InspectError, ResourceType};
use crate::health::{ProbeError, Probes};
use crate::model::document;
use crate::model::value::{Map, Value};
use crate::system::files;

/// The type of `gossfile` entries, which have no attributes.
const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "gossfile",
    name: "Gossfile",
    target: "file",
    settings: &[],
    attributes: &[],
    first: FirstAttribute::Optional,
    inspect: |_, _| Err(InspectError::Gossfile),
};

/// Maximum depth of includes.
const MAX_DEPTH: usize = 50;

/// Maximum number of files.
const MAX_FILES: usize = 1000;

/// The largest rule file.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Returns rules merged with all included files, with templates resolved.
pub(super) fn resolve(probes: &Probes<'_>, rules: &Value) -> Result<Value, ProbeError> {
    let mut loader = Loader { probes, files: 0 };
    let base = &probes.env.working_dir;
    loader.document(rules, base, 1).map(Value::from)
}

/// Loads included files.
struct Loader<'a> {
    probes: &'a Probes<'a>,
    files: usize,
}

impl Loader<'_> {
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
            .remove(RESOURCE_TYPE.key)
            .filter(|includes| !includes.is_null())
        else {
            return Ok(types);
        };
        let includes = includes
            .as_map()
            .ok_or(RuleError::NotIds(RESOURCE_TYPE.key, includes.kind()))?;
        for (id, attributes) in includes {
            let entry = Entry::parse(&RESOURCE_TYPE, id, attributes)?;
            if entry.skip {
                continue;
            }
            for file in matching_files(&directory.join(entry.target()))? {
                let included = self.file(&file, depth)?;
                merge(&mut types, included);
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
                // These errors already name the file.
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

/// Merges included rules over existing ones, by type and id.
fn merge(types: &mut Map, included: Map) {
    for (key, entries) in included {
        let merged = match types.get(&key) {
            Some(known) if entries.is_null() => known.clone(),
            Some(known) => known.merge_shallow(&entries),
            None => entries,
        };
        types.insert(key, merged);
    }
}

/// Returns the files that match a name, at least one.
fn matching_files(pattern: &Path) -> Result<Vec<PathBuf>, RuleError> {
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

    /// Resolves rules whose files are in one directory.
    #[expect(clippy::disallowed_methods, reason = "a test's own files")]
    fn resolved(files: &[(&str, &str)], rules: &str) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let env = Env {
            working_dir: dir.path().to_owned(),
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
        let here = dir.path().to_str().unwrap().to_owned();
        let rules = document::parse(rules).unwrap().to_value();
        let resolved = resolve(&probes, &rules).map_err(|err| err.to_string());
        resolved
            .map(|rules| serde_json::to_string(&rules).unwrap())
            .map_err(|err| err.replace(&here, "$DIR"))
    }

    #[test]
    fn files_are_found_by_name_pattern_and_setting_relative_to_the_document() {
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
            resolved(&files, rules).unwrap(),
            r#"{"group":{"z":{}},"port":{"1":{},"80":{}},"user":{"x":{},"y":{}}}"#
        );
    }

    #[test]
    fn an_included_entry_replaces_an_existing_one() {
        let files = [("a.yaml", "port: {1: {listening: false}}")];
        let rules = "gossfile: {a.yaml: {}}\nport: {1: {listening: true, ip: []}, 2: {}}";
        assert_eq!(
            resolved(&files, rules).unwrap(),
            r#"{"port":{"1":{"listening":false},"2":{}}}"#
        );
    }

    #[test]
    fn errors_of_includes() {
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
            assert_eq!(resolved(&files, &rules), Err(reason.into()), "{entry}");
        }
        let error = resolved(&files, "gossfile: {bad.yaml: {}}").unwrap_err();
        assert!(
            error.starts_with("could not read goss file $DIR/bad.yaml: "),
            "{error}"
        );
    }

    #[test]
    fn depth_and_number_of_includes_are_limited() {
        let text = "gossfile: {'*.yaml': {}}";
        let names: Vec<String> = (0..30).map(|number| format!("{number}.yaml")).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), text)).collect();
        // The first file recurses to the depth limit before the number of files is reached.
        let error = resolved(&files, text).unwrap_err();
        assert!(error.starts_with("max depth of 50 reached"), "{error}");
        // Many files without nesting reach the number limit.
        let wide: Vec<String> = (0..MAX_FILES + 1)
            .map(|number| format!("w/{number}"))
            .collect();
        let files: Vec<(&str, &str)> = wide.iter().map(|name| (name.as_str(), "{}")).collect();
        let error = resolved(&files, "gossfile: {'w/*': {}}").unwrap_err();
        assert_eq!(error, "more than 1000 goss files are included");
    }
}
