//! The `jinja` engine: minijinja over [`Value`]s.
//!
//! The entries of the root map are the variables (`facts`, `data`, `environ` and their capitalized
//! names); the caller's [`Functions`] are functions. Output is not escaped, and a final newline is
//! kept, because the results are configuration files. An undefined name is an error unless
//! `default` or `is defined` handles it. There is no loader, so templates cannot include each
//! other.

mod depth;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};

use super::env::{Function, Functions};
use super::error::TemplateError;
use crate::CallError;
use ccm_value::Value;

/// Maximum number of instructions.
const FUEL: u64 = 5_000_000;

/// Maximum nesting of blocks, macros and expressions at run time.
const MAX_DEPTH: usize = 100;

/// Maximum nesting of lists and maps in a function's argument.
const MAX_VALUE_DEPTH: usize = 100;

/// Maximum size of the output, in bytes.
const MAX_OUTPUT: usize = 64 << 20;

/// Options of a template.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options<'a> {
    /// Template name in error messages, usually its path.
    pub name: &'a str,
    /// Left delimiter of values; empty means the default. Blocks always use `{% %}`.
    pub left: &'a str,
    pub right: &'a str,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            name: "template",
            left: "{{",
            right: "}}",
        }
    }
}

impl<'a> Options<'a> {
    /// Returns the delimiters of values.
    fn delimiters(&self) -> (&'a str, &'a str) {
        let or = |given: &'a str, default| if given.is_empty() { default } else { given };
        (or(self.left, "{{"), or(self.right, "}}"))
    }
}

/// Renders a template.
pub(crate) fn render(
    template: &str,
    options: &Options<'_>,
    root: &Value,
    functions: &Functions,
) -> Result<String, TemplateError> {
    let (left, right) = options.delimiters();
    if let Some(offset) = depth::too_deep(template, left, right) {
        let message = format!(
            "nested deeper than {} levels, links of chains included",
            depth::MAX_LINKS
        );
        return Err(TemplateError::at(
            template,
            options.name,
            offset,
            message.into(),
        ));
    }
    let located = |error: Error| locate(template, options.name, error);
    let environment = environment(options, functions).map_err(located)?;
    let compiled = environment
        .template_from_named_str(options.name, template)
        .map_err(located)?;
    let mut out = Bounded(Vec::new());
    compiled
        .render_captured_to(to_jinja(root), &mut out)
        .map_err(located)?;
    // Only whole strings are written, so this replaces nothing.
    Ok(String::from_utf8_lossy(&out.0).into_owned())
}

fn environment(
    options: &Options<'_>,
    functions: &Functions,
) -> Result<Environment<'static>, Error> {
    let mut syntax = SyntaxConfig::builder();
    syntax.keep_trailing_newline(true);
    let (left, right) = options.delimiters();
    syntax.variable_delimiters(left.to_owned(), right.to_owned());
    let mut environment = Environment::new();
    environment.set_syntax(syntax.build()?);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_debug(true);
    for (name, function) in functions {
        let (name, function) = (*name, function.clone());
        environment.add_function(name, move |args: Rest<minijinja::Value>| {
            call(name, &function, &args)
        });
    }
    // Upstream's lists of services have methods; here they are the caller's functions.
    let methods = functions.clone();
    environment.set_unknown_method_callback(move |_, value, name, args| {
        match methods.get_key_value(name) {
            Some((name, method)) if value.kind() == ValueKind::Seq => {
                let receiver = std::iter::once(value.clone());
                let args: Vec<minijinja::Value> = receiver.chain(args.iter().cloned()).collect();
                call(name, method, &args)
            }
            _ => Err(ErrorKind::UnknownMethod.into()),
        }
    });
    Ok(environment)
}

fn call(
    name: &str,
    function: &Function,
    args: &[minijinja::Value],
) -> Result<minijinja::Value, Error> {
    let failed = |err: CallError| {
        let err = err.reword(|reason| format!("{name}: {reason}"));
        Error::new(ErrorKind::InvalidOperation, err.to_string()).with_source(err)
    };
    let mut values = Vec::with_capacity(args.len());
    for arg in args {
        values.push(from_jinja(arg, 0).map_err(failed)?);
    }
    function(&values)
        .map(|value| to_jinja(&value))
        .map_err(failed)
}

fn to_jinja(value: &Value) -> minijinja::Value {
    match value {
        Value::Null => ().into(),
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Uint(value) => (*value).into(),
        Value::Float(value) => (*value).into(),
        Value::Str(text) => text.clone().into(),
        Value::List(list) => list.iter().map(to_jinja).collect(),
        Value::Map(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), to_jinja(value)))
            .collect::<BTreeMap<Arc<str>, minijinja::Value>>()
            .into(),
    }
}

fn from_jinja(value: &minijinja::Value, level: usize) -> Result<Value, CallError> {
    if level > MAX_VALUE_DEPTH {
        return Err(format!("value is nested deeper than {MAX_VALUE_DEPTH} levels").into());
    }
    let items = || value.try_iter().map_err(CallError::from);
    match value.kind() {
        ValueKind::None => Ok(Value::Null),
        ValueKind::Bool => Ok(value.is_true().into()),
        ValueKind::Number => number(value),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().into()),
        ValueKind::Seq | ValueKind::Iterable => {
            items()?.map(|item| from_jinja(&item, level + 1)).collect()
        }
        ValueKind::Map => {
            let mut entries = Vec::new();
            for key in items()? {
                let item = value.get_item(&key)?;
                entries.push((key.to_string(), from_jinja(&item, level + 1)?));
            }
            Ok(entries.into_iter().collect())
        }
        ValueKind::Undefined => Err("an argument is undefined".into()),
        kind => Err(format!("a {kind} cannot be an argument").into()),
    }
}

fn number(value: &minijinja::Value) -> Result<Value, CallError> {
    if let Ok(whole) = i64::try_from(value.clone()) {
        // A float without a fraction also converts to an integer; it stays a float.
        if value.is_integer() {
            return Ok(whole.into());
        }
    }
    if value.is_integer() {
        return u64::try_from(value.clone())
            .map(Value::from)
            .map_err(|_| format!("{value} is too large").into());
    }
    f64::try_from(value.clone())
        .map(Value::from)
        .map_err(CallError::from)
}

/// Collects output up to [`MAX_OUTPUT`].
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > MAX_OUTPUT {
            return Err(io::Error::other(format!(
                "the output exceeds {MAX_OUTPUT} bytes"
            )));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn locate(template: &str, name: &str, error: Error) -> TemplateError {
    let range = error.range().unwrap_or(0..0);
    let offset = match (error.range(), error.line()) {
        (Some(range), _) => range.start,
        // Only the line is known, so the error points at its first column.
        (None, Some(line)) if line > 1 => template
            .match_indices('\n')
            .nth(line - 2)
            .map_or(0, |(at, _)| at + 1),
        _ => 0,
    };
    let message = message(&error, template.get(range));
    let error = CallError::new(error).reword(|_| message);
    TemplateError::at(template, name, offset, error)
}

/// Returns the message without the position, which [`TemplateError`] adds.
fn message(error: &Error, name: Option<&str>) -> String {
    let mut message = match (error.detail(), error.kind()) {
        (Some(detail), ErrorKind::InvalidOperation) => detail.to_owned(),
        (Some(detail), kind) => format!("{kind}: {detail}"),
        (None, ErrorKind::UndefinedError) => match name {
            Some(name) if !name.is_empty() => format!("{} is undefined", name.trim()),
            _ => "undefined value".into(),
        },
        (None, kind) => kind.to_string(),
    };
    let mut cause = std::error::Error::source(error);
    // The message of a failed call is already in the detail above it.
    while let Some(reason) = cause.filter(|reason| !reason.is::<CallError>()) {
        message.push_str(": ");
        message.push_str(&reason.to_string());
        cause = reason.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Value {
        serde_json::from_str(
            r#"{"facts": {"host": "web1"}, "data": {"port": 8080, "users": ["ann", "bob"],
                "html": "<&>", "ratio": 2.0, "nothing": null}}"#,
        )
        .unwrap()
    }

    fn functions() -> Functions {
        Functions::from([
            (
                "lookup",
                Arc::new(|args: &[Value]| Ok(args.first().cloned().unwrap_or_default()))
                    as Function,
            ),
            (
                "kvGet",
                Arc::new(|_: &[Value]| Err("no such bucket".into())),
            ),
        ])
    }

    fn rendered(template: &str) -> Result<String, TemplateError> {
        let options = Options {
            name: "motd.j2",
            ..Options::default()
        };
        render(template, &options, &root(), &functions())
    }

    fn text(template: &str) -> String {
        rendered(template).unwrap_or_else(|err| panic!("{template}: {err}"))
    }

    #[test]
    fn variables_loops_and_filters_work() {
        assert_eq!(
            text(
                "{{ facts.host }}:{{ data.port }} {% for u in data.users %}{{ u|upper }};{% endfor %}"
            ),
            "web1:8080 ANN;BOB;"
        );
    }

    #[test]
    fn a_very_long_chain_is_an_error_and_not_a_stack_overflow() {
        for link in [".b", "|upper", " + 1"] {
            let error = rendered(&format!("{{{{ data{} }}}}", link.repeat(100_000))).unwrap_err();
            assert_eq!(
                error.message,
                "nested deeper than 200 levels, links of chains included".into()
            );
        }
    }

    #[test]
    fn a_chain_of_maximum_length_is_compiled() {
        let sum = " + 1".repeat(depth::MAX_LINKS);
        assert_eq!(
            text(&format!("{{{{ 0{sum} }}}}")),
            depth::MAX_LINKS.to_string()
        );
    }

    #[test]
    fn output_is_not_escaped_and_keeps_its_final_newline() {
        assert_eq!(text("{{ data.html }}\n"), "<&>\n");
    }

    #[test]
    fn an_html_file_name_does_not_enable_escaping() {
        let options = Options {
            name: "index.html",
            ..Options::default()
        };
        let out = render("{{ data.html }}", &options, &root(), &functions());
        assert_eq!(out.as_deref(), Ok("<&>"));
    }

    #[test]
    fn functions_get_plain_values_and_give_them_back() {
        assert_eq!(text("{{ lookup({'a': [1, 2.5]}).a[1] }}"), "2.5");
        assert_eq!(text("{{ lookup(data.ratio) }}"), "2.0");
    }

    #[test]
    fn the_error_of_a_function_has_its_name_and_position() {
        let err = rendered("a\n  b {{ kvGet('x', 'y') }}\n").unwrap_err();
        assert_eq!((err.line, err.column), (2, 8));
        assert_eq!(err.message, "kvGet: no such bucket".into());
        assert_eq!(err.source_line, "b {{ kvGet('x', 'y') }}");
    }

    #[test]
    fn an_undefined_name_is_an_error_that_names_file_line_and_name() {
        let err = rendered("ok\n{{ data.prot }}").unwrap_err();
        assert_eq!(err.line, 2);
        let shown = err.to_string();
        assert!(shown.starts_with("motd.j2:2:"), "{shown}");
        assert!(shown.contains("prot"), "{shown}");
    }

    #[test]
    fn default_replaces_an_undefined_name() {
        assert_eq!(text("{{ data.prot|default(80) }}"), "80");
    }

    #[test]
    fn a_syntax_error_has_its_line() {
        let err = rendered("a\nb\n{% if %}").unwrap_err();
        assert_eq!(err.line, 3);
        assert!(err.message.as_str().contains("syntax error"), "{err}");
    }

    #[test]
    fn other_delimiters_apply_to_values() {
        let options = Options {
            name: "t",
            left: "[[",
            right: "]]",
        };
        let out = render("[[ data.port ]] {{ x }}", &options, &root(), &functions());
        assert_eq!(out.as_deref(), Ok("8080 {{ x }}"));
    }

    #[test]
    fn an_endless_template_runs_out_of_fuel() {
        let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        assert!(rendered(loops).is_err());
        let recursion = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        assert!(rendered(recursion).is_err());
    }

    #[test]
    fn output_beyond_the_limit_is_refused() {
        let err = rendered("{% for a in range(100) %}{{ 'x' * 1000000 }}{% endfor %}").unwrap_err();
        assert!(err.to_string().contains("exceeds"), "{err}");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_the_engine_panic(template in "\\PC{0,60}") {
            let _ = rendered(&template);
            let _ = rendered(&format!("{{{{ {template} }}}}"));
            let _ = rendered(&format!("{{% {template} %}}"));
        }
    }

    #[test]
    fn includes_do_not_exist() {
        assert!(rendered("{% include 'x' %}").is_err());
    }
}
