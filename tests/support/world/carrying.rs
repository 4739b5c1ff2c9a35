//! What sessions carry: frames from the core to the lanes, bytes to sockets as far as these take them,
//! what arrives to the core and its answers back, and the end of each frame (safety 24).
//!
//! Whether there is a session is `sessions`' business.

use std::time::Instant;

use bytes::Bytes;
use raft_host::error::PeerMisbehaved;
use raft_host::limits::{BULK_BODY_BYTES_MAX, BULK_ON_THE_WAY_BYTES_MAX};
use raft_host::proto::host::{Lane as HostLane, SendEnd, Taken};
use transport::id::Sequence;
use transport::limits::{BULK_UNSENT_BYTES_MAX, CONTROL_UNSENT_BYTES_MAX};
use transport::proto::frame::item_bytes_max;
use transport::receipt::Item;
use transport::{Amount, Answer, Frame, Label, Lane, Outcome, RefusalReason, Verified};

use super::World;
use super::clock::Nanos;
use super::events::Event;
use super::links::{Unsent, decode_life, encode_life, place};
use super::network::{End, Network};
use super::node::{Node, boot_of, node_id};

const fn unsent_max(lane: Lane) -> usize {
    match lane {
        Lane::Control => CONTROL_UNSENT_BYTES_MAX,
        Lane::Bulk => BULK_UNSENT_BYTES_MAX,
    }
}

fn unsent_bytes(unsent: &Unsent) -> usize {
    unsent.iter().map(|(bytes, _)| bytes.len()).sum()
}

impl World {
    pub(super) fn deliver(
        &mut self,
        at: usize,
        node: &mut Node,
        (peer, lane): (usize, Lane),
        now: Instant,
        connection: u64,
        frame: Verified<Frame>,
    ) {
        let sequence = frame.sequence();
        let host_lane = match lane {
            Lane::Control => HostLane::Control,
            Lane::Bulk => HostLane::Bulk,
        };
        let mut verdicts = Vec::new();
        for body in frame.into_items() {
            if let Some(life) = decode_life(&body) {
                self.on_life(at, node, peer, life, now);
                verdicts.push(Ok(encode_life(boot_of(at, node.life))));
                continue;
            }
            let taken = node.core.on_frame(now, node_id(peer), host_lane, body);
            verdicts.push(match taken {
                Taken::Yes { answer } => {
                    let answer = answer.unwrap_or_default();
                    if !answer.is_empty() && node.dice.chance(self.shape.late_answers) {
                        node.core.answer_later(node_id(peer), answer);
                        Ok(Bytes::new())
                    } else {
                        Ok(answer)
                    }
                }
                Taken::Busy => Err(RefusalReason::Busy),
                Taken::Bad(PeerMisbehaved::WrongBoot { .. }) => Err(RefusalReason::NotUnderstood),
                Taken::Bad(fault) => self.fail(&format!(
                    "links: node {} says of node {}: {fault}",
                    at + 1,
                    peer + 1
                )),
            });
        }
        if let Some(end) = node.inbound.get_mut(&connection) {
            end.session.answer(sequence, Answer::PerItem(verdicts));
        }
    }

    /// Makes the frames that there is something for and room for.
    pub(super) fn fill(&mut self, at: usize, node: &mut Node, now: Instant) -> bool {
        let mut any = false;
        let peers: Vec<_> = node.peers.keys().copied().collect();
        for peer in peers {
            let Some(end) = node.peers.get_mut(&peer) else {
                continue;
            };
            if end.control_waits && end.outbox.is_free() {
                any = true;
                end.control_waits = false;
                let most = item_bytes_max(Lane::Control);
                if let Some(frame) = node.core.fill_control(now, node_id(peer), most) {
                    // One that is half empty has taken everything.
                    end.control_waits = frame.body.len() > most / 2;
                    self.counts.frames += 1;
                    self.check_body(at, peer, &frame.body);
                    end.outbox.put(frame);
                }
            }
            while end.bulk_waits && end.bulk_on_the_way < BULK_ON_THE_WAY_BYTES_MAX {
                let bulk = &mut end.lanes[1];
                let amount = Amount::new(1, BULK_BODY_BYTES_MAX as u64);
                let Ok(mut room) = bulk.account.try_reserve(amount) else {
                    break;
                };
                any = true;
                let Some(frame) = node.core.fill_bulk(now, node_id(peer), BULK_BODY_BYTES_MAX)
                else {
                    end.bulk_waits = false;
                    break;
                };
                self.counts.frames += 1;
                self.check_body(at, peer, &frame.body);
                let bytes = frame.body.len() as u64;
                let deadline = now + self.shape.timeouts.stall;
                match Item::start(&mut room, frame.body, Label::NONE, deadline) {
                    Ok((item, receipt)) => {
                        bulk.out.push(now, item);
                        bulk.receipts.push_back((frame.id, bytes, receipt));
                        end.bulk_on_the_way += bytes;
                    }
                    Err(_) => {
                        node.core
                            .on_send_ended(now, node_id(peer), frame.id, SendEnd::Untaken);
                    }
                }
            }
            if !end.outbox.is_free() || end.outbox.asks() {
                end.lanes[0].out.on_source_ready();
            }
        }
        any
    }

    /// Lets out what may go on all sessions, acts on the time, and tells the core what has ended.
    pub(super) fn pump_all(&mut self, at: usize, node: &mut Node, now: Instant) -> bool {
        let mut any = false;
        let peers: Vec<_> = node.peers.keys().copied().collect();
        for peer in peers {
            for lane in Lane::ALL {
                let ended = node
                    .peers
                    .get_mut(&peer)
                    .and_then(|end| end.lanes[place(lane)].out.handle_timeout(now).err());
                if let Some(why) = ended {
                    self.end_outbound(at, node, (peer, lane), now, why);
                }
                self.pump_outbound(at, node, peer, lane, now);
            }
            any |= self.tell_ended(at, node, peer, now);
        }
        let sessions: Vec<_> = node.inbound.keys().copied().collect();
        for connection in sessions {
            self.pump_inbound(at, node, connection, now);
        }
        any
    }

    pub(super) fn pump_outbound(
        &mut self,
        at: usize,
        node: &mut Node,
        peer: usize,
        lane: Lane,
        now: Instant,
    ) {
        let Some(end) = node.peers.get_mut(&peer) else {
            return;
        };
        let here = &mut end.lanes[place(lane)];
        let Some(connection) = here.connection else {
            return;
        };
        loop {
            let out = &mut here.out;
            send_unsent(
                &mut self.network,
                &mut self.events,
                self.now,
                (connection, End::Dialler),
                &mut here.unsent,
                |frame| out.on_written(frame),
            );
            if unsent_bytes(&here.unsent) >= unsent_max(lane) {
                return;
            }
            let Some(transmit) = here.out.poll_transmit(now) else {
                return;
            };
            self.trace
                .mix(&[at as u64, connection, tag_of(&transmit.bytes)]);
            here.unsent.push_back((transmit.bytes, transmit.frame));
        }
    }

    fn pump_inbound(&mut self, at: usize, node: &mut Node, connection: u64, now: Instant) {
        let Some(end) = node.inbound.get_mut(&connection) else {
            return;
        };
        if let Err(why) = end.session.handle_timeout(now) {
            return self.end_inbound(at, node, connection, now, &why);
        }
        loop {
            send_unsent(
                &mut self.network,
                &mut self.events,
                self.now,
                (connection, End::Acceptor),
                &mut end.unsent,
                |_| {},
            );
            if unsent_bytes(&end.unsent) >= BULK_UNSENT_BYTES_MAX {
                return;
            }
            match end.session.poll_transmit() {
                Ok(Some(bytes)) => {
                    self.trace.mix(&[at as u64, connection, tag_of(&bytes)]);
                    end.unsent.push_back((bytes, None));
                }
                Ok(None) => return,
                Err(why) => return self.end_inbound(at, node, connection, now, &why),
            }
        }
    }

    /// Tells the core of frames that have ended, each once (safety 24).
    fn tell_ended(&mut self, at: usize, node: &mut Node, peer: usize, now: Instant) -> bool {
        let mut any = false;
        let id = node_id(peer);
        let Some(end) = node.peers.get_mut(&peer) else {
            return false;
        };
        while let Some((frame, outcome)) = end.outbox.pop_ended() {
            any = true;
            let (how, answer) = end_of(outcome);
            if !answer.is_empty() {
                match node.core.on_round_answer(now, id, answer) {
                    Ok(()) | Err(PeerMisbehaved::WrongBoot { .. }) => {}
                    Err(fault) => self.fail(&format!(
                        "links: node {} says of node {}'s answer: {fault}",
                        at + 1,
                        peer + 1
                    )),
                }
            }
            node.core.on_send_ended(now, id, frame, how);
        }
        if let Some((session, life)) = end.outbox.pop_life()
            && end.lanes[0].connection == Some(session)
        {
            any = true;
            match life {
                Some(_) => end.answered = life,
                None => end.outbox.ask_life(session),
            }
            self.relink(at, node, peer, now);
        }
        let Some(end) = node.peers.get_mut(&peer) else {
            return any;
        };
        let bulk = &mut end.lanes[1];
        let has_ended = |(_, _, receipt): &(_, _, transport::Receipt)| receipt.outcome().is_some();
        while let Some(place) = bulk.receipts.iter().position(has_ended) {
            let Some((frame, bytes, receipt)) = bulk.receipts.remove(place) else {
                break;
            };
            any = true;
            end.bulk_on_the_way -= bytes;
            let (how, _) = end_of(receipt.outcome());
            node.core.on_send_ended(now, id, frame, how);
        }
        any
    }
}

/// What the host is told of a frame's end, as the shell's outbox says it.
fn end_of(outcome: Option<Outcome>) -> (SendEnd, Bytes) {
    match outcome {
        Some(Outcome::Replied(answer)) => (SendEnd::Replied, answer),
        Some(lost) if !lost.is_proven_without_effect() => (SendEnd::Failed, Bytes::new()),
        Some(_) | None => (SendEnd::Untaken, Bytes::new()),
    }
}

/// A message's tag covers all of it.
fn tag_of(message: &[u8]) -> u64 {
    let last = message.last_chunk::<8>().copied().unwrap_or_default();
    u64::from_be_bytes(last)
}

/// Gives the socket the last message as far as it takes it, and closes this end.
pub(super) fn close(
    network: &mut Network,
    events: &mut super::events::Events,
    now: Nanos,
    (connection, from): (u64, End),
    unsent: &mut Unsent,
    last: Option<Bytes>,
) {
    if let Some(last) = last {
        unsent.push_back((last, None));
        send_unsent(network, events, now, (connection, from), unsent, |_| {});
    }
    if let Some(when) = network.close(now, connection, from) {
        let end = from.other();
        events.push(when, Event::Look { connection, end });
    }
}

/// Gives the socket what it takes, and says which frames it has.
fn send_unsent(
    network: &mut Network,
    events: &mut super::events::Events,
    now: Nanos,
    (connection, from): (u64, End),
    unsent: &mut Unsent,
    mut written: impl FnMut(Sequence),
) {
    while let Some((mut bytes, frame)) = unsent.pop_front() {
        let found = network.connections.get(&connection);
        let room = found.map_or(usize::MAX, |found| found.room(from));
        if room == 0 {
            unsent.push_front((bytes, frame));
            return;
        }
        let part = bytes.split_to(room.min(bytes.len()));
        if let Some(when) = network.send(now, connection, from, part) {
            let end = from.other();
            events.push(when, Event::Look { connection, end });
        }
        if !bytes.is_empty() {
            unsent.push_front((bytes, frame));
            return;
        }
        if let Some(frame) = frame {
            written(frame);
        }
    }
}
