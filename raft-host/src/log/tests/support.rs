//! A log on a simulated disk with an oracle beside it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::super::api::{Change, EntryKind, GroupLog, HardState, LogEntry};
use super::super::sim_files::SimFiles;
use super::super::{
    Completion, GroupView, Log, LogConfig, LogDriver, LogSetup, LogShard, OpenError, RawLogConfig,
    ShardLog, SubmitError, Turn,
};
use crate::id::{GroupId, Index, ReplicaId, Term};

pub(super) const ID: [u8; 16] = *b"a log's own name";
pub(super) const SHARDS: u64 = 2;

pub(super) fn small() -> RawLogConfig {
    RawLogConfig {
        segment_bytes: 16 * 1024,
        bytes_max: 64 * 16 * 1024,
        cache_bytes: 4 * 1024,
        probe_interval: Duration::from_millis(1),
        ..RawLogConfig::default()
    }
}

/// A group's log without any of the machinery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Naive {
    pub(super) hard_state: HardState,
    pub(super) compacted: (u64, u64),
    pub(super) entries: Vec<LogEntry>,
    pub(super) exists: bool,
}

impl Naive {
    pub(super) fn last(&self) -> u64 {
        self.compacted.0 + self.entries.len() as u64
    }

    pub(super) fn term(&self, index: u64) -> u64 {
        let at = index.checked_sub(self.compacted.0 + 1);
        at.map_or(self.compacted.1, |at| {
            self.entries[at as usize].term.to_u64()
        })
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Write {
                hard_state,
                entries,
            } => {
                if let Some(state) = hard_state {
                    self.hard_state = *state;
                }
                if let Some(first) = entries.first() {
                    let kept = first.index.to_u64() - self.compacted.0 - 1;
                    self.entries.truncate(kept as usize);
                    self.entries.extend_from_slice(entries);
                }
                self.exists |= hard_state.is_some() || !entries.is_empty();
            }
            Change::Compact { through, term } => {
                self.entries
                    .drain(..(through.to_u64() - self.compacted.0) as usize);
                self.compacted = (through.to_u64(), term.to_u64());
            }
            Change::Reset {
                index,
                term,
                hard_state,
            } => {
                self.entries.clear();
                self.compacted = (index.to_u64(), term.to_u64());
                self.hard_state = *hard_state;
                self.exists = true;
            }
            Change::Remove => *self = Self::default(),
        }
    }

    /// As it must come back: the commit index lies within the log.
    fn reopened(mut self) -> Self {
        let (low, high) = (Index::new(self.compacted.0), Index::new(self.last()));
        self.hard_state.commit = self.hard_state.commit.clamp(low, high);
        self
    }
}

pub(super) type Groups = BTreeMap<GroupId, Naive>;

/// What a view shows, read through its own interface.
pub(super) fn shown(view: &GroupView) -> Naive {
    let (compacted, last) = (view.compacted(), view.last_index());
    let mut entries = Vec::new();
    let mut next = compacted.0.next();
    while next <= last {
        let part = view
            .entries(next, last.next(), 1500)
            .expect("every entry can be read");
        next = part.last().expect("at least one").index.next();
        entries.extend(part);
    }
    for entry in &entries {
        assert_eq!(view.term(entry.index), Ok(entry.term));
    }
    assert_eq!(view.term(compacted.0), Ok(compacted.1));
    let compacted = (compacted.0.to_u64(), compacted.1.to_u64());
    Naive {
        hard_state: view.hard_state(),
        compacted,
        entries,
        exists: true,
    }
}

pub(super) struct World {
    pub(super) files: SimFiles,
    pub(super) config: LogConfig,
    pub(super) log: Log,
    pub(super) driver: LogDriver,
    pub(super) shards: Vec<ShardLog>,
    pub(super) views: BTreeMap<GroupId, GroupView>,
    /// Per shard: the groups after each flush, the first as they were at the opening.
    pub(super) history: Vec<Vec<Groups>>,
    /// Per shard: as staged.
    pub(super) now: Vec<Groups>,
    /// Per shard: the last durable token.
    pub(super) acked: Arc<Mutex<Vec<u64>>>,
    pub(super) failures: Arc<Mutex<Vec<LogShard>>>,
}

pub(super) fn shard_of(group: GroupId) -> usize {
    (group.to_u64() % SHARDS) as usize
}

impl World {
    pub(super) fn open(files: &SimFiles, raw: RawLogConfig) -> Result<Self, OpenError> {
        let config = LogConfig::try_from(raw).expect("a possible configuration");
        let acked = Arc::new(Mutex::new(vec![0; SHARDS as usize]));
        let failures = Arc::new(Mutex::new(Vec::new()));
        let sink = {
            let (files, acked, failures) = (files.clone(), acked.clone(), failures.clone());
            move |shard: LogShard, completion| match completion {
                Completion::Durable(token) => {
                    files.note(format!("ack {shard}"));
                    let before = &mut acked.lock().unwrap()[shard.to_u32() as usize];
                    assert!(token.to_u64() > *before, "acks rise");
                    *before = token.to_u64();
                }
                Completion::Failed(_) => failures.lock().unwrap().push(shard),
            }
        };
        let (log, driver, views) = Log::open_driven(LogSetup {
            files: Arc::new(files.clone()),
            config,
            clock: Arc::new(|| Duration::ZERO),
            id: ID,
            sink: Box::new(sink),
        })?;
        let shards = (0..SHARDS as u32)
            .map(|shard| log.shard(LogShard::new(shard)))
            .collect();
        let views: BTreeMap<_, _> = views.into_iter().map(|view| (view.group(), view)).collect();
        let mut now = vec![Groups::new(); SHARDS as usize];
        for (group, view) in &views {
            now[shard_of(*group)].insert(*group, shown(view));
        }
        let history = now.iter().map(|groups| vec![groups.clone()]).collect();
        let files = files.clone();
        Ok(Self {
            files,
            config,
            log,
            driver,
            shards,
            views,
            history,
            now,
            acked,
            failures,
        })
    }

    pub(super) fn naive(&self, group: GroupId) -> Naive {
        self.now[shard_of(group)]
            .get(&group)
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn stage(&mut self, group: GroupId, change: Change) -> Result<(), SubmitError> {
        let at = shard_of(group);
        let shard = &mut self.shards[at];
        let view = self
            .views
            .entry(group)
            .or_insert_with(|| shard.new_group(group));
        let token = shard.stage(view, change.clone())?;
        // Staging may flush what was staged before.
        while (self.history[at].len() as u64) < token.to_u64() {
            self.history[at].push(self.now[at].clone());
        }
        self.now[at].entry(group).or_default().apply(&change);
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), SubmitError> {
        for at in 0..SHARDS as usize {
            if self.shards[at].flush()?.is_some() {
                self.history[at].push(self.now[at].clone());
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, group: u64, first: u64, count: u64, term: u64, bytes: usize) {
        let change = write(first, count, term, bytes);
        self.stage(GroupId::new(group), change)
            .expect("there is room");
    }

    /// Turns until nothing is left to do at once.
    pub(super) fn settle(&mut self) -> Turn {
        loop {
            let turn = self.driver.turn();
            if turn != (Turn::Synced { more: true }) {
                return turn;
            }
        }
    }

    pub(super) fn check_views(&self) {
        for (group, view) in &self.views {
            let mut expected = self.naive(*group);
            expected.exists = true;
            assert_eq!(shown(view), expected, "group {group}");
        }
    }

    /// Ends this world as a crash does, with the disk already as it will be found, and opens what
    /// is left: it must be, per shard, as after some flush that wasn't acked too late.
    pub(super) fn reopen(self) -> Self {
        let Self {
            files,
            config,
            history,
            acked,
            ..
        } = self;
        let raw = RawLogConfig {
            segment_bytes: config.segment_bytes(),
            bytes_max: config.bytes_max(),
            sync: config.sync(),
            probe_interval: config.probe_interval(),
            cache_bytes: config.cache_bytes(),
        };
        let found = Self::open(&files, raw).unwrap_or_else(|error| {
            panic!(
                "the log can't be opened: {error}: {:?}",
                std::error::Error::source(&error)
            )
        });
        let acked = acked.lock().unwrap().clone();
        check_found(&found, &history, &acked);
        found
    }
}

/// Each shard's groups stand as after a flush that is no earlier than the last acked one.
pub(super) fn check_found(found: &World, history: &[Vec<Groups>], acked: &[u64]) {
    for (at, states) in history.iter().enumerate() {
        let first = acked[at] as usize;
        let possible = states[first..].iter().any(|state| {
            let expected: Groups = state
                .iter()
                .filter(|(_, naive)| naive.exists)
                .map(|(group, naive)| (*group, naive.clone().reopened()))
                .collect();
            expected == found.now[at]
        });
        assert!(
            possible,
            "shard {at}: found {:?}\nacked {first}: {:?}",
            brief(&found.now[at]),
            states[first..].iter().map(brief).collect::<Vec<_>>()
        );
    }
}

fn brief(groups: &Groups) -> Vec<String> {
    let line = |(group, naive): (&GroupId, &Naive)| {
        let terms: Vec<_> = naive
            .entries
            .iter()
            .map(|entry| entry.term.to_u64())
            .collect();
        format!(
            "g{group} {:?} {:?} {terms:?}",
            naive.hard_state, naive.compacted
        )
    };
    groups
        .iter()
        .filter(|(_, naive)| naive.exists)
        .map(line)
        .collect()
}

pub(super) fn entry(index: u64, term: u64, bytes: usize) -> LogEntry {
    let byte = (index * 31 + term * 7) as u8;
    LogEntry {
        index: Index::new(index),
        term: Term::new(term),
        kind: if index.is_multiple_of(5) {
            EntryKind::ConfChange
        } else {
            EntryKind::Normal
        },
        data: Bytes::from(vec![byte; bytes]),
        context: Bytes::from(vec![!byte; bytes % 9]),
    }
}

pub(super) fn write(first: u64, count: u64, term: u64, bytes: usize) -> Change {
    let entries = (first..first + count)
        .map(|index| entry(index, term, bytes))
        .collect();
    Change::Write {
        hard_state: None,
        entries,
    }
}

pub(super) fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    let vote = (vote != 0).then(|| ReplicaId::new(vote));
    HardState {
        term: Term::new(term),
        vote,
        commit: Index::new(commit),
    }
}
