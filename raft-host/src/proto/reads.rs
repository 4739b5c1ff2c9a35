//! The linearizable reads of one group: those that wait for the next round, those that a round
//! asked about, those that another node was asked about, and those that only wait for apply.
//!
//! R1: a read is asked about only by a round stamped after it arrived (safety 8): it waits until
//!     one is begun, and that round's token is the first that may confirm it.
//! R2: a read leaves once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::id::{Index, ReadId, ReplicaId};

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A caller of this shard.
    Local(ReadId),
    /// A follower, under its own name for the read.
    Remote {
        /// The follower.
        replica: ReplicaId,
        /// Its name for the read.
        token: u64,
    },
}

/// The reads of one group.
#[derive(Debug, Default)]
pub struct Reads {
    /// Local reads that have not ended.
    live: BTreeSet<ReadId>,
    waiting: Vec<Reader>,
    asked: VecDeque<(u64, Vec<Reader>)>,
    forwarded: BTreeMap<u64, ReadId>,
    confirmed: BTreeSet<(Index, ReadId)>,
}

impl Reads {
    /// How many there are, for the bound.
    #[must_use]
    pub fn len(&self) -> usize {
        let asked: usize = self.asked.iter().map(|(_, readers)| readers.len()).sum();
        self.waiting.len() + asked + self.forwarded.len() + self.confirmed.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A read that needs a round of this leader.
    pub fn wait(&mut self, reader: Reader) {
        if let Reader::Local(id) = reader {
            self.live.insert(id);
        }
        self.waiting.push(reader);
    }

    /// A read that the leader elsewhere was asked about under `token`.
    pub fn forward(&mut self, token: u64, id: ReadId) {
        self.live.insert(id);
        self.forwarded.insert(token, id);
    }

    /// Whether a round should list this group for its reads.
    #[must_use]
    pub fn wants_round(&self) -> bool {
        !self.waiting.is_empty() || !self.asked.is_empty()
    }

    /// Whether a read waits for the next round to begin.
    #[must_use]
    pub fn wants_token(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A round begins: what waited is asked about under this token.
    pub fn ask(&mut self, token: u64) {
        let readers = std::mem::take(&mut self.waiting);
        self.asked.push_back((token, readers));
    }

    /// The newest token asked about.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        self.asked.back().map(|(token, _)| *token)
    }

    /// A quorum has consented under this token: it and those before it are confirmed. Local reads
    /// now wait for apply; remote readers are returned, to be answered.
    pub fn confirm(&mut self, token: u64, index: Index) -> Vec<(ReplicaId, u64)> {
        let mut remote = Vec::new();
        while self.asked.front().is_some_and(|(asked, _)| *asked <= token) {
            for reader in self
                .asked
                .pop_front()
                .map(|(_, readers)| readers)
                .unwrap_or_default()
            {
                match reader {
                    Reader::Local(id) if self.live.contains(&id) => {
                        self.confirmed.insert((index, id));
                    }
                    Reader::Local(_) => {}
                    Reader::Remote { replica, token } => remote.push((replica, token)),
                }
            }
        }
        remote
    }

    /// The leader elsewhere has answered: with an index the read waits for apply, without it ends
    /// here and is returned.
    pub fn answered(&mut self, token: u64, index: Option<Index>) -> Option<ReadId> {
        let id = self.forwarded.remove(&token)?;
        match index {
            Some(index) if self.live.contains(&id) => {
                self.confirmed.insert((index, id));
                None
            }
            Some(_) => None,
            None => self.live.remove(&id).then_some(id),
        }
    }

    /// The next local read whose index is applied.
    pub fn ready_next(&mut self, applied: Index) -> Option<(Index, ReadId)> {
        while let Some((index, id)) = self.confirmed.first().copied() {
            if index > applied {
                return None;
            }
            self.confirmed.pop_first();
            if self.live.remove(&id) {
                return Some((index, id));
            }
        }
        None
    }

    /// Ends one local read.
    pub fn expire(&mut self, id: ReadId) -> bool {
        self.live.remove(&id)
    }

    /// Whether this local read has not ended.
    #[must_use]
    pub fn is_live(&self, id: ReadId) -> bool {
        self.live.contains(&id)
    }

    /// The leader is lost: local reads without an index end, and the remote readers are returned.
    /// Those whose index is confirmed stay: their answer is as good as it was.
    pub fn fail(&mut self) -> (Vec<ReadId>, Vec<(ReplicaId, u64)>) {
        let (mut local, mut remote) = (Vec::new(), Vec::new());
        let asked = std::mem::take(&mut self.asked);
        let readers = asked.into_iter().flat_map(|(_, readers)| readers);
        for reader in readers.chain(std::mem::take(&mut self.waiting)) {
            match reader {
                Reader::Local(id) if self.live.remove(&id) => local.push(id),
                Reader::Local(_) => {}
                Reader::Remote { replica, token } => remote.push((replica, token)),
            }
        }
        for (_, id) in std::mem::take(&mut self.forwarded) {
            if self.live.remove(&id) {
                local.push(id);
            }
        }
        (local, remote)
    }

    /// Ends every local read.
    pub fn fail_all(&mut self) -> Vec<ReadId> {
        let live = std::mem::take(&mut self.live);
        *self = Self::default();
        live.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_confirms_only_what_was_asked_by_it_or_before() {
        let mut reads = Reads::default();
        reads.wait(Reader::Local(ReadId::new(1)));
        reads.ask(10);
        reads.wait(Reader::Local(ReadId::new(2)));
        assert!(reads.confirm(10, Index::new(5)).is_empty());
        assert_eq!(reads.ready_next(Index::new(4)), None);
        assert_eq!(
            reads.ready_next(Index::new(5)),
            Some((Index::new(5), ReadId::new(1)))
        );
        assert_eq!(reads.ready_next(Index::new(9)), None);
        assert!(reads.wants_token());
    }

    #[test]
    fn a_lost_leader_ends_reads_without_an_index_only() {
        let mut reads = Reads::default();
        reads.wait(Reader::Local(ReadId::new(1)));
        reads.ask(10);
        reads.confirm(10, Index::new(5));
        reads.wait(Reader::Remote {
            replica: ReplicaId::new(4),
            token: 77,
        });
        reads.forward(3, ReadId::new(2));
        let (local, remote) = reads.fail();
        assert_eq!(
            (local, remote),
            (vec![ReadId::new(2)], vec![(ReplicaId::new(4), 77)])
        );
        assert_eq!(
            reads.ready_next(Index::new(5)),
            Some((Index::new(5), ReadId::new(1)))
        );
    }

    #[test]
    fn an_expired_read_is_not_answered() {
        let mut reads = Reads::default();
        reads.wait(Reader::Local(ReadId::new(1)));
        reads.ask(10);
        assert!(reads.expire(ReadId::new(1)));
        reads.confirm(10, Index::new(5));
        assert_eq!(reads.ready_next(Index::new(5)), None);
        assert!(reads.is_empty());
    }
}
