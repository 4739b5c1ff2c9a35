//! What a transport is started with. [`RawTuning`] is what a file says, [`Tuning`] what has been
//! checked: it can't hold a set of values that contradict each other. Nothing is repaired in
//! silence.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

use crate::budget::{Amount, BudgetLimits};
use crate::id::{Boot, Incarnation, Lane, LifeId, NodeIdentity, PeerId};
use crate::limits::{
    BULK_BODY_BYTES_MAX, BULK_STALL, BULK_WINDOW_BYTES_DEFAULT, CONTROL_WINDOW_FRAMES_DEFAULT,
    CONTROL_WINDOW_FRAMES_MAX, DIALBACK_TIMEOUT_DEFAULT, FRAME_ITEMS_MAX, HANDSHAKE_TIMEOUT,
    NODE_BUDGET_BYTES_DEFAULT, NODE_BUDGET_ITEMS, PEER_BUDGET_BYTES_DEFAULT, PEER_BUDGET_ITEMS,
    PEERS_MAX, REPLY_TIMEOUT_DEFAULT,
};
use crate::proto::authority::{Contact, NodeRecord};
use crate::proto::frame::frame_body_bytes_max;
use crate::proto::hello::{Fingerprint, PeerLimits};

/// Why a configuration is refused; each names the settings that are at odds and their values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A control window that isn't one.
    #[error("control_window_frames = {got} is outside of 1 to {CONTROL_WINDOW_FRAMES_MAX}")]
    ControlWindow {
        /// The value.
        got: u16,
    },
    /// A bulk window that no full frame fits.
    #[error(
        "bulk_window_bytes = {got} is below the largest bulk frame, {BULK_BODY_BYTES_MAX} bytes"
    )]
    BulkWindow {
        /// The value.
        got: u64,
    },
    /// A peer's budget that can't fill its bulk window.
    #[error(
        "peer_budget_bytes = {budget} is below twice bulk_window_bytes = {window}: \
         a full window would leave nothing to queue"
    )]
    PeerBudgetBelowWindow {
        /// The budget.
        budget: u64,
        /// The window.
        window: u64,
    },
    /// A node's budget below one peer's.
    #[error("node_budget_bytes = {node} is below peer_budget_bytes = {peer}")]
    NodeBudgetBelowPeer {
        /// The node's.
        node: u64,
        /// A peer's.
        peer: u64,
    },
    /// A time limit of nothing.
    #[error("{name} = 0 would end every session at once")]
    ZeroTimeout {
        /// The setting.
        name: &'static str,
    },
    /// A one-way link reported later than its session would be closed anyway.
    #[error("dialback_timeout = {dialback:?} is over reply_timeout = {reply:?}")]
    DialbackOverReply {
        /// The dial-back limit.
        dialback: Duration,
        /// The reply limit.
        reply: Duration,
    },
    /// This node among its own peers.
    #[error("node {node} is this node itself and can't be its own peer")]
    OwnPeer {
        /// The node.
        node: PeerId,
    },
    /// Too many peers.
    #[error("{got} peers, at most {PEERS_MAX} are served")]
    TooManyPeers {
        /// How many.
        got: usize,
    },
    /// An address without a port, or with a bad one.
    #[error("address {address:?} of peer {peer} is not HOST:PORT")]
    PeerAddress {
        /// The peer.
        peer: PeerId,
        /// The address.
        address: String,
    },
}

/// The settings of a transport as a file gives them; absent ones have their defaults.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawTuning {
    /// Control frames outstanding at a peer; the lower of both sides' holds.
    pub control_window_frames: u16,
    /// Bulk bytes outstanding at a peer; likewise.
    pub bulk_window_bytes: u64,
    /// Bytes that may be reserved for one peer.
    pub peer_budget_bytes: u64,
    /// Bytes that may be reserved in all.
    pub node_budget_bytes: u64,
    /// The age at which an unanswered control frame ends its session.
    pub reply_timeout_ms: u64,
    /// How long a link may be up in one direction only before that is reported.
    pub dialback_timeout_ms: u64,
    /// How long connecting, the TLS handshake and the hello may take, each.
    pub handshake_timeout_ms: u64,
    /// How long a bulk session may go without any answer.
    pub bulk_stall_ms: u64,
}

const fn millis(duration: Duration) -> u64 {
    duration.as_secs() * 1000 + duration.subsec_millis() as u64
}

impl Default for RawTuning {
    fn default() -> Self {
        Self {
            control_window_frames: CONTROL_WINDOW_FRAMES_DEFAULT,
            bulk_window_bytes: BULK_WINDOW_BYTES_DEFAULT,
            peer_budget_bytes: PEER_BUDGET_BYTES_DEFAULT,
            node_budget_bytes: NODE_BUDGET_BYTES_DEFAULT,
            reply_timeout_ms: millis(REPLY_TIMEOUT_DEFAULT),
            dialback_timeout_ms: millis(DIALBACK_TIMEOUT_DEFAULT),
            handshake_timeout_ms: millis(HANDSHAKE_TIMEOUT),
            bulk_stall_ms: millis(BULK_STALL),
        }
    }
}

/// Checked settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    control_window_frames: u16,
    bulk_window_bytes: u64,
    budgets: BudgetLimits,
    reply_timeout: Duration,
    dialback_timeout: Duration,
    handshake_timeout: Duration,
    bulk_stall: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        match Self::try_from(RawTuning::default()) {
            Ok(tuning) => tuning,
            Err(error) => unreachable!("the defaults contradict each other: {error}"),
        }
    }
}

impl ConfigError {
    pub(crate) fn check_control_window(got: u16) -> Result<(), Self> {
        if (1..=CONTROL_WINDOW_FRAMES_MAX).contains(&got) {
            Ok(())
        } else {
            Err(Self::ControlWindow { got })
        }
    }
}

impl TryFrom<RawTuning> for Tuning {
    type Error = ConfigError;

    fn try_from(raw: RawTuning) -> Result<Self, ConfigError> {
        ConfigError::check_control_window(raw.control_window_frames)?;
        let window = raw.bulk_window_bytes;
        if window < BULK_BODY_BYTES_MAX as u64 {
            return Err(ConfigError::BulkWindow { got: window });
        }
        let (peer, node) = (raw.peer_budget_bytes, raw.node_budget_bytes);
        if peer < window.saturating_mul(2) {
            return Err(ConfigError::PeerBudgetBelowWindow {
                budget: peer,
                window,
            });
        }
        if node < peer {
            return Err(ConfigError::NodeBudgetBelowPeer { node, peer });
        }
        for (name, value) in [
            ("reply_timeout", raw.reply_timeout_ms),
            ("dialback_timeout", raw.dialback_timeout_ms),
            ("handshake_timeout", raw.handshake_timeout_ms),
            ("bulk_stall", raw.bulk_stall_ms),
        ] {
            if value == 0 {
                return Err(ConfigError::ZeroTimeout { name });
            }
        }
        let reply = Duration::from_millis(raw.reply_timeout_ms);
        let dialback = Duration::from_millis(raw.dialback_timeout_ms);
        if dialback > reply {
            return Err(ConfigError::DialbackOverReply { dialback, reply });
        }
        Ok(Self {
            control_window_frames: raw.control_window_frames,
            bulk_window_bytes: window,
            budgets: BudgetLimits {
                peer: Amount::new(PEER_BUDGET_ITEMS, peer),
                node: Amount::new(NODE_BUDGET_ITEMS, node),
            },
            reply_timeout: reply,
            dialback_timeout: dialback,
            handshake_timeout: Duration::from_millis(raw.handshake_timeout_ms),
            bulk_stall: Duration::from_millis(raw.bulk_stall_ms),
        })
    }
}

impl Tuning {
    /// What this side takes on a lane.
    #[must_use]
    pub fn limits(&self, lane: Lane) -> PeerLimits {
        PeerLimits {
            window_frames: self.control_window_frames,
            window_bytes: self.bulk_window_bytes,
            frame_bytes: u32::try_from(frame_body_bytes_max(lane)).unwrap_or(u32::MAX),
            frame_items: u16::try_from(FRAME_ITEMS_MAX).unwrap_or(u16::MAX),
        }
    }

    /// The budgets.
    #[must_use]
    pub const fn budgets(&self) -> BudgetLimits {
        self.budgets
    }

    /// The age at which an unanswered control frame ends its session.
    #[must_use]
    pub const fn reply_timeout(&self) -> Duration {
        self.reply_timeout
    }

    /// How long a link may be up one way only.
    #[must_use]
    pub const fn dialback_timeout(&self) -> Duration {
        self.dialback_timeout
    }

    /// How long connecting, the TLS handshake and the hello may take, each.
    #[must_use]
    pub const fn handshake_timeout(&self) -> Duration {
        self.handshake_timeout
    }

    /// How long a bulk session may go without any answer.
    #[must_use]
    pub const fn bulk_stall(&self) -> Duration {
        self.bulk_stall
    }
}

/// Everything that a transport is started with, beside credentials and the host.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub identity: NodeIdentity,
    /// Its data directory.
    pub incarnation: Incarnation,
    /// How often that has been started.
    pub boot: Boot,
    /// Which life that start begins: [`Config::new`] draws it.
    pub life: LifeId,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The other nodes, each with its `HOST:PORT`. Addresses come from here, never from frames.
    pub peers: BTreeMap<PeerId, String>,
    /// The cluster settings that must be equal everywhere.
    pub fingerprint: Fingerprint,
    /// The number of the last completed sync of this node's log as it was opened; all hellos say it.
    pub sync_number: u64,
    /// Which directory a peer may come with.
    pub contact: Contact,
    /// What earlier lives of this node had on record of its peers.
    pub records: BTreeMap<PeerId, NodeRecord>,
    /// The rest.
    pub tuning: Tuning,
}

impl Config {
    /// With no cluster settings to compare, and default tuning.
    #[must_use]
    pub fn new(
        identity: NodeIdentity,
        incarnation: Incarnation,
        boot: Boot,
        listen: SocketAddr,
        peers: BTreeMap<PeerId, String>,
    ) -> Self {
        let (fingerprint, tuning) = (Fingerprint::default(), Tuning::default());
        Self {
            identity,
            incarnation,
            boot,
            life: LifeId::draw(),
            listen,
            peers,
            fingerprint,
            sync_number: 0,
            contact: Contact::default(),
            records: BTreeMap::new(),
            tuning,
        }
    }

    /// Checks what the fields' own types can't.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.peers.contains_key(&self.identity.node) {
            return Err(ConfigError::OwnPeer {
                node: self.identity.node,
            });
        }
        if self.peers.len() > PEERS_MAX {
            return Err(ConfigError::TooManyPeers {
                got: self.peers.len(),
            });
        }
        let has_port = |address: &str| {
            address.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
            })
        };
        match self.peers.iter().find(|(_, address)| !has_port(address)) {
            Some((&peer, address)) => Err(ConfigError::PeerAddress {
                peer,
                address: address.clone(),
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused_with_both_values() {
        let refused = |change: fn(&mut RawTuning)| {
            let mut raw = RawTuning::default();
            change(&mut raw);
            Tuning::try_from(raw).unwrap_err().to_string()
        };
        for (change, words) in [
            (
                (|raw| raw.control_window_frames = 0) as fn(&mut RawTuning),
                ["= 0", "1 to 256"],
            ),
            (|raw| raw.control_window_frames = 257, ["= 257", "1 to 256"]),
            (|raw| raw.bulk_window_bytes = 1000, ["= 1000", "262144"]),
            (
                |raw| raw.peer_budget_bytes = 5 << 20,
                ["= 5242880", "= 4194304"],
            ),
            (
                |raw| raw.node_budget_bytes = 9 << 20,
                ["= 9437184", "= 67108864"],
            ),
            (|raw| raw.reply_timeout_ms = 0, ["reply_timeout", "= 0"]),
            (
                |raw| raw.dialback_timeout_ms = 4000,
                ["dialback_timeout = 4s", "reply_timeout = 3s"],
            ),
        ] {
            let sentence = refused(change);
            assert!(
                words.iter().all(|word| sentence.contains(word)),
                "{sentence}"
            );
        }
        assert!(Tuning::try_from(RawTuning::default()).is_ok());
    }

    #[test]
    fn peers_must_be_others_at_addresses() {
        let with = |peers: &[(u32, &str)]| {
            let peers = peers
                .iter()
                .map(|&(n, a)| (PeerId::new(n).unwrap(), a.to_owned()));
            let identity = "mraft://dev/node/1".parse().unwrap();
            let (incarnation, listen) = (Incarnation::new([0; 16]), ([127, 0, 0, 1], 0).into());
            Config::new(identity, incarnation, Boot::new(1), listen, peers.collect()).check()
        };
        assert_eq!(with(&[(2, "localhost:7102"), (3, "[::1]:7103")]), Ok(()));
        assert!(matches!(
            with(&[(1, "a:1")]),
            Err(ConfigError::OwnPeer { .. })
        ));
        for address in ["", "a", "a:", ":1", "a:0", "a:70000", "a:b"] {
            assert!(matches!(
                with(&[(2, address)]),
                Err(ConfigError::PeerAddress { .. })
            ));
        }
    }
}
