//! The first exchange of a session (T2): what each side claims to be and can do, bound to this TLS
//! session by a tag, so that a proxy that ends TLS in between fails. This file writes and reads the
//! bodies and compares what must agree; whether a certificate may speak for a node is
//! `authority`'s business.
//!
//! Hello (dialler, sequence 1) → answer (acceptor, sequence 2) or refusal (acceptor, sequence 2),
//! all three under the `mraft1 hello` key. Frames and replies then count from 1 under keys of
//! their own (safety 24).

use std::collections::BTreeMap;
use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::{CloseCode, PeerIncompatible, PeerMisbehaved, PeerNotice};
use crate::id::{Boot, ClusterName, Incarnation, Lane, LifeId, PeerId, Sequence, SessionId};
use crate::limits::{
    CONTROL_WINDOW_FRAMES_MAX, FINGERPRINT_ENTRIES_MAX, FINGERPRINT_TEXT_BYTES_MAX,
    REFUSAL_TEXT_BYTES_MAX,
};
use crate::proto::fifo::{KEY_BYTES, TagKey};

/// The protocol versions that this build speaks.
pub const PROTOCOL_VERSIONS: VersionRange = VersionRange { min: 1, max: 1 };

/// The hello's place under its key.
pub(crate) const HELLO_SEQUENCE: Sequence = Sequence::new(1);
/// The answer's, or refusal's, place under the same key.
pub(crate) const ANSWER_SEQUENCE: Sequence = Sequence::new(2);

/// Protocol versions from the lowest to the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The lowest.
    pub min: u16,
    /// The highest.
    pub max: u16,
}

impl VersionRange {
    /// The highest version in both.
    fn common(self, other: Self) -> Option<u16> {
        let max = self.max.min(other.max);
        (max >= self.min.max(other.min)).then_some(max)
    }
}

/// What one side takes from the other; the lower of both sides' values holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    /// Control frames outstanding.
    pub window_frames: u16,
    /// Bytes of bulk frames' bodies outstanding.
    pub window_bytes: u64,
    /// Bytes of one frame's body, by this session's lane.
    pub frame_bytes: u32,
    /// Items of one frame.
    pub frame_items: u16,
}

impl PeerLimits {
    /// The lower of each.
    #[must_use]
    pub fn lower(self, other: Self) -> Self {
        Self {
            window_frames: self.window_frames.min(other.window_frames),
            window_bytes: self.window_bytes.min(other.window_bytes),
            frame_bytes: self.frame_bytes.min(other.frame_bytes),
            frame_items: self.frame_items.min(other.frame_items),
        }
    }
}

/// Why a fingerprint can't be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FingerprintError {
    /// Too many settings.
    #[error("a fingerprint of {got} settings, at most {FINGERPRINT_ENTRIES_MAX} fit")]
    TooMany {
        /// How many.
        got: usize,
    },
    /// A name or a value that is too long.
    #[error("{text:?} is over the {FINGERPRINT_TEXT_BYTES_MAX} bytes of a fingerprint's text")]
    TooLong {
        /// The text.
        text: String,
    },
}

/// The cluster's settings that must be equal on every node, by name, so that a difference can be
/// named (safety 21).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(BTreeMap<String, String>);

impl Fingerprint {
    /// The fingerprint of these settings.
    ///
    /// # Errors
    /// [`FingerprintError`] when they don't fit a hello.
    pub fn new<N: Into<String>, V: Into<String>>(
        settings: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, FingerprintError> {
        let pair = |(name, value): (N, V)| (name.into(), value.into());
        let map: BTreeMap<String, String> = settings.into_iter().map(pair).collect();
        if map.len() > FINGERPRINT_ENTRIES_MAX {
            return Err(FingerprintError::TooMany { got: map.len() });
        }
        let long = |text: &&String| text.len() > FINGERPRINT_TEXT_BYTES_MAX;
        let too_long = map
            .iter()
            .flat_map(|(name, value)| [name, value])
            .find(long)
            .cloned();
        too_long.map_or(Ok(Self(map)), |text| {
            Err(FingerprintError::TooLong { text })
        })
    }

    /// The first setting that differs, by name.
    fn difference(&self, other: &Self) -> Option<PeerIncompatible> {
        let names = self.0.keys().chain(other.0.keys());
        let value = |of: &Self, name: &String| of.0.get(name).cloned().unwrap_or_default();
        names
            .filter(|name| self.0.get(*name) != other.0.get(*name))
            .min()
            .map(|name| PeerIncompatible::Fingerprint {
                name: name.clone(),
                ours: value(self, name),
                theirs: value(other, name),
            })
    }
}

/// Everything that one side says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Protocol versions it speaks.
    pub versions: VersionRange,
    /// Its cluster.
    pub cluster: ClusterName,
    /// Its node.
    pub from: PeerId,
    /// The node it means to talk to.
    pub to: PeerId,
    /// Its data directory.
    pub incarnation: Incarnation,
    /// How often that has been started.
    pub boot: Boot,
    /// Which life that start began.
    pub life: LifeId,
    /// The number of the last sync of its log when this life opened it, 0 before the first (safety
    /// 21). It is the same in every hello of a life; confirms tell how it rises.
    pub sync_number: u64,
    /// What it takes.
    pub limits: PeerLimits,
    /// Its cluster settings.
    pub fingerprint: Fingerprint,
}

/// What an acceptor says beyond its claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloAnswer {
    /// The acceptor's claims.
    pub claims: Claims,
    /// The version chosen.
    pub version: u16,
    /// The session's name.
    pub session: SessionId,
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The protocol version.
    pub version: u16,
    /// The lower of both sides' limits.
    pub limits: PeerLimits,
}

/// Compares what must agree between two sides that have proven who they are.
///
/// # Errors
/// The first thing that doesn't.
pub fn agree(ours: &Claims, theirs: &Claims) -> Result<Agreed, PeerIncompatible> {
    let Some(version) = ours.versions.common(theirs.versions) else {
        return Err(PeerIncompatible::ProtocolVersions {
            ours_min: ours.versions.min,
            ours_max: ours.versions.max,
            theirs_min: theirs.versions.min,
            theirs_max: theirs.versions.max,
        });
    };
    if theirs.to != ours.from {
        return Err(PeerIncompatible::Misdirected {
            wanted: theirs.to,
            here: ours.from,
        });
    }
    match ours.fingerprint.difference(&theirs.fingerprint) {
        Some(difference) => Err(difference),
        None => Ok(Agreed {
            version,
            limits: ours.limits.lower(theirs.limits),
        }),
    }
}

/// What the keys of a session are drawn for: the exporter's context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyContext {
    /// The cluster.
    pub cluster: ClusterName,
    /// The session's lane.
    pub lane: Lane,
    /// Who dialled.
    pub dialler: PeerId,
    /// Who accepted.
    pub acceptor: PeerId,
}

impl KeyContext {
    /// The context's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let name = self.cluster.as_str().as_bytes();
        let mut out = vec![u8::try_from(name.len()).unwrap_or(u8::MAX)];
        out.extend_from_slice(name);
        out.push(match self.lane {
            Lane::Control => 1,
            Lane::Bulk => 2,
        });
        out.extend_from_slice(&self.dialler.to_u32().to_be_bytes());
        out.extend_from_slice(&self.acceptor.to_u32().to_be_bytes());
        out
    }
}

/// The exporter labels, one for each key of a session.
pub const KEY_LABELS: [&str; 3] = ["mraft1 hello", "mraft1 frame", "mraft1 reply"];

/// The keys of one session.
#[derive(Clone, Debug)]
pub struct SessionKeys {
    /// Of the hello and its answer.
    pub hello: TagKey,
    /// Of the dialler's frames.
    pub frame: TagKey,
    /// Of the acceptor's replies.
    pub reply: TagKey,
}

impl SessionKeys {
    /// Draws the keys: `export` is the TLS session's exporter, given a label and a context.
    ///
    /// # Errors
    /// The exporter's own.
    pub fn derive<E>(
        context: &KeyContext,
        mut export: impl FnMut(&str, &[u8]) -> Result<[u8; KEY_BYTES], E>,
    ) -> Result<Self, E> {
        let context = context.to_bytes();
        let mut key = |label| export(label, &context).map(|bytes| TagKey::new(&bytes));
        let [hello, frame, reply] = KEY_LABELS;
        Ok(Self {
            hello: key(hello)?,
            frame: key(frame)?,
            reply: key(reply)?,
        })
    }
}

fn put_text(out: &mut BytesMut, text: &str) {
    out.put_u8(u8::try_from(text.len()).unwrap_or(u8::MAX));
    out.put_slice(text.as_bytes());
}

/// Writes a side's claims.
#[must_use]
pub fn encode_claims(claims: &Claims) -> BytesMut {
    let mut out = BytesMut::with_capacity(256);
    out.put_u16(claims.versions.min);
    out.put_u16(claims.versions.max);
    out.put_u32(claims.from.to_u32());
    out.put_u32(claims.to.to_u32());
    out.put_slice(&claims.incarnation.to_bytes());
    out.put_u64(claims.boot.to_u64());
    out.put_u64(claims.life.to_u64());
    out.put_u64(claims.sync_number);
    out.put_u16(claims.limits.window_frames);
    out.put_u16(claims.limits.frame_items);
    out.put_u32(claims.limits.frame_bytes);
    out.put_u64(claims.limits.window_bytes);
    put_text(&mut out, claims.cluster.as_str());
    out.put_u8(u8::try_from(claims.fingerprint.0.len()).unwrap_or(u8::MAX));
    for (name, value) in &claims.fingerprint.0 {
        put_text(&mut out, name);
        put_text(&mut out, value);
    }
    out
}

/// Writes an acceptor's answer.
#[must_use]
pub fn encode_answer(answer: &HelloAnswer) -> BytesMut {
    let mut out = encode_claims(&answer.claims);
    out.put_u16(answer.version);
    out.put_u64(answer.session.to_u64());
    out
}

/// Reads from a body and knows where it stands when something can't be read.
struct Reader {
    what: &'static str,
    total: usize,
    body: Bytes,
}

impl Reader {
    fn new(what: &'static str, body: Bytes) -> Self {
        Self {
            what,
            total: body.len(),
            body,
        }
    }

    fn malformed(&self) -> PeerMisbehaved {
        PeerMisbehaved::MalformedHello {
            what: self.what,
            at: self.total - self.body.len(),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], PeerMisbehaved> {
        let taken = self
            .body
            .first_chunk::<N>()
            .copied()
            .ok_or_else(|| self.malformed())?;
        self.body.advance(N);
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16, PeerMisbehaved> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, PeerMisbehaved> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, PeerMisbehaved> {
        self.take().map(u64::from_be_bytes)
    }

    fn peer(&mut self) -> Result<PeerId, PeerMisbehaved> {
        let number = self.u32()?;
        PeerId::new(number).ok_or_else(|| self.malformed())
    }

    fn text(&mut self, bytes: usize, bytes_max: usize) -> Result<String, PeerMisbehaved> {
        if bytes > bytes_max || bytes > self.body.len() {
            return Err(self.malformed());
        }
        match std::str::from_utf8(&self.body[..bytes]) {
            Ok(text) => {
                let text = text.to_owned();
                self.body.advance(bytes);
                Ok(text)
            }
            Err(_) => Err(self.malformed()),
        }
    }

    fn short_text(&mut self) -> Result<String, PeerMisbehaved> {
        let [bytes] = self.take()?;
        self.text(usize::from(bytes), FINGERPRINT_TEXT_BYTES_MAX)
    }

    fn end(&self) -> Result<(), PeerMisbehaved> {
        if self.body.is_empty() {
            Ok(())
        } else {
            Err(self.malformed())
        }
    }

    fn limits(&mut self) -> Result<PeerLimits, PeerMisbehaved> {
        let limits = PeerLimits {
            window_frames: self.u16()?,
            frame_items: self.u16()?,
            frame_bytes: self.u32()?,
            window_bytes: self.u64()?,
        };
        let window = 1..=CONTROL_WINDOW_FRAMES_MAX;
        let usable = window.contains(&limits.window_frames)
            && limits.frame_items > 0
            && limits.frame_bytes > 0
            && limits.window_bytes >= u64::from(limits.frame_bytes);
        if usable {
            Ok(limits)
        } else {
            Err(self.malformed())
        }
    }

    fn claims(&mut self) -> Result<Claims, PeerMisbehaved> {
        let versions = VersionRange {
            min: self.u16()?,
            max: self.u16()?,
        };
        let (from, to) = (self.peer()?, self.peer()?);
        let incarnation = Incarnation::new(self.take()?);
        let boot = Boot::new(self.u64()?);
        let life = LifeId::new(self.u64()?).ok_or_else(|| self.malformed())?;
        let sync_number = self.u64()?;
        let limits = self.limits()?;
        let cluster = self.short_text()?.parse().map_err(|_| self.malformed())?;
        let [entries] = self.take()?;
        if usize::from(entries) > FINGERPRINT_ENTRIES_MAX {
            return Err(self.malformed());
        }
        let mut settings = BTreeMap::new();
        for _ in 0..entries {
            let name = self.short_text()?;
            let value = self.short_text()?;
            if settings.insert(name, value).is_some() {
                return Err(self.malformed());
            }
        }
        let fingerprint = Fingerprint(settings);
        Ok(Claims {
            versions,
            cluster,
            from,
            to,
            incarnation,
            boot,
            life,
            sync_number,
            limits,
            fingerprint,
        })
    }
}

/// Reads a hello.
///
/// # Errors
/// [`PeerMisbehaved::MalformedHello`] with the place.
pub fn decode_claims(body: Bytes) -> Result<Claims, PeerMisbehaved> {
    let mut reader = Reader::new("hello", body);
    let claims = reader.claims()?;
    reader.end()?;
    Ok(claims)
}

/// Reads an acceptor's answer.
///
/// # Errors
/// [`PeerMisbehaved::MalformedHello`] with the place.
pub fn decode_answer(body: Bytes) -> Result<HelloAnswer, PeerMisbehaved> {
    let mut reader = Reader::new("hello answer", body);
    let claims = reader.claims()?;
    let version = reader.u16()?;
    let session = SessionId::new(reader.u64()?);
    reader.end()?;
    Ok(HelloAnswer {
        claims,
        version,
        session,
    })
}

/// Cuts a text to what a notice may quote, at a character's edge.
fn quoted(text: &str) -> &str {
    let mut end = text.len().min(REFUSAL_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Writes the body of a refusal or a close.
#[must_use]
pub fn encode_notice(notice: &PeerNotice) -> BytesMut {
    let mut out = BytesMut::with_capacity(64);
    out.put_u16(notice.code.to_u16());
    for text in [&notice.expected, &notice.got] {
        let text = quoted(text);
        out.put_u16(u16::try_from(text.len()).unwrap_or(u16::MAX));
        out.put_slice(text.as_bytes());
    }
    out
}

/// Reads the body of a refusal or a close. Its texts are the peer's; characters that could
/// disturb a log line come out as spaces.
///
/// # Errors
/// [`PeerMisbehaved::MalformedHello`] with the place.
pub fn decode_notice(body: Bytes) -> Result<PeerNotice, PeerMisbehaved> {
    let mut reader = Reader::new("notice", body);
    let code = CloseCode::from_u16(reader.u16()?);
    let mut text = || {
        let bytes = usize::from(reader.u16()?);
        let text = reader.text(bytes, REFUSAL_TEXT_BYTES_MAX)?;
        Ok(text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect())
    };
    let (expected, got) = (text()?, text()?);
    reader.end()?;
    Ok(PeerNotice {
        code,
        expected,
        got,
    })
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, value)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
