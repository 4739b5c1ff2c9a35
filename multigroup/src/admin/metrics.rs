//! `/metrics`: the status in the form of Prometheus. Families of the transport and of the host are
//! named for them; none has a label for groups, of which there are thousands.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::exposition::{Exposition, Kind, Number};
use super::status::{DiskHealth, HandoverStatus, LaneState, PeerStatus, Status};

/// All families that the status has.
pub(super) fn write(status: &Status, out: &mut Exposition) {
    write_node(status, out);
    write_groups(status, out);
    write_rounds(status, out);
    write_handovers(&status.handovers, out);
    write_lanes(&status.peers, out);
    write_accounts(&status.peers, out);
}

pub(super) fn one(
    out: &mut Exposition,
    name: &'static str,
    kind: Kind,
    help: &'static str,
    number: impl Into<Number>,
) {
    out.family(name, kind, help).sample(&[], number);
}

/// The counters of heartbeats and proposals: name, help, number.
fn write_rounds(status: &Status, out: &mut Exposition) {
    let (r, p) = (&status.rounds, &status.proposals);
    for (name, help, number) in [
        (
            "raft_host_rounds_total",
            "Rounds begun that cover groups.",
            r.rounds_total,
        ),
        (
            "raft_host_read_rounds_total",
            "Rounds begun for reads.",
            r.read_rounds_total,
        ),
        (
            "raft_host_beat_frames_total",
            "Frames that carried beats.",
            r.beat_frames_total,
        ),
        (
            "raft_host_beats_listed_total",
            "Groups listed in them.",
            r.beats_listed_total,
        ),
        (
            "raft_host_beat_bytes_total",
            "Bytes of the beats.",
            r.beat_bytes_total,
        ),
        (
            "raft_host_beat_group_bytes_total",
            "Bytes of the beats' groups alone, without what surrounds them.",
            r.beat_group_bytes_total,
        ),
        (
            "raft_host_rounds_restated_total",
            "Rounds asked for anew.",
            r.restated_total,
        ),
        (
            "raft_host_dissents_total",
            "Groups that disagreed with a round.",
            r.dissents_total,
        ),
        (
            "raft_host_campaigns_total",
            "Campaigns begun.",
            r.campaigns_total,
        ),
        (
            "raft_host_forwards_sent_total",
            "Proposals sent on to leaders elsewhere.",
            p.forwards_sent_total,
        ),
        (
            "raft_host_forwards_taken_total",
            "Proposals of other nodes that came here.",
            p.forwards_taken_total,
        ),
        (
            "raft_host_forwards_held_total",
            "Proposals held because no leader was known.",
            p.forwards_held_total,
        ),
        (
            "raft_host_elected_total",
            "Leaderships won.",
            r.elected_total,
        ),
    ] {
        one(out, name, Kind::Counter, help, number);
    }
    one(
        out,
        "raft_host_proposals_waiting",
        Kind::Gauge,
        "Proposals and reads that wait.",
        p.waiting,
    );
    let mut ends = out.family(
        "raft_host_proposals_total",
        Kind::Counter,
        "Proposals that ended, and how.",
    );
    for (outcome, number) in [
        ("committed", p.committed_total),
        ("refused", p.refused_total),
        ("unknown", p.unknown_total),
    ] {
        ends.sample(&[("outcome", outcome)], number);
    }
}

fn write_handovers(status: &HandoverStatus, out: &mut Exposition) {
    one(
        out,
        "raft_host_groups_astray",
        Kind::Gauge,
        "Groups led here that another node should lead.",
        status.groups_astray,
    );
    for (name, help, number) in [
        (
            "raft_host_handovers_begun_total",
            "Hand-overs of leadership begun.",
            status.begun_total,
        ),
        (
            "raft_host_handovers_finished_total",
            "Hand-overs after which the replica they were for led.",
            status.finished_total,
        ),
        (
            "raft_host_handovers_failed_total",
            "Hand-overs that were given up, or after which another replica led.",
            status.failed_total,
        ),
        (
            "raft_host_handovers_taken_total",
            "Leaderships taken over from other nodes on their call.",
            status.taken_total,
        ),
        (
            "raft_host_handover_proposals_held_total",
            "Proposals that waited for a hand-over.",
            status.proposals_held_total,
        ),
    ] {
        one(out, name, Kind::Counter, help, number);
    }
}

fn write_node(status: &Status, out: &mut Exposition) {
    use Kind::{Counter, Gauge};
    out.family(
        "multigroup_node_info",
        Gauge,
        "The node, its cluster and its data directory; always 1.",
    )
    .sample(
        &[
            ("node", &status.node.to_string()),
            ("cluster", &status.cluster),
            ("incarnation", &status.incarnation),
            ("version", env!("CARGO_PKG_VERSION")),
        ],
        1,
    );
    one(
        out,
        "multigroup_ready",
        Gauge,
        "Whether clients may be sent here.",
        status.ready,
    );
    super::commit_wait::write(out, &status.commit_wait);
    let log = &status.log;
    one(
        out,
        "raft_host_log_last_sync_seconds",
        Gauge,
        "How long the last sync took.",
        log.last_sync_us as f64 / 1e6,
    );
    one(
        out,
        "raft_host_log_unsynced_bytes",
        Gauge,
        "Bytes that no sync covers yet.",
        log.unsynced_bytes,
    );
    let mut disk = out.family(
        "raft_host_log_disk",
        Gauge,
        "The state of the log's disk: 1 for the one it is in.",
    );
    for (name, state) in [
        ("ok", DiskHealth::Ok),
        ("full", DiskHealth::Full),
        ("failed", DiskHealth::Failed),
    ] {
        disk.sample(&[("state", name)], log.disk == state);
    }
    if let Some(archive) = &status.archive {
        one(
            out,
            "multigroup_archive_groups_current",
            Gauge,
            "Groups of which all is archived.",
            archive.groups_current,
        );
        one(
            out,
            "multigroup_archive_lag_bytes",
            Gauge,
            "Bytes that aren't archived yet.",
            archive.lag_bytes,
        );
        let age = archive.last_publish_age_ms as f64 / 1e3;
        one(
            out,
            "multigroup_archive_last_publish_age_seconds",
            Gauge,
            "How long ago something was published.",
            age,
        );
        for (name, kind, help, number) in [
            (
                "multigroup_archive_writes_held",
                Gauge,
                "Whether writes wait, or are refused, because too much lags.",
                u64::from(archive.writes_held),
            ),
            (
                "multigroup_archive_groups_stopped",
                Gauge,
                "Groups whose archive and log contradict each other.",
                archive.groups_stopped,
            ),
            (
                "multigroup_archive_objects_total",
                Counter,
                "Objects published.",
                archive.objects_total,
            ),
            (
                "multigroup_archive_published_bytes_total",
                Counter,
                "Bytes published.",
                archive.bytes_total,
            ),
            (
                "multigroup_archive_failures_total",
                Counter,
                "Tries that the object store failed.",
                archive.failures_total,
            ),
        ] {
            one(out, name, kind, help, number);
        }
    }
    if let Ok(lapses) = OffsetDateTime::parse(&status.tls.cert_not_after, &Rfc3339) {
        let lapses = lapses.unix_timestamp() as f64;
        one(
            out,
            "multigroup_tls_certificate_not_after_timestamp_seconds",
            Gauge,
            "When the certificate lapses, since 1970.",
            lapses,
        );
    }
    for (name, help, count) in [
        (
            "multigroup_tls_reloads_total",
            "Changes of the credentials' files that were taken over.",
            status.tls.reloads_total,
        ),
        (
            "multigroup_tls_reloads_refused_total",
            "Changes of the credentials' files that couldn't be used.",
            status.tls.reloads_refused_total,
        ),
    ] {
        one(out, name, Counter, help, count);
    }
    if let Some(age) = status.tls.crl_age_s {
        one(
            out,
            "multigroup_tls_crl_age_seconds",
            Gauge,
            "The age of the revocation list.",
            age,
        );
    }
}

fn write_groups(status: &Status, out: &mut Exposition) {
    let groups = &status.groups;
    let mut family = out.family(
        "raft_host_groups",
        Kind::Gauge,
        "Replicas here, by who leads their group.",
    );
    for (state, count) in [
        ("leading", groups.leading),
        ("following", groups.following),
        ("leaderless", groups.leaderless),
    ] {
        family.sample(&[("state", state)], count);
    }
    one(
        out,
        "raft_host_groups_sleeping",
        Kind::Gauge,
        "Replicas here that sleep.",
        groups.sleeping,
    );
    one(
        out,
        "raft_host_leader_changes_total",
        Kind::Counter,
        "Changes of any group's leader, as seen here.",
        groups.leader_changes_total,
    );
}

/// One family with a sample for each lane.
fn each_lane<N: Into<Number>>(
    lanes: &[PeerStatus],
    out: &mut Exposition,
    (name, kind, help): (&'static str, Kind, &'static str),
    number: impl Fn(&PeerStatus) -> N,
) {
    let mut family = out.family(name, kind, help);
    for lane in lanes {
        let peer = lane.peer.to_string();
        family.sample(&[("peer", &peer), ("lane", &lane.lane)], number(lane));
    }
}

/// One family with several samples for each lane, told apart by one more label.
fn each_lane_by<const N: usize>(
    lanes: &[PeerStatus],
    out: &mut Exposition,
    (name, kind, help, label): (&'static str, Kind, &'static str, &'static str),
    numbers: impl Fn(&PeerStatus) -> [(&'static str, u64); N],
) {
    let mut family = out.family(name, kind, help);
    for lane in lanes {
        let peer = lane.peer.to_string();
        for (value, number) in numbers(lane) {
            family.sample(
                &[("peer", &peer), ("lane", &lane.lane), (label, value)],
                number,
            );
        }
    }
}

fn write_lanes(lanes: &[PeerStatus], out: &mut Exposition) {
    use Kind::{Counter, Gauge};
    let up = |lane: &PeerStatus| lane.state == LaneState::Up;
    each_lane(
        lanes,
        out,
        ("transport_lane_up", Gauge, "Whether frames may go."),
        up,
    );
    let family = (
        "transport_window_frames",
        Gauge,
        "The agreed control window.",
    );
    each_lane(lanes, out, family, |lane| lane.window);
    let family = (
        "transport_window_outstanding_frames",
        Gauge,
        "Frames begun and not answered.",
    );
    each_lane(lanes, out, family, |lane| lane.outstanding);
    let family = ("transport_frames_begun_total", Counter, "Frames begun.");
    each_lane(lanes, out, family, |lane| lane.frames_begun);
    let family = (
        "transport_frames_answered_total",
        Counter,
        "Frames answered.",
    );
    each_lane(lanes, out, family, |lane| lane.frames_answered);
    let family = (
        "transport_sent_bytes_total",
        Counter,
        "Bytes handed to TLS.",
    );
    each_lane(lanes, out, family, |lane| lane.bytes_sent);
    let seconds = |micros: u64| micros as f64 / 1e6;
    let family = (
        "transport_queue_delay_mean_seconds",
        Gauge,
        "From an item's arrival to the beginning of its frame: the mean since the start.",
    );
    each_lane(lanes, out, family, |lane| seconds(lane.queue_delay_us.mean));
    let family = (
        "transport_queue_delay_p99_seconds",
        Gauge,
        "From an item's arrival to the beginning of its frame: 99 of 100 since the start.",
    );
    each_lane(lanes, out, family, |lane| seconds(lane.queue_delay_us.p99));
    let family = (
        "transport_turnaround_mean_seconds",
        Gauge,
        "From the beginning of a frame to its reply: the mean since the start.",
    );
    each_lane(lanes, out, family, |lane| seconds(lane.turnaround_us.mean));
    let family = (
        "transport_turnaround_p99_seconds",
        Gauge,
        "From the beginning of a frame to its reply: 99 of 100 since the start.",
    );
    each_lane(lanes, out, family, |lane| seconds(lane.turnaround_us.p99));
    let family = (
        "transport_flushes_total",
        Counter,
        "Frames begun, by what caused it.",
        "cause",
    );
    each_lane_by(lanes, out, family, |lane| {
        [
            ("slot_freed", lane.flushes.slot_freed),
            ("deadline", lane.flushes.deadline),
            ("urgent", lane.flushes.urgent),
        ]
    });
    let family = (
        "transport_full_frames_total",
        Counter,
        "Frames that took no more.",
    );
    each_lane(lanes, out, family, |lane| lane.flushes.frame_full);
}

fn write_accounts(lanes: &[PeerStatus], out: &mut Exposition) {
    use Kind::{Counter, Gauge};
    let family = ("transport_items_started_total", Counter, "Items sent.");
    each_lane(lanes, out, family, |lane| lane.frames_started);
    let family = (
        "transport_items_ended_total",
        Counter,
        "Items ended, by their outcome.",
        "outcome",
    );
    each_lane_by(lanes, out, family, |lane| {
        [
            ("replied", lane.frames_replied),
            ("refused", lane.frames_refused),
            ("expired", lane.frames_expired),
            ("revoked", lane.frames_revoked),
            ("superseded", lane.frames_superseded),
            ("lost", lane.frames_lost),
            ("shut_down", lane.frames_shut_down),
        ]
    });
    let family = (
        "transport_items_live",
        Gauge,
        "Items sent and not ended.",
        "stage",
    );
    each_lane_by(lanes, out, family, |lane| {
        [
            ("queued", lane.frames_queued),
            ("writing", lane.frames_writing),
            ("outstanding", lane.frames_outstanding),
        ]
    });
    let family = (
        "transport_reserved_items",
        Gauge,
        "Items that hold a part of the budget.",
    );
    each_lane(lanes, out, family, |lane| lane.reserved_items);
    let family = (
        "transport_reserved_bytes",
        Gauge,
        "Bytes that hold a part of the budget.",
    );
    each_lane(lanes, out, family, |lane| lane.reserved_bytes);
    let family = (
        "transport_unused_items",
        Gauge,
        "Of the reserved items, those not sent.",
    );
    each_lane(lanes, out, family, |lane| lane.unused_items);
    let family = (
        "transport_unused_bytes",
        Gauge,
        "Of the reserved bytes, those not sent.",
    );
    each_lane(lanes, out, family, |lane| lane.unused_bytes);
}
