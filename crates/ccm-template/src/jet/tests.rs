//! Tests of whole templates; more cases are in the vectors under `tests/`.

mod limits;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::CallError;
use crate::env::Function;

/// Variables of most tests, as JSON.
const DATA: &str = r#"{"data": {
    "app": "shop", "port": 9090, "seven": 7, "two": 2, "none": null, "empty": [], "accent": "é",
    "list": ["one", "two", "three"], "map": {"b": 2, "a": 1}, "items": [{"name": "x"}]
}}"#;

fn variables() -> Map {
    serde_json::from_str::<Value>(DATA)
        .unwrap()
        .as_map()
        .unwrap()
        .clone()
}

fn function(
    call: impl Fn(&[Value]) -> Result<Value, CallError> + Send + Sync + 'static,
) -> Function {
    Arc::new(call)
}

fn functions() -> Functions {
    Functions::from([
        ("echo", function(|arguments| Ok(arguments.to_vec().into()))),
        ("null", function(|_| Ok(Value::Null))),
        (
            "lookup",
            function(|_| Err("missing key 'x' in environment".into())),
        ),
        ("readFile", function(|_| Err("gone".into()))),
        (
            "Joined",
            function(|arguments| Ok(format!("joined {}", arguments[0]).into())),
        ),
    ])
}

fn try_render_bytes(template: &[u8]) -> Result<Vec<u8>, JetError> {
    let context = Value::from_iter([("name", Value::from("ctx"))]);
    let options = Options::default();
    super::render(template, &options, &variables(), &context, &functions())
}

fn try_render(template: &str) -> Result<String, JetError> {
    try_render_bytes(template.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap())
}

fn render(template: &str) -> String {
    try_render(template).unwrap_or_else(|error| panic!("{template}: {error:#}"))
}

fn failure(template: &str) -> String {
    match try_render(template) {
        Ok(output) => panic!("{template} rendered {output:?}"),
        Err(error) => error.to_string(),
    }
}

/// Renders a template with a loader for `files`.
fn try_render_with(files: &[(&str, &str)], template: &str) -> Result<String, JetError> {
    let own = |(name, text): &(&str, &str)| (name.to_string(), text.as_bytes().to_vec());
    let files: BTreeMap<String, Vec<u8>> = files.iter().map(own).collect();
    let options = Options {
        loader: Some(Arc::new(move |name| files.get(name).cloned())),
        ..Options::default()
    };
    let output = super::render(
        template.as_bytes(),
        &options,
        &variables(),
        &Value::Null,
        &functions(),
    );
    output.map(|bytes| String::from_utf8(bytes).unwrap())
}

fn render_with(files: &[(&str, &str)], template: &str) -> String {
    try_render_with(files, template).unwrap_or_else(|error| panic!("{template}: {error:#}"))
}

#[test]
fn bytes_outside_actions_pass_unchanged() {
    let output = try_render_bytes(b"\x00\xff[[ 1 ]]\xfe\r\n").unwrap();
    assert_eq!(output, b"\x00\xff1\xfe\r\n");
}

#[test]
fn text_that_is_not_utf8_can_be_made_joined_and_printed() {
    assert_eq!(
        try_render_bytes(br#"[[ "\xff" + "a" ]]"#).unwrap(),
        b"\xffa"
    );
    assert_eq!(
        try_render_bytes("[[ data.accent[0:1] ]]".as_bytes()).unwrap(),
        b"\xc3"
    );
    assert_eq!(
        render(r#"[[ len("\xff") ]][[ "\xff" == "\xff" ]]"#),
        "1true"
    );
    assert!(failure(r#"[[ slice("\xff") ]]"#).contains("not UTF-8"));
}

#[test]
fn white_space_at_the_very_start_is_dropped_before_an_action_only() {
    assert_eq!(render(" \n [[ 1 ]] "), "1 ");
    assert_eq!(render(" x[[ 1 ]]"), " x1");
}

#[test]
fn empty_delimiters_are_those_of_jet() {
    let options = Options {
        left: String::new(),
        right: String::new(),
        ..Options::default()
    };
    let none = Functions::new();
    let output = super::render(b"{{ 1 }}[[", &options, &Map::new(), &Value::Null, &none);
    assert_eq!(output.unwrap(), b"1[[");
}

#[test]
fn a_comment_after_the_last_bracket_is_still_a_comment() {
    assert_eq!(render("[[ 1 ]]{* c *}"), "1");
}

#[test]
fn null_prints_but_a_missing_value_does_not() {
    assert_eq!(
        render("([[ data.none ]])([[ data.nope ]])([[ nil ]])"),
        "(<nil>)()()"
    );
    assert_eq!(render("[[ data.none == data.nope ]]"), "true");
}

#[test]
fn only_the_last_field_of_a_path_may_be_missing() {
    assert_eq!(render("[[ data.nope ]]|[[ data[\"nope\"] ]]"), "|");
    assert!(failure("[[ data.nope.x ]]").contains("there is no field or method 'nope'"));
    assert!(failure("[[ .nope ]]").contains("there is no field or method 'nope'"));
    assert!(failure("[[ data.nope[0].x ]]").contains("there is no field"));
}

#[test]
fn the_error_for_an_unknown_name_shows_types_but_no_values() {
    let error = failure("[[ nope ]]");
    assert_eq!(
        error,
        "Jet Runtime Error (\"/input\":1): identifier \"nope\" not available in current \
         (map[data:<map[string]interface {} Value>]) or parent scope, global, or default variables"
    );
}

#[test]
fn literals_are_floats_and_data_keeps_its_integers() {
    assert_eq!(
        render("[[ 7/2 ]] [[ data.seven/2 ]] [[ data.seven/data.two ]]"),
        "3.5 3.5 3"
    );
    assert_eq!(
        render("[[ 1000000*10 ]] [[ \"n=\" + 10000000 ]]"),
        "10000000 n=1e+07"
    );
    assert_eq!(render("[[ \"n=\" + data.port ]]"), "n=9090");
}

#[test]
fn not_takes_the_whole_comparison() {
    assert_eq!(
        render("[[ !1 == 2 ]] [[ not true and false ]]"),
        "true false"
    );
}

#[test]
fn and_and_or_short_circuit() {
    assert_eq!(
        render("[[ true || nope ]] [[ false && nope ]]"),
        "true false"
    );
}

#[test]
fn a_declared_variable_ends_with_its_list_and_an_assigned_one_does_not() {
    let template = "[[ x := 1 ]][[ if true ]][[ x := 2 ]][[ x = 3 ]][[ x ]][[ end ]][[ x ]]";
    assert_eq!(render(template), "31");
    assert_eq!(
        render("[[ x := 1 ]][[ range data.list ]][[ x = x+1 ]][[ end ]][[ x ]]"),
        "4"
    );
    assert!(failure("[[ if true ]][[ x := 1 ]][[ end ]][[ x ]]").contains("not available"));
}

#[test]
fn a_declaration_in_an_if_lives_through_all_its_branches() {
    let template = "[[ if x := 1; false ]][[ else if y := 2; false ]][[ else ]][[ x+y ]][[ end ]]";
    assert_eq!(render(template), "3");
    assert!(failure(&format!("{template}[[ x ]]")).contains("not available"));
}

#[test]
fn assigning_a_field_changes_a_copy_and_never_the_callers_data() {
    let template = Template::parse(
        b"[[ data.app = 1 ]][[ data.items[0].name = 2 ]][[ data.app ]][[ data.items[0].name ]]",
        &Options::default(),
    )
    .unwrap();
    let variables = variables();
    for _ in 0..2 {
        let output = template.render(&variables, &Value::Null, &functions());
        assert_eq!(output.unwrap(), b"12");
    }
    assert_eq!(variables["data"].get("app"), Some(&Value::from("shop")));
}

#[test]
fn assigning_nothing_to_a_field_removes_it() {
    assert_eq!(render("[[ data.map.a = nil ]][[ data.map ]]"), "map[b:2]");
}

#[test]
fn a_copied_map_is_independent() {
    let template = "[[ m := map(\"a\", 1) ]][[ n := m ]][[ n.a = 2 ]][[ m.a ]][[ n.a ]]";
    assert_eq!(render(template), "12");
}

#[test]
fn a_failed_assignment_leaves_the_variable_as_it_was() {
    let template = "[[ try ]][[ data.app.x = 1 ]][[ end ]][[ data.app ]]";
    assert_eq!(render(template), "shop");
    assert!(failure("[[ data.nope.x = 1 ]]").contains("no field or method 'nope'"));
}

#[test]
fn the_context_of_a_range_is_the_plain_element() {
    let template = "[[ range data.list ]][[ . | upper ]][[ if . == \"two\" ]]![[ end ]][[ end ]]";
    assert_eq!(render(template), "ONETWO!THREE");
    assert_eq!(
        render("[[ range slice(0, 1) ]][[ if . ]]t[[ else ]]f[[ end ]][[ end ]]"),
        "ft"
    );
    assert_eq!(render("[[ range slice(1, 2) ]][[ . + 1 ]][[ end ]]"), "23");
}

#[test]
fn maps_are_walked_in_the_order_of_their_keys() {
    assert_eq!(
        render("[[ range k, v := data.map ]][[ k ]][[ v ]][[ end ]]"),
        "a1b2"
    );
}

#[test]
fn a_range_of_integers_can_be_walked_twice() {
    let template =
        "[[ r := ints(1, 3) ]][[ range r ]][[ . ]][[ end ]][[ range r ]][[ . ]][[ end ]]";
    assert_eq!(render(template), "1212");
    assert_eq!(
        render("[[ ints(1, 4) ]] [[ len(ints(1, 4)) ]]"),
        "[1 2 3] 3"
    );
}

#[test]
fn return_ends_only_the_range_after_its_iteration() {
    let template = "[[ range data.list ]][[ . ]][[ return 1 ]]-[[ end ]]after";
    assert_eq!(render(template), "one-after");
}

#[test]
fn a_failed_try_leaves_no_output_and_has_the_error() {
    assert_eq!(render("a[[ try ]]b[[ nope ]][[ end ]]c"), "ac");
    let template = "[[ try ]][[ len(1) ]][[ catch e ]][[ e ]] [[ e.Error() | upper ]][[ end ]]";
    assert_eq!(
        render(template),
        "len(): invalid value type float64 LEN(): INVALID VALUE TYPE FLOAT64"
    );
    assert!(failure("[[ try ]][[ catch e ]][[ end ]][[ e ]]").contains("not available"));
}

#[test]
fn a_failed_try_restores_scopes_and_context() {
    let template = "[[ try ]][[ range i := data.list ]][[ nope ]][[ end ]][[ end ]][[ .name ]]";
    assert_eq!(render(template), "ctx");
    let template = "[[ block b() ]][[ x := 1 ]][[ try ]][[ yield content ]][[ end ]][[ x ]]\
                    [[ content ]][[ nope ]][[ end ]]";
    assert_eq!(render(template), "1");
}

#[test]
fn a_block_renders_where_it_is_defined_and_where_it_is_yielded() {
    let template = "[[ block b(x=1) ]]([[ x ]])[[ end ]][[ yield b(x=2) ]][[ yield b() ]]";
    assert_eq!(render(template), "(1)(2)(1)");
    assert!(failure("[[ block b(x) ]][[ end ]]").contains("missing name for block parameter 'x'"));
    assert!(failure("[[ yield b() ]]").contains("unresolved block \"b\"!"));
}

#[test]
fn content_runs_in_the_scope_of_its_author() {
    let template = "[[ block b() ]][[ x := 1 ]]<[[ yield content ]]>[[ end ]]\
                    [[ x := 2 ]][[ yield b() content ]][[ x ]][[ x = 3 ]][[ end ]][[ x ]]";
    assert_eq!(render(template), "<><2>3");
}

#[test]
fn content_inside_content_belongs_to_the_outer_block() {
    let template = "[[ block o() ]]<[[ yield content ]]>[[ end ]]\
                    [[ block i() ]]([[ yield content ]])[[ end ]]\
                    [[ yield o() content ]]a[[ yield i() content ]]b[[ end ]]c[[ end ]]";
    assert_eq!(render(template), "<>()<a(b)c>");
}

#[test]
fn isset_never_fails() {
    let template = "[[ isset(data.app, data.list[0]) ]] [[ isset(data.none) ]] \
                    [[ isset(data.nope.x[1]) ]] [[ isset(nope) ]] [[ isset(lookup(\"x\")) ]]";
    assert_eq!(render(template), "true false false false false");
    assert_eq!(render("[[ data.app | isset ]]"), "true");
}

#[test]
fn a_piped_value_is_the_first_argument_or_fills_the_slot() {
    assert_eq!(
        render("[[ 1 | echo(2) ]] [[ 1 | echo: 2, _ ]] [[ 1 | echo ]]"),
        "[1 2] [2 1] [1]"
    );
    assert!(failure("[[ echo(_) ]]").contains("'_'"));
    assert!(failure("[[ 1 | echo(_, _) ]]").contains("two pipe slot markers"));
}

#[test]
fn writers_end_a_pipeline() {
    assert_eq!(render("[[ \"<\" | safeHtml ]][[ raw: \"<\" ]]"), "&lt;<");
    assert_eq!(render(r#"[[ "a'<\n" | safeJs ]]"#), r"a\'\u003C\u000A");
    let error = failure("[[ \"a\" | raw | upper ]]");
    assert!(
        error.contains("writer command should be the last command"),
        "{error}"
    );
    assert!(failure("[[ upper(raw(\"a\")) ]]").contains("writer command"));
}

#[test]
fn text_functions_refuse_numbers() {
    for template in [
        "[[ upper(1) ]]",
        "[[ repeat(1, 2) ]]",
        "[[ split(\"a\", 1) ]]",
    ] {
        assert!(failure(template).contains("must be string"), "{template}");
    }
    assert!(failure("[[ repeat(\"a\", -1) ]]").contains("negative Repeat count"));
}

#[test]
fn a_number_is_not_a_map_key() {
    assert!(failure("[[ map(1, 2) ]]").contains("not convertible to string"));
    assert!(failure("[[ map(\"a\") ]]").contains("incomplete key-value pair"));
    assert!(failure("[[ data[data.port] ]]").contains("as key for map"));
}

#[test]
fn errors_of_environment_functions_have_the_function_name() {
    assert!(failure("[[ lookup(\"x\") ]]").contains("lookup: failed: missing key 'x'"));
    assert!(failure("[[ readFile(\"x\") ]]").contains(": file: gone"));
    let error = failure("[[ lookup() ]]");
    assert!(
        error.contains("unexpected number of arguments in a call to lookup"),
        "{error}"
    );
    assert!(failure("[[ lookup(1) ]]").contains("lookup: first argument must be a string"));
}

#[test]
fn a_null_result_of_a_function_is_a_missing_value() {
    assert_eq!(render("([[ null() ]])"), "()");
}

#[test]
fn a_function_of_the_environment_is_a_method_of_lists() {
    assert_eq!(render("[[ data.list.Joined() ]]"), "joined [one two three]");
    assert!(failure("[[ data.list.nope() ]]").contains("cannot index"));
}

#[test]
fn a_variable_hides_a_function_and_a_function_hides_a_built_in() {
    assert_eq!(render("[[ echo := 1 ]][[ echo ]]"), "1");
    let upper = function(|_| Ok("mine".into()));
    let own = Functions::from([("upper", upper)]);
    let output = super::render(
        b"[[ upper() ]]",
        &Options::default(),
        &Map::new(),
        &Value::Null,
        &own,
    );
    assert_eq!(output.unwrap(), b"mine");
}

#[test]
fn a_function_is_not_printed() {
    assert!(failure("[[ upper ]]").contains("upper is a function"));
}

#[test]
fn parse_errors_have_the_position_and_what_was_expected() {
    let error = try_render("one\n  [[ if ]]").unwrap_err();
    assert_eq!(error.stage, error::Stage::Parse);
    assert_eq!((error.line, error.column), (2, 9));
    assert_eq!(&*error.excerpt, "  [[ if ]]");
    assert_eq!(
        error.to_string(),
        "template: /input:2: parsing if: unexpected token ']]' (expected term)"
    );
    assert!(failure("[[ x").contains("unexpected token 'unclosed action'"));
    assert!(failure("[[ if 1 ]]").contains("unexpected EOF"));
    assert!(failure("x[[ end ]]").contains("unexpected {{end}}"));
    assert!(failure("[[ if 1 ]][[ else ]][[ else ]][[ end ]]").contains("unexpected {{else}}"));
}

#[test]
fn without_a_loader_no_other_template_exists() {
    assert!(failure("[[ include \"x\" ]]").contains("template /x could not be found"));
    assert!(failure("[[ exec(\"x\") ]]").contains("template /x could not be found"));
    let error = failure("[[ extends \"x\" ]]");
    assert_eq!(error, "template: /input:1: template /x could not be found");
    assert_eq!(render("a[[ includeIfExists(\"x\") ]]b"), "ab");
}

#[test]
fn a_template_replaces_the_blocks_of_the_one_it_extends() {
    let files = [
        ("/base.jet", "<[[ block t() ]]base[[ end ]]>"),
        (
            "/mid.jet",
            "[[ extends \"base\" ]][[ block t() ]]mid[[ end ]]",
        ),
    ];
    let template = "[[ extends \"mid\" ]] ignored [[ block t() ]]own[[ end ]]";
    assert_eq!(render_with(&files, template), "<own>");
    assert_eq!(render_with(&files, "[[ include \"mid\" ]]"), "<mid>");
    assert_eq!(
        render_with(&files, "[[ import \"mid\" ]][[ yield t() ]]"),
        "mid"
    );
}

#[test]
fn included_templates_see_variables_and_resolve_names_relative_to_themselves() {
    let files = [
        ("/sub/a.jet", "[[ x ]][[ include \"./b\" 5 ]]"),
        ("/sub/b.jet", "[[ . ]][[ x = 2 ]]"),
    ];
    let template = "[[ x := 1 ]][[ include \"sub/a.jet\" ]][[ x ]]";
    assert_eq!(render_with(&files, template), "152");
}

#[test]
fn exec_gives_what_a_template_returns_and_drops_its_output() {
    let files = [("/a", "text[[ return . + 1 ]]more")];
    assert_eq!(render_with(&files, "[[ exec(\"a\", 4) ]]"), "5");
}

#[test]
fn an_error_in_another_template_names_that_template() {
    let files = [("/a.jet", "\n[[ nope ]]"), ("/b.jet", "[[ if ")];
    let error = try_render_with(&files, "[[ include \"a\" ]]").unwrap_err();
    assert_eq!((&*error.name, error.line), ("/a.jet", 2));
    let error = try_render_with(&files, "[[ extends \"b\" ]]").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("template: /input:1: template: /b.jet:1: "),
        "{error}"
    );
}

#[test]
fn a_cycle_of_templates_is_refused() {
    let files = [("/a", "[[ extends \"b\" ]]"), ("/b", "[[ import \"a\" ]]")];
    let error = try_render_with(&files, "[[ extends \"a\" ]]").unwrap_err();
    assert!(
        error.to_string().contains("extend or import one another"),
        "{error}"
    );
    let files = [("/a", "[[ include \"a\" ]]")];
    let error = try_render_with(&files, "[[ include \"a\" ]]").unwrap_err();
    assert!(error.to_string().contains("nested deeper"), "{error}");
}

#[test]
fn one_parsed_template_serves_many_threads() {
    let template = Template::parse(b"[[ data.app ]]", &Options::default()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let output = template.render(&variables(), &Value::Null, &functions());
                assert_eq!(output.unwrap(), b"shop");
            });
        }
    });
}

/// Fragments that are likely to interact in unusual ways.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "[[", "]]", "[[- ", " -]]", "{*", "*}", "if", "else", "end", "range", "try", "catch",
        "block", "yield", "content", "include", "extends", "import", "return", "nil", "not", "and",
        "data", ".list", ".app", ".nope", ".", "x", "_", ":=", "=", "==", "<", "+", "-", "*", "/",
        "%", "!", "?", ":", "|", "||", "&", ",", ";", "(", ")", "[", "]", "\"a\"", "\"", "`",
        "'a'", "1", "0x", "1e9", "-1", "é", " ", "\n", "len", "slice", "map", "isset", "ints",
        "repeat", "json", "raw", "dump", "exec", "echo", "true",
    ]);
    let spaced =
        (piece, any::<bool>()).prop_map(|(p, s)| format!("{p}{}", if s { " " } else { "" }));
    prop::collection::vec(spaced, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_bytes_make_the_engine_panic(template in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = try_render_bytes(&template);
        let action = [b"[[ ", template.as_slice(), b" ]]"].concat();
        let _ = try_render_bytes(&action);
    }

    #[test]
    fn no_mix_of_syntax_makes_the_engine_panic(template in pieces()) {
        let _ = try_render_bytes(template.as_bytes());
        let _ = try_render_bytes(format!("[[ {template} ]]").as_bytes());
    }

    #[test]
    fn text_without_markers_renders_as_itself(text in "[a-z \\n\\]}*é]{0,60}") {
        let expected = if text.trim().is_empty() { "" } else { &text };
        prop_assert_eq!(try_render(&text).unwrap(), expected);
    }
}
