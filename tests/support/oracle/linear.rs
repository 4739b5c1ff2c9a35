//! Whether what clients saw of one key is what a single register could have answered, each operation
//! taking effect at one moment between its call and its return (Wing and Gong's search, with the
//! states met before remembered, as Lowe does). An operation whose fate isn't known may have taken
//! effect at any moment after its call, or never.
//!
//! The search is exponential in what overlaps: histories are kept short, and those with many
//! unknowns are closed early, by whoever writes them.

use std::collections::HashSet;

/// What was asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To hold this.
    Set(i64),
    /// To hold so much more, and to say how much that is.
    Add(i64),
    /// What it holds.
    Get,
}

/// What it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It was set.
    Done,
    /// This number is what it holds (now).
    Number(i64),
    /// It holds nothing.
    Nothing,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What was asked.
    pub asked: Asked,
    /// When.
    pub called: u64,
    /// When it was answered and what. Without, nobody knows what became of it.
    pub returned: Option<(u64, Answered)>,
}

/// Operations in one history, at most.
pub const OPERATIONS_MAX: usize = 128;

type State = Option<i64>;

fn step(state: State, operation: &Operation) -> Option<State> {
    let answered = operation.returned.map(|(_, answered)| answered);
    let fits = |expected: Answered| answered.is_none_or(|answered| answered == expected);
    match operation.asked {
        Asked::Set(value) => fits(Answered::Done).then_some(Some(value)),
        Asked::Add(more) => {
            let sum = state.unwrap_or(0).wrapping_add(more);
            fits(Answered::Number(sum)).then_some(Some(sum))
        }
        Asked::Get => {
            let found = state.map_or(Answered::Nothing, Answered::Number);
            fits(found).then_some(state)
        }
    }
}

/// Whether the history of one key, which began empty, can be explained.
///
/// # Panics
/// If it is longer than [`OPERATIONS_MAX`].
#[must_use]
pub fn is_linearizable(history: &[Operation]) -> bool {
    assert!(
        history.len() <= OPERATIONS_MAX,
        "a history of {}",
        history.len()
    );
    let mut operations: Vec<_> = history.to_vec();
    operations.sort_by_key(|operation| operation.called);
    let known = operations
        .iter()
        .enumerate()
        .filter(|(_, operation)| operation.returned.is_some())
        .fold(0_u128, |all, (at, _)| all | 1 << at);
    let mut met = HashSet::new();
    let mut open = vec![(0_u128, None)];
    while let Some((done, state)) = open.pop() {
        if done & known == known {
            return true;
        }
        // Whatever returned first among those not done yet bounds what may come next.
        let returns = operations.iter().enumerate();
        let bound = returns
            .filter(|(at, _)| done & (1 << at) == 0)
            .filter_map(|(_, operation)| operation.returned)
            .map(|(at, _)| at)
            .min()
            .unwrap_or(u64::MAX);
        for (at, operation) in operations.iter().enumerate() {
            if operation.called > bound {
                break;
            }
            if done & (1 << at) != 0 {
                continue;
            }
            if let Some(next) = step(state, operation) {
                let place = (done | 1 << at, next);
                if met.insert(place) {
                    open.push(place);
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(asked: Asked, called: u64, returned: Option<(u64, Answered)>) -> Operation {
        Operation {
            asked,
            called,
            returned,
        }
    }

    fn set(value: i64, called: u64, returned: u64) -> Operation {
        operation(Asked::Set(value), called, Some((returned, Answered::Done)))
    }

    fn get(value: i64, called: u64, returned: u64) -> Operation {
        let answered = Answered::Number(value);
        operation(Asked::Get, called, Some((returned, answered)))
    }

    #[test]
    fn reads_see_what_was_written_before_and_may_see_what_is_being_written() {
        assert!(is_linearizable(&[set(1, 0, 1), get(1, 2, 3)]));
        assert!(is_linearizable(&[
            set(1, 0, 1),
            set(2, 2, 9),
            get(1, 3, 4),
            get(2, 5, 6)
        ]));
        assert!(!is_linearizable(&[
            set(1, 0, 1),
            set(2, 2, 3),
            get(1, 4, 5)
        ]));
        assert!(!is_linearizable(&[
            set(1, 0, 1),
            set(2, 2, 9),
            get(2, 3, 4),
            get(1, 5, 6)
        ]));
    }

    #[test]
    fn what_is_unknown_may_have_happened_later_or_never() {
        let unknown = operation(Asked::Set(7), 0, None);
        assert!(is_linearizable(&[unknown, set(1, 1, 2), get(1, 3, 4)]));
        assert!(is_linearizable(&[unknown, set(1, 1, 2), get(7, 3, 4)]));
        // But once only.
        let history = [
            unknown,
            set(1, 1, 2),
            get(7, 3, 4),
            set(2, 5, 6),
            get(7, 7, 8),
        ];
        assert!(!is_linearizable(&history));
    }

    #[test]
    fn an_addition_counts_once() {
        let add = |called, returned, sum| {
            let answered = Answered::Number(sum);
            operation(Asked::Add(1), called, Some((returned, answered)))
        };
        assert!(is_linearizable(&[add(0, 5, 2), add(1, 4, 1), get(2, 6, 7)]));
        assert!(!is_linearizable(&[add(0, 1, 1), add(2, 3, 3)]));
        let unknown = operation(Asked::Add(1), 0, None);
        assert!(is_linearizable(&[unknown, add(1, 2, 2)]));
        assert!(!is_linearizable(&[unknown, add(1, 2, 3)]));
    }

    #[test]
    fn nothing_is_there_before_the_first_write() {
        let nothing = operation(Asked::Get, 2, Some((3, Answered::Nothing)));
        assert!(is_linearizable(&[nothing, set(1, 4, 5)]));
        assert!(!is_linearizable(&[set(1, 0, 1), nothing]));
    }
}
