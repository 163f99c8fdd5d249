//! Expressions, paths, and text that holds expressions.

use ccm_template::expand::{self, Nulls, Span};
use ccm_template::expr::{self, Cache, Expect};
use ccm_template::{Env, path};
use ccm_value::Value;
use ccm_value::value::Map;

use super::{check, compare, environment, outcome, parts, text_of};

#[test]
fn expressions_give_what_is_recorded() {
    check("expressions", |case| {
        let (input, expect) = parts(case)?;
        compare(expect, operate(case, input))
    });
}

/// What an operation gave, in the words of the cases.
type Outcome = Result<Value, String>;

fn operate(case: &Value, input: &Value) -> Outcome {
    let env = environment(input.get("env"), input);
    let cache = Cache::default();
    let template = text_of(input, "template");
    match text_of(case, "op") {
        "resolve_string" => expand::resolve_string(template, &env, &cache)
            .map(|text| outcome([("string", text.as_ref().into())]))
            .map_err(|err| err.to_string()),
        "resolve_typed" => expand::resolve_typed(template, &env, &cache)
            .map(|value| outcome([("value", value)]))
            .map_err(|err| err.to_string()),
        "match" => expand::resolve_match(template, &env, &cache)
            .map(|found| {
                outcome([
                    ("string", found.text.as_ref().into()),
                    ("matched", found.matched.into()),
                ])
            })
            .map_err(|err| err.to_string()),
        "scan" => {
            let spans = expand::scan(template).map_err(|err| err.to_string())?;
            assert_eq!(expand::has_expressions(template), !spans.is_empty());
            let inner = |span: &Span| -> Value {
                template.get(span.inner.clone()).unwrap_or_default().into()
            };
            let number = |at: usize| Value::from(at as u64);
            let outer =
                |span: &Span| Value::from(vec![number(span.outer.start), number(span.outer.end)]);
            Ok(outcome([
                ("expressions", spans.iter().map(inner).collect()),
                ("spans", spans.iter().map(outer).collect()),
            ]))
        }
        "expand" => {
            let value = input.get("value").cloned().unwrap_or_default();
            expand::expand_value(&value, Nulls::Keep, &env, &cache)
                .map(|value| outcome([("value", value)]))
                .map_err(|err| err.to_string())
        }
        "struct" => structure(input, &env, &cache),
        "eval" => expr::compile(text_of(input, "expr"), Expect::Any)
            .and_then(|program| program.run(&env))
            .map(|value| outcome([("value", value)]))
            .map_err(|err| err.to_string()),
        "gjson" => {
            let root = input.get("json").cloned().unwrap_or_default();
            let found = path::find(&root, text_of(input, "path"));
            Ok(outcome([
                ("exists", found.is_some().into()),
                ("value", found.unwrap_or_default()),
            ]))
        }
        other => Err(format!("unknown operation {other:?}")),
    }
}

/// Resolves the fields of a structure; a tag behind `@` says how.
fn structure(input: &Value, env: &Env, cache: &Cache) -> Outcome {
    let deferred = input.get("deferred") == Some(&Value::Bool(true));
    let fields = input
        .get("fields")
        .and_then(Value::as_map)
        .cloned()
        .unwrap_or_default();
    let mut resolved = Map::new();
    for (field, value) in fields {
        let (name, tag) = field.split_once('@').unwrap_or((&field, ""));
        let value = match tag {
            "-" => value,
            _ if (tag == "deferred") != deferred => value,
            _ => property(&value, tag, env, cache)
                .map_err(|reason| format!("resolving field {}: {reason}", go_name(name)))?,
        };
        resolved.insert(field, value);
    }
    Ok(outcome([("fields", resolved.into())]))
}

fn property(value: &Value, tag: &str, env: &Env, cache: &Cache) -> Outcome {
    let string = |text: &str| {
        expand::resolve_string(text, env, cache)
            .map(|text| Value::from(text.as_ref()))
            .map_err(|err| err.to_string())
    };
    match value {
        Value::Str(text) => string(text),
        Value::List(list) => list
            .iter()
            .map(|item| match item {
                Value::Str(text) => string(text),
                other => typed(other, env, cache),
            })
            .collect::<Result<Vec<_>, _>>()
            .map(Value::from),
        Value::Map(map) if tag == "resolve_keys" => {
            let Value::Map(values) = typed(&Value::from(Map::clone(map)), env, cache)? else {
                return Err("a map stays a map".into());
            };
            values
                .iter()
                .map(|(key, value)| Ok((string(key)?.to_string(), value.clone())))
                .collect::<Result<Vec<_>, String>>()
                .map(|entries| entries.into_iter().collect())
        }
        other => typed(other, env, cache),
    }
}

fn typed(value: &Value, env: &Env, cache: &Cache) -> Outcome {
    expand::expand_value(value, Nulls::Drop, env, cache).map_err(|err| err.to_string())
}

fn go_name(name: &str) -> String {
    let mut chars = name.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(chars).collect()
}
