//! Accounts over statuses: whether everything that a stopped node began has ended, and what
//! happened on a lane between two looks at it. The numbers are the status's; nothing is counted
//! here.

use std::fmt;

use super::status::{PeerStatus, Status};

/// Why a stopped node's account isn't closed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccountFault {
    /// On a lane, what was started is not what ended and what is alive.
    Uneven {
        /// The node.
        node: u64,
        /// Towards whom.
        peer: u64,
        /// Which lane.
        lane: String,
        /// Items sent.
        started: u64,
        /// Items that ended.
        ended: u64,
        /// Items that haven't.
        live: u64,
    },
    /// A lane holds something, though its node has stopped.
    Held {
        /// The node.
        node: u64,
        /// Towards whom.
        peer: u64,
        /// Which lane.
        lane: String,
        /// What, as the status names it.
        what: &'static str,
        /// How much.
        count: u64,
    },
    /// Something waits for its outcome, though its node has stopped.
    Waiting {
        /// The node.
        node: u64,
        /// What, as the status names it.
        what: &'static str,
        /// How many.
        count: u64,
    },
}

impl fmt::Display for AccountFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uneven {
                node,
                peer,
                lane,
                started,
                ended,
                live,
            } => write!(
                f,
                "node {node}, peer {peer}, {lane}: {started} started, {ended} ended and {live} live"
            ),
            Self::Held {
                node,
                peer,
                lane,
                what,
                count,
            } => write!(f, "node {node}, peer {peer}, {lane}: {what} is {count}"),
            Self::Waiting { node, what, count } => write!(f, "node {node}: {what} is {count}"),
        }
    }
}

/// Holds the last status of a stopped node to account: on each lane all that was started has ended
/// and nothing is held, and nothing waits for its outcome.
///
/// # Errors
/// The first thing that is off.
pub fn closed(status: &Status) -> Result<(), AccountFault> {
    status
        .peers
        .iter()
        .try_for_each(|lane| closed_lane(status.node, lane))?;
    let waiting = [
        ("proposals.waiting", status.proposals.waiting),
        ("commit_wait.outstanding", status.commit_wait.outstanding),
    ];
    match waiting.into_iter().find(|(_, count)| *count > 0) {
        None => Ok(()),
        Some((what, count)) => Err(AccountFault::Waiting {
            node: status.node,
            what,
            count,
        }),
    }
}

fn closed_lane(node: u64, lane: &PeerStatus) -> Result<(), AccountFault> {
    let (started, ended, live) = (lane.frames_started, lane.ended(), lane.live());
    if started != ended + live {
        return Err(AccountFault::Uneven {
            node,
            peer: lane.peer,
            lane: lane.lane.clone(),
            started,
            ended,
            live,
        });
    }
    let held = [
        ("outstanding", lane.outstanding),
        ("frames_queued", lane.frames_queued),
        ("frames_writing", lane.frames_writing),
        ("frames_outstanding", lane.frames_outstanding),
        ("reserved_items", lane.reserved_items),
        ("reserved_bytes", lane.reserved_bytes),
        ("unused_items", lane.unused_items),
        ("unused_bytes", lane.unused_bytes),
    ];
    match held.into_iter().find(|(_, count)| *count > 0) {
        None => Ok(()),
        Some((what, count)) => Err(AccountFault::Held {
            node,
            peer: lane.peer,
            lane: lane.lane.clone(),
            what,
            count,
        }),
    }
}

impl PeerStatus {
    /// Items that have ended, however.
    #[must_use]
    pub fn ended(&self) -> u64 {
        [
            self.frames_replied,
            self.frames_refused,
            self.frames_expired,
            self.frames_revoked,
            self.frames_superseded,
            self.frames_lost,
            self.frames_shut_down,
        ]
        .iter()
        .sum()
    }

    /// Items that were sent and haven't ended.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.frames_queued + self.frames_writing + self.frames_outstanding
    }

    /// Whether every item that was sent has ended or is alive.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.frames_started == self.ended() + self.live()
    }

    /// What was counted since an earlier look at the same lane, the distributions of delays too. What
    /// stands at a moment (state, session, what is outstanding or held) is this look's, and so is the
    /// window's occupancy, of which only the node's lifetime is known.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        let flushes = (&mut since.flushes, &earlier.flushes);
        let counts = [
            (&mut since.frames_begun, earlier.frames_begun),
            (&mut since.frames_answered, earlier.frames_answered),
            (&mut since.frames_started, earlier.frames_started),
            (&mut since.frames_replied, earlier.frames_replied),
            (&mut since.frames_refused, earlier.frames_refused),
            (&mut since.frames_expired, earlier.frames_expired),
            (&mut since.frames_revoked, earlier.frames_revoked),
            (&mut since.frames_superseded, earlier.frames_superseded),
            (&mut since.frames_lost, earlier.frames_lost),
            (&mut since.frames_shut_down, earlier.frames_shut_down),
            (&mut since.bytes_sent, earlier.bytes_sent),
            (&mut flushes.0.slot_freed, flushes.1.slot_freed),
            (&mut flushes.0.frame_full, flushes.1.frame_full),
            (&mut flushes.0.deadline, flushes.1.deadline),
            (&mut flushes.0.urgent, flushes.1.urgent),
        ];
        for (now, then) in counts {
            *now = now.saturating_sub(then);
        }
        since.queue_delay_us = self.queue_delay_us.since(&earlier.queue_delay_us);
        since.turnaround_us = self.turnaround_us.since(&earlier.turnaround_us);
        since
    }
}

#[cfg(test)]
mod tests {
    use transport::proto::histogram::Distribution;

    use super::super::status::DelayStatus;
    use super::super::tests::status;
    use super::*;

    fn waits(sizes: &[(u64, u64)], sum: u64) -> DelayStatus {
        Distribution::of(sizes.to_vec(), sum).into()
    }

    fn stopped() -> Status {
        let mut status = status(false);
        for lane in &mut status.peers {
            lane.frames_replied += lane.live();
            (lane.frames_queued, lane.frames_writing) = (0, 0);
            (lane.frames_outstanding, lane.outstanding) = (0, 0);
            (lane.reserved_items, lane.reserved_bytes) = (0, 0);
            (lane.unused_items, lane.unused_bytes) = (0, 0);
        }
        (status.proposals.waiting, status.commit_wait.outstanding) = (0, 0);
        status
    }

    #[test]
    fn a_closed_account_is_exact_and_anything_off_is_named() {
        let status = stopped();
        assert!(!status.peers.is_empty());
        assert_eq!(closed(&status), Ok(()));
        let said = |change: fn(&mut Status)| {
            let mut changed = stopped();
            change(&mut changed);
            closed(&changed).unwrap_err().to_string()
        };
        let lane = format!(
            "node {}, peer {}, {}: ",
            status.node, status.peers[0].peer, status.peers[0].lane
        );
        let lost = said(|status| status.peers[0].frames_started += 1);
        assert!(
            lost.starts_with(&lane) && lost.contains("started"),
            "{lost}"
        );
        let live = said(|status| {
            status.peers[0].frames_started += 1;
            status.peers[0].frames_writing = 1;
        });
        assert_eq!(live, format!("{lane}frames_writing is 1"));
        let held = said(|status| status.peers[0].reserved_bytes = 7);
        assert_eq!(held, format!("{lane}reserved_bytes is 7"));
        let waits = said(|status| status.proposals.waiting = 2);
        assert!(waits.contains("proposals.waiting is 2"), "{waits}");
    }

    #[test]
    fn what_happened_since_is_the_difference_of_counts_and_this_look_s_state() {
        let mut earlier = stopped().peers.remove(0);
        earlier.turnaround_us = waits(&[(8, 10), (9, 4)], 116);
        let mut now = earlier.clone();
        now.frames_started += 5;
        now.frames_replied += 4;
        now.frames_queued = 1;
        now.flushes.urgent += 3;
        let more = [(8, 12), (9, 4), (200, 1)];
        now.turnaround_us = waits(&more, 331);
        now.bytes_sent += 600;
        let since = now.since(&earlier);
        assert_eq!((since.frames_started, since.frames_replied), (5, 4));
        assert_eq!((since.frames_queued, since.flushes.urgent), (1, 3));
        assert_eq!((since.bytes_sent, since.frames_lost), (600, 0));
        assert_eq!(since.queue_delay_us, DelayStatus::default());
        assert_eq!(since.turnaround_us, waits(&[(8, 2), (200, 1)], 215));
        assert!(since.is_exact());
    }
}
