//! The transport's wire as `plans/wire.md` tells it, written again from that page: messages,
//! bodies, tags, the exporter's contexts. It shares no code with `transport`, so that a mistake in
//! either shows as a disagreement; `it/rogue.rs` holds it against the vectors.
//!
//! Everything can be built wrong: a message's fields are plain numbers, and what was encoded is
//! bytes that a test may change.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// Bytes before a body.
pub const HEADER_BYTES: usize = 24;
/// Bytes behind a body.
pub const TAG_BYTES: usize = 16;
/// The version of the framing.
pub const VERSION: u8 = 1;
/// The number of the control lane.
pub const CONTROL: u8 = 1;
/// The number of the bulk lane.
pub const BULK: u8 = 2;

/// The kinds of messages, by number.
pub mod kind {
    /// The dialler's first message.
    pub const HELLO: u8 = 1;
    /// The acceptor's first message.
    pub const ANSWER: u8 = 2;
    /// The acceptor's only message, where it won't have the dialler.
    pub const REFUSAL: u8 = 3;
    /// What the dialler sends once the session is up.
    pub const FRAME: u8 = 4;
    /// What the acceptor sends for each frame.
    pub const REPLY: u8 = 5;
    /// Reserved.
    pub const CONFIRM: u8 = 6;
    /// The last message of a direction.
    pub const CLOSE: u8 = 7;
}

/// A session's key for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 32]);

impl Key {
    /// The tag of `covered`, which is header and body, as message `sequence`.
    ///
    /// # Panics
    /// When the crypto library fails.
    #[must_use]
    pub fn tag(&self, sequence: u64, covered: &[u8]) -> [u8; TAG_BYTES] {
        let key = UnboundKey::new(&AES_256_GCM, &self.0).expect("a key of 32 bytes");
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&sequence.to_be_bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed =
            LessSafeKey::new(key).seal_in_place_separate_tag(nonce, Aad::from(covered), &mut []);
        let tag = sealed.expect("a tag");
        tag.as_ref().try_into().expect("a tag of 16 bytes")
    }
}

/// The three keys of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// For the hello, its answer and the refusal.
    pub hello: Key,
    /// For what the dialler sends afterwards.
    pub frame: Key,
    /// For what the acceptor sends afterwards.
    pub reply: Key,
}

impl Keys {
    /// Asks an exporter for each: label, context, the key to fill.
    pub fn draw(context: &[u8], mut exporter: impl FnMut(&[u8], &[u8]) -> [u8; 32]) -> Self {
        let mut draw = |label: &str| Key(exporter(label.as_bytes(), context));
        Self {
            hello: draw("mraft1 hello"),
            frame: draw("mraft1 frame"),
            reply: draw("mraft1 reply"),
        }
    }
}

/// The exporter's context.
///
/// # Panics
/// For a cluster name that no length byte can say.
#[must_use]
pub fn context(cluster: &str, lane: u8, dialler: u32, acceptor: u32) -> Vec<u8> {
    let mut context = Vec::new();
    put_text8(&mut context, cluster);
    context.push(lane);
    context.extend(dialler.to_be_bytes());
    context.extend(acceptor.to_be_bytes());
    context
}

fn put_text8(out: &mut Vec<u8>, text: &str) {
    out.push(u8::try_from(text.len()).expect("a short text"));
    out.extend(text.as_bytes());
}

fn put_text16(out: &mut Vec<u8>, text: &str) {
    out.extend(u16::try_from(text.len()).expect("a text").to_be_bytes());
    out.extend(text.as_bytes());
}

/// A message, its length and tag aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: u8,
    /// Of the framing.
    pub version: u8,
    /// The session's.
    pub lane: u8,
    /// How a reply's body is laid out, else 0.
    pub form: u8,
    /// Its number under its key.
    pub sequence: u64,
    /// By kind.
    pub word: u64,
    /// By kind.
    pub body: Vec<u8>,
}

impl Message {
    /// A message of this kind with nothing special about it.
    #[must_use]
    pub const fn new(kind: u8, lane: u8, sequence: u64, body: Vec<u8>) -> Self {
        Self {
            kind,
            version: VERSION,
            lane,
            form: 0,
            sequence,
            word: 0,
            body,
        }
    }

    /// A frame with these items and so many milliseconds left.
    #[must_use]
    pub fn frame(lane: u8, sequence: u64, remaining_ms: u32, items: &[&[u8]]) -> Self {
        Self {
            word: frame_word(remaining_ms, items.len()),
            ..Self::new(kind::FRAME, lane, sequence, frame_body(items))
        }
    }

    /// A reply to frame `answers`.
    #[must_use]
    pub fn reply(lane: u8, sequence: u64, answers: u64, form: u8, body: Vec<u8>) -> Self {
        Self {
            form,
            word: answers,
            ..Self::new(kind::REPLY, lane, sequence, body)
        }
    }

    /// A close, or with `kind` a refusal.
    #[must_use]
    pub fn notice(kind: u8, lane: u8, sequence: u64, code: u16, expected: &str, got: &str) -> Self {
        let mut body = code.to_be_bytes().to_vec();
        put_text16(&mut body, expected);
        put_text16(&mut body, got);
        Self::new(kind, lane, sequence, body)
    }

    /// The header and the body.
    ///
    /// # Panics
    /// For a body longer than a length can say.
    #[must_use]
    pub fn covered(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind, self.version, self.lane, self.form];
        let length = u32::try_from(self.body.len()).expect("a body");
        bytes.extend(length.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.word.to_be_bytes());
        bytes.extend(&self.body);
        bytes
    }

    /// The whole message.
    #[must_use]
    pub fn sealed(&self, key: &Key) -> Vec<u8> {
        let mut bytes = self.covered();
        let tag = key.tag(self.sequence, &bytes);
        bytes.extend(tag);
        bytes
    }

    /// The first whole message of `bytes` and how many bytes it has, if one is whole.
    ///
    /// # Panics
    /// Never for bytes of any content.
    #[must_use]
    pub fn first_of(bytes: &[u8]) -> Option<(Self, usize)> {
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&header[at..at + 8]);
            u64::from_be_bytes(number)
        };
        let length = (number(0) & u64::from(u32::MAX)) as usize;
        let body = bytes.get(HEADER_BYTES..HEADER_BYTES + length)?.to_vec();
        let whole = HEADER_BYTES + length + TAG_BYTES;
        let [kind, version, lane, form, ..] = *header;
        let message = Self {
            kind,
            version,
            lane,
            form,
            sequence: number(8),
            word: number(16),
            body,
        };
        (bytes.len() >= whole).then_some((message, whole))
    }

    /// The items of a frame.
    ///
    /// # Panics
    /// When the body doesn't divide into them.
    #[must_use]
    pub fn items(&self) -> Vec<Vec<u8>> {
        let (mut items, mut rest) = (Vec::new(), &self.body[..]);
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let (item, after) = after.split_at(u32::from_be_bytes(*length) as usize);
            items.push(item.to_vec());
            rest = after;
        }
        assert!(
            rest.is_empty(),
            "items that fill the body: {rest:?} is left"
        );
        assert_eq!(
            items.len() as u64,
            self.word >> 16 & 0xffff,
            "the header's number"
        );
        items
    }

    /// The code of a close or refusal.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn code(&self) -> u16 {
        u16::from_be_bytes(*self.body.first_chunk().expect("a code"))
    }
}

/// A frame's word.
#[must_use]
pub const fn frame_word(remaining_ms: u32, items: usize) -> u64 {
    (remaining_ms as u64) << 32 | (items as u64) << 16
}

/// A frame's body.
///
/// # Panics
/// For an item longer than a prefix can say.
#[must_use]
pub fn frame_body(items: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    for item in items {
        body.extend(u32::try_from(item.len()).expect("an item").to_be_bytes());
        body.extend(*item);
    }
    body
}

/// What a hello claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The lowest and highest protocol version.
    pub versions: [u16; 2],
    /// The claimed node.
    pub from: u32,
    /// The node it is for.
    pub to: u32,
    /// Of its data directory.
    pub incarnation: [u8; 16],
    /// How often that was started.
    pub boot: u64,
    /// Which life that start began.
    pub life: u64,
    /// Of its log as that life opened it.
    pub sync_number: u64,
    /// Control frames that may be outstanding.
    pub window_frames: u16,
    /// Items of a frame.
    pub frame_items: u16,
    /// Bytes of a frame's body.
    pub frame_bytes: u32,
    /// Bulk bytes that may be outstanding.
    pub window_bytes: u64,
    /// The claimed cluster.
    pub cluster: String,
    /// Cluster settings.
    pub settings: Vec<(String, String)>,
}

impl Hello {
    /// Its body.
    ///
    /// # Panics
    /// For texts longer than a length byte can say.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.versions[0].to_be_bytes());
        body.extend(self.versions[1].to_be_bytes());
        body.extend(self.from.to_be_bytes());
        body.extend(self.to.to_be_bytes());
        body.extend(self.incarnation);
        body.extend(self.boot.to_be_bytes());
        body.extend(self.life.to_be_bytes());
        body.extend(self.sync_number.to_be_bytes());
        body.extend(self.window_frames.to_be_bytes());
        body.extend(self.frame_items.to_be_bytes());
        body.extend(self.frame_bytes.to_be_bytes());
        body.extend(self.window_bytes.to_be_bytes());
        put_text8(&mut body, &self.cluster);
        body.push(u8::try_from(self.settings.len()).expect("few settings"));
        for (name, value) in &self.settings {
            put_text8(&mut body, name);
            put_text8(&mut body, value);
        }
        body
    }

    /// The body of an answer with these claims.
    #[must_use]
    pub fn answer_body(&self, version: u16, session: u64) -> Vec<u8> {
        let mut body = self.body();
        body.extend(version.to_be_bytes());
        body.extend(session.to_be_bytes());
        body
    }
}
