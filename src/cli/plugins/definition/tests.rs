//! What is read of a plugin file, and what is wrong with bad ones.

use super::*;

fn one(text: &str) -> Entry {
    let file = format!("name: x\ncommands:\n  - {}", text.replace('\n', "\n    "));
    Definition::parse(&file).unwrap().commands.remove(0)
}

fn problems(text: &str) -> Vec<String> {
    let problems = one(text).problems;
    problems.into_iter().map(|it| it.message).collect()
}

#[test]
fn the_example_of_upstreams_documents_is_read() {
    let definition = Definition::parse(
        "name: deploy\ndescription: Deploy application configuration\ncommands:\n  - name: web\n    \
         description: Deploy web server configuration\n    type: exec\n    environment:\n      \
         - \"DEPLOY_ENV=production\"\n    command: |\n      ccm apply /etc/web.yaml\n",
    )
    .unwrap();
    let web = &definition.commands[0];
    assert_eq!(web.name, "web");
    assert_eq!(web.problems, []);
    let exec = web.exec.as_ref().unwrap();
    assert_eq!(exec.body, Body::Words("ccm apply /etc/web.yaml\n".into()));
    assert_eq!(exec.environment, ["DEPLOY_ENV=production"]);
}

#[test]
fn what_is_not_supported_is_named_and_kept_for_the_call() {
    assert_eq!(
        problems("name: a\ntype: exec\ncommand: x\ntransform: {jq: {query: .}}\nfrob: 1"),
        [
            "key transform is not supported",
            "key frob is not supported"
        ]
    );
    for word in NOT_SUPPORTED {
        let text = format!("name: a\ntype: {word}\nurl: x");
        assert_eq!(problems(&text), [format!("type {word} is not supported")]);
    }
    assert_eq!(
        problems(
            "name: a\ntype: parent\nflags: [{name: f}]\ncommands: [{name: b, type: exec, command: c}]"
        ),
        ["key flags is not supported"]
    );
}

#[test]
fn a_command_without_effect_or_with_two_is_a_problem() {
    assert_eq!(
        problems("name: a\ntype: exec"),
        ["a command or a script is required"]
    );
    assert_eq!(
        problems("name: a\ntype: exec\ncommand: x\nscript: y"),
        ["only one of command and script is allowed"]
    );
    assert_eq!(
        problems("name: a\ntype: parent"),
        ["a parent needs commands"]
    );
    assert_eq!(problems("name: a"), ["type is missing: exec or parent"]);
}

#[test]
fn inputs_that_can_not_be_typed_or_told_apart_are_problems() {
    for (inputs, problem) in [
        ("flags: [{name: a}, {name: a}]", "flags: duplicate \"a\""),
        (
            "flags: [{name: a, short: x}, {name: b, short: x}]",
            "flags: duplicate \"b\"",
        ),
        ("flags: [{name: help}]", "flags: \"help\" is reserved"),
        ("flags: [{name: -x}]", "flags: invalid name \"-x\""),
        (
            "flags: [{name: a, short: xy}]",
            "a: short must be 1 character",
        ),
        (
            "arguments: [{name: a, type: date}]",
            "a: unknown type \"date\"",
        ),
        (
            "arguments: [{name: a, type: int, enum: [x]}]",
            "a: sets both type and enum",
        ),
        (
            "arguments: [{name: a, short: x}]",
            "key short is not supported",
        ),
    ] {
        let text = format!("name: a\ntype: exec\ncommand: x\n{inputs}");
        assert_eq!(problems(&text), [problem], "{inputs}");
    }
}

#[test]
fn a_file_without_usable_commands_is_broken() {
    for (text, message) in [
        ("", "expected a mapping"),
        (
            "name: a\ncommands: []",
            "line 1 column 1: no commands are defined",
        ),
        (
            "name: a\ncommands: 5",
            "line 2 column 11: commands must be a list",
        ),
        (
            "name: a\ninclude_file: b\ncommands: []",
            "line 2 column 1: key include_file is not supported",
        ),
        (
            "commands: [{name: a b}]",
            "line 1 column 12: invalid command name \"a b\": use letters, digits, _ . and -",
        ),
        (
            "commands: [{name: a}, {name: b, aliases: [a]}]",
            "line 1 column 23: duplicate command \"a\"",
        ),
    ] {
        assert_eq!(Definition::parse(text).unwrap_err().to_string(), message);
    }
}

#[test]
fn nesting_has_an_end() {
    let mut text = String::from("name: x\ncommands:\n");
    for depth in 0..=MAX_DEPTH {
        let space = "  ".repeat(depth * 2 + 1);
        text.push_str(&format!(
            "{space}- name: a\n{space}  type: parent\n{space}  commands:\n"
        ));
    }
    let space = "  ".repeat(MAX_DEPTH * 2 + 3);
    text.push_str(&format!("{space}- {{name: z}}\n"));
    assert!(Definition::parse(&text).is_err());
}
