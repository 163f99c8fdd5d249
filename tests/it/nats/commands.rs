//! The command line over NATS: values and manifests that another client put there, fleets that are
//! set up, and servers that are not there.

use async_nats::jetstream::stream;

use crate::support::nats::{Cluster, NatsServer, python};
use crate::support::{TestEnv, pack};

/// A server with a bucket and an object store, filled by nats-py.
fn world() -> (TestEnv, NatsServer) {
    let (mut env, server) = (TestEnv::new(), NatsServer::start());
    let manifest = "data:\n  color: red\nccm:\n  resources:\n  - exec:\n    - \"/bin/echo {{ Data.color }} {{ kvGet('CONFIG', 'motd') }}\":\n        logoutput: true\n";
    let bundle = pack::tgz(&[("site/manifest.yaml", manifest)]);
    let bundle = env.write("bundle.tgz", bundle);
    python("stores.py", &[&server.url(), &bundle]);
    env.set("NATS_URL", &server.url());
    // No context of this machine matters.
    env.set("XDG_CONFIG_HOME", &env.at("config"));
    (env, server)
}

#[test]
fn a_template_reads_a_key() {
    let (env, _server) = world();
    env.write("a.txt", "{{ kvGet('CONFIG', 'motd') }}");
    assert_eq!(
        env.ccm(&["template", "a.txt"]).ok(),
        "hello from another client"
    );
    for key in ["none", "gone"] {
        env.write("a.txt", format!("{{{{ kvGet('CONFIG', '{key}') }}}}"));
        let error = env.ccm(&["template", "a.txt"]).error(1);
        let text = format!("key {key} not found in bucket CONFIG");
        assert!(error.contains(&text), "{error}");
    }
    env.write("a.txt", "{{ kvGet('NONE', 'x') }}");
    let error = env.ccm(&["template", "a.txt"]).error(1);
    assert!(error.contains("bucket NONE does not exist"), "{error}");
}

#[test]
fn a_key_holds_hierarchical_data() {
    let (env, _server) = world();
    let found = env.ccm(&["hiera", "parse", "kv://CONFIG/site.data"]).json();
    assert_eq!(found["color"], "blue");
    let error = env.ccm(&["hiera", "parse", "kv://CONFIG/gone"]).error(1);
    assert_eq!(
        error,
        "ccm: error: failed to fetch hiera data from kv CONFIG#gone: key not found\n"
    );
}

#[test]
fn a_manifest_comes_from_an_object_store() {
    let (env, _server) = world();
    let source = "obj://MANIFESTS/sites/web.tgz";
    let output = env
        .ccm(&["apply", source, "--hiera", "kv://CONFIG/site.data"])
        .ok();
    assert!(
        output.contains("Using manifest from Object Store in temporary directory"),
        "{output}"
    );
    assert!(
        output.contains("bucket=MANIFESTS file=sites/web.tgz"),
        "{output}"
    );
    assert!(
        output.contains("blue hello from another client"),
        "{output}"
    );
    let error = env.ccm(&["apply", "obj://MANIFESTS/none.tgz"]).error(1);
    assert_eq!(
        error,
        "ccm: error: object none.tgz does not exist in bucket MANIFESTS\n"
    );
}

#[test]
fn a_server_that_is_away_is_one_clear_error() {
    let env = TestEnv::new();
    let server = "nats://ann:hunter2@127.0.0.1:1";
    let expected = "can't connect to NATS at nats://127.0.0.1:1: connection refused\n";
    for args in [
        ["apply", "obj://B/x.tgz"].as_slice(),
        &["hiera", "parse", "kv://B/k"],
        &["fleet", "init"],
    ] {
        let args = [args, &["--server", server]].concat();
        let error = env.ccm(&args).error(1);
        assert!(error.ends_with(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_run_that_needs_no_server_connects_to_none() {
    let mut env = TestEnv::new();
    env.set("NATS_URL", "nats://127.0.0.1:1");
    env.set("NATS_CONTEXT", "none");
    env.write("a.txt", "{{ 1 + 1 }}");
    assert_eq!(env.ccm(&["template", "a.txt"]).ok(), "2");
}

#[test]
fn a_context_says_where_the_server_is_and_who_we_are() {
    let server = NatsServer::with("authorization { user: ann, password: hunter2 }");
    let mut env = TestEnv::new();
    env.set("XDG_CONFIG_HOME", &env.at("config"));
    let context = |password: &str| {
        format!(
            r#"{{"url":"{}","user":"ann","password":"{password}"}}"#,
            server.url()
        )
    };
    env.write("config/nats/context/lab.json", context("hunter2"));
    let error = env.ccm(&["fleet", "init", "--context", "none"]).error(2);
    assert!(error.contains("unknown context \"none\""), "{error}");
    assert!(
        env.ccm(&["fleet", "init", "--context", "lab"])
            .ok()
            .contains("created")
    );
    env.write("config/nats/context.txt", "lab");
    assert!(env.ccm(&["fleet", "init"]).ok().contains("unchanged"));
    env.write("config/nats/context/CCM.json", context("wrong"));
    let error = env.ccm(&["fleet", "init"]).error(1);
    assert!(error.contains("authorization violation"), "{error}");
}

const CREATED: &str = "\
stream CCM_EVENTS created
bucket CCM_NODES created
bucket CCM_FACTS created
bucket CCM_DESIRED created
bucket CCM_REPORTED created
bucket CCM_ROLLOUTS created
bucket CCM_LABELS created
bucket CCM_ENROLL created
bucket CCM_TRUST created
object store CCM_MANIFESTS created
";

#[test]
fn a_fleet_is_set_up_once_and_brought_up_to_date() {
    let server = NatsServer::start();
    let mut env = TestEnv::new();
    env.set("NATS_URL", &server.url());
    let init = |more: &[&str]| env.ccm(&[&["fleet", "init"], more].concat()).ok();
    assert_eq!(init(&[]), CREATED);
    let unchanged = CREATED.replace("created", "unchanged");
    assert_eq!(init(&[]), unchanged);
    let output = init(&["--presence-ttl", "30s"]);
    assert_eq!(
        output,
        unchanged.replace("NODES unchanged", "NODES updated")
    );
    assert_eq!(init(&[]), unchanged);
    let output = init(&["--prefix", "acme", "--events-max-age", "1h"]);
    assert_eq!(
        output,
        unchanged.replace("EVENTS unchanged", "EVENTS updated")
    );
    assert_eq!(init(&["--prefix", "acme"]), unchanged);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn streams_and_buckets_have_a_description_and_existing_ones_get_it() {
    let server = NatsServer::start();
    let mut env = TestEnv::new();
    env.set("NATS_URL", &server.url());
    let jetstream = server.jetstream().await;
    let existing = |name: &str, subject: &str, description: Option<&str>| stream::Config {
        name: name.into(),
        subjects: vec![subject.into()],
        description: description.map(str::to_owned),
        metadata: [("team".to_owned(), "web".to_owned())].into(),
        ..stream::Config::default()
    };
    for config in [
        existing("KV_CCM_LABELS", "$KV.CCM_LABELS.>", None),
        existing("KV_CCM_FACTS", "$KV.CCM_FACTS.>", Some("of our site")),
    ] {
        jetstream.create_stream(config).await.unwrap();
    }
    let output = env.ccm(&["fleet", "init"]).ok();
    assert!(output.contains("bucket CCM_LABELS updated\n"), "{output}");
    for line in CREATED.lines() {
        let (kind, name) = line.trim_end_matches(" created").rsplit_once(' ').unwrap();
        let stream = match kind {
            "bucket" => format!("KV_{name}"),
            "object store" => format!("OBJ_{name}"),
            _ => name.to_owned(),
        };
        let stream = jetstream.get_stream(stream).await.unwrap();
        let config = &stream.cached_info().config;
        let description = config.description.as_deref().unwrap_or_default();
        match name {
            "CCM_FACTS" => assert_eq!(description, "of our site"),
            _ => assert!(description.starts_with("ccm: "), "{name}: {description}"),
        }
        assert_eq!(config.metadata["ccm.managed-by"], "ccm fleet init");
        if matches!(name, "CCM_FACTS" | "CCM_LABELS") {
            assert_eq!(config.metadata["team"], "web");
        }
    }
    let output = env.ccm(&["fleet", "init"]).ok();
    assert!(!output.contains("updated"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_on_a_cluster_keeps_its_data_three_times() {
    let cluster = Cluster::start();
    cluster.client().await;
    let mut env = TestEnv::new();
    env.set("NATS_URL", &cluster.url());
    let output = env.ccm(&["fleet", "init", "--replicas", "3"]).ok();
    assert_eq!(output, CREATED);
    let jetstream = cluster.servers[0].jetstream().await;
    let stream = jetstream.get_stream("CCM_EVENTS").await.unwrap();
    let config = &stream.cached_info().config;
    assert_eq!(config.num_replicas, 3);
    assert_eq!(config.subjects, ["ccm.v1.*.event.>"]);
    assert!(config.duplicate_window >= std::time::Duration::from_secs(3600));
    let error = env.ccm(&["fleet", "init", "--replicas", "9"]).error(2);
    assert!(error.contains("9"), "{error}");
}

#[tokio::test]
async fn what_expires_is_seen_to_leave() {
    let server = NatsServer::start();
    let mut env = TestEnv::new();
    env.set("NATS_URL", &server.url());
    env.ccm(&["fleet", "init", "--presence-ttl", "1s"]).ok();
    let connection = server.client().await;
    let nodes = connection.bucket("CCM_NODES").await.unwrap();
    let mut watch = nodes.watch("default.*").unwrap();
    nodes.put("default.web1", "{}".into()).await.unwrap();
    let left = async {
        loop {
            if let ccm_nats::kv::Change::Removed { key, .. } = watch.next().await.unwrap() {
                return key;
            }
        }
    };
    let left = tokio::time::timeout(crate::support::poll::LIMIT, left).await;
    assert_eq!(left.unwrap(), "default.web1");
    assert!(nodes.entries("default.*").await.unwrap().is_empty());
}
