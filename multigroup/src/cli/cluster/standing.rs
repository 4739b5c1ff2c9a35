//! How a cluster's nodes stand, asked from their admin ports: whether each answers, how many groups
//! have a leader, and whether the leaders are spread evenly.

use std::time::Duration;

use crate::admin::{AdminUrl, GroupCounts, Status, fetch};
use crate::cli::progress::count;
use crate::config::Config;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// How much more one node may lead than another, in percent of an even share.
const BALANCE_PERCENT: u64 = 10;

/// What was found at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Standing {
    groups: u64,
    /// By node, those that answered.
    counts: Vec<(u64, Option<GroupCounts>)>,
}

/// Asks all nodes.
pub(super) async fn ask(configs: &[Config]) -> Standing {
    let asking: Vec<_> = configs
        .iter()
        .map(|config| {
            let url: AdminUrl = config.listen_admin().into();
            let (node, cluster) = (config.node(), config.raw().cluster.clone());
            tokio::spawn(async move {
                let body = fetch(&url, "/status", PATIENCE).await.ok()?;
                let status: Status = serde_json::from_slice(&body).ok()?;
                // Somebody else's node at that port says nothing of ours.
                let is_it = status.node == node && status.cluster == cluster;
                (is_it && status.ready).then_some(status.groups)
            })
        })
        .collect();
    let mut counts = Vec::with_capacity(asking.len());
    for (config, asking) in configs.iter().zip(asking) {
        counts.push((config.node(), asking.await.ok().flatten()));
    }
    let groups = configs
        .first()
        .map_or(0, |config| config.raw().groups.into());
    Standing { groups, counts }
}

impl Standing {
    fn answered(&self) -> impl Iterator<Item = &GroupCounts> {
        self.counts.iter().filter_map(|(_, counts)| counts.as_ref())
    }

    /// How many groups the nodes say that they lead.
    pub(super) fn led(&self) -> u64 {
        self.answered().map(|counts| counts.leading).sum()
    }

    /// Nodes that answered and are ready.
    pub(super) fn up(&self) -> usize {
        self.answered().count()
    }

    /// Whether every node knows a leader of every group.
    pub(super) fn is_led(&self) -> bool {
        let knows = |counts: &GroupCounts| counts.total == self.groups && counts.leaderless == 0;
        self.up() == self.counts.len() && self.led() == self.groups && self.answered().all(knows)
    }

    /// Whether no node leads many more groups than another.
    pub(super) fn is_balanced(&self) -> bool {
        let leading = || self.answered().map(|counts| counts.leading);
        let (most, least) = (leading().max().unwrap_or(0), leading().min().unwrap_or(0));
        let share = self.groups / (self.counts.len() as u64).max(1);
        most - least <= (share * BALANCE_PERCENT / 100).max(1)
    }

    /// How many each node leads, in words.
    pub(in crate::cli) fn spread(&self) -> String {
        let of = |(node, counts): &(u64, Option<GroupCounts>)| match counts {
            Some(counts) => format!("{} on node {node}", counts.leading),
            None => format!("node {node} does not answer"),
        };
        let all: Vec<_> = self.counts.iter().map(of).collect();
        all.join(", ")
    }

    /// The first node that gave no answer.
    pub(super) fn silent(&self) -> Option<u64> {
        let silent = self.counts.iter().find(|(_, counts)| counts.is_none());
        silent.map(|(node, _)| *node)
    }

    /// How far it is, in words.
    pub(super) fn message(&self) -> String {
        let (nodes, groups) = (self.counts.len() as u64, self.groups);
        format!(
            "{} of {} up, {} of {} led",
            self.up(),
            count(nodes, "node"),
            self.led(),
            count(groups, "group")
        )
    }

    /// The same, and whom it waits for.
    pub(super) fn awaited(&self) -> String {
        let silent = self.counts.iter().filter(|(_, counts)| counts.is_none());
        let silent: Vec<_> = silent.map(|(node, _)| format!("node {node}")).collect();
        let message = self.message();
        if silent.is_empty() {
            return message;
        }
        format!("{message}; waiting for {}", silent.join(" and "))
    }

    pub(super) fn groups(&self) -> u64 {
        self.groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(groups: u64, leading: &[Option<u64>]) -> Standing {
        let counts = |leading: u64| GroupCounts {
            total: groups,
            leading,
            following: groups - leading,
            ..GroupCounts::default()
        };
        let counts = leading.iter().map(|leading| leading.map(counts));
        Standing {
            groups,
            counts: (1..).zip(counts).collect(),
        }
    }

    #[test]
    fn every_group_must_have_a_leader_that_every_node_knows() {
        assert!(standing(150, &[Some(50), Some(50), Some(50)]).is_led());
        assert!(!standing(150, &[Some(50), Some(50), Some(49)]).is_led());
        assert!(!standing(100, &[Some(50), Some(50), None]).is_led());
        let mut unknown = standing(150, &[Some(50), Some(50), Some(50)]);
        if let Some(counts) = &mut unknown.counts[2].1 {
            counts.leaderless = 1;
        }
        assert!(!unknown.is_led());
    }

    #[test]
    fn those_that_are_awaited_are_named() {
        let some = standing(150, &[Some(50), None, None]);
        let said = some.awaited();
        assert_eq!(
            said,
            "1 of 3 nodes up, 50 of 150 groups led; waiting for node 2 and node 3"
        );
        assert_eq!(
            standing(1, &[Some(1)]).awaited(),
            "1 of 1 node up, 1 of 1 group led"
        );
    }

    #[test]
    fn leaders_are_balanced_within_a_tenth_of_a_share() {
        assert!(standing(150, &[Some(52), Some(51), Some(47)]).is_balanced());
        assert!(!standing(150, &[Some(53), Some(50), Some(47)]).is_balanced());
        assert!(standing(4, &[Some(2), Some(1), Some(1)]).is_balanced());
        assert!(!standing(4, &[Some(2), Some(2), Some(0)]).is_balanced());
    }
}
