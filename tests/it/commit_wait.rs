//! The quorum-ack waiter over real TLS and real log files (commit-wait.md 10): each case with it on
//! and off, and both must come to the same.

use std::collections::BTreeMap;
use std::num::NonZeroU8;
use std::time::Duration;

use raft_host::config::{COMMIT_WAIT_DEFAULTS, RawCommitWaitConfig};
use raft_host::error::{ProposalOutcome, Refusal, UnknownCause};
use raft_host::id::GroupId;
use raft_host::io::{Group, Policy, ProposeOptions, Waiting};
use raft_host::metrics::CommitWaitStats;
use tests::soon;
use tokio::task::JoinSet;

use crate::hosts::{Cluster, until};

const LONG: Duration = Duration::from_secs(20);

async fn started(commit_wait: RawCommitWaitConfig) -> Cluster {
    let mut cluster = Cluster::new(3, 1);
    cluster.commit_wait = commit_wait;
    cluster.drain_timeout_ms = 1500;
    cluster.all_started().await
}

fn on_and_off() -> [RawCommitWaitConfig; 2] {
    [true, false].map(|enabled| RawCommitWaitConfig {
        enabled,
        ..COMMIT_WAIT_DEFAULTS
    })
}

fn at_least(acks: u8, within: Duration) -> ProposeOptions {
    ProposeOptions {
        policy: NonZeroU8::new(acks).map_or(Policy::Quorum, Policy::AtLeast),
        ..ProposeOptions::within(within)
    }
}

/// A group, its leader's node, and the group as that node serves it.
async fn led(cluster: &Cluster) -> (GroupId, u32, Group) {
    let id = GroupId::new(1);
    let leader = cluster.leader(id).await.expect("a leader");
    (id, leader, cluster.nodes[&leader].host.group(id))
}

fn waiter(cluster: &Cluster, node: u32) -> CommitWaitStats {
    cluster.stats(node).commit_wait
}

/// A reply is on its way a moment before its place, or its worker, is free.
fn holds_nothing(cluster: &Cluster, node: u32) -> bool {
    let stats = waiter(cluster, node);
    (stats.outstanding, stats.workers_held, stats.line) == (0, 0, 0)
}

/// How it ended, in a word: two runs differ in their indexes.
fn word(outcome: &ProposalOutcome) -> String {
    match outcome {
        ProposalOutcome::Committed { result, .. } => {
            format!("committed {}", String::from_utf8_lossy(result))
        }
        ProposalOutcome::Refused(refusal) => format!("refused: {refusal}"),
        ProposalOutcome::NotDurable { .. } => "not durable".to_owned(),
        other => format!("{other:?}"),
    }
}

fn all<T: Send + 'static>(
    work: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> JoinSet<T> {
    let mut tasks = JoinSet::new();
    for one in work {
        tasks.spawn(one);
    }
    tasks
}

fn many(group: &Group, count: usize, options: &ProposeOptions) -> JoinSet<ProposalOutcome> {
    all((0..count).map(|n| {
        let (group, options) = (group.clone(), options.clone());
        async move { group.propose(format!("many-{n}"), options).await }
    }))
}

async fn counted(tasks: JoinSet<ProposalOutcome>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for outcome in soon("all outcomes", tasks.join_all()).await {
        let word = word(&outcome);
        let kind = word.split(' ').next().unwrap_or_default().to_owned();
        *counts.entry(kind).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_and_refusals_are_the_same_whoever_waits() {
    let mut told = Vec::new();
    for config in on_and_off() {
        let mut cluster = started(config).await;
        let (id, leader, group) = led(&cluster).await;
        let plain = ProposeOptions::within(LONG);
        let inline = ProposeOptions {
            waiting: Waiting::Inline,
            ..plain.clone()
        };
        let named = ProposeOptions {
            request_id: "x".repeat(4096).into(),
            ..plain.clone()
        };
        let cases = [
            ("a command", plain.clone()),
            ("waited for", inline),
            ("all three", at_least(3, LONG)),
            ("four of three", at_least(4, LONG)),
            ("", plain.clone()),
            ("a long name", named),
            ("late", ProposeOptions::within(Duration::ZERO)),
        ];
        let mut words = Vec::new();
        for (command, options) in cases {
            words.push(word(&group.propose(command, options).await));
        }
        assert_eq!(counted(many(&group, 40, &plain)).await["committed"], 40);
        let stats = waiter(&cluster, leader);
        if config.enabled {
            assert!(
                stats.enqueued >= 41 && stats.inline.total() == 3,
                "{stats:?}"
            );
        } else {
            assert_eq!((stats.enqueued, stats.resolved.committed), (0, 0));
        }
        until("nothing held", || holds_nothing(&cluster, leader)).await;
        let held = cluster.applies(leader, id).len();
        words.push(format!("{held} applied"));
        cluster.wait_equal().await;
        cluster.stop_all().await;
        told.push(words);
    }
    assert_eq!(told[0], told[1]);
    let first = ["committed 9", "committed 10", "committed 9"];
    assert_eq!(told[0][..3], first);
    let refused = told[0][3..7]
        .iter()
        .filter(|word| word.starts_with("refused"));
    assert_eq!(refused.count(), 4, "{:?}", told[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_exceeds_the_cap_waits_inline_and_keeps_its_results() {
    for cap in [0, 3] {
        let mut cluster = started(RawCommitWaitConfig {
            max_outstanding: cap,
            ..COMMIT_WAIT_DEFAULTS
        })
        .await;
        let (_, leader, group) = led(&cluster).await;
        let options = ProposeOptions::within(LONG);
        assert_eq!(counted(many(&group, 100, &options)).await["committed"], 100);
        let stats = waiter(&cluster, leader);
        assert_eq!(stats.enqueued + stats.inline.full, 100, "{stats:?}");
        assert!(stats.inline.full > 0 && (cap > 0) == (stats.enqueued > 0));
        until("nothing held", || holds_nothing(&cluster, leader)).await;
        cluster.stop_all().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_switched_under_load_and_every_command_has_its_result() {
    let mut cluster = started(COMMIT_WAIT_DEFAULTS).await;
    let (_, leader, group) = led(&cluster).await;
    let clients = all((0..16).map(|client| {
        let group = group.clone();
        async move {
            for n in 0..40 {
                let command = format!("{client}-{n}");
                let outcome = group
                    .propose(command.clone(), ProposeOptions::within(LONG))
                    .await;
                assert_eq!(word(&outcome), format!("committed {}", command.len()));
            }
        }
    }));
    let switch = cluster.nodes[&leader].host.commit_wait();
    let load = clients.join_all();
    let switching = async {
        for turn in 0_u32.. {
            switch.set_enabled(turn % 3 != 0);
            switch.set_max_outstanding([1024, 2, 0][turn as usize % 3]);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = soon("the load", load) => {}
        () = switching => {}
    }
    let stats = waiter(&cluster, leader);
    assert!(stats.enqueued > 0 && stats.inline.off > 0, "{stats:?}");
    until("nothing held", || holds_nothing(&cluster, leader)).await;
    cluster.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repetition_of_what_is_under_way_waits_for_it_and_gets_its_outcome() {
    for config in on_and_off() {
        let mut cluster = started(config).await;
        let (id, leader, group) = led(&cluster).await;
        let options = ProposeOptions {
            request_id: "request-1".into(),
            ..ProposeOptions::within(LONG)
        };
        let (first, second, other) = tokio::join!(
            group.propose("once", options.clone()),
            group.propose("once", options.clone()),
            group.propose("another", options),
        );
        assert_eq!(first, second, "one outcome, of one entry");
        assert_eq!(
            word(&other),
            "committed 7",
            "another command is no repetition"
        );
        let applies = cluster.applies(leader, id);
        let once = applies.iter().filter(|(_, command)| command == "once");
        assert_eq!(once.count(), 1);
        assert_eq!(waiter(&cluster, leader).joined, 1);
        cluster.stop_all().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_follower_down_only_what_asks_for_its_ack_lacks_it() {
    for config in on_and_off() {
        let mut cluster = started(config).await;
        let (_, leader, group) = led(&cluster).await;
        let down = leader % 3 + 1;
        cluster.stop(down).await;
        // At most half of the workers wait for what isn't coming; the others serve on.
        let lacking = many(&group, 6, &at_least(3, Duration::from_millis(1500)));
        until("as many as may wait", || {
            waiter(&cluster, leader).workers_held >= 4
        })
        .await;
        let plain = ProposeOptions::within(LONG);
        assert_eq!(counted(many(&group, 20, &plain)).await["committed"], 20);
        let counts = counted(lacking).await;
        assert_eq!(
            counts,
            BTreeMap::from([("not".into(), 4), ("refused:".into(), 2)])
        );
        assert_eq!(
            word(&group.propose("two", at_least(2, LONG)).await),
            "committed 3"
        );
        cluster.start(down).await;
        assert_eq!(
            word(&group.propose("three", at_least(3, LONG)).await),
            "committed 5"
        );
        cluster.stop_all().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_proposals_without_a_quorum_end_in_time_and_hold_nothing() {
    for config in on_and_off() {
        let mut cluster = started(config).await;
        let (_, leader, group) = led(&cluster).await;
        for number in (1..=3).filter(|number| *number != leader) {
            cluster.stop(number).await;
        }
        let within = Duration::from_millis(700);
        let latest = within + Duration::from_millis(500);
        let tasks = all((0..1000).map(|n| {
            let group = group.clone();
            async move {
                let options = ProposeOptions::within(within);
                let ended = group.propose(format!("lost-{n}"), options);
                tokio::time::timeout(latest, ended).await.expect("in time")
            }
        }));
        let outcomes = soon("all outcomes", tasks.join_all()).await;
        assert_eq!(outcomes.len(), 1000);
        for outcome in outcomes {
            // What no worker had begun by then is proven without effect.
            let fits = matches!(
                outcome,
                ProposalOutcome::Refused(_)
                    | ProposalOutcome::Unknown {
                        why: UnknownCause::Deadline | UnknownCause::LeadershipLost,
                        ..
                    }
            );
            assert!(fits, "{outcome:?}");
        }
        until("nothing held", || holds_nothing(&cluster, leader)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_in_the_midst_answers_everyone_and_names_how_many_it_abandoned() {
    for config in on_and_off() {
        let mut cluster = started(config).await;
        let (_, leader, group) = led(&cluster).await;
        for number in (1..=3).filter(|number| *number != leader) {
            cluster.stop(number).await;
        }
        let tasks = many(&group, 30, &ProposeOptions::within(LONG));
        let begun = if config.enabled { 30 } else { 8 };
        until("all under way", || {
            let stats = waiter(&cluster, leader);
            stats.outstanding + stats.workers_held == begun && stats.line + begun == 30
        })
        .await;
        let ended = cluster.stop(leader).await;
        let mut begun_and_told = 0;
        for outcome in soon("all outcomes", tasks.join_all()).await {
            match outcome {
                ProposalOutcome::Refused(Refusal::Stopped) => {}
                ProposalOutcome::Unknown { .. } => begun_and_told += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(begun_and_told, begun);
        assert!(
            ended.abandoned as u64 <= begun,
            "{} abandoned",
            ended.abandoned
        );
        let stats = ended.stats.commit_wait;
        assert_eq!(
            (stats.outstanding, stats.workers_held, stats.line),
            (0, 0, 0)
        );
    }
}
