//! Order and authenticity of one direction of one session (T3). The sender stamps each message with
//! the next sequence and a tag over header and body, under a key that only the two ends of this TLS
//! session have; the reader takes the next sequence and a right tag, or nothing ever again.
//!
//! The tag is GMAC: AES-256-GCM over no text, with the message as associated data and the sequence
//! as nonce. A nonce must never repeat under a key, so a sequence is given when the message is
//! stamped, only here, counts up from 1, and ends the session before it would wrap (safety 24). A
//! key belongs to a session, a lane and a direction, since the exporter's context and label say so.
//!
//! [`Verified`] can be made by [`Verifier::verify`] alone. It is what opens a body, so a body of a
//! message that is out of order or forged can't be looked at:
//!
//! ```compile_fail,E0423
//! # use transport::proto::fifo::Verified;
//! let forged = Verified(7);
//! ```

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use bytes::{Bytes, BytesMut};

use crate::error::PeerMisbehaved;
use crate::id::{Lane, Sequence};
use crate::limits::{HEADER_BYTES, TAG_BYTES};
use crate::proto::deframer::RawMessage;
use crate::proto::frame::{Header, Kind};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// One direction's key, drawn from the TLS exporter.
#[derive(Clone)]
pub struct TagKey(std::sync::Arc<LessSafeKey>);

impl std::fmt::Debug for TagKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TagKey")
    }
}

impl TagKey {
    /// The key with these bytes.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        // A key of the algorithm's own length is never refused.
        match UnboundKey::new(&AES_256_GCM, bytes) {
            Ok(key) => Self(std::sync::Arc::new(LessSafeKey::new(key))),
            Err(_) => unreachable!("AES-256-GCM refused a key of 32 bytes"),
        }
    }

    fn nonce(sequence: Sequence) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&sequence.to_u64().to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn tag(&self, sequence: Sequence, message: &[u8]) -> [u8; TAG_BYTES] {
        let mut out = [0; TAG_BYTES];
        let sealed =
            self.0
                .seal_in_place_separate_tag(Self::nonce(sequence), Aad::from(message), &mut []);
        // Sealing an empty text can't be over the cipher's length.
        match sealed {
            Ok(tag) => out.copy_from_slice(tag.as_ref()),
            Err(_) => unreachable!("AES-256-GCM refused to tag a message"),
        }
        out
    }

    fn proves(&self, sequence: Sequence, message: &[u8], tag: &[u8]) -> bool {
        let mut tag: [u8; TAG_BYTES] = match tag.try_into() {
            Ok(tag) => tag,
            Err(_) => return false,
        };
        self.0
            .open_in_place(Self::nonce(sequence), Aad::from(message), &mut tag)
            .is_ok()
    }
}

/// The sending end of one direction.
#[derive(Debug)]
pub struct Stamper {
    key: TagKey,
    next: Option<Sequence>,
}

impl Stamper {
    /// Starts at `first` under `key`.
    #[must_use]
    pub fn new(key: TagKey, first: Sequence) -> Self {
        Self {
            key,
            next: Some(first),
        }
    }

    /// The sequence that the next message will get, or `None` when they ran out.
    #[must_use]
    pub const fn next(&self) -> Option<Sequence> {
        self.next
    }

    /// Gives `message`, a header with this stamper's next sequence and a body, its tag. From here
    /// on the number is used up: the message must go out.
    pub fn stamp(&mut self, mut message: BytesMut) -> Option<(Sequence, Bytes)> {
        let sequence = self.stamp_from(&mut message, 0)?;
        Some((sequence, message.freeze()))
    }

    /// The same for a message that begins at `at` of `out` and is the last in it.
    pub(crate) fn stamp_from(&mut self, out: &mut BytesMut, at: usize) -> Option<Sequence> {
        let sequence = self.next?;
        let message = out.get(at..).unwrap_or_default();
        debug_assert_eq!(
            message.get(8..16),
            Some(&sequence.to_u64().to_be_bytes()[..]),
            "a header carries the sequence that it is stamped with"
        );
        self.next = sequence.next();
        let tag = self.key.tag(sequence, message);
        out.extend_from_slice(&tag);
        Some(sequence)
    }

    /// Builds and stamps a message from its header and body.
    pub(crate) fn stamp_body(&mut self, header: Header, body: &[u8]) -> Option<(Sequence, Bytes)> {
        let mut message = BytesMut::new();
        let sequence = self.stamp_body_into(header, body, &mut message)?;
        Some((sequence, message.freeze()))
    }

    /// The same, appended to `out`.
    pub(crate) fn stamp_body_into(
        &mut self,
        header: Header,
        body: &[u8],
        out: &mut BytesMut,
    ) -> Option<Sequence> {
        self.next?;
        let at = out.len();
        out.reserve(HEADER_BYTES + body.len() + TAG_BYTES);
        header.encode(out);
        out.extend_from_slice(body);
        self.stamp_from(out, at)
    }

    /// The same in a buffer of its own, for the kinds of which a header says no more.
    pub(crate) fn stamp_plain(&mut self, kind: Kind, lane: Lane, body: &[u8]) -> Option<Bytes> {
        let header = Header {
            kind,
            lane,
            form: 0,
            body_bytes: u32::try_from(body.len()).unwrap_or(u32::MAX),
            sequence: self.next?,
            word: 0,
        };
        self.stamp_body(header, body).map(|(_, bytes)| bytes)
    }
}

/// The reading end of one direction.
#[derive(Debug)]
pub struct Verifier {
    key: TagKey,
    expected: Option<Sequence>,
}

impl Verifier {
    /// Expects `first` under `key`.
    #[must_use]
    pub fn new(key: TagKey, first: Sequence) -> Self {
        Self {
            key,
            expected: Some(first),
        }
    }

    /// Takes the message if it is the next in order and its tag is right, in that order of
    /// checks.
    ///
    /// # Errors
    /// A gap, a replay, or a tag that doesn't fit. The session must end then.
    pub fn verify(&mut self, message: RawMessage) -> Result<Verified<RawMessage>, PeerMisbehaved> {
        let got = message.header.sequence;
        // After the last number nothing can be in order.
        let expected = self.expected.unwrap_or(Sequence::new(0));
        if got > expected {
            return Err(PeerMisbehaved::SequenceGap { expected, got });
        }
        if got < expected {
            return Err(PeerMisbehaved::SequenceReplayed { expected, got });
        }
        let tag_at = message.bytes.len().saturating_sub(TAG_BYTES);
        let (covered, tag) = message.bytes.split_at(tag_at);
        if self.expected.is_none() || !self.key.proves(got, covered, tag) {
            return Err(PeerMisbehaved::BadTag { sequence: got });
        }
        self.expected = got.next();
        Ok(Verified(message))
    }
}

/// Something that came in order and under the right tag; see the head of this file.
#[derive(Clone, Debug)]
pub struct Verified<T>(T);

impl Verified<RawMessage> {
    /// The header, now trusted.
    pub(crate) const fn header(&self) -> &Header {
        &self.0.header
    }

    /// The body.
    pub(crate) fn body(&self) -> Bytes {
        self.0
            .bytes
            .slice(HEADER_BYTES..self.0.bytes.len() - TAG_BYTES)
    }

    /// When its first byte was read.
    pub(crate) const fn started(&self) -> std::time::Instant {
        self.0.started
    }

    /// A frame, opened.
    pub(crate) fn into_frame(self) -> Result<Verified<Frame>, PeerMisbehaved> {
        let Header { kind, sequence, .. } = *self.header();
        if kind != Kind::Frame {
            return Err(PeerMisbehaved::UnexpectedKind { got: kind as u8 });
        }
        let items = super::frame::split_items(self.body(), self.header().items(), sequence)?;
        Ok(Verified(Frame { sequence, items }))
    }
}

/// A frame's content. What it means is the host's business.
#[derive(Clone, Debug)]
pub struct Frame {
    sequence: Sequence,
    items: Vec<Bytes>,
}

impl Verified<Frame> {
    /// Its place in its session.
    #[must_use]
    pub const fn sequence(&self) -> Sequence {
        self.0.sequence
    }

    /// Its items, in the order in which they were sent.
    #[must_use]
    pub fn items(&self) -> &[Bytes] {
        &self.0.items
    }

    /// Payload bytes of all items.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.0.items.iter().map(Bytes::len).sum()
    }

    /// Gives the items away.
    #[must_use]
    pub fn into_items(self) -> Vec<Bytes> {
        self.0.items
    }
}

#[cfg(test)]
mod tests;
