//! The store against a naive oracle: a map in memory that does what the commands say.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::command::Failure;

#[derive(Default)]
struct Oracle {
    rows: BTreeMap<Bytes, Bytes>,
}

impl Oracle {
    fn get(&self, key: &Bytes) -> Outcome {
        self.rows
            .get(key)
            .cloned()
            .map_or(Outcome::Nil, Outcome::Bulk)
    }

    fn count(&self, keys: &[Bytes]) -> i64 {
        keys.iter()
            .filter(|key| self.rows.contains_key(*key))
            .count() as i64
    }

    fn execute(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Get { key } => self.get(key),
            Op::Exists { keys } => Outcome::Integer(self.count(keys)),
            Op::MGet { keys } => Outcome::Array(keys.iter().map(|key| self.get(key)).collect()),
            Op::StrLen { key } => {
                Outcome::Integer(self.rows.get(key).map_or(0, |value| value.len() as i64))
            }
            Op::Set { key, value } => {
                self.rows.insert(key.clone(), value.clone());
                Outcome::Ok
            }
            Op::SetNx { key, value } => {
                let new = !self.rows.contains_key(key);
                self.rows
                    .entry(key.clone())
                    .or_insert_with(|| value.clone());
                Outcome::Integer(i64::from(new))
            }
            Op::Del { keys } => {
                let gone = keys
                    .iter()
                    .filter(|key| self.rows.remove(*key).is_some())
                    .count();
                Outcome::Integer(gone as i64)
            }
            Op::MSet { pairs } => {
                self.rows.extend(pairs.iter().cloned());
                Outcome::Ok
            }
            Op::IncrBy { key, delta } => {
                let text = self
                    .rows
                    .get(key)
                    .map_or("0".into(), |v| String::from_utf8_lossy(v));
                let Some(number) = text.parse::<i64>().ok().filter(|n| n.to_string() == text)
                else {
                    return Outcome::Failed(Failure::NotAnInteger);
                };
                let Some(sum) = number.checked_add(*delta) else {
                    return Outcome::Failed(Failure::Overflow);
                };
                self.rows.insert(key.clone(), b(&sum.to_string()));
                Outcome::Integer(sum)
            }
            Op::Append { key, value } => {
                let old = self.rows.get(key).cloned().unwrap_or_default();
                let new = [old, value.clone()].concat();
                let length = new.len() as i64;
                self.rows.insert(key.clone(), new.into());
                Outcome::Integer(length)
            }
        }
    }
}

fn any_key() -> impl Strategy<Value = Bytes> {
    prop::sample::select(vec!["", "a", "b", "c\0", "\u{e9}"]).prop_map(b)
}

fn any_value() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        prop::sample::select(vec!["0", "7", "-0", "01", "+1", "9223372036854775806"]).prop_map(b),
        prop::collection::vec(any::<u8>(), 0..6).prop_map(Bytes::from),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    let keys = || prop::collection::vec(any_key(), 1..4);
    let pairs = prop::collection::vec((any_key(), any_value()), 1..4);
    let delta = prop_oneof![-3i64..3, any::<i64>()];
    prop_oneof![
        any_key().prop_map(|key| Op::Get { key }),
        keys().prop_map(|keys| Op::Exists { keys }),
        keys().prop_map(|keys| Op::MGet { keys }),
        any_key().prop_map(|key| Op::StrLen { key }),
        (any_key(), any_value()).prop_map(|(key, value)| Op::Set { key, value }),
        (any_key(), any_value()).prop_map(|(key, value)| Op::SetNx { key, value }),
        keys().prop_map(|keys| Op::Del { keys }),
        pairs.prop_map(|pairs| Op::MSet { pairs }),
        (any_key(), delta).prop_map(|(key, delta)| Op::IncrBy { key, delta }),
        (any_key(), any_value()).prop_map(|(key, value)| Op::Append { key, value }),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<Op>),
    Transaction(Vec<Op>),
    Reopen,
    Crash,
    Checkpoint,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::collection::vec(any_op(), 1..5).prop_map(Step::Apply),
        2 => prop::collection::vec(any_op(), 0..5).prop_map(Step::Transaction),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
        1 => Just(Step::Checkpoint),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_store_does_what_a_map_would(steps in prop::collection::vec(any_step(), 1..20)) {
        let mut oracle = Oracle::default();
        let (mut folder, mut store) = new_store();
        let mut index = 0;
        for step in steps {
            match step {
                Step::Apply(ops) => {
                    let numbered = ops.iter().cloned().zip(index + 1..);
                    let batch: Vec<_> = numbered.map(|(op, at)| single(at, op)).collect();
                    let expected: Vec<_> = ops
                        .iter()
                        .zip(index + 1..)
                        .map(|(op, at)| done(at, oracle.execute(op)))
                        .collect();
                    prop_assert_eq!(store.apply(group(), &batch).unwrap(), expected);
                    index += ops.len() as u64;
                }
                Step::Transaction(ops) => {
                    index += 1;
                    let results = ops.iter().map(|op| oracle.execute(op)).collect();
                    let batch = [entry(index, Body::Transaction(ops))];
                    let effects = store.apply(group(), &batch).unwrap();
                    prop_assert_eq!(effects, [done(index, Outcome::Array(results))]);
                }
                Step::Reopen => store.close_idle(),
                Step::Crash => {
                    let copy = TempDir::new().unwrap();
                    copy_files(&store, copy.path());
                    (store, folder) = (open_at(copy.path()), copy);
                }
                Step::Checkpoint => {
                    let whole = Checkpoint::Whole { floor: Index::new(index) };
                    prop_assert_eq!(store.checkpoint(group()).unwrap(), whole);
                }
            }
            prop_assert_eq!(applied_index(&store), index);
        }
        let keys: Vec<_> = oracle.rows.keys().cloned().collect();
        prop_assert_eq!(store.row_count(group()).unwrap(), keys.len() as u64);
        for key in keys {
            let read = store.read(group(), &Body::Single(Op::Get { key: key.clone() })).unwrap().1;
            prop_assert_eq!(read, oracle.get(&key));
        }
        drop(folder);
    }
}
