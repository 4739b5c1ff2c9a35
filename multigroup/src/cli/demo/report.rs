//! The result of a demo as programs read it: `multigroup.demo/1`. What a run didn't come to is null.

use serde::Serialize;

use crate::admin::{PeerStatus, Status};
use crate::{load, verify};

/// The schema of [`Report`].
pub(super) const DEMO_SCHEMA: &str = "multigroup.demo/1";

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) schema: &'static str,
    /// All that was to be done was done, every replica, position and counter was found as it must
    /// be, and every account is closed.
    pub(super) ok: bool,
    pub(super) nodes: u64,
    pub(super) groups: u64,
    /// The file system of the folder.
    pub(super) fs: String,
    pub(super) log_sync: bool,
    /// Whether what was acknowledged would outlive a power cut.
    pub(super) durable: bool,
    /// Whether leaders publish what is committed.
    pub(super) archive: bool,
    /// From the first process to the last group's leader, evenly spread.
    pub(super) start_seconds: Option<f64>,
    pub(super) load: Option<load::Report>,
    pub(super) verify: Option<verify::Report>,
    /// Over the timed part, as the node saw it that saw most.
    pub(super) leader_changes_during_load: Option<u64>,
    /// By node, over its life: the most memory resident.
    pub(super) rss_max_bytes: Vec<Option<u64>>,
    /// Over the timed part.
    pub(super) peers: Vec<LaneSince>,
    /// `exact`, or the first thing that is off.
    pub(super) final_accounting: Option<String>,
    /// Why it isn't `ok`.
    pub(super) failure: Option<String>,
}

/// What happened on a node's lane over the timed part.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LaneSince {
    pub(super) node: u64,
    #[serde(flatten)]
    pub(super) lane: PeerStatus,
}

/// What the lanes of all nodes did between two looks at each; a node that was silent at one of them
/// has none.
pub(super) fn lanes_since(before: &[Option<Status>], after: &[Option<Status>]) -> Vec<LaneSince> {
    let both = before.iter().zip(after);
    let both = both.filter_map(|(before, after)| before.as_ref().zip(after.as_ref()));
    both.flat_map(|(before, after)| {
        after.peers.iter().filter_map(move |lane| {
            let is_same = |one: &&PeerStatus| one.peer == lane.peer && one.lane == lane.lane;
            let earlier = before.peers.iter().find(is_same)?;
            let mut lane = lane.since(earlier);
            // They have served their purpose, and would be most of the text.
            lane.queue_delay_us.sizes.clear();
            lane.turnaround_us.sizes.clear();
            let node = after.node;
            Some(LaneSince { node, lane })
        })
    })
    .collect()
}

/// The changes of leaders between two looks. Each node sees those of its groups, so the one that saw
/// most saw them all, and a sum would count each as often as it was seen.
pub(super) fn leader_changes(before: &[Option<Status>], after: &[Option<Status>]) -> Option<u64> {
    let count = |status: &Option<Status>| Some(status.as_ref()?.groups.leader_changes_total);
    let both = before.iter().zip(after);
    let changes = both.map(|(before, after)| Some(count(after)?.saturating_sub(count(before)?)));
    changes.collect::<Option<Vec<_>>>()?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::status;

    #[test]
    fn changes_of_leaders_are_those_of_the_node_that_saw_most() {
        let seen = |count| {
            let mut status = status(true);
            status.groups.leader_changes_total = count;
            Some(status)
        };
        let before = [seen(5), seen(7), seen(0)];
        assert_eq!(leader_changes(&before, &before), Some(0));
        assert_eq!(
            leader_changes(&before, &[seen(6), seen(10), seen(2)]),
            Some(3)
        );
        assert_eq!(leader_changes(&before, &[seen(6), None, seen(2)]), None);
    }

    #[test]
    fn lanes_are_told_by_node_with_what_happened_since() {
        let before = [Some(status(true)), None];
        let mut later = status(true);
        later.peers[0].frames_started += 9;
        let lanes = lanes_since(&before, &[Some(later.clone()), Some(later)]);
        assert_eq!(lanes.len(), status(true).peers.len());
        assert_eq!(lanes[0].lane.frames_started, 9);
        let value = serde_json::to_value(&lanes[0]).unwrap();
        assert_eq!(
            (&value["node"], &value["frames_lost"]),
            (&1.into(), &0.into())
        );
        assert!(value["queue_delay_us"]["p99"].is_u64());
    }
}
