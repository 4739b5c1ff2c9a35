//! Holds what the archive has against what the replicas applied: of a cluster at rest, each group
//! must be archived up to its last applied entry, exactly.

use std::collections::BTreeMap;

use raft_host::id::GroupId;
use tokio::time::sleep;
use transport::io::clock;

use super::online::{Answered, PAUSE, RunningNode, Unreachable, settle};
use super::report::{Mismatch, Report};
use crate::archive::{ArchiveUrl, Position, positions};
use crate::causes::with_causes;
use crate::limits::VERIFY_SETTLE;

/// The positions of an archive, or why it can't be read.
pub type Positions = Result<BTreeMap<GroupId, Position>, String>;

/// Reads the positions of an archive.
///
/// # Errors
/// Why it can't be read, in words.
pub async fn archive_positions(url: &ArchiveUrl) -> Positions {
    positions(url).await.map_err(|error| with_causes(&error))
}

/// How a group's position stands to what was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Exact,
    Behind { archived: u64 },
    Ahead { archived: u64 },
}

fn stand(positions: &BTreeMap<GroupId, Position>, group: GroupId, applied: u64) -> Stand {
    let position = positions.get(&group).copied().unwrap_or_default();
    let archived = position.index.to_u64();
    match archived.cmp(&applied) {
        std::cmp::Ordering::Equal => Stand::Exact,
        std::cmp::Ordering::Less => Stand::Behind { archived },
        std::cmp::Ordering::Greater => Stand::Ahead { archived },
    }
}

fn mismatch(group: GroupId, what: String) -> Mismatch {
    Mismatch {
        group: group.to_u64(),
        node: None,
        what,
    }
}

fn unreadable(report: &mut Report, groups: impl Iterator<Item = GroupId>, why: &str) {
    report
        .add_all(groups.map(|group| mismatch(group, format!("the archive can't be read: {why}"))));
}

/// Adds the archive's positions to what running nodes answered: reads them again until each group
/// is archived up to what it has applied, as publishing takes a moment.
pub async fn archived_online(url: &ArchiveUrl, nodes: &[RunningNode], answered: &mut Answered) {
    let unreachable = Unreachable::default();
    let start = clock::now();
    let applied = &mut answered.applied;
    loop {
        let read = archive_positions(url).await;
        let late = clock::now().duration_since(start) >= VERIFY_SETTLE;
        let positions = match read {
            Ok(positions) => positions,
            Err(why) if late => {
                return unreadable(&mut answered.report, applied.keys().copied(), &why);
            }
            Err(_) => {
                sleep(PAUSE).await;
                continue;
            }
        };
        let stands = applied.iter();
        let stands = stands.map(|(group, index)| (*group, stand(&positions, *group, *index)));
        let others: Vec<_> = stands.filter(|(_, is)| *is != Stand::Exact).collect();
        if others.is_empty() || late {
            let exact = applied.len() - others.len();
            answered.report.archive_positions = exact as u64;
            for (group, stand) in others {
                let (Stand::Behind { archived } | Stand::Ahead { archived }) = stand else {
                    continue;
                };
                let index = applied.get(&group).copied().unwrap_or_default();
                let what = format!(
                    "it is archived up to entry {archived}, and applied up to {index} after {} s",
                    VERIFY_SETTLE.as_secs()
                );
                answered.report.add(mismatch(group, what));
            }
            return;
        }
        for (group, stand) in others {
            // A new leader adds an entry of its own.
            if matches!(stand, Stand::Ahead { .. }) {
                let (readings, _) = settle(group, nodes, &unreachable).await;
                if let Some(reading) = readings.first() {
                    applied.insert(group, reading.applied);
                }
            }
        }
        sleep(PAUSE).await;
    }
}

/// The same for what stopped nodes left. Nodes that were killed leave entries that only their logs
/// have: such a group is not counted, and nothing is wrong with it. One whose archive has more than
/// any log lost something.
pub(super) fn archived_offline(
    positions: &Positions,
    applied: &BTreeMap<GroupId, u64>,
    report: &mut Report,
) {
    let positions = match positions {
        Ok(positions) => positions,
        Err(why) => return unreadable(report, applied.keys().copied(), why),
    };
    for (group, index) in applied {
        match stand(positions, *group, *index) {
            Stand::Exact => report.archive_positions += 1,
            Stand::Behind { .. } => {}
            Stand::Ahead { archived } => report.add(mismatch(
                *group,
                format!("it is archived up to entry {archived}, and its logs end at {index}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use raft_host::id::{Index, Term};

    use super::*;

    #[test]
    fn only_exact_positions_count_and_none_may_be_beyond_the_logs() {
        let at = |index| Position {
            index: Index::new(index),
            term: Term::new(1),
        };
        let groups = [0, 1, 2, 3].map(GroupId::new);
        let positions =
            BTreeMap::from([(groups[0], at(7)), (groups[1], at(6)), (groups[2], at(8))]);
        let applied: BTreeMap<_, _> = groups.into_iter().map(|group| (group, 7)).collect();
        let mut report = Report::default();
        archived_offline(&Ok(positions), &applied, &mut report);
        assert_eq!((report.archive_positions, report.mismatches), (1, 1));
        assert_eq!(report.first_mismatches[0].group, 2);
        let mut report = Report::default();
        archived_offline(&Err("gone".to_owned()), &applied, &mut report);
        assert_eq!((report.archive_positions, report.mismatches), (0, 4));
    }
}
