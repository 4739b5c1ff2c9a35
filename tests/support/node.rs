//! A transport with a host that the test plays: each frame that comes in is handed to the test with
//! its slot, and stays unanswered until the test answers it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc};
use transport::budget::Amount;
use transport::config::RawTuning;
use transport::io::{Event, Status, clock};
use transport::proto::authority::Contact;
use transport::{
    Answer, Boot, Config, Credentials, Fingerprint, Frame, Inbound, Incarnation, Lane, LifeId,
    PeerId, Receipt, ReplySlot, SendOptions, Transport, Verified,
};

use crate::certs::{Fleet, node};
use crate::relay::{Line, Relay};
use crate::{log_to_test, soon};

/// A frame as the host got it, and where its answer goes.
#[derive(Debug)]
pub struct Delivery {
    /// Who sent it.
    pub peer: PeerId,
    /// On which lane.
    pub lane: Lane,
    /// The frame.
    pub frame: Verified<Frame>,
    /// Its one answer.
    pub slot: ReplySlot,
}

struct Handed(mpsc::Sender<Delivery>);

/// Deliveries that a test may leave lying; a host that ran out of room is busy.
const DELIVERIES_MAX: usize = 4096;

impl Inbound for Handed {
    fn deliver(&self, peer: PeerId, lane: Lane, frame: Verified<Frame>, slot: ReplySlot) {
        if let Err(mpsc::error::TrySendError::Full(delivery)) = self.0.try_send(Delivery {
            peer,
            lane,
            frame,
            slot,
        }) {
            delivery.slot.refuse(transport::RefusalReason::Busy);
        }
    }
}

/// How a node is started, where it differs from the usual.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// The other nodes and where they are.
    pub peers: BTreeMap<u32, SocketAddr>,
    /// The transport's settings.
    pub tuning: RawTuning,
    /// The cluster settings.
    pub fingerprint: Vec<(String, String)>,
    /// Where to listen; a free port if there is none.
    pub listen: Option<SocketAddr>,
    /// How often its folder was started.
    pub boot: u64,
}

/// A running transport and what came in on it.
#[derive(Debug)]
pub struct TestNode {
    /// The transport.
    pub transport: Transport,
    /// What came in.
    pub deliveries: mpsc::Receiver<Delivery>,
    /// What happened to its links.
    pub events: broadcast::Receiver<Event>,
}

/// A port of loopback that was free a moment ago.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address")
}

impl TestNode {
    /// Starts a node of the fleet.
    ///
    /// # Panics
    /// When it doesn't start.
    pub async fn start(fleet: &Fleet, number: u32, options: NodeOptions) -> Self {
        Self::start_with(fleet.credentials(number), options).await
    }

    /// Starts a node with these credentials.
    ///
    /// # Panics
    /// When it doesn't start.
    pub async fn start_with(credentials: Credentials, options: NodeOptions) -> Self {
        log_to_test();
        let identity = credentials.facts().identity.clone();
        let number = u8::try_from(identity.node.to_u32()).expect("a small node number");
        let peers = options.peers.iter();
        let config = Config {
            identity,
            incarnation: Incarnation::new([number; 16]),
            boot: Boot::new(options.boot),
            life: LifeId::draw(),
            listen: options.listen.unwrap_or_else(|| ([127, 0, 0, 1], 0).into()),
            peers: peers
                .map(|(&peer, address)| (node(peer), address.to_string()))
                .collect(),
            fingerprint: Fingerprint::new(options.fingerprint).expect("a fingerprint"),
            sync_number: 0,
            contact: Contact::default(),
            records: BTreeMap::new(),
            tuning: options.tuning.try_into().expect("a tuning"),
        };
        let (sender, deliveries) = mpsc::channel(DELIVERIES_MAX);
        let host = Arc::new(Handed(sender));
        let transport = Transport::start(config, credentials, host)
            .await
            .expect("a transport");
        let events = transport.subscribe();
        Self {
            transport,
            deliveries,
            events,
        }
    }

    /// Two nodes of a fleet that know each other, with these settings.
    pub async fn pair(fleet: &Fleet, tuning: RawTuning) -> (Self, Self) {
        let (one, two) = (free_address(), free_address());
        let options = |listen, peer, address| NodeOptions {
            peers: BTreeMap::from([(peer, address)]),
            tuning,
            listen: Some(listen),
            ..NodeOptions::default()
        };
        let first = Self::start(fleet, 1, options(one, 2, two)).await;
        let second = Self::start(fleet, 2, options(two, 1, one)).await;
        (first, second)
    }

    /// Two nodes, the first dialling the second by way of a relay with a line like this, until its
    /// bulk session is up. Control is dialled first, so bulk is the relay's second connection.
    pub async fn pair_over(fleet: &Fleet, line: Line, tuning: RawTuning) -> (Self, Self, Relay) {
        let two_listens = free_address();
        let relay = Relay::with_line(two_listens, line);
        let options = |peer, address| NodeOptions {
            peers: BTreeMap::from([(peer, address)]),
            ..NodeOptions::default()
        };
        let second = NodeOptions {
            listen: Some(two_listens),
            ..options(1, free_address())
        };
        let two = Self::start(fleet, 2, second).await;
        let first = NodeOptions {
            tuning,
            ..options(2, relay.address())
        };
        let mut one = Self::start(fleet, 1, first).await;
        one.event("a bulk session", |event| {
            let up = matches!(
                event,
                Event::SessionUp {
                    lane: Lane::Bulk,
                    ..
                }
            );
            up.then_some(())
        })
        .await;
        (one, two, relay)
    }

    /// Stops a pair; see [`TestNode::stop`].
    pub async fn stop_both(one: Self, two: Self) {
        drop((one.stop().await, two.stop().await));
    }

    /// Sends one item with a minute's deadline.
    ///
    /// # Panics
    /// When there is no room.
    pub fn send(&self, peer: u32, lane: Lane, payload: impl Into<Bytes>) -> Receipt {
        self.send_until(peer, lane, payload, Duration::from_secs(60))
    }

    /// Sends one item that expires after `limit`.
    ///
    /// # Panics
    /// When there is no room.
    pub fn send_until(
        &self,
        peer: u32,
        lane: Lane,
        payload: impl Into<Bytes>,
        limit: Duration,
    ) -> Receipt {
        let payload = payload.into();
        let amount = Amount::new(1, payload.len() as u64);
        let peer = self.transport.peer(node(peer)).expect("a peer");
        let mut room = peer.try_reserve(lane, amount).expect("room");
        room.send(payload, SendOptions::until(clock::now() + limit))
            .expect("a receipt")
    }

    /// The next frame that came in.
    ///
    /// # Panics
    /// When none comes.
    pub async fn delivery(&mut self) -> Delivery {
        soon("a frame", self.deliveries.recv())
            .await
            .expect("a running node")
    }

    /// The next frame, answered with its own items; gives them.
    ///
    /// # Panics
    /// When none comes.
    pub async fn echo(&mut self) -> Vec<Bytes> {
        let Delivery { frame, slot, .. } = self.delivery().await;
        let items = frame.into_items();
        slot.answer(Answer::PerItem(items.iter().cloned().map(Ok).collect()));
        items
    }

    /// The first event from now on, or of those not looked at, that `wanted` makes something of.
    ///
    /// # Panics
    /// When none comes.
    pub async fn event<T>(&mut self, what: &str, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        let found = async {
            loop {
                match self.events.recv().await {
                    Ok(event) => {
                        if let Some(found) = wanted(&event) {
                            return found;
                        }
                    }
                    Err(broadcast::error::RecvError::Lagged(missed)) => {
                        panic!("missed {missed} events while waiting for {what}")
                    }
                    Err(broadcast::error::RecvError::Closed) => panic!("no {what}: it stopped"),
                }
            }
        };
        soon(what, found).await
    }

    /// Stops it and gives its last status, after checking that every account is exact and empty.
    ///
    /// # Panics
    /// When one isn't.
    pub async fn stop(self) -> Status {
        let stopping = self.transport.shut_down(Duration::from_secs(5));
        let status = soon("a stopped transport", stopping).await;
        for lane in &status.lanes {
            assert!(lane.account.is_exact(), "started = ended + live: {lane:?}");
            assert_eq!(
                lane.account.reserved(),
                Amount::default(),
                "nothing is left: {lane:?}"
            );
            assert_eq!(lane.outstanding_frames, 0, "no slot is left: {lane:?}");
        }
        assert!(
            status.inbound.is_empty(),
            "no session is left: {:?}",
            status.inbound
        );
        status
    }
}
