//! Templates read for a signer with a policy only what a rule grants, in whatever language they
//! are written, and no error repeats what they read.

use std::collections::BTreeMap;

use ccm_agent::Agent;
use ccm_agent::config::Config;
use ccm_core::model::envelope::{DIFF, NOOP};
use ccm_core::run::secret_key;
use ccm_core::secrets::{self, SealedType};
use ccm_nats::request_signature::Signer;
use ccm_nats::{Connection, Headers, Verb};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{answer_to, ensure_body, trusting_all};
use crate::support::agent;
use crate::support::nats::NatsServer;

const SECRET: &str = "hunter2hunter2";

/// A node with a secret in a file, a bucket and its environment.
struct Place {
    server: NatsServer,
    client: Connection,
    dir: TempDir,
}

impl Place {
    async fn new() -> Self {
        let server = NatsServer::start();
        let client = server.client().await;
        agent::init(&client).await;
        let bucket = async_nats::jetstream::kv::Config {
            bucket: "vault".into(),
            ..Default::default()
        };
        let jetstream = server.jetstream().await;
        let bucket = jetstream.create_key_value(bucket).await.unwrap();
        bucket.put("db", SECRET.into()).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), SECRET).unwrap();
        std::fs::write(dir.path().join("secret.templ"), SECRET).unwrap();
        std::fs::create_dir(dir.path().join("secrets")).unwrap();
        std::fs::write(dir.path().join("secrets/a"), SECRET).unwrap();
        Self {
            server,
            client,
            dir,
        }
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    async fn start(&self, config: &Config) -> Agent {
        let environ = BTreeMap::from([("PLANTED".to_owned(), SECRET.to_owned())]);
        let settings = self.server.settings();
        let process = agent::process(environ);
        Agent::start(config, &settings, process).await.unwrap()
    }

    /// Returns expressions that read the secret, and the right that each needs.
    fn readers(&self) -> Vec<(String, &'static str)> {
        let secret = self.at("secret");
        vec![
            (format!("readFile('{secret}')"), "files"),
            (format!("file('{secret}')"), "files"),
            (format!("template('{secret}.templ')"), "files"),
            (
                format!("template('{{{{ readFile(\"{secret}\") }}}}')"),
                "files",
            ),
            (format!("jet('[[ readFile(\"{secret}\") ]]')"), "files"),
            ("kvGet('vault', 'db')".into(), "kv"),
            ("jet('[[ kvGet(\"vault\", \"db\") ]]')".into(), "kv"),
            ("Environ.PLANTED".into(), "environment"),
            ("Environ['PLANTED']".into(), "environment"),
            ("lookup('environ.PLANTED')".into(), "environment"),
            ("jet('[[ environ.PLANTED ]]')".into(), "environment"),
            ("jet('[[ .Environ.PLANTED ]]')".into(), "environment"),
            ("$env['Environ']['PLANTED']".into(), "environment"),
            (
                "toJSON(registrations('*', '*', '*', '*'))".into(),
                "registrations",
            ),
        ]
    }
}

#[tokio::test]
async fn a_request_of_a_signer_with_a_policy_reads_nothing() {
    let place = Place::new().await;
    let weak = Signer::generate();
    let policy = "- {verbs: [ensure], types: [service], names: [app]}\n\
        - {verbs: [ensure], noop_only: true}";
    let signers = [(&weak, "weak", Some(policy))];
    let running = place.start(&trusting_all(&signers, place.dir.path())).await;
    for (reader, right) in place.readers() {
        let template = format!("{{{{ {reader} }}}}");
        for property in ["ensure", "alias", "provider", "name"] {
            let mut properties = json!({"name": "app", "ensure": "running"});
            properties[property] = json!(template);
            let body = ensure_body("service", &properties);
            let headers = Headers::new().with(NOOP, "true").unwrap();
            let (_, answer) = answer_to(&place.client, &weak, Verb::Ensure, headers, &body).await;
            let text = answer.to_string();
            assert!(!text.contains(SECRET), "{property}: {reader}: {text}");
            let missing = format!("lookups: [{right}]");
            assert!(text.contains(&missing), "{property}: {reader}: {text}");
        }
        let properties = json!({"name": "app", "ensure": template});
        let body = ensure_body("service", &properties);
        let (_, answer) =
            answer_to(&place.client, &weak, Verb::Ensure, Headers::new(), &body).await;
        assert!(!answer.to_string().contains(SECRET), "{reader}: {answer}");
    }
    let events = format!("{:?}", agent::stored_events(&place.server).await);
    assert!(!events.contains(SECRET), "{events}");
    running.stop().await;
}

#[tokio::test]
async fn an_inline_manifest_reads_nothing_either() {
    let place = Place::new().await;
    let weak = Signer::generate();
    let target = tempfile::tempdir().unwrap();
    let policy = format!(
        "{{verbs: [apply], types: [file, scaffold], names: ['{}/**']}}",
        target.path().display()
    );
    let signers = [(&weak, "weak", Some(policy.as_str()))];
    let running = place.start(&trusting_all(&signers, place.dir.path())).await;
    let out = target.path().join("out").display().to_string();
    let apply = async |manifest: Value| {
        let body = json!({"protocol": "io.choria.ccm.v1.manifest.apply.request",
            "manifest": manifest, "wait": true});
        answer_to(&place.client, &weak, Verb::Apply, Headers::new(), &body).await
    };
    let file = |more: Value| {
        let mut properties = json!({"ensure": "present", "owner": "root", "group": "root",
            "mode": "0644"});
        for (key, value) in more.as_object().unwrap() {
            properties[key] = value.clone();
        }
        json!([{"file": [{out.clone(): properties}]}])
    };
    let read = || std::fs::read_to_string(&out).unwrap_or_default();
    for (reader, right) in place.readers() {
        let template = format!("{{{{ {reader} }}}}");
        for manifest in [
            json!({"ccm": {"resources": file(json!({"content": template}))}}),
            json!({"data": {"x": template},
                "ccm": {"resources": file(json!({"content": "{{ Data.x }}"}))}}),
            json!({"ccm": {"resources": file(json!({"content": "x", "alias": template}))}}),
        ] {
            let (_, answer) = apply(manifest.clone()).await;
            let text = answer.to_string();
            assert!(!text.contains(SECRET), "{manifest}: {text}");
            assert!(!read().contains(SECRET), "{manifest}: {text}");
            // Data knows none of the functions.
            if manifest.get("data").is_some() {
                continue;
            }
            let missing = format!("lookups: [{right}]");
            assert!(text.contains(&missing), "{manifest}: {text}");
        }
    }
    // A file that is copied is read as well.
    let copied = json!({"ccm": {"resources": file(json!({"source": place.at("secret")}))}});
    let (_, answer) = apply(copied).await;
    assert!(!read().contains(SECRET), "{answer}");
    let scaffold = json!({"ccm": {"resources": [{"scaffold": [{out.clone():
        {"ensure": "present", "source": place.at("secrets"), "engine": "jet"}}]}]}});
    let (_, answer) = apply(scaffold).await;
    let scaffolded = std::fs::read_to_string(target.path().join("out/a")).unwrap_or_default();
    assert!(!scaffolded.contains(SECRET), "{answer}");
    // What needs no right works.
    let plain = json!({"data": {"x": "hello"},
        "ccm": {"resources": file(json!({"content": "{{ Data.x }} {{ lookup('data.x') }}"}))}});
    let (code, answer) = apply(plain).await;
    assert_eq!((code, read().as_str()), (200, "hello hello"), "{answer}");
    running.stop().await;
}

#[tokio::test]
async fn a_diff_shows_no_file_that_may_not_be_read() {
    let place = Place::new().await;
    let weak = Signer::generate();
    let policy = "{verbs: [ensure], types: [file], noop_only: true}";
    let signers = [(&weak, "weak", Some(policy))];
    let running = place.start(&trusting_all(&signers, place.dir.path())).await;
    let properties = json!({"name": place.at("secret"), "ensure": "present", "content": "x",
        "owner": "root", "group": "root", "mode": "0644"});
    let headers = Headers::new().with(NOOP, "true").unwrap();
    let headers = headers.with(DIFF, "true").unwrap();
    let body = ensure_body("file", &properties);
    let (code, answer) = answer_to(&place.client, &weak, Verb::Ensure, headers, &body).await;
    assert_eq!(code, 200, "{answer}");
    assert!(!answer.to_string().contains(SECRET), "{answer}");
    running.stop().await;
}

#[tokio::test]
async fn what_a_rule_grants_can_be_read_and_a_signer_without_a_policy_reads_all() {
    let place = Place::new().await;
    let (ops, weak) = (Signer::generate(), Signer::generate());
    let target = tempfile::tempdir().unwrap();
    let out = target.path().join("out").display().to_string();
    let policy = format!(
        "- {{verbs: [ensure], types: [file], names: ['{out}'], lookups: [files, kv, environment]}}"
    );
    let signers = [(&ops, "ops", None), (&weak, "weak", Some(policy.as_str()))];
    let running = place.start(&trusting_all(&signers, place.dir.path())).await;
    for (signer, who) in [(&ops, "ops"), (&weak, "weak")] {
        for (reader, right) in place.readers() {
            if right == "registrations" {
                continue;
            }
            let _ = std::fs::remove_file(&out);
            let properties = json!({"name": out, "ensure": "present", "owner": "root",
                "group": "root", "mode": "0600", "content": format!("{{{{ {reader} }}}}")});
            let body = ensure_body("file", &properties);
            let (_, answer) =
                answer_to(&place.client, signer, Verb::Ensure, Headers::new(), &body).await;
            let content = std::fs::read_to_string(&out).unwrap_or_default();
            assert_eq!(content, SECRET, "{who}: {reader}: {answer}");
        }
    }
    running.stop().await;
}

#[tokio::test]
async fn a_bundle_reads_its_own_files_and_no_others() {
    let place = Place::new().await;
    let weak = Signer::generate();
    let target = tempfile::tempdir().unwrap();
    let (policy, out) = (
        format!(
            "{{verbs: [apply], types: [file], names: ['{}/*']}}",
            target.path().display()
        ),
        |name: &str| target.path().join(name).display().to_string(),
    );
    let signers = [(&weak, "weak", Some(policy.as_str()))];
    let running = place.start(&trusting_all(&signers, place.dir.path())).await;
    let bundle = tempfile::tempdir().unwrap();
    let at = |name: &str| bundle.path().join(name);
    std::fs::write(at("own"), "own").unwrap();
    let file = |more: Value| {
        let mut properties = json!({"ensure": "present", "owner": "root", "group": "root",
            "mode": "0644"});
        for (key, value) in more.as_object().unwrap() {
            properties[key] = value.clone();
        }
        properties
    };
    let manifest = json!({"ccm": {"resources": [
        {"file": [{out("read"): file(json!({"content": "{{ readFile('own') }}"}))}]},
        {"file": [{out("copied"): file(json!({"source": "own"}))}]},
        {"file": [{out("stolen"): file(json!({"source": place.at("secret")}))}]},
    ]}});
    std::fs::write(at("manifest.yaml"), manifest.to_string()).unwrap();
    let archive = place.at("site.tar.gz");
    let packed = std::process::Command::new("tar")
        .args(["-czf", &archive, "-C"])
        .arg(bundle.path())
        .args(["manifest.yaml", "own"])
        .status();
    assert!(packed.unwrap().success());
    let body = json!({"protocol": "io.choria.ccm.v1.manifest.apply.request",
        "source": archive, "wait": true});
    let (_, answer) = answer_to(&place.client, &weak, Verb::Apply, Headers::new(), &body).await;
    for (name, expected) in [
        ("read", Some("own")),
        ("copied", Some("own")),
        ("stolen", None),
    ] {
        let content = std::fs::read_to_string(out(name)).ok();
        assert_eq!(content.as_deref(), expected, "{name}: {answer}");
    }
    assert!(answer.to_string().contains("lookups: [files]"), "{answer}");
    running.stop().await;
}

#[tokio::test]
async fn encrypted_values_are_opened_only_for_a_signer_with_the_grant() {
    let place = Place::new().await;
    let (weak, granted) = (Signer::generate(), Signer::generate());
    let target = tempfile::tempdir().unwrap();
    let policy = |lookups: &str| {
        let names = target.path().display();
        format!("{{verbs: [apply], types: [file], names: ['{names}/**'], lookups: [{lookups}]}}")
    };
    let (without, with) = (policy("kv"), policy("kv, secrets"));
    let config = trusting_all(
        &[
            (&weak, "weak", Some(without.as_str())),
            (&granted, "granted", Some(with.as_str())),
        ],
        place.dir.path(),
    );
    let running = place.start(&config).await;
    let keys = secret_key::load(&secret_key::path_in(&config.state_dir)).unwrap();
    let recipient = secret_key::recipient(&keys.unwrap()).unwrap();
    let sealed = secrets::seal(SECRET, SealedType::Str, &[recipient]).unwrap();
    let jetstream = place.server.jetstream().await;
    let bucket = jetstream.get_key_value("vault").await.unwrap();
    bucket.put("sealed", sealed.clone().into()).await.unwrap();
    let out = target.path().join("out").display().to_string();
    for (data, content) in [
        (json!({"p": sealed}), "{{ Data.p }}"),
        (json!({}), "{{ kvGet('vault', 'sealed') }}"),
    ] {
        let properties = json!({"ensure": "present", "owner": "root", "group": "root",
            "mode": "0600", "content": content});
        let body = json!({"protocol": "io.choria.ccm.v1.manifest.apply.request", "wait": true,
            "manifest": {"data": data, "ccm": {"resources": [{"file": [{out.clone(): properties}]}]}}});
        let apply = async |signer: &Signer| {
            let headers = Headers::new();
            let (_, answer) = answer_to(&place.client, signer, Verb::Apply, headers, &body).await;
            answer.to_string()
        };
        let answer = apply(&weak).await;
        assert!(answer.contains("lookups: [secrets]"), "{content}: {answer}");
        assert!(!answer.contains(SECRET), "{content}: {answer}");
        assert!(!std::path::Path::new(&out).exists(), "{content}: {answer}");
        let answer = apply(&granted).await;
        assert!(!answer.contains(SECRET), "{content}: {answer}");
        assert_eq!(std::fs::read_to_string(&out).unwrap(), SECRET, "{answer}");
        std::fs::remove_file(&out).unwrap();
    }
    running.stop().await;
}
