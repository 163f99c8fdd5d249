//! Any bytes as a Go template: no panic, no endless run.

#![no_main]

use ccm::model::Value;
use ccm::model::resource::Engine;
use ccm::template::Env;
use ccm::template::engines::{Template, render};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let env = Env {
        data: [
            ("list", [1_i64, 2, 3].map(Value::from).into_iter().collect()),
            ("text", Value::from("some text")),
            ("map", [("k", Value::from("v"))].into_iter().collect()),
        ]
        .into_iter()
        .collect(),
        ..Env::default()
    };
    let template = Template {
        engine: Engine::Go,
        name: "input",
        text,
        left: "",
        right: "",
    };
    let _ = render(template, &env);
});
