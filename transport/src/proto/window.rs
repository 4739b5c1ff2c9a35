//! The frames of one session that were begun and not yet answered (T6): at most so many on control,
//! so many bytes of bodies on bulk. Each reply frees the oldest frame's slot and nothing else does:
//! an item's expiry leaves its frame where it is. Knows sequences and sizes; what a reply says is
//! `outbound`'s business.
//!
//! Invariants, checked after each change:
//! - W1: sequences are consecutive from the oldest to the newest.
//! - W2: never more frames, or bytes, than the bound; one frame alone may be as large as any.
//! - W3: `written` frames come before unwritten ones.

use std::collections::VecDeque;
use std::time::Instant;

use crate::error::PeerMisbehaved;
use crate::id::Sequence;
use crate::proto::outbox::Entry;

/// What bounds a session's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowBound {
    /// Frames outstanding.
    Frames(u16),
    /// Bytes of bodies outstanding.
    Bytes(u64),
}

/// A frame that was begun.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) sequence: Sequence,
    pub(super) body_bytes: usize,
    pub(super) begun: Instant,
    pub(super) items: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Window {
    bound: WindowBound,
    frames: VecDeque<Outstanding>,
    body_bytes: u64,
    written: usize,
    last_written: Sequence,
}

impl Window {
    pub(super) fn new(bound: WindowBound) -> Self {
        Self {
            bound,
            frames: VecDeque::new(),
            body_bytes: 0,
            written: 0,
            last_written: Sequence::new(0),
        }
    }

    /// Whether a frame with a body of this size may be begun now.
    pub(super) fn has_room(&self, body_bytes: usize) -> bool {
        match self.bound {
            WindowBound::Frames(frames) => self.frames.len() < usize::from(frames),
            WindowBound::Bytes(bytes) => {
                self.frames.is_empty() || self.body_bytes + body_bytes as u64 <= bytes
            }
        }
    }

    pub(super) fn push(&mut self, frame: Outstanding) {
        debug_assert!(
            self.has_room(frame.body_bytes),
            "W2: frame begun without a slot"
        );
        self.body_bytes += frame.body_bytes as u64;
        self.frames.push_back(frame);
        self.check_invariants();
    }

    /// The socket accepted everything up to and with this frame; gives the items that are new
    /// among the written.
    pub(super) fn on_written(&mut self, sequence: Sequence) -> impl Iterator<Item = &Entry> {
        let first = self.written;
        while self
            .frames
            .get(self.written)
            .is_some_and(|frame| frame.sequence <= sequence)
        {
            self.written += 1;
        }
        self.last_written = self.last_written.max(sequence);
        self.check_invariants();
        self.frames
            .range(first..self.written)
            .flat_map(|frame| &frame.items)
    }

    /// Frees the slot of the frame that a reply answers, which must be the oldest.
    pub(super) fn on_reply(&mut self, answers: Sequence) -> Result<Outstanding, PeerMisbehaved> {
        if answers == Sequence::new(0) || answers > self.last_written {
            return Err(PeerMisbehaved::ReplyToUnsent {
                answers,
                sent: self.last_written,
            });
        }
        let oldest = match self.frames.front() {
            Some(frame) if self.written > 0 => frame.sequence,
            _ => return Err(PeerMisbehaved::SecondReply { answers }),
        };
        if answers < oldest {
            return Err(PeerMisbehaved::SecondReply { answers });
        }
        if answers > oldest {
            return Err(PeerMisbehaved::ReplyOutOfOrder {
                expected: oldest,
                got: answers,
            });
        }
        let Some(frame) = self.frames.pop_front() else {
            return Err(PeerMisbehaved::SecondReply { answers });
        };
        self.written -= 1;
        self.body_bytes -= frame.body_bytes as u64;
        self.check_invariants();
        Ok(frame)
    }

    pub(super) fn oldest(&self) -> Option<&Outstanding> {
        self.frames.front()
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = &Outstanding> {
        self.frames.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn into_frames(self) -> VecDeque<Outstanding> {
        self.frames
    }

    fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            let pairs = self.frames.iter().zip(self.frames.iter().skip(1));
            assert!(
                pairs
                    .clone()
                    .all(|(a, b)| a.sequence.next() == Some(b.sequence)),
                "W1"
            );
            match self.bound {
                WindowBound::Frames(max) => assert!(self.frames.len() <= usize::from(max), "W2"),
                WindowBound::Bytes(max) => {
                    assert!(self.frames.len() <= 1 || self.body_bytes <= max, "W2");
                }
            }
            assert!(self.written <= self.frames.len(), "W3");
        }
    }
}

#[cfg(test)]
mod tests;
