//! What a run must know of a cluster before it can begin, asked from a node: how keys map to groups,
//! and under which policy and with which log the figures will be made.
//!
//! The map is found by asking the groups of some keys (`MG.GROUP`), since that is the very map the
//! node works with: for a hash h and its group g, the number of groups divides h - g, so the greatest
//! common divisor of enough such differences is that number. Policy and log are lines of `INFO`.

use std::time::{Duration, Instant};

use thiserror::Error;
use transport::io::clock;

use super::answer::Answer;
use super::client::{CallError, Client, Endpoint};
use crate::keyspace::KeySpace;
use crate::limits::GROUPS_MAX;

/// Keys whose group is asked. Two random multiples of the number of groups have no other common
/// divisor in 6 of 10 cases; 64 of them have one with a chance below 10^-18.
const PROBES: u32 = 64;

const POLICY: &str = "multigroup_policy";
const LOG_SYNC: &str = "multigroup_log_sync";

/// What a run must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFacts {
    /// How keys map to groups.
    pub space: KeySpace,
    /// The policy of groups, if the node tells.
    pub policy: Option<String>,
    /// Whether the log is synced, if the node tells.
    pub log_sync: Option<bool>,
}

impl ClusterFacts {
    /// The lines by which a node's `INFO` tells them.
    #[must_use]
    pub fn info_section(&self) -> String {
        let mut text = format!(
            "# Multigroup\r\nmultigroup_groups:{}\r\n",
            self.space.groups()
        );
        if let Some(policy) = &self.policy {
            text.push_str(&format!("{POLICY}:{policy}\r\n"));
        }
        if let Some(sync) = self.log_sync {
            text.push_str(&format!("{LOG_SYNC}:{}\r\n", u8::from(sync)));
        }
        text
    }
}

/// Why they aren't known.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FactsError {
    /// No node answered; this is what the last one that was tried came to.
    #[error("no node answered")]
    Unreachable {
        /// What it came to.
        source: CallError,
    },
    /// There is no node to ask.
    #[error("no endpoint is given")]
    NoEndpoint,
    /// A server answered, and not as a node of a cluster would.
    #[error("{endpoint} is no node of a cluster: it answered {to} with: {got}")]
    NotANode {
        /// Who.
        endpoint: Endpoint,
        /// To what.
        to: &'static str,
        /// What it said.
        got: Box<Answer>,
    },
    /// The groups that a server tells fit no number of groups.
    #[error("{endpoint} maps keys to groups in a way that is not ours")]
    StrangeMap {
        /// Who.
        endpoint: Endpoint,
    },
}

/// Asks the first endpoint that answers.
///
/// # Errors
/// [`FactsError`].
pub async fn ask(endpoints: &[Endpoint], patience: Duration) -> Result<ClusterFacts, FactsError> {
    let mut last = FactsError::NoEndpoint;
    for endpoint in endpoints {
        match ask_one(endpoint, clock::now() + patience).await {
            Err(FactsError::Unreachable { source }) => last = FactsError::Unreachable { source },
            told => return told,
        }
    }
    Err(last)
}

async fn ask_one(endpoint: &Endpoint, deadline: Instant) -> Result<ClusterFacts, FactsError> {
    let gone = |source| FactsError::Unreachable { source };
    let mut client = Client::connect(endpoint, deadline).await.map_err(gone)?;
    let probes: Vec<String> = (0..PROBES).map(|probe| probe.to_string()).collect();
    for probe in &probes {
        client.queue(&[b"MG.GROUP", probe.as_bytes()]);
    }
    client.queue(&[b"INFO"]);
    client.send(deadline).await.map_err(gone)?;
    let not_a_node = |to, got| FactsError::NotANode {
        endpoint: endpoint.clone(),
        to,
        got: Box::new(got),
    };
    let mut groups = Vec::with_capacity(probes.len());
    for probe in &probes {
        let answer = client.next(deadline).await.map_err(gone)?;
        let Answer::Integer(group) = answer else {
            return Err(not_a_node("MG.GROUP", answer));
        };
        groups.push((probe.as_str(), group));
    }
    let space = space_of(&groups).ok_or_else(|| FactsError::StrangeMap {
        endpoint: endpoint.clone(),
    })?;
    let answer = client.next(deadline).await.map_err(gone)?;
    if let Answer::Bulk(text) = &answer {
        Ok(with_info(space, &String::from_utf8_lossy(text)))
    } else {
        Err(not_a_node("INFO", answer))
    }
}

/// The one key space that maps these keys to these groups.
fn space_of(groups: &[(&str, i64)]) -> Option<KeySpace> {
    let hashes = KeySpace::new(GROUPS_MAX)?;
    let mut divisor = 0;
    for (key, group) in groups {
        let group = u64::try_from(*group).ok()?;
        let hash = hashes.group_of(key.as_bytes()).to_u64();
        divisor = greatest_common_divisor(divisor, hash.checked_sub(group)?);
    }
    let groups_count = match divisor {
        // Each key is in the group of its whole hash.
        0 => GROUPS_MAX,
        divisor => u32::try_from(divisor).ok()?,
    };
    let space = KeySpace::new(groups_count)?;
    let agrees = |(key, group): &(&str, i64)| {
        u64::try_from(*group) == Ok(space.group_of(key.as_bytes()).to_u64())
    };
    groups.iter().all(agrees).then_some(space)
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn with_info(space: KeySpace, text: &str) -> ClusterFacts {
    let find = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.trim())
    };
    ClusterFacts {
        space,
        policy: find(POLICY).map(str::to_owned),
        log_sync: match find(LOG_SYNC) {
            Some("1") => Some(true),
            Some("0") => Some(false),
            Some(_) | None => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_groups_follows_from_the_groups_of_some_keys() {
        let probes: Vec<String> = (0..PROBES).map(|probe| probe.to_string()).collect();
        for groups in [
            1, 2, 3, 150, 1500, 16_384, 32_767, 32_768, 40_000, GROUPS_MAX,
        ] {
            let space = KeySpace::new(groups).unwrap();
            let told: Vec<_> = probes
                .iter()
                .map(|probe| {
                    let group = space.group_of(probe.as_bytes()).to_u64();
                    (probe.as_str(), i64::try_from(group).unwrap())
                })
                .collect();
            assert_eq!(space_of(&told), Some(space));
            let mut wrong = told.clone();
            wrong[9].1 += 1;
            assert_ne!(space_of(&wrong), Some(space));
        }
        assert_eq!(space_of(&[("0", -1)]), None);
        assert_eq!(space_of(&[("0", i64::MAX)]), None);
    }

    #[test]
    fn a_node_s_lines_read_back() {
        for (policy, log_sync) in [
            (Some("quorum"), Some(true)),
            (None, Some(false)),
            (None, None),
        ] {
            let facts = ClusterFacts {
                space: KeySpace::new(12).unwrap(),
                policy: policy.map(str::to_owned),
                log_sync,
            };
            assert_eq!(with_info(facts.space, &facts.info_section()), facts);
        }
    }
}
