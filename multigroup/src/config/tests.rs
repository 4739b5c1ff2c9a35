use toml::Table;

use super::*;

/// The file of the contract, with its optional keys.
const WHOLE: &str = r#"
cluster = "dev"
cluster_id = "0123456789abcdef0123456789abcdef"
node = 1
data_dir = "node-1/data"
groups = 1500
[listen]
peer = "127.0.0.1:7101"
client = "127.0.0.1:7201"
admin = "127.0.0.1:7301"
[peers]
1 = "127.0.0.1:7101"
2 = "127.0.0.1:7102"
3 = "127.0.0.1:7103"
[tls]
ca = "ca/ca.pem"
cert = "node-1/cert.pem"
key = "node-1/key.pem"
crl = "ca/crl.pem"
[transport]
control_window_frames = 16
bulk_window_bytes = "4MiB"
peer_budget_bytes = "64MiB"
node_budget_bytes = "256MiB"
reply_timeout = "3s"
dialback_timeout = "2s"
[raft]
heartbeat_interval = "100ms"
election_timeout = "1s"
campaign_rate = 500
[host]
shards = 2
[commit_wait]
enabled = true
max_outstanding = 1024
workers = 8
policy = "quorum"
first_ack_max = "10s"
lag_percent = 50
rest_min = "1s"
lease = "500ms"
demote_penalty = "10s"
catchup_window = "40MB"
dedup_window = "600s"
[log]
segment_bytes = "64MiB"
sync = true
[archive]
url = "file:///tmp/archive"
interval = "1s"
max_lag_bytes = "256MiB"
on_lag = "delay"
[client]
tls = false
"#;

fn raw() -> RawConfig {
    RawConfig::from_toml(WHOLE).unwrap()
}

/// The fault of the whole file with some keys set otherwise.
fn fault_with(sets: &[&str]) -> String {
    let mut raw = raw();
    for set in sets {
        if let Err(error) = parse_config_set(set).and_then(|set| set.apply_to(&mut raw)) {
            return error.to_string();
        }
    }
    Config::try_from(raw).unwrap_err().to_string()
}

#[test]
fn the_contract_s_file_is_sound_and_its_values_are_the_defaults() {
    let config = Config::try_from(raw()).unwrap();
    assert_eq!((config.node(), config.space().groups()), (1, 1500));
    assert_eq!(config.listen_client().to_string(), "127.0.0.1:7201");
    assert_eq!(config.peers()[&3].port(), 7103);
    assert_eq!(
        (config.policy(), config.on_lag()),
        (Policy::Quorum, OnLag::Delay)
    );
    assert_eq!(config.dedup_window_ms(), 600_000);
    let required = &WHOLE[..WHOLE.find("[transport]").unwrap()];
    let mut bare = RawConfig::from_toml(required).unwrap();
    assert_eq!(bare.archive, None);
    bare.archive = Some(RawArchive::at("file:///tmp/archive".to_owned()));
    bare.host.shards = 2;
    assert_eq!(bare, raw());
}

#[test]
fn what_is_written_reads_as_the_same() {
    let mut bare = raw();
    (bare.archive, bare.tls.crl) = (None, None);
    for raw in [raw(), bare] {
        assert_eq!(RawConfig::from_toml(&raw.to_toml()).unwrap(), raw);
    }
}

#[test]
fn the_list_of_keys_is_that_of_the_file() {
    let table: Table = toml::from_str(&raw().to_toml()).unwrap();
    let mut found: Vec<String> = Vec::new();
    for (name, value) in table {
        match value.as_table() {
            Some(_) if name == "peers" => {}
            Some(keys) => found.extend(keys.keys().map(|key| format!("{name}.{key}"))),
            None => found.push(name),
        }
    }
    let mut known = keys::KEYS.to_vec();
    known.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, known);
}

/// What slows a node down on purpose is no key of a product.
#[cfg(not(feature = "debug-keys"))]
#[test]
fn keys_for_benches_are_unknown() {
    for key in ["debug_ack_delay", "debug_message_sleep"] {
        let error = parse_config_set(&format!("{key}=1ms")).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
        let text = format!("{key} = \"1ms\"\n{WHOLE}");
        let error = RawConfig::from_toml(&text).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[cfg(feature = "debug-keys")]
#[test]
fn keys_for_benches_are_read_and_bounded() {
    let mut raw = raw();
    for set in ["debug_ack_delay=5ms", "debug_message_sleep=1ms"] {
        parse_config_set(set).unwrap().apply_to(&mut raw).unwrap();
    }
    let raw = Config::try_from(raw).unwrap();
    let ms = Duration::from_millis;
    assert_eq!(raw.raw().debug_ack_delay.0, ms(5));
    assert_eq!(raw.raw().debug_message_sleep.0, ms(1));
    assert!(fault_with(&["debug_ack_delay=2s"]).contains("debug_ack_delay"));
}

#[test]
fn an_unknown_key_is_answered_with_the_nearest() {
    let table = [
        (
            "[raft]\nheartbeat_intervall = 1",
            "raft.heartbeat_intervall",
            "raft.heartbeat_interval",
        ),
        ("group = 1", "group", "groups"),
        (
            "election_timeout = 1",
            "election_timeout",
            "raft.election_timeout",
        ),
        (
            "[commit-wait]\nenabled = true",
            "commit-wait",
            "commit_wait.enabled",
        ),
        ("[log]\nsynced = true", "log.synced", "log.sync"),
    ];
    for (text, key, expected) in table {
        let error = RawConfig::from_toml(text).unwrap_err();
        let ConfigError::UnknownKey { key: k, nearest } = error else {
            panic!("{error:?}")
        };
        assert_eq!(k, key);
        if key != "commit-wait" {
            assert_eq!(nearest, Some(expected));
        }
    }
    let far = RawConfig::from_toml("colour = 1").unwrap_err().to_string();
    assert!(
        far.contains("`colour`") && !far.contains("did you mean"),
        "{far}"
    );
}

#[test]
fn a_missing_key_and_a_wrong_type_are_named() {
    let error = RawConfig::from_toml("cluster = \"dev\"")
        .unwrap_err()
        .to_string();
    assert!(error.contains("missing field"), "{error}");
    let text = WHOLE.replace("\"100ms\"", "100");
    let error = RawConfig::from_toml(&text).unwrap_err().to_string();
    assert!(
        error.contains("a duration like \"100ms\"") && error.contains("heartbeat"),
        "{error}"
    );
    let text = WHOLE.replace("\"4MiB\"", "\"4 MiB\"");
    let error = RawConfig::from_toml(&text).unwrap_err().to_string();
    assert!(error.contains("a size like \"64MiB\""), "{error}");
}

#[test]
fn contradictions_name_both_keys_and_both_values() {
    let table: &[(&[&str], &str)] = &[
        (
            &["node=4"],
            "`node` is 4, but `peers` names only 1, 2, 3; correct one of them",
        ),
        (
            &["peers.3=127.0.0.1:7102"],
            "`peers.2` and `peers.3` are both 127.0.0.1:7102",
        ),
        (
            &["listen.admin=127.0.0.1:7201"],
            "`listen.client` and `listen.admin` are both 127.0.0.1:7201",
        ),
        (
            &["listen.client=127.0.0.1:7102"],
            "`peers.2` and `listen.client` are both 127.0.0.1:7102",
        ),
        (
            &["raft.heartbeat_interval=500ms"],
            "`raft.heartbeat_interval` is 500ms, but must be less than half of \
             `raft.election_timeout`, which is 1s",
        ),
        (
            &[
                "transport.reply_timeout=200ms",
                "transport.dialback_timeout=100ms",
            ],
            "`transport.reply_timeout` is 200ms, but must be more than twice \
             `raft.heartbeat_interval`, which is 100ms",
        ),
        (
            &["transport.dialback_timeout=4s"],
            "`transport.dialback_timeout` is 4s, but must not exceed `transport.reply_timeout`, \
             which is 3s",
        ),
        (
            &["commit_wait.lease=1s"],
            "`commit_wait.lease` is 1s, but must be less than `raft.election_timeout`, which is 1s",
        ),
        (
            &["commit_wait.rest_min=11s"],
            "`commit_wait.rest_min` is 11s, but must not exceed `commit_wait.first_ack_max`, \
             which is 10s",
        ),
        (
            &["commit_wait.dedup_window=10s"],
            "`commit_wait.dedup_window` is 10s, but must be more than \
             `commit_wait.first_ack_max`, which is 10s",
        ),
        (
            &["transport.bulk_window_bytes=128MiB"],
            "`transport.bulk_window_bytes` is 128MiB, but must not exceed \
             `transport.peer_budget_bytes`, which is 64MiB",
        ),
        (
            &["transport.peer_budget_bytes=1GiB"],
            "`transport.peer_budget_bytes` is 1GiB, but must not exceed \
             `transport.node_budget_bytes`, which is 256MiB",
        ),
        (
            &["commit_wait.policy=at-least:4"],
            "`commit_wait.policy` asks for 4 acks, but `peers` names 3 nodes",
        ),
        (
            &["groups=3", "host.shards=200"],
            "`host.shards` is 200, but there are only 3 `groups`",
        ),
    ];
    for (sets, text) in table {
        assert_eq!(fault_with(sets), *text);
    }
}

#[test]
fn values_outside_of_their_range_are_named_with_it() {
    let table = [
        ("groups=0", "`groups` is 0, but must be 1 to 65536"),
        ("node=0", "`node` is 0, but must be 1 to 4294967295"),
        (
            "transport.control_window_frames=257",
            "`transport.control_window_frames` is 257, but must be 1 to 256",
        ),
        ("host.shards=0", "`host.shards` is 0, but must be 1 to 256"),
        (
            "raft.election_timeout=0s",
            "`raft.election_timeout` is 0us, but must be 1ms to 3600s",
        ),
        (
            "log.segment_bytes=1KiB",
            "`log.segment_bytes` is 1KiB, but must be 1MiB to 1GiB",
        ),
        ("peers.x=a:1", "`peers.x`: nodes are numbered from 1"),
        ("peers.02=a:1", "`peers.02`: nodes are numbered from 1"),
        (
            "peers.2=nowhere",
            "`peers.2` is `nowhere`, but must be HOST:PORT",
        ),
        (
            "listen.peer=:7101",
            "`listen.peer` is `:7101`, but must be HOST:PORT",
        ),
        (
            "listen.peer=a:70000",
            "`listen.peer` is `a:70000`, but must be HOST:PORT",
        ),
        (
            "commit_wait.policy=all",
            "`commit_wait.policy` is `all`, but must be `quorum`, `coherent` or `at-least:N`",
        ),
        (
            "archive.on_lag=stop",
            "`archive.on_lag` is `stop`, but must be `delay` or `refuse`",
        ),
        (
            "archive.url=http://x",
            "`archive.url` is `http://x`, but must be file:///PATH or s3://BUCKET/PREFIX",
        ),
    ];
    for (set, text) in table {
        assert_eq!(fault_with(&[set]), text);
    }
}

#[test]
fn a_set_takes_its_value_as_toml_or_else_as_a_string() {
    let value = |text: &str| parse_config_set(text).unwrap().value().clone();
    assert_eq!(value("log.sync=false"), toml::Value::Boolean(false));
    assert_eq!(value("groups = 7"), toml::Value::Integer(7));
    assert_eq!(
        value("raft.election_timeout=2s"),
        toml::Value::String("2s".into())
    );
    assert_eq!(
        value("raft.election_timeout=\"2s\""),
        toml::Value::String("2s".into())
    );
    assert_eq!(value("cluster=a = b"), toml::Value::String("a = b".into()));
    assert_eq!(value("cluster="), toml::Value::String(String::new()));
    assert_eq!(
        value("cluster=1\nnode=2"),
        toml::Value::String("1\nnode=2".into())
    );
    let error = parse_config_set("groups").unwrap_err();
    assert!(matches!(error, ConfigError::NotAnAssignment { .. }));
    let error = parse_config_set("raft.hartbeat_interval=1s")
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("did you mean `raft.heartbeat_interval`?"),
        "{error}"
    );
    assert!(fault_with(&["groups=many"]).contains("invalid type"));
}

#[test]
fn relative_paths_are_taken_from_the_base_and_absolute_ones_stay() {
    let mut raw = raw();
    raw.tls.key = "/keys/key.pem".into();
    let config = Config::try_from(raw)
        .unwrap()
        .with_base(Path::new("/cluster"));
    assert_eq!(
        config.groups_dir(),
        Path::new("/cluster/node-1/data/groups")
    );
    assert_eq!(config.raw().tls.key, Path::new("/keys/key.pem"));
    assert_eq!(
        config.raw().tls.crl.as_deref(),
        Some(Path::new("/cluster/ca/crl.pem"))
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::load(Path::new("/none/config.toml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "can't read /none/config.toml; is the path right?"
    );
}
