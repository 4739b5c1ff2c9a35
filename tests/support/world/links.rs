//! A node's ends of its links, as the shell holds them: a lane towards each peer and class, the place
//! of a control frame, the sessions that others dialled, and what is said of a link's state.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use raft_host::id::{Boot, SendId};
use raft_host::proto::host::OutFrame;
use transport::budget::LaneAccount;
use transport::id::{LifeId, Sequence, SessionId};
use transport::proto::backoff::Backoff;
use transport::proto::fifo::KEY_BYTES;
use transport::proto::hello::{
    Claims, Fingerprint, KeyContext, PROTOCOL_VERSIONS, PeerLimits, SessionKeys,
};
use transport::proto::inbound::InboundSession;
use transport::proto::outbound::OutboundLane;
use transport::{ControlSource, FrameSpace, Label, Lane, PushRefused, Receipt, Waiting};

use super::dice::Dice;
use super::node::{cluster, incarnation, peer_id};
use super::shape::Shape;

/// Bytes handed to TLS and not yet to the socket, and the frame that ends with them.
pub type Unsent = VecDeque<(Bytes, Option<Sequence>)>;

/// One lane towards one peer.
#[derive(Debug)]
pub struct LaneEnd {
    /// The core.
    pub out: OutboundLane,
    /// What its items are reserved from.
    pub account: LaneAccount,
    /// The connection of the moment.
    pub connection: Option<u64>,
    /// What the socket has no room for.
    pub unsent: Unsent,
    /// Waits between dials.
    pub backoff: Backoff,
    /// A dial is under way or to come.
    pub dialling: bool,
    /// Bulk frames on their way.
    pub receipts: VecDeque<(SendId, u64, Receipt)>,
}

/// A node's end of its links with one peer.
#[derive(Debug)]
pub struct PeerEnd {
    /// Control, then bulk.
    pub lanes: [LaneEnd; 2],
    /// The place of the next control frame.
    pub outbox: Arc<Outbox>,
    /// The core has something for control.
    pub control_waits: bool,
    /// The core has something for bulk.
    pub bulk_waits: bool,
    /// Bytes of bulk frames on their way.
    pub bulk_on_the_way: u64,
    /// The life that has answered on this node's control session.
    pub answered: Option<Boot>,
    /// The control session that the peer dialled.
    pub inbound: Option<u64>,
    /// What the core was told.
    pub up: Option<Boot>,
}

/// A session that a peer dialled.
#[derive(Debug)]
pub struct InboundEnd {
    /// The core.
    pub session: InboundSession,
    /// Who dialled.
    pub peer: usize,
    /// What its hello said it carries.
    pub lane: Option<Lane>,
    /// What the socket has no room for.
    pub unsent: Unsent,
}

/// Where a lane stands in `lanes`.
#[must_use]
pub const fn place(lane: Lane) -> usize {
    match lane {
        Lane::Control => 0,
        Lane::Bulk => 1,
    }
}

impl PeerEnd {
    /// Without a connection.
    #[must_use]
    pub fn new(shape: &Shape, own: Boot, accounts: [LaneAccount; 2], dice: &mut Dice) -> Self {
        let outbox = Arc::new(Outbox::new(own, shape.timeouts.reply));
        let [control, bulk] = accounts;
        let mut end = |lane, account: LaneAccount| LaneEnd {
            out: OutboundLane::new(lane, account.clone(), shape.timeouts),
            account,
            connection: None,
            unsent: VecDeque::new(),
            backoff: Backoff::new(
                Duration::from_millis(10),
                Duration::from_millis(300),
                dice.draw(),
            ),
            dialling: false,
            receipts: VecDeque::new(),
        };
        let mut lanes = [end(Lane::Control, control), end(Lane::Bulk, bulk)];
        let source: Arc<dyn ControlSource> = outbox.clone();
        lanes[0].out.set_source(source);
        Self {
            lanes,
            outbox,
            control_waits: false,
            bulk_waits: false,
            bulk_on_the_way: 0,
            answered: None,
            inbound: None,
            up: None,
        }
    }
}

#[derive(Debug, Default)]
struct Place {
    frame: Option<OutFrame>,
    sent: VecDeque<(SendId, Receipt)>,
    refused: Vec<SendId>,
    /// The session on which the peer is to be asked for its life, and that was asked.
    ask: Option<u64>,
    asked: Option<(u64, Receipt)>,
}

/// The place from which the lane takes the next control frame.
#[derive(Debug)]
pub struct Outbox {
    own: Boot,
    limit: Duration,
    place: Mutex<Place>,
}

impl Outbox {
    fn new(own: Boot, limit: Duration) -> Self {
        Self {
            own,
            limit,
            place: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer is asked for its life on this session before anything else.
    pub fn ask_life(&self, session: u64) {
        self.lock().ask = Some(session);
    }

    /// Whether it is to be asked.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.lock().ask.is_some()
    }

    /// On which session the question for the peer's life has ended, and with which life, if any.
    pub fn pop_life(&self) -> Option<(u64, Option<Boot>)> {
        let mut place = self.lock();
        let (_, receipt) = place.asked.as_ref()?;
        let outcome = receipt.outcome()?;
        let (session, _) = place.asked.take()?;
        let transport::Outcome::Replied(answer) = outcome else {
            return Some((session, None));
        };
        Some((session, decode_life(&answer)))
    }

    /// Whether the place is free.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.lock().frame.is_none()
    }

    /// Puts a frame into it.
    pub fn put(&self, frame: OutFrame) {
        self.lock().frame = Some(frame);
    }

    /// The link is lost.
    pub fn clear(&self) {
        self.lock().frame = None;
    }

    /// A frame that has ended, and how; without an outcome it was never begun.
    pub fn pop_ended(&self) -> Option<(SendId, Option<transport::Outcome>)> {
        let mut place = self.lock();
        if let Some(id) = place.refused.pop() {
            return Some((id, None));
        }
        let at = place
            .sent
            .iter()
            .position(|(_, receipt)| receipt.outcome().is_some())?;
        let (id, receipt) = place.sent.remove(at)?;
        Some((id, receipt.outcome()))
    }
}

impl ControlSource for Outbox {
    fn fill(&self, frame: &mut FrameSpace<'_>) -> Waiting {
        let mut place = self.lock();
        let deadline = frame.now() + self.limit;
        if let Some(session) = place.ask {
            let Ok(receipt) = frame.push(encode_life(self.own), Label::NONE, deadline) else {
                return Waiting::More;
            };
            place.ask = None;
            place.asked = Some((session, receipt));
        }
        let Some(out) = place.frame.take() else {
            return Waiting::Nothing;
        };
        match frame.push(out.body.clone(), Label::NONE, deadline) {
            Ok(receipt) => {
                place.sent.push_back((out.id, receipt));
                Waiting::Nothing
            }
            Err(PushRefused::Send(_)) => {
                place.refused.push(out.id);
                Waiting::Nothing
            }
            Err(_) => {
                place.frame = Some(out);
                Waiting::More
            }
        }
    }
}

/// The mark of a life among the items of a control frame; no body of a shard begins with it.
const LIFE: u8 = 0xff;

/// Which life of a node this is, as an item: the shell's own word has the number of shards as well.
#[must_use]
pub fn encode_life(boot: Boot) -> Bytes {
    let mut out = vec![LIFE];
    out.extend_from_slice(&boot.to_u64().to_be_bytes());
    out.into()
}

/// The life in an item, if it is one.
#[must_use]
pub fn decode_life(item: &[u8]) -> Option<Boot> {
    let boot = item.strip_prefix(&[LIFE])?;
    boot.try_into()
        .ok()
        .map(|boot| Boot::new(u64::from_be_bytes(boot)))
}

/// What a node says of itself in a hello: of this start the boot, the life and how far the log was
/// synced.
///
/// # Panics
/// Never: the settings fit.
#[must_use]
pub fn claims(
    lane: Lane,
    (from, to): (usize, usize),
    start: (u64, LifeId, u64),
    window_frames: u16,
) -> Claims {
    let frame_bytes = transport::proto::frame::frame_body_bytes_max(lane);
    let (boots, life, sync_number) = start;
    Claims {
        versions: PROTOCOL_VERSIONS,
        cluster: cluster(),
        from: peer_id(from),
        to: peer_id(to),
        incarnation: incarnation(from),
        boot: transport::Boot::new(boots),
        life,
        sync_number,
        limits: PeerLimits {
            window_frames,
            window_bytes: 1 << 20,
            frame_bytes: u32::try_from(frame_bytes).unwrap_or(u32::MAX),
            frame_items: 4096,
        },
        fingerprint: Fingerprint::new([("groups", "sim")]).expect("settings that fit"),
    }
}

/// The keys of a session, drawn from its number in the place of a TLS exporter: other bytes for
/// every session, label and context.
#[must_use]
pub fn keys(session: u64, lane: Lane, dialler: usize, acceptor: usize) -> SessionKeys {
    let context = KeyContext {
        cluster: cluster(),
        lane,
        dialler: peer_id(dialler),
        acceptor: peer_id(acceptor),
    };
    let derived = SessionKeys::derive(&context, |label, context| {
        let mut seed = session;
        for byte in label.bytes().chain(context.iter().copied()) {
            seed = Dice::new(seed ^ u64::from(byte)).draw();
        }
        let (mut dice, mut key) = (Dice::new(seed), [0; KEY_BYTES]);
        for part in key.chunks_mut(8) {
            part.copy_from_slice(&dice.draw().to_be_bytes());
        }
        Ok::<_, std::convert::Infallible>(key)
    });
    let Ok(keys) = derived;
    keys
}

/// A session's name.
#[must_use]
pub const fn session_of(connection: u64) -> SessionId {
    SessionId::new(connection)
}
