//! What a seed draws before its run begins: how many nodes, groups and clients, the timings, the
//! log's size, and which faults are to come how often. Few groups and short timings make for many
//! elections in little time.

use std::time::Duration;

use raft_host::config::{RaftConfig, RawRaftConfig};
use raft_host::id::GroupId;
use raft_host::log::{LogConfig, RawLogConfig, SyncMode};
use transport::proto::outbound::LaneTimeouts;

use super::clock::{MS, Nanos};
use super::dice::Dice;

/// Chances of the faults, as weights of one draw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A way between two nodes is cut.
    pub cut: u64,
    /// A node is cut off from all, one way or both.
    pub isolate: u64,
    /// All cuts are mended.
    pub mend: u64,
    /// A connection is reset.
    pub reset: u64,
    /// A process is killed.
    pub kill: u64,
    /// A machine loses its power.
    pub power: u64,
    /// All machines do.
    pub blackout: u64,
    /// A process is stopped for a while.
    pub pause: u64,
    /// A clock changes its pace, or is set.
    pub clock: u64,
    /// A disk is slow, hangs, is full or fails.
    pub disk: u64,
    /// A leader hands over.
    pub transfer: u64,
    /// The weather changes.
    pub weather: u64,
    /// One connection is slow, while others between the same nodes aren't.
    pub slow: u64,
}

impl Faults {
    /// All together.
    #[must_use]
    pub fn weights(&self) -> [u64; 13] {
        [
            self.cut,
            self.isolate,
            self.mend,
            self.reset,
            self.kill,
            self.power,
            self.blackout,
            self.pause,
            self.clock,
            self.disk,
            self.transfer,
            self.weather,
            self.slow,
        ]
    }

    /// Leadership that goes round fast over links that are slow here and cut there: what was said in
    /// one term arrives in another.
    fn storm() -> Self {
        Self {
            cut: 4,
            mend: 6,
            reset: 1,
            transfer: 14,
            slow: 6,
            weather: 1,
            ..Self::default()
        }
    }

    fn draw(dice: &mut Dice) -> Self {
        // Each run has faults of some kinds only, so that none hides behind the others.
        let mut some = |weight: u64| if dice.chance(550) { weight } else { 0 };
        Self {
            cut: some(4),
            isolate: some(6),
            mend: 6,
            reset: some(3),
            kill: some(4),
            power: some(4),
            blackout: some(1),
            pause: some(4),
            clock: some(3),
            disk: some(4),
            transfer: some(4),
            weather: some(3),
            slow: some(3),
        }
    }
}

/// What a run is made of.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Nodes.
    pub nodes: usize,
    /// Groups, all with a voter on each node.
    pub group_count: u64,
    /// Clients.
    pub clients: usize,
    /// Keys that are in use at a time.
    pub keys: u64,
    /// `[raft]`.
    pub raft: RaftConfig,
    /// `[log]`.
    pub log: LogConfig,
    /// A lane's time limits.
    pub timeouts: LaneTimeouts,
    /// Frames that may be unanswered on control.
    pub window_frames: u16,
    /// The faults.
    pub faults: Faults,
    /// Between two of them.
    pub fault_pause: Nanos,
    /// How long there are faults.
    pub faulty_for: Nanos,
    /// How long the group keeps outcomes.
    pub dedup_window_ms: u32,
    /// How long a request may take.
    pub request_limit: Duration,
    /// Chance in a thousand that the answer to a round comes too late for its frame's reply.
    pub late_answers: u64,
    /// How long a client thinks.
    pub think: Nanos,
    /// Chance in a thousand that what was applied becomes durable at once.
    pub flushes: u64,
}

/// Within this many election timeouts after the last fault was mended, every group must serve again
/// and every replica hold the same. Lost sessions are noticed after the reply timeout, dialled again
/// within the longest wait, then a campaign, a catch-up and a request each take their time.
pub const RECOVERY_ELECTIONS: u32 = 30;

impl Shape {
    /// What this seed draws.
    ///
    /// # Panics
    /// Never: the settings hold.
    #[must_use]
    pub fn draw(dice: &mut Dice) -> Self {
        let nodes = if dice.chance(200) { 5 } else { 3 };
        let raft = RawRaftConfig {
            heartbeat_interval_ms: 50,
            election_timeout_ms: 250,
            campaign_rate: 500,
            restart_silence_ms: if dice.chance(300) { 250 } else { 0 },
            ..RawRaftConfig::default()
        };
        let storm = dice.chance(250);
        let segment_bytes = [16, 32, 64][dice.index(3)] * 1024;
        let log = RawLogConfig {
            segment_bytes,
            bytes_max: segment_bytes * 32,
            sync: SyncMode::Durable,
            probe_interval: Duration::from_millis(100),
            cache_bytes: [4, 64, 1024][dice.index(3)] * 1024,
        };
        Self {
            nodes,
            group_count: dice.between(1, 3),
            clients: usize::try_from(dice.between(2, 5)).unwrap_or(2),
            keys: dice.between(1, 4),
            raft: RaftConfig::try_from(raft).expect("settings that hold"),
            log: LogConfig::try_from(log).expect("settings that hold"),
            timeouts: LaneTimeouts {
                hello: Duration::from_millis(400),
                reply: Duration::from_millis(500),
                stall: Duration::from_millis(900),
            },
            faults: if storm {
                Faults::storm()
            } else {
                Faults::draw(dice)
            },
            fault_pause: if storm {
                dice.between(8, 60) * MS
            } else {
                dice.between(40, 250) * MS
            },
            window_frames: [1, 2, 16][dice.index(3)],
            faulty_for: dice.between(1500, 4000) * MS,
            dedup_window_ms: [300, 3000, 600_000][dice.index(3)],
            request_limit: Duration::from_millis(dice.between(100, 900)),
            late_answers: [0, 0, 100][dice.index(3)],
            think: dice.between(5, 60) * MS,
            flushes: [20, 120, 400][dice.index(3)],
        }
    }

    /// The groups.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + use<> {
        (1..=self.group_count).map(GroupId::new)
    }
}
