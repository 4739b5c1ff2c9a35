//! What waits for one shard: frames, requests, what the log, the apply workers and the transport
//! report, and links that came or went. Any thread puts things in, the shard's thread takes all at
//! once. A full inbox refuses; nobody ever waits for room in it (safety 17).
//!
//! Bounds: frames by bytes and lane, requests by number. The rest is bounded by what caused it:
//! ends of sends by what is on the wire, applied batches by the groups (one each under way), links
//! by the peers, and of the log's progress only the newest is kept.
//!
//! - X1: what was accepted is taken once, in order per kind, or given back by `close`.
//! - X2: after a loud put the shard is awake or will be; a quiet one may wait for its next tick,
//!   unless the shard has said that it waits for such, before or after.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::time::Instant;

use bytes::Bytes;
use tokio::time::Sleep;

use super::inbound::FrameAnswer;
use super::requests::Request;
use super::workers::Item;
use crate::commit_queue::CommitQueue;
use crate::id::{Boot, GroupId, Index, NodeId, SendId};
use crate::limits::{
    INBOX_BULK_BYTES_MAX, INBOX_CONTROL_BYTES_MAX, INBOX_FRAME_BYTES, INBOX_REQUESTS_MAX,
};
use crate::log::{LogFailure, Token};
use crate::proto::host::{Lane, SendEnd};

/// Locks, also after a holder panicked: what is behind these locks is whole at any step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One item of a frame, for one shard.
#[derive(Debug)]
pub(super) struct FramePart {
    pub(super) peer: NodeId,
    pub(super) lane: Lane,
    pub(super) body: Bytes,
    /// Where its answer goes, and as which item's; on bulk it has been answered.
    pub(super) answer: Option<(Arc<FrameAnswer>, usize)>,
    /// Where it came from, to be ended if it is no body.
    pub(super) session: transport::FrameSession,
}

impl FramePart {
    fn cost(&self) -> u64 {
        self.body.len() as u64 + INBOX_FRAME_BYTES
    }
}

/// What others report to a shard.
#[derive(Debug)]
pub(super) enum Note {
    /// Something sent has ended.
    Ended {
        peer: NodeId,
        lane: Lane,
        id: SendId,
        bytes: u64,
        how: SendEnd,
        /// The answer in the reply, if there was one.
        answer: Bytes,
    },
    /// The control frame that waited for this peer has left.
    ControlTaken { peer: NodeId },
    /// A batch was applied.
    Applied {
        group: GroupId,
        index: Index,
        replies: Vec<(Index, Bytes)>,
        flushed: Option<Index>,
    },
    /// A state machine that was asked to has become durable.
    Flushed { group: GroupId, index: Index },
}

/// What became of a link since the shard looked: lost at some time, and up to this life now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkChange {
    pub(super) lost: bool,
    pub(super) up: Option<Boot>,
}

/// Everything a shard takes at once.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) links: BTreeMap<NodeId, LinkChange>,
    pub(super) frames: VecDeque<FramePart>,
    pub(super) requests: VecDeque<Request>,
    /// Proposals that workers published.
    pub(super) items: Vec<Item>,
    pub(super) notes: VecDeque<Note>,
    pub(super) durable: Option<Token>,
    pub(super) log_failure: Option<LogFailure>,
    /// There is room in the transport again, for which a call was refused.
    pub(super) room: bool,
    pub(super) stop: bool,
}

impl Work {
    fn is_empty(&self) -> bool {
        self.links.is_empty()
            && self.frames.is_empty()
            && self.requests.is_empty()
            && self.items.is_empty()
            && self.notes.is_empty()
            && self.durable.is_none()
            && self.log_failure.is_none()
            && !self.room
            && !self.stop
    }
}

#[derive(Debug, Default)]
struct State {
    work: Work,
    /// Taken and not yet stepped ones included.
    frame_bytes: [u64; 2],
    quiet: VecDeque<Note>,
    closed: bool,
    /// Callers are refused; the rest goes on.
    draining: bool,
    /// The shard waits for its own sends to end: it wants to know of every one at once.
    wants_ends: bool,
    /// Whoever waits for work; taken by the first who brings some.
    waiting: Option<Waker>,
}

impl State {
    fn take_all(&mut self) -> Work {
        let mut work = std::mem::take(&mut self.work);
        if work.notes.is_empty() {
            work.notes = std::mem::take(&mut self.quiet);
        } else {
            work.notes.append(&mut self.quiet);
        }
        work
    }
}

/// The inbox of one shard.
#[derive(Debug)]
pub(super) struct Inbox {
    state: Mutex<State>,
    proposals: CommitQueue<Item>,
}

/// Wakes a shard when there is room in the transport again.
struct RoomAgain(Arc<Inbox>);

impl Wake for RoomAgain {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.put_room();
    }
}

/// What the transport is to wake when it has room for a shard.
pub(super) fn room_waker(inbox: &Arc<Inbox>) -> Waker {
    Arc::new(RoomAgain(Arc::clone(inbox))).into()
}

/// Why a frame wasn't taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameRefused {
    Busy,
    Closed,
}

fn slot(lane: Lane) -> (usize, u64) {
    match lane {
        Lane::Control => (0, INBOX_CONTROL_BYTES_MAX),
        Lane::Bulk => (1, INBOX_BULK_BYTES_MAX),
    }
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            proposals: CommitQueue::default(),
        }
    }

    /// Where workers publish what is proposed to this shard.
    pub(super) fn proposals(&self) -> &CommitQueue<Item> {
        &self.proposals
    }

    /// Wakes whoever waits, once: the next who brings something finds nobody asleep.
    fn wake(mut state: MutexGuard<'_, State>) {
        let waiting = state.waiting.take();
        drop(state);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    /// Takes a part of a frame, if there is room.
    pub(super) fn put_frame(&self, part: FramePart) -> Result<(), FrameRefused> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(FrameRefused::Closed);
        }
        let (at, most) = slot(part.lane);
        let cost = part.cost();
        if state.frame_bytes[at] + cost > most {
            return Err(FrameRefused::Busy);
        }
        state.frame_bytes[at] += cost;
        state.work.frames.push_back(part);
        Self::wake(state);
        Ok(())
    }

    /// The shard has stepped this part: its room is free again.
    pub(super) fn stepped(&self, lane: Lane, body_len: usize) {
        let (at, _) = slot(lane);
        let mut state = lock(&self.state);
        let cost = body_len as u64 + INBOX_FRAME_BYTES;
        debug_assert!(cost <= state.frame_bytes[at]);
        state.frame_bytes[at] = state.frame_bytes[at].saturating_sub(cost);
    }

    /// Takes a request, or gives it back with the number that waits; `None` if closed.
    pub(super) fn put_request(&self, request: Request) -> Result<(), (Request, Option<usize>)> {
        let mut state = lock(&self.state);
        if state.closed || state.draining {
            return Err((request, None));
        }
        let waiting = state.work.requests.len();
        if waiting >= INBOX_REQUESTS_MAX {
            return Err((request, Some(waiting)));
        }
        state.work.requests.push_back(request);
        Self::wake(state);
        Ok(())
    }

    /// Takes no requests after this one; false if it took none before either.
    pub(super) fn begin_drain(&self, drain: Request) -> bool {
        let mut state = lock(&self.state);
        let open = !state.closed && !state.draining;
        if open {
            state.draining = true;
            state.work.requests.push_back(drain);
            Self::wake(state);
        }
        open
    }

    /// Reports something that the shard must hear of now.
    pub(super) fn put_note(&self, note: Note) {
        let mut state = lock(&self.state);
        if !state.closed {
            state.work.notes.push_back(note);
            Self::wake(state);
        }
    }

    /// Reports something that the shard may hear of with its next tick, unless it waits for it.
    pub(super) fn put_quiet_note(&self, note: Note) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        if state.wants_ends {
            state.work.notes.push_back(note);
            Self::wake(state);
        } else {
            state.quiet.push_back(note);
        }
    }

    /// Whether each end of a send is to wake the shard. One that came while it hadn't said so counts.
    pub(super) fn set_wants_ends(&self, wants: bool) {
        let mut state = lock(&self.state);
        state.wants_ends = wants;
        if wants {
            let mut quiet = std::mem::take(&mut state.quiet);
            state.work.notes.append(&mut quiet);
        }
    }

    /// The transport has room again.
    fn put_room(&self) {
        let mut state = lock(&self.state);
        if !state.closed {
            state.work.room = true;
            Self::wake(state);
        }
    }

    /// A link came or went.
    pub(super) fn put_link(&self, peer: NodeId, up: Option<Boot>) {
        let mut state = lock(&self.state);
        if !state.closed {
            let change = state.work.links.entry(peer).or_default();
            change.lost |= up.is_none();
            change.up = up;
            Self::wake(state);
        }
    }

    /// The log's progress.
    pub(super) fn put_durable(&self, token: Token) {
        let mut state = lock(&self.state);
        state.work.durable = state.work.durable.max(Some(token));
        Self::wake(state);
    }

    /// The log has stopped for good.
    pub(super) fn put_log_failure(&self, failure: LogFailure) {
        let mut state = lock(&self.state);
        state.work.log_failure = Some(failure);
        Self::wake(state);
    }

    /// The shard is to end.
    pub(super) fn stop(&self) {
        let mut state = lock(&self.state);
        state.work.stop = true;
        Self::wake(state);
    }

    /// Waits for work until `until`, and takes all of it. `alarm` is any timer of the waiting task,
    /// kept from one call to the next.
    ///
    /// # Cancel safety
    /// Nothing is taken by a call that doesn't return.
    pub(super) async fn take(&self, mut alarm: Pin<&mut Sleep>, until: Instant) -> Work {
        if alarm.deadline().into_std() != until {
            alarm.as_mut().reset(until.into());
        }
        poll_fn(|context| {
            let published = self.proposals.poll_published(context).is_ready();
            let mut state = lock(&self.state);
            let idle = state.work.is_empty() && !published;
            if idle && alarm.as_mut().poll(context).is_pending() {
                match &mut state.waiting {
                    Some(waiting) => waiting.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
            state.waiting = None;
            let mut work = state.take_all();
            drop(state);
            // After the rest: what was published before a drain was asked for is taken with it.
            self.proposals.take(&mut work.items);
            Poll::Ready(work)
        })
        .await
    }

    /// Refuses everything from now on, and gives back what nobody took.
    pub(super) fn close(&self) -> Work {
        let mut state = lock(&self.state);
        state.closed = true;
        state.quiet.clear();
        let mut work = std::mem::take(&mut state.work);
        drop(state);
        work.items = self.proposals.close();
        work
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use transport::io::clock;

    use super::*;

    const PEER: NodeId = NodeId::new(2);

    fn loud(inbox: &Inbox) -> usize {
        lock(&inbox.state).work.notes.len()
    }

    /// Before, the flag was looked at before the lock: an end that came between a shard's look at
    /// what it may send and its word that it waits was told with the next tick.
    #[test]
    fn an_end_counts_whether_it_came_before_or_after_the_shard_said_that_it_waits() {
        let inbox = Inbox::new();
        inbox.put_quiet_note(Note::ControlTaken { peer: PEER });
        assert_eq!(loud(&inbox), 0);
        inbox.set_wants_ends(true);
        assert_eq!(loud(&inbox), 1);
        inbox.put_quiet_note(Note::ControlTaken { peer: PEER });
        assert_eq!(loud(&inbox), 2);
        inbox.set_wants_ends(false);
        inbox.put_quiet_note(Note::ControlTaken { peer: PEER });
        assert_eq!(loud(&inbox), 2);
        assert_eq!(lock(&inbox.state).take_all().notes.len(), 3);
    }

    #[tokio::test]
    async fn a_sleeping_shard_is_woken_by_room() {
        let inbox = Arc::new(Inbox::new());
        let waker = room_waker(&inbox);
        let shard = {
            let inbox = Arc::clone(&inbox);
            tokio::spawn(async move {
                let until = clock::now() + Duration::from_secs(600);
                let alarm = std::pin::pin!(tokio::time::sleep_until(until.into()));
                inbox.take(alarm, until).await
            })
        };
        while lock(&inbox.state).waiting.is_none() {
            tokio::task::yield_now().await;
        }
        waker.wake_by_ref();
        assert!(shard.await.unwrap().room);
        waker.wake();
        assert!(lock(&inbox.state).take_all().room);
        assert!(!lock(&inbox.state).take_all().room, "told once");
    }
}
