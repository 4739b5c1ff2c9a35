//! Which peers are up, as far as the shards are concerned: this node's control session to the peer
//! is up and the peer has answered it with the life it is in, and the peer's own control session to
//! this node is up, which the peer confirms. A shard is told of each change, and never of a life that it isn't linked to.
//!
//! Leaves to others: sessions (the transport), what was agreed with a life (the core).
//!
//! - K1: up means that the answer came on the session that stands now, or on one whose place that
//!   took with nothing between: it goes to the same boot of the peer, which has one life.
//! - K2: between two lives of a peer the shards hear of a loss.
//!
//! The watch task: started with the host, ended with its transport. It reads the transport's
//! events; when it missed some, or before the first, it reads the status instead. If it panics,
//! links no longer change for the shards: their groups lose their leaders by silence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::broadcast;
use transport::Transport;
use transport::id::SessionId;
use transport::io::{Direction, Event, LaneState};
use transport::proto::link::LinkState;

use super::inbox::{Inbox, lock};
use super::life::Life;
use super::outbox::ControlOutbox;
use crate::id::{Boot, NodeId};

#[derive(Debug, Default)]
struct Link {
    outbound: Option<SessionId>,
    /// Which start of the peer's folder the session goes to.
    outbound_to: Option<Start>,
    inbound: Option<SessionId>,
    /// Both sides say that both directions are there (safety 19).
    confirmed: bool,
    /// The peer's answer, and on which session it came.
    answered: Option<(SessionId, Life)>,
    up: Option<Boot>,
    outbox: Option<Arc<ControlOutbox>>,
}

/// A start of a peer's folder, as its hello says it.
type Start = (transport::Incarnation, transport::Boot);

/// The links of this node, as its shards see them.
#[derive(Debug)]
pub(super) struct Links {
    own: Life,
    shards: Vec<Arc<Inbox>>,
    peers: Mutex<BTreeMap<NodeId, Link>>,
}

impl Link {
    /// The session of the moment; one that took the place of another is the same link.
    fn set_outbound(&mut self, to: Option<(SessionId, Start)>) {
        let (session, start) = to.unzip();
        let continues = self.outbound.is_some() && start.is_some() && start == self.outbound_to;
        if let (true, Some(session), Some((_, life))) = (continues, session, self.answered) {
            self.answered = Some((session, life));
        }
        (self.outbound, self.outbound_to) = (session, start);
    }
}

impl Links {
    pub(super) fn new(own: Life, shards: Vec<Arc<Inbox>>) -> Self {
        Self {
            own,
            shards,
            peers: Mutex::default(),
        }
    }

    /// Who asks a peer for its life when a session to it is up.
    pub(super) fn add_peer(&self, peer: NodeId, outbox: Arc<ControlOutbox>) {
        lock(&self.peers).entry(peer).or_default().outbox = Some(outbox);
    }

    fn change(&self, peer: NodeId, change: impl FnOnce(&mut Link)) {
        let mut peers = lock(&self.peers);
        let Some(link) = peers.get_mut(&peer) else {
            return;
        };
        let (outbound, was) = (link.outbound, link.up);
        change(link);
        if let Some(session) = link.outbound.filter(|_| link.outbound != outbound)
            && let Some(outbox) = &link.outbox
        {
            outbox.ask_life(session);
        }
        let answered = link
            .answered
            .filter(|(session, _)| link.outbound == Some(*session));
        link.answered = answered;
        link.up = answered
            .filter(|(_, life)| {
                link.confirmed && link.inbound.is_some() && life.shards == self.own.shards
            })
            .map(|(_, life)| life.boot);
        let now = link.up;
        if now == was {
            return;
        }
        tracing::debug!(%peer, ?was, ?now, "link changed");
        // Under the lock, so that two changes reach all shards in one order.
        for shard in &self.shards {
            if was.is_some() {
                shard.put_link(peer, None);
            }
            if now.is_some() {
                shard.put_link(peer, now);
            }
        }
    }

    /// The peer has answered on this session of ours.
    pub(super) fn on_life_answer(&self, peer: NodeId, session: SessionId, life: Life) {
        self.check_shards(peer, life);
        self.change(peer, |link| {
            if link.outbound == Some(session) {
                link.answered = Some((session, life));
            }
        });
    }

    /// The question on this session of ours came to nothing: too late, on a stopped node or a slow
    /// link. While the session stands it is asked again, or the link would stay down with it up.
    pub(super) fn on_life_unanswered(&self, peer: NodeId, session: SessionId) {
        let outbox = {
            let peers = lock(&self.peers);
            let link = peers.get(&peer);
            let stands = link.filter(|link| link.outbound == Some(session));
            stands.and_then(|link| link.outbox.clone())
        };
        if let Some(outbox) = outbox {
            outbox.ask_life(session);
        }
    }

    /// The peer says which life it is in, on a session of its own.
    pub(super) fn on_life(&self, peer: NodeId, life: Life) {
        self.check_shards(peer, life);
        // Ours to a life before that one is as good as lost: the transport will say so soon.
        self.change(peer, |link| {
            let other = link
                .answered
                .is_some_and(|(_, known)| known.boot != life.boot);
            if other {
                link.answered = None;
                if let (Some(session), Some(outbox)) = (link.outbound, &link.outbox) {
                    outbox.ask_life(session);
                }
            }
        });
    }

    fn check_shards(&self, peer: NodeId, life: Life) {
        if life.shards != self.own.shards {
            tracing::error!(
                %peer,
                expected = self.own.shards,
                got = life.shards,
                "node {peer} has another number of shards: host.shards must be equal on all nodes"
            );
        }
    }

    fn on_event(&self, event: &Event) {
        if let Event::LinkChanged { peer, state } = event {
            let confirmed = *state == LinkState::Up;
            self.change(node(*peer), |link| link.confirmed = confirmed);
        } else if let Event::SessionUp {
            peer,
            lane: transport::Lane::Control,
            direction,
            session,
            incarnation,
            boot,
        } = event
        {
            let start = (*incarnation, *boot);
            match direction {
                Direction::Outbound => self.change(node(*peer), |link| {
                    link.set_outbound(Some((*session, start)));
                }),
                Direction::Inbound => {
                    self.set_session(node(*peer), *direction, None, Some(*session))
                }
            }
        } else if let Event::SessionDown {
            peer,
            lane: transport::Lane::Control,
            direction,
            session,
            ..
        } = event
        {
            self.set_session(node(*peer), *direction, Some(*session), None);
        }
    }

    fn set_session(
        &self,
        peer: NodeId,
        direction: Direction,
        gone: Option<SessionId>,
        came: Option<SessionId>,
    ) {
        self.change(peer, |link| {
            let session = match direction {
                Direction::Outbound => &mut link.outbound,
                Direction::Inbound => &mut link.inbound,
            };
            // An old session's end says nothing about the one in its place.
            if came.is_some() || *session == gone {
                *session = came;
                if direction == Direction::Outbound {
                    link.outbound_to = None;
                }
            }
        });
    }

    /// Takes over what the transport says now.
    fn resync(&self, transport: &Transport) {
        let status = transport.status();
        for lane in status.lanes {
            if lane.lane == transport::Lane::Control {
                let session = lane.session.filter(|_| lane.state == LaneState::Up);
                let start = lane.incarnation.zip(lane.boot);
                self.change(node(lane.peer), |link| {
                    // What came between isn't known.
                    link.outbound = None;
                    link.set_outbound(session.zip(start));
                });
            }
        }
        let peers: Vec<_> = lock(&self.peers).keys().copied().collect();
        for peer in peers {
            let mut sessions = status.inbound.iter();
            let session = sessions.find(|session| {
                node(session.peer) == peer && session.lane == transport::Lane::Control
            });
            let session = session.map(|session| session.session);
            self.change(peer, |link| link.inbound = session);
        }
        for (peer, state) in status.links {
            let confirmed = state == LinkState::Up;
            self.change(node(peer), |link| link.confirmed = confirmed);
        }
    }

    pub(super) async fn watch(
        self: Arc<Self>,
        transport: Weak<Transport>,
        mut events: broadcast::Receiver<Event>,
    ) {
        let mut missed = true;
        loop {
            if std::mem::take(&mut missed) {
                let Some(transport) = transport.upgrade() else {
                    return;
                };
                self.resync(&transport);
            }
            match events.recv().await {
                Ok(event) => self.on_event(&event),
                Err(broadcast::error::RecvError::Lagged(count)) => {
                    tracing::warn!(count, "missed events of the transport, reading its status");
                    missed = true;
                }
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }
}

fn node(peer: transport::PeerId) -> NodeId {
    NodeId::new(peer.to_u32())
}

#[cfg(test)]
mod tests {
    use transport::{Boot as TransportBoot, Incarnation, Lane, PeerId, SessionEnd};

    use super::*;

    const LIFE: Life = Life {
        boot: Boot::new(77),
        shards: 1,
    };

    fn links() -> (Links, NodeId) {
        let own = Life {
            boot: Boot::new(11),
            ..LIFE
        };
        let links = Links::new(own, Vec::new());
        lock(&links.peers).entry(NodeId::new(2)).or_default();
        (links, NodeId::new(2))
    }

    fn up(direction: Direction, session: u64, boot: u64) -> Event {
        Event::SessionUp {
            peer: PeerId::new(2).unwrap(),
            lane: Lane::Control,
            direction,
            session: SessionId::new(session),
            incarnation: Incarnation::new([2; 16]),
            boot: TransportBoot::new(boot),
        }
    }

    fn down(direction: Direction, session: u64) -> Event {
        Event::SessionDown {
            peer: PeerId::new(2).unwrap(),
            lane: Lane::Control,
            direction,
            session: SessionId::new(session),
            end: SessionEnd::Replaced,
        }
    }

    fn is_up(links: &Links, peer: NodeId) -> bool {
        lock(&links.peers)[&peer].up.is_some()
    }

    /// A question that ran out of time, on a node that had been stopped for longer than an election
    /// timeout, was asked no more: the link stayed down for as long as its session stood.
    #[test]
    fn a_question_that_came_to_nothing_is_asked_again_on_the_session_that_stands() {
        let (links, peer) = links();
        let (own, links) = (links.own, Arc::new(links));
        let limit = std::time::Duration::from_secs(1);
        let outbox = ControlOutbox::new(peer, own, limit, &[], Arc::clone(&links));
        let outbox = Arc::new(outbox);
        links.add_peer(peer, Arc::clone(&outbox));
        let session = SessionId::new;
        links.on_event(&up(Direction::Outbound, 2, 5));
        assert_eq!(outbox.take_ask(), Some(session(2)));
        links.on_life_unanswered(peer, session(1));
        assert_eq!(outbox.take_ask(), None, "that session is gone");
        links.on_life_unanswered(peer, session(2));
        assert_eq!(outbox.take_ask(), Some(session(2)));
    }

    #[test]
    fn a_session_that_takes_over_leaves_the_link_up_and_one_after_a_gap_does_not() {
        let (links, peer) = links();
        links.on_event(&up(Direction::Inbound, 1, 5));
        links.on_event(&up(Direction::Outbound, 2, 5));
        assert!(!is_up(&links, peer), "nothing was answered");
        links.on_life_answer(peer, SessionId::new(2), LIFE);
        assert!(!is_up(&links, peer), "the peer hasn't confirmed its own");
        let changed = |state| Event::LinkChanged {
            peer: PeerId::new(2).unwrap(),
            state,
        };
        links.on_event(&changed(LinkState::Up));
        assert!(is_up(&links, peer));
        links.on_event(&changed(LinkState::OnlyOut));
        assert!(!is_up(&links, peer), "the peer has lost its own");
        links.on_event(&changed(LinkState::Up));
        links.on_event(&up(Direction::Outbound, 3, 5));
        assert!(
            is_up(&links, peer),
            "the same boot of the peer, without a gap"
        );
        links.on_event(&down(Direction::Outbound, 2));
        assert!(is_up(&links, peer));
        links.on_event(&down(Direction::Outbound, 3));
        assert!(!is_up(&links, peer));
        links.on_event(&up(Direction::Outbound, 4, 5));
        assert!(!is_up(&links, peer), "after a gap it is asked again");
        links.on_life_answer(peer, SessionId::new(4), LIFE);
        links.on_event(&up(Direction::Outbound, 5, 6));
        assert!(!is_up(&links, peer), "another boot has another life");
    }
}
