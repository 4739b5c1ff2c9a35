//! A node's disk: the log's simulated files under a layer in which a sync takes time. The log calls
//! it within one turn and goes on; the world lets the sync come to its end later, and what the log
//! says after the call counts only then. So a crash can fall between the write and the sync, and a
//! log that acks before the sync is believed at once.
//!
//! - D1: a sync ends before any operation that was begun after it: only the last one of a turn is
//!   still under way when the turn is over.
//! - D2: beside the files, what is known to be durable is kept as it was submitted (the shadow),
//!   and held against what recovery finds.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use raft_host::id::{GroupId, Index, Term};
use raft_host::log::api::{Change, GroupLog, HardState};
use raft_host::log::sim_files::{SimFault, SimFiles};
use raft_host::log::{Files, FolderLock, GroupView, LogFile};
use transport::PeerId;
use transport::proto::authority::NodeRecord;

use super::machine::Machine;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Syncs {
    /// Syncs take time now.
    slow: bool,
    under_way: Option<Arc<dyn LogFile>>,
}

/// The folder as the log sees it.
#[derive(Clone, Debug)]
pub struct SlowFiles {
    files: SimFiles,
    syncs: Arc<Mutex<Syncs>>,
}

#[derive(Debug)]
struct SlowFile {
    file: Arc<dyn LogFile>,
    syncs: Arc<Mutex<Syncs>>,
}

fn settle(syncs: &Mutex<Syncs>) -> io::Result<()> {
    let under_way = lock(syncs).under_way.take();
    under_way.map_or(Ok(()), |file| file.sync_data())
}

impl SlowFiles {
    fn new(files: &SimFiles) -> Self {
        Self {
            files: files.clone(),
            syncs: Arc::default(),
        }
    }

    fn wrap(&self, file: Arc<dyn LogFile>) -> Arc<dyn LogFile> {
        let syncs = Arc::clone(&self.syncs);
        Arc::new(SlowFile { file, syncs })
    }

    /// From now on syncs end when [`SlowFiles::end_sync`] says so.
    pub fn begin_turn(&self) {
        lock(&self.syncs).slow = true;
    }

    /// Whether a sync is under way.
    #[must_use]
    pub fn is_syncing(&self) -> bool {
        lock(&self.syncs).under_way.is_some()
    }

    /// The sync under way ends.
    ///
    /// # Errors
    /// It failed.
    pub fn end_sync(&self) -> io::Result<()> {
        lock(&self.syncs).slow = false;
        settle(&self.syncs)
    }
}

impl Files for SlowFiles {
    fn create(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        settle(&self.syncs)?;
        self.files.create(name).map(|file| self.wrap(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        self.files.open(name).map(|file| self.wrap(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        settle(&self.syncs)?;
        self.files.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        settle(&self.syncs)?;
        self.files.remove(name)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.files.list()
    }

    fn sync_folder(&self) -> io::Result<()> {
        settle(&self.syncs)?;
        self.files.sync_folder()
    }

    fn try_lock(&self, name: &str) -> io::Result<Option<Box<dyn FolderLock>>> {
        self.files.try_lock(name)
    }
}

impl LogFile for SlowFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        settle(&self.syncs)?;
        self.file.write_at(bytes, offset)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        settle(&self.syncs)?;
        let mut syncs = lock(&self.syncs);
        if syncs.slow {
            syncs.under_way = Some(Arc::clone(&self.file));
            return Ok(());
        }
        drop(syncs);
        self.file.sync_data()
    }

    fn bytes_len(&self) -> io::Result<u64> {
        self.file.bytes_len()
    }
}

/// What one group's log holds, by its changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shadow {
    /// The hard state.
    pub hard_state: HardState,
    /// The index and term before the first entry.
    pub compacted: (Index, Term),
    /// The terms of the entries after it.
    pub terms: VecDeque<Term>,
}

impl Shadow {
    /// Applies a change.
    ///
    /// # Panics
    /// If it doesn't follow on what is there.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Write {
                hard_state,
                entries,
            } => {
                if let Some(state) = hard_state {
                    self.hard_state = *state;
                }
                for entry in entries {
                    let at = entry.index.to_u64() - self.compacted.0.to_u64() - 1;
                    let at = usize::try_from(at).unwrap_or(usize::MAX);
                    assert!(at <= self.terms.len(), "a gap was handed to the log");
                    self.terms.truncate(at);
                    self.terms.push_back(entry.term);
                }
            }
            Change::Compact { through, term } => {
                let gone = through.to_u64().saturating_sub(self.compacted.0.to_u64());
                for _ in 0..gone {
                    self.terms.pop_front();
                }
                self.compacted = (*through, *term);
            }
            Change::Reset { .. } | Change::Remove => *self = Self::default(),
        }
    }

    /// The last index.
    #[must_use]
    pub fn last(&self) -> Index {
        Index::new(self.compacted.0.to_u64() + self.terms.len() as u64)
    }

    /// The term at an index that it holds.
    #[must_use]
    pub fn term(&self, index: Index) -> Option<Term> {
        if index == self.compacted.0 {
            return Some(self.compacted.1);
        }
        let at = index.to_u64().checked_sub(self.compacted.0.to_u64() + 1)?;
        self.terms.get(usize::try_from(at).ok()?).copied()
    }

    /// What a recovered log holds.
    #[must_use]
    pub fn of(view: &GroupView) -> Self {
        let compacted = view.compacted();
        let terms = (compacted.0.to_u64() + 1..=view.last_index().to_u64())
            .map(|index| view.term(Index::new(index)).unwrap_or_default());
        Self {
            hard_state: view.hard_state(),
            compacted,
            terms: terms.collect(),
        }
    }

    /// Takes a step, and says whether `other` was come across on the way: a long write may reach the
    /// log in several parts.
    fn passes(&mut self, step: &Step, other: &Self) -> bool {
        let Step::Change(Change::Write {
            hard_state,
            entries,
        }) = step
        else {
            match step {
                Step::Change(change) => self.apply(change),
                Step::State(state) => *self = state.clone(),
            }
            return self.is_same(other);
        };
        let part = |hard_state, entries| Change::Write {
            hard_state,
            entries,
        };
        self.apply(&part(*hard_state, Vec::new()));
        let mut passed = entries.is_empty() && self.is_same(other);
        for entry in entries {
            self.apply(&part(None, vec![entry.clone()]));
            passed |= self.is_same(other);
        }
        passed
    }

    /// Whether both hold the same, the commit index aside, which is a lower bound only.
    fn is_same(&self, other: &Self) -> bool {
        let (a, b) = (self.hard_state, other.hard_state);
        (a.term, a.vote) == (b.term, b.vote)
            && self.compacted == other.compacted
            && self.terms == other.terms
    }
}

/// One step of what a group's log was given.
#[derive(Clone, Debug)]
pub enum Step {
    /// A change.
    Change(Change),
    /// What the log held once it had room for what had waited.
    State(Shadow),
}

fn note_reached(reached: &mut BTreeMap<(GroupId, Term), Index>, group: GroupId, shadow: &Shadow) {
    let index = reached.entry((group, shadow.hard_state.term)).or_default();
    *index = (*index).max(shadow.last());
}

/// What outlives a node's process.
#[derive(Debug)]
pub struct Disk {
    /// The files.
    pub files: SimFiles,
    /// The same as the log sees them.
    pub slow: SlowFiles,
    /// How often it was started.
    pub boots: u64,
    /// The number of the last sync that has ended.
    pub sync_number: u64,
    /// What is durable, by group.
    pub shadow: BTreeMap<GroupId, Shadow>,
    /// What was handed to the log after that, in order, and under which token.
    pub unsynced: VecDeque<(u64, GroupId, Step)>,
    /// The state machines as they survive a power cut.
    pub machines: BTreeMap<GroupId, Machine>,
    /// What was seen of the peers (`data/peers`).
    pub records: BTreeMap<PeerId, NodeRecord>,
    /// How far the log of a group once reached, durably, in each term: what was acked then is true of
    /// then, also where another leader has cut the log since.
    reached: BTreeMap<(GroupId, Term), Index>,
}

impl Default for Disk {
    fn default() -> Self {
        let files = SimFiles::new();
        files.keep_no_trace();
        Self {
            slow: SlowFiles::new(&files),
            files,
            boots: 0,
            sync_number: 0,
            shadow: BTreeMap::new(),
            unsynced: VecDeque::new(),
            machines: BTreeMap::new(),
            records: BTreeMap::new(),
            reached: BTreeMap::new(),
        }
    }
}

impl Disk {
    /// Everything up to this token is durable.
    pub fn made_durable(&mut self, token: u64) {
        while let Some((_, group, step)) = self.unsynced.pop_front_if(|step| step.0 <= token) {
            let shadow = self.shadow.entry(group).or_default();
            match step {
                Step::Change(change) => shadow.apply(&change),
                Step::State(state) => *shadow = state,
            }
            note_reached(&mut self.reached, group, shadow);
        }
    }

    /// How far a group's log has durably reached in a term.
    #[must_use]
    pub fn reached(&self, group: GroupId, term: Term) -> Option<Index> {
        self.reached.get(&(group, term)).copied()
    }

    /// What is durable of a group, and what may be: of writes that had waited for room it isn't known
    /// here in which batches they went.
    pub fn durable(&self, group: GroupId) -> impl Iterator<Item = &Shadow> {
        let waited = self
            .unsynced
            .iter()
            .filter_map(move |(_, of, step)| match step {
                Step::State(state) if *of == group => Some(state),
                Step::State(_) | Step::Change(_) => None,
            });
        self.shadow.get(&group).into_iter().chain(waited)
    }

    /// The power goes and comes back.
    pub fn power_cycle(&mut self, seed: u64) {
        self.files.power_cycle(seed);
        self.slow = SlowFiles::new(&self.files);
    }

    /// The process dies and the machine doesn't.
    pub fn process_died(&mut self) {
        self.files.kill();
        self.slow = SlowFiles::new(&self.files);
    }

    /// Starts a fault of the files.
    pub fn inject(&self, fault: SimFault) {
        self.files.inject(fault);
    }

    /// Holds what recovery found against what was durable and what was on its way (D2), and takes
    /// it over as durable: recovery vouches for it.
    ///
    /// # Errors
    /// What is missing.
    pub fn check_recovered(&mut self, views: &[GroupView]) -> Result<(), String> {
        let found: BTreeMap<_, _> = views
            .iter()
            .map(|view| (view.group(), Shadow::of(view)))
            .collect();
        let groups: Vec<_> = self.shadow.keys().chain(found.keys()).copied().collect();
        for group in groups {
            let mut expected = self.shadow.get(&group).cloned().unwrap_or_default();
            let got = found.get(&group).cloned().unwrap_or_default();
            let on_the_way = self.unsynced.iter().filter(|(_, of, _)| *of == group);
            let same = expected.is_same(&got)
                || on_the_way
                    .map(|(_, _, step)| step)
                    .any(|step| expected.passes(step, &got));
            if !same {
                let durable = self.shadow.get(&group);
                return Err(format!(
                    "recovery of group {group} found {got:?}, durable was {durable:?}"
                ));
            }
        }
        self.shadow = found;
        for (group, shadow) in &self.shadow {
            note_reached(&mut self.reached, *group, shadow);
        }
        self.unsynced.clear();
        Ok(())
    }
}
