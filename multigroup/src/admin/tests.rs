//! The admin port over real sockets, with a source whose replicas are those of a real store.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use raft_host::id::{GroupId, Index, Term};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use transport::io::{LaneState as IoLaneState, LaneStatus};
use transport::proto::histogram::Distribution;
use transport::{Incarnation, Lane, PeerId};

use super::status::OccupancyStatus;
use super::*;
use crate::command::{Body, Entry, Op};
use crate::keyspace::KeySpace;
use crate::limits::{ADMIN_ANSWER_BYTES_MAX, GROUPS_PAGE_MAX};
use crate::session::UnixMillis;
use crate::store::{Committed, Store, StoreOptions};

const GROUPS: u64 = 2500;
const PATIENCE: Duration = Duration::from_secs(20);

/// A lane in which every number is another, and the account is exact.
pub(crate) fn busy_lane(lane: Lane) -> LaneStatus {
    let mut account = transport::budget::AccountSnapshot {
        unused: transport::Amount::new(101, 102),
        queued: transport::Amount::new(103, 104),
        writing: transport::Amount::new(105, 106),
        outstanding: transport::Amount::new(107, 108),
        ended: [11, 12, 13, 14, 15, 16, 17],
        started: 0,
        waiters: 18,
    };
    account.started = account.live() + account.ended.iter().sum::<u64>();
    assert!(account.is_exact());
    let mut stats = transport::proto::outbound::OutboundStats::default();
    (stats.frames_begun, stats.frames_answered, stats.bytes_begun) = (21, 22, 23);
    let flushes = &mut stats.flushes;
    (flushes.slot_freed, flushes.urgent, flushes.frame_full) = (24, 25, 26);
    let times = |from: u64| Distribution {
        count: 1000,
        mean_micros: from,
        p50_micros: from + 1,
        p99_micros: from + 2,
        sum_micros: from * 1000,
        sizes: vec![(from, 1000)],
    };
    LaneStatus {
        certificate: None,
        peer: PeerId::new(2).unwrap(),
        lane,
        state: IoLaneState::Up,
        session: Some(transport::id::SessionId::new(0xabc)),
        incarnation: Some(Incarnation::new([0x5a; 16])),
        boot: Some(transport::Boot::new(7)),
        // Bulk's window counts bytes.
        window_frames: if lane == Lane::Control { 16 } else { 0 },
        outstanding_frames: 3,
        account,
        stats,
        queue_delay: times(31),
        turnaround: times(41),
        occupancy: transport::proto::occupancy::OccupancyReading {
            count: 50,
            mean_hundredths: 5150,
            p50: 52,
            p99: 53,
            max: 54,
        },
        round_trip: Some(Duration::from_micros(61)),
        last_reply_age: Some(Duration::from_millis(62)),
        last_end: None,
        failures: 0,
    }
}

pub(crate) struct Source {
    store: Store,
    ready: AtomicBool,
    /// What a read of a replica takes one from; group 1 alone needs one.
    gate: Semaphore,
    waiting: AtomicU64,
    _folder: TempDir,
}

/// A status whose lanes are busy.
pub(crate) fn status(ready: bool) -> Status {
    Status {
        schema: STATUS_SCHEMA.into(),
        node: 1,
        cluster: "dev".to_owned(),
        incarnation: "77".to_owned(),
        ready,
        groups: GroupCounts {
            total: GROUPS,
            leading: 1,
            following: 2,
            sleeping: 3,
            leaderless: 4,
            leader_changes_total: 5,
        },
        peers: Lane::ALL
            .iter()
            .map(|lane| lane_status(&busy_lane(*lane)))
            .collect(),
        commit_wait: CommitWaitStatus {
            enabled: true,
            cap: 1024,
            ..CommitWaitStatus::default()
        },
        log: LogStatus {
            last_sync_us: 250,
            unsynced_bytes: 7,
            disk: DiskHealth::Ok,
        },
        archive: Some(ArchiveStatus::default()),
        tls: TlsStatus {
            cert_not_after: "2027-01-02T03:04:05Z".to_owned(),
            crl_age_s: Some(9),
            ..TlsStatus::default()
        },
        rounds: RoundStatus {
            beat_bytes_total: 31,
            ..RoundStatus::default()
        },
        proposals: ProposalStatus {
            committed_total: 32,
            ..ProposalStatus::default()
        },
        handovers: HandoverStatus {
            finished_total: 33,
            ..HandoverStatus::default()
        },
        failure: None,
    }
}

impl StatusSource for Source {
    fn set(&self, key: &str, value: &str) -> Result<String, SettingFault> {
        match key {
            "commit_wait.enabled" => Ok(format!("{key} is {value}")),
            _ => Err(SettingFault::NeedsRestart { key: key.into() }),
        }
    }

    fn status(&self) -> Status {
        status(self.ready.load(Ordering::Relaxed))
    }

    fn health(&self) -> Result<(), Unfit> {
        Ok(())
    }

    fn readiness(&self) -> Result<(), Unfit> {
        if self.ready.load(Ordering::Relaxed) {
            Ok(())
        } else {
            let reason = "4 groups have no leader".into();
            Err(Unfit { reason })
        }
    }

    async fn groups(&self, after: Option<GroupId>, limit: usize) -> Vec<GroupStatus> {
        let first = after.map_or(0, |after| after.to_u64().saturating_add(1));
        let group = |group| GroupStatus {
            group,
            role: GroupRole::Follower,
            leader: Some(2),
            term: 1,
            commit_index: 9,
            applied_index: 8,
            sleeping: false,
            archived_index: None,
        };
        (first..GROUPS).take(limit).map(group).collect()
    }

    async fn replica(&self, group: GroupId) -> Result<ReplicaState, ReplicaFault> {
        if group.to_u64() >= GROUPS {
            return Err(ReplicaFault::Absent { group });
        }
        if group.to_u64() == 1 {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.gate.acquire().await.unwrap().forget();
        }
        let digest = self.store.digest(group);
        let digest = digest.map_err(|source| ReplicaFault::Store { group, source })?;
        Ok(ReplicaState {
            applied_index: digest.applied.index.to_u64(),
            digest: digest.to_hex(),
            rows: digest.rows,
        })
    }

    fn add_metrics(&self, out: &mut Exposition) {
        let family = ("multigroup_open_databases", "Databases that are open.");
        out.family(family.0, Kind::Gauge, family.1)
            .sample(&[], self.store.open_count() as u64);
    }
}

pub(crate) struct Running {
    pub(crate) url: AdminUrl,
    address: SocketAddr,
    source: Arc<Source>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<AdminServed>,
}

impl Running {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let folder = TempDir::new().unwrap();
        let space = KeySpace::new(u32::try_from(GROUPS).unwrap()).unwrap();
        let store = Store::open(StoreOptions::new(folder.path().to_owned(), space)).unwrap();
        let source = Arc::new(Source {
            store,
            ready: AtomicBool::new(true),
            gate: Semaphore::new(0),
            waiting: AtomicU64::new(0),
            _folder: folder,
        });
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(serve(listener, Arc::clone(&source), stopped));
        Self {
            url: format!("http://{address}").parse().unwrap(),
            address,
            source,
            stop,
            serving,
        }
    }

    async fn get(&self, path: &str) -> Value {
        let body = fetch(&self.url, path, PATIENCE).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    async fn text(&self, path: &str) -> String {
        let body = fetch(&self.url, path, PATIENCE).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// The status code and the words of an answer that must be an error.
    async fn refused(&self, path: &str) -> (u16, String) {
        let error = fetch(&self.url, path, PATIENCE).await.unwrap_err();
        if let FetchError::Refused { code, error, .. } = error {
            (code, error)
        } else {
            panic!("{path}: {error:?}")
        }
    }

    /// What comes back for these bytes until the server closes.
    async fn raw(&self, bytes: &[u8]) -> String {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

#[tokio::test]
async fn the_status_has_all_agreed_names() {
    let running = Running::start().await;
    let status = running.get("/status").await;
    let agreed = [
        (
            "",
            "schema node cluster incarnation ready groups peers commit_wait log archive tls",
        ),
        (
            "/groups",
            "total leading following sleeping leaderless leader_changes_total",
        ),
        (
            "/peers/0",
            "peer lane state session incarnation window outstanding rtt_us last_reply_age_ms \
             frames_started frames_queued frames_writing frames_replied frames_refused \
             frames_expired frames_revoked frames_superseded frames_lost frames_shut_down \
             reserved_items reserved_bytes unused_items unused_bytes bytes_sent queue_delay_us \
             turnaround_us flushes",
        ),
        ("/peers/0/queue_delay_us", "mean p99"),
        ("/peers/0/turnaround_us", "mean p99"),
        ("/peers/0/flushes", "slot_freed frame_full deadline urgent"),
        (
            "/commit_wait",
            "enabled cap outstanding enqueued_total inline_total expired_total",
        ),
        ("/log", "last_sync_us unsynced_bytes disk"),
        ("/archive", "groups_current lag_bytes last_publish_age_ms"),
        ("/tls", "cert_not_after crl_age_s"),
    ];
    for (at, names) in agreed {
        let there = keys(status.pointer(at).unwrap());
        for name in names.split_whitespace() {
            assert!(there.contains(name), "{at}/{name}");
        }
    }
    assert_eq!(status["schema"], "multigroup.status/1");
    let read: Status = serde_json::from_value(status).unwrap();
    assert_eq!(read, running.source.status());
}

#[test]
fn a_lane_s_account_is_as_exact_in_the_status_as_in_the_transport() {
    let lane = busy_lane(Lane::Control);
    let status = lane_status(&lane);
    assert!(status.is_exact());
    assert_eq!(status.frames_started, lane.account.started);
    let ends = [
        status.frames_replied,
        status.frames_refused,
        status.frames_expired,
        status.frames_revoked,
        status.frames_lost,
        status.frames_superseded,
        status.frames_shut_down,
    ];
    assert_eq!(
        ends, lane.account.ended,
        "in the order of the transport's outcomes"
    );
    let live = [
        status.frames_queued,
        status.frames_writing,
        status.frames_outstanding,
    ];
    assert_eq!(live, [103, 105, 107]);
    let budget = [
        status.reserved_items,
        status.reserved_bytes,
        status.unused_items,
        status.unused_bytes,
    ];
    assert_eq!(budget, [416, 420, 101, 102]);
    // One that is lost on the way isn't exact any more.
    let mut off = status;
    off.frames_lost -= 1;
    assert!(!off.is_exact());
}

#[test]
fn a_lane_s_window_and_times_are_those_of_the_transport() {
    let status = lane_status(&busy_lane(Lane::Control));
    assert_eq!(
        (status.peer, status.lane.as_str(), status.state),
        (2, "control", LaneState::Up)
    );
    assert_eq!((status.window, status.outstanding), (16, 3));
    assert_eq!(status.session.as_deref(), Some("0000000000000abc"));
    assert_eq!(
        (
            status.frames_begun,
            status.frames_answered,
            status.bytes_sent
        ),
        (21, 22, 23)
    );
    assert_eq!(
        (status.queue_delay_us.mean, status.queue_delay_us.p99),
        (31, 33)
    );
    assert_eq!(
        (status.turnaround_us.mean, status.turnaround_us.p99),
        (41, 43)
    );
    assert_eq!(
        (status.rtt_us, status.last_reply_age_ms),
        (Some(61), Some(62))
    );
    let occupancy = OccupancyStatus {
        mean_hundredths: 5150,
        p50: 52,
        p99: 53,
        max: 54,
    };
    assert_eq!(status.window_occupancy, occupancy);
    let flushes = &status.flushes;
    assert_eq!(
        (flushes.slot_freed, flushes.urgent, flushes.frame_full),
        (24, 25, 26)
    );
}

#[tokio::test]
async fn every_family_has_help_type_a_known_prefix_and_a_unit() {
    let running = Running::start().await;
    let text = running.text("/metrics").await;
    let mut families = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line
            .strip_prefix("# HELP ")
            .unwrap()
            .split_once(' ')
            .unwrap();
        assert!(help.len() > 10 && families.insert(name), "{line}");
        let kind = lines
            .next()
            .unwrap()
            .strip_prefix(&format!("# TYPE {name} "))
            .unwrap();
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
        let known = ["transport_", "raft_host_", "multigroup_"];
        assert!(
            known.iter().any(|prefix| name.starts_with(prefix)),
            "{name}"
        );
        assert!(!name.ends_with("_us") && !name.ends_with("_ms"), "{name}");
        let mut samples = 0;
        while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
            let (series, number) = sample.rsplit_once(' ').unwrap();
            number.parse::<f64>().unwrap();
            let labels = series.strip_prefix(name).unwrap();
            assert!(labels.is_empty() || labels.starts_with('{'), "{sample}");
            assert!(!labels.contains("group="), "{sample}");
            samples += 1;
        }
        assert!(samples > 0, "{name}");
    }
    assert!(families.len() > 30, "{families:?}");
    for line in [
        "transport_items_ended_total{peer=\"2\",lane=\"control\",outcome=\"lost\"} 15",
        "transport_window_outstanding_frames{peer=\"2\",lane=\"bulk\"} 3",
        "transport_queue_delay_p99_seconds{peer=\"2\",lane=\"bulk\"} 0.000033",
        "raft_host_groups{state=\"leading\"} 1",
        "raft_host_log_last_sync_seconds 0.00025",
        "multigroup_tls_certificate_not_after_timestamp_seconds 1798859045",
        "multigroup_open_databases 0",
    ] {
        assert!(text.lines().any(|there| there == line), "{line}");
    }
}

#[tokio::test]
async fn readiness_is_told_apart_from_health() {
    let running = Running::start().await;
    assert_eq!(running.text("/healthz").await, "ok\n");
    assert_eq!(running.text("/readyz").await, "ok\n");
    running.source.ready.store(false, Ordering::Relaxed);
    assert_eq!(running.text("/healthz").await, "ok\n");
    assert_eq!(
        running.refused("/readyz").await,
        (503, "4 groups have no leader".to_owned())
    );
}

#[tokio::test]
async fn groups_come_in_pages_that_lead_through_all_of_them() {
    let running = Running::start().await;
    let mut seen = Vec::new();
    let mut path = format!("/groups?limit={GROUPS_PAGE_MAX}");
    loop {
        let page: GroupPage = serde_json::from_value(running.get(&path).await).unwrap();
        assert!(page.groups.len() <= GROUPS_PAGE_MAX);
        seen.extend(page.groups.iter().map(|group| group.group));
        let Some(after) = page.next_after else { break };
        path = format!("/groups?after={after}&limit={GROUPS_PAGE_MAX}");
    }
    assert_eq!(seen, (0..GROUPS).collect::<Vec<_>>());
    let page = running.get("/groups").await;
    assert_eq!(
        (&page["schema"], &page["next_after"]),
        (&"multigroup.groups/1".into(), &99.into())
    );
    assert_eq!(page["groups"][0]["role"], "follower");
}

#[tokio::test]
async fn a_replica_is_told_by_what_its_database_holds() {
    let running = Running::start().await;
    let group = GroupId::new(3);
    let entry = Entry {
        identity: None,
        body: Body::Single(Op::Set {
            key: Bytes::from_static(b"k"),
            value: Bytes::from_static(b"v"),
        }),
    };
    let empty = running.get("/replica?group=3").await;
    assert_eq!(
        (&empty["applied_index"], &empty["rows"]),
        (&0.into(), &0.into())
    );
    let committed = Committed {
        index: Index::new(1),
        term: Term::new(1),
        time: UnixMillis::new(1),
        data: entry.encode().unwrap(),
    };
    running.source.store.apply(group, &[committed]).unwrap();
    let told = running.get("/replica?group=3").await;
    let digest = running.source.store.digest(group).unwrap();
    assert_eq!(
        (&told["applied_index"], &told["rows"]),
        (&1.into(), &1.into())
    );
    assert_eq!(told["digest"], digest.to_hex());
    assert_ne!(told["digest"], empty["digest"]);
    assert_eq!(keys(&told), ["applied_index", "digest", "rows"].into());
}

#[tokio::test]
async fn what_can_t_be_answered_is_told_clearly_in_json() {
    let running = Running::start().await;
    let cases = [
        (
            "/stats",
            404,
            "there is nothing at /stats; there is /, /status, /metrics,",
        ),
        ("/status/", 404, "there is nothing at /status/"),
        (
            "/groups?limit=0",
            400,
            "limit is 0, and must be from 1 to 1000",
        ),
        ("/groups?limit=1001", 400, "limit is 1001"),
        (
            "/groups?limit=x",
            400,
            "its form is /groups?after=ID&limit=N: ",
        ),
        (
            "/groups?after=-1",
            400,
            "its form is /groups?after=ID&limit=N: ",
        ),
        ("/groups?before=1", 400, "unknown field `before`"),
        ("/replica", 400, "missing field `group`"),
        ("/replica?group=", 400, "its form is /replica?group=ID: "),
        (
            "/replica?group=99999999999999999999",
            400,
            "its form is /replica?group=ID: ",
        ),
        (
            "/replica?group=2500",
            404,
            "this node has no replica of group 2500",
        ),
    ];
    for (path, code, words) in cases {
        let (got, error) = running.refused(path).await;
        assert!(
            got == code && error.contains(words),
            "{path}: {got} {error}"
        );
    }
    let answer = running
        .raw(b"POST /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET"),
        "{answer}"
    );
    assert!(
        answer.ends_with(r#"{"error":"/status takes GET, not POST"}"#),
        "{answer}"
    );
}

#[tokio::test]
async fn garbage_costs_only_its_own_connection() {
    let running = Running::start().await;
    let redis = running.raw(b"*1\r\n$4\r\nPING\r\n").await;
    assert!(redis.starts_with("HTTP/1.1 400 "), "{redis}");
    let tls = running
        .raw(&[0x16, 3, 1, 0, 5, 1, 2, 3, 4, 5, b'\r', b'\n', b'\r', b'\n'])
        .await;
    assert!(tls.starts_with("HTTP/1.1 400 "), "{tls}");
    let long = [&b"GET /"[..], &[b'x'; 100_000], b" HTTP/1.1\r\n\r\n"].concat();
    let mut socket = TcpStream::connect(running.address).await.unwrap();
    // It may close before it took everything, and that may lose its answer.
    let _taken = socket.write_all(&long).await;
    let _closed = socket.read_to_end(&mut Vec::new()).await;
    assert_eq!(running.text("/healthz").await, "ok\n");
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let running = Running::start().await;
    let answer = running
        .raw(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await;
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: text/html"), "{head}");
    assert!(
        head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    assert!(page.contains("fetch(\"/status\"") && page.contains("setTimeout(refresh"));
    for word in ["http:", "https:", "src=", "innerHTML", "@import"] {
        assert!(!page.contains(word), "{word}");
    }
    // Each name that the script reads is one that the status has.
    let status = serde_json::to_value(running.source.status()).unwrap();
    let of = |object: &str| match object {
        "status" => Some(&status),
        "groups" | "log" | "archive" => status.get(object),
        "wait" => status.get("commit_wait"),
        "peer" => status.pointer("/peers/0"),
        _ => None,
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut checked = 0;
    for (at, _) in page.match_indices('.') {
        let object = page[..at].rsplit(|c| !is_name(c)).next().unwrap();
        let name = page[at + 1..].split(|c| !is_name(c)).next().unwrap();
        if let (Some(part), false) = (of(object), name == "map") {
            assert!(part.get(name).is_some(), "{object}.{name}");
            checked += 1;
        }
    }
    assert!(checked > 25, "{checked}");
}

#[tokio::test]
async fn at_shutdown_an_answer_in_progress_is_finished_and_idle_ones_are_closed() {
    let running = Running::start().await;
    let mut idle = TcpStream::connect(running.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = [0; 12];
    idle.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    let url = running.url.clone();
    let asking = tokio::spawn(async move { fetch(&url, "/replica?group=1", PATIENCE).await });
    until(|| running.source.waiting.load(Ordering::Relaxed) == 1).await;
    running.stop.send(true).unwrap();
    idle.read_to_end(&mut Vec::new()).await.unwrap();
    running.source.gate.add_permits(1);
    let body = asking.await.unwrap().unwrap();
    assert!(body.starts_with(b"{\"applied_index\":0"), "{body:?}");
    assert_eq!(
        running.serving.await.unwrap(),
        AdminServed { connections: 2 }
    );
    assert!(
        TcpStream::connect(running.address).await.is_err(),
        "nobody listens any more"
    );
}

/// A server that answers one connection with these bytes and then keeps it open or closes it.
async fn answering(bytes: Vec<u8>) -> (AdminUrl, JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let serving = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _asked = socket.read(&mut [0; 1024]).await.unwrap();
        // The client may have had enough before the end.
        let _sent = socket.write_all(&bytes).await;
        socket
    });
    (url, serving)
}

#[tokio::test]
async fn a_question_without_an_answer_says_why() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let error = fetch(&closed.parse().unwrap(), "/status", PATIENCE)
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::Connect { .. }) && error.to_string().contains(&closed));

    let (url, _silent) = answering(Vec::new()).await;
    let error = fetch(&url, "/status", Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(matches!(error, FetchError::TimedOut { .. }), "{error:?}");

    let (url, _redis) = answering(b"-ERR unknown command 'GET'\r\n".to_vec()).await;
    let error = fetch(&url, "/status", PATIENCE).await.unwrap_err();
    assert!(matches!(error, FetchError::Http { .. }), "{error:?}");

    let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{".to_vec();
    let (url, serving) = answering(cut).await;
    let (error, ()) = tokio::join!(fetch(&url, "/status", PATIENCE), async {
        drop(serving.await.unwrap());
    });
    assert!(matches!(error, Err(FetchError::Http { .. })), "{error:?}");

    let endless = [
        &b"HTTP/1.1 200 OK\r\n\r\n"[..],
        &vec![b'x'; ADMIN_ANSWER_BYTES_MAX + 1],
    ];
    let (url, _endless) = answering(endless.concat()).await;
    let error = fetch(&url, "/status", PATIENCE).await.unwrap_err();
    assert!(matches!(error, FetchError::TooLong { .. }), "{error:?}");

    let (url, _other) =
        answering(b"HTTP/1.1 403 No\r\nContent-Length: 3\r\n\r\nno!".to_vec()).await;
    let error = fetch(&url, "/status", PATIENCE).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{url} answered 403 to /status: no!")
    );
}

/// Waits, without a deadline of its own, for what must come true by itself.
async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::task::yield_now().await;
    }
}
