use super::*;
use ccm_core::model::node::NodeName;

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse_on(text, || Ok(node("web1.example.net")))
}

fn good(text: &str) -> Config {
    parse(text).unwrap()
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn an_empty_file_means_the_defaults() {
    let config = good("");
    assert_eq!(config, Config::for_node(node("web1.example.net")));
    assert_eq!(config.interval, Duration::from_secs(300));
    assert_eq!(config.health_check_interval, None);
    assert_eq!(config.cache_dir, Path::new("/etc/choria/ccm/source"));
    assert_eq!(config.subject_prefix, "ccm.v1");
    assert_eq!(config.collective.as_str(), "default");
    assert_eq!(config.monitor, None);
    assert!(config.manifests.is_empty() && config.splay && !config.noop);
}

#[test]
fn upstream_s_keys_mean_what_they_mean_upstream() {
    let config = good(
        "interval: 1h30m
health_check_interval: 1m
manifests:
  - /etc/choria/ccm/manifests/base.yaml
  - obj://ccm-manifests/app.tar.gz
  - https://ann:pw@example.net/site.tgz
external_data_url: kv://data/common
cache_dir: /var/cache/ccm
monitor_port: 9100
log_level: debug
nats_context: SITE
registration: jetstream
",
    );
    assert_eq!(config.interval, Duration::from_secs(5400));
    assert_eq!(config.health_check_interval, Some(Duration::from_secs(60)));
    let shown: Vec<String> = config.manifests.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "/etc/choria/ccm/manifests/base.yaml",
            "obj://ccm-manifests/app.tar.gz",
            "https://REDACTED@example.net/site.tgz"
        ]
    );
    let data = hiera::Source::Kv {
        bucket: "data".into(),
        key: "common".into(),
    };
    assert_eq!(config.external_data_url, Some(data));
    assert_eq!(config.cache_dir, Path::new("/var/cache/ccm"));
    let here = Listen {
        address: Ipv4Addr::LOCALHOST.into(),
        port: 9100,
    };
    assert_eq!(config.monitor, Some(here));
    assert_eq!(config.log_level, Level::Debug);
    assert_eq!(config.nats_context.as_deref(), Some("SITE"));
    assert_eq!(config.registration, Some(Registration::JetStream));
}

#[test]
fn upstream_s_keys_may_be_empty_where_they_may_upstream() {
    let config = good(
        "interval: ''\nhealth_check_interval: ''\nexternal_data_url: ''\nnats_context: ''
registration: ''\nmanifests:\nmonitor_port: 0\n",
    );
    assert_eq!(config, good(""));
}

#[test]
fn our_keys_are_read() {
    let config = good(
        "identity: db1.example.net
collective: eu
groups: [db, primary, db]
subject_prefix: site.ccm
state_dir: /srv/state
spool: {max_size: 1GiB}
servers: nats://a:4222, tls://u:p@b:4222
splay: false
beat: 10s
facts_interval: 1d
queue: 0
run_timeout: 20m
noop: true
cfengine_module: apt_get
monitor_port: 9100
monitor_address: 127.0.0.1
registration_stream: SERVICES
registration_watch: true
",
    );
    assert_eq!(config.identity.as_str(), "db1.example.net");
    assert_eq!(config.collective.as_str(), "eu");
    let groups: Vec<&str> = config.groups.iter().map(Token::as_str).collect();
    assert_eq!(groups, ["db", "primary"]);
    assert_eq!(config.subject_prefix, "site.ccm");
    assert_eq!(config.spool.directory, Path::new("/srv/state/spool"));
    assert_eq!(config.spool.max_size, 1 << 30);
    let servers = config.server_list().unwrap();
    assert_eq!(servers.reveal(), "nats://a:4222,tls://u:p@b:4222");
    assert!(!config.splay && config.noop);
    assert_eq!(config.beat, Duration::from_secs(10));
    assert_eq!(config.facts_interval, Duration::from_secs(24 * 3600));
    assert_eq!(config.queue, 0);
    assert_eq!(config.run_timeout, Duration::from_secs(1200));
    assert_eq!(config.cfengine_module.as_deref(), Some("apt_get"));
    let listen = config.monitor.unwrap();
    assert_eq!(listen.address, IpAddr::from([127, 0, 0, 1]));
    assert_eq!(config.registration_stream, "SERVICES");
    assert!(config.registration_watch);
}

#[test]
fn the_spool_directory_can_be_set() {
    let config = good("spool:\n  directory: /srv/spool\n  max_size: 1048576\n");
    assert_eq!(config.spool.directory, Path::new("/srv/spool"));
    assert_eq!(config.spool.max_size, 1 << 20);
}

#[test]
fn servers_come_as_a_list_too() {
    let config = good("servers:\n  - nats://a:4222\n  - b:4222\n");
    assert_eq!(
        config.server_list().unwrap().reveal(),
        "nats://a:4222,b:4222"
    );
    assert_eq!(good("").server_list(), None);
}

#[test]
fn an_unknown_key_is_refused_with_its_position_and_the_nearest_one() {
    assert_eq!(
        error("noop: true\nintervall: 5m\n"),
        "line 2 column 1: unknown key \"intervall\", did you mean \"interval\"?"
    );
    assert_eq!(
        error("spool:\n  maxsize: 5\n"),
        "line 2 column 3: unknown key \"maxsize\", did you mean \"max_size\"?"
    );
}

#[test]
fn each_problem_names_its_key_and_what_to_do() {
    for (text, message) in [
        (
            "interval: 29s",
            "key \"interval\": 29s is too short: must be at least 30s",
        ),
        (
            "interval: 5",
            "key \"interval\": invalid duration \"5\": give numbers with units, such as 90s, 5m, 1h30m or 1d",
        ),
        (
            "health_check_interval: -1s",
            "key \"health_check_interval\": \"-1s\" is negative",
        ),
        (
            "cache_dir: ''",
            "key \"cache_dir\": must not be empty: give a value, or leave the key out",
        ),
        (
            "state_dir: state",
            "key \"state_dir\": expected a path that begins with /",
        ),
        (
            "log_level: loud",
            "key \"log_level\": \"loud\" is not one of debug, info, warn, error",
        ),
        (
            "log_level: ''",
            "key \"log_level\": \"\" is not one of debug, info, warn, error",
        ),
        (
            "registration: udp",
            "key \"registration\": \"udp\" is not one of nats, jetstream",
        ),
        (
            "monitor_port: 70000",
            "key \"monitor_port\": expected a whole number from 0 to 65535",
        ),
        (
            "monitor_address: lo",
            "key \"monitor_address\": expected the IP address of an interface, such as 127.0.0.1",
        ),
        (
            "identity: Web_1",
            "key \"identity\": invalid identity \"Web_1\": use lower case letters, digits, '.' and '-'",
        ),
        (
            "groups: web",
            "key \"groups\": expected a list, found string",
        ),
        (
            "groups: [a.b]",
            "key \"groups\": invalid name \"a.b\": use letters, digits, '_' and '-'",
        ),
        (
            "subject_prefix: ccm..v1",
            "key \"subject_prefix\": use tokens of letters, digits, '_' and '-', separated by dots",
        ),
        ("noop: 1", "key \"noop\": expected true or false"),
        (
            "queue: -1",
            "key \"queue\": expected a whole number from 0 to 4096",
        ),
        (
            "spool: 5",
            "key \"spool\": expected keys and values, found integer",
        ),
        (
            "spool: {max_size: 5}",
            "key \"spool.max_size\": must be at least 1048576 bytes",
        ),
        (
            "spool: {max_size: 5 parsecs}",
            "key \"spool.max_size\": \"5 parsecs\" is not a size: give a number of bytes, or one with KiB, MiB or GiB",
        ),
        (
            "spool: {max_size: 99999999999TiB}",
            "key \"spool.max_size\": \"99999999999TiB\" is not a size: give a number of bytes, or one with KiB, MiB or GiB",
        ),
        (
            "external_data_url: git://a/b",
            "key \"external_data_url\": expected a path, or a URL with file://, kv://, obj://, http:// or https://",
        ),
        (
            "external_data_url: obj://a",
            "key \"external_data_url\": expected a path, or a URL with file://, kv://, obj://, http:// or https://",
        ),
        (
            "manifests: [git://a/b]",
            "key \"manifests\": scheme \"git\" is not supported: use a path, file://, obj://, http:// or https://",
        ),
        (
            "manifests: ['obj://bucket']",
            "key \"manifests\": expected obj://BUCKET/KEY",
        ),
        (
            "manifests: ['']",
            "key \"manifests\": a source must not be empty",
        ),
        (
            "manifests: ['http://u:pw@/x']",
            "key \"manifests\": not a usable http URL",
        ),
        (
            "manifests: [{a: b}]",
            "key \"manifests\": expected text, found mapping",
        ),
        (
            "servers: ['http://u:pw@a']",
            "key \"servers\": expected servers such as nats://host:4222 or tls://host:4222",
        ),
        ("just text", "expected keys and values, found string"),
    ] {
        let found = error(text);
        let (position, found) = found.split_once(": ").unwrap();
        assert!(
            position.starts_with("line 1 column "),
            "{position}: {found}"
        );
        assert_eq!(found, message);
    }
}

#[test]
fn all_problems_are_reported_at_once_in_the_order_of_the_file() {
    let text = error("queue: many\nbeat: 0\nnope: 1\ninterval: 1s\n");
    let lines: Vec<&str> = text.lines().map(|line| &line[..6]).collect();
    assert_eq!(lines, ["line 1", "line 2", "line 3", "line 4"], "{text}");
}

#[test]
fn problems_beyond_the_limit_are_counted() {
    let text: String = (0..30).map(|number| format!("zz{number}: 1\n")).collect();
    let text = error(&text);
    assert_eq!(text.lines().count(), MAX_PROBLEMS + 1);
    assert!(text.ends_with("and 10 more problems"), "{text}");
}

#[test]
fn credentials_show_up_in_no_debug_output_and_no_problem() {
    let config = good(
        "servers: [nats://ann:hunter2@a]\nmanifests: ['https://ann:hunter2@b/c']
external_data_url: https://ann:hunter2@d/e\n",
    );
    assert!(!format!("{config:?}").contains("hunter2"));
    for text in [
        "servers: [ftp://ann:hunter2@a]",
        "manifests: ['ftp://ann:hunter2@a']",
        "manifests: ['https://ann:hunter2@/a']",
        "external_data_url: ftp://ann:hunter2@a",
        "trust: {signers: [{name: a, key: SUhunter2}]}",
    ] {
        let found = error(text);
        assert!(!found.contains("hunter2"), "{found}");
    }
}

#[test]
fn a_file_url_is_a_path() {
    let config = good("manifests: ['file:///srv/a%20b']\nexternal_data_url: file:///srv/data.yaml");
    assert_eq!(
        config.manifests,
        [ManifestLocation::Path("/srv/a b".into())]
    );
    let data = hiera::Source::File("/srv/data.yaml".into());
    assert_eq!(config.external_data_url, Some(data));
}

#[test]
fn the_splay_of_a_node_is_always_the_same_and_within_the_interval() {
    let config = Config::for_node(node("web1.example.net"));
    let offset = config.splay_offset();
    assert_eq!(offset, config.clone().splay_offset());
    assert!(offset < config.interval);
    let other = Config::for_node(node("web2.example.net"));
    assert_ne!(other.splay_offset(), offset);
}

#[test]
fn without_splay_a_node_does_not_wait() {
    assert_eq!(good("splay: false").splay_offset(), Duration::ZERO);
    let never = Config {
        interval: Duration::ZERO,
        ..Config::for_node(node("a"))
    };
    assert_eq!(never.splay_offset(), Duration::ZERO);
}

#[test]
fn a_node_without_a_usable_name_is_an_error() {
    let unknown = || Err(problem("no name"));
    assert!(Config::parse_on("", unknown).is_err());
    assert!(Config::parse_on("identity: a", unknown).is_ok());
}

fn key() -> String {
    nkeys::KeyPair::new_user().public_key()
}

#[test]
fn trust_lists_signers() {
    let key = key();
    let text = format!(
        "trust:\n  clock_skew: 30s\n  signers:\n    - {{key: {key}, name: ops, policy: {{verbs: [ping]}}}}\n"
    );
    let trust = good(&text).trust.unwrap();
    assert!(trust.required);
    assert_eq!(trust.clock_skew, Duration::from_secs(30));
    assert_eq!(trust.signers[0].key, key);
    assert_eq!(trust.signers[0].name, "ops");
    assert!(trust.signers[0].policy.is_some());
    assert_eq!(good("").trust, None);
}

#[test]
fn sources_must_be_signed_if_requests_must_unless_configured() {
    let key = key();
    let sources = |lines: &str| {
        let text = format!("trust:\n  {lines}signers:\n    - {{key: {key}, name: ops}}\n");
        good(&text).trust.unwrap().sources
    };
    assert!(sources(""));
    assert!(!sources("required: false\n  "));
    assert!(sources("required: false\n  sources: required\n  "));
    assert!(!sources("sources: off\n  "));
}

#[test]
fn remote_data_needs_a_signer_without_a_policy() {
    let key = key();
    let with = |data: &str, policy: &str, sources: &str| {
        parse(&format!(
            "external_data_url: {data}\n\
             trust: {{sources: {sources}, signers: [{{key: {key}, name: ops{policy}}}]}}\n"
        ))
    };
    let policy = ", policy: [{types: [file]}]";
    let error = with("kv://DATA/site", policy, "required").unwrap_err();
    let part = "key \"trust\": no signer for external_data_url";
    assert!(error.to_string().contains(part), "{error}");
    assert!(with("kv://DATA/site", "", "required").is_ok());
    assert!(with("kv://DATA/site", policy, "off").is_ok());
    assert!(with("/srv/data.yaml", policy, "required").is_ok());
}

#[test]
fn trust_without_valid_signers_is_refused() {
    let key = key();
    for (text, message) in [
        (
            "trust: {required: true}".to_owned(),
            "no signer for requests: list signers, or set required: false",
        ),
        (
            "trust: {signers: [{name: a}]}".to_owned(),
            "key \"trust.signers.0.key\" is required",
        ),
        (
            "trust: {signers: [{name: a, key: Uxyz}]}".to_owned(),
            "key \"trust.signers.0.key\": expected a public nkey, such as one that begins with U",
        ),
        (
            format!("trust: {{signers: [{{name: a, key: {key}}}, {{name: b, key: {key}}}]}}"),
            "key \"trust.signers.1\": another signer has the same key",
        ),
    ] {
        let found = error(&text);
        assert!(found.contains(message), "{found}");
    }
    assert!(parse("trust: {required: false}").is_ok());
}

/// Writes a file with a mode.
fn file(directory: &Path, text: &str, mode: u32) -> PathBuf {
    let path = directory.join("agent.yaml");
    let attributes = files::Attributes {
        mode: Some(mode),
        ..files::Attributes::default()
    };
    files::store(
        &path,
        files::Content::Bytes(text.as_bytes()),
        &attributes,
        files::Durability::Cached,
    )
    .unwrap();
    path
}

#[test]
fn a_file_that_others_may_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "identity: a\n", 0o646);
    let error = Config::load(&path).unwrap_err().to_string();
    assert!(error.contains("run chmod go-w "), "{error}");
    let path = file(directory.path(), "identity: a\n", 0o640);
    assert_eq!(Config::load(&path).unwrap().identity.as_str(), "a");
}

#[test]
fn a_problem_in_a_file_names_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), "identity: a\nnope: 1\n", 0o600);
    let error = Config::load(&path).unwrap_err().to_string();
    let start = format!("{}: line 2 column 1: unknown key", path.display());
    assert!(error.starts_with(&start), "{error}");
    let gone = Config::load(&directory.path().join("gone"))
        .unwrap_err()
        .to_string();
    assert!(gone.contains("no such file or directory"), "{gone}");
}

#[test]
fn a_file_that_is_too_long_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path(), &"#".repeat((1 << 20) + 1), 0o600);
    let error = Config::load(&path).unwrap_err().to_string();
    assert!(error.contains("is larger than 1048576 bytes"), "{error}");
}

#[test]
fn choria_events_are_off_by_default() {
    let choria = good("").choria;
    assert!(!choria.events);
    assert_eq!(choria.component.as_str(), "ccm");
    assert_eq!(choria.machine, "ccm");
    assert_eq!(choria.collective.as_str(), "mcollective");
    assert_eq!(choria.alive_interval, Duration::from_secs(1800));
    let choria = good("choria: {events: true, component: cfg, alive_interval: 1m}").choria;
    assert!(choria.events);
    assert_eq!(choria.component.as_str(), "cfg");
    assert_eq!(choria.alive_interval, Duration::from_secs(60));
}

#[test]
fn a_governor_is_read_with_its_timeout() {
    let claim = good("governor: {name: deploys, timeout: 1m}")
        .governor
        .unwrap();
    assert_eq!(claim.name.as_str(), "deploys");
    assert_eq!(claim.timeout.duration(), Duration::from_secs(60));
    assert_eq!(good("governor:").governor, None);
}

#[test]
fn problems_of_choria_keys_have_a_position() {
    for (text, wanted) in [
        (
            "choria: {event: true}",
            "line 1 column 10: unknown key \"event\", did you mean \"events\"?",
        ),
        ("choria: {component: a.b}", "key \"choria.component\""),
        ("choria: {alive_interval: 1ms}", "must be at least 1s"),
        (
            "governor: {nmae: x}",
            "key \"governor\": unknown property \"nmae\", did you mean \"name\"?",
        ),
        ("governor: {name: a b}", "invalid governor name \"a b\""),
        ("governor: {timeout: 1m}", "missing field `name`"),
    ] {
        let found = error(text);
        assert!(found.contains(wanted), "{text}: {found}");
    }
}

const EXAMPLE: &str = include_str!("../../../../packaging/agent.yaml");

#[test]
fn the_example_file_is_valid() {
    Config::parse(EXAMPLE).unwrap();
}

#[test]
fn the_example_file_explains_every_key() {
    let unknown = error("zzqq: 1");
    let (_, known) = unknown.split_once("expected one of ").unwrap();
    for key in known.split(", ") {
        let shown = [format!("\n{key}:"), format!("\n#{key}:")];
        let found = shown.iter().any(|line| EXAMPLE.contains(line.as_str()));
        assert!(found, "{key} is not in packaging/agent.yaml");
    }
}

#[test]
fn commented_examples_are_valid_too() {
    // Prose has one space after the comment mark; commented-out keys have none, or a deeper indent.
    let is_prose = |text: &str| text.starts_with(' ') && !text.starts_with("  ");
    let mut given = String::new();
    for line in EXAMPLE.lines() {
        let line = line.strip_prefix('#').unwrap_or(line);
        if !is_prose(line) {
            given.push_str(line);
            given.push('\n');
        }
    }
    let config = good(&given);
    assert_eq!(config.trust.unwrap().signers.len(), 2);
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "(?s).{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_value_of_any_key_panics(value in "[-+a-zA-Z0-9:/@%., \\[\\]{}']{0,40}") {
        let unknown = error("zzqq: 1");
        let (_, known) = unknown.split_once("expected one of ").unwrap();
        for key in known.split(", ") {
            let _ = parse(&format!("{key}: {value}"));
        }
    }
}

#[test]
fn upstream_s_packaged_file_is_read_unchanged() {
    let config = good(include_str!("../../../../tests/data/agent/upstream.yaml"));
    assert_eq!(config.health_check_interval, Some(Duration::from_secs(60)));
    let data = hiera::Source::Object {
        bucket: "ccm-data".into(),
        name: "common".into(),
    };
    assert_eq!(config.external_data_url, Some(data));
    assert_eq!(config.manifests.len(), 2);
    assert_eq!(config.monitor, None);
    assert_eq!(config.nats_context.as_deref(), Some("CCM"));
}
