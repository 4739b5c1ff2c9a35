//! A node's status for people.

use std::io::{self, Write};

use crate::admin::{DiskHealth, LaneState, PeerStatus, Status};

pub(super) fn write(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let ready = if status.ready { "ready" } else { "NOT READY" };
    let (node, cluster) = (status.node, &status.cluster);
    writeln!(
        out,
        "node {node} of {cluster}: {ready}, incarnation {}",
        status.incarnation
    )?;
    let groups = &status.groups;
    writeln!(
        out,
        "  groups       {} in all: {} leading, {} following, {} leaderless; {} sleeping; {} changes \
         of leader",
        groups.total,
        groups.leading,
        groups.following,
        groups.leaderless,
        groups.sleeping,
        groups.leader_changes_total
    )?;
    let log = &status.log;
    let disk = match log.disk {
        DiskHealth::Ok => "ok",
        DiskHealth::Full => "FULL",
        DiskHealth::Failed => "FAILED",
    };
    let (sync, unsynced) = (log.last_sync_us, log.unsynced_bytes);
    writeln!(
        out,
        "  log          disk {disk}; last sync {sync} us; {unsynced} bytes unsynced"
    )?;
    let wait = &status.commit_wait;
    if wait.enabled {
        writeln!(
            out,
            "  commit wait  {} of {} outstanding; {} enqueued, {} inline, {} expired",
            wait.outstanding, wait.cap, wait.enqueued_total, wait.inline_total, wait.expired_total
        )?;
    } else {
        writeln!(out, "  commit wait  off")?;
    }
    match &status.archive {
        Some(archive) => {
            writeln!(
                out,
                "  archive      {} groups current; {} bytes behind; last published {} ms ago{}",
                archive.groups_current,
                archive.lag_bytes,
                archive.last_publish_age_ms,
                if archive.writes_held {
                    "; writes held"
                } else {
                    ""
                }
            )?;
            for fault in [&archive.failing, &archive.first_stopped]
                .into_iter()
                .flatten()
            {
                writeln!(out, "               {fault}")?;
            }
        }
        None => writeln!(out, "  archive      off")?,
    }
    let list = status.tls.crl_age_s.map_or_else(
        || "no revocation list".to_owned(),
        |age| format!("revocation list {age} s old"),
    );
    writeln!(
        out,
        "  certificate  until {}; {list}",
        status.tls.cert_not_after
    )?;
    if let Some(fault) = &status.tls.reload_fault {
        writeln!(
            out,
            "               its files can't be used as they are now: {fault}"
        )?;
    }
    if status.peers.is_empty() {
        return writeln!(out, "  peers        none");
    }
    writeln!(
        out,
        "  {:<6}{:<9}{:<12}{:>12}{:>12}{:>12}{:>10}{:>8}{:>14}{:>12}{:>12}",
        "peer",
        "lane",
        "state",
        "window",
        "started",
        "replied",
        "failed",
        "live",
        "bytes sent",
        "queue p99",
        "turn p99"
    )?;
    status
        .peers
        .iter()
        .try_for_each(|peer| write_peer(peer, out))
}

/// Frames outstanding of those that may be. Bulk counts bytes, and without a session there is no
/// window.
fn window(peer: &PeerStatus) -> String {
    if peer.window == 0 {
        return "-".to_owned();
    }
    format!("{} of {}", peer.outstanding, peer.window)
}

fn write_peer(peer: &PeerStatus, out: &mut dyn Write) -> io::Result<()> {
    let state = match peer.state {
        LaneState::Down => "DOWN",
        LaneState::Connecting => "connecting",
        LaneState::Up => "up",
        LaneState::Revoked => "REVOKED",
        LaneState::Closed => "closed",
    };
    let live = peer.frames_queued + peer.frames_writing + peer.frames_outstanding;
    let failed = peer
        .frames_started
        .saturating_sub(peer.frames_replied + live);
    writeln!(
        out,
        "  {:<6}{:<9}{:<12}{:>12}{:>12}{:>12}{:>10}{:>8}{:>14}{:>9} us{:>9} us",
        peer.peer,
        peer.lane,
        state,
        window(peer),
        peer.frames_started,
        peer.frames_replied,
        failed,
        live,
        peer.bytes_sent,
        peer.queue_delay_us.p99,
        peer.turnaround_us.p99
    )
}
