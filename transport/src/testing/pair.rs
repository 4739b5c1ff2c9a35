//! Names, claims and keys for the core's tests, and a [`Pair`]: a lane's two cores joined by two
//! streams of bytes, each with a socket buffer of a given size, so that "begun" and "written" come
//! apart as they do on a full socket.
//!
//! Invariant: no key and nonce tag two messages, over all sessions of a pair. Every message that
//! either core hands over is checked for it.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use aws_lc_rs::digest;
use bytes::{Bytes, BytesMut};

use super::{LONG, ample, item, start};
use crate::budget::{Budget, BudgetLimits, LaneAccount};
use crate::error::SessionEnd;
use crate::id::{
    Boot, ClusterName, Incarnation, Lane, LifeId, NodeIdentity, PeerId, Sequence, SessionId,
};
use crate::limits::HEADER_BYTES;
use crate::proto::authority::Authority;
use crate::proto::fifo::{KEY_BYTES, Stamper, TagKey};
use crate::proto::frame::{
    Answer, Header, Kind, ReplyForm, Side, frame_body_bytes_max, frame_word,
};
use crate::proto::hello::{
    Claims, Fingerprint, KEY_LABELS, KeyContext, PROTOCOL_VERSIONS, PeerLimits, SessionKeys,
};
use crate::proto::inbound::{Accepted, InboundEvent, InboundSession};
use crate::proto::outbound::{LaneTimeouts, OutboundEvent, OutboundLane};
use crate::receipt::Receipt;

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn peer(number: u32) -> PeerId {
    PeerId::new(number).unwrap()
}

pub(crate) fn cluster(name: &str) -> ClusterName {
    name.parse().unwrap()
}

pub(crate) fn identity(number: u32) -> NodeIdentity {
    NodeIdentity {
        cluster: cluster("dev"),
        node: peer(number),
    }
}

pub(crate) fn limits(lane: Lane) -> PeerLimits {
    PeerLimits {
        window_frames: 16,
        window_bytes: 4 << 20,
        frame_bytes: u32::try_from(frame_body_bytes_max(lane)).unwrap(),
        frame_items: 4096,
    }
}

pub(crate) fn claims(lane: Lane, from: u32, to: u32) -> Claims {
    Claims {
        versions: PROTOCOL_VERSIONS,
        cluster: cluster("dev"),
        from: peer(from),
        to: peer(to),
        incarnation: Incarnation::new([u8::try_from(from).unwrap(); 16]),
        boot: Boot::new(1),
        life: LifeId::from_random(u64::from(from)),
        sync_number: 0,
        limits: limits(lane),
        fingerprint: Fingerprint::new([("groups", "1500"), ("lease", "9s")]).unwrap(),
    }
}

/// A stand-in for a TLS session's exporter: as the real one it gives other bytes for every session,
/// label and context.
pub(crate) fn export(session: u64, label: &str, context: &[u8]) -> [u8; KEY_BYTES] {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(&session.to_be_bytes());
    hash.update(&[u8::try_from(label.len()).unwrap()]);
    hash.update(label.as_bytes());
    hash.update(context);
    hash.finish().as_ref().try_into().unwrap()
}

pub(crate) fn key_context(lane: Lane) -> KeyContext {
    KeyContext {
        cluster: cluster("dev"),
        lane,
        dialler: peer(1),
        acceptor: peer(2),
    }
}

pub(crate) fn keys(session: u64, lane: Lane) -> SessionKeys {
    let derived = SessionKeys::derive(&key_context(lane), |label, context| {
        Ok::<_, std::convert::Infallible>(export(session, label, context))
    });
    match derived {
        Ok(keys) => keys,
        Err(never) => match never {},
    }
}

/// One direction of a connection: what TLS holds, then what the kernel holds.
#[derive(Debug)]
pub(crate) struct Wire {
    /// Taken by TLS and not by the socket.
    pub(crate) unsent: VecDeque<u8>,
    /// Accepted by the socket and not yet read.
    pub(crate) socket: VecDeque<u8>,
    /// What the socket holds at most.
    pub(crate) capacity: usize,
    begun: u64,
    accepted: u64,
    /// Frames by the place of their last byte.
    ends: VecDeque<(u64, Sequence)>,
}

impl Wire {
    fn new(capacity: usize) -> Self {
        Self {
            unsent: VecDeque::new(),
            socket: VecDeque::new(),
            capacity,
            begun: 0,
            accepted: 0,
            ends: VecDeque::new(),
        }
    }

    fn begin(&mut self, bytes: &[u8], frame: Option<Sequence>) {
        self.unsent.extend(bytes);
        self.begun += bytes.len() as u64;
        if let Some(frame) = frame {
            self.ends.push_back((self.begun, frame));
        }
    }

    /// Moves up to `max` bytes to the socket; gives the frames whose last byte was among them.
    fn write(&mut self, max: usize) -> Vec<Sequence> {
        let room = self.capacity.saturating_sub(self.socket.len());
        let bytes = max.min(room).min(self.unsent.len());
        self.socket.extend(self.unsent.drain(..bytes));
        self.accepted += bytes as u64;
        let whole = self.ends.partition_point(|(end, _)| *end <= self.accepted);
        self.ends.drain(..whole).map(|(_, frame)| frame).collect()
    }

    fn read(&mut self, max: usize) -> Vec<u8> {
        let bytes = max.min(self.socket.len());
        self.socket.drain(..bytes).collect()
    }
}

/// A lane's two cores and what joins them. Node 1 dials node 2.
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) lane: Lane,
    pub(crate) account: LaneAccount,
    pub(crate) out: OutboundLane,
    pub(crate) inbound: Option<InboundSession>,
    pub(crate) dialler: Claims,
    pub(crate) acceptor: Claims,
    pub(crate) dialler_judge: Authority,
    pub(crate) acceptor_judge: Authority,
    pub(crate) forward: Wire,
    pub(crate) back: Wire,
    pub(crate) capacity: usize,
    /// The number of the last session, and the seed of its keys.
    pub(crate) session: u64,
    /// Every key and nonce that tagged a message.
    tagged: BTreeSet<([u8; KEY_BYTES], u64)>,
    /// What the acceptor's host was told, in order.
    pub(crate) delivered: Vec<InboundEvent>,
    /// What the dialler's shell was told, in order.
    pub(crate) events: Vec<OutboundEvent>,
}

pub(crate) const TIMEOUTS: LaneTimeouts = LaneTimeouts {
    hello: Duration::from_secs(5),
    reply: Duration::from_secs(3),
    stall: Duration::from_secs(10),
};

/// Time limits that never run out.
pub(crate) const PATIENT: LaneTimeouts = LaneTimeouts {
    hello: LONG,
    reply: LONG,
    stall: LONG,
};

impl Pair {
    pub(crate) fn new(lane: Lane, timeouts: LaneTimeouts) -> Self {
        Self::with_budget(lane, timeouts, ample())
    }

    pub(crate) fn with_budget(lane: Lane, timeouts: LaneTimeouts, limits: BudgetLimits) -> Self {
        let budget = Budget::new(limits);
        let [control, bulk] = budget.open_peer();
        let account = match lane {
            Lane::Control => control,
            Lane::Bulk => bulk,
        };
        Self {
            now: start(),
            lane,
            out: OutboundLane::new(lane, account.clone(), timeouts),
            account,
            inbound: None,
            dialler: claims(lane, 1, 2),
            acceptor: claims(lane, 2, 1),
            dialler_judge: Authority::new(identity(1), [peer(2)]),
            acceptor_judge: Authority::new(identity(2), [peer(1)]),
            forward: Wire::new(usize::MAX),
            back: Wire::new(usize::MAX),
            capacity: usize::MAX,
            session: 0,
            tagged: BTreeSet::new(),
            delivered: Vec::new(),
            events: Vec::new(),
        }
    }

    /// A pair whose session is up.
    pub(crate) fn up(lane: Lane, timeouts: LaneTimeouts) -> Self {
        let mut pair = Self::new(lane, timeouts);
        pair.connect();
        pair
    }

    /// Begins a session at both ends; nothing has moved yet.
    pub(crate) fn dial(&mut self) {
        self.session += 1;
        self.forward = Wire::new(self.capacity);
        self.back = Wire::new(self.capacity);
        self.out.begin_session(
            self.now,
            self.dialler.clone(),
            identity(2),
            keys(self.session, self.lane),
        );
        self.inbound = Some(InboundSession::new(
            self.now,
            Accepted {
                claims: self.acceptor.clone(),
                certified: identity(1),
                keys: Lane::ALL.map(|lane| keys(self.session, lane)),
                session: SessionId::new(self.session),
                hello_timeout: TIMEOUTS.hello,
            },
        ));
    }

    /// Begins a session and lets the hellos through, which is all that moves.
    pub(crate) fn connect(&mut self) {
        self.dial();
        assert!(self.transmit(), "the hello");
        self.write(usize::MAX);
        self.read(usize::MAX).unwrap();
        assert!(self.transmit_back(), "the answer");
        self.back.write(usize::MAX);
        let bytes = self.back.read(usize::MAX);
        self.out.handle_bytes(self.now, &bytes);
        assert!(self.step().unwrap(), "the lane comes up");
        assert!(self.out.is_up());
    }

    fn record(&mut self, from: Side, bytes: &[u8]) {
        let first: &[u8; HEADER_BYTES] = bytes.first_chunk().unwrap();
        let reader = match from {
            Side::Dialler => Side::Acceptor,
            Side::Acceptor => Side::Dialler,
        };
        let header = Header::decode(first, reader, Some(self.lane)).unwrap();
        let hello = matches!(header.kind, Kind::Hello | Kind::HelloAnswer | Kind::Refusal);
        let label = match from {
            _ if hello => KEY_LABELS[0],
            Side::Dialler => KEY_LABELS[1],
            Side::Acceptor => KEY_LABELS[2],
        };
        let key = export(self.session, label, &key_context(self.lane).to_bytes());
        let fresh = self.tagged.insert((key, header.sequence.to_u64()));
        assert!(fresh, "{label} nonce {} used twice", header.sequence);
    }

    /// How many messages were tagged over all sessions.
    pub(crate) fn tagged(&self) -> usize {
        self.tagged.len()
    }

    /// Takes one message of the dialler into TLS.
    pub(crate) fn transmit(&mut self) -> bool {
        let Some(transmit) = self.out.poll_transmit(self.now) else {
            return false;
        };
        self.record(Side::Dialler, &transmit.bytes);
        self.forward.begin(&transmit.bytes, transmit.frame);
        true
    }

    /// Takes all that the dialler may begin into TLS; says how many messages that was.
    pub(crate) fn transmit_all(&mut self) -> usize {
        let mut count = 0;
        while self.transmit() {
            count += 1;
        }
        count
    }

    /// The dialler's socket accepts up to so many bytes.
    pub(crate) fn write(&mut self, max: usize) {
        for frame in self.forward.write(max) {
            self.out.on_written(frame);
        }
    }

    /// The acceptor reads up to so many bytes and acts on all of them.
    pub(crate) fn read(&mut self, max: usize) -> Result<(), SessionEnd> {
        let bytes = self.forward.read(max);
        let session = self.inbound.as_mut().unwrap();
        session.handle_bytes(self.now, &bytes);
        while let Some(event) = session.step(self.now, &mut self.acceptor_judge)? {
            self.delivered.push(event);
        }
        Ok(())
    }

    pub(crate) fn answer(&mut self, sequence: u64, answer: Answer) {
        let session = self.inbound.as_mut().unwrap();
        session.answer(Sequence::new(sequence), answer);
    }

    /// Takes one message of the acceptor into TLS.
    pub(crate) fn transmit_back(&mut self) -> bool {
        let bytes = self.inbound.as_mut().unwrap().poll_transmit().unwrap();
        let Some(bytes) = bytes else { return false };
        self.record(Side::Acceptor, &bytes);
        self.back.begin(&bytes, None);
        true
    }

    pub(crate) fn transmit_back_all(&mut self) -> usize {
        let mut count = 0;
        while self.transmit_back() {
            count += 1;
        }
        count
    }

    pub(crate) fn write_back(&mut self, max: usize) {
        self.back.write(max);
    }

    /// The dialler reads up to so many bytes and looks at none of them.
    pub(crate) fn fetch_back(&mut self, max: usize) {
        let bytes = self.back.read(max);
        self.out.handle_bytes(self.now, &bytes);
    }

    /// The dialler acts on one message.
    pub(crate) fn step(&mut self) -> Result<bool, SessionEnd> {
        let event = self.out.step(self.now, &mut self.dialler_judge)?;
        let any = event.is_some();
        self.events.extend(event);
        Ok(any)
    }

    /// The dialler reads up to so many bytes, in turns with what it may begin.
    pub(crate) fn read_back(&mut self, max: usize) -> Result<(), SessionEnd> {
        self.fetch_back(max);
        while self.step()? {
            self.transmit_all();
        }
        Ok(())
    }

    /// Everything that can move does, except the host's answers.
    pub(crate) fn settle(&mut self) {
        loop {
            let moved = self.transmit_all() + self.transmit_back_all();
            let before = self.forward.unsent.len() + self.back.unsent.len();
            self.write(usize::MAX);
            self.write_back(usize::MAX);
            let read = self.forward.socket.len() + self.back.socket.len();
            self.read(usize::MAX).unwrap();
            self.read_back(usize::MAX).unwrap();
            let after = self.forward.unsent.len() + self.back.unsent.len();
            if moved == 0 && before == after && read == 0 {
                return;
            }
        }
    }

    /// Sends one item to the lane.
    pub(crate) fn send(&mut self, payload: impl Into<Bytes>, deadline: Duration) -> Receipt {
        self.send_labelled(payload, 0, deadline)
    }

    pub(crate) fn send_labelled(
        &mut self,
        payload: impl Into<Bytes>,
        label: u64,
        deadline: Duration,
    ) -> Receipt {
        let (item, receipt) = item(&self.account, payload, label, self.now + deadline);
        self.out.push(self.now, item);
        receipt
    }

    /// Sends one item for a frame of its own and begins that frame.
    pub(crate) fn send_frame(&mut self, payload: impl Into<Bytes>) -> Receipt {
        let receipt = self.send(payload, LONG);
        assert!(self.transmit(), "a slot is free");
        receipt
    }

    pub(crate) fn lose(&mut self, end: &SessionEnd) {
        self.out.end_session(end);
        self.inbound = None;
    }

    /// The sequences and payloads that reached the host.
    pub(crate) fn frames(&self) -> Vec<(u64, Vec<Bytes>)> {
        let frames = self.delivered.iter().filter_map(|event| match event {
            InboundEvent::Frame(frame) => Some((frame.sequence().to_u64(), frame.items().to_vec())),
            InboundEvent::Up { .. } | InboundEvent::Late(_) => None,
        });
        frames.collect()
    }
}

/// A message with a right tag under `key`, as a peer that means harm could write it.
pub(crate) fn message(key: &TagKey, header: Header, body: &[u8]) -> BytesMut {
    let mut stamper = Stamper::new(key.clone(), header.sequence);
    let (_, bytes) = stamper.stamp_body(header, body).unwrap();
    BytesMut::from(&bytes[..])
}

/// The header of a frame of `items` items with all the time there is.
pub(crate) fn frame_header(lane: Lane, sequence: u64, items: u16, body: &[u8]) -> Header {
    Header {
        kind: Kind::Frame,
        lane,
        form: 0,
        body_bytes: u32::try_from(body.len()).unwrap(),
        sequence: Sequence::new(sequence),
        word: frame_word(LONG, items),
    }
}

/// The header of a reply.
pub(crate) fn reply_header(
    lane: Lane,
    sequence: u64,
    answers: u64,
    form: ReplyForm,
    body: &[u8],
) -> Header {
    Header {
        kind: Kind::Reply,
        lane,
        form: form as u8,
        body_bytes: u32::try_from(body.len()).unwrap(),
        sequence: Sequence::new(sequence),
        word: answers,
    }
}

/// The header of a kind with neither form nor word.
pub(crate) fn plain_header(kind: Kind, lane: Lane, sequence: u64, body: &[u8]) -> Header {
    Header {
        kind,
        lane,
        form: 0,
        body_bytes: u32::try_from(body.len()).unwrap(),
        sequence: Sequence::new(sequence),
        word: 0,
    }
}
