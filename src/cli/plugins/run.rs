//! Execution of a plugin command: renders its templates, asks for confirmation and replaces this
//! process with the program.
//!
//! Commands are split into words after rendering, as in App Builder: authors quote user input with
//! `escape`. A shell is used only if the definition requests one.

use std::collections::BTreeMap;
use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::definition::{Backoff, Body, Exec};
use super::discover;
use super::mount::CallInput;
use crate::cli::output::{print_error, prompt};
use crate::cli::{CliError, Verdict, environment};
use ccm_core::run::environment::MAX_READ;
use ccm_core::system::runner::Passthrough;
use ccm_core::system::{self, files};
use ccm_template::env::{Function, Functions};
use ccm_template::{CallError, go};
use ccm_value::text::split_words;
use ccm_value::{Value, document};

/// App Builder configuration file, available to templates as `.Config`.
const CONFIG: &str = "appbuilder/builder-cfg.yaml";

/// Call of a plugin command.
pub(super) struct Call<'a> {
    pub(super) exec: &'a Exec,
    pub(super) input: CallInput,
    /// Plugin file.
    pub(super) file: &'a Path,
    /// Command name, for errors.
    pub(super) name: &'a str,
}

impl Call<'_> {
    /// Runs the command. Without retries this process is replaced and the call does not return.
    pub(super) fn run(self) -> Result<Verdict, CliError> {
        let variables = environment::variables();
        let set = |name: &str| variables.get(name).is_some_and(|value| !value.is_empty());
        let renderer = Renderer {
            root: [
                ("Arguments", self.input.arguments.clone()),
                ("Flags", self.input.flags.clone()),
                ("Config", config(&variables)?),
            ]
            .into_iter()
            .collect(),
            functions: functions(self.file, &variables),
            name: self.name,
        };
        let mut program = self.program(&renderer, &variables)?;
        if set("BUILDER_DRY_RUN") || set("BUILDER_DEBUG") {
            print_error(description(&program).trim_end());
        }
        if set("BUILDER_DRY_RUN") {
            return Ok(Verdict::default());
        }
        if let Some(banner) = &self.exec.banner {
            let banner = renderer.render("banner", banner)?;
            if !banner.is_empty() {
                // A closed pipe is not an error.
                let _ = writeln!(std::io::stdout(), "{banner}");
            }
        }
        if let (true, Some(question)) = (self.input.needs_confirmation, &self.exec.confirm_prompt) {
            confirm(question)?;
        }
        let Some(backoff) = self.exec.backoff else {
            program.env.push(("BUILDER_TRY".into(), "1".into()));
            return Err(CliError::failed(program.exec()));
        };
        run_with_retries(&program, backoff)
    }

    fn program(
        &self,
        renderer: &Renderer<'_>,
        variables: &BTreeMap<String, String>,
    ) -> Result<Passthrough, CliError> {
        let mut words = match &self.exec.body {
            Body::Missing => Vec::new(),
            Body::Words(text) => {
                let text = renderer.render("command", text)?;
                split_words(&text).map_err(|err| {
                    CliError::failed(err).at(format_args!("command of {}", self.name))
                })?
            }
            Body::Script { text, shell } => {
                let mut words = find_shell(shell.as_deref(), variables)?;
                words.push(renderer.render("script", text)?);
                words
            }
        };
        if words.is_empty() {
            return Err(CliError::failed(format!(
                "command of {} is empty",
                self.name
            )));
        }
        let args = words.split_off(1);
        let mut env = Vec::new();
        for pair in &self.exec.environment {
            let pair = renderer.render("environment", pair)?;
            let (name, value) = pair.split_once('=').unwrap_or((&pair, ""));
            if name.is_empty() || pair.contains('\0') {
                return Err(CliError::failed(format!(
                    "environment of {}: {pair:?} is not NAME=VALUE",
                    self.name
                )));
            }
            env.push((name.to_owned(), value.to_owned()));
        }
        let dir = self.exec.dir.as_ref();
        let dir = dir.map(|dir| renderer.render("dir", dir)).transpose()?;
        Ok(Passthrough {
            program: words.pop().unwrap_or_default(),
            args,
            env,
            cwd: dir.filter(|dir| !dir.is_empty()).map(PathBuf::from),
        })
    }
}

/// Renders the templates of a call.
struct Renderer<'a> {
    root: Value,
    functions: Functions,
    name: &'a str,
}

impl Renderer<'_> {
    fn render(&self, key: &str, text: &str) -> Result<String, CliError> {
        let name = format!("{key} of {}", self.name);
        let options = go::Options {
            name: &name,
            ..go::Options::default()
        };
        go::render(text, &options, &self.root, &self.functions).map_err(CliError::failed)
    }
}

/// Returns the App Builder functions for templates; they override sprig functions.
fn functions(file: &Path, variables: &BTreeMap<String, String>) -> Functions {
    fn constant(path: Option<PathBuf>) -> Function {
        let text: Value = path
            .map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default()
            .into();
        Arc::new(move |_| Ok(text.clone()))
    }
    let variables = variables.clone();
    let here = constant(std::env::current_dir().ok());
    let home = constant(file.parent().map(Path::to_owned));
    let entries: [(&'static str, Function); 9] = [
        ("require", Arc::new(require)),
        (
            "escape",
            Arc::new(|args| Ok(quoted(&text(args, 0)?).into())),
        ),
        ("default", Arc::new(or_default)),
        (
            "env",
            Arc::new(move |args| {
                let value = variables.get(&text(args, 0)?);
                Ok(value.cloned().unwrap_or_default().into())
            }),
        ),
        ("read_file", Arc::new(read_file)),
        ("UserWorkingDir", here),
        ("AppDir", home.clone()),
        ("TaskDir", home),
        (
            "BashHelperPath",
            Arc::new(|_| Err("BashHelperPath is not supported".into())),
        ),
    ];
    entries.into()
}

fn text(args: &[Value], index: usize) -> Result<String, CallError> {
    match args.get(index) {
        Some(Value::Null) | None => Err("expected a string".into()),
        Some(value) => Ok(value.to_string()),
    }
}

/// Returns a required value, or the given error message.
fn require(args: &[Value]) -> Result<Value, CallError> {
    let reason = text(args, 1).unwrap_or_default();
    match args.first() {
        Some(value) if !value.is_null() && value.as_str() != Some("") => Ok(value.clone()),
        _ if reason.is_empty() => Err("value required".into()),
        _ => Err(reason.into()),
    }
}

/// Returns the first argument unless it is empty; sprig has the opposite order.
fn or_default(args: &[Value]) -> Result<Value, CallError> {
    match args {
        [value @ Value::Str(text), _] if !text.is_empty() => Ok(value.clone()),
        [_, default] => Ok(default.clone()),
        _ => Err("default needs a value and a default".into()),
    }
}

fn read_file(args: &[Value]) -> Result<Value, CallError> {
    let path = text(args, 0)?;
    let read = files::read_to_string(Path::new(&path), MAX_READ);
    read.map(Value::from).map_err(CallError::new)
}

/// Quotes a string as one shell word.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\"'\"'"))
    }
}

/// Returns `.Config`: the file in `BUILDER_CONFIG`, the user's, the system's, or an empty map.
fn config(variables: &BTreeMap<String, String>) -> Result<Value, CliError> {
    let named = variables
        .get("BUILDER_CONFIG")
        .filter(|path| !path.is_empty());
    if let Some(path) = named {
        return read_config(Path::new(path));
    }
    for directory in super::config_homes(variables) {
        let path = directory.join(CONFIG);
        if files::inspect(&path, true)
            .map_err(CliError::failed)?
            .is_some()
        {
            return read_config(&path);
        }
    }
    Ok(Value::empty_map())
}

fn read_config(path: &Path) -> Result<Value, CliError> {
    let text = discover::read(path).map_err(CliError::failed)?;
    let node = document::parse(&text).map_err(|err| CliError::failed(err).at(path.display()))?;
    Ok(node.to_value())
}

/// Returns the shell command line for a script.
fn find_shell(
    named: Option<&str>,
    variables: &BTreeMap<String, String>,
) -> Result<Vec<String>, CliError> {
    if let Some(shell) = named {
        let mut words = split_words(shell)
            .map_err(|err| CliError::failed(err).at(format_args!("shell {shell:?}")))?;
        if words.len() == 1 {
            words.push("-c".into());
        }
        return Ok(words);
    }
    let usual = ["/bin/bash", "/bin/sh"].map(str::to_owned);
    let users = variables.get("SHELL").filter(|shell| !shell.is_empty());
    let shell =
        users.cloned().into_iter().chain(usual).find(|shell| {
            files::inspect(Path::new(shell), true).is_ok_and(|found| found.is_some())
        });
    Ok(vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into()])
}

/// Describes the program for dry runs and debugging.
fn description(program: &Passthrough) -> String {
    let words: Vec<String> = std::iter::once(&program.program)
        .chain(&program.args)
        .map(|word| quoted(word))
        .collect();
    let mut text = format!("command: {}\n", words.join(" "));
    if let Some(cwd) = &program.cwd {
        text.push_str(&format!("directory: {}\n", cwd.display()));
    }
    for (name, value) in &program.env {
        text.push_str(&format!("environment: {name}={}\n", quoted(value)));
    }
    text
}

/// Prompts for confirmation; anything but yes is an error.
fn confirm(question: &str) -> Result<(), CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::usage(
            "can't prompt for confirmation: standard input is not a terminal",
        )
        .hint("use --no-prompt"));
    }
    prompt(question);
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(CliError::failed)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CliError::failed("aborted")),
    }
}

/// Runs a program until it succeeds or the attempts are used up.
fn run_with_retries(program: &Passthrough, backoff: Backoff) -> Result<Verdict, CliError> {
    let mut attempt = 1;
    loop {
        let mut program = program.clone();
        program
            .env
            .push(("BUILDER_TRY".into(), attempt.to_string()));
        let code = program.run().map_err(CliError::failed)?;
        if code == 0 || attempt >= backoff.max_attempts {
            return Ok(Verdict::exit(u8::try_from(code).unwrap_or(1)));
        }
        let wait = backoff.wait(attempt, system::random().map_err(CliError::failed)?);
        let max = backoff.max_attempts;
        print_error(&format!(
            "ccm: attempt {attempt} of {max} exited with {code}, retrying in {wait:.1?}"
        ));
        std::thread::sleep(wait);
        attempt += 1;
    }
}

impl Backoff {
    /// Returns the time to wait after an attempt: grows linearly with each step, with a random
    /// factor from 0.5 to 1.5.
    fn wait(self, attempt: u32, random: u128) -> Duration {
        let step = attempt.min(self.steps - 1);
        let span = self.max_sleep.saturating_sub(self.min_sleep);
        let mean = self.min_sleep + span / self.steps * step;
        let part = u32::try_from(random % 1000).unwrap_or_default();
        mean / 2 + mean / 1000 * part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str) -> Result<String, String> {
        let variables = BTreeMap::from([("HOME".to_owned(), "/root".to_owned())]);
        let renderer = Renderer {
            root: [
                (
                    "Arguments",
                    [("message", Value::from("it's $HOME"))]
                        .into_iter()
                        .collect(),
                ),
                (
                    "Flags",
                    [("force", Value::Bool(true))].into_iter().collect(),
                ),
                ("Config", Value::empty_map()),
            ]
            .into_iter()
            .collect(),
            functions: functions(Path::new("/srv/plugins/x-plugin.yaml"), &variables),
            name: "say",
        };
        renderer
            .render("command", text)
            .map_err(|err| err.to_string())
    }

    #[test]
    fn templates_have_app_builders_data_and_functions() {
        for (template, text) in [
            ("{{ default .Config.Cowsay \"cowsay\" }}", "cowsay"),
            ("{{ .Arguments.message | escape }}", "'it'\"'\"'s $HOME'"),
            ("{{ if .Flags.force }}-f{{ end }}", "-f"),
            ("{{ env \"HOME\" }}{{ env \"NONE\" }}", "/root"),
            ("{{ AppDir }} {{ TaskDir }}", "/srv/plugins /srv/plugins"),
            (
                "{{ require .Arguments.message \"no\" | upper }}",
                "IT'S $HOME",
            ),
        ] {
            assert_eq!(render(template), Ok(text.into()), "{template}");
        }
        for (template, error) in [
            (
                "{{ require .Config.Password \"no password\" }}",
                "no password",
            ),
            ("{{ BashHelperPath }}", "BashHelperPath is not supported"),
            ("{{ read_file \"/no/such\" }}", "/no/such"),
            ("{{ nope }}", "command of say"),
        ] {
            let found = render(template).unwrap_err();
            assert!(found.contains(error), "{found}");
        }
    }

    #[test]
    fn quoted_text_is_always_one_word() {
        for hostile in ["a b", "'", "$(rm -rf /)", "", "\"; x", "a\\", "\n"] {
            assert_eq!(split_words(&quoted(hostile)).unwrap(), [hostile]);
        }
        assert_eq!(quoted("plain/word-1.0"), "plain/word-1.0");
    }

    #[test]
    fn waits_grow_from_min_to_max() {
        let backoff = Backoff {
            max_attempts: 10,
            steps: 4,
            min_sleep: Duration::from_secs(1),
            max_sleep: Duration::from_secs(9),
        };
        let middle = |attempt| backoff.wait(attempt, 500);
        assert_eq!(middle(1), Duration::from_secs(3));
        assert_eq!(middle(3), Duration::from_secs(7));
        assert_eq!(middle(9), Duration::from_secs(7));
        assert_eq!(backoff.wait(3, 0), Duration::from_millis(3500));
    }
}
