//! Where verified frames go: each item to the inbox of the shard it is for, without waiting for
//! anything (safety 17). A bulk frame is answered as soon as its items are taken or refused; a
//! control frame once every shard concerned has stepped its item, or after `ANSWER_BUDGET`,
//! whichever is first (safety 16). An answer that came too late, or doesn't fit into the reply, is
//! given back to the shard, which sends it with the next control frame of the reverse link. An item
//! that is no body ends the session that it came on.
//!
//! Leaves to others: what a body means (the core), the order of replies (the transport), whether
//! the link counts as up (`links.rs`).
//!
//! The clock task: started with the host, ended with it; if it panics, a reply waits for the
//! slowest shard of its frame.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Notify;
use transport::io::clock;
use transport::{Answer, Frame, Inbound, PeerId, RefusalReason, ReplySlot, Verified};

use super::inbox::{FramePart, FrameRefused, Inbox, lock};
use super::life::{self, Life};
use super::links::Links;
use crate::id::NodeId;
use crate::limits::ANSWER_BUDGET;
use crate::proto::host::Lane;
use crate::proto::wire::shard_of;

/// What becomes of one item of a control frame.
pub(super) type Verdict = Result<Bytes, RefusalReason>;

#[derive(Debug)]
struct Pending {
    slot: ReplySlot,
    verdicts: Vec<Option<Verdict>>,
    missing: usize,
    answer_bytes: usize,
}

/// The answer to one control frame, while its shards work on it.
#[derive(Debug)]
pub(super) struct FrameAnswer(Mutex<Option<Pending>>);

/// Bytes of a verdict in a reply beside its answer.
const VERDICT_BYTES: usize = 5;

impl FrameAnswer {
    pub(super) fn new(slot: ReplySlot, items: usize) -> Self {
        Self(Mutex::new(Some(Pending {
            slot,
            verdicts: vec![None; items],
            missing: items,
            answer_bytes: items * VERDICT_BYTES,
        })))
    }

    /// Settles one item. An answer that can't ride in the reply is given back.
    pub(super) fn settle(&self, item: usize, verdict: Verdict) -> Option<Bytes> {
        let mut guard = lock(&self.0);
        let Some(pending) = guard.as_mut() else {
            return verdict.ok().filter(|answer| !answer.is_empty());
        };
        let (mut verdict, mut late) = (verdict, None);
        if let Ok(answer) = &mut verdict {
            let bytes = pending.answer_bytes + answer.len();
            if bytes > transport::limits::REPLY_BODY_BYTES_MAX {
                late = Some(std::mem::take(answer));
            } else {
                pending.answer_bytes = bytes;
            }
        }
        if let Some(place) = pending.verdicts.get_mut(item)
            && place.replace(verdict).is_none()
        {
            pending.missing -= 1;
        }
        if pending.missing == 0
            && let Some(pending) = guard.take()
        {
            drop(guard);
            pending.send();
        }
        late
    }

    /// Replies now; what isn't settled was taken and is answered later.
    fn cut(&self) {
        let pending = lock(&self.0).take();
        if let Some(pending) = pending {
            pending.send();
        }
    }

    fn is_open(&self) -> bool {
        lock(&self.0).is_some()
    }
}

impl Pending {
    fn send(self) {
        let verdicts = self.verdicts.into_iter();
        let verdicts = verdicts.map(|verdict| verdict.unwrap_or_else(|| Ok(Bytes::new())));
        self.slot.answer(Answer::PerItem(verdicts.collect()));
    }
}

/// Sends the replies whose budget has run out.
#[derive(Debug, Default)]
pub(super) struct AnswerClock {
    /// In the order of their time.
    waiting: Mutex<VecDeque<(Instant, Arc<FrameAnswer>)>>,
    filled: Notify,
}

impl AnswerClock {
    fn watch(&self, due: Instant, answer: Arc<FrameAnswer>) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back((due, answer));
        let first = waiting.len() == 1;
        drop(waiting);
        if first {
            self.filled.notify_one();
        }
    }

    /// Cuts what is due at `now` and forgets what was answered; says when the next is due.
    fn turn(&self, now: Instant) -> Option<Instant> {
        let mut overdue = Vec::new();
        let next = {
            let mut waiting = lock(&self.waiting);
            loop {
                match waiting.front() {
                    Some((due, answer)) if *due <= now || !answer.is_open() => {}
                    front => break front.map(|(due, _)| *due),
                }
                overdue.extend(waiting.pop_front());
            }
        };
        for (_, answer) in overdue {
            answer.cut();
        }
        next
    }

    pub(super) async fn run(self: Arc<Self>) {
        loop {
            match self.turn(clock::now()) {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => self.filled.notified().await,
            }
        }
    }
}

/// The transport's way into the host.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) shards: Vec<Arc<Inbox>>,
    pub(super) links: Arc<Links>,
    pub(super) answers: Arc<AnswerClock>,
    pub(super) life: Life,
}

impl Receiver {
    fn place(&self, part: &FramePart) -> Result<&Arc<Inbox>, RefusalReason> {
        let shard = shard_of(&part.body).map_err(|_| {
            part.session.reject("an item is no body of a shard");
            RefusalReason::NotUnderstood
        })?;
        let shard = self.shards.get(usize::from(shard.to_u16()));
        shard.ok_or(RefusalReason::WrongDestination)
    }

    fn put(&self, part: FramePart) -> Result<(), RefusalReason> {
        let inbox = self.place(&part)?;
        inbox.put_frame(part).map_err(|refused| match refused {
            FrameRefused::Busy => RefusalReason::Busy,
            FrameRefused::Closed => RefusalReason::ShuttingDown,
        })
    }

    fn take_bulk(&self, peer: NodeId, frame: Verified<Frame>, slot: ReplySlot) {
        let session = slot.session();
        let take = |body| {
            let part = FramePart {
                peer,
                lane: Lane::Bulk,
                body,
                answer: None,
                session: session.clone(),
            };
            self.put(part).map(|()| Bytes::new())
        };
        let verdicts = frame.into_items().into_iter().map(take).collect();
        slot.answer(Answer::PerItem(verdicts));
    }

    fn take_control(&self, peer: NodeId, frame: Verified<Frame>, slot: ReplySlot) {
        let items = frame.into_items();
        let session = slot.session();
        let answer = Arc::new(FrameAnswer::new(slot, items.len()));
        for (item, body) in items.into_iter().enumerate() {
            if life::is_life(&body) {
                let verdict = match Life::decode(&body) {
                    Some(life) => {
                        self.links.on_life(peer, life);
                        Ok(self.life.encode())
                    }
                    None => {
                        session.reject("an item is no life of a node");
                        Err(RefusalReason::NotUnderstood)
                    }
                };
                answer.settle(item, verdict);
                continue;
            }
            let part = FramePart {
                peer,
                lane: Lane::Control,
                body,
                answer: Some((Arc::clone(&answer), item)),
                session: session.clone(),
            };
            if let Err(reason) = self.put(part) {
                answer.settle(item, Err(reason));
            }
        }
        if answer.is_open() {
            self.answers.watch(clock::now() + ANSWER_BUDGET, answer);
        }
    }
}

impl Inbound for Receiver {
    fn deliver(
        &self,
        peer: PeerId,
        lane: transport::Lane,
        frame: Verified<Frame>,
        slot: ReplySlot,
    ) {
        let peer = NodeId::new(peer.to_u32());
        match lane {
            transport::Lane::Control => self.take_control(peer, frame, slot),
            transport::Lane::Bulk => self.take_bulk(peer, frame, slot),
        }
    }
}
