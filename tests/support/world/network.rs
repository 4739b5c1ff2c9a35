//! The links between the nodes, as bytes: connections of two pipes with a socket buffer each, the
//! delay of each way, and what is wrong with it. A cut swallows what is sent that way until it is
//! mended, as TCP makes of it: then everything comes, late, unless the connection has ended.
//!
//! - N1: a pipe keeps the order of its bytes and loses none of them while its connection stands.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use transport::Lane;

use super::clock::{MS, Nanos};
use super::dice::Dice;

/// Bytes that a socket holds on their way.
const SOCKET_BYTES: usize = 192 * 1024;

/// One side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// Who dialled.
    Dialler,
    /// Who accepted.
    Acceptor,
}

impl End {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Dialler => Self::Acceptor,
            Self::Acceptor => Self::Dialler,
        }
    }
}

/// One way of a connection: bytes by the time at which they arrive.
#[derive(Debug, Default)]
pub struct Pipe {
    chunks: VecDeque<(Nanos, Bytes)>,
    bytes: usize,
    last: Nanos,
    /// The sender has closed; told once everything before it has arrived.
    pub closed: Option<Nanos>,
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    /// Who dialled.
    pub dialler: usize,
    /// Who accepted.
    pub acceptor: usize,
    /// What the dialler uses it for.
    pub lane: Lane,
    /// The lives of both that it belongs to.
    pub lives: [u64; 2],
    pipes: [Pipe; 2],
    /// Whether each side still has it open.
    pub open: [bool; 2],
    /// What its packets take beyond the weather, from the dialler and from the acceptor.
    pub slow: [Nanos; 2],
    /// It was reset: what is sent on it goes nowhere.
    pub dead: bool,
}

fn at(end: End) -> usize {
    match end {
        End::Dialler => 0,
        End::Acceptor => 1,
    }
}

impl Connection {
    /// The node at an end.
    #[must_use]
    pub fn node(&self, end: End) -> usize {
        match end {
            End::Dialler => self.dialler,
            End::Acceptor => self.acceptor,
        }
    }

    /// The life of that node that it belongs to.
    #[must_use]
    pub fn life(&self, end: End) -> u64 {
        self.lives[at(end)]
    }

    /// Whether this side has it open.
    #[must_use]
    pub fn is_open(&self, end: End) -> bool {
        self.open[at(end)]
    }

    /// This side has it open no more.
    pub fn shut(&mut self, end: End) {
        self.open[at(end)] = false;
    }

    /// How many bytes the socket of this end takes.
    #[must_use]
    pub fn room(&self, from: End) -> usize {
        SOCKET_BYTES.saturating_sub(self.pipes[at(from)].bytes)
    }
}

/// How the network is.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The least delay of one way.
    pub delay_min: Nanos,
    /// The usual most.
    pub delay_max: Nanos,
    /// Chance in a thousand of a late packet.
    pub late_chance: u64,
    /// How late.
    pub late_max: Nanos,
}

/// Calm weather.
pub const CALM: Weather = Weather {
    delay_min: MS / 20,
    delay_max: MS / 2,
    late_chance: 0,
    late_max: 0,
};

/// The connections of all nodes.
#[derive(Debug)]
pub struct Network {
    /// By number; numbers aren't used twice.
    pub connections: BTreeMap<u64, Connection>,
    next: u64,
    /// Ways on which nothing arrives.
    pub cut: BTreeSet<(usize, usize)>,
    /// How it is now.
    pub weather: Weather,
    dice: Dice,
}

/// What a way has for its receiver.
#[derive(Debug)]
pub enum Arrival {
    /// Nothing now.
    Nothing,
    /// These bytes.
    Bytes(Bytes),
    /// The other side has closed.
    Closed,
}

impl Network {
    /// Without connections.
    #[must_use]
    pub fn new(dice: Dice) -> Self {
        Self {
            connections: BTreeMap::new(),
            next: 1,
            cut: BTreeSet::new(),
            weather: CALM,
            dice,
        }
    }

    /// Whether bytes get from one node to the other.
    #[must_use]
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// A delay of one way, by the weather.
    pub fn delay(&mut self) -> Nanos {
        let weather = self.weather;
        let delay = self.dice.between(weather.delay_min, weather.delay_max);
        if self.dice.chance(weather.late_chance) {
            delay + self.dice.below(weather.late_max)
        } else {
            delay
        }
    }

    /// A new connection.
    pub fn connect(&mut self, dialler: usize, acceptor: usize, lane: Lane, lives: [u64; 2]) -> u64 {
        let number = self.next;
        self.next += 1;
        let connection = Connection {
            dialler,
            acceptor,
            lane,
            lives,
            pipes: [Pipe::default(), Pipe::default()],
            open: [true, true],
            slow: [0; 2],
            dead: false,
        };
        self.connections.insert(number, connection);
        number
    }

    /// Sends bytes from an end; says when the other is to look.
    pub fn send(&mut self, now: Nanos, number: u64, from: End, bytes: Bytes) -> Option<Nanos> {
        let delay = self.delay();
        let split = (bytes.len() > 1 && self.dice.chance(30)).then(|| self.dice.index(bytes.len()));
        let connection = self.connections.get_mut(&number)?;
        if connection.dead {
            return None;
        }
        let delay = delay + connection.slow[at(from)];
        let pipe = &mut connection.pipes[at(from)];
        let arrives = pipe.last.max(now + delay);
        pipe.last = arrives;
        pipe.bytes += bytes.len();
        match split {
            // A receiver may see any part of a message first.
            Some(part) if part > 0 => {
                pipe.chunks.push_back((arrives, bytes.slice(..part)));
                pipe.last = arrives + 10_000;
                pipe.chunks
                    .push_back((arrives + 10_000, bytes.slice(part..)));
            }
            _ => pipe.chunks.push_back((arrives, bytes)),
        }
        Some(arrives)
    }

    /// Closes an end; says when the other is to look.
    pub fn close(&mut self, now: Nanos, number: u64, from: End) -> Option<Nanos> {
        let delay = self.delay();
        let connection = self.connections.get_mut(&number)?;
        connection.shut(from);
        let pipe = &mut connection.pipes[at(from)];
        let arrives = pipe.last.max(now + delay);
        pipe.closed.get_or_insert(arrives);
        Some(arrives)
    }

    /// Takes what has arrived at an end, one piece at a time, and says when to look again.
    pub fn receive(&mut self, now: Nanos, number: u64, to: End) -> (Arrival, Option<Nanos>) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return (Arrival::Nothing, None);
        };
        let (sender, receiver) = (connection.node(to.other()), connection.node(to));
        if self.cut.contains(&(sender, receiver)) {
            return (Arrival::Nothing, None);
        }
        let pipe = &mut connection.pipes[at(to.other())];
        if let Some((arrives, _)) = pipe.chunks.front() {
            if *arrives > now {
                return (Arrival::Nothing, Some(*arrives));
            }
            let bytes = pipe.chunks.pop_front().map(|(_, bytes)| bytes);
            let bytes = bytes.unwrap_or_default();
            pipe.bytes -= bytes.len();
            let next = pipe.chunks.front().map(|(arrives, _)| *arrives);
            return (Arrival::Bytes(bytes), next.or(pipe.closed));
        }
        match pipe.closed {
            Some(arrives) if arrives <= now => (Arrival::Closed, None),
            later => (Arrival::Nothing, later),
        }
    }

    /// Ways are mended: what waited arrives after a retransmission, `most` later at the most. Says
    /// where to look and when.
    pub fn mend(
        &mut self,
        now: Nanos,
        ways: &BTreeSet<(usize, usize)>,
        most: Nanos,
    ) -> Vec<(u64, End, Nanos)> {
        for way in ways {
            self.cut.remove(way);
        }
        let mut look = Vec::new();
        for (number, connection) in &mut self.connections {
            for from in [End::Dialler, End::Acceptor] {
                let way = (connection.node(from), connection.node(from.other()));
                if !ways.contains(&way) {
                    continue;
                }
                let pipe = &mut connection.pipes[at(from)];
                let arrives = now + self.dice.between(MS, most);
                for (at, _) in &mut pipe.chunks {
                    *at = arrives.max(*at);
                }
                pipe.last = pipe.last.max(arrives);
                if let Some(closed) = &mut pipe.closed {
                    *closed = arrives.max(*closed);
                }
                look.push((*number, from.other(), arrives));
            }
        }
        look
    }

    /// The connection is reset: what was on its way is lost, and both ends are told.
    pub fn reset(&mut self, now: Nanos, number: u64) -> Option<Nanos> {
        let delay = self.delay();
        let connection = self.connections.get_mut(&number)?;
        connection.dead = true;
        for pipe in &mut connection.pipes {
            pipe.chunks.clear();
            pipe.bytes = 0;
            pipe.closed = Some(now + delay);
        }
        Some(now + delay)
    }

    /// Forgets connections that neither end has open.
    pub fn tidy(&mut self) {
        self.connections.retain(|_, connection| {
            connection.is_open(End::Dialler) || connection.is_open(End::Acceptor)
        });
    }
}
