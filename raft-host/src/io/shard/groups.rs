//! The groups of a shard beside their core: their ends of log and state machine, what they count
//! as, and the requests about one of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::{OpeningGroup, Shard};
use crate::config::GroupConfig;
use crate::error::OpenError;
use crate::id::{GroupId, NodeId};
use crate::io::apply::GroupApply;
use crate::io::machine::{Applied, StateMachine};
use crate::log::GroupView;
use crate::log::api::GroupLog;
use crate::metrics::{GroupCounts, GroupStatus};
use crate::proto::consensus::Role;
use crate::proto::host::GroupSpec;

/// What a group has beside its core.
pub(super) struct GroupEnd {
    pub(super) view: Rc<RefCell<GroupView>>,
    pub(super) apply: Arc<GroupApply>,
}

/// Who leads the groups, as counts.
#[derive(Default)]
pub(super) struct Roles {
    groups: BTreeMap<GroupId, (Role, Option<NodeId>)>,
    counts: GroupCounts,
}

impl Roles {
    fn add(&mut self, group: GroupId) {
        self.groups.insert(group, (Role::Follower, None));
        self.counts.total += 1;
        self.counts.leaderless += 1;
    }

    pub(super) fn change(&mut self, group: GroupId, role: Role, leader: Option<NodeId>) {
        let Some(known) = self.groups.get_mut(&group) else {
            return;
        };
        let was = std::mem::replace(known, (role, leader));
        if leader.is_some() && was.1 != leader {
            self.counts.leader_changes += 1;
        }
        *self.place(was) -= 1;
        *self.place((role, leader)) += 1;
    }

    fn place(&mut self, (role, leader): (Role, Option<NodeId>)) -> &mut u64 {
        match (role, leader) {
            (Role::Leader, _) => &mut self.counts.leading,
            (Role::Follower | Role::Candidate, Some(_)) => &mut self.counts.following,
            (Role::Follower | Role::Candidate, None) => &mut self.counts.leaderless,
        }
    }

    pub(super) fn counts(&self) -> GroupCounts {
        self.counts
    }
}

/// Turns a configured group into one to open: which replica is this node's, and where its state
/// machine stands. The log must hold the entry that the state machine ends with (safety 14).
pub(in crate::io) fn specify(
    node: NodeId,
    peers: &[NodeId],
    config: &GroupConfig,
    applied: Applied,
    log: &GroupView,
) -> Result<GroupSpec, OpenError> {
    let group = config.group;
    let mut members = config.members.iter();
    let own = members.clone().find(|member| member.node == node);
    let own = own.ok_or(OpenError::NotAMember { group, node })?;
    if let Some(member) = members.find(|m| m.node != node && !peers.contains(&m.node)) {
        let node = member.node;
        return Err(OpenError::UnknownNode { group, node });
    }
    // What lies outside of the log is refused by the core, which names it.
    if let Ok(expected) = log.term(applied.index)
        && expected != applied.term
    {
        return Err(OpenError::AppliedOtherTerm {
            group,
            applied: applied.index,
            expected,
            got: applied.term,
        });
    }
    Ok(GroupSpec {
        group,
        replica: own.replica,
        members: config.members.clone(),
        preferred: config.preferred,
        applied: applied.index,
    })
}

impl Shard {
    pub(super) fn open_group(
        &mut self,
        now: Instant,
        opening: OpeningGroup,
    ) -> Result<(), OpenError> {
        let group = opening.spec.group;
        let view = Rc::new(RefCell::new(opening.view));
        self.core.open_group(now, opening.spec, Rc::clone(&view))?;
        let apply = opening.machine;
        self.groups.insert(group, GroupEnd { view, apply });
        self.roles.add(group);
        Ok(())
    }

    /// Opens a group that isn't in the log yet.
    pub(super) fn create_group(
        &mut self,
        now: Instant,
        config: &GroupConfig,
        machine: Box<dyn StateMachine>,
    ) -> Result<(), OpenError> {
        let group = config.group;
        if self.groups.contains_key(&group) {
            return Err(OpenError::AlreadyOpen(group));
        }
        let view = self.stores.new_group(group);
        let nodes: Vec<_> = self.peers.keys().copied().collect();
        let applied = machine.applied();
        let spec = specify(self.identity.node, &nodes, config, applied, &view)?;
        let inbox = Arc::clone(&self.inbox);
        let machine = Arc::new(GroupApply::new(group, machine, applied.index, inbox));
        self.open_group(
            now,
            OpeningGroup {
                spec,
                view,
                machine,
            },
        )
    }

    pub(super) fn group_status(&self, group: GroupId) -> Option<GroupStatus> {
        let status = self.core.status(group)?;
        Some(GroupStatus {
            role: status.role,
            term: status.term,
            leader: self.core.leader_node(group),
            commit: status.commit,
            last: status.last,
            applied: status.applied,
            compacted: status.compacted,
        })
    }
}
