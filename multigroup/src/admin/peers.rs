//! The lanes' part of a status, from what the transport says of them. It counts and adds nothing of
//! its own, so what was exact there is exact here (safety T10).

use transport::io;
use transport::proto::histogram::Distribution;
use transport::receipt::OutcomeKind;

use super::status::{DelayStatus, FlushCounts, LaneState, OccupancyStatus, PeerStatus};

/// All lanes, in the transport's order.
#[must_use]
pub fn lane_statuses(status: &io::Status) -> Vec<PeerStatus> {
    status.lanes.iter().map(lane_status).collect()
}

/// One lane.
#[must_use]
pub fn lane_status(lane: &io::LaneStatus) -> PeerStatus {
    let (account, stats) = (&lane.account, &lane.stats);
    let ended = |kind| account.ended_by(kind);
    let reserved = account.reserved();
    PeerStatus {
        peer: u64::from(lane.peer.to_u32()),
        lane: lane.lane.to_string(),
        state: match lane.state {
            io::LaneState::Down => LaneState::Down,
            io::LaneState::Connecting => LaneState::Connecting,
            io::LaneState::Up => LaneState::Up,
            io::LaneState::Revoked => LaneState::Revoked,
            io::LaneState::Closed => LaneState::Closed,
        },
        session: lane.session.map(|session| session.to_string()),
        incarnation: lane.incarnation.map(|incarnation| incarnation.to_string()),
        cert_serial: lane.certificate.as_ref().map(|leaf| leaf.serial.clone()),
        window: u64::from(lane.window_frames),
        outstanding: lane.outstanding_frames as u64,
        rtt_us: lane.round_trip.map(|rtt| whole(rtt.as_micros())),
        last_reply_age_ms: lane.last_reply_age.map(|age| whole(age.as_millis())),
        frames_begun: stats.frames_begun,
        frames_answered: stats.frames_answered,
        frames_started: account.started,
        frames_queued: account.queued.items,
        frames_writing: account.writing.items,
        frames_outstanding: account.outstanding.items,
        frames_replied: ended(OutcomeKind::Replied),
        frames_refused: ended(OutcomeKind::Refused),
        frames_expired: ended(OutcomeKind::Expired),
        frames_revoked: ended(OutcomeKind::Revoked),
        frames_superseded: ended(OutcomeKind::Superseded),
        frames_lost: ended(OutcomeKind::SessionLost),
        frames_shut_down: ended(OutcomeKind::ShutDown),
        reserved_items: reserved.items,
        reserved_bytes: reserved.bytes,
        unused_items: account.unused.items,
        unused_bytes: account.unused.bytes,
        bytes_sent: stats.bytes_begun,
        queue_delay_us: lane.queue_delay.clone().into(),
        turnaround_us: lane.turnaround.clone().into(),
        window_occupancy: OccupancyStatus {
            mean_hundredths: lane.occupancy.mean_hundredths,
            p50: lane.occupancy.p50,
            p99: lane.occupancy.p99,
            max: lane.occupancy.max,
        },
        flushes: FlushCounts {
            slot_freed: stats.flushes.slot_freed,
            frame_full: stats.flushes.frame_full,
            // A lane begins a frame as soon as it has something and a slot is free: none waits.
            deadline: 0,
            urgent: stats.flushes.urgent,
        },
    }
}

fn whole(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

impl From<Distribution> for DelayStatus {
    fn from(distribution: Distribution) -> Self {
        Self {
            mean: distribution.mean_micros,
            p99: distribution.p99_micros,
            sum: distribution.sum_micros,
            sizes: distribution.sizes,
        }
    }
}

impl DelayStatus {
    /// What came since an earlier look at the same one.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let read = |it: &Self| Distribution::of(it.sizes.clone(), it.sum);
        read(self).since(&read(earlier)).into()
    }
}
