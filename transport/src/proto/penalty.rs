//! Which sources have used up their failures for now (T12). A handshake that fails costs as much as
//! one that doesn't, so a source may fail so many times at once and so many times a second; beyond
//! that its connections are closed unanswered until there is room for another failure. One that
//! succeeds costs its source nothing. This is told apart from overload, which is about all sources
//! together and nobody's fault.
//!
//! Knows addresses and times only; what a failure is, the acceptor says.
//!
//! Invariant N1: a source that is not listed has all its failures left.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::limits::{HANDSHAKE_FAILURES_AT_ONCE, HANDSHAKE_FAILURES_PER_S, PENALISED_SOURCES_MAX};

/// How long it takes until a source may fail once more.
const ONE_BACK: Duration = Duration::from_millis(1000 / HANDSHAKE_FAILURES_PER_S as u64);
const _: () = assert!(!ONE_BACK.is_zero());

/// The sources that have failed lately.
#[derive(Debug, Default)]
pub struct Penalties {
    /// When each has all its failures back.
    whole_at: BTreeMap<IpAddr, Instant>,
}

impl Penalties {
    /// Whether a connection from there may be looked at now.
    #[must_use]
    pub fn may_try(&self, now: Instant, source: IpAddr) -> bool {
        let debt = self
            .whole_at
            .get(&source)
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        debt + ONE_BACK <= ONE_BACK * HANDSHAKE_FAILURES_AT_ONCE
    }

    /// A connection from there came to nothing. Where too many sources are listed, the one that is
    /// soonest free of debt is forgotten.
    pub fn on_failure(&mut self, now: Instant, source: IpAddr) {
        self.whole_at.retain(|_, at| *at > now);
        if self.whole_at.len() >= PENALISED_SOURCES_MAX && !self.whole_at.contains_key(&source) {
            let soonest = self.whole_at.iter().min_by_key(|(_, at)| **at);
            if let Some(soonest) = soonest.map(|(source, _)| *source) {
                self.whole_at.remove(&soonest);
            }
        }
        let at = self.whole_at.entry(source).or_insert(now);
        // What was under way when the last failure was used up counts no further.
        *at = (*at + ONE_BACK).min(now + ONE_BACK * HANDSHAKE_FAILURES_AT_ONCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const SECOND: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn now() -> Instant {
        crate::testing::start()
    }

    /// How many failures in a row are looked at.
    fn failures(penalties: &mut Penalties, now: Instant, source: IpAddr) -> u32 {
        let mut count = 0;
        while penalties.may_try(now, source) {
            penalties.on_failure(now, source);
            count += 1;
        }
        count
    }

    #[test]
    fn a_source_may_fail_so_often_at_once_and_then_at_its_rate() {
        let (mut penalties, now) = (Penalties::default(), now());
        let at_once = HANDSHAKE_FAILURES_AT_ONCE;
        assert_eq!(failures(&mut penalties, now, FIRST), at_once);
        let second = now + Duration::from_secs(1);
        let per_s = HANDSHAKE_FAILURES_PER_S;
        assert_eq!(failures(&mut penalties, second, FIRST), per_s);
        let rested = second + ONE_BACK * at_once;
        assert_eq!(failures(&mut penalties, rested, FIRST), at_once);
    }

    #[test]
    fn one_source_pays_for_no_other() {
        let (mut penalties, now) = (Penalties::default(), now());
        failures(&mut penalties, now, FIRST);
        assert!(!penalties.may_try(now, FIRST));
        assert!(penalties.may_try(now, SECOND));
    }

    #[test]
    fn failures_that_were_under_way_do_not_add_to_the_wait() {
        let (mut penalties, now) = (Penalties::default(), now());
        failures(&mut penalties, now, FIRST);
        for _ in 0..1000 {
            penalties.on_failure(now, FIRST);
        }
        assert!(!penalties.may_try(now, FIRST));
        assert!(penalties.may_try(now + ONE_BACK, FIRST));
    }

    #[test]
    fn what_is_known_of_sources_is_bounded_and_the_worst_stay_known() {
        let (mut penalties, now) = (Penalties::default(), now());
        failures(&mut penalties, now, FIRST);
        for number in 0..u32::try_from(2 * PENALISED_SOURCES_MAX).unwrap() {
            penalties.on_failure(now, IpAddr::V4((0x0a00_0000 + number).into()));
        }
        assert_eq!(penalties.whole_at.len(), PENALISED_SOURCES_MAX);
        assert!(!penalties.may_try(now, FIRST));
        let later = now + ONE_BACK * HANDSHAKE_FAILURES_AT_ONCE;
        penalties.on_failure(later, SECOND);
        assert_eq!(penalties.whole_at.len(), 1, "who has paid is forgotten");
    }
}
