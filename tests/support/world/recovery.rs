//! After the faults: every group must serve through every node, and every replica hold the same,
//! within a stated time; then the links are shut down and no account may hold anything.

use bytes::Bytes;
use multigroup::command::{Body, Entry, Op};
use raft_host::id::{GroupId, ProposalId, UnixMillis};
use raft_host::proto::consensus::Role;
use raft_host::proto::host::{Forwarding, Proposal};
use raft_host::proto::waiters::Policy;
use transport::{Lane, SessionEnd};

use super::World;
use super::clock::{MS, Nanos};
use super::nemesis::DOWN_MAX;
use super::requests::attempt_number;
use super::shape::RECOVERY_ELECTIONS;

/// The client whose requests are those of the recovery.
pub(super) const PROBE: usize = 1 << 20;

impl World {
    /// The whole run.
    pub(super) fn run(&mut self) {
        self.run_to(self.shape.faulty_for);
        self.mend_all();
        let election = self.shape.raft.election_timeout() * RECOVERY_ELECTIONS;
        let election = u64::try_from(election.as_nanos()).unwrap_or(Nanos::MAX / 4);
        // Whoever is stopped, or was just killed by its disk, comes back first.
        let end = self.now + DOWN_MAX + election;
        while !self.serves() {
            if self.now >= end {
                self.fail(&format!("progress: not all serve\n{}", self.standing()));
            }
            self.probe();
            self.run_to(self.now + 40 * MS);
        }
        self.resting = true;
        while !self.agrees() {
            if self.now >= end {
                self.fail(&format!("progress: not all agree\n{}", self.standing()));
            }
            self.run_to(self.now + 20 * MS);
        }
        self.check_contents();
        // Leaders that nothing disturbs stay: for some election timeouts nobody's role changes.
        let quiet = u64::try_from(self.shape.raft.election_timeout().as_nanos()).unwrap_or(MS) * 4;
        while self.now < self.role_changed + quiet {
            if self.now >= end + quiet {
                self.fail(&format!(
                    "progress: leaders do not stay\n{}",
                    self.standing()
                ));
            }
            self.run_to(self.now + 100 * MS);
        }
        let explained = self.histories.check();
        self.require(explained);
        self.shut_down();
    }

    fn serves(&self) -> bool {
        let all = usize::try_from(self.shape.group_count).unwrap_or(0) * self.shape.nodes;
        self.probed.len() == all
    }

    pub(super) fn on_probe(&mut self, number: u64) {
        if let Some(place) = self.probes.get(&number) {
            self.probed.insert(*place);
        }
    }

    fn probe(&mut self) {
        for group in self.shape.groups() {
            for at in 0..self.shape.nodes {
                if !self.probed.contains(&(group, at)) && self.paused[at] <= self.now {
                    self.probe_at(group, at);
                }
            }
        }
    }

    fn probe_at(&mut self, group: GroupId, at: usize) {
        let (now, wall) = (self.local(at), self.clocks[at].wall_ms(self.now));
        let number = self.probes.len() as u64;
        let deadline = now + self.shape.request_limit;
        let Some(node) = self.nodes[at].as_deref_mut() else {
            return;
        };
        node.core.set_wall(UnixMillis::new(wall));
        let entry = Entry {
            identity: None,
            body: Body::Single(Op::Set {
                key: Bytes::from_static(b"probe"),
                value: Bytes::from(number.to_string()),
            }),
        };
        let Ok(data) = entry.encode() else { return };
        let name = attempt_number(PROBE, number);
        let proposal = Proposal {
            id: ProposalId::new(node.next_id()),
            data,
            context: Bytes::copy_from_slice(&name.to_le_bytes()),
            deadline,
            forwarding: Forwarding::Allowed,
            policy: Policy::Quorum,
        };
        let id = proposal.id;
        node.proposals.insert(id, (PROBE, number, deadline));
        let refused = node.core.propose(now, group, proposal).is_err();
        if refused {
            node.proposals.remove(&id);
        }
        self.probes.insert(number, (group, at));
        self.attempts.entry(name).or_default().refused = refused;
        self.turn(at);
    }

    /// Whether nothing is unfinished and every replica has applied all there is.
    fn agrees(&self) -> bool {
        if self.clients.iter().any(|client| client.doing.is_some()) {
            return false;
        }
        let unfinished = |node: &super::Node| !node.proposals.is_empty() || !node.reads.is_empty();
        let nodes = || self.nodes.iter().flatten();
        if nodes().count() < self.shape.nodes || nodes().any(|node| unfinished(node)) {
            return false;
        }
        self.shape.groups().all(|group| {
            let leads = nodes().find_map(|node| {
                let status = node.core.status(group)?;
                (status.role == Role::Leader).then_some(status)
            });
            leads.is_some_and(|leader| {
                nodes().all(|node| {
                    let machine = node.machines.get(&group);
                    machine.is_some_and(|machine| machine.applied.0 == leader.last)
                })
            })
        })
    }

    fn check_contents(&self) {
        for group in self.shape.groups() {
            let mut machines = self
                .nodes
                .iter()
                .flatten()
                .map(|node| &node.machines[&group]);
            let Some(first) = machines.next() else {
                continue;
            };
            if machines.any(|machine| machine.content() != first.content()) {
                self.fail(&format!(
                    "the replicas of group {group} hold different things"
                ));
            }
        }
    }

    /// Where every replica stands, for whoever reads why a run failed.
    fn standing(&self) -> String {
        let mut lines = Vec::new();
        for group in self.shape.groups() {
            for (at, node) in self.nodes.iter().enumerate() {
                let text = match node {
                    None => "is down".to_owned(),
                    Some(node) => format!(
                        "{:?}, links {:?}, {} proposals, {} reads, {} writes held",
                        node.core.status(group),
                        node.peers
                            .values()
                            .map(|peer| peer.up.is_some())
                            .collect::<Vec<_>>(),
                        node.proposals.len(),
                        node.reads.len(),
                        node.stores.held(),
                    ),
                };
                lines.push(format!("  group {group} node {}: {text}", at + 1));
            }
        }
        lines.push(format!("  probed {:?}", self.probed));
        lines.join("\n")
    }

    fn shut_down(&mut self) {
        for at in 0..self.shape.nodes {
            let Some(mut node) = self.nodes[at].take() else {
                continue;
            };
            let now = self.local(at);
            let peers: Vec<_> = node.peers.keys().copied().collect();
            for peer in peers {
                for lane in [Lane::Bulk, Lane::Control] {
                    let end = SessionEnd::ShutDown;
                    self.end_outbound(at, &mut node, (peer, lane), now, end.clone());
                    if let Some(it) = node.peers.get_mut(&peer) {
                        it.lanes[super::links::place(lane)].out.end_session(&end);
                    }
                }
            }
            for (lane, account) in node.budget.snapshot() {
                if !account.is_exact()
                    || account.live() > 0
                    || account.reserved() != transport::Amount::default()
                {
                    self.fail(&format!(
                        "accounts: node {} holds on {lane:?} after the end: {account:?}",
                        at + 1
                    ));
                }
            }
            node.core.stop();
            self.nodes[at] = Some(node);
        }
    }
}
