//! Expressions, and texts that contain expressions. Property: no panic and no endless evaluation.

#![no_main]

use ccm_template::expr::{Cache, Expect, compile};
use ccm_template::{Env, expand};
use ccm_value::Value;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let data: Value = [
        ("list", [1_i64, 2, 3].map(Value::from).into_iter().collect()),
        ("text", Value::from("some text")),
        ("map", [("k", Value::from("v"))].into_iter().collect()),
    ]
    .into_iter()
    .collect();
    let env = Env {
        data,
        ..Env::default()
    };
    if let Ok(program) = compile(text, Expect::Any) {
        let _ = program.run(&env);
    }
    let _ = expand::resolve_typed(text, &env, &Cache::default());
});
