//! The reference pages in `docs/reference` say what the program and the schemas say.
//!
//! Text between `<!-- generated: WHAT -->` and `<!-- end generated -->` is generated here; the pages
//! of commands come from `ccm util reference-pages`. `CCM_UPDATE_EXPECTED=1` (or `scripts/docs
//! --update`) rewrites the pages instead of comparing them.

mod choria_samples;
mod enrolment_samples;
mod functions;
mod messages;
mod metrics;
mod samples;
mod schema_tables;
mod type_events;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;

use crate::support::TestEnv;

const START: &str = "<!-- generated: ";
const END: &str = "<!-- end generated -->";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn is_update() -> bool {
    std::env::var_os("CCM_UPDATE_EXPECTED").is_some()
}

/// Compares a page with what it should be, or rewrites it.
fn check(path: &Path, wanted: &str) {
    let found = std::fs::read_to_string(path).unwrap_or_default();
    if found == wanted {
        return;
    }
    if is_update() {
        std::fs::write(path, wanted).unwrap();
        return;
    }
    let lines = || {
        wanted
            .lines()
            .zip(found.lines().chain(std::iter::repeat("")))
    };
    let difference = lines().find(|(wanted, found)| wanted != found);
    panic!(
        "{} is stale: run `scripts/docs --update`; first difference: {difference:?}",
        path.display()
    );
}

/// Returns the pages of the book that contain generated text.
fn pages() -> Vec<PathBuf> {
    let all = crate::docs::book_pages().into_iter();
    let all = all.map(|name| root().join(name));
    all.filter(|path| std::fs::read_to_string(path).unwrap().contains(START))
        .collect()
}

/// Returns the text for a mark such as `properties file`.
fn generate(what: &str) -> String {
    let (kind, argument) = what.split_once(' ').unwrap_or((what, ""));
    match kind {
        "properties" => schema_tables::properties(argument),
        "common-properties" => schema_tables::common_properties(),
        "definition" => schema_tables::definition(argument),
        "state" => schema_tables::state(argument),
        "fields" => schema_tables::fields(argument),
        "agent-yaml" => schema_tables::agent_yaml(),
        "sample" => samples::sample(argument),
        "metrics" => metrics::table(argument),
        _ => panic!("no generator for {what:?}"),
    }
}

/// Returns a page with all its generated texts replaced.
fn regenerate(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(START) {
        let (what, after) = after.split_once(" -->\n").expect("the mark is a line");
        let (_, after) = after.split_once(END).expect("generated text has an end");
        text.push_str(&format!(
            "{before}{START}{what} -->\n\n{}\n\n{END}",
            generate(what).trim()
        ));
        rest = after;
    }
    text + rest
}

#[test]
fn generated_texts_are_up_to_date() {
    let pages = pages();
    assert!(pages.len() >= 10, "{pages:?}");
    for path in pages {
        let page = std::fs::read_to_string(&path).unwrap();
        check(&path, &regenerate(&page));
    }
}

#[test]
fn pages_of_commands_are_up_to_date() {
    let env = TestEnv::new();
    let target = env.path("pages");
    std::fs::create_dir(&target).unwrap();
    env.ccm(&["util", "reference-pages", &env.at("pages")]).ok();
    let directory = root().join("docs/reference/commands");
    let files = |directory: &Path| -> BTreeMap<String, String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        paths
            .map(|path| (name(&path), std::fs::read_to_string(&path).unwrap()))
            .collect()
    };
    let wanted = files(&target);
    assert!(wanted.len() > 30, "{:?}", wanted.keys());
    for (name, text) in &wanted {
        check(&directory.join(name), text);
    }
    for name in files(&directory)
        .keys()
        .filter(|name| !wanted.contains_key(*name))
    {
        match is_update() {
            true => std::fs::remove_file(directory.join(name)).unwrap(),
            false => panic!("{name}: no such command"),
        }
    }
}

#[test]
fn every_resource_type_has_a_page() {
    for name in ccm_core::model::TypeName::ALL {
        let path = root().join(format!("docs/reference/resources/{name}.md"));
        let page = std::fs::read_to_string(&path).unwrap_or_default();
        for part in [
            format!("{START}properties {name} -->"),
            format!("{START}state {name} -->"),
            format!("{START}sample event-of-{name} -->"),
            "## Example\n".into(),
            "## States\n".into(),
            "## Events\n".into(),
            "## Noop\n".into(),
            "## Platforms\n".into(),
        ] {
            assert!(page.contains(&part), "{}: {part}", path.display());
        }
    }
}

/// Returns the noop messages in a text, with the names that pages use for what varies.
fn noop_messages(text: &str) -> BTreeSet<String> {
    let message = Regex::new(r"Would have [A-Za-z {}]+[a-z}A-Z]").unwrap();
    let found = message.find_iter(text).map(|found| {
        let text = found.as_str().replace("{wanted}", "VERSION");
        text.replace("{count}", "N")
    });
    found.collect()
}

#[test]
fn pages_of_types_list_the_messages_of_noop_runs() {
    let sources = root().join("crates/ccm-core/src/resource");
    for name in ccm_core::model::TypeName::ALL.map(ccm_core::model::TypeName::as_str) {
        if name == "apply" {
            // The engine runs nested manifests.
            continue;
        }
        let single = sources.join(format!("{name}.rs"));
        let path = match single.exists() {
            true => single,
            false => sources.join(name).join("mod.rs"),
        };
        let source = std::fs::read_to_string(path).unwrap();
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
        let page = format!("docs/reference/resources/{name}.md");
        let page = std::fs::read_to_string(root().join(page)).unwrap();
        let (_, table) = page.split_once("## Noop\n").unwrap();
        let listed = table.lines().filter(|line| line.starts_with("| Would"));
        let listed: String = listed
            .map(|line| line.split(" | ").next().unwrap())
            .collect();
        assert_eq!(noop_messages(&listed), noop_messages(code), "{name}");
    }
}

#[test]
fn topics_of_the_help_name_existing_pages() {
    let env = TestEnv::new();
    let page = Regex::new(r"docs/[\w/.-]*[\w/]").unwrap();
    for topic in ["manifest", "selection", "rollout", "trust"] {
        let text = env.ccm(&["help", topic]).ok();
        assert!(text.starts_with(&topic.to_uppercase()), "{text}");
        for page in page.find_iter(&text) {
            let path = root().join(page.as_str());
            assert!(path.exists(), "{topic}: {}", page.as_str());
        }
    }
    let help = env.ccm(&["help", "apply"]).ok();
    assert!(help.contains("Usage: ccm apply"), "{help}");
}

/// Returns the names of the public fields of a struct.
fn fields_of(file: &str, name: &str) -> BTreeSet<String> {
    let source = root().join("crates/ccm-core/src/model").join(file);
    let source = std::fs::read_to_string(source).unwrap();
    let (_, body) = source.split_once(&format!("pub struct {name} {{")).unwrap();
    let (body, _) = body.split_once("\n}").unwrap();
    let field = Regex::new(r"(?m)^    pub ([a-z_]+):").unwrap();
    let found = field.captures_iter(body).map(|found| found[1].to_owned());
    found.collect()
}

#[test]
fn the_page_of_events_lists_the_fields_of_summaries_and_audit_events() {
    let page = root().join("docs/reference/events.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (after, file, name) in [
        ("Counts of a run:\n", "event.rs", "Summary"),
        ("as an event:\n", "run.rs", "RunSummary"),
        ("## Audit event\n", "audit.rs", "AuditEvent"),
    ] {
        let (_, table) = page.split_once(after).unwrap();
        let (_, table) = table.split_once("|---|---|\n").unwrap();
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let listed: BTreeSet<String> = cells
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .map(str::to_owned)
            .collect();
        assert_eq!(listed, fields_of(file, name), "{name}");
    }
}
