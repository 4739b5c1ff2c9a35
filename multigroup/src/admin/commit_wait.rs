//! The quorum-ack waiter's counters as metrics (commit-wait.md 9).

use super::exposition::Exposition;
use super::exposition::Kind::{Counter, Gauge};
use super::metrics::one;
use super::status::CommitWaitStatus;

pub(super) fn write(out: &mut Exposition, wait: &CommitWaitStatus) {
    one(
        out,
        "raft_host_commit_wait_enabled",
        Gauge,
        "Whether commits are handed off while they wait for their acks.",
        wait.enabled,
    );
    let gauges = [
        (
            "raft_host_commit_wait_cap",
            "Commits that may be handed off at once.",
            wait.cap,
        ),
        (
            "raft_host_commit_wait_outstanding",
            "Commits that are handed off.",
            wait.outstanding,
        ),
        (
            "raft_host_commit_wait_workers",
            "Workers that admit and propose.",
            wait.workers,
        ),
        (
            "raft_host_commit_wait_workers_held",
            "Workers that wait for a commit themselves.",
            wait.workers_held,
        ),
        (
            "raft_host_commit_wait_line",
            "Commands that no worker has begun.",
            wait.line,
        ),
    ];
    for (name, help, value) in gauges {
        one(out, name, Gauge, help, value);
    }
    let counters = [
        (
            "raft_host_commit_wait_enqueued_total",
            "Commits handed off.",
            wait.enqueued_total,
        ),
        (
            "raft_host_commit_wait_inline_total",
            "Commits waited for by a worker itself.",
            wait.inline_total,
        ),
        (
            "raft_host_commit_wait_inline_off_total",
            "Those while nothing was handed off.",
            wait.inline_off_total,
        ),
        (
            "raft_host_commit_wait_inline_full_total",
            "Those since the cap was reached.",
            wait.inline_full_total,
        ),
        (
            "raft_host_commit_wait_inline_policy_total",
            "Those whose policy asks for it.",
            wait.inline_policy_total,
        ),
        (
            "raft_host_commit_wait_committed_total",
            "Handed off, and ended with a result.",
            wait.committed_total,
        ),
        (
            "raft_host_commit_wait_refused_total",
            "Handed off, and proven without effect.",
            wait.refused_total,
        ),
        (
            "raft_host_commit_wait_unknown_total",
            "Handed off, and of unknown fate.",
            wait.unknown_total,
        ),
        (
            "raft_host_commit_wait_expired_total",
            "Of unknown fate since their deadline passed.",
            wait.expired_total,
        ),
        (
            "raft_host_commit_wait_joined_total",
            "Repetitions that waited for the first of their id.",
            wait.joined_total,
        ),
        (
            "raft_host_commit_wait_withdrawn_total",
            "Given up before a worker began them.",
            wait.withdrawn_total,
        ),
        (
            "raft_host_commit_wait_turned_away_total",
            "Turned away before they were begun.",
            wait.turned_away_total,
        ),
        (
            "raft_host_commit_wait_worker_wakeups_total",
            "Times that a worker looked for something to begin.",
            wait.worker_wakeups_total,
        ),
        (
            "raft_host_commit_wait_passes_total",
            "Times that a group's waiting commits were gone through.",
            wait.passes_total,
        ),
        (
            "raft_host_commit_wait_looked_at_total",
            "Commits looked at in them.",
            wait.looked_at_total,
        ),
    ];
    for (name, help, value) in counters {
        one(out, name, Counter, help, value);
    }
}
