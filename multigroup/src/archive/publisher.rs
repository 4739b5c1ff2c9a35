//! Publishes what the groups led here have committed: each interval, or when an object's worth is
//! there, what lies beyond the groups' positions is read from their logs, put into one object and
//! created in the store. Positions come from the objects of all nodes, so a new leader goes on where
//! the last one ended, and what two of them published is compared.
//!
//! Memory: one object and one step of reading (`limits.rs`), however much lags: what isn't published
//! yet is in the logs, which forget nothing before.
//!
//! - U1: a node's objects are created one after the other, so its numbers have no gap.
//! - U2: nothing is remembered of an object before the store has taken it, so a try that was broken
//!   off, or whose answer was lost, is found by its name the next time.
//! - U3: a group whose archive contradicts its log is published no further, by name.
//!
//! Started with the node; ends when it is told, after one last round. A round may be dropped at any
//! point (U2). If it panics the archive stands still, which holds the writes (`gate`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use object_store::path::Path;
use raft_host::id::{GroupId, Index, Term};
use raft_host::io::{CommittedEntries, CommittedFailed, Group, GroupsOfShard, Led};
use raft_host::log::api::{LogEntry, ReadError};
use raft_host::proto::consensus::Role;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};
use transport::io::clock;

use super::catalog::Position;
use super::claim::{Claim, still_there};
use super::error::{ArchiveError, Fork, ObjectFault, ObjectName};
use super::ledger::Ledger;
use super::manifest::Manifest;
use super::object::{ObjectBuilder, SegmentRef, read_segment, segment_range};
use super::place::{Created, Identity};
use super::reader::{Listed, Overlap, Reader};
use crate::admin::{ArchiveState, ArchiveStatus};
use crate::causes::with_causes;
use crate::limits::{
    ARCHIVE_FAREWELL, ARCHIVE_MANIFEST_EVERY, ARCHIVE_OBJECT_BYTES, ARCHIVE_READ_BYTES,
    ARCHIVE_READS, ARCHIVE_RELEASE_ENTRIES, ARCHIVE_RETRY_WAIT,
};

#[derive(Debug, Default)]
struct State {
    last_publish: Option<Instant>,
    objects: u64,
    bytes: u64,
    failures: u64,
    /// How and why the last try failed, until one succeeds.
    failing: Option<(ArchiveState, String)>,
    /// Why nothing is published for these groups any more.
    stopped: BTreeMap<GroupId, String>,
}

/// What the publisher shares with those who report and those who count.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) ledger: Ledger,
    begun: Instant,
    held: AtomicBool,
    state: Mutex<State>,
}

impl Shared {
    /// Begins with nothing counted.
    pub(crate) fn new(groups: u32, max_lag_bytes: u64) -> Self {
        Self {
            ledger: Ledger::new(groups, ARCHIVE_OBJECT_BYTES, max_lag_bytes),
            begun: clock::now(),
            held: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Release);
    }

    /// How far a group is archived, as far as this node has seen.
    pub(crate) fn position(&self, group: GroupId) -> Option<u64> {
        self.ledger.position(group)
    }

    /// How the archive stands.
    pub(crate) fn status(&self) -> ArchiveStatus {
        let (groups_current, lag_bytes) =
            (self.ledger.groups_current(), self.ledger.pending_bytes());
        let state = self.state();
        let last = state.last_publish.unwrap_or(self.begun);
        let age = clock::now().saturating_duration_since(last);
        let stopped = state.stopped.first_key_value();
        let failing = state.failing.as_ref();
        ArchiveStatus {
            state: failing.map_or(ArchiveState::Ok, |(how, _)| *how),
            groups_current,
            lag_bytes,
            last_publish_age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            writes_held: self.held.load(Ordering::Acquire),
            objects_total: state.objects,
            bytes_total: state.bytes,
            failures_total: state.failures,
            failing: state.failing.as_ref().map(|(_, why)| why.clone()),
            groups_stopped: state.stopped.len() as u64,
            first_stopped: stopped.map(|(group, why)| format!("group {group}: {why}")),
        }
    }

    fn published(&self, bytes: u64) {
        let mut state = self.state();
        state.last_publish = Some(clock::now());
        state.objects += 1;
        state.bytes += bytes;
    }

    fn failed(&self, why: &ArchiveError) {
        let text = with_causes(why);
        let mut state = self.state();
        state.failures += 1;
        let how = why.state();
        if state.failing.as_ref().is_none_or(|(last, _)| *last != how) {
            match how {
                ArchiveState::Gone | ArchiveState::Foreign => error!(
                    error = %text,
                    "nothing is archived any more; writes will be held once too much lags"
                ),
                ArchiveState::Failing | ArchiveState::Ok => {
                    warn!(error = %text, "the archive takes nothing; trying again");
                }
            }
        }
        state.failing = Some((how, text));
    }

    fn succeeded(&self) {
        if self.state().failing.take().is_some() {
            info!("the archive takes objects again");
        }
    }

    fn stop(&self, group: GroupId, why: String) {
        self.ledger.stop(group);
        error!(%group, why, "nothing more is archived for this group");
        self.state().stopped.entry(group).or_insert(why);
    }
}

/// What it is started with.
#[derive(Debug)]
pub(crate) struct PublisherSetup {
    /// Where to, and for whom.
    pub(crate) claim: Claim,
    /// All nodes of the cluster.
    pub(crate) nodes: Vec<u64>,
    /// From one object to the next.
    pub(crate) interval: Duration,
    /// All groups, by their numbers.
    pub(crate) groups: Vec<Group>,
    /// The node's shards.
    pub(crate) shards: Vec<GroupsOfShard>,
    /// For those who ask.
    pub(crate) shared: Arc<Shared>,
}

/// Publishes.
#[derive(Debug)]
pub(crate) struct Publisher {
    setup: PublisherSetup,
    reader: Option<Reader>,
    /// Whose archive the reader has open.
    identity: Option<Identity>,
    /// Entries that are in two objects and weren't compared yet.
    overlaps: VecDeque<Overlap>,
    /// Up to where each led group's log was released, and in which term.
    released: BTreeMap<GroupId, (Term, Index)>,
    /// The last own object that a manifest covers.
    manifest_at: u64,
    /// Where the next object begins, so that none waits for ever behind busy ones.
    turn: GroupId,
}

impl Publisher {
    pub(crate) fn new(setup: PublisherSetup) -> Self {
        Self {
            setup,
            reader: None,
            identity: None,
            overlaps: VecDeque::new(),
            released: BTreeMap::new(),
            manifest_at: 0,
            turn: GroupId::new(0),
        }
    }

    /// Publishes until `stop` holds `true`, and then once more.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.setup.shared);
        let (first, longest) = ARCHIVE_RETRY_WAIT;
        let mut retry = first;
        loop {
            let begun = clock::now();
            let done = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                done = self.round() => done,
            };
            let failed = done.is_err();
            let wait = match done {
                Ok(()) => {
                    shared.succeeded();
                    retry = first;
                    let took = clock::now().saturating_duration_since(begun);
                    self.setup.interval.saturating_sub(took)
                }
                Err(why) => {
                    shared.failed(&why);
                    let wait = retry;
                    retry = (retry * 2).min(longest);
                    wait
                }
            };
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                () = sleep(wait) => {}
                () = shared.ledger.object_full(), if !failed => {}
            }
        }
        match timeout(ARCHIVE_FAREWELL, self.round()).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => shared.failed(&why),
            Err(_) => warn!("stopped before everything was archived; the logs keep it"),
        }
    }

    /// Everything that is committed now.
    async fn round(&mut self) -> Result<(), ArchiveError> {
        self.follow().await?;
        self.compare_overlaps().await?;
        while self.publish().await? {}
        self.write_manifest().await
    }

    /// Opens the archive if it isn't, and reads what others, or earlier lives, have published.
    async fn follow(&mut self) -> Result<(), ArchiveError> {
        let mut reader = match (self.reader.take(), &self.identity) {
            (Some(reader), Some(identity)) => {
                let there = still_there(reader.place(), identity).await;
                if let Err(error) = there {
                    self.reader = Some(reader);
                    return Err(error);
                }
                reader
            }
            _ => {
                let (reader, identity) = self.open().await?;
                self.identity = Some(identity);
                reader
            }
        };
        let followed = self.follow_with(&mut reader).await;
        self.reader = Some(reader);
        followed
    }

    async fn open(&self) -> Result<(Reader, Identity), ArchiveError> {
        let (place, identity) = self.setup.claim.open().await?;
        let reader = Reader::open(place, self.setup.nodes.iter().copied()).await?;
        for (group, position) in reader.catalog.positions() {
            self.setup.shared.ledger.derived(group, position);
        }
        Ok((reader, identity))
    }

    async fn follow_with(&mut self, reader: &mut Reader) -> Result<(), ArchiveError> {
        let nodes: Vec<u64> = reader.read().keys().copied().collect();
        for node in nodes {
            while let Some(listed) = reader.next(node).await? {
                self.take(reader, &listed);
            }
        }
        Ok(())
    }

    /// Takes note of an object that is in the store.
    fn take(&mut self, reader: &mut Reader, listed: &Listed) {
        let (overlaps, forks) = reader.note(listed);
        self.overlaps.extend(overlaps);
        for (group, fork) in forks {
            self.setup.shared.stop(group, fork.to_string());
        }
        for segment in &listed.segments {
            let position = reader.catalog.position(segment.group);
            let (first, bytes) = (segment.first, u64::from(segment.length));
            let ledger = &self.setup.shared.ledger;
            ledger.archived(segment.group, position, first, bytes);
        }
    }

    /// What is in two objects must be the same in both, and as it is in the log here (A3).
    async fn compare_overlaps(&mut self) -> Result<(), ArchiveError> {
        while let Some(overlap) = self.overlaps.front().copied() {
            let fork = self.differs(&overlap).await?;
            self.overlaps.pop_front();
            if let (Some(fork), Some(reader)) = (fork, &mut self.reader) {
                reader.catalog.mark(overlap.group, fork);
                self.setup.shared.stop(overlap.group, fork.to_string());
            }
        }
        Ok(())
    }

    async fn differs(&self, overlap: &Overlap) -> Result<Option<Fork>, ArchiveError> {
        let Some(reader) = &self.reader else {
            return Ok(None);
        };
        let (object, segment) = (overlap.header.name, &overlap.segment);
        let range = segment_range(&overlap.header, segment);
        let key = reader.place().segments_key(object);
        let bytes = reader.place().get(&key, Some(range)).await?;
        let damaged = |fault: ObjectFault| ArchiveError::Object { object, fault };
        let archived = read_segment(segment, bytes.unwrap_or_default()).map_err(damaged)?;
        let own = self.own_entries(segment).await?;
        let begin = own.first().map_or(segment.last.next(), |entry| entry.index);
        // What the log has forgotten is compared by whoever checks the archive.
        let archived = archived.iter().skip_while(|entry| entry.index < begin);
        let different = archived.zip(&own).find(|(a, b)| a != b);
        Ok(different.map(|(entry, _)| Fork::Bytes {
            index: entry.index,
            object,
        }))
    }

    /// A segment's entries, as far as the log here has them.
    async fn own_entries(&self, segment: &SegmentRef) -> Result<Vec<LogEntry>, ArchiveError> {
        let mut entries: Vec<LogEntry> = Vec::new();
        let Some(group) = self.group(segment.group) else {
            return Ok(entries);
        };
        let mut next = segment.first;
        while next <= segment.last {
            let read = group.committed(next, ARCHIVE_READ_BYTES).await;
            match read {
                Ok(part) if part.entries.is_empty() => break,
                Ok(part) => entries.extend(part.entries),
                Err(CommittedFailed::Read(ReadError::Compacted { first, .. })) => {
                    next = first;
                    continue;
                }
                Err(CommittedFailed::Refused(refusal)) => return Err(ArchiveError::Host(refusal)),
                Err(_) => break,
            }
            next = entries.last().map_or(next, |entry| entry.index.next());
        }
        entries.retain(|entry| entry.index <= segment.last);
        Ok(entries)
    }

    fn group(&self, group: GroupId) -> Option<&Group> {
        let at = usize::try_from(group.to_u64()).ok()?;
        self.setup.groups.get(at)
    }

    /// Publishes one object, if there is anything. Whether there may be more.
    async fn publish(&mut self) -> Result<bool, ArchiveError> {
        let behind = self.behind().await?;
        let (builder, mut more) = self.gather(&behind).await?;
        if builder.is_empty() {
            return Ok(false);
        }
        let Some(mut reader) = self.reader.take() else {
            return Ok(false);
        };
        let created = self.create(&mut reader, builder).await;
        self.reader = Some(reader);
        // Someone else's object was in the way: what it holds is known now.
        more |= created? == Created::Exists;
        self.release_logs(&behind);
        Ok(more)
    }

    /// The groups led here that aren't archived as far as they are committed, in turn.
    async fn behind(&self) -> Result<Vec<Led>, ArchiveError> {
        let mut behind = Vec::new();
        let Some(reader) = &self.reader else {
            return Ok(behind);
        };
        for shard in &self.setup.shards {
            let led = shard.led().await.map_err(ArchiveError::Host)?;
            self.check_ahead(reader, &led).await;
            behind.extend(led.into_iter().filter(|led| {
                let position = reader.catalog.position(led.group);
                led.commit > position.index && !self.is_stopped(led.group)
            }));
        }
        behind.sort_by_key(|led| (led.group < self.turn, led.group));
        Ok(behind)
    }

    /// A leader that has committed in its own term has all that was committed before, and nobody of
    /// an older term adds to it: if its log ends before a group's position, it is not the log that
    /// was archived (U3).
    async fn check_ahead(&self, reader: &Reader, led: &[Led]) {
        for led in led {
            let position = reader.catalog.position(led.group);
            let is_behind = led.commit < position.index && position.term <= led.term;
            if !is_behind || self.is_stopped(led.group) {
                continue;
            }
            if let Some(last) = self.end_of(led).await
                && last < position.index
            {
                let why = format!(
                    "it is archived up to entry {}, and its leader's log ends at {last}: this \
                     cluster has lost what it had, or the archive is another's",
                    position.index
                );
                self.setup.shared.stop(led.group, why);
            }
        }
    }

    /// Where the log of a group ends that is led here, once its leader has committed in its term.
    async fn end_of(&self, led: &Led) -> Option<Index> {
        let group = self.group(led.group)?;
        let committed = group.committed(led.commit, ARCHIVE_READ_BYTES).await.ok()?;
        let own = committed.entries.first()?.term == led.term;
        // Its leadership may have gone, and its log been cut, since it was listed.
        let now = group.status().await.filter(|_| own)?;
        (now.role == Role::Leader && now.term == led.term).then_some(now.last)
    }

    fn is_stopped(&self, group: GroupId) -> bool {
        self.setup.shared.state().stopped.contains_key(&group)
    }

    /// Reads what fits in an object. Whether something is left.
    async fn gather(&mut self, behind: &[Led]) -> Result<(ObjectBuilder, bool), ArchiveError> {
        let mut builder = ObjectBuilder::default();
        let mut more = false;
        for led in behind.chunks(ARCHIVE_READS) {
            if builder.payload_bytes() >= ARCHIVE_OBJECT_BYTES {
                self.turn = led.first().map_or(self.turn, |led| led.group);
                return Ok((builder, true));
            }
            let asked = led.iter().filter_map(|led| {
                let position = self.reader.as_ref()?.catalog.position(led.group);
                let group = self.group(led.group)?.clone();
                Some(async move {
                    let first = position.index.next();
                    let read = group.committed(first, ARCHIVE_READ_BYTES).await;
                    (group.id(), position, read)
                })
            });
            for (group, position, read) in join_all(asked).await {
                let Some(part) = self.accept(group, position, read)? else {
                    continue;
                };
                let last = part.entries.last().map(|entry| entry.index);
                let commit = led.iter().find(|led| led.group == group);
                more |= commit.is_some_and(|led| last.is_some_and(|last| last < led.commit));
                builder.add(group, part.term_before, &part.entries);
            }
        }
        Ok((builder, more))
    }

    /// What was read of a group's log goes on from its position, or the group is stopped (U3).
    fn accept(
        &self,
        group: GroupId,
        position: Position,
        read: Result<CommittedEntries, CommittedFailed>,
    ) -> Result<Option<CommittedEntries>, ArchiveError> {
        let Position { index, term } = position;
        match read {
            Ok(part) if part.entries.is_empty() => Ok(None),
            Ok(part) if part.term_before == term => Ok(Some(part)),
            Ok(part) => {
                let fork = Fork::Terms {
                    index,
                    archived: term,
                    got: part.term_before,
                };
                self.setup.shared.stop(group, fork.to_string());
                Ok(None)
            }
            Err(CommittedFailed::Read(ReadError::Compacted { first, .. })) => {
                let why = format!(
                    "it is archived up to entry {index}, and its log begins at entry {first}; what \
                     lies between can't be archived without a base snapshot, which this version \
                     doesn't publish"
                );
                self.setup.shared.stop(group, why);
                Ok(None)
            }
            Err(CommittedFailed::Refused(refusal)) => Err(ArchiveError::Host(refusal)),
            // The log has stopped, and with it the node.
            Err(_) => Ok(None),
        }
    }

    async fn create(
        &mut self,
        reader: &mut Reader,
        builder: ObjectBuilder,
    ) -> Result<Created, ArchiveError> {
        let name: ObjectName = reader.next_of(self.setup.claim.node);
        let made = clock::wall().duration_since(std::time::UNIX_EPOCH);
        let made = u64::try_from(made.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
        let (bytes, segments) = builder.finish(name, self.setup.claim.incarnation, made);
        let length = bytes.len() as u64;
        // It was just written, so it reads.
        let damaged = |fault| ArchiveError::Object {
            object: name,
            fault,
        };
        let header = super::object::read_header(&bytes).map_err(damaged)?;
        let key = reader.place().segments_key(name);
        let created = reader.place().create(&key, bytes).await?;
        match created {
            Created::Yes => {
                self.stands(reader, &key).await?;
                reader.created(name);
                self.take(reader, &Listed { header, segments });
                self.setup.shared.published(length);
            }
            Created::Exists => {
                if let Some(listed) = reader.next(name.node).await? {
                    self.take(reader, &listed);
                }
            }
        }
        Ok(created)
    }

    /// What was just written counts only if the archive is still there: a folder that was moved away
    /// is made anew by whoever writes into it, and what is written there is lost with its return.
    async fn stands(&self, reader: &Reader, key: &Path) -> Result<(), ArchiveError> {
        let Some(identity) = &self.identity else {
            return Ok(());
        };
        let there = still_there(reader.place(), identity).await;
        if let Err(ArchiveError::Gone { .. }) = &there {
            // It stands in nobody's way when the archive is brought back; left, it only would.
            let _in_the_way = reader.place().remove(key).await;
        }
        there
    }

    /// Lets logs forget what is archived, in steps that are worth it.
    fn release_logs(&mut self, led: &[Led]) {
        let Some(reader) = &self.reader else { return };
        for led in led {
            let position = reader.catalog.position(led.group).index;
            let known = self.released.get(&led.group);
            let known = known.filter(|(term, _)| *term == led.term);
            let through = known.map_or(0, |(_, through)| through.to_u64());
            if position.to_u64() < through + ARCHIVE_RELEASE_ENTRIES {
                continue;
            }
            let told = self
                .group(led.group)
                .map(|group| group.release_log(position));
            if let Some(Ok(())) = told {
                self.released.insert(led.group, (led.term, position));
            }
        }
    }

    /// Now and then a manifest, so that whoever starts reads few objects.
    async fn write_manifest(&mut self) -> Result<(), ArchiveError> {
        let (Some(reader), node) = (&self.reader, self.setup.claim.node) else {
            return Ok(());
        };
        let own = reader.read().get(&node).copied().unwrap_or(0);
        if own < self.manifest_at + ARCHIVE_MANIFEST_EVERY {
            return Ok(());
        }
        let Some(manifest) = Manifest::of(&reader.catalog, reader.read().clone()) else {
            return Ok(());
        };
        let place = reader.place();
        let key = place.manifest_key(node, own);
        let created = place.create(&key, manifest.encode()).await?;
        self.manifest_at = own;
        if created == Created::Exists {
            return Ok(());
        }
        // The one before stays for whoever is reading it.
        let older = place.manifests(node).await?;
        for sequence in older.iter().rev().skip(2) {
            place.remove(&place.manifest_key(node, *sequence)).await?;
        }
        Ok(())
    }
}
