//! Rounds: one batch of beats per peer, round and shard, and the answer that names only dissent
//! (H4, safety 8). This file keeps who is covered on either side; what a beat does to a replica is
//! `consensus`' business, when a round begins is `host`'s.
//!
//! Leading side, [`RoundsOut`]:
//! O1: silence counts for a group only if the round listed it, or the round was computed against a
//!     base that both sides hold and that base covers it.
//! O2: a base is the newest covering round, all of whose parts were answered; while another covering
//!     round is unanswered or lost there is no base, and the next round lists all groups.
//! O3: consent carries the token of the reads that were asked before the round was stamped, never a
//!     later one.
//!
//! Following side, [`RoundsIn`]:
//! I1: a group that could not be stepped as exactly its beat is named and no longer covered.
//! I2: a round against another base than the one held, from or to another boot, stale or out of
//!     order is answered `Restate` and steps nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use super::wire::{Beat, Beats, Coverage, Dissent, DissentReason, RoundAnswer, Verdict, beat_len};
use crate::id::{Boot, GroupId, ReplicaId, Round, Term};
use crate::limits::{ROUND_PARTS_MAX, ROUNDS_IN_FLIGHT_MAX};

/// Bytes of a part beside its groups, at most: kind, flags and eight numbers.
const PART_HEAD_BYTES: usize = 4 + 8 * 10;

/// A follower's consent, by its silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consent {
    /// The group.
    pub group: GroupId,
    /// The follower.
    pub follower: ReplicaId,
    /// The leader's term that was consented to.
    pub term: Term,
    /// The newest read token asked before the round was stamped.
    pub token: Option<u64>,
}

/// What the answers to a round came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Groups that consent.
    pub consents: Vec<Consent>,
    /// Groups that don't, with the follower that was asked and why.
    pub dissents: Vec<(GroupId, ReplicaId, DissentReason)>,
    /// The peer had no such base: all groups are to be listed at once.
    pub restate: bool,
    /// When the round was stamped.
    pub stamp: Option<Instant>,
}

#[derive(Debug)]
struct Base {
    round: Round,
    covered: BTreeMap<GroupId, Beat>,
}

#[derive(Debug)]
struct Flight {
    round: Round,
    coverage: Coverage,
    stamp: Instant,
    listed: Vec<(Beat, Option<u64>)>,
    removed: Vec<GroupId>,
    /// Parts cut so far, and whether the last one was.
    parts: u32,
    cut: bool,
    /// Where the next part begins in `listed`.
    next: usize,
    answered: BTreeSet<u32>,
    dissents: BTreeMap<GroupId, DissentReason>,
}

impl Flight {
    fn covers(&self) -> bool {
        self.coverage != Coverage::Partial
    }

    fn is_settled(&self) -> bool {
        self.cut && self.answered.len() as u64 == u64::from(self.parts)
    }
}

/// The rounds of one shard to one peer.
#[derive(Debug)]
pub struct RoundsOut {
    newest: Round,
    led: BTreeSet<GroupId>,
    dirty: BTreeSet<GroupId>,
    removed: BTreeSet<GroupId>,
    base: Option<Base>,
    flights: VecDeque<Flight>,
}

impl Default for RoundsOut {
    fn default() -> Self {
        Self {
            newest: Round::new(0),
            led: BTreeSet::new(),
            dirty: BTreeSet::new(),
            removed: BTreeSet::new(),
            base: None,
            flights: VecDeque::new(),
        }
    }
}

impl RoundsOut {
    /// From now on this group is led here and has a member there.
    pub fn lead(&mut self, group: GroupId) {
        self.led.insert(group);
        self.removed.remove(&group);
        self.dirty.insert(group);
    }

    /// It is no longer.
    pub fn unlead(&mut self, group: GroupId) {
        self.led.remove(&group);
        self.dirty.remove(&group);
        self.removed.insert(group);
    }

    /// Its beat has changed.
    pub fn touch(&mut self, group: GroupId) {
        if self.led.contains(&group) {
            self.dirty.insert(group);
        }
    }

    /// Whether any group is led here.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        !self.led.is_empty()
    }

    /// Whether a covering round would say anything: groups to keep or to drop.
    #[must_use]
    pub fn has_to_say(&self) -> bool {
        !self.led.is_empty()
            || self
                .base
                .as_ref()
                .is_some_and(|base| !base.covered.is_empty())
    }

    /// Groups led here with a member there, by id.
    pub fn led(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.led.iter().copied()
    }

    /// The session or the peer's life has ended: nothing of it counts any more (safety 8).
    pub fn reset(&mut self) {
        self.base = None;
        self.flights.clear();
    }

    /// Begins a covering round, stamped now. `beat` gives each group's beat and its newest read
    /// token; `reading` are groups that a round is to list for their reads.
    pub fn begin(
        &mut self,
        now: Instant,
        reading: &BTreeSet<GroupId>,
        mut beat: impl FnMut(GroupId) -> Option<(Beat, Option<u64>)>,
    ) {
        let unanswered = self.flights.iter().any(Flight::covers);
        if unanswered {
            // O2: that round's answer no longer tells what the peer holds.
            self.base = None;
        }
        let dirty = std::mem::take(&mut self.dirty);
        let (coverage, groups): (Coverage, Vec<GroupId>) = match &self.base {
            Some(base) => {
                let with_reads = reading.iter().filter(|group| self.led.contains(group));
                let groups: BTreeSet<_> = dirty.iter().chain(with_reads).copied().collect();
                (Coverage::Since(base.round), groups.into_iter().collect())
            }
            None => (Coverage::Full, self.led.iter().copied().collect()),
        };
        let removed = match &self.base {
            Some(base) => {
                let gone = self
                    .removed
                    .iter()
                    .filter(|group| base.covered.contains_key(group));
                gone.copied().collect()
            }
            None => Vec::new(),
        };
        self.removed.clear();
        let listed = groups.into_iter().filter_map(&mut beat).collect();
        self.push(now, coverage, listed, removed);
    }

    /// Begins a partial round for reads that wait, stamped now.
    pub fn begin_partial(
        &mut self,
        now: Instant,
        reading: &BTreeSet<GroupId>,
        mut beat: impl FnMut(GroupId) -> Option<(Beat, Option<u64>)>,
    ) {
        let groups = reading
            .iter()
            .filter(|group| self.led.contains(group))
            .copied();
        let listed: Vec<_> = groups.filter_map(&mut beat).collect();
        if !listed.is_empty() {
            self.push(now, Coverage::Partial, listed, Vec::new());
        }
    }

    fn push(
        &mut self,
        stamp: Instant,
        coverage: Coverage,
        listed: Vec<(Beat, Option<u64>)>,
        removed: Vec<GroupId>,
    ) {
        if self.flights.len() >= ROUNDS_IN_FLIGHT_MAX {
            let oldest = self.flights.pop_front();
            if oldest.is_some_and(|flight| flight.covers()) {
                self.base = None;
            }
        }
        self.newest = self.newest.next();
        self.flights.push_back(Flight {
            round: self.newest,
            coverage,
            stamp,
            listed,
            removed,
            parts: 0,
            cut: false,
            next: 0,
            answered: BTreeSet::new(),
            dissents: BTreeMap::new(),
        });
    }

    /// Whether a round that was begun has parts to send.
    #[must_use]
    pub fn has_part(&self) -> bool {
        self.flights.back().is_some_and(|flight| !flight.cut)
    }

    /// The next part of the round begun last, of at most so many bytes.
    pub fn next_part(&mut self, from_boot: Boot, to_boot: Boot, bytes_max: usize) -> Option<Beats> {
        let flight = self.flights.back_mut().filter(|flight| !flight.cut)?;
        let removed = if flight.parts == 0 {
            flight.removed.clone()
        } else {
            Vec::new()
        };
        let mut bytes = PART_HEAD_BYTES + removed.len() * 10;
        let mut end = flight.next;
        let mut previous = None;
        while let Some((beat, _)) = flight.listed.get(end) {
            bytes += beat_len(beat, previous);
            if bytes > bytes_max {
                break;
            }
            previous = Some(beat.group);
            end += 1;
        }
        let last = end == flight.listed.len();
        if !last && end == flight.next || flight.parts >= ROUND_PARTS_MAX {
            return None;
        }
        let beats = flight.listed[flight.next..end]
            .iter()
            .map(|(beat, _)| *beat)
            .collect();
        let part = flight.parts;
        flight.parts += 1;
        (flight.next, flight.cut) = (end, last);
        let (round, coverage) = (flight.round, flight.coverage);
        Some(Beats {
            round,
            part,
            last,
            from_boot,
            to_boot,
            coverage,
            removed,
            beats,
        })
    }

    /// A frame with a part of this round ended without an answer: whether the peer took it is not
    /// known, so neither is its base.
    pub fn on_lost(&mut self, round: Round) {
        let before = self.flights.len();
        self.flights.retain(|flight| flight.round != round);
        if self.flights.len() < before {
            self.base = None;
        }
    }

    /// Takes an answer. Nothing comes of it until the round's last part was answered.
    pub fn on_answer(&mut self, answer: &RoundAnswer) -> Option<Settled> {
        let at = self
            .flights
            .iter()
            .position(|flight| flight.round == answer.round)?;
        let Verdict::Taken(dissents) = &answer.verdict else {
            let flight = self.flights.remove(at)?;
            self.base = None;
            self.dirty.clear();
            return Some(Settled {
                restate: flight.covers(),
                ..Settled::default()
            });
        };
        let flight = &mut self.flights[at];
        if answer.part >= flight.parts {
            return None;
        }
        flight.answered.insert(answer.part);
        flight.dissents.extend(
            dissents
                .iter()
                .map(|dissent| (dissent.group, dissent.reason)),
        );
        if !flight.is_settled() {
            return None;
        }
        let flight = self.flights.remove(at)?;
        if flight.covers() {
            // Answers come in order: what was sent before and has none was lost.
            self.flights.retain(|other| other.round > flight.round);
        }
        Some(self.settle(flight))
    }

    fn settle(&mut self, flight: Flight) -> Settled {
        let settled = Settled {
            stamp: Some(flight.stamp),
            ..Settled::default()
        };
        if flight.covers() {
            self.settle_covering(flight, settled)
        } else {
            partial(flight, settled)
        }
    }

    fn settle_covering(&mut self, flight: Flight, mut settled: Settled) -> Settled {
        let mut covered = BTreeMap::new();
        if let (Coverage::Since(round), Some(base)) = (flight.coverage, self.base.take())
            && base.round == round
        {
            covered = base.covered;
        }
        for group in &flight.removed {
            covered.remove(group);
        }
        let tokens: BTreeMap<GroupId, u64> = flight
            .listed
            .iter()
            .filter_map(|(beat, token)| token.map(|token| (beat.group, token)))
            .collect();
        covered.extend(flight.listed.iter().map(|(beat, _)| (beat.group, *beat)));
        for (group, reason) in flight.dissents {
            if let Some(beat) = covered.remove(&group) {
                settled.dissents.push((group, beat.to, reason));
                self.touch(group);
            }
        }
        settled
            .consents
            .extend(covered.values().map(|beat| Consent {
                group: beat.group,
                follower: beat.to,
                term: beat.term,
                token: tokens.get(&beat.group).copied(),
            }));
        if !self.flights.iter().any(Flight::covers) {
            self.base = Some(Base {
                round: flight.round,
                covered,
            });
        }
        settled
    }
}

/// Consent of the groups listed; what is covered stays as it is.
fn partial(flight: Flight, mut settled: Settled) -> Settled {
    for (beat, token) in flight.listed {
        let (group, follower, term) = (beat.group, beat.to, beat.term);
        match flight.dissents.get(&group) {
            None => settled.consents.push(Consent {
                group,
                follower,
                term,
                token,
            }),
            Some(reason) => settled.dissents.push((group, follower, *reason)),
        }
    }
    settled
}

/// A group to step: one that a part lists, or one that is covered and unlisted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Step this beat.
    Listed(Beat),
    /// Does it still follow exactly this leader in this term?
    Covered {
        /// The group.
        group: GroupId,
        /// The leader.
        from: ReplicaId,
        /// This replica.
        to: ReplicaId,
        /// The term.
        term: Term,
    },
}

type Covered = BTreeMap<GroupId, (ReplicaId, ReplicaId, Term)>;

#[derive(Debug)]
struct Staging {
    round: Round,
    next_part: u32,
    coverage: Coverage,
    covered: Covered,
}

/// The rounds of one peer's shard, as its follower takes them.
#[derive(Debug, Default)]
pub struct RoundsIn {
    boot: Boot,
    newest: Round,
    base: Option<(Round, Covered)>,
    staging: Option<Staging>,
}

impl RoundsIn {
    /// The session or the peer's life has ended.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// A group was closed, or moved to another replica here: it is covered no more.
    pub fn forget(&mut self, group: GroupId) {
        if let Some((_, covered)) = &mut self.base {
            covered.remove(&group);
        }
    }

    /// How many groups are covered.
    #[must_use]
    pub fn covered(&self) -> usize {
        self.base.as_ref().map_or(0, |(_, covered)| covered.len())
    }

    /// Takes a part of a round, steps what it asks, and makes its answer.
    pub fn on_beats(
        &mut self,
        me: Boot,
        beats: &Beats,
        mut step: impl FnMut(Asked) -> Result<(), DissentReason>,
    ) -> RoundAnswer {
        let verdict = match self.stage(me, beats) {
            None => {
                self.base = None;
                self.staging = None;
                Verdict::Restate
            }
            Some(staging) => Verdict::Taken(self.take(staging, beats, &mut step)),
        };
        RoundAnswer {
            round: beats.round,
            part: beats.part,
            from_boot: me,
            to_boot: beats.from_boot,
            verdict,
        }
    }

    /// What the part continues or begins, if it can (I2).
    fn stage(&mut self, me: Boot, beats: &Beats) -> Option<Staging> {
        if beats.to_boot != me {
            return None;
        }
        if beats.from_boot != self.boot {
            *self = Self {
                boot: beats.from_boot,
                ..Self::default()
            };
        }
        if beats.part > 0 {
            return self.staging.take().filter(|staging| {
                staging.round == beats.round
                    && staging.next_part == beats.part
                    && staging.coverage == beats.coverage
            });
        }
        if beats.round <= self.newest {
            return None;
        }
        self.newest = beats.round;
        self.staging = None;
        let covered = match beats.coverage {
            Coverage::Full | Coverage::Partial => Covered::new(),
            Coverage::Since(base) => {
                let (round, covered) = match self.base.take() {
                    None if transport::mutant!("silence_without_base") => (base, Covered::new()),
                    held => held?,
                };
                if round != base {
                    return None;
                }
                covered
            }
        };
        let (round, coverage) = (beats.round, beats.coverage);
        Some(Staging {
            round,
            next_part: 0,
            coverage,
            covered,
        })
    }

    fn take(
        &mut self,
        mut staging: Staging,
        beats: &Beats,
        step: &mut impl FnMut(Asked) -> Result<(), DissentReason>,
    ) -> Vec<Dissent> {
        let mut dissents = BTreeMap::new();
        for group in &beats.removed {
            staging.covered.remove(group);
        }
        let mut listed = BTreeSet::new();
        for beat in &beats.beats {
            listed.insert(beat.group);
            match step(Asked::Listed(*beat)) {
                Ok(()) => {
                    staging
                        .covered
                        .insert(beat.group, (beat.from, beat.to, beat.term));
                }
                Err(reason) => {
                    staging.covered.remove(&beat.group);
                    dissents.insert(beat.group, reason);
                }
            }
        }
        staging.next_part += 1;
        if !beats.last {
            self.staging = Some(staging);
        } else if staging.coverage != Coverage::Partial {
            if matches!(staging.coverage, Coverage::Since(_)) {
                staging.covered.retain(|group, (from, to, term)| {
                    let asked = Asked::Covered {
                        group: *group,
                        from: *from,
                        to: *to,
                        term: *term,
                    };
                    let answer = if listed.contains(group) {
                        Ok(())
                    } else {
                        step(asked)
                    };
                    if let Err(reason) = answer {
                        dissents.insert(*group, reason);
                    }
                    answer.is_ok()
                });
            }
            self.base = Some((staging.round, staging.covered));
        }
        dissents
            .into_iter()
            .map(|(group, reason)| Dissent { group, reason })
            .collect()
    }
}

#[cfg(test)]
mod tests;
