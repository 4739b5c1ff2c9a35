//! What the members of a group have acked, as their leader knows it: judged by the voters of the
//! configuration in force, in this term alone (safety 20).

use raft::StateRole;

use super::Replica;
use crate::id::{Index, ReplicaId};
use crate::log::api::GroupLog;

impl<L: GroupLog> Replica<L> {
    /// Voters of the configuration in force; of a joint one, those of the smaller half.
    #[must_use]
    pub fn voters(&self) -> u64 {
        self.count_voters(|_| true)
    }

    /// Voters of the configuration in force that have acked everything up to `index` in this term,
    /// this replica by what is durable here; in a joint one those of the half with fewer (safety 20).
    /// None unless this replica leads.
    #[must_use]
    pub fn acked(&self, index: Index) -> u64 {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader {
            return 0;
        }
        let acked = |id| {
            raft.prs()
                .get(id)
                .is_some_and(|it| it.matched >= index.to_u64())
        };
        self.count_voters(acked)
    }

    fn count_voters(&self, counts: impl Fn(u64) -> bool) -> u64 {
        let state = self.raw.raft.prs().conf().to_conf_state();
        let count = |ids: &[u64]| ids.iter().filter(|id| counts(**id)).count() as u64;
        let now = count(state.get_voters());
        match state.get_voters_outgoing() {
            [] => now,
            outgoing => now.min(count(outgoing)),
        }
    }

    /// What a member has acked in this term, as its leader knows it.
    #[must_use]
    pub fn matched(&self, member: ReplicaId) -> Option<Index> {
        let leads = self.raw.raft.state == StateRole::Leader;
        let progress = self.raw.raft.prs().get(member.to_u64());
        progress
            .filter(|_| leads)
            .map(|progress| Index::new(progress.matched))
    }

    /// What every member has durably, as their leader knows it.
    #[must_use]
    pub fn matched_by_all(&self) -> Option<Index> {
        let leads = self.raw.raft.state == StateRole::Leader;
        let least = self
            .raw
            .raft
            .prs()
            .iter()
            .map(|(_, progress)| progress.matched)
            .min();
        least.filter(|_| leads).map(Index::new)
    }
}
