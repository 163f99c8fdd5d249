//! Go templates, and scaffolds, whose cases are in the same files.

use ccm_template::functions::functions;
use ccm_template::go::{Options, render};
use ccm_value::Value;

use super::{check, compare, environment, outcome, parts, scaffold, text_of};

#[test]
fn go_templates_render_as_recorded() {
    check("gotemplate", |case| match text_of(case, "op") {
        "render" => run(case),
        "scaffold" => scaffold::run(case),
        op => Err(format!("unknown operation {op:?}")),
    });
}

fn run(case: &Value) -> Result<(), String> {
    let (input, expect) = parts(case)?;
    let delims = input.get("delims").and_then(Value::as_list).unwrap_or(&[]);
    let delim = |index: usize| delims.get(index).and_then(Value::as_str).unwrap_or("");
    let options = Options {
        name: "case",
        left: delim(0),
        right: delim(1),
        now: None,
    };
    let root = input.get("data").cloned().unwrap_or_default();
    let functions = functions(&environment(Some(&root), input));
    let rendered = render(text_of(input, "template"), &options, &root, &functions);
    let rendered = rendered.map_err(|err| err.to_string());
    compare(
        expect,
        rendered.map(|text| outcome([("output", text.into())])),
    )
}
