//! What goes wrong: one fault at a time, drawn by the run's weights, until the time for it is over;
//! then everything is mended at once.

use std::collections::BTreeSet;

use raft_host::log::sim_files::SimFault;
use raft_host::proto::consensus::Role;

use super::World;
use super::clients::Answer;
use super::clock::{MS, Nanos};
use super::events::Event;
use super::network::{CALM, End, Weather};
use super::node::replica_of;

/// How a node goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    /// Its process ends: what was written is still there, and its connections end.
    Process,
    /// Its machine loses power: what wasn't synced may be lost or torn, and nobody is told.
    Power,
}

/// How long a node stays down or stopped, at most.
pub(super) const DOWN_MAX: Nanos = 900 * MS;

/// How long what waited for a way takes once that is mended, at most.
const RETRANSMITTED_MAX: Nanos = 200 * MS;

impl World {
    pub(super) fn nemesis(&mut self) {
        if self.mended {
            return;
        }
        self.counts.faults += 1;
        if let Some(script) = self.script {
            return self.act(script);
        }
        let weights = self.shape.faults.weights();
        let mut left = self.dice.below(weights.iter().sum());
        let mut which = 0;
        for (at, weight) in weights.iter().enumerate() {
            if left < *weight {
                which = at;
                break;
            }
            left -= weight;
        }
        match which {
            0 => self.cut(),
            1 => self.isolate(),
            2 => self.mend_links(),
            3 => self.reset(),
            4 => self.take_down(Crash::Process),
            5 => self.take_down(Crash::Power),
            6 => self.blackout(),
            7 => self.pause(),
            8 => self.change_clock(),
            9 => self.hurt_disk(),
            10 => self.transfer(),
            12 => self.slow_down(),
            _ => self.change_weather(),
        }
        let after = self
            .dice
            .between(self.shape.fault_pause / 4, self.shape.fault_pause);
        self.events.push(self.now + after, Event::Nemesis);
    }

    pub(super) fn say(&mut self, node: Option<usize>, what: impl FnOnce() -> String) {
        self.trace
            .line(self.now, node, None, || format!("FAULT {}", what()));
    }

    fn pair(&mut self) -> (usize, usize) {
        let nodes = self.shape.nodes;
        let a = self.dice.index(nodes);
        let b = (a + 1 + self.dice.index(nodes - 1)) % nodes;
        (a, b)
    }

    fn cut(&mut self) {
        let (a, b) = self.pair();
        self.say(Some(a), || format!("nothing gets to {}", b + 1));
        self.network.cut.insert((a, b));
        if self.dice.chance(500) {
            self.network.cut.insert((b, a));
        }
    }

    fn isolate(&mut self) {
        let at = self.dice.index(self.shape.nodes);
        let ways = self.dice.below(3);
        self.say(Some(at), || format!("is isolated, way {ways}"));
        for other in (0..self.shape.nodes).filter(|other| *other != at) {
            if ways != 1 {
                self.network.cut.insert((at, other));
            }
            if ways != 2 {
                self.network.cut.insert((other, at));
            }
        }
    }

    fn mend_links(&mut self) {
        self.say(None, || "all links are mended".to_owned());
        let ways = self.network.cut.clone();
        self.mend_ways(&ways, RETRANSMITTED_MAX);
    }

    pub(super) fn mend_ways(&mut self, ways: &BTreeSet<(usize, usize)>, most: Nanos) {
        for (connection, end, when) in self.network.mend(self.now, ways, most) {
            self.events.push(when, Event::Look { connection, end });
        }
    }

    fn reset(&mut self) {
        self.network.tidy();
        let all: Vec<_> = self.network.connections.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let connection = all[self.dice.index(all.len())];
        self.say(None, || format!("connection {connection} is reset"));
        if let Some(when) = self.network.reset(self.now, connection) {
            for end in [End::Dialler, End::Acceptor] {
                self.events.push(when, Event::Look { connection, end });
            }
        }
    }

    fn slow_down(&mut self) {
        self.network.tidy();
        let all: Vec<_> = self.network.connections.keys().copied().collect();
        if all.is_empty() {
            return;
        }
        let connection = all[self.dice.index(all.len())];
        let slow = self.dice.between(20, 350) * MS;
        self.say(None, || {
            format!("connection {connection} takes {} ms more", slow / MS)
        });
        if let Some(it) = self.network.connections.get_mut(&connection) {
            it.slow = [slow; 2];
        }
    }

    fn take_down(&mut self, how: Crash) {
        let at = self.dice.index(self.shape.nodes);
        self.say(Some(at), || format!("goes down: {how:?}"));
        self.crash(at, how);
    }

    fn blackout(&mut self) {
        self.say(None, || "all power is lost".to_owned());
        for at in 0..self.shape.nodes {
            self.crash(at, Crash::Power);
        }
    }

    /// A node goes down, and comes back later.
    pub(super) fn crash(&mut self, at: usize, how: Crash) {
        let Some(mut node) = self.nodes[at].take() else {
            return;
        };
        self.counts.crashes += 1;
        self.trace.mix(&[at as u64, node.life]);
        let seed = self.dice.draw();
        let process = how == Crash::Process;
        if process {
            for (client, attempt, _) in node.proposals.values().chain(node.reads.values()) {
                if *client != super::recovery::PROBE {
                    self.tell(*client, *attempt, Answer::Unknown);
                }
            }
        } else if self.dice.chance(500) {
            // The power goes in the midst of what the log does.
            self.disks[at].files.cut_after(self.dice.below(5));
            let _ = node.driver.turn();
        }
        let ends: Vec<_> = self
            .network
            .connections
            .iter()
            .flat_map(|(number, it)| {
                [
                    (*number, End::Dialler, it.dialler),
                    (*number, End::Acceptor, it.acceptor),
                ]
            })
            .filter(|(_, _, owner)| *owner == at)
            .collect();
        for (connection, end, _) in ends {
            if process {
                if let Some(when) = self.network.close(self.now, connection, end) {
                    let end = end.other();
                    self.events.push(when, Event::Look { connection, end });
                }
            } else if let Some(it) = self.network.connections.get_mut(&connection) {
                it.shut(end);
            }
        }
        let disk = &mut self.disks[at];
        if process || seed.is_multiple_of(3) {
            // The state machine's own files were written, and survive.
            disk.machines = node.machines.clone();
        }
        disk.records = node.authority.records();
        drop(node);
        if process {
            self.disks[at].process_died();
        } else {
            self.disks[at].power_cycle(seed);
            self.powered[at] = false;
        }
        self.hung.remove(&at);
        self.paused[at] = 0;
        let boots = self.disks[at].boots;
        let after = self.dice.between(5 * MS, DOWN_MAX);
        let event = Event::Boot { node: at, boots };
        self.events.push(self.now + after, event);
    }

    fn pause(&mut self) {
        let at = self.dice.index(self.shape.nodes);
        let long = self.dice.between(5 * MS, DOWN_MAX);
        self.say(Some(at), || format!("stops for {} ms", long / MS));
        self.paused[at] = self.paused[at].max(self.now + long);
    }

    fn change_clock(&mut self) {
        let at = self.dice.index(self.shape.nodes);
        let now = self.now;
        match self.dice.below(3) {
            0 => {
                let rate = self.dice.between(950_000, 1_050_000);
                self.say(Some(at), || {
                    format!("its clock runs at {rate} of a million")
                });
                self.clocks[at].drift(now, rate);
            }
            1 => {
                let by = self.dice.between(MS, 1500 * MS);
                self.say(Some(at), || {
                    format!("its clock has gone on by {} ms", by / MS)
                });
                self.clocks[at].jump(now, by);
                // What was due meanwhile is late for once.
                self.paused[at] = self.paused[at].max(now);
            }
            _ => {
                let hours = i64::try_from(self.dice.below(7)).unwrap_or(0) - 3;
                let offset = hours * 3_600_000;
                self.say(Some(at), || format!("its wall clock is off by {hours} h"));
                self.clocks[at].set_wall_offset(offset);
            }
        }
        self.turn(at);
    }

    fn hurt_disk(&mut self) {
        let at = self.dice.index(self.shape.nodes);
        match self.dice.below(6) {
            0 => {
                let most = self.dice.between(2 * MS, 60 * MS);
                self.say(Some(at), || format!("syncs take up to {} ms", most / MS));
                self.sync_time[at] = (MS / 2, most);
            }
            1 => {
                self.say(Some(at), || "its syncs hang".to_owned());
                self.hung.insert(at);
            }
            2 => {
                self.say(Some(at), || "its disk is full".to_owned());
                self.disks[at].inject(SimFault::NoSpace);
            }
            3 => {
                self.say(Some(at), || "its next sync fails".to_owned());
                self.sync_fails.insert(at);
            }
            _ => self.mend_disk(at),
        }
    }

    fn mend_disk(&mut self, at: usize) {
        self.say(Some(at), || "its disk is mended".to_owned());
        self.sync_time[at] = (MS / 20, MS / 2);
        self.sync_fails.remove(&at);
        self.disks[at].files.heal();
        if !self.hung.remove(&at) {
            return;
        }
        if let Some(node) = &self.nodes[at]
            && let Some(sync) = &node.sync
            && sync.hangs
        {
            let (life, number) = (node.life, sync.number);
            let event = Event::Synced {
                node: at,
                life,
                number,
            };
            self.events.push(self.now, event);
        }
    }

    fn transfer(&mut self) {
        let groups: Vec<_> = self.shape.groups().collect();
        let group = groups[self.dice.index(groups.len())];
        let to = self.dice.index(self.shape.nodes);
        for at in 0..self.shape.nodes {
            if self.paused[at] > self.now {
                continue;
            }
            let now = self.local(at);
            let Some(node) = &mut self.nodes[at] else {
                continue;
            };
            let leads = node
                .core
                .status(group)
                .is_some_and(|it| it.role == Role::Leader);
            if !leads || at == to {
                continue;
            }
            // A refusal is no matter here.
            let _ = node.core.transfer_leader(now, group, replica_of(to));
            self.trace
                .line(self.now, Some(at), Some(group.to_u64()), || {
                    format!("FAULT hands over to {}", to + 1)
                });
            self.turn(at);
        }
    }

    fn change_weather(&mut self) {
        let weather = match self.dice.below(3) {
            0 => CALM,
            1 => Weather {
                delay_min: MS,
                delay_max: self.dice.between(2 * MS, 40 * MS),
                late_chance: 20,
                late_max: 100 * MS,
            },
            _ => Weather {
                delay_min: MS / 20,
                delay_max: MS / 2,
                late_chance: self.dice.between(10, 150),
                late_max: 150 * MS,
            },
        };
        self.say(None, || format!("{weather:?}"));
        self.network.weather = weather;
    }

    /// Everything is mended, and whoever is down starts.
    pub(super) fn mend_all(&mut self) {
        self.mended = true;
        self.say(None, || "everything is mended".to_owned());
        let ways = self.network.cut.clone();
        self.mend_ways(&ways, RETRANSMITTED_MAX);
        self.network.weather = CALM;
        for connection in self.network.connections.values_mut() {
            connection.slow = [0; 2];
        }
        for at in 0..self.shape.nodes {
            self.mend_disk(at);
            if self.nodes[at].is_none() {
                let boots = self.disks[at].boots;
                self.events.push(self.now, Event::Boot { node: at, boots });
            }
        }
    }
}
