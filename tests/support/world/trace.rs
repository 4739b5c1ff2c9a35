//! The trace of a run: one line an event, for a person, if it is wanted; and a hash of everything
//! that happened, always, so that two runs can be compared.
//!
//! `SIM_TRACE=1` prints it, `SIM_GROUP=` and `SIM_NODE=` keep what concerns that group or node.

use super::clock::Nanos;

/// What is printed, and the hash.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Whether lines are printed at all.
    pub on: bool,
    /// Only those of this node, and those of none.
    pub node: Option<u64>,
    /// Only those of this group, and those of none.
    pub group: Option<u64>,
    hash: u64,
    lines: u64,
}

impl Trace {
    /// As the environment wants it.
    #[must_use]
    pub fn from_env() -> Self {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
        Self {
            on: std::env::var_os("SIM_TRACE").is_some_and(|value| value != "0"),
            node: number("SIM_NODE"),
            group: number("SIM_GROUP"),
            hash: 0,
            lines: 0,
        }
    }

    /// Mixes numbers into the hash.
    pub fn mix(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hash = (self.hash ^ number).wrapping_mul(0x0000_0100_0000_01b3);
            self.hash ^= self.hash >> 29;
        }
    }

    /// What the run came to.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// One line, made only if it is printed. `node` counts from 0 and is printed from 1.
    #[expect(
        clippy::print_stdout,
        reason = "it is what the person who asked for it reads"
    )]
    pub fn line(
        &mut self,
        now: Nanos,
        node: Option<usize>,
        group: Option<u64>,
        text: impl FnOnce() -> String,
    ) {
        if !self.on {
            return;
        }
        let node = node.map(|node| node as u64 + 1);
        let hidden = |wanted: Option<u64>, got: Option<u64>| matches!((wanted, got), (Some(wanted), Some(got)) if wanted != got);
        // With a filter on groups, what belongs to none is left out but for faults.
        if hidden(self.node, node) || hidden(self.group, group) {
            return;
        }
        self.lines += 1;
        let place = match (node, group) {
            (Some(node), Some(group)) => format!("node {node} group {group}"),
            (Some(node), None) => format!("node {node}"),
            (None, Some(group)) => format!("group {group}"),
            (None, None) => "world".to_owned(),
        };
        let (seconds, micros) = (now / 1_000_000_000, now / 1000 % 1_000_000);
        println!("{seconds:>3}.{micros:06} {place:<16} {}", text());
    }
}
