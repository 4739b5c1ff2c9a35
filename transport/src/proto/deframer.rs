//! Bytes to whole messages, each checked once. It waits for nothing that a header doesn't allow: an
//! unknown kind or an oversized length ends the session before one byte of the body is awaited, so
//! what a peer can make us hold is bounded by the largest body there is.
//!
//! A message comes out as one shared buffer, not copied again: header, body and tag together, which
//! is what `fifo` verifies. Nothing here looks into a body.

use std::time::Instant;

use bytes::{Bytes, BytesMut};

use crate::error::PeerMisbehaved;
use crate::id::Lane;
use crate::limits::{HEADER_BYTES, TAG_BYTES};
use crate::proto::frame::{Header, Side};

/// A whole message whose sequence and tag nobody has looked at.
#[derive(Clone, Debug)]
pub struct RawMessage {
    /// Its header, possible in itself, and no more trusted than its bytes.
    pub(crate) header: Header,
    /// All its bytes, the tag included.
    pub(crate) bytes: Bytes,
    /// When its first byte was read.
    pub(crate) started: Instant,
}

/// Collects what a session reads.
#[derive(Debug)]
pub struct Deframer {
    reader: Side,
    lane: Option<Lane>,
    buffer: BytesMut,
    header: Option<Header>,
    started: Option<Instant>,
    read_at: Option<Instant>,
}

impl Deframer {
    /// For the `reader` side of a session, on `lane` or on whichever the first message names.
    #[must_use]
    pub fn new(reader: Side, lane: Option<Lane>) -> Self {
        Self {
            reader,
            lane,
            buffer: BytesMut::new(),
            header: None,
            started: None,
            read_at: None,
        }
    }

    /// Takes in what was read at `now`.
    pub fn handle_bytes(&mut self, now: Instant, bytes: &[u8]) {
        if self.buffer.is_empty() {
            self.started = Some(now);
        }
        self.read_at = Some(now);
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes of an unfinished message.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The next whole message, or `None` until more is read.
    ///
    /// # Errors
    /// What is wrong with the next header; the session must end.
    pub fn next_message(&mut self) -> Result<Option<RawMessage>, PeerMisbehaved> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(first) = self.buffer.first_chunk::<HEADER_BYTES>() else {
                    return Ok(None);
                };
                let header = Header::decode(first, self.reader, self.lane)?;
                self.lane = Some(header.lane);
                self.header = Some(header);
                header
            }
        };
        let total = HEADER_BYTES + header.body_bytes as usize + TAG_BYTES;
        let (Some(started), true) = (self.started, self.buffer.len() >= total) else {
            self.buffer.reserve(total.saturating_sub(self.buffer.len()));
            return Ok(None);
        };
        let bytes = self.buffer.split_to(total).freeze();
        self.header = None;
        // What is left came with the latest read: an earlier one would have completed the message.
        self.started = self.read_at;
        Ok(Some(RawMessage {
            header,
            bytes,
            started,
        }))
    }
}

#[cfg(test)]
mod tests;
