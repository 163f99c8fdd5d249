//! Rendering of whole templates with any of the three engines, and the variables and functions that
//! they share.
//!
//! Facts are gathered only for a template whose text may refer to them.

use super::CallError;
use super::env::{Env, Facts, Functions, Now};
use super::error::TemplateError;
use super::functions::{functions, prometheus_file_sd};
use super::jet::JetError;
use super::{go, go_names, jet, jinja};
use ccm_value::Value;
use ccm_value::value::Map;

/// The template languages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Go,
    Jet,
    Jinja,
}

impl Engine {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "go" => Some(Self::Go),
            "jet" => Some(Self::Jet),
            "jinja" => Some(Self::Jinja),
            _ => None,
        }
    }

    /// Returns the engine's default delimiters.
    pub fn delimiters(self) -> (&'static str, &'static str) {
        match self {
            Self::Go | Self::Jinja => ("{{", "}}"),
            Self::Jet => ("[[", "]]"),
        }
    }
}

/// A template to render.
#[derive(Clone, Copy, Debug)]
pub struct Template<'a> {
    pub engine: Engine,
    /// Template name in error messages.
    pub name: &'a str,
    pub text: &'a [u8],
    /// Left delimiter; empty means the engine's default.
    pub left: &'a str,
    pub right: &'a str,
}

/// Error of rendering a template; the message contains the template name and the position.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RenderError {
    #[error("template {0} is not UTF-8 text")]
    NotText(String),
    #[error(transparent)]
    Jet(#[from] JetError),
    /// Error of the `go` and `jinja` engines.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The template refers to the process environment, which it may not read, or to values that are
    /// not known.
    #[error(transparent)]
    Denied(CallError),
}

/// Renders a template with the variables and functions of an environment.
pub fn render(template: Template<'_>, env: &Env) -> Result<Vec<u8>, RenderError> {
    // The environment map is empty when reading is denied, and unknown values are missing; this
    // check reports the reason.
    check_variables(template.text, env).map_err(RenderError::Denied)?;
    render_with(
        template,
        &variables(template.text, env),
        &all_functions(env),
        env,
    )
}

/// Returns the functions of whole templates: those of the environment, plus `PrometheusFileSD`,
/// which only templates have.
pub fn all_functions(env: &Env) -> Functions {
    let mut shared = functions(env);
    shared.insert(
        "PrometheusFileSD",
        std::sync::Arc::new(|args| {
            let entries = args.first().cloned().unwrap_or_default();
            prometheus_file_sd(&entries).map(Value::from)
        }),
    );
    shared
}

/// Renders a template with the given variables and functions.
fn render_with(
    template: Template<'_>,
    variables: &Map,
    functions: &Functions,
    env: &Env,
) -> Result<Vec<u8>, RenderError> {
    let dot = match template.engine {
        Engine::Jet => context(variables, env),
        Engine::Go | Engine::Jinja => Value::from(variables.clone()),
    };
    render_on(template, variables, &dot, functions, env.now.as_ref())
}

/// Renders a template whose `.` is the given value. The Go engine sees only this value, the Jinja
/// engine only the variables.
pub fn render_on(
    template: Template<'_>,
    variables: &Map,
    dot: &Value,
    functions: &Functions,
    now: Option<&Now>,
) -> Result<Vec<u8>, RenderError> {
    let Template {
        name, left, right, ..
    } = template;
    if template.engine == Engine::Jet {
        let (default_left, default_right) = template.engine.delimiters();
        let options = jet::Options {
            name: name.into(),
            left: non_empty_or(left, default_left).into(),
            right: non_empty_or(right, default_right).into(),
            loader: None,
        };
        let rendered = jet::render(template.text, &options, variables, dot, functions);
        return Ok(rendered?);
    }
    let text = std::str::from_utf8(template.text).map_err(|_| RenderError::NotText(name.into()))?;
    let rendered = match template.engine {
        Engine::Go => {
            let options = go::Options {
                name,
                left,
                right,
                now,
            };
            go::render(text, &options, dot, functions)?
        }
        Engine::Jinja | Engine::Jet => {
            let options = jinja::Options { name, left, right };
            let root = Value::from(variables.clone());
            jinja::render(text, &options, &root, functions)?
        }
    };
    Ok(rendered.into_bytes())
}

fn non_empty_or<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

/// Returns the variables of a template, in both spellings (`facts` and `Facts`).
pub fn variables(text: &[u8], env: &Env) -> Map {
    let facts = if text.windows(4).any(|window| window == b"acts") {
        go_names::with_go_names(env.facts.all(), text)
    } else {
        Value::empty_map()
    };
    [
        ("facts", facts.clone()),
        ("Facts", facts),
        ("data", env.data.clone()),
        ("Data", env.data.clone()),
        ("environ", env.environ.clone()),
        ("Environ", env.environ.clone()),
    ]
    .map(|(name, value)| (name.into(), value))
    .into()
}

/// Checks that the variables that a template names, as whole words, may be read and are known.
fn check_variables(text: &[u8], env: &Env) -> Result<(), CallError> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let words = || text.split(|byte| !is_word(byte));
    let mut names_facts = false;
    for word in words() {
        match word {
            b"environ" | b"Environ" => env.check_environ()?,
            b"data" | b"Data" => env.check_data()?,
            b"facts" | b"Facts" => {
                env.facts.check()?;
                names_facts = true;
            }
            _ => {}
        }
    }
    if names_facts && matches!(env.facts, Facts::Partial { .. }) {
        for word in words().filter_map(|word| std::str::from_utf8(word).ok()) {
            env.facts.check_section(word)?;
        }
    }
    Ok(())
}

/// Returns the value of `.` in a Jet template.
fn context(variables: &Map, env: &Env) -> Value {
    let get = |name: &str| variables.get(name).cloned().unwrap_or_default();
    [
        ("Facts", get("Facts")),
        ("Data", get("Data")),
        ("Environ", get("Environ")),
        (
            "WorkingDir",
            Value::from(env.working_dir.to_string_lossy().into_owned()),
        ),
    ]
    .into_iter()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CallError;
    use crate::expr::{self, Expect};

    fn rendered(engine: Engine, text: &str) -> String {
        let env = Env {
            data: [("port", Value::from(80_i64))].into_iter().collect(),
            ..Env::default()
        };
        let template = Template {
            engine,
            name: "input",
            text: text.as_bytes(),
            left: "",
            right: "",
        };
        String::from_utf8(render(template, &env).unwrap()).unwrap()
    }

    #[test]
    fn every_engine_sees_the_same_data_and_functions() {
        for (engine, text) in [
            (Engine::Jet, "[[ data.port ]] [[ lookup(\"data.port\") ]]"),
            (Engine::Go, "{{ .data.port }} {{ lookup \"data.port\" }}"),
            (Engine::Jinja, "{{ data.port }} {{ lookup('data.port') }}"),
        ] {
            assert_eq!(rendered(engine, text), "80 80", "{text}");
        }
    }

    #[test]
    fn go_templates_and_expressions_use_the_clock_of_the_environment() {
        let env = Env {
            now: Some(std::sync::Arc::new(|| chrono::DateTime::UNIX_EPOCH)),
            ..Env::default()
        };
        let template = Template {
            engine: Engine::Go,
            name: "input",
            text: b"{{ now.UTC.Year }}",
            left: "",
            right: "",
        };
        assert_eq!(render(template, &env).as_deref(), Ok(b"1970".as_slice()));
        let program = expr::compile("now().UTC().Year()", Expect::Any);
        assert_eq!(program.unwrap().run(&env), Ok(Value::Int(1970)));
    }

    #[test]
    fn every_engine_keeps_the_source_of_a_failed_call() {
        #[derive(Debug, thiserror::Error)]
        #[error("not connected to NATS")]
        struct Disconnected;

        fn has_cause(error: &(dyn std::error::Error + 'static)) -> bool {
            error.is::<Disconnected>() || error.source().is_some_and(has_cause)
        }

        let env = Env {
            kv_get: Some(std::sync::Arc::new(|_, _| {
                Err(CallError::new(Disconnected))
            })),
            read_file: Some(std::sync::Arc::new(|_| Err(CallError::new(Disconnected)))),
            ..Env::default()
        };
        for (engine, call) in [
            (Engine::Jet, "[[ kvGet(\"b\", \"k\") ]]"),
            (Engine::Jet, "[[ template(\"x.templ\") ]]"),
            (Engine::Jet, "[[ template(\"{{ kvGet('b', 'k') }}\") ]]"),
            (Engine::Go, "{{ kvGet \"b\" \"k\" }}"),
            (Engine::Go, "{{ readFile \"x\" }}"),
            (Engine::Go, "{{ jet \"[[ kvGet(`b`, `k`) ]]\" }}"),
            (Engine::Jinja, "{{ kvGet('b', 'k') }}"),
            (Engine::Jinja, "{% if kvGet('b', 'k') %}{% endif %}"),
        ] {
            let template = Template {
                engine,
                name: "input",
                text: call.as_bytes(),
                left: "",
                right: "",
            };
            let error = render(template, &env).unwrap_err();
            let shown = error.to_string();
            assert_eq!(
                shown.matches("not connected to NATS").count(),
                1,
                "{call}: {shown}"
            );
            assert!(has_cause(&error), "{call}: {error:?}");
        }
        let error = expr::eval_bool("kvGet('b', 'k')", &env, &expr::Cache::default());
        assert!(has_cause(&error.unwrap_err()));
    }

    #[test]
    fn facts_are_only_gathered_for_a_template_that_refers_to_them() {
        let env = Env {
            facts: Facts::Lazy(std::sync::Arc::new(|_| {
                [("host", Value::from("gathered"))].into_iter().collect()
            })),
            ..Env::default()
        };
        assert_eq!(
            variables(b"[[ data.x ]]", &env).get("facts"),
            Some(&Value::empty_map())
        );
        assert_ne!(
            variables(b"[[ facts.x ]]", &env).get("facts"),
            Some(&Value::empty_map())
        );
    }

    #[test]
    fn a_template_that_names_unknown_values_is_an_error() {
        let render_in = |env: &Env, text: &str| {
            let template = Template {
                engine: Engine::Jinja,
                name: "t",
                text: text.as_bytes(),
                left: "",
                right: "",
            };
            let error = render(template, env).err()?;
            crate::UnknownValue::in_chain(&error)
        };
        let unknown = Env {
            facts: Facts::Unknown,
            ..Env::default()
        };
        let text = "[[ facts.host.os ]]";
        assert_eq!(render_in(&unknown, text), Some(crate::UnknownValue::Facts));
        assert_eq!(render_in(&unknown, "[[ 1 + 1 ]]"), None);
        let partial = |sections: &[&'static str]| Env {
            facts: Facts::Partial {
                known: Value::empty_map(),
                unknown: sections.into(),
            },
            ..Env::default()
        };
        let section = crate::UnknownValue::Section("host");
        assert_eq!(render_in(&partial(&["host"]), text), Some(section));
        assert_eq!(render_in(&partial(&["network"]), text), None);
    }
}
