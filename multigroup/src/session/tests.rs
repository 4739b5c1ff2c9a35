use std::collections::BTreeMap;
use std::convert::Infallible;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::command::{Body, Op};

#[derive(Default)]
struct MemoryTable(BTreeMap<RequestId, Saved>);

impl OutcomeTable for MemoryTable {
    type Error = Infallible;

    fn load(&mut self, id: &RequestId) -> Result<Option<Saved>, Infallible> {
        Ok(self.0.get(id).cloned())
    }

    fn save(&mut self, id: &RequestId, saved: &Saved) -> Result<(), Infallible> {
        assert_eq!(self.0.insert(id.clone(), saved.clone()), None);
        Ok(())
    }

    fn evict(&mut self, floor: UnixMillis, max: u32) -> Result<Evicted, Infallible> {
        let old: Vec<_> = self
            .0
            .keys()
            .take_while(|id| id.issued() < floor)
            .cloned()
            .collect();
        let old = &old[..old.len().min(max as usize)];
        old.iter()
            .for_each(|id| assert!(self.0.remove(id).is_some()));
        let oldest = self.0.keys().next().map(RequestId::issued);
        Ok(Evicted {
            removed: u32::try_from(old.len()).unwrap(),
            oldest,
        })
    }
}

const WINDOW_MS: u32 = 1000;

fn identity(id: &str) -> Identity {
    Identity {
        id: RequestId::parse(id.as_bytes()).unwrap(),
        window_ms: WINDOW_MS,
    }
}

fn hash(key: &'static str) -> CommandHash {
    Body::Single(Op::IncrBy {
        key: Bytes::from_static(key.as_bytes()),
        delta: 1,
    })
    .hash()
}

/// Judges an entry and, if it is to be executed, saves `number` as its outcome.
fn step(dedup: &mut Dedup, table: &mut MemoryTable, at: u64, id: &str, number: i64) -> Verdict {
    let identity = identity(id);
    let time = UnixMillis::new(at);
    let Ok(verdict) = dedup.judge(table, time, &identity, &hash("a"));
    if verdict == Verdict::Execute {
        let outcome = Outcome::Integer(number);
        let saved = Saved {
            hash: hash("a"),
            index: Index::new(at),
            outcome,
        };
        let Ok(()) = dedup.record(table, &identity.id, &saved);
    }
    assert_eq!(dedup.saved(), table.0.len() as u64);
    verdict
}

#[test]
fn both_forms_of_id_tell_their_issue_time() {
    let plain = RequestId::parse(b"1700000000123-aZ_9-x").unwrap();
    assert_eq!(plain.issued(), UnixMillis::new(1_700_000_000_123));
    let uuid = RequestId::parse(b"018BCFE5-687B-7B00-8000-0123456789AB").unwrap();
    assert_eq!(uuid.issued(), UnixMillis::new(0x018b_cfe5_687b));
    assert_eq!(uuid.as_str(), "018bcfe5-687b-7b00-8000-0123456789ab");
}

#[test]
fn texts_that_are_no_ids_are_refused_by_name() {
    let malformed = RequestIdError::Malformed;
    for text in [
        "", "-", "1", "1-", "-x", "x-1", "+1-x", "1-x y", "1-\u{e9}", "1 -x",
    ] {
        assert_eq!(
            RequestId::parse(text.as_bytes()),
            Err(malformed),
            "{text:?}"
        );
    }
    assert_eq!(RequestId::parse(b"1-\xff"), Err(malformed));
    let version_4 = b"018bcfe5-687b-4b00-8000-0123456789ab";
    assert_eq!(
        RequestId::parse(version_4),
        Err(RequestIdError::UuidVersion)
    );
    let late = RequestId::parse(b"281474976710656-x");
    assert_eq!(
        late,
        Err(RequestIdError::IssueTime {
            max: UNIX_MILLIS_MAX
        })
    );
    let huge = RequestId::parse(b"99999999999999999999999-x");
    assert_eq!(
        huge,
        Err(RequestIdError::IssueTime {
            max: UNIX_MILLIS_MAX
        })
    );
    let long = [b"1-".as_slice(), &[b'x'; 63]].concat();
    assert_eq!(
        RequestId::parse(&long),
        Err(RequestIdError::TooLong { bytes: 65, max: 64 })
    );
}

#[test]
fn a_repeated_id_gets_the_saved_outcome_of_its_own_entry() {
    let (mut dedup, mut table) = (Dedup::default(), MemoryTable::default());
    assert_eq!(
        step(&mut dedup, &mut table, 5000, "5000-a", 1),
        Verdict::Execute
    );
    assert_eq!(
        step(&mut dedup, &mut table, 5001, "5000-b", 2),
        Verdict::Execute
    );
    let Verdict::Known(saved) = step(&mut dedup, &mut table, 5002, "5000-a", 3) else {
        panic!()
    };
    assert_eq!(
        (saved.index, saved.outcome),
        (Index::new(5000), Outcome::Integer(1))
    );
}

#[test]
fn another_command_under_the_same_id_is_refused() {
    let (mut dedup, mut table) = (Dedup::default(), MemoryTable::default());
    step(&mut dedup, &mut table, 5000, "5000-a", 1);
    let Ok(verdict) = dedup.judge(
        &mut table,
        UnixMillis::new(5000),
        &identity("5000-a"),
        &hash("b"),
    );
    assert_eq!(verdict, Verdict::Refuse(Refusal::IdReused));
}

#[test]
fn an_id_is_kept_to_the_last_millisecond_of_its_window_and_refused_after() {
    let (mut dedup, mut table) = (Dedup::default(), MemoryTable::default());
    step(&mut dedup, &mut table, 5000, "5000-a", 1);
    assert!(matches!(
        step(&mut dedup, &mut table, 6000, "5000-a", 2),
        Verdict::Known(_)
    ));
    let (issued, floor) = (UnixMillis::new(5000), UnixMillis::new(5001));
    let refused = Verdict::Refuse(Refusal::IdTooOld { issued, floor });
    assert_eq!(step(&mut dedup, &mut table, 6001, "5000-a", 3), refused);
    assert!(table.0.is_empty());
}

#[test]
fn group_time_never_falls_even_if_an_entry_s_does() {
    let (mut dedup, mut table) = (Dedup::default(), MemoryTable::default());
    step(&mut dedup, &mut table, 9000, "9000-a", 1);
    step(&mut dedup, &mut table, 1, "9000-b", 1);
    assert_eq!(
        (dedup.time(), dedup.floor()),
        (UnixMillis::new(9000), UnixMillis::new(8000))
    );
}

#[test]
fn an_id_from_the_far_future_is_refused() {
    let (mut dedup, mut table) = (Dedup::default(), MemoryTable::default());
    assert_eq!(
        step(&mut dedup, &mut table, 5000, "305000-a", 1),
        Verdict::Execute
    );
    let verdict = step(&mut dedup, &mut table, 5000, "305001-a", 1);
    assert!(matches!(verdict, Verdict::Refuse(Refusal::IdAhead { .. })));
}

#[test]
fn a_full_table_refuses_new_ids_and_evicts_none_within_the_window() {
    let mut table = MemoryTable::default();
    let now = UnixMillis::new(5000);
    let mut dedup = Dedup::restore(now, UnixMillis::new(4000), SAVED_OUTCOMES_MAX - 1).unwrap();
    let known = identity("4500-known");
    let saved = Saved {
        hash: hash("a"),
        index: Index::new(1),
        outcome: Outcome::Ok,
    };
    let Ok(()) = dedup.record(&mut table, &known.id, &saved);
    let Ok(verdict) = dedup.judge(&mut table, now, &identity("5000-new"), &hash("a"));
    assert_eq!(
        verdict,
        Verdict::Refuse(Refusal::TableFull {
            saved: SAVED_OUTCOMES_MAX
        })
    );
    let Ok(verdict) = dedup.judge(&mut table, now, &known, &hash("a"));
    assert_eq!(verdict, Verdict::Known(saved));
    // Once the known one has left the window there is room again.
    let later = UnixMillis::new(5501);
    let Ok(verdict) = dedup.judge(&mut table, later, &identity("5501-new"), &hash("a"));
    assert_eq!(verdict, Verdict::Execute);
}

proptest! {
    #[test]
    fn any_bytes_are_an_id_or_named_as_none(text in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(id) = RequestId::parse(&text) {
            prop_assert_eq!(RequestId::parse(id.as_str().as_bytes()), Ok(id));
        }
    }

    /// Against an oracle that never forgets: nothing is executed twice, and a repetition within the
    /// window always gets the first outcome.
    #[test]
    fn no_id_is_ever_executed_twice(
        steps in prop::collection::vec((0u64..400, 0u64..3000, 0u32..4), 1..200)
    ) {
        let (mut dedup, mut table) = (Dedup::default(), MemoryTable::default());
        let mut executed = BTreeMap::new();
        let mut now = 10_000u64;
        for (number, (advance, age, random)) in steps.into_iter().enumerate() {
            now += advance;
            let id = format!("{}-{random}", (now - age) / 500 * 500);
            let number = i64::try_from(number).unwrap();
            match step(&mut dedup, &mut table, now, &id, number) {
                Verdict::Execute => prop_assert_eq!(executed.insert(id, number), None),
                Verdict::Known(saved) => {
                    prop_assert_eq!(saved.outcome, Outcome::Integer(executed[&id]));
                }
                Verdict::Refuse(refusal) => {
                    let too_old = matches!(refusal, Refusal::IdTooOld { .. });
                    prop_assert!(too_old);
                    prop_assert!((now - age) / 500 * 500 < now - u64::from(WINDOW_MS));
                }
            }
        }
    }
}
