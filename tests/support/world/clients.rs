//! The clients: each does one thing at a time, at one node after another, and writes down what it
//! asked and what it was told. One that got no answer, or was told that nothing is known, asks again
//! under the same request id where it had given one, and else never learns.
//!
//! - K1: an operation is in the history from its first call; its return is the first answer that
//!   says what came of it.
//! - K2: what was refused each time it was tried is in no history: it must have had no effect, which
//!   is checked against what is applied.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use multigroup::command::{Body, Identity, Op, Outcome};
use multigroup::session::RequestId;
use raft_host::id::GroupId;

use super::clock::{MS, Nanos, wall_ms};
use super::dice::Dice;
use super::shape::Shape;
use crate::oracle::linear::{Answered, Asked, OPERATIONS_MAX, Operation, is_linearizable};

/// What a client hears.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It is committed, and this is what the state machine answered.
    Committed(Bytes),
    /// A read's value.
    Value(Option<i64>),
    /// It had no effect.
    Refused,
    /// It may have had, or may yet have.
    Unknown,
}

/// What a client does.
#[derive(Clone, Debug)]
pub struct Doing {
    /// Its place in the history of its key.
    pub key: Key,
    /// Which operation there.
    pub at: usize,
    /// What it asks.
    pub asked: Asked,
    /// Under which id.
    pub id: Option<RequestId>,
    /// How often it was sent.
    pub tries: u32,
    /// Whether an attempt may have had an effect.
    pub in_doubt: bool,
}

/// A key: which of those in use, and the how manieth of its name.
pub type Key = (u64, u64);

/// One client.
#[derive(Debug)]
pub struct Client {
    /// What it does now.
    pub doing: Option<Doing>,
    /// The number of its latest request.
    pub attempt: u64,
    /// Whether that was sent, and not only planned.
    pub sent: bool,
    skew_ms: i64,
    dice: Dice,
}

/// Unknown operations of one key after which another takes its place.
const UNKNOWN_MAX: usize = 5;

#[derive(Debug, Default)]
struct History {
    operations: Vec<Operation>,
    /// Of those that were proven without effect.
    void: BTreeSet<usize>,
    unknown: usize,
    open: usize,
}

/// What all clients saw.
#[derive(Debug, Default)]
pub struct Histories {
    keys: BTreeMap<Key, History>,
    generation: BTreeMap<u64, u64>,
    next_value: i64,
    /// Operations that were answered.
    pub answered: u64,
    /// Operations whose fate stayed unknown.
    pub unknown: u64,
    /// Operations that were refused for good.
    pub refused: u64,
    /// Requests that were sent again under their id.
    pub repeated: u64,
}

/// The group of a key.
#[must_use]
pub fn group_of(key: Key, groups: u64) -> GroupId {
    GroupId::new(key.0 % groups + 1)
}

/// The key's name.
#[must_use]
pub fn name_of(key: Key) -> Bytes {
    Bytes::from(format!("k{}.{}", key.0, key.1))
}

impl Histories {
    /// The key that stands for this number now.
    fn key(&mut self, number: u64) -> Key {
        let generation = self.generation.entry(number).or_insert(0);
        let key = (number, *generation);
        let history = self.keys.entry(key).or_default();
        let full = history.operations.len() + 8 > OPERATIONS_MAX / 2;
        if history.unknown < UNKNOWN_MAX && !full {
            return key;
        }
        *generation += 1;
        (number, *generation)
    }

    fn begin(&mut self, key: Key, asked: Asked, called: Nanos) -> usize {
        let history = self.keys.entry(key).or_default();
        history.open += 1;
        history.operations.push(Operation {
            asked,
            called,
            returned: None,
        });
        history.operations.len() - 1
    }

    /// It was answered.
    pub fn returned(&mut self, doing: &Doing, now: Nanos, answered: Answered) {
        self.answered += 1;
        let history = self.keys.entry(doing.key).or_default();
        history.open -= 1;
        if let Some(operation) = history.operations.get_mut(doing.at) {
            operation.returned = Some((now, answered));
        }
    }

    /// Its client gives up: it was proven without effect, or nobody knows.
    pub fn gave_up(&mut self, doing: &Doing) {
        let history = self.keys.entry(doing.key).or_default();
        history.open -= 1;
        if doing.in_doubt && doing.asked != Asked::Get {
            history.unknown += 1;
            self.unknown += 1;
        } else {
            history.void.insert(doing.at);
            self.refused += 1;
        }
    }

    /// Whether every key's history can be explained.
    ///
    /// # Errors
    /// The first that can't.
    pub fn check(&self) -> Result<(), String> {
        for (key, history) in &self.keys {
            let operations = history.operations.iter().enumerate();
            let operations: Vec<_> = operations
                .filter(|(at, _)| !history.void.contains(at))
                .map(|(_, operation)| *operation)
                .collect();
            if !is_linearizable(&operations) {
                let lines = operations
                    .iter()
                    .map(|operation| format!("    {operation:?}"));
                return Err(format!(
                    "linearizability: key {key:?} of group number {} can't be explained:\n{}",
                    key.0,
                    lines.collect::<Vec<_>>().join("\n")
                ));
            }
        }
        Ok(())
    }
}

impl Client {
    /// A client with a clock of its own.
    #[must_use]
    pub fn new(mut dice: Dice) -> Self {
        let skew_ms = i64::try_from(dice.below(400)).unwrap_or(0) - 200;
        Self {
            doing: None,
            attempt: 0,
            sent: false,
            skew_ms,
            dice,
        }
    }

    /// Begins something.
    ///
    /// # Panics
    /// Never: the id it makes is one.
    pub fn begin(&mut self, client: usize, now: Nanos, shape: &Shape, seen: &mut Histories) {
        let number = self.dice.below(shape.keys);
        let key = seen.key(number);
        seen.next_value += 1;
        let asked = match self.dice.below(10) {
            0..4 => Asked::Get,
            4..7 => Asked::Set(seen.next_value * 1000),
            _ => Asked::Add(1),
        };
        let identified = asked != Asked::Get && self.dice.chance(800);
        let issued = wall_ms(now).saturating_add_signed(self.skew_ms);
        let text = format!("{issued}-{client}x{}", seen.next_value);
        let id = identified.then(|| RequestId::parse(text.as_bytes()).expect("an id"));
        let at = seen.begin(key, asked, now);
        self.doing = Some(Doing {
            key,
            at,
            asked,
            id,
            tries: 0,
            in_doubt: false,
        });
    }

    /// The next request's number and where it goes.
    pub fn next_attempt(&mut self, nodes: usize) -> (u64, usize) {
        self.attempt += 1;
        self.sent = true;
        if let Some(doing) = &mut self.doing {
            doing.tries += 1;
        }
        (self.attempt, self.dice.index(nodes))
    }

    /// How long it thinks.
    pub fn think(&mut self, shape: &Shape) -> Nanos {
        self.dice.between(MS, shape.think)
    }

    /// How long it waits before it tries again.
    pub fn pause(&mut self) -> Nanos {
        self.dice.between(MS, 60 * MS)
    }

    /// Whether it goes on after so many tries.
    pub fn tries_again(&mut self) -> bool {
        let Some(doing) = &self.doing else {
            return false;
        };
        let may = !doing.in_doubt || doing.id.is_some() || doing.asked == Asked::Get;
        may && doing.tries < 12 && self.dice.chance(900)
    }
}

/// The body of a write.
#[must_use]
pub fn body_of(doing: &Doing) -> Option<Body> {
    let key = name_of(doing.key);
    match doing.asked {
        Asked::Set(value) => {
            let value = value.to_string().into();
            Some(Body::Single(Op::Set { key, value }))
        }
        Asked::Add(delta) => Some(Body::Single(Op::IncrBy { key, delta })),
        Asked::Get => None,
    }
}

/// Its identity.
#[must_use]
pub fn identity_of(doing: &Doing, shape: &Shape) -> Option<Identity> {
    doing.id.clone().map(|id| Identity {
        id,
        window_ms: shape.dedup_window_ms,
    })
}

/// What a state machine's answer says.
///
/// # Errors
/// It is none that the command can have.
pub fn read_outcome(bytes: Bytes) -> Result<Option<Answered>, String> {
    match Outcome::decode(bytes) {
        Ok(Outcome::Ok) => Ok(Some(Answered::Done)),
        Ok(Outcome::Integer(number)) => Ok(Some(Answered::Number(number))),
        // The id was turned away: this attempt did nothing.
        Ok(Outcome::Refused(_)) => Ok(None),
        other => Err(format!("a write was answered {other:?}")),
    }
}
