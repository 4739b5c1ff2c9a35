//! Worlds with a script in the place of chance: schedules that random faults hardly ever make, each
//! the way in which one wrong decision would show. The number of a seed says which script it has;
//! timings, clients and weather are still drawn from it.
//!
//! `LateAcks` (safety 6): of five nodes a leader and one follower are parted from the others while
//! the way from that follower to its leader is slow. What it acks of entries that nobody else has is
//! on its way, or waits to be sent, when the others elect a leader, the links are whole again, both
//! logs are cut, and the old leader is handed the group back.
//!
//! `NewLives`: nodes that proposed much through others are killed and come back at once.

use raft_host::id::{GroupId, Term};
use raft_host::proto::consensus::{Role, Status};
use transport::Lane;

use super::World;
use super::clock::{MS, Nanos};
use super::dice::Dice;
use super::events::Event;
use super::nemesis::Crash;
use super::node::replica_of;
use super::shape::{Faults, Shape};

/// Seeds of one script: from this number times the script's on.
const SEEDS_OF_ONE: u64 = 1_000_000_000;

/// Between two steps.
const STEP: Nanos = 2 * MS;

const GROUP: GroupId = GroupId::new(1);

/// A script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    /// Acks of an old leadership reach a new one of the same node.
    LateAcks,
    /// Peers come back in new lives.
    NewLives,
}

/// How far one round of `LateAcks` is: its leader, the slow follower, and whoever leads between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Whole,
    Parted(usize, usize, Term),
    Mended(usize, usize, usize),
    Back(usize, usize),
}

/// A script that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    focus: Focus,
    stage: Stage,
    since: Nanos,
}

impl Focus {
    /// The script of a seed, if it has one.
    #[must_use]
    pub fn of(seed: u64) -> Option<Self> {
        match seed / SEEDS_OF_ONE {
            1 => Some(Self::LateAcks),
            2 => Some(Self::NewLives),
            _ => None,
        }
    }

    /// Makes what the seed has drawn fit the script.
    pub(super) fn bend(self, shape: &mut Shape, dice: &mut Dice) {
        shape.faults = Faults::default();
        shape.late_answers = 0;
        shape.faulty_for = 5000 * MS;
        shape.think = dice.between(2, 8) * MS;
        match self {
            Self::LateAcks => {
                (shape.nodes, shape.group_count, shape.clients) = (5, 1, 5);
                shape.window_frames = [1, 16][dice.index(2)];
                shape.request_limit = std::time::Duration::from_millis(100);
                // Nothing is given up for the slow way.
                shape.timeouts.reply = std::time::Duration::from_millis(1500);
                shape.timeouts.stall = std::time::Duration::from_millis(2500);
            }
            Self::NewLives => (shape.nodes, shape.clients) = (3, 6),
        }
    }

    /// Its beginning.
    pub(super) const fn script(self) -> Script {
        Script {
            focus: self,
            stage: Stage::Whole,
            since: 0,
        }
    }
}

impl Script {
    /// Whether clients begin nothing now: what a late word says must still matter when it comes.
    pub(super) const fn hushes(&self) -> bool {
        matches!(self.stage, Stage::Mended(..) | Stage::Back(..))
    }
}

impl World {
    pub(super) fn act(&mut self, script: Script) {
        let waited = self.now - script.since;
        let next = match script.focus {
            Focus::NewLives => return self.take_turns(),
            Focus::LateAcks => match script.stage {
                Stage::Whole => self.part(waited),
                Stage::Parted(leader, slow, term) => self.mend_once_led(leader, slow, term, waited),
                Stage::Mended(leader, slow, between) => {
                    self.hand_back(leader, slow, between, waited)
                }
                Stage::Back(..) => (waited > 1000 * MS).then_some(Stage::Whole),
            },
        };
        if let Some(stage) = next {
            self.say(None, || format!("script: {stage:?}"));
            let since = self.now;
            self.script = Some(Script {
                stage,
                since,
                ..script
            });
            if stage == Stage::Whole {
                self.hurry();
            }
        }
        self.events.push(self.now + STEP, Event::Nemesis);
    }

    /// No way is slow any more.
    fn hurry(&mut self) {
        for connection in self.network.connections.values_mut() {
            connection.slow = [0; 2];
        }
    }

    fn status(&self, at: usize) -> Option<Status> {
        self.nodes[at].as_ref()?.core.status(GROUP)
    }

    fn leader(&self) -> Option<(usize, Term)> {
        let nodes = 0..self.shape.nodes;
        let leads = nodes.filter_map(|at| Some((at, self.status(at)?)));
        let leads = leads.filter(|(_, status)| status.role == Role::Leader);
        leads
            .map(|(at, status)| (at, status.term))
            .max_by_key(|(_, term)| *term)
    }

    fn part(&mut self, waited: Nanos) -> Option<Stage> {
        let (leader, term) = self.leader().filter(|_| waited > 200 * MS)?;
        let nodes = self.shape.nodes;
        let slow = (leader + 1 + self.dice.index(nodes - 1)) % nodes;
        let by = self.dice.between(500, 1200) * MS;
        for connection in self.network.connections.values_mut() {
            let way = (connection.dialler, connection.acceptor, connection.lane);
            if way == (slow, leader, Lane::Control) {
                connection.slow[0] = by;
            }
        }
        for other in (0..nodes).filter(|at| ![leader, slow].contains(at)) {
            for one in [leader, slow] {
                self.network.cut.insert((one, other));
                self.network.cut.insert((other, one));
            }
        }
        Some(Stage::Parted(leader, slow, term))
    }

    fn mend_once_led(
        &mut self,
        leader: usize,
        slow: usize,
        term: Term,
        waited: Nanos,
    ) -> Option<Stage> {
        let between = self.leader().filter(|(_, newer)| *newer > term);
        if between.is_none() && waited < 1200 * MS {
            return None;
        }
        let ways = self.network.cut.clone();
        self.mend_ways(&ways, 2 * MS);
        match between {
            Some((between, _)) if ![leader, slow].contains(&between) => {
                Some(Stage::Mended(leader, slow, between))
            }
            _ => Some(Stage::Whole),
        }
    }

    fn hand_back(
        &mut self,
        leader: usize,
        slow: usize,
        between: usize,
        waited: Nanos,
    ) -> Option<Stage> {
        let (leads, term) = self.leader()?;
        if leads == leader && self.status(between).is_some_and(|it| it.term == term) {
            return Some(Stage::Back(leader, slow));
        }
        if waited > 500 * MS {
            return Some(Stage::Whole);
        }
        let caught_up = |it: Status| it.term == term && it.role == Role::Follower;
        if leads == between && self.status(leader).is_some_and(caught_up) {
            let now = self.local(between);
            if let Some(node) = &mut self.nodes[between] {
                // A refusal is no matter here: it is asked again.
                let _ = node.core.transfer_leader(now, GROUP, replica_of(leader));
            }
            self.turn(between);
        }
        None
    }

    fn take_turns(&mut self) {
        let at = self.dice.index(self.shape.nodes);
        self.say(Some(at), || "script: lives anew".to_owned());
        self.crash(at, Crash::Process);
        let after = self.dice.between(300, 900) * MS;
        self.events.push(self.now + after, Event::Nemesis);
    }
}
