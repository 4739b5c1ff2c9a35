//! What may begin: campaigns at a bounded, jittered rate (H6), proposals within the shard's bytes
//! (H7). A refusal is at once and has a name; nothing waits here. Also the one source of chance,
//! seeded from outside.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use super::group_table::SlotId;
use crate::error::Refusal;
use crate::limits::{PROPOSAL_BYTES_MAX, PROPOSAL_OVERHEAD_BYTES};

/// Seeded chance (SplitMix64): the same seed draws the same numbers.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A duration in `[from, to)`.
    pub fn between(&mut self, from: Duration, to: Duration) -> Duration {
        let span = u64::try_from(to.saturating_sub(from).as_nanos())
            .unwrap_or(u64::MAX)
            .max(1);
        from + Duration::from_nanos(self.draw() % span)
    }
}

/// Lets campaigns begin at a rate, in bursts of a fifth of a second's worth, and those that wait in
/// the order in which they fell due. That order is what makes 500 groups that lose their leader at
/// once quick: with a draw for each refusal some group loses again and again. When a group falls due
/// is drawn by the host, and is the jitter.
///
/// G1: a group waits here once.
#[derive(Debug)]
pub struct CampaignGate {
    each: Duration,
    /// When the bucket would be empty: it fills as time passes this mark.
    mark: Instant,
    burst: Duration,
    waiting: VecDeque<SlotId>,
    queued: BTreeSet<SlotId>,
}

impl CampaignGate {
    /// At most `rate` a second, with a full bucket.
    #[must_use]
    pub fn new(rate: NonZeroU32, now: Instant) -> Self {
        let each = Duration::from_secs(1) / rate.get();
        let burst = each.max(Duration::from_millis(200));
        Self {
            each,
            mark: now.checked_sub(burst).unwrap_or(now),
            burst,
            waiting: VecDeque::new(),
            queued: BTreeSet::new(),
        }
    }

    /// A group wants to campaign.
    pub fn wait(&mut self, slot: SlotId) {
        if self.queued.insert(slot) {
            self.waiting.push_back(slot);
        }
    }

    /// The group that has waited longest, if the rate lets one begin. Whether it still wants to is
    /// the caller's to see.
    pub fn next(&mut self, now: Instant) -> Option<SlotId> {
        if self.next_at().is_none_or(|at| at > now) {
            return None;
        }
        let slot = self.waiting.pop_front()?;
        self.queued.remove(&slot);
        Some(slot)
    }

    /// It did begin.
    pub fn began(&mut self, now: Instant) {
        let oldest = now.checked_sub(self.burst).unwrap_or(now);
        self.mark = self.mark.max(oldest) + self.each;
    }

    /// When the next that waits may begin, which may be past.
    #[must_use]
    pub fn next_at(&self) -> Option<Instant> {
        self.waiting.front()?;
        Some(self.mark + self.each)
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// Counts the bytes of unfinished proposals of a shard.
#[derive(Debug, Default)]
pub struct ProposalGate {
    in_use: u64,
}

impl ProposalGate {
    /// Takes room for a proposal of so many bytes, and says how much it took.
    ///
    /// # Errors
    /// [`Refusal::NodeBusy`] when there is none.
    pub fn admit(&mut self, bytes: usize) -> Result<u64, Refusal> {
        let cost = bytes as u64 + PROPOSAL_OVERHEAD_BYTES;
        if self.in_use + cost > PROPOSAL_BYTES_MAX {
            return Err(Refusal::NodeBusy {
                in_use: self.in_use,
                most: PROPOSAL_BYTES_MAX,
            });
        }
        self.in_use += cost;
        Ok(cost)
    }

    /// Gives back what a finished proposal took.
    pub fn release(&mut self, cost: u64) {
        debug_assert!(cost <= self.in_use, "released {cost} of {}", self.in_use);
        self.in_use = self.in_use.saturating_sub(cost);
    }

    /// Bytes in use.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        self.in_use
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: u64) -> Vec<SlotId> {
        let mut table = crate::proto::group_table::GroupTable::default();
        let insert = |id| table.insert(crate::id::GroupId::new(id), ());
        (0..count).filter_map(insert).collect()
    }

    #[test]
    fn campaigns_keep_to_their_rate() {
        let start = crate::proto::test_time::start();
        let mut gate = CampaignGate::new(NonZeroU32::new(500).unwrap(), start);
        for slot in slots(1000) {
            gate.wait(slot);
        }
        let mut began = 0;
        for ms in 0..1000 {
            let now = start + Duration::from_millis(ms);
            while gate.next(now).is_some() {
                gate.began(now);
                began += 1;
            }
        }
        assert!((500..=600).contains(&began), "{began} in a second");
    }

    #[test]
    fn whoever_waits_longest_is_next_and_is_told_when() {
        let start = crate::proto::test_time::start();
        let mut gate = CampaignGate::new(NonZeroU32::new(2).unwrap(), start);
        let slots = slots(3);
        for slot in slots.iter().chain(&slots) {
            gate.wait(*slot);
        }
        assert_eq!(gate.waiting(), 3, "each once");
        assert_eq!(gate.next(start), Some(slots[0]));
        gate.began(start);
        assert_eq!(gate.next(start), None);
        let at = gate.next_at().unwrap();
        assert!(at > start && at <= start + Duration::from_millis(500));
        assert_eq!(gate.next(at), Some(slots[1]));
        // It didn't want to any more: the next needn't wait.
        assert_eq!(gate.next(at), Some(slots[2]));
        assert_eq!(gate.next_at(), None);
    }

    #[test]
    fn proposals_are_bounded_in_bytes() {
        let mut gate = ProposalGate::default();
        let big = usize::try_from(PROPOSAL_BYTES_MAX - PROPOSAL_OVERHEAD_BYTES).unwrap();
        let cost = gate.admit(big).unwrap();
        assert!(matches!(gate.admit(0), Err(Refusal::NodeBusy { .. })));
        gate.release(cost);
        assert_eq!(gate.in_use(), 0);
        assert!(gate.admit(0).is_ok());
    }
}
