//! What goes out. On control: one place per shard and peer, from which the transport takes the
//! frame that the shard made last; what comes after it waits in the core, where rounds take each
//! other's place and acks merge (safety 6). On both lanes: a watch on each receipt, so that every
//! end is told to the shard that sent it, once (safety 24).
//!
//! Leaves to others: what a frame holds (the core), when it leaves (the transport).
//!
//! - P1: the frame in a place was made after the one before it had left it.
//! - P2: each frame that was taken or sent has one watch, and each watch tells one end.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use transport::id::SessionId;
use transport::{
    ControlSource, FrameSpace, Label, Outcome, PushRefused, Receipt, RefusalReason, Waiting,
};

use super::inbox::{Inbox, Note, lock};
use super::life::Life;
use super::links::Links;
use crate::id::{NodeId, SendId};
use crate::proto::host::{Lane, OutFrame, SendEnd};

#[derive(Debug, Default)]
struct Place {
    frame: Option<OutFrame>,
    /// The shard has more to say and waits for the place.
    wanted: bool,
}

/// What waits for one peer's control lane.
#[derive(Debug)]
pub(super) struct ControlOutbox {
    peer: NodeId,
    own: Life,
    /// How long a frame may take.
    limit: Duration,
    shards: Vec<(Arc<Inbox>, Mutex<Place>)>,
    /// The session on which the peer is to be asked for its life.
    ask: Mutex<Option<SessionId>>,
    links: Arc<Links>,
    lane: OnceLock<transport::Peer>,
}

impl ControlOutbox {
    pub(super) fn new(
        peer: NodeId,
        own: Life,
        limit: Duration,
        shards: &[Arc<Inbox>],
        links: Arc<Links>,
    ) -> Self {
        let place = |shard| (Arc::clone(shard), Mutex::default());
        Self {
            peer,
            own,
            limit,
            shards: shards.iter().map(place).collect(),
            ask: Mutex::default(),
            links,
            lane: OnceLock::new(),
        }
    }

    /// The lane to nudge, known once the transport runs.
    pub(super) fn set_lane(&self, lane: transport::Peer) {
        // Set once, by the start of the host.
        drop(self.lane.set(lane));
        self.nudge();
    }

    fn nudge(&self) {
        if let Some(lane) = self.lane.get() {
            lane.control_ready();
        }
    }

    /// A session is up: the peer is asked who it is before anything else.
    pub(super) fn ask_life(&self, session: SessionId) {
        *lock(&self.ask) = Some(session);
        self.nudge();
    }

    /// The session on which it is to be asked, which it is from here on.
    #[cfg(test)]
    pub(super) fn take_ask(&self) -> Option<SessionId> {
        lock(&self.ask).take()
    }

    /// Whether this shard's place is free. If it isn't, the shard is told when it is.
    pub(super) fn is_free(&self, shard: usize) -> bool {
        let Some((_, place)) = self.shards.get(shard) else {
            return false;
        };
        let mut place = lock(place);
        place.wanted = place.frame.is_some();
        !place.wanted
    }

    /// Puts a frame into this shard's place, which is free. With `more`, the shard is told when it
    /// has left.
    pub(super) fn put(&self, shard: usize, frame: OutFrame, more: bool) {
        if let Some((_, place)) = self.shards.get(shard) {
            let mut place = lock(place);
            debug_assert!(place.frame.is_none());
            place.frame = Some(frame);
            place.wanted = more;
        }
        self.nudge();
    }

    /// The link is lost, and with it what waited for it.
    pub(super) fn clear(&self, shard: usize) {
        if let Some((_, place)) = self.shards.get(shard) {
            *lock(place) = Place::default();
        }
    }

    /// Nudges the lane again if this shard's frame still waits.
    pub(super) fn remind(&self, shard: usize) {
        let waits = |(_, place): &(_, Mutex<Place>)| lock(place).frame.is_some();
        if self.shards.get(shard).is_some_and(waits) {
            self.nudge();
        }
    }

    fn push_life(&self, session: SessionId, frame: &mut FrameSpace<'_>) -> bool {
        let deadline = frame.now() + self.limit;
        let Ok(receipt) = frame.push(self.own.encode(), Label::new(0), deadline) else {
            return false;
        };
        let (links, peer) = (Arc::clone(&self.links), self.peer);
        watch(receipt, move |outcome| {
            if let Outcome::Replied(answer) = &outcome {
                if let Some(life) = Life::decode(answer) {
                    links.on_life_answer(peer, session, life);
                }
            } else if outcome != Outcome::Refused(RefusalReason::NotUnderstood) {
                links.on_life_unanswered(peer, session);
            }
        });
        true
    }
}

impl ControlSource for ControlOutbox {
    fn fill(&self, frame: &mut FrameSpace<'_>) -> Waiting {
        let ask = lock(&self.ask).take();
        if let Some(session) = ask
            && !self.push_life(session, frame)
        {
            lock(&self.ask).get_or_insert(session);
            return Waiting::More;
        }
        for (inbox, place) in &self.shards {
            let (out, wanted) = {
                let mut place = lock(place);
                let Some(out) = place.frame.take() else {
                    continue;
                };
                let deadline = frame.now() + self.limit;
                match frame.push(out.body.clone(), Label::new(0), deadline) {
                    Ok(receipt) => (Ok((out.id, receipt)), std::mem::take(&mut place.wanted)),
                    Err(PushRefused::Send(_)) => (Err(out.id), false),
                    Err(_) => {
                        place.frame = Some(out);
                        return Waiting::More;
                    }
                }
            };
            match out {
                Ok((id, receipt)) => {
                    tell(receipt, Arc::clone(inbox), self.peer, Lane::Control, id, 0);
                }
                Err(id) => inbox.put_note(ended(self.peer, Lane::Control, id, 0, None)),
            }
            if wanted {
                inbox.put_note(Note::ControlTaken { peer: self.peer });
            }
        }
        Waiting::Nothing
    }
}

/// Sends a bulk frame in reserved room.
pub(super) fn send_bulk(
    room: &mut transport::Room,
    frame: OutFrame,
    deadline: Instant,
    inbox: &Arc<Inbox>,
    peer: NodeId,
) {
    let bytes = frame.body.len() as u64;
    let options = transport::SendOptions::until(deadline);
    match room.send(frame.body, options) {
        Ok(receipt) => tell(
            receipt,
            Arc::clone(inbox),
            peer,
            Lane::Bulk,
            frame.id,
            bytes,
        ),
        Err(_) => inbox.put_note(ended(peer, Lane::Bulk, frame.id, bytes, None)),
    }
}

/// What is told of a frame: with the outcome of its receipt, or without one, when the transport
/// never had it.
fn ended(peer: NodeId, lane: Lane, id: SendId, bytes: u64, outcome: Option<Outcome>) -> Note {
    let (how, answer) = match outcome {
        Some(Outcome::Replied(answer)) => (SendEnd::Replied, answer),
        Some(lost) if !lost.is_proven_without_effect() => (SendEnd::Failed, Bytes::new()),
        Some(_) | None => (SendEnd::Untaken, Bytes::new()),
    };
    Note::Ended {
        peer,
        lane,
        id,
        bytes,
        how,
        answer,
    }
}

fn tell(receipt: Receipt, inbox: Arc<Inbox>, peer: NodeId, lane: Lane, id: SendId, bytes: u64) {
    watch(receipt, move |outcome| {
        // A reply that says nothing can wait for the shard's next turn.
        let quiet = matches!(&outcome, Outcome::Replied(answer) if answer.is_empty());
        let note = ended(peer, lane, id, bytes, Some(outcome));
        if quiet {
            inbox.put_quiet_note(note);
        } else {
            inbox.put_note(note);
        }
    });
}

/// A receipt whose end calls a function, on the thread that ends it.
struct Watch<F> {
    receipt: Mutex<Option<(Receipt, F)>>,
}

fn watch<F: FnOnce(Outcome) + Send + 'static>(receipt: Receipt, then: F) {
    let watch = Arc::new(Watch {
        receipt: Mutex::new(Some((receipt, then))),
    });
    watch.look();
}

impl<F: FnOnce(Outcome) + Send + 'static> Watch<F> {
    fn look(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut watched = lock(&self.receipt);
        let Some((receipt, _)) = watched.as_mut() else {
            return;
        };
        let mut context = Context::from_waker(&waker);
        let Poll::Ready(outcome) = Pin::new(receipt).poll(&mut context) else {
            return;
        };
        let ended = watched.take();
        drop(watched);
        if let Some((_, then)) = ended {
            then(outcome);
        }
    }
}

impl<F: FnOnce(Outcome) + Send + 'static> Wake for Watch<F> {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}
