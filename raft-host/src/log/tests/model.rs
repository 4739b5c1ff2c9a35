//! Any sequence of changes, turns, crashes and power cuts, against the oracle.

use proptest::prelude::*;

use super::super::api::Change;
use super::super::{SubmitError, Turn};
use super::support::{World, hard_state, small, write};
use crate::id::{GroupId, Index, Term};
use crate::log::sim_files::SimFiles;

#[derive(Clone, Debug)]
enum Op {
    /// Writes so many entries, beginning so far before the end.
    Write {
        group: u64,
        back: u64,
        count: u64,
        bytes: usize,
        with_state: bool,
    },
    HardState {
        group: u64,
    },
    /// Compacts this share of the entries, in eighths.
    Compact {
        group: u64,
        eighths: u64,
    },
    Reset {
        group: u64,
        ahead: u64,
    },
    Remove {
        group: u64,
    },
    Flush,
    Turn,
    Shed {
        group: u64,
    },
    Kill,
    PowerCycle {
        seed: u64,
    },
    Close,
}

fn op() -> impl Strategy<Value = Op> {
    let group = || 0u64..6;
    prop_oneof![
        12 => (group(), 0u64..4, 1u64..6, 0usize..700, any::<bool>()).prop_map(
            |(group, back, count, bytes, with_state)| Op::Write { group, back, count, bytes, with_state }
        ),
        3 => group().prop_map(|group| Op::HardState { group }),
        5 => (group(), 1u64..=8).prop_map(|(group, eighths)| Op::Compact { group, eighths }),
        1 => (group(), 0u64..9).prop_map(|(group, ahead)| Op::Reset { group, ahead }),
        1 => group().prop_map(|group| Op::Remove { group }),
        8 => Just(Op::Flush),
        10 => Just(Op::Turn),
        1 => group().prop_map(|group| Op::Shed { group }),
        1 => Just(Op::Kill),
        1 => any::<u64>().prop_map(|seed| Op::PowerCycle { seed }),
        1 => Just(Op::Close),
    ]
}

/// The change an operation means now, if it means any.
fn change(world: &World, op: &Op, term: u64) -> Option<(GroupId, Change)> {
    let (group, change) = match *op {
        Op::Write {
            group,
            back,
            count,
            bytes,
            with_state,
        } => {
            let naive = world.naive(GroupId::new(group));
            let first = (naive.last() + 1)
                .saturating_sub(back)
                .max(naive.compacted.0 + 1);
            let state = with_state.then(|| hard_state(term, group, first + 2));
            let Change::Write { entries, .. } = write(first, count, term, bytes) else {
                return None;
            };
            (
                group,
                Change::Write {
                    hard_state: state,
                    entries,
                },
            )
        }
        Op::HardState { group } => {
            let state = Some(hard_state(term, 0, term / 2));
            (
                group,
                Change::Write {
                    hard_state: state,
                    entries: Vec::new(),
                },
            )
        }
        Op::Compact { group, eighths } => {
            let naive = world.naive(GroupId::new(group));
            let through = naive.compacted.0 + (naive.entries.len() as u64 * eighths).div_ceil(8);
            if through == naive.compacted.0 {
                return None;
            }
            let term = Term::new(naive.term(through));
            (
                group,
                Change::Compact {
                    through: Index::new(through),
                    term,
                },
            )
        }
        Op::Reset { group, ahead } => {
            let index = Index::new(world.naive(GroupId::new(group)).last() + ahead);
            let hard_state = hard_state(term, 1, index.to_u64());
            (
                group,
                Change::Reset {
                    index,
                    term: Term::new(term),
                    hard_state,
                },
            )
        }
        Op::Remove { group } => (group, Change::Remove),
        Op::Flush | Op::Turn | Op::Shed { .. } | Op::Kill | Op::PowerCycle { .. } | Op::Close => {
            return None;
        }
    };
    Some((GroupId::new(group), change))
}

fn run(ops: &[Op]) {
    let files = SimFiles::new();
    let mut world = World::open(&files, small()).unwrap();
    for (term, op) in (1..).zip(ops) {
        if let Some((group, change)) = change(&world, op, term) {
            match world.stage(group, change) {
                Ok(()) | Err(SubmitError::CapReached { .. }) => {}
                Err(error) => panic!("not taken: {error}"),
            }
        }
        match op {
            Op::Flush => world.flush().unwrap(),
            Op::Turn => {
                assert!(matches!(world.driver.turn(), Turn::Synced { .. }));
                world.check_views();
            }
            Op::Shed { group } => {
                let group = GroupId::new(*group);
                let shard = &world.shards[super::support::shard_of(group)];
                if let Some(view) = world.views.get_mut(&group) {
                    shard.shed(view);
                }
            }
            Op::Kill => {
                files.kill();
                world = world.reopen();
            }
            Op::PowerCycle { seed } => {
                files.power_cycle(*seed);
                world = world.reopen();
            }
            Op::Close => {
                world.flush().unwrap();
                world.settle();
                let flushed: Vec<_> = world.history.iter().map(|h| h.len() as u64 - 1).collect();
                assert_eq!(*world.acked.lock().unwrap(), flushed);
                files.kill();
                world = world.reopen();
            }
            Op::Write { .. }
            | Op::HardState { .. }
            | Op::Compact { .. }
            | Op::Reset { .. }
            | Op::Remove { .. } => {}
        }
    }
    world.check_views();
    files.power_cycle(ops.len() as u64);
    world.reopen();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_comes_back_as_it_was_acked(ops in prop::collection::vec(op(), 1..500)) {
        run(&ops);
    }
}
