//! The schemas in `schemas/` say the same as the types, and real documents satisfy them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ccm_agent::config::Config;
use ccm_core::model::policy::Rule;
use ccm_core::model::resource::decode::property_names;
use ccm_core::model::{TypeName, diagnosis, enrolment, event, health, registration, state};
use ccm_value::document::field_names;
use jsonschema::Registry;
use serde_json::{Value, json};

use crate::support::{TestEnv, files_below};

/// All schemas, found by looking; none can be forgotten.
fn schemas() -> BTreeMap<String, Value> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas");
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            (name, serde_json::from_str(&text).unwrap())
        })
        .collect()
}

fn schema(name: &str) -> Value {
    schemas().remove(name).unwrap()
}

/// Returns what is wrong with a document, if anything.
fn faults(name: &str, document: &Value) -> Vec<String> {
    let all = schemas();
    let mut registry = Registry::new();
    for schema in all.values() {
        registry = registry
            .add(schema["$id"].as_str().unwrap(), schema.clone())
            .unwrap();
    }
    let registry = registry.prepare().unwrap();
    let validator = jsonschema::options()
        .with_registry(&registry)
        .build(&all[name])
        .unwrap();
    validator
        .iter_errors(document)
        .map(|err| format!("{} at {}", err, err.instance_path()))
        .collect()
}

pub(crate) fn assert_valid(name: &str, document: &Value) {
    let faults = faults(name, document);
    assert!(faults.is_empty(), "{name}: {faults:#?} in {document:#}");
}

fn keys(schema: &Value) -> BTreeSet<&str> {
    schema["properties"]
        .as_object()
        .unwrap_or_else(|| panic!("no properties in {schema:#}"))
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn every_schema_is_itself_valid_and_named_after_its_file() {
    for (name, schema) in schemas() {
        assert!(
            schema["$id"]
                .as_str()
                .unwrap()
                .ends_with(&format!(":{name}")),
            "{name}"
        );
        assert!(jsonschema::meta::is_valid(&schema), "{name}");
    }
}

#[test]
fn property_schemas_have_exactly_the_properties_of_the_types() {
    let schema = schema("resource");
    for type_name in TypeName::ALL {
        let names: BTreeSet<&str> = property_names(type_name).into_iter().collect();
        assert_eq!(
            keys(&schema["$defs"][type_name.as_str()]),
            names,
            "{type_name}"
        );
    }
    let names: BTreeSet<&str> = field_names::<health::HealthCheck>()
        .iter()
        .copied()
        .collect();
    assert_eq!(keys(&schema["$defs"]["health_check"]), names);
    let names: BTreeSet<&str> = field_names::<registration::Entry>()
        .iter()
        .copied()
        .collect();
    assert_eq!(keys(&schema["$defs"]["registration"]), names);
}

#[test]
fn state_and_event_schemas_have_exactly_the_fields_of_the_types() {
    let state = schema("resource_state");
    for (name, fields) in [
        ("package", field_names::<state::PackageMetadata>()),
        ("service", field_names::<state::ServiceMetadata>()),
        ("file", field_names::<state::FileMetadata>()),
        ("exec", field_names::<state::ExecDetail>()),
        ("group", field_names::<state::GroupMetadata>()),
        ("user", field_names::<state::UserMetadata>()),
        ("line", field_names::<state::LineMetadata>()),
        ("link", field_names::<state::LinkMetadata>()),
        ("archive", field_names::<state::ArchiveMetadata>()),
        ("scaffold", field_names::<state::ScaffoldMetadata>()),
        ("apply", field_names::<state::ApplyDetail>()),
    ] {
        let fields: BTreeSet<&str> = fields.iter().copied().collect();
        assert_eq!(keys(&state["$defs"][name]), fields, "{name}");
    }
    let fields: BTreeSet<&str> = field_names::<state::CommonState>()
        .iter()
        .copied()
        .collect();
    assert_eq!(keys(&state), fields);
    let fields: BTreeSet<&str> = field_names::<event::TransactionEvent>()
        .iter()
        .copied()
        .collect();
    assert_eq!(keys(&schema("transaction_event")), fields);
}

#[test]
fn schemas_of_enrolment_and_diagnosis_have_exactly_the_fields_of_the_types() {
    let reply = schema("enrolment_reply");
    let diagnosis = schema("diagnosis");
    for (schema, fields) in [
        (
            &schema("enrolment_request"),
            field_names::<enrolment::EnrolmentRequest>(),
        ),
        (&reply, field_names::<enrolment::EnrolmentReply>()),
        (
            &reply["$defs"]["membership"],
            field_names::<enrolment::Membership>(),
        ),
        (&diagnosis, field_names::<diagnosis::Diagnosis>()),
        (
            &diagnosis["$defs"]["check"],
            field_names::<diagnosis::Check>(),
        ),
    ] {
        let fields: BTreeSet<&str> = fields.iter().copied().collect();
        assert_eq!(keys(schema), fields);
    }
}

#[test]
fn enrolment_messages_satisfy_their_schemas() {
    let node = "web1.example.net".parse().unwrap();
    let public_key = "UABUTEEIXQBEB57L2N2V2M373ZFQQKDLORGEJN25BHDYNZQ2YSFOKERO".to_owned();
    let request = enrolment::EnrolmentRequest {
        protocol: enrolment::ENROLMENT_REQUEST.into(),
        node,
        version: "0.1.0".into(),
    };
    assert_valid("enrolment_request", &json!(request));
    let unknown = json!({"protocol": request.protocol, "node": "web1", "groups": ["db"]});
    assert!(!faults("enrolment_request", &unknown).is_empty());
    let mut reply = enrolment::EnrolmentReply {
        protocol: enrolment::ENROLMENT_REPLY.into(),
        node: request.node,
        public_key,
        state: enrolment::EnrolmentState::Pending,
        reason: String::new(),
        membership: None,
    };
    assert_valid("enrolment_reply", &json!(reply));
    reply.state = enrolment::EnrolmentState::Approved;
    let without_membership = faults("enrolment_reply", &json!(reply));
    assert!(!without_membership.is_empty());
    reply.membership = Some(enrolment::Membership {
        jwt: "a.b.c".into(),
        collective: "default".parse().unwrap(),
        subject_prefix: "ccm.v1".into(),
        inbox_prefix: "_INBOX_agent.web1_example_net".into(),
        groups: vec!["web".parse().unwrap()],
        trust: "required: true\n".into(),
    });
    assert_valid("enrolment_reply", &json!(reply));
}

#[test]
fn a_real_diagnosis_satisfies_its_schema() {
    let env = TestEnv::new();
    let outcome = env.ccm(&["doctor", "--json", "--config", "none.yaml"]);
    let document = serde_json::from_str(&outcome.stdout).unwrap();
    assert_valid("diagnosis", &document);
}

#[test]
fn real_responses_and_events_satisfy_their_schemas() {
    let env = TestEnv::new();
    let request = |type_name: &str, properties: Value| {
        json!({"protocol": "io.choria.ccm.v1.resource.ensure.request",
               "type": type_name, "properties": properties})
    };
    let file = json!({"name": env.at("f"), "ensure": "present", "content": "x",
                      "owner": "root", "group": "root", "mode": "0644"});
    for request in [
        request("file", file),
        request("file", json!({"name": env.at("gone"), "ensure": "absent"})),
        request(
            "exec",
            json!([{"/bin/false": {"health_checks": [{"command": "/bin/true"}]}}]),
        ),
        request(
            "exec",
            json!({"name": "/bin/true", "control": {"if": "false"}}),
        ),
        request("exec", json!({"name": "/bin/true", "provider": "nope"})),
    ] {
        assert_valid("resource_ensure_request", &request);
        let response = env
            .ccm_with_input(&["ensure", "api", "pipe"], &request.to_string())
            .json();
        assert_valid("resource_ensure_response", &response);
    }
    let applied = env.apply(
        "- exec: {name: /bin/true, subscribe: ['file#/x']}\n",
        &["--noop"],
    );
    assert_valid("transaction_event", applied.event(0));
}

#[test]
fn what_the_types_refuse_the_schema_refuses_too() {
    let env = TestEnv::new();
    for (resource, is_valid) in [
        ("exec: {name: x}", true),
        (
            "exec: [{x: null}, {defaults: {timeout: 1s}}, {y: {}}]",
            true,
        ),
        ("file: {name: /x, ensure: absent}", true),
        ("exec: {name: x, nope: 1}", false),
        ("exec: {name: x, environment: [FOO]}", false),
        ("exec: {name: x, require: [foo]}", false),
        ("exec: {name: x, returns: [a]}", false),
        ("exec: {name: x, ensure: latest}", false),
        ("exec: {name: x, health_checks: [{}]}", false),
        (
            "exec: {name: x, health_checks: [{command: a, goss_rules: {}}]}",
            false,
        ),
        (
            "exec: {name: x, health_checks: [{command: a, tries: -1}]}",
            false,
        ),
        ("file: {name: /x, ensure: here}", false),
        ("file: {name: /x, ensure: absent, mode: rw}", false),
        ("service: {name: x, ensure: present}", false),
        (
            "scaffold: {name: /x, ensure: present, source: s, engine: mustache}",
            false,
        ),
        ("nope: {name: x}", false),
    ] {
        env.write("m.yaml", format!("ccm:\n  resources:\n    - {resource}\n"));
        let document: Value = serde_yaml::from_str(&env.read("m.yaml")).unwrap();
        let faults = faults("manifest", &document);
        assert_eq!(faults.is_empty(), is_valid, "{resource}: {faults:?}");
        let outcome = env.ccm(&["apply", "m.yaml", "--render"]);
        assert_eq!(outcome.code == Some(0), is_valid, "{resource}: {outcome:?}");
    }
}

#[test]
fn the_governor_of_a_manifest_is_the_same_for_type_and_schema() {
    let env = TestEnv::new();
    for (governor, is_valid) in [
        ("{name: deploys}", true),
        ("{name: deploys, timeout: 90s}", true),
        ("null", true),
        ("{timeout: 90s}", false),
        ("{name: a.b}", false),
        ("{name: a, capacity: 2}", false),
        ("deploys", false),
    ] {
        let resources = "ccm: {resources: [{exec: {name: x}}]}";
        env.write("m.yaml", format!("governor: {governor}\n{resources}\n"));
        let document: Value = serde_yaml::from_str(&env.read("m.yaml")).unwrap();
        let faults = faults("manifest", &document);
        assert_eq!(faults.is_empty(), is_valid, "{governor}: {faults:?}");
        let outcome = env.ccm(&["apply", "m.yaml", "--render"]);
        assert_eq!(outcome.code == Some(0), is_valid, "{governor}: {outcome:?}");
    }
}

/// Returns the YAML files of a directory and those below it.
fn yaml_files(directory: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let paths = files_below(&root).into_iter().map(|name| root.join(name));
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|suffix| suffix == "yaml");
    paths.filter(is_yaml).collect()
}

/// Returns the schema of a document by its keys; nothing for files that are no documents of ours, such
/// as templates of scaffolds.
fn schema_of(document: &Value) -> Option<&'static str> {
    let has = |key: &str| document.get(key).is_some();
    match () {
        () if has("ccm") => Some("manifest"),
        () if has("protocol") => Some("resource_ensure_request"),
        () if has("manifests") || has("identity") => Some("agent_config"),
        () if has("data") || has("hierarchy") || has("overrides") => Some("hiera_data"),
        () => None,
    }
}

#[test]
fn every_document_of_the_examples_satisfies_its_schema() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for path in ["examples", "tests/data/examples"]
        .into_iter()
        .flat_map(yaml_files)
    {
        let text = std::fs::read_to_string(&path).unwrap();
        // A template is no document before it is rendered.
        let Ok(document) = serde_yaml::from_str::<Value>(&text) else {
            assert!(text.contains("{{") || text.contains("[["), "{path:?}");
            continue;
        };
        if let Some(name) = schema_of(&document) {
            let faults = faults(name, &document);
            assert!(faults.is_empty(), "{path:?} ({name}): {faults:#?}");
            *seen.entry(name).or_default() += 1;
        }
    }
    assert!(seen["manifest"] > 30, "{seen:?}");
    assert!(seen["hiera_data"] > 3, "{seen:?}");
}

#[test]
fn the_schema_of_policies_has_exactly_the_keys_of_rules() {
    let schema = schema("agent_config");
    let trust = &schema["properties"]["trust"]["properties"];
    let rule = &trust["signers"]["items"]["properties"]["policy"]["items"];
    let known: BTreeSet<&str> = field_names::<Rule>().iter().copied().collect();
    assert_eq!(keys(rule), known);
    for (name, property) in rule["properties"].as_object().unwrap() {
        assert!(property["description"].is_string(), "{name}");
    }
}

#[test]
fn the_sources_of_trust_are_the_same_for_type_and_schema() {
    let key = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";
    let signer = json!({"name": "ops", "key": key});
    for (word, is_valid) in [("required", true), ("off", true), ("optional", false)] {
        let document = json!({"trust": {"sources": word, "signers": [signer]}});
        let faults = faults("agent_config", &document);
        assert_eq!(faults.is_empty(), is_valid, "{word}: {faults:?}");
        let read = Config::parse(&document.to_string());
        assert_eq!(read.is_ok(), is_valid, "{word}: {read:?}");
    }
}

/// Editors cannot resolve references between schemas, so the manifest's has the resources, too.
#[test]
fn the_schema_of_manifests_is_complete_in_itself() {
    let manifest = schema("manifest");
    assert_eq!(manifest["$defs"], schema("resource")["$defs"]);
    assert!(!manifest.to_string().contains("v1:resource#"));
    for name in ["data", "hierarchy", "overrides"] {
        let data = &schema("hiera_data")["properties"][name];
        assert_eq!(&manifest["properties"][name], data, "{name}");
    }
}

/// Returns the keys that the agent knows below a prefix, from its error about an unknown one.
fn agent_keys(text: &str) -> BTreeSet<String> {
    let error = Config::parse(text).unwrap_err().to_string();
    let line = error.lines().find(|line| line.contains("expected one of "));
    let (_, known) = line.unwrap().split_once("expected one of ").unwrap();
    known.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_schema_of_the_agent_has_exactly_its_keys() {
    let schema = schema("agent_config");
    let names = |schema: &Value| -> BTreeSet<String> {
        keys(schema).into_iter().map(str::to_owned).collect()
    };
    assert_eq!(names(&schema), agent_keys("zzqq: 1"));
    for section in ["spool", "trust", "choria"] {
        let known = agent_keys(&format!("{section}: {{zzqq: 1}}"));
        assert_eq!(names(&schema["properties"][section]), known, "{section}");
    }
    for (name, property) in schema["properties"].as_object().unwrap() {
        assert!(property["description"].is_string(), "{name}");
    }
}

#[test]
fn the_packaged_agent_file_and_hiera_data_satisfy_their_schemas() {
    let packaged = include_str!("../../packaging/agent.yaml");
    assert_valid("agent_config", &serde_yaml::from_str(packaged).unwrap());
    let data =
        "data: {a: 1}\nhierarchy: {order: [default], merge: deep}\noverrides: {default: {a: 2}}";
    assert_valid("hiera_data", &serde_yaml::from_str(data).unwrap());
    assert!(!faults("agent_config", &json!({"intervall": "5m"})).is_empty());
    assert!(!faults("hiera_data", &json!({"hierarchy": {"order": "x"}})).is_empty());
}

#[test]
fn the_schema_of_manifests_has_exactly_the_keys_of_manifests() {
    let env = TestEnv::new();
    let schema = schema("manifest");
    for (text, schema) in [
        ("zzqq: 1\n", &schema),
        ("ccm: {zzqq: 1}\n", &schema["properties"]["ccm"]),
    ] {
        env.write("m.yaml", text);
        let error = env.ccm(&["validate", "m.yaml"]).error(2);
        let (_, known) = error.split_once("expected one of ").unwrap();
        let known: BTreeSet<&str> = known.lines().next().unwrap().split(", ").collect();
        assert_eq!(keys(schema), known);
    }
}
