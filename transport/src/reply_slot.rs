//! The host's side of one frame: where its answer goes (T11). It may be answered from any thread and
//! at any time; the session puts replies in order. A slot that is dropped unanswered refuses its
//! frame, so that no frame's fate hangs on a forgetful host.

use std::fmt;

use bytes::Bytes;

use crate::error::{PeerMisbehaved, RefusalReason};
use crate::id::{Lane, PeerId, Sequence};
use crate::mailbox::Mailbox;
use crate::proto::fifo::{Frame, Verified};
use crate::proto::frame::Answer;

/// What a host has for one of its sessions.
#[cfg_attr(
    not(feature = "io"),
    expect(dead_code, reason = "only the shell takes it out of the mailbox")
)]
#[derive(Debug)]
pub(crate) enum FromHost {
    /// The answer to this frame.
    Answer(Sequence, Answer),
    /// The session must end: the peer broke the host's own protocol.
    End(PeerMisbehaved),
}

/// The one answer that a frame gets.
pub struct ReplySlot {
    mailbox: Mailbox<FromHost>,
    frame: Sequence,
    open: bool,
}

impl fmt::Debug for ReplySlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplySlot")
            .field("frame", &self.frame)
            .finish_non_exhaustive()
    }
}

impl ReplySlot {
    #[cfg_attr(
        not(feature = "io"),
        expect(dead_code, reason = "only the shell hands slots out")
    )]
    pub(crate) const fn new(mailbox: Mailbox<FromHost>, frame: Sequence) -> Self {
        Self {
            mailbox,
            frame,
            open: true,
        }
    }

    /// Answers the frame. Where the session has ended meanwhile, the answer goes nowhere: the
    /// sender was told `SessionLost`.
    pub fn answer(mut self, answer: Answer) {
        self.send(answer);
    }

    /// The host took all items of the frame and has nothing to add.
    pub fn taken(self) {
        self.answer(Answer::Taken(Bytes::new()));
    }

    /// The host took none of the frame's items.
    pub fn refuse(self, reason: RefusalReason) {
        self.answer(Answer::Refused(reason));
    }

    /// The session that the frame came on; it outlives the answer, for a host that looks into a
    /// frame after it has answered.
    #[must_use]
    pub fn session(&self) -> FrameSession {
        FrameSession {
            mailbox: self.mailbox.clone(),
            frame: self.frame,
        }
    }

    fn send(&mut self, answer: Answer) {
        self.open = false;
        // A closed mailbox means that the session is gone.
        drop(self.mailbox.push(FromHost::Answer(self.frame, answer)));
    }
}

impl Drop for ReplySlot {
    fn drop(&mut self) {
        if self.open {
            self.send(Answer::Refused(RefusalReason::Unanswered));
        }
    }
}

/// The session that one frame came on. Clones are the same session.
#[derive(Clone)]
pub struct FrameSession {
    mailbox: Mailbox<FromHost>,
    frame: Sequence,
}

impl fmt::Debug for FrameSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameSession")
            .field("frame", &self.frame)
            .finish_non_exhaustive()
    }
}

impl FrameSession {
    /// Ends the session: the frame holds what no correct peer sends, and `fault` names it. Both
    /// sides are told [`PeerMisbehaved::PayloadRejected`], the peer in the close. No frame is
    /// delivered once the session's task has taken this up, which is at once when it is called
    /// inside `deliver`. A session that has ended stays as it is, and so does one that came after.
    pub fn reject(&self, fault: &'static str) {
        let frame = self.frame;
        let end = FromHost::End(PeerMisbehaved::PayloadRejected { frame, fault });
        drop(self.mailbox.push(end));
    }
}

/// Where verified frames go. The embedder implements it.
pub trait Inbound: Send + Sync {
    /// Takes one frame, in its session's order, on the session's task.
    ///
    /// It must not block, and must not wait for anything outbound (safety 17): a host without room
    /// refuses the frame as [`RefusalReason::Busy`]. It may keep the slot and answer later; until
    /// then the frame holds one place of its peer's window.
    fn deliver(&self, peer: PeerId, lane: Lane, frame: Verified<Frame>, slot: ReplySlot);
}
