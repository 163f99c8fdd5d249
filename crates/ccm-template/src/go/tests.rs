//! Tests of whole templates; parts are tested in their modules.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::env::Function;

fn root() -> Value {
    serde_json::from_str(
        r#"{"facts": {"host": "web1"}, "environ": {"HOME": "/home/ann", "A": "1"},
            "data": {"port": 8080, "list": ["a", "b"], "m": {"b": 1, "a": 2}, "nul": null,
                     "f": 1.5, "big": 12345678.5, "text": "x"}}"#,
    )
    .unwrap()
}

fn functions() -> Functions {
    Functions::from([
        (
            "lookup",
            Arc::new(|args: &[Value]| Ok(args.first().cloned().unwrap_or_default())) as Function,
        ),
        (
            "kvGet",
            Arc::new(|_: &[Value]| Err("no such bucket".into())),
        ),
    ])
}

fn rendered(template: &str) -> Result<String, TemplateError> {
    let now: Now = Arc::new(|| chrono::DateTime::from_timestamp(1_700_000_000, 0).unwrap());
    let options = Options {
        name: "motd.tmpl",
        now: Some(&now),
        ..Options::default()
    };
    render(template, &options, &root(), &functions())
}

fn text(template: &str) -> String {
    rendered(template).unwrap_or_else(|err| panic!("{template}: {err}"))
}

fn error(template: &str) -> TemplateError {
    match rendered(template) {
        Err(err) => err,
        Ok(out) => panic!("{template}: expected an error, got {out:?}"),
    }
}

#[test]
fn an_error_names_the_template_its_line_and_the_line_itself() {
    let err = error("first\n  second {{ upper 5 }}\n");
    assert_eq!((err.line, err.column), (2, 13));
    assert_eq!(
        err.to_string(),
        "motd.tmpl:2:13: error calling upper: wrong type for value; expected string; got int \
         (in `second {{ upper 5 }}`)"
    );
}

#[test]
fn a_block_without_end_is_reported_where_it_begins() {
    let err = error("a\n{{ if .data }}\nb\nc\n");
    assert_eq!(err.line, 2);
    assert!(err.message.as_str().contains("unexpected EOF"), "{err}");
}

#[test]
fn a_stray_end_is_an_error_with_its_line() {
    let err = error("a\n{{ if .data }}b{{ end }}\n{{ end }}");
    assert_eq!((err.line, err.message.as_str()), (3, "unexpected {{end}}"));
}

#[test]
fn a_stray_else_is_an_error() {
    assert_eq!(error("{{ else }}").message, "unexpected {{else}}".into());
}

#[test]
fn set_changes_the_dict_in_place() {
    assert_eq!(
        text(r#"{{ $d := dict "a" 1 }}{{ $e := $d }}{{ $_ := set $d "b" 2 }}{{ $e }}"#),
        "map[a:1 b:2]"
    );
    assert_eq!(
        text(r#"{{ $_ := set .data "port" 9 }}{{ $.data.port }}"#),
        "9"
    );
}

#[test]
fn rendering_leaves_the_root_data_as_it_was() {
    let root = root();
    let template = r#"{{ $_ := set .data "port" 9 }}"#;
    render(template, &Options::default(), &root, &functions()).unwrap();
    assert_eq!(root, self::root());
}

#[test]
fn a_dict_cannot_contain_itself() {
    let err = error(r#"{{ $d := dict }}{{ $_ := set $d "x" (list $d) }}"#);
    assert!(err.message.as_str().contains("contain itself"), "{err}");
    assert_eq!(
        text(r#"{{ $d := dict "a" 1 }}{{ $_ := merge $d (dict "x" $d) }}{{ $d }}"#),
        "map[a:1 x:map[a:1]]"
    );
}

#[test]
fn functions_of_the_caller_are_called_with_plain_values() {
    assert_eq!(text(r#"{{ (lookup (dict "a" (list 1 2))).a }}"#), "[1 2]");
    let err = error("{{ kvGet `b` `k` }}");
    assert_eq!(err.message, "error calling kvGet: no such bucket".into());
}

#[test]
fn the_caller_can_provide_the_clock() {
    assert_eq!(text("{{ (now).Unix }}"), "1700000000");
    assert_eq!(
        text(r#"{{ dateInZone "2006-01-02" "now" "UTC" }}"#),
        "2023-11-14"
    );
    assert_eq!(text("{{ ago 1699999900 }}"), "1m40s");
}

#[test]
fn the_environment_is_that_of_the_root_data() {
    assert_eq!(text(r#"{{ env "HOME" }}{{ env "NOPE" }}"#), "/home/ann");
    assert_eq!(text(r#"{{ expandenv "$A-${A}-$B$" }}"#), "1-1-$");
}

#[test]
fn functions_for_keys_and_certificates_are_not_supported() {
    for template in [r#"{{ genCA "x" 365 }}"#, r#"{{ bcrypt "x" }}"#] {
        assert!(error(template).message.as_str().contains("not supported"));
    }
}

#[test]
fn every_function_of_the_table_exists() {
    let names = "abbrev abbrevboth trunc trim upper lower title untitle substr repeat trimall trimAll \
        trimSuffix trimPrefix nospace initials randAlphaNum randAlpha randAscii randNumeric \
        swapcase shuffle snakecase camelcase kebabcase wrap wrapWith contains hasPrefix hasSuffix \
        quote squote cat indent nindent replace plural toString split splitList splitn toStrings \
        join sortAlpha atoi int int64 float64 toDecimal seq until untilStep add1 add sub div mod \
        mul add1f addf subf divf mulf randInt biggest max min maxf minf ceil floor round default \
        empty coalesce all any compact ternary deepCopy fail fromJson toJson toPrettyJson \
        toRawJson tuple list dict get set unset hasKey pluck keys values pick omit merge \
        mergeOverwrite append push prepend first rest last initial reverse uniq without has slice \
        concat dig chunk ago date date_in_zone date_modify dateInZone dateModify duration \
        durationRound htmlDate htmlDateInZone toDate now unixEpoch typeOf typeIs typeIsLike kindOf \
        kindIs deepEqual env expandenv getHostByName base dir clean ext isAbs osBase osClean osDir \
        osExt osIsAbs urlParse urlJoin sha1sum sha256sum sha512sum adler32sum bcrypt htpasswd \
        genPrivateKey derivePassword buildCustomCert genCA genCAWithKey genSelfSignedCert \
        genSelfSignedCertWithKey genSignedCert genSignedCertWithKey encryptAES decryptAES \
        randBytes b64enc b64dec b32enc b32dec uuidv4 semver semverCompare regexMatch regexFind \
        regexFindAll regexReplaceAll regexReplaceAllLiteral regexSplit regexQuoteMeta hello \
        must_date_modify mustDateModify mustToDate mustCompact mustFromJson mustToJson \
        mustToPrettyJson mustToRawJson mustDeepCopy mustMerge mustMergeOverwrite mustAppend \
        mustPush mustPrepend mustFirst mustRest mustLast mustInitial mustReverse mustUniq \
        mustWithout mustHas mustSlice mustChunk mustRegexMatch mustRegexFindAll mustRegexFind \
        mustRegexReplaceAll mustRegexReplaceAllLiteral mustRegexSplit";
    for name in names.split_whitespace() {
        assert!(sprig::find(name).is_some(), "{name}");
    }
    let core = "not eq ne lt le gt ge len index call print printf println html js urlquery";
    for name in core.split_whitespace() {
        assert!(builtin::find(name).is_some(), "{name}");
    }
}

#[test]
fn endless_and_memory_hungry_templates_exceed_the_budget() {
    let cases = [
        r#"{{ repeat 1000000000 "x" }}"#,
        "{{ until 1000000000 }}",
        "{{ seq 1 9223372036854775807 }}",
        r#"{{ printf "%1000000d" 1 | repeat 1000 }}"#,
        r#"{{ indent 1000000000 "x" }}"#,
        "{{ range 9223372036854775807 }}{{ end }}",
        r#"{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}"#,
        r#"{{ $x := "x" }}{{ range until 100 }}{{ $x = print $x $x }}{{ end }}"#,
        "{{ $x := list 1 }}{{ range until 90 }}{{ $x = list $x $x }}{{ end }}{{ $x }}",
        "{{ $x := list 1 }}{{ range until 90 }}{{ $x = list $x $x }}{{ end }}{{ toJson $x }}",
        "{{ $x := list 1 }}{{ range until 90 }}{{ $x = list $x $x }}{{ end }}{{ deepCopy $x }}",
        "{{ $x := list 1 }}{{ range until 5000 }}{{ $x = list $x }}{{ end }}{{ lookup $x }}",
        "{{ randAlphaNum 1000000000 }}",
    ];
    for template in cases {
        // A small budget keeps the test fast.
        let meter = Meter::new(1 << 20);
        let out = render_within(meter, template, &Options::default(), &root(), &functions());
        assert!(out.is_err(), "{template}");
    }
}

#[test]
fn deep_nesting_is_refused_and_not_a_stack_overflow() {
    let parens = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
    assert!(error(&parens).message.as_str().contains("nest deeper"));
    let blocks = "{{ if 1 }}".repeat(5000) + &"{{ end }}".repeat(5000);
    assert!(error(&blocks).message.as_str().contains("nest deeper"));
    let chain = format!(
        "{{{{ if 0 }}}}{}{{{{ end }}}}",
        "{{ else if 0 }}".repeat(5000)
    );
    assert_eq!(text(&chain), "");
}

#[test]
fn the_deepest_allowed_nesting_fits_the_stack() {
    let nested = "{{ if 1 }}".repeat(25) + "{{ template `r` (sub . 1) }}" + &"{{ end }}".repeat(25);
    let template = format!(
        "{{{{ define `r` }}}}{{{{ if gt . 0 }}}}{nested}{{{{ end }}}}{{{{ end }}}}{{{{ template `r` 1000 }}}}"
    );
    assert!(error(&template).message.as_str().contains("depth"));
}

#[test]
fn either_delimiter_can_be_left_to_its_default() {
    let options = Options {
        name: "t",
        left: "<<",
        right: "",
        now: None,
    };
    let out = render("<< .data.port }}", &options, &root(), &functions());
    assert_eq!(out.as_deref(), Ok("8080"));
}

/// Fragments that are likely to reach deep into the engine when combined.
fn fragment() -> impl Strategy<Value = String> {
    let pieces = "{{|}}|{{- | -}}|if |else |end |range |with |define |template |block |break |\
        continue |$x |$x := |= |.data |.data.list |.data.m.a |. |nil |true |1 |-1 |1.5 |0x1f |'a' |\
        \"s\" |`r` |( |) |, || |printf |\"%d %s %v %q %5.2f %x\" |index |slice |len |dict |list |\
        set |merge |trunc |substr |abbrevboth |wrap |wrapWith |regexSplit |regexReplaceAll |\"(a*)\" |\
        \"$1\" |date |toDate |\"2006-01-02 15:04:05.000 MST\" |dateModify |semverCompare |\
        \">=1.2 - 2 || ^0.x\" |semver |urlParse |urlJoin |b64dec |b32dec |fromJson |toJson |split |\
        splitn |chunk |until |untilStep |seq |round |divf |mulf |add |div |mod |snakecase |\
        camelcase |kebabcase |title |indent |repeat |join |dig |pick |9223372036854775807 |é |\n|/*|*/";
    let pieces: Vec<String> = pieces.split('|').map(str::to_owned).collect();
    prop_oneof![
        8 => proptest::sample::select(pieces),
        1 => "\\PC{0,4}",
        1 => Just("|".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_engine_panic(template in "\\PC{0,80}") {
        let _ = rendered(&template);
        let _ = rendered(&format!("{{{{ {template} }}}}"));
    }

    #[test]
    fn no_mix_of_syntax_makes_the_engine_panic(
        pieces in proptest::collection::vec(fragment(), 0..24)
    ) {
        let _ = rendered(&pieces.concat());
        let _ = rendered(&format!("{{{{ {} }}}}", pieces.concat()));
    }

    #[test]
    fn no_call_of_any_function_makes_the_engine_panic(
        name in proptest::sample::select(vec![
            "trunc", "substr", "abbrev", "abbrevboth", "wrap", "wrapWith", "indent", "repeat",
            "replace", "splitn", "until", "untilStep", "seq", "round", "slice", "chunk", "index",
            "printf", "date", "dateInZone", "toDate", "dateModify", "duration", "durationRound",
            "semver", "semverCompare", "regexSplit", "regexFindAll", "regexReplaceAll", "urlParse",
            "b64dec", "b32dec", "fromJson", "toDecimal", "int", "divf", "mulf", "addf", "add",
            "mul", "div", "mod", "camelcase", "snakecase", "title", "initials", "clean", "expandenv",
            "quote", "js", "randInt", "ago",
        ]),
        args in proptest::collection::vec(prop_oneof![
            any::<i64>().prop_map(|n| n.to_string()),
            (-5i64..40).prop_map(|n| n.to_string()),
            any::<f32>().prop_filter("finite", |f| f.is_finite()).prop_map(|f| format!("{f:.3}")),
            "\\PC{0,12}".prop_map(|s| format!("`{}`", s.replace('`', ""))),
            Just("(list 1 `a` nil)".to_owned()),
            Just("nil".to_owned()),
        ], 0..5)
    ) {
        let _ = rendered(&format!("{{{{ {name} {} }}}}", args.join(" ")));
    }
}
