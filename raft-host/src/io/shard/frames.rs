//! The shard's frames and links: what came in is stepped and answered, what is to go out is made
//! when there is room for it, and what ended is told to the core, once (safety 24).

use std::time::Instant;

use bytes::Bytes;
use transport::{Amount, RefusalReason, ReserveRefused};

use super::Shard;
use crate::error::PeerMisbehaved;
use crate::id::{NodeId, SendId};
use crate::io::inbox::{FramePart, LinkChange};
use crate::io::outbox::send_bulk;
use crate::limits::{
    BULK_BODY_BYTES_MAX, BULK_DEADLINE, BULK_ON_THE_WAY_BYTES_MAX, STORE_PENDING_BYTES_MAX,
};
use crate::proto::host::{Lane, SendEnd, Taken};

/// Bytes of a control body: whatever fits into a frame.
const CONTROL_BODY_BYTES: usize = transport::proto::frame::item_bytes_max(transport::Lane::Control);

impl Shard {
    pub(super) fn on_link(&mut self, now: Instant, peer: NodeId, change: LinkChange) {
        if change.lost {
            self.up.remove(&peer);
            self.lose(now, peer);
        }
        if let Some(boot) = change.up {
            self.up.insert(peer, boot);
            if !self.disk_stalled {
                self.core.on_peer_returned(now, peer, boot);
            }
        }
    }

    fn lose(&mut self, now: Instant, peer: NodeId) {
        self.core.on_peer_lost(now, peer);
        if let Some(found) = self.peers.get_mut(&peer) {
            (found.control_waits, found.bulk_waits) = (false, false);
            found.end.outbox.clear(self.identity.shard.to_u16().into());
        }
    }

    /// A node whose log makes nothing durable stops beating, so that its groups get other leaders
    /// (H11): its shards act as if every link were lost, until the log moves again.
    pub(super) fn check_disk(&mut self, now: Instant) {
        let since = self.health.health().sync_since;
        let stalled = since.is_some_and(|since| {
            now.saturating_duration_since(self.log_start + since) > self.election_timeout
        });
        if stalled == self.disk_stalled {
            return;
        }
        self.disk_stalled = stalled;
        let shard = self.identity.shard;
        if stalled {
            tracing::warn!(%shard, "the disk makes nothing durable, no longer beating");
            self.stats.disk_stalls += 1;
            for peer in self.up.clone().into_keys() {
                self.lose(now, peer);
            }
        } else {
            tracing::info!(%shard, "the disk works again");
            for (peer, boot) in self.up.clone() {
                self.core.on_peer_returned(now, peer, boot);
            }
        }
    }

    /// A part of a frame. On bulk it may have to wait for the disk; it was taken all the same.
    pub(super) fn on_part(&mut self, now: Instant, part: FramePart) {
        let waits = !self.held_frames.is_empty() || self.is_behind();
        if part.lane == Lane::Bulk && waits {
            self.held_frames.push_back(part);
        } else {
            self.step_part(now, part);
        }
    }

    fn is_behind(&self) -> bool {
        self.core.store_pending_bytes() > STORE_PENDING_BYTES_MAX
    }

    /// Steps the bulk frames that waited, while the disk keeps up.
    pub(super) fn step_held(&mut self, now: Instant) {
        while !self.is_behind()
            && let Some(part) = self.held_frames.pop_front()
        {
            self.step_part(now, part);
        }
    }

    fn step_part(&mut self, now: Instant, part: FramePart) {
        let FramePart {
            peer,
            lane,
            body,
            answer,
            session,
        } = part;
        match lane {
            Lane::Control => self.stats.control_frames_in += 1,
            Lane::Bulk => self.stats.bulk_frames_in += 1,
        }
        let len = body.len();
        let taken = self.core.on_frame(now, peer, lane, body);
        #[cfg(feature = "debug-keys")]
        self.sleep_for_appends();
        let verdict = match taken {
            Taken::Yes { answer } => Ok(answer.unwrap_or_default()),
            Taken::Busy => {
                self.stats.frames_busy += 1;
                Err(RefusalReason::Busy)
            }
            Taken::Bad(misbehaved) => {
                self.on_misbehaved(peer, &misbehaved);
                if let Some(fault) = fault_to_close_for(&misbehaved) {
                    session.reject(fault);
                }
                Err(RefusalReason::NotUnderstood)
            }
        };
        self.inbox.stepped(lane, len);
        if let Some((answer, item)) = answer
            && let Some(late) = answer.settle(item, verdict)
        {
            self.stats.answers_late += 1;
            self.core.answer_later(peer, late);
        }
    }

    /// A follower that is slow on purpose: it sleeps for every append that the frame held.
    #[cfg(feature = "debug-keys")]
    fn sleep_for_appends(&mut self) {
        let sleep = self.message_sleep * self.core.take_appends_stepped();
        if !sleep.is_zero() {
            std::thread::sleep(sleep);
        }
    }

    /// Told at the first, second, fourth, … so that no peer can fill the log.
    fn on_misbehaved(&mut self, peer: NodeId, misbehaved: &PeerMisbehaved) {
        self.stats.frames_bad += 1;
        if self.stats.frames_bad.is_power_of_two() {
            let times = self.stats.frames_bad;
            tracing::warn!(%peer, times, "node {peer} sent what no correct node does: {misbehaved}");
        }
    }

    /// Something sent has ended, perhaps with an answer.
    #[expect(clippy::too_many_arguments, reason = "they are the fields of one note")]
    pub(super) fn on_ended(
        &mut self,
        now: Instant,
        peer: NodeId,
        lane: Lane,
        id: SendId,
        bytes: u64,
        how: SendEnd,
        answer: Bytes,
    ) {
        if lane == Lane::Bulk
            && let Some(found) = self.peers.get_mut(&peer)
        {
            found.bulk_on_the_way = found.bulk_on_the_way.saturating_sub(bytes);
        }
        if lane == Lane::Control
            && !answer.is_empty()
            && let Err(misbehaved) = self.core.on_round_answer(now, peer, answer)
        {
            self.on_misbehaved(peer, &misbehaved);
        }
        self.core.on_send_ended(now, peer, id, how);
    }

    /// Makes the frames that there is something for and room for. Whether the core was asked for
    /// any, which may have made it want more.
    pub(super) fn fill(&mut self, now: Instant) -> bool {
        let mut asked = false;
        let (mut blocked, mut full) = (false, false);
        let shard = usize::from(self.identity.shard.to_u16());
        for (node, peer) in &mut self.peers {
            if std::mem::take(&mut peer.control_waits) && peer.end.outbox.is_free(shard) {
                asked = true;
                let frame = self.core.fill_control(now, *node, CONTROL_BODY_BYTES);
                if let Some(frame) = frame {
                    self.stats.control_bodies += 1;
                    // One that is half empty has taken everything, or what it left is told anew.
                    let more = frame.body.len() > CONTROL_BODY_BYTES / 2;
                    peer.end.outbox.put(shard, frame, more);
                }
            }
            while peer.bulk_waits {
                if peer.bulk_on_the_way >= BULK_ON_THE_WAY_BYTES_MAX {
                    blocked = true;
                    break;
                }
                let amount = Amount::new(1, BULK_BODY_BYTES_MAX as u64);
                let lane = transport::Lane::Bulk;
                let reserved = peer.end.lane.try_reserve_or_wake(lane, amount, &self.room);
                let mut room = match reserved {
                    Ok(room) => room,
                    Err(refused) => {
                        // Where nobody more can be woken, the next turn looks again.
                        full |= matches!(
                            refused,
                            ReserveRefused::Full { .. } | ReserveRefused::LineFull { .. }
                        );
                        break;
                    }
                };
                asked = true;
                match self.core.fill_bulk(now, *node, BULK_BODY_BYTES_MAX) {
                    Some(frame) => {
                        self.stats.bulk_bodies += 1;
                        peer.bulk_on_the_way += frame.body.len() as u64;
                        let deadline = now + BULK_DEADLINE;
                        send_bulk(&mut room, frame, deadline, &self.inbox, *node);
                    }
                    None => peer.bulk_waits = false,
                }
            }
        }
        self.stats.bulk_blocked += u64::from(blocked || full);
        if blocked != std::mem::replace(&mut self.wants_ends, blocked) {
            self.inbox.set_wants_ends(blocked);
        }
        asked
    }
}

/// Why the session of a frame that holds this must end. A body of another life may be right: the
/// first ones of a peer's new life can come before its loss was noticed here.
const fn fault_to_close_for(misbehaved: &PeerMisbehaved) -> Option<&'static str> {
    match misbehaved {
        PeerMisbehaved::BadBody(_) => Some("a body can't be read"),
        PeerMisbehaved::WrongShard { .. } => Some("a body is for another shard"),
        PeerMisbehaved::WrongLane => Some("a message is on the wrong lane"),
        PeerMisbehaved::AckBeyondLog { .. } => Some("an ack is beyond the log"),
        PeerMisbehaved::EntryTerm { .. } => Some("an append holds entries of impossible terms"),
        PeerMisbehaved::TwoLeaders { .. } => Some("two leaders in one term"),
        PeerMisbehaved::WrongBoot { .. } => None,
    }
}
