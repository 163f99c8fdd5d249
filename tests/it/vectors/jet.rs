//! Jet templates, with their variables and context.

use ccm_template::functions::functions;
use ccm_template::jet::{Options, render};
use ccm_value::Value;
use ccm_value::value::Map;

use super::{check, compare, environment, outcome, parts, text_of};

#[test]
fn jet_templates_render_as_recorded() {
    check("jet", run);
}

fn run(case: &Value) -> Result<(), String> {
    let (input, expect) = parts(case)?;
    let mut options = Options::default();
    if let Some([left, right]) = input.get("delims").and_then(Value::as_list) {
        options.left = left.to_string();
        options.right = right.to_string();
    }
    if let Some(name) = input.get("name").and_then(Value::as_str) {
        options.name = name.into();
    }
    let none = Map::new();
    let variables = input.get("vars").and_then(Value::as_map).unwrap_or(&none);
    let rendered = render(
        text_of(input, "template").as_bytes(),
        &options,
        variables,
        input.get("context").unwrap_or(&Value::Null),
        &functions(&environment(input.get("vars"), input)),
    );
    let rendered = rendered.map_err(|err| err.to_string());
    compare(
        expect,
        rendered.map(|bytes| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            outcome([("output", text.into())])
        }),
    )
}
