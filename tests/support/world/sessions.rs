//! What the shell's lane tasks and acceptor do with sessions: dial, begin them on both cores, end them
//! and say why, and tell the host when a link is up. Bulk dials once control is up and ends with it
//! (safety 18); a session of a peer takes the place of the one before it.
//!
//! What a session carries is `carrying`'s.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use raft_host::id::Boot;
use transport::proto::inbound::{Accepted, InboundEvent, InboundSession};
use transport::proto::outbound::OutboundEvent;
use transport::{Lane, SessionEnd};

use super::World;
use super::carrying::close;
use super::clock::{MS, Nanos};
use super::events::Event;
use super::links::{InboundEnd, claims, keys, place, session_of};
use super::network::{Arrival, End};
use super::node::{Node, identity, incarnation, node_id, peer_id};

/// How long a dial takes to fail where nobody says so.
const CONNECT_LIMIT: Nanos = 300 * MS;

impl World {
    pub(super) fn plan_dial(
        &mut self,
        node: usize,
        life: u64,
        peer: usize,
        lane: Lane,
        after: Nanos,
    ) {
        if let Some(found) = self.alive(node, life)
            && let Some(end) = found.peers.get_mut(&peer)
        {
            end.lanes[place(lane)].dialling = true;
        }
        let event = Event::Dial {
            node,
            life,
            peer,
            lane,
        };
        self.events.push(self.now + after, event);
    }

    pub(super) fn dial(&mut self, node: usize, life: u64, peer: usize, lane: Lane) {
        let Some(found) = self.alive(node, life) else {
            return;
        };
        let Some(end) = found.peers.get_mut(&peer) else {
            return;
        };
        let here = &mut end.lanes[place(lane)];
        here.dialling = true;
        if here.connection.is_some() {
            here.dialling = false;
            return;
        }
        let reached = self.network.reaches(node, peer) && self.network.reaches(peer, node);
        let after = if !reached || (self.nodes[peer].is_none() && !self.powered[peer]) {
            CONNECT_LIMIT
        } else {
            // The connection's round trip, and that of TLS.
            4 * self.network.delay()
        };
        let event = Event::Dialled {
            node,
            life,
            peer,
            lane,
        };
        self.events.push(self.now + after, event);
    }

    pub(super) fn dialled(&mut self, node: usize, life: u64, peer: usize, lane: Lane) {
        if self.alive(node, life).is_none() {
            return;
        }
        let reached = self.network.reaches(node, peer) && self.network.reaches(peer, node);
        let there = self.nodes[peer].as_ref().map(|found| found.life);
        let answers = reached && self.paused[peer] <= self.now;
        let Some(there) = there.filter(|_| answers) else {
            return self.dial_again(node, life, peer, lane);
        };
        let wanted = self.alive(node, life).is_some_and(|found| {
            let lanes = &found.peers[&peer].lanes;
            // Of two dials at once the first counts.
            let first = lanes[place(lane)].connection.is_none();
            first && (lane == Lane::Control || lanes[0].out.is_up())
        });
        if !wanted {
            if let Some(found) = self.alive(node, life)
                && let Some(end) = found.peers.get_mut(&peer)
            {
                end.lanes[place(lane)].dialling = false;
            }
            return;
        }
        let connection = self.network.connect(node, peer, lane, [life, there]);
        let start_of = |node: &Node| (node.life, node.life_id, node.opened_at_sync);
        let (now_here, now_there) = (self.local(node), self.local(peer));
        let hello_timeout = self.shape.timeouts.hello;
        let window = self.shape.window_frames;
        if let Some(found) = self.alive(node, life) {
            let start = start_of(found);
            let Some(end) = found.peers.get_mut(&peer) else {
                return;
            };
            let here = &mut end.lanes[place(lane)];
            here.dialling = false;
            here.connection = Some(connection);
            here.unsent.clear();
            let claims = claims(lane, (node, peer), start, window);
            let keys = keys(connection, lane, node, peer);
            here.out
                .begin_session(now_here, claims, identity(peer), keys);
        }
        if let Some(found) = self.alive(peer, there) {
            let accepted = Accepted {
                claims: claims(Lane::Bulk, (peer, node), start_of(found), window),
                certified: identity(node),
                keys: Lane::ALL.map(|lane| keys(connection, lane, node, peer)),
                session: session_of(connection),
                hello_timeout,
            };
            let end = InboundEnd {
                session: InboundSession::new(now_there, accepted),
                peer: node,
                lane: None,
                unsent: VecDeque::new(),
            };
            found.inbound.insert(connection, end);
        }
        self.turn(peer);
        self.turn(node);
    }

    fn dial_again(&mut self, node: usize, life: u64, peer: usize, lane: Lane) {
        let Some(found) = self.alive(node, life) else {
            return;
        };
        let Some(end) = found.peers.get_mut(&peer) else {
            return;
        };
        let wait = end.lanes[place(lane)].backoff.on_failure();
        let wait = u64::try_from(wait.as_nanos()).unwrap_or(MS);
        self.plan_dial(node, life, peer, lane, wait);
    }

    /// An end of a connection looks at what has come.
    pub(super) fn look(&mut self, connection: u64, end: End) {
        let Some(found) = self.network.connections.get(&connection) else {
            return;
        };
        let (at, life, open) = (found.node(end), found.life(end), found.is_open(end));
        let lane = found.lane;
        let (sender, sender_life) = (found.node(end.other()), found.life(end.other()));
        let (arrival, again) = self.network.receive(self.now, connection, end);
        if let Some(again) = again {
            let event = Event::Look { connection, end };
            self.events.push(again.max(self.now), event);
        }
        let bytes = match arrival {
            Arrival::Nothing => return,
            Arrival::Closed => None,
            Arrival::Bytes(bytes) => Some(bytes),
        };
        if self.alive(at, life).is_none() || !open {
            // Nobody is there: the sender is told, unless the machine has no power.
            if bytes.is_some()
                && (self.powered[at] || self.nodes[at].is_some())
                && let Some(when) = self.network.close(self.now, connection, end)
            {
                let end = end.other();
                self.events.push(when, Event::Look { connection, end });
            }
            return;
        }
        // There is room again for what its sender holds back.
        if let Some(from) = self.alive(sender, sender_life) {
            let held = match end.other() {
                End::Dialler => from.peers.get(&at).is_some_and(|peer| {
                    let lane = &peer.lanes[place(lane)];
                    lane.connection == Some(connection) && !lane.unsent.is_empty()
                }),
                End::Acceptor => from
                    .inbound
                    .get(&connection)
                    .is_some_and(|it| !it.unsent.is_empty()),
            };
            if held {
                let event = Event::Wake {
                    node: sender,
                    life: sender_life,
                };
                self.events.push(self.now, event);
            }
        }
        let Some(mut node) = self.nodes[at].take() else {
            return;
        };
        let now = self.local(at);
        match end {
            End::Dialler => {
                self.read_outbound(at, &mut node, (sender, lane), now, connection, bytes)
            }
            End::Acceptor => self.read_inbound(at, &mut node, now, connection, bytes),
        }
        self.nodes[at] = Some(node);
        self.turn(at);
    }

    fn read_outbound(
        &mut self,
        at: usize,
        node: &mut Node,
        (peer, lane): (usize, Lane),
        now: Instant,
        connection: u64,
        bytes: Option<Bytes>,
    ) {
        let Some(end) = node.peers.get_mut(&peer) else {
            return;
        };
        let here = &mut end.lanes[place(lane)];
        if here.connection != Some(connection) {
            return;
        }
        let Some(bytes) = bytes else {
            let why = here.out.on_eof();
            return self.end_outbound(at, node, (peer, lane), now, why);
        };
        here.out.handle_bytes(now, &bytes);
        loop {
            self.pump_outbound(at, node, peer, lane, now);
            let Some(end) = node.peers.get_mut(&peer) else {
                return;
            };
            let here = &mut end.lanes[place(lane)];
            match here.out.step(now, &mut node.authority) {
                Ok(None) => return,
                Ok(Some(OutboundEvent::Answered(_))) => {}
                Ok(Some(OutboundEvent::Confirmed(said))) => {
                    let (id, incarnation) = (peer_id(peer), incarnation(peer));
                    node.authority.on_synced(id, incarnation, said.sync_number);
                }
                Ok(Some(OutboundEvent::Up { .. })) => {
                    self.counts.sessions += 1;
                    here.backoff.reset();
                    self.trace.line(self.now, Some(at), None, || {
                        format!("session {connection} to {} is up, {lane:?}", peer + 1)
                    });
                    if lane == Lane::Control {
                        end.outbox.ask_life(connection);
                        here.out.on_source_ready();
                        let bulk = &mut end.lanes[1];
                        if bulk.connection.is_none() && !bulk.dialling {
                            bulk.dialling = true;
                            let event = Event::Dial {
                                node: at,
                                life: node.life,
                                peer,
                                lane: Lane::Bulk,
                            };
                            self.events.push(self.now, event);
                        }
                    }
                }
                Err(why) => return self.end_outbound(at, node, (peer, lane), now, why),
            }
        }
    }

    /// A session that this node dialled ends.
    pub(super) fn end_outbound(
        &mut self,
        at: usize,
        node: &mut Node,
        (peer, lane): (usize, Lane),
        now: Instant,
        why: SessionEnd,
    ) {
        self.check_end(at, peer, &why);
        let Some(end) = node.peers.get_mut(&peer) else {
            return;
        };
        let here = &mut end.lanes[place(lane)];
        let Some(connection) = here.connection.take() else {
            return;
        };
        self.trace.line(self.now, Some(at), None, || {
            format!("session {connection} to {} ends, {lane:?}: {why}", peer + 1)
        });
        let notice = why.notice();
        let last = notice.and_then(|notice| here.out.close_message(&notice));
        close(
            &mut self.network,
            &mut self.events,
            self.now,
            (connection, End::Dialler),
            &mut here.unsent,
            last,
        );
        here.unsent.clear();
        here.out.end_session(&why);
        if why == SessionEnd::ShutDown {
            return;
        }
        if lane == Lane::Control {
            end.answered = None;
            self.relink(at, node, peer, now);
            self.end_outbound(at, node, (peer, Lane::Bulk), now, SessionEnd::ControlEnded);
        } else if why == SessionEnd::ControlEnded {
            return;
        }
        let Some(end) = node.peers.get_mut(&peer) else {
            return;
        };
        let here = &mut end.lanes[place(lane)];
        here.dialling = true;
        let wait = u64::try_from(here.backoff.on_failure().as_nanos()).unwrap_or(MS);
        let event = Event::Dial {
            node: at,
            life: node.life,
            peer,
            lane,
        };
        self.events.push(self.now + wait, event);
    }

    /// No correct node may be told that it misbehaves, or that it isn't who it is.
    fn check_end(&self, at: usize, peer: usize, why: &SessionEnd) {
        use transport::{CloseCode, PeerIncompatible, PeerMisbehaved as Fault};
        let accused = matches!(
            why,
            SessionEnd::PeerMisbehaved(_) | SessionEnd::PeerIncompatible(_)
        );
        // What was cut off; and a hello that was sent in an earlier life and arrives after one of
        // the next.
        let explained = matches!(
            why,
            SessionEnd::PeerMisbehaved(Fault::Truncated { .. })
                | SessionEnd::PeerIncompatible(PeerIncompatible::StaleBoot { .. })
        );
        let told = matches!(
            why,
            SessionEnd::ClosedByPeer(notice) | SessionEnd::RefusedByPeer(notice)
                if notice.code == CloseCode::Misbehaved
        );
        let wrong = accused && !explained || told;
        if wrong {
            self.fail(&format!(
                "links: node {} ends a session with node {}: {why:?}",
                at + 1,
                peer + 1
            ));
        }
    }

    fn read_inbound(
        &mut self,
        at: usize,
        node: &mut Node,
        now: Instant,
        connection: u64,
        bytes: Option<Bytes>,
    ) {
        let Some(end) = node.inbound.get_mut(&connection) else {
            return;
        };
        let Some(bytes) = bytes else {
            let why = end.session.on_eof();
            return self.end_inbound(at, node, connection, now, &why);
        };
        end.session.handle_bytes(now, &bytes);
        loop {
            let Some(end) = node.inbound.get_mut(&connection) else {
                return;
            };
            let peer = end.peer;
            match end.session.step(now, &mut node.authority) {
                Ok(None) => return,
                Ok(Some(InboundEvent::Late(_))) => {}
                Ok(Some(InboundEvent::Up { lane, .. })) => {
                    end.lane = Some(lane);
                    self.enter(at, node, (peer, lane), now, connection);
                }
                Ok(Some(InboundEvent::Frame(frame))) => {
                    let lane = end.lane.unwrap_or(Lane::Control);
                    self.deliver(at, node, (peer, lane), now, connection, frame);
                }
                Err(why) => return self.end_inbound(at, node, connection, now, &why),
            }
        }
    }

    /// A peer's hello stands: its session takes the place of an older one.
    fn enter(
        &mut self,
        at: usize,
        node: &mut Node,
        (peer, lane): (usize, Lane),
        now: Instant,
        connection: u64,
    ) {
        let older: Vec<_> = node
            .inbound
            .iter()
            .filter(|(number, end)| {
                **number != connection && end.peer == peer && end.lane == Some(lane)
            })
            .map(|(number, _)| *number)
            .collect();
        for older in older {
            self.end_inbound(at, node, older, now, &SessionEnd::Replaced);
        }
        let Some(end) = node.peers.get_mut(&peer) else {
            return;
        };
        // It calls, so it lives.
        let here = &mut end.lanes[place(lane)];
        here.backoff.reset();
        if lane == Lane::Control {
            if here.connection.is_none() {
                let event = Event::Dial {
                    node: at,
                    life: node.life,
                    peer,
                    lane,
                };
                self.events.push(self.now, event);
            }
            end.inbound = Some(connection);
            self.relink(at, node, peer, now);
        }
    }

    pub(super) fn end_inbound(
        &mut self,
        at: usize,
        node: &mut Node,
        connection: u64,
        now: Instant,
        why: &SessionEnd,
    ) {
        let Some(mut ended) = node.inbound.remove(&connection) else {
            return;
        };
        let peer = ended.peer;
        self.check_end(at, peer, why);
        self.trace.line(self.now, Some(at), None, || {
            format!("session {connection} from {} ends: {why}", peer + 1)
        });
        let notice = why.notice();
        let last = notice.and_then(|notice| ended.session.close_message(&notice));
        close(
            &mut self.network,
            &mut self.events,
            self.now,
            (connection, End::Acceptor),
            &mut ended.unsent,
            last,
        );
        if ended.lane != Some(Lane::Control) {
            return;
        }
        let Some(end) = node.peers.get_mut(&peer) else {
            return;
        };
        if end.inbound == Some(connection) {
            end.inbound = None;
            self.relink(at, node, peer, now);
            let bulk = node
                .inbound
                .iter()
                .find(|(_, end)| end.peer == peer && end.lane == Some(Lane::Bulk))
                .map(|(number, _)| *number);
            if let Some(bulk) = bulk {
                self.end_inbound(at, node, bulk, now, &SessionEnd::ControlEnded);
            }
        }
    }

    /// A link is up for the host when both control sessions stand and the peer has answered with its
    /// life on this node's; between two lives the host hears of a loss.
    pub(super) fn relink(&mut self, at: usize, node: &mut Node, peer: usize, now: Instant) {
        let stalled = node.disk_stalled;
        let Some(end) = node.peers.get_mut(&peer) else {
            return;
        };
        let stands = end.inbound.is_some() && !stalled;
        let up = end.answered.filter(|_| stands);
        if up == end.up {
            return;
        }
        self.trace.line(self.now, Some(at), None, || {
            let state = if up.is_some() { "up" } else { "lost" };
            format!("link to {} is {state}", peer + 1)
        });
        if end.up.take().is_some() {
            node.core.on_peer_lost(now, node_id(peer));
            end.outbox.clear();
            (end.control_waits, end.bulk_waits) = (false, false);
        }
        if let Some(boot) = up {
            end.up = up;
            node.core.on_peer_returned(now, node_id(peer), boot);
        }
    }

    /// A peer says which life it is in. A session of ours to a life before that one is as good as
    /// lost: asking on it shows.
    pub(super) fn on_life(
        &mut self,
        at: usize,
        node: &mut Node,
        peer: usize,
        life: Boot,
        now: Instant,
    ) {
        let Some(end) = node.peers.get_mut(&peer) else {
            return;
        };
        if end.answered.is_some_and(|known| known != life) {
            end.answered = None;
            if let Some(connection) = end.lanes[0].connection {
                end.outbox.ask_life(connection);
                end.lanes[0].out.on_source_ready();
            }
            self.relink(at, node, peer, now);
        }
    }
}
