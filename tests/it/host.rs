//! Three hosts in one process, over real TLS and real log files: groups get leaders, commands are
//! applied everywhere, nodes come back on their files, and without a quorum every caller is told
//! so in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use raft_host::error::{ProposalOutcome, ReadFailed, Refusal, UnknownCause};
use raft_host::id::GroupId;
use raft_host::io::{Consistency, Forwarding, ProposeOptions, StartError};
use raft_host::metrics::Stats;
use raft_host::proto::host::HostStats;
use tempfile::TempDir;
use tests::node::free_address;
use tests::process::run;
use tests::soon;
use transport::Lane;

use crate::hosts::{Cluster, until};

const MULTIGROUP: &str = env!("CARGO_BIN_EXE_multigroup-under-test");
const REPLICATED_MAP: &str = env!("CARGO_BIN_EXE_replicated-map");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_group_is_led_and_its_commands_are_applied_on_all_nodes() {
    let mut cluster = Cluster::started(30, 2).await;
    for word in ["one", "two", "three"] {
        cluster.commit_everywhere(word).await;
    }
    cluster.wait_equal().await;
    for number in 1..=3 {
        let stats = cluster.stats(number);
        assert_eq!(stats.groups.total, 30);
        assert_eq!(stats.failure.map(|failure| failure.to_string()), None);
        let bad: u64 = stats.shards.iter().map(|shard| shard.frames_bad).sum();
        assert_eq!(bad, 0, "no correct node is called a liar");
    }
    // A linearizable read is served at every replica, leader or not.
    for group in cluster.group_ids().take(6) {
        let newest = cluster.applies(1, group).last().expect("a command").0;
        for node in cluster.nodes.values() {
            let reading = node.host.group(group);
            let read = reading.read(Consistency::Linearizable, Duration::from_secs(5));
            let index = read.await.expect("a served read");
            assert!(index >= newest, "{index} is before {newest}");
        }
    }
    cluster.stop_all().await;
}

/// Whoever is asked, the leader proposes it, and its answer comes back; and whoever has been told so
/// finds it in a linearizable read at any other node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_is_taken_at_every_node_and_read_at_the_next() {
    let mut cluster = Cluster::started(12, 2).await;
    for group in cluster.group_ids() {
        for at in 1..=3 {
            let command = format!("{group}-at-{at}");
            let asked = cluster.nodes[&at].host.group(group);
            let options = ProposeOptions::within(Duration::from_secs(20));
            let outcome = asked.propose(command.clone(), options).await;
            let ProposalOutcome::Committed { index, result } = outcome else {
                panic!("{command}: {outcome:?}");
            };
            assert_eq!(result, command.len().to_string(), "its own reply");
            let next = at % 3 + 1;
            let reading = cluster.nodes[&next].host.group(group);
            let read = reading.read(Consistency::Linearizable, Duration::from_secs(20));
            assert!(read.await.expect("a served read") >= index);
            let applies = cluster.applies(next, group);
            assert!(
                applies.contains(&(index, command.clone().into())),
                "{command}"
            );
            let list = cluster.acknowledged.entry(group).or_default();
            list.push(command.into());
        }
    }
    cluster.wait_equal().await;
    let sum = |count: fn(&HostStats) -> u64| -> u64 {
        let all = (1..=3).flat_map(|number| cluster.stats(number).shards);
        all.map(|shard| count(&shard.core)).sum()
    };
    // Two of three nodes don't lead.
    until("published counts", || {
        sum(|core| core.forwards_sent) >= 24 && sum(|core| core.forwards_taken) >= 24
    })
    .await;
    cluster.stop_all().await;
}

/// The leader's node goes while commands are forwarded to it: each ends in time, what was
/// acknowledged is there once, and what was refused never was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_goes_under_forwarded_commands_gives_no_false_outcome() {
    let mut cluster = Cluster::started(3, 2).await;
    let group = GroupId::new(2);
    let leader = cluster.leader(group).await.expect("a leader");
    let follower = leader % 3 + 1;
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let asked = cluster.nodes[&follower].host.group(group);
            let (outcomes, stop) = (Arc::clone(&outcomes), Arc::clone(&stop));
            tokio::spawn(async move {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let command = format!("{worker}-{n}");
                    let options = ProposeOptions::within(Duration::from_secs(3));
                    let outcome = asked.propose(command.clone(), options).await;
                    let mut outcomes = outcomes.lock().expect("no worker panicked");
                    outcomes.push((Bytes::from(command), outcome));
                }
            })
        })
        .collect();
    let committed =
        |outcome: &ProposalOutcome| matches!(outcome, ProposalOutcome::Committed { .. });
    let count = || {
        let outcomes = outcomes.lock().expect("no worker panicked");
        outcomes
            .iter()
            .filter(|(_, outcome)| committed(outcome))
            .count()
    };
    until("commits through a follower", || count() >= 50).await;
    let dropped = cluster.nodes.remove(&leader).expect("a running node");
    tokio::task::spawn_blocking(move || drop(dropped.host))
        .await
        .expect("a dropped host");
    let before = count();
    until("commits at the new leader", || count() >= before + 50).await;
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        soon("the end of a worker", worker).await.expect("no panic");
    }
    cluster.start(leader).await;
    cluster.wait_led().await;
    let outcomes = std::mem::take(&mut *outcomes.lock().expect("no worker panicked"));
    let (acknowledged, others): (Vec<_>, Vec<_>) = outcomes
        .into_iter()
        .partition(|(_, outcome)| committed(outcome));
    let list = cluster.acknowledged.entry(group).or_default();
    list.extend(acknowledged.into_iter().map(|(command, _)| command));
    cluster.commit(group, "the last").await;
    cluster.wait_equal().await;
    let applies = cluster.applies(follower, group);
    for (command, outcome) in others {
        let held = applies
            .iter()
            .filter(|(_, applied)| *applied == command)
            .count();
        let most = usize::from(!outcome.is_refused());
        assert!(
            held <= most,
            "{command:?} is there {held} times: {outcome:?}"
        );
    }
    cluster.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_dropped_catches_up_on_its_files() {
    let mut cluster = Cluster::started(9, 2).await;
    cluster.commit_everywhere("before").await;
    let dropped = cluster.nodes.remove(&2).expect("a running node");
    tokio::task::spawn_blocking(move || drop(dropped.host))
        .await
        .expect("a dropped host");
    for round in 0..5 {
        cluster.commit_everywhere(&format!("without-{round}")).await;
    }
    cluster.start(2).await;
    cluster.wait_led().await;
    // Catching up needs no new writes.
    cluster.wait_equal().await;
    cluster.commit_everywhere("after").await;
    cluster.wait_equal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_every_caller_is_answered_by_its_deadline() {
    let mut cluster = Cluster::started(9, 2).await;
    cluster.commit_everywhere("before").await;
    let group = GroupId::new(3);
    let leader = cluster.leader(group).await.expect("a leader");
    for number in (1..=3).filter(|number| *number != leader) {
        cluster.stop(number).await;
    }
    let host = &cluster.nodes[&leader].host;
    let within = Duration::from_millis(700);
    let options = ProposeOptions {
        within,
        request_id: "request-7".into(),
        ..ProposeOptions::default()
    };
    let proposals = (0..50).map(|n| {
        let (group, options) = (host.group(group), options.clone());
        tokio::spawn(async move { group.propose(format!("lost-{n}"), options).await })
    });
    let proposals: Vec<_> = proposals.collect();
    let (mut unknown, mut refused) = (0, 0);
    for proposal in proposals {
        let latest = within + Duration::from_millis(500);
        let ended = tokio::time::timeout(latest, proposal).await;
        match ended.expect("in time").expect("no panic") {
            ProposalOutcome::Unknown { request_id, why } => {
                assert_eq!(request_id, "request-7");
                let known = [UnknownCause::Deadline, UnknownCause::LeadershipLost];
                assert!(known.contains(&why), "{why}");
                unknown += 1;
            }
            ProposalOutcome::Refused(_) => refused += 1,
            other => panic!("without a quorum: {other:?}"),
        }
    }
    assert_eq!(unknown + refused, 50);
    let lonely = host.group(group);
    let read = lonely.read(Consistency::Linearizable, within);
    let read = soon("an end of the read", read).await;
    assert!(
        matches!(read, Err(ReadFailed::Refused(_) | ReadFailed::Failed(_))),
        "{read:?}"
    );
    // The lonely leader steps down: from then on commands are refused, at once and by name.
    until("no leader without a quorum", || {
        cluster.stats(leader).groups.leading == 0
    })
    .await;
    let here = ProposeOptions {
        forwarding: Forwarding::Never,
        ..options.clone()
    };
    let outcome = lonely.propose("later", here).await;
    assert!(
        matches!(outcome, ProposalOutcome::Refused(Refusal::NotLeader { .. })),
        "{outcome:?}"
    );
    // One that may be forwarded waits for a leader, but no longer than its caller.
    let outcome = lonely.propose("held", options).await;
    assert_eq!(outcome, ProposalOutcome::Refused(Refusal::NoLeader));
    for number in (1..=3).filter(|number| *number != leader) {
        cluster.start(number).await;
    }
    cluster.wait_led().await;
    cluster.commit_everywhere("after").await;
    cluster.wait_equal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_of_all_everything_acknowledged_is_there() {
    let mut cluster = Cluster::started(15, 2).await;
    for round in 0..4 {
        cluster.commit_everywhere(&format!("round-{round}")).await;
    }
    for number in 1..=3 {
        let dropped = cluster.nodes.remove(&number).expect("a running node");
        tokio::task::spawn_blocking(move || drop(dropped.host))
            .await
            .expect("a dropped host");
    }
    for number in 1..=3 {
        cluster.start(number).await;
    }
    cluster.wait_led().await;
    cluster.commit_everywhere("again").await;
    cluster.wait_equal().await;
}

/// H4: at most two beat frames a peer and round (here: one a shard), 24 bytes a group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beats_of_all_groups_are_batched_per_peer_and_round() {
    let mut cluster = Cluster::started(30, 2).await;
    cluster.commit_everywhere("some").await;
    cluster.wait_equal().await;
    let frames = |stats: &Stats| -> u64 {
        let lanes = stats.transport.lanes.iter();
        let control = lanes.filter(|lane| lane.lane == Lane::Control);
        control.map(|lane| lane.stats.frames_begun).sum()
    };
    let rounds = |stats: &Stats| {
        stats
            .shards
            .iter()
            .map(|s| s.core.rounds)
            .max()
            .unwrap_or(0)
    };
    let before = cluster.stats(1);
    // Rounds are to each of two peers.
    until("twenty rounds to each peer", || {
        rounds(&cluster.stats(1)) >= rounds(&before) + 2 * 20
    })
    .await;
    let after = cluster.stats(1);
    let (sent, begun) = (
        frames(&after) - frames(&before),
        rounds(&after) - rounds(&before),
    );
    tracing::info!("{sent} control frames in {begun} rounds of a shard to a peer");
    assert!(
        sent <= 2 * begun,
        "{sent} control frames in {begun} rounds to a peer"
    );
    for shard in &after.shards {
        let core = shard.core;
        assert!(core.beats_listed > 0, "no beat was listed");
        assert!(
            core.beat_bytes <= 24 * core.beats_listed + 80 * core.beat_frames,
            "{core:?}"
        );
    }
    // What an operator is shown says the same.
    let (then, now) = (before.rounds(), after.rounds());
    assert!(
        now.bytes_per_group() > 0.0 && now.bytes_per_group() <= 24.0,
        "{now:?}"
    );
    let rounds = now.rounds_total - then.rounds_total;
    let frames = now.beat_frames_total - then.beat_frames_total;
    assert!(frames <= rounds + now.read_rounds_total - then.read_rounds_total + 4);
    assert!(now.frames_per_round() > 0.0 && now.shards == 2);
}

/// The node's log is small, and one of three nodes is away: writes are refused by name at its cap,
/// not hung or lost, and go on once the node is back and has caught up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_logs_cap_is_named_and_ends_when_the_slow_node_is_back() {
    let mut cluster = Cluster::new(2, 1);
    cluster.log_bytes_max = 16 * (256 << 10);
    cluster.machines_flush = true;
    let mut cluster = cluster.all_started().await;
    let group = GroupId::new(1);
    let leader = cluster.leader(group).await.expect("a leader");
    let slow = leader % 3 + 1;
    cluster.stop(slow).await;
    let host = cluster.nodes[&leader].host.group(group);
    let command = |n: u32| format!("{n}-{}", "x".repeat(20_000));
    let mut filled = 0;
    let refusal = loop {
        let options = ProposeOptions::within(Duration::from_secs(20));
        match host.propose(command(filled), options).await {
            ProposalOutcome::Committed { .. } => {
                let list = cluster.acknowledged.entry(group).or_default();
                list.push(command(filled).into());
                filled += 1;
            }
            ProposalOutcome::Refused(
                Refusal::NotLeader { .. } | Refusal::NoLeader | Refusal::NotTaken { .. },
            ) => {}
            ProposalOutcome::Refused(refusal) => break refusal,
            other => panic!("{other:?}"),
        }
        assert!(filled < 300, "no cap");
    };
    let Refusal::LogRetainedBytes { retained, most } = refusal else {
        panic!("{refusal}");
    };
    assert!(
        most == 16 * (256 << 10) && retained <= most,
        "{retained} of {most}"
    );
    assert!(filled > 40, "{filled}");
    cluster.start(slow).await;
    // It catches up, its acks let the others forget, and there is room again.
    for n in 0..filled {
        cluster.commit(group, &command(1000 + n)).await;
    }
    cluster.wait_equal().await;
    cluster.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_state_machine_stops_its_node_and_names_it() {
    let mut cluster = Cluster::started(3, 1).await;
    let group = GroupId::new(2);
    let leader = cluster.leader(group).await.expect("a leader");
    let host = &cluster.nodes[&leader].host;
    let options = ProposeOptions::within(Duration::from_secs(5));
    let led = host.group(group);
    let outcome = soon("an outcome", led.propose("fail", options)).await;
    assert!(
        matches!(
            outcome,
            ProposalOutcome::Unknown {
                why: UnknownCause::Stopped,
                ..
            }
        ),
        "{outcome:?}"
    );
    let mut failure = host.failure();
    let failed = soon("the failure", failure.wait_for(Option::is_some)).await;
    let named = failed.expect("a running host").clone().expect("a failure");
    assert!(named.to_string().contains("group 2"), "{named}");
    let refused = led.propose("more", ProposeOptions::default()).await;
    assert_eq!(refused, ProposalOutcome::Refused(Refusal::Stopped));
    cluster.nodes.clear();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_is_in_use_or_holds_other_groups_is_refused() {
    let mut cluster = Cluster::new(3, 1);
    cluster.start(1).await;
    let taken = cluster.try_start(1).await.err().expect("a refusal");
    assert!(matches!(taken, StartError::Log(_)), "{taken:?}");
    cluster.stop(1).await;
    cluster.groups = 2;
    // Nothing was written for the third group, as it never had a leader: there is nothing to miss.
    cluster.start(1).await;
    cluster.stop(1).await;
    // Once it has been led, its log is here, and a configuration without it is refused.
    cluster.groups = 3;
    let mut cluster = cluster.all_started().await;
    cluster.commit_everywhere("some").await;
    cluster.wait_equal().await;
    cluster.stop(1).await;
    cluster.groups = 2;
    let refused = cluster.try_start(1).await.err().expect("a refusal");
    let third = GroupId::new(3);
    assert!(
        matches!(refused, StartError::UnknownGroup(group) if group == third),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_another_node_is_refused() {
    let mut cluster = Cluster::started(3, 1).await;
    cluster.commit_everywhere("some").await;
    cluster.wait_equal().await;
    cluster.stop(1).await;
    cluster.stop(2).await;
    let log = |number: u32| {
        cluster
            .dir
            .path()
            .join(format!("node-{number}"))
            .join("log")
    };
    std::fs::rename(log(2), log(2).with_extension("own")).expect("put away");
    std::fs::rename(log(1), log(2)).expect("another's in its place");
    let refused = cluster.try_start(2).await.err().expect("a refusal");
    let StartError::Log(why) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("another node"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over_when_asked() {
    let mut cluster = Cluster::started(3, 1).await;
    let group = GroupId::new(1);
    let old = cluster.leader(group).await.expect("a leader");
    let new = old % 3 + 1;
    let asked = cluster.nodes[&old].host.group(group);
    let handed = asked.transfer_leader(raft_host::id::ReplicaId::new(new.into()));
    handed.await.expect("a transfer");
    let taken_over = async {
        while cluster.leader(group).await != Some(new) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("another leader", taken_over).await;
    assert_eq!(cluster.commit(group, "under the new one").await, new);
}

#[tokio::test]
async fn the_example_replicates_its_map() {
    let dir = TempDir::new().expect("a temporary folder");
    for arguments in [
        &["certs", "init", "--dir", "demo", "--cluster", "demo"][..],
        &["certs", "node", "--dir", "demo", "--node", "1"],
        &["certs", "node", "--dir", "demo", "--node", "2"],
        &["certs", "node", "--dir", "demo", "--node", "3"],
    ] {
        let made = run(MULTIGROUP, dir.path(), arguments).await;
        assert_eq!(made.code, Some(0), "{arguments:?}: {}", made.stderr);
    }
    // The nodes listen on the three ports after the base.
    let base = (free_address().port() & !3).to_string();
    let ended = run(REPLICATED_MAP, dir.path(), &["demo", &base]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout.contains("written: Committed"),
        "{}",
        ended.stdout
    );
    for node in 1..=3 {
        let read = format!("node {node} reads Some(\"green\")");
        assert!(ended.stdout.contains(&read), "{}", ended.stdout);
    }
}
