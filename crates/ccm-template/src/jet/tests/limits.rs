//! Tests of limits: a hostile template ends with an error, never with a panic, a stack overflow or
//! exhausted memory.

use super::*;

#[test]
fn too_deep_nesting_is_an_error_and_not_an_overflow() {
    let deep = 100_000;
    for (open, close) in [
        ("[[ ", ""),
        ("[[ if 1 ]]", "[[ end ]]"),
        ("[[ range data.list ]]", ""),
        ("[[ try ]]", ""),
        ("[[ block b() ]]", ""),
        ("[[ yield b() content ]]", ""),
    ] {
        assert!(try_render(&(open.repeat(deep) + &close.repeat(deep))).is_err());
    }
    for unit in [
        "(",
        "!",
        "-",
        "1 ? ",
        "1 ? 2 : ",
        "len(",
        "data[",
        "1 + (",
        "slice(1, ",
    ] {
        let template = format!("[[ {}1 ]]", unit.repeat(deep));
        assert!(try_render(&template).is_err(), "{unit}");
    }
}

#[test]
fn long_chains_are_not_nesting() {
    let long = 20_000;
    assert_eq!(render(&format!("[[ 0{} ]]", " + 1".repeat(long))), "20000");
    assert_eq!(
        render(&format!("[[ true{} ]]", " && true".repeat(long))),
        "true"
    );
    let chain = "[[ else if false ]]".repeat(long);
    assert_eq!(
        render(&format!("[[ if false ]]{chain}[[ else ]]x[[ end ]]")),
        "x"
    );
    assert!(failure(&format!("[[ data{} ]]", ".x".repeat(long))).contains("no field"));
    assert!(failure(&format!("[[ data.list{} ]]", "[0]".repeat(long))).contains("type int"));
    assert_eq!(
        render(&format!("[[ data.app{} ]]", " | upper".repeat(long))),
        "SHOP"
    );
}

#[test]
fn everything_that_nests_as_deep_as_allowed_still_runs() {
    let nested = |open: &str, close: &str| {
        let mut last = String::new();
        for depth in 1.. {
            let template = format!("[[ {}1{} ]]", open.repeat(depth), close.repeat(depth));
            match try_render(&template) {
                Ok(output) => last = output,
                Err(error) => {
                    assert!(error.to_string().contains("nested deeper"), "{error}");
                    assert!(depth > 20, "{open} only nests {depth} deep");
                    break;
                }
            }
        }
        last
    };
    assert_eq!(nested("(", ")"), "1");
    assert_eq!(nested("true ? (", ") : 2"), "1");
    assert!(nested("slice(", ")").starts_with("[["));
}

#[test]
fn infinite_recursion_is_an_error_and_not_an_overflow() {
    let nested = "[[ if true ]]".repeat(40) + "[[ yield b() ]]" + &"[[ end ]]".repeat(40);
    for body in [
        "[[ yield b() ]]",
        "[[ yield b(x=x+1, y=2) . content ]][[ yield content x ]][[ end ]]",
        "[[ try ]][[ range i, v := slice(1) ]][[ yield b() ]][[ end ]][[ catch e ]][[ end ]]",
        nested.as_str(),
    ] {
        let error = failure(&format!("[[ block b(x=1) ]]{body}[[ end ]]"));
        assert!(error.contains("nested deeper"), "{body}: {error}");
    }
    for body in ["[[ include \"a\" ]]", "[[ slice(exec(\"a\")) ]]"] {
        let error = try_render_with(&[("/a", body)], body).unwrap_err();
        assert!(error.to_string().contains("nested deeper"), "{error}");
    }
}

#[test]
fn endless_loops_exceed_the_step_limit() {
    let error = failure("[[ range ints(0, 9e18) ]][[ end ]]");
    assert!(error.contains("steps"), "{error}");
}

#[test]
fn try_and_isset_do_not_catch_an_exceeded_limit() {
    let bomb = "repeat(\"x\", 1e12)";
    let template = format!("[[ try ]][[ {bomb} ]][[ catch ]]caught[[ end ]]");
    assert!(failure(&template).contains("bytes of text"));
    assert!(failure(&format!("[[ isset({bomb}) ]]")).contains("bytes of text"));
}

#[test]
fn growing_text_exceeds_the_byte_limit() {
    for template in [
        "[[ x := \"xxxxxxxx\" ]][[ range ints(0, 99) ]][[ x = x + x ]][[ end ]]",
        "[[ x := repeat(\"a\", 1e6) ]][[ replace(x, \"a\", x, -1) ]]",
        "[[ x := repeat(\"a\", 1e7) ]][[ split(x, \"\") ]]",
        "[[ x := repeat(\"a\", 1e6) ]][[ range ints(0, 999) ]][[ x ]][[ end ]]",
        "[[ slice(ints(0, 9e18)) ]]",
    ] {
        assert!(failure(template).contains("bytes of text"), "{template}");
    }
}

#[test]
fn values_that_grow_too_large_are_refused() {
    let twice = "[[ x := slice(1) ]][[ range ints(0, 99) ]][[ x = slice(x, x) ]][[ end ]]";
    assert!(failure(twice).contains("larger"));
    let deep = "[[ x := slice(1) ]][[ range ints(0, 999) ]][[ x = slice(x) ]][[ end ]]";
    assert!(failure(deep).contains("nests deeper"));
    for body in [
        "[[ x.x = x ]]",
        "[[ try ]][[ x.x = x ]][[ end ]]",
        "[[ x = echo(x) ]]",
    ] {
        let template = format!("[[ x := map() ]][[ range ints(0, 999) ]]{body}[[ end ]]");
        assert!(failure(&template).contains("nests deeper"), "{body}");
    }
}
