//! Hiera: resolution, annotations, validation, sources and output.

use ccm_core::hiera::{self, Document, HieraError, Rule, Source};
use ccm_template::env::Facts;
use ccm_value::secret::{Secret, redact_url};
use ccm_value::value::Map;
use ccm_value::{Value, document};

use super::{check, outcome, parts, same};

#[test]
fn hierarchies_resolve_as_recorded() {
    check("hiera", run);
}

/// What an operation gave, in the words of the cases.
type Outcome = Result<Value, String>;

fn run(case: &Value) -> Result<(), String> {
    let (input, expect) = parts(case)?;
    let outcome = operate(case, input);
    if let Some(wanted) = expect.get("error").and_then(Value::as_str) {
        let unwanted = expect.get("not_contains").and_then(Value::as_str);
        return match outcome {
            Err(reason) if unwanted.is_some_and(|unwanted| reason.contains(unwanted)) => {
                Err(format!("unwanted text in error {reason:?}"))
            }
            Err(reason) if reason.contains(wanted) => Ok(()),
            Err(reason) => Err(format!("expected error {wanted:?}, got {reason:?}")),
            Ok(found) => Err(format!("expected error {wanted:?}, got {found}")),
        };
    }
    let found = outcome.map_err(|reason| format!("unexpected error {reason:?}"))?;
    for (key, wanted) in expect.as_map().ok_or("expectation is no map")? {
        // What the original gives where its result was judged wrong.
        if key.starts_with("upstream") {
            continue;
        }
        let part = found.get(key).unwrap_or(&Value::Null);
        if !same(&in_any_order(key, part), &in_any_order(key, wanted)) {
            return Err(format!("{key}: expected {wanted}, got {part}"));
        }
    }
    Ok(())
}

/// Rules and lines have no order of their own.
fn in_any_order(key: &str, value: &Value) -> Value {
    match (key, value) {
        ("rules" | "lines_any_order", Value::List(list)) => {
            let mut list = list.to_vec();
            list.sort_by_key(Value::to_string);
            list.into()
        }
        _ => value.clone(),
    }
}

fn operate(case: &Value, input: &Value) -> Outcome {
    let text = |key| input.get(key).and_then(Value::as_str).unwrap_or_default();
    let value = |key| input.get(key).cloned().unwrap_or_default();
    match case.get("op").and_then(Value::as_str).unwrap_or_default() {
        "resolve" => {
            let document = read(input)?;
            resolved(&document, input).map(|data| outcome([("data", data)]))
        }
        "resolve_and_validate" => {
            let document = read(input)?;
            validated(&document, input)
        }
        "annotations" => {
            let found = read(input)?.annotations;
            let warns = input.get("warn") == Some(&Value::Bool(true));
            if warns && found.warnings.is_empty() {
                return Err("no warning".into());
            }
            Ok(outcome([(
                "rules",
                found.rules.iter().map(shown).collect(),
            )]))
        }
        "validate" => {
            let rules = value("rules");
            let rules: Vec<_> = rules
                .as_list()
                .unwrap_or_default()
                .iter()
                .map(rule)
                .collect();
            hiera::validate(&value("data"), &rules)
                .map(|()| outcome([("ok", true.into())]))
                .map_err(|err| err.to_string())
        }
        "validator" => hiera::check_value(&value("value"), text("expr"))
            .map(|accepted| outcome([("result", accepted.into())]))
            .map_err(|err| err.to_string()),
        "merge_deep" => {
            let merged = value("target").merge_deep(&value("source"));
            Ok(outcome([("value", merged)]))
        }
        "merge_shallow" => {
            let merged = value("target").merge_shallow(&value("source"));
            Ok(outcome([("value", merged)]))
        }
        "normalize" => Ok(outcome([(
            "value",
            integers(hiera::normalize(&value("value"))),
        )])),
        "is_json" => Ok(outcome([(
            "result",
            document::is_json(text("text")).into(),
        )])),
        "source_error" => match text("source").parse::<Source>() {
            Ok(Source::File(path)) if !path.exists() => {
                Err(HieraError::FileNotFound(path).to_string())
            }
            Ok(source) => Ok(outcome([("source", source.to_string().into())])),
            Err(err) => Err(err.to_string()),
        },
        "http_source" => {
            let url = input.get("url").and_then(Value::as_str);
            let source = Source::Http(Secret::new(url.unwrap_or("http://h.example/data")));
            let status = match input.get("status") {
                Some(Value::Int(status)) => {
                    u16::try_from(*status).map_err(|err| err.to_string())?
                }
                _ => 200,
            };
            source
                .check_status(status, &status.to_string())
                .and_then(|()| source.read(text("body").as_bytes(), data_key(input)))
                .map_err(|err| err.to_string())
                .and_then(|document| validated(&document, input))
        }
        "kv_source" => {
            let source = Source::Kv {
                bucket: text("bucket").into(),
                key: text("key").into(),
            };
            source
                .check_put(text("operation") == "put")
                .and_then(|()| source.read(text("value").as_bytes(), data_key(input)))
                .map_err(|err| err.to_string())
                .and_then(|document| validated(&document, input))
        }
        "env_output" => hiera::env_lines(&value("value"), text("prefix"))
            .map(|text| outcome([("lines_any_order", text.lines().map(Value::from).collect())]))
            .map_err(|err| err.to_string()),
        "redact_url" => Ok(outcome([(
            "value",
            redact_url(text("url")).as_ref().into(),
        )])),
        other => Err(format!("unknown operation {other:?}")),
    }
}

fn data_key(input: &Value) -> &str {
    let key = input.get("data_key").and_then(Value::as_str);
    key.unwrap_or(hiera::DATA_KEY)
}

fn read(input: &Value) -> Result<Document, String> {
    let text = input.get("document").and_then(Value::as_str);
    let text = text.unwrap_or_default();
    let root = document::parse(text).map_err(|err| err.to_string())?;
    Ok(Document {
        root: root.to_value(),
        annotations: hiera::parse_annotations(text, data_key(input)),
        ..Document::default()
    })
}

fn resolved(document: &Document, input: &Value) -> Outcome {
    let facts = input.get("facts").cloned();
    let facts = Facts::Known(facts.unwrap_or_else(Value::empty_map));
    let before = document.root.clone();
    let data = hiera::resolve(&document.root, &facts, data_key(input));
    assert_eq!(before, document.root, "resolving changed its input");
    let data = data.map_err(|err| err.to_string())?;
    Ok(match input.get("data_overrides") {
        Some(over) => data.merge_deep(over),
        None => data,
    })
}

fn validated(document: &Document, input: &Value) -> Outcome {
    let data = resolved(document, input)?;
    hiera::validate(&data, &document.annotations.rules)
        .map(|()| outcome([("data", data)]))
        .map_err(|err| err.to_string())
}

fn shown(rule: &Rule) -> Value {
    outcome([
        ("key", rule.path.to_string().into()),
        ("required", rule.required.into()),
        (
            "validation",
            rule.validation.as_deref().unwrap_or_default().into(),
        ),
    ])
}

fn rule(rule: &Value) -> Rule {
    let text = |key| rule.get(key).and_then(Value::as_str).unwrap_or_default();
    let validation = text("validation");
    Rule {
        path: text("key").parse().unwrap(),
        required: rule.get("required") == Some(&Value::Bool(true)),
        validation: (!validation.is_empty()).then(|| validation.into()),
    }
}

/// Refuses whole numbers that are still floats: comparing by value would not tell.
fn integers(value: Value) -> Value {
    match &value {
        Value::Float(number) => assert!(number.fract() != 0.0, "{number} is a float"),
        Value::List(list) => list.iter().cloned().for_each(|item| {
            integers(item);
        }),
        Value::Map(map) => Map::clone(map).into_values().for_each(|item| {
            integers(item);
        }),
        _ => {}
    }
    value
}
