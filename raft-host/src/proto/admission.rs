//! What may begin: campaigns at a bounded, jittered rate (H6), proposals within the shard's bytes
//! (H7). A refusal is at once and has a name; nothing waits here. Also the one source of chance,
//! seeded from outside.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

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

/// Lets campaigns begin at a rate, in bursts of a tenth of a second's worth.
#[derive(Debug)]
pub struct CampaignGate {
    each: Duration,
    /// When the bucket would be empty: it fills as time passes this mark.
    mark: Option<Instant>,
    burst: Duration,
}

impl CampaignGate {
    /// At most `rate` a second.
    #[must_use]
    pub fn new(rate: NonZeroU32) -> Self {
        let each = Duration::from_secs(1) / rate.get();
        Self {
            each,
            mark: None,
            burst: each.max(Duration::from_millis(100)),
        }
    }

    /// Admits one campaign, or says when to ask again, with jitter so that not all ask at once.
    ///
    /// # Errors
    /// The time to ask again.
    pub fn admit(&mut self, now: Instant, dice: &mut Dice) -> Result<(), Instant> {
        let oldest = now.checked_sub(self.burst).unwrap_or(now);
        let mark = self.mark.map_or(oldest, |mark| mark.max(oldest));
        if mark + self.each > now {
            return Err(now + self.each + dice.between(Duration::ZERO, self.each * 8));
        }
        self.mark = Some(mark + self.each);
        Ok(())
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

    #[test]
    fn campaigns_keep_to_their_rate() {
        let start = crate::proto::test_time::start();
        let mut gate = CampaignGate::new(NonZeroU32::new(500).unwrap());
        let mut dice = Dice::new(1);
        let mut admitted = 0;
        for ms in 0..1000 {
            for _ in 0..10 {
                if gate
                    .admit(start + Duration::from_millis(ms), &mut dice)
                    .is_ok()
                {
                    admitted += 1;
                }
            }
        }
        assert!((500..=550).contains(&admitted), "{admitted} in a second");
    }

    #[test]
    fn a_refused_campaign_is_told_when_to_ask_again() {
        let start = crate::proto::test_time::start();
        let mut gate = CampaignGate::new(NonZeroU32::new(10).unwrap());
        let mut dice = Dice::new(1);
        assert!(gate.admit(start, &mut dice).is_ok());
        let at = gate.admit(start, &mut dice).unwrap_err();
        assert!(gate.admit(at, &mut dice).is_ok());
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
