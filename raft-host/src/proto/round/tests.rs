use std::time::Duration;

use super::*;
use crate::id::Index;

const A: Boot = Boot::new(100);
const B: Boot = Boot::new(200);

fn group(id: u64) -> GroupId {
    GroupId::new(id)
}

fn beat(id: u64, term: u64) -> Beat {
    Beat {
        group: group(id),
        from: ReplicaId::new(1),
        to: ReplicaId::new(2),
        term: Term::new(term),
        commit: Index::new(9),
        retain_after: Index::new(3),
    }
}

/// A leads groups 1 to 4 in term 5; B follows unless a group is in `away`.
struct Pair {
    out: RoundsOut,
    inn: RoundsIn,
    away: BTreeSet<GroupId>,
    asked: Vec<Asked>,
    tokens: BTreeMap<GroupId, u64>,
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let mut out = RoundsOut::default();
        for id in 1..=4 {
            out.lead(group(id));
        }
        Self {
            out,
            inn: RoundsIn::default(),
            away: BTreeSet::new(),
            asked: Vec::new(),
            tokens: BTreeMap::new(),
            now: crate::proto::test_time::start(),
        }
    }

    fn begin(&mut self, reading: &[u64]) {
        self.now += Duration::from_millis(100);
        let reading = reading.iter().map(|id| group(*id)).collect();
        let tokens = &self.tokens;
        self.out.begin(self.now, &reading, |group| {
            Some((beat(group.to_u64(), 5), tokens.get(&group).copied()))
        });
    }

    fn part(&mut self) -> Beats {
        self.out.next_part(A, B, 4096).unwrap()
    }

    fn take(&mut self, beats: &Beats) -> RoundAnswer {
        let (away, asked) = (&self.away, &mut self.asked);
        asked.clear();
        self.inn.on_beats(B, beats, |question| {
            asked.push(question);
            let (Asked::Listed(Beat { group, .. }) | Asked::Covered { group, .. }) = question;
            if away.contains(&group) {
                Err(DissentReason::NotFollowing)
            } else {
                Ok(())
            }
        })
    }

    fn round(&mut self, reading: &[u64]) -> (Beats, Settled) {
        self.begin(reading);
        let beats = self.part();
        let answer = self.take(&beats);
        let settled = self.out.on_answer(&answer).unwrap();
        (beats, settled)
    }
}

fn consenting(settled: &Settled) -> Vec<u64> {
    settled
        .consents
        .iter()
        .map(|consent| consent.group.to_u64())
        .collect()
}

#[test]
fn the_second_round_lists_nothing_and_confirms_all() {
    let mut pair = Pair::new();
    let (first, settled) = pair.round(&[]);
    assert_eq!((first.coverage, first.beats.len()), (Coverage::Full, 4));
    assert_eq!(consenting(&settled), [1, 2, 3, 4]);
    let (second, settled) = pair.round(&[]);
    assert_eq!(
        (second.coverage, second.beats.len()),
        (Coverage::Since(first.round), 0)
    );
    assert_eq!(consenting(&settled), [1, 2, 3, 4]);
    assert_eq!(pair.asked.len(), 4, "each covered group was looked at");
}

/// Safety 8: B was restarted and holds no base: "unchanged" makes nobody consent.
#[test]
fn without_the_base_silence_confirms_nothing() {
    let mut pair = Pair::new();
    pair.round(&[]);
    pair.inn = RoundsIn::default();
    let (_, settled) = pair.round(&[]);
    assert_eq!((consenting(&settled), settled.restate), (vec![], true));
    assert!(pair.asked.is_empty());
    let (restated, settled) = pair.round(&[]);
    assert_eq!(restated.coverage, Coverage::Full);
    assert_eq!(consenting(&settled), [1, 2, 3, 4]);
}

/// Safety 8: group 3 has a newer leader at B, unlisted since: B names it, A doesn't count it.
#[test]
fn a_covered_group_that_moved_on_dissents_and_is_covered_no_more() {
    let mut pair = Pair::new();
    pair.round(&[]);
    pair.away.insert(group(3));
    let (beats, settled) = pair.round(&[]);
    assert!(beats.beats.is_empty());
    assert_eq!(consenting(&settled), [1, 2, 4]);
    let reason = DissentReason::NotFollowing;
    assert_eq!(settled.dissents, [(group(3), ReplicaId::new(2), reason)]);
    // It is asked by name again, and consents once it follows.
    let (beats, settled) = pair.round(&[]);
    assert_eq!(
        (beats.beats.len(), consenting(&settled)),
        (1, vec![1, 2, 4])
    );
    pair.away.clear();
    assert_eq!(consenting(&pair.round(&[]).1), [1, 2, 3, 4]);
}

#[test]
fn a_round_of_another_boot_or_an_old_number_is_answered_restate() {
    let mut pair = Pair::new();
    let (first, _) = pair.round(&[]);
    assert_eq!(pair.take(&first).verdict, Verdict::Restate, "seen before");
    pair.begin(&[]);
    let mut beats = pair.part();
    beats.to_boot = Boot::new(201);
    assert_eq!(
        pair.take(&beats).verdict,
        Verdict::Restate,
        "for another life of B"
    );
    beats.to_boot = B;
    beats.from_boot = Boot::new(101);
    beats.coverage = Coverage::Since(first.round);
    assert_eq!(
        pair.take(&beats).verdict,
        Verdict::Restate,
        "from another life of A"
    );
}

/// O2: while a covering round is unanswered, what B holds isn't known: the next lists all.
#[test]
fn an_unanswered_or_lost_round_leaves_no_base() {
    let mut pair = Pair::new();
    pair.round(&[]);
    pair.begin(&[]);
    let unanswered = pair.part();
    let (beats, settled) = pair.round(&[]);
    assert_eq!(beats.coverage, Coverage::Full);
    assert_eq!(consenting(&settled), [1, 2, 3, 4]);
    // Its answer comes late: it was given up when a newer one was answered.
    let late = RoundAnswer {
        round: unanswered.round,
        part: 0,
        from_boot: B,
        to_boot: A,
        verdict: Verdict::Taken(Vec::new()),
    };
    assert_eq!(pair.out.on_answer(&late), None);
    pair.begin(&[]);
    let lost = pair.part();
    pair.out.on_lost(lost.round);
    pair.begin(&[]);
    assert_eq!(pair.part().coverage, Coverage::Full);
}

/// A slow link: each round's answer comes after the next was begun. Each still confirms its groups.
#[test]
fn answers_slower_than_rounds_still_count() {
    let mut pair = Pair::new();
    pair.begin(&[]);
    let first = pair.part();
    pair.begin(&[]);
    let second = pair.part();
    let answer = pair.take(&first);
    assert_eq!(
        consenting(&pair.out.on_answer(&answer).unwrap()),
        [1, 2, 3, 4]
    );
    let answer = pair.take(&second);
    assert_eq!(
        consenting(&pair.out.on_answer(&answer).unwrap()),
        [1, 2, 3, 4]
    );
    pair.begin(&[]);
    assert_eq!(pair.part().coverage, Coverage::Since(second.round));
}

/// O3: a read asked after the round was stamped isn't confirmed by it.
#[test]
fn consent_carries_only_tokens_from_before_the_stamp() {
    let mut pair = Pair::new();
    pair.round(&[]);
    pair.tokens.insert(group(2), 7);
    pair.begin(&[2]);
    let beats = pair.part();
    assert_eq!(beats.beats.len(), 1, "the group that reads is listed");
    pair.tokens.insert(group(2), 8);
    let answer = pair.take(&beats);
    let settled = pair.out.on_answer(&answer).unwrap();
    let tokens: Vec<_> = settled
        .consents
        .iter()
        .map(|consent| consent.token)
        .collect();
    assert_eq!(tokens, [None, Some(7), None, None]);
}

#[test]
fn a_partial_round_speaks_for_its_groups_only_and_keeps_the_base() {
    let mut pair = Pair::new();
    let (first, _) = pair.round(&[]);
    let reading = BTreeSet::from([group(2), group(9)]);
    pair.out.begin_partial(pair.now, &reading, |group| {
        Some((beat(group.to_u64(), 5), Some(1)))
    });
    let beats = pair.part();
    let answer = pair.take(&beats);
    let settled = pair.out.on_answer(&answer).unwrap();
    assert_eq!(consenting(&settled), [2]);
    let (next, settled) = pair.round(&[]);
    assert_eq!(next.coverage, Coverage::Since(first.round));
    assert_eq!(consenting(&settled), [1, 2, 3, 4]);
}

#[test]
fn a_group_led_no_longer_is_taken_off_and_not_counted() {
    let mut pair = Pair::new();
    pair.round(&[]);
    pair.out.unlead(group(1));
    let (beats, settled) = pair.round(&[]);
    assert_eq!(beats.removed, [group(1)]);
    assert_eq!(consenting(&settled), [2, 3, 4]);
    assert_eq!(pair.inn.covered(), 3);
}

#[test]
fn a_round_in_parts_counts_once_all_are_answered() {
    let mut pair = Pair::new();
    pair.begin(&[]);
    let room = PART_HEAD_BYTES + 2 * beat_len(&beat(1, 5), None);
    let first = pair.out.next_part(A, B, room).unwrap();
    let second = pair.out.next_part(A, B, room).unwrap();
    assert_eq!((first.beats.len(), first.last), (2, false));
    assert_eq!((second.beats.len(), second.last), (2, true));
    assert!(!pair.out.has_part());
    let answer = pair.take(&first);
    assert_eq!(pair.out.on_answer(&answer), None);
    let answer = pair.take(&second);
    assert_eq!(
        consenting(&pair.out.on_answer(&answer).unwrap()),
        [1, 2, 3, 4]
    );
    // The second part without the first is no round.
    let mut fresh = RoundsIn::default();
    let answer = fresh.on_beats(B, &second, |_| Ok(()));
    assert_eq!(answer.verdict, Verdict::Restate);
}

#[test]
fn a_new_session_forgets_everything() {
    let mut pair = Pair::new();
    pair.round(&[]);
    pair.begin(&[]);
    let beats = pair.part();
    let answer = pair.take(&beats);
    pair.out.reset();
    assert_eq!(
        pair.out.on_answer(&answer),
        None,
        "an answer of the session before"
    );
    pair.begin(&[]);
    assert_eq!(pair.part().coverage, Coverage::Full);
}
