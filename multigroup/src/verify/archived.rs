//! Holds what the archive has against what the replicas applied: of a cluster at rest, each group
//! must be archived up to its last applied entry, exactly.

use std::collections::BTreeMap;

use raft_host::id::GroupId;
use tokio::time::sleep;
use transport::io::clock;

use super::online::{Answered, PAUSE, RunningNode, Unreachable, settle};
use super::report::{Mismatch, Report};
use crate::archive::{ArchiveError, ArchiveUrl, Position, Whose, check, positions};
use crate::causes::with_causes;
use crate::limits::VERIFY_SETTLE;

/// An archive of which every object was read.
#[derive(Clone, Debug, Default)]
pub struct ArchiveRead {
    positions: BTreeMap<GroupId, Position>,
    faults: u64,
    first_faults: Vec<String>,
}

/// What an archive has, or why it can't be read.
pub type Archived = Result<ArchiveRead, String>;

/// Reads a whole archive, which is to be this cluster's: a position counts only out of objects that
/// were read to their last byte.
///
/// # Errors
/// Why it can't be read, in words.
pub async fn read_archive(url: &ArchiveUrl, own: &Whose) -> Archived {
    let checked = check(url, &mut |_, _| ()).await;
    let checked = checked.map_err(|error| with_causes(&error))?;
    let identity = checked.identity;
    let archived = Whose {
        cluster: identity.cluster,
        // Which one it is, is said where both say it.
        id: identity.cluster_id.and(own.id).and(identity.cluster_id),
        groups: identity.groups,
    };
    let known = Whose {
        id: own.id.and(archived.id),
        ..own.clone()
    };
    if archived != known {
        return Err(format!("{url} is that of {archived}, and this is {known}"));
    }
    Ok(ArchiveRead {
        positions: checked.positions,
        faults: checked.faults,
        first_faults: checked.first_faults,
    })
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
        group: Some(group.to_u64()),
        node: None,
        what,
    }
}

fn unreadable(report: &mut Report, why: &str) {
    report.add(Mismatch {
        group: None,
        node: None,
        what: format!("the archive can't be read: {why}"),
    });
}

/// What is wrong with the archive itself.
fn add_faults(archive: &ArchiveRead, report: &mut Report) {
    let told = archive.first_faults.iter().map(|what| Mismatch {
        group: None,
        node: None,
        what: format!("the archive is damaged: {what}"),
    });
    report.add_all(told);
    report.mismatches += archive.faults - archive.first_faults.len() as u64;
}

fn others(
    positions: &BTreeMap<GroupId, Position>,
    applied: &BTreeMap<GroupId, u64>,
) -> Vec<(GroupId, Stand)> {
    let stands = applied.iter();
    let stands = stands.map(|(group, index)| (*group, stand(positions, *group, *index)));
    stands.filter(|(_, is)| *is != Stand::Exact).collect()
}

/// Adds the archive's positions to what running nodes answered: reads them again until each group
/// is archived up to what it has applied, as publishing takes a moment, and then every object.
pub async fn archived_online(
    url: &ArchiveUrl,
    own: &Whose,
    nodes: &[RunningNode],
    answered: &mut Answered,
) {
    let start = clock::now();
    loop {
        let late = clock::now().duration_since(start) >= VERIFY_SETTLE;
        let left = match positions(url).await {
            Ok(positions) => others(&positions, &answered.applied),
            // What is damaged stays so.
            Err(ArchiveError::Object { .. }) => Vec::new(),
            Err(_) if late => Vec::new(),
            Err(_) => {
                sleep(PAUSE).await;
                continue;
            }
        };
        if left.is_empty() || late {
            let archive = match read_archive(url, own).await {
                Ok(archive) => archive,
                Err(why) => return unreadable(&mut answered.report, &why),
            };
            let others = others(&archive.positions, &answered.applied);
            if others.is_empty() || late || archive.faults > 0 {
                return judge(&archive, &others, answered);
            }
        }
        resettle(&left, nodes, answered).await;
        sleep(PAUSE).await;
    }
}

fn judge(archive: &ArchiveRead, others: &[(GroupId, Stand)], answered: &mut Answered) {
    let exact = answered.applied.len() - others.len();
    answered.report.archive_positions = exact as u64;
    add_faults(archive, &mut answered.report);
    for (group, stand) in others {
        let (Stand::Behind { archived } | Stand::Ahead { archived }) = stand else {
            continue;
        };
        let index = answered.applied.get(group).copied().unwrap_or_default();
        let what = format!("it is archived up to entry {archived}, and applied up to {index}");
        answered.report.add(mismatch(*group, what));
    }
}

/// A new leader adds an entry of its own.
async fn resettle(others: &[(GroupId, Stand)], nodes: &[RunningNode], answered: &mut Answered) {
    let unreachable = Unreachable::default();
    for (group, stand) in others {
        if matches!(stand, Stand::Ahead { .. }) {
            let (readings, _) = settle(*group, nodes, &unreachable).await;
            if let Some(reading) = readings.first() {
                answered.applied.insert(*group, reading.applied);
            }
        }
    }
}

/// The same for what stopped nodes left. Nodes that were killed leave entries that only their logs
/// have: such a group is not counted, and nothing is wrong with it. One whose archive has more than
/// any log lost something.
pub(super) fn archived_offline(
    archive: &Archived,
    applied: &BTreeMap<GroupId, u64>,
    report: &mut Report,
) {
    let archive = match archive {
        Ok(archive) => archive,
        Err(why) => return unreadable(report, why),
    };
    add_faults(archive, report);
    for (group, index) in applied {
        match stand(&archive.positions, *group, *index) {
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
        let archive = ArchiveRead {
            positions,
            ..ArchiveRead::default()
        };
        archived_offline(&Ok(archive.clone()), &applied, &mut report);
        assert_eq!((report.archive_positions, report.mismatches), (1, 1));
        assert_eq!(report.first_mismatches[0].group, Some(2));
        let damaged = ArchiveRead {
            faults: 12,
            first_faults: vec!["object 1 of node 2 is damaged".to_owned()],
            ..archive
        };
        let mut report = Report::default();
        archived_offline(&Ok(damaged), &applied, &mut report);
        assert_eq!((report.archive_positions, report.mismatches), (1, 13));
        assert_eq!(report.first_mismatches[0].group, None);
        let mut report = Report::default();
        archived_offline(&Err("gone".to_owned()), &applied, &mut report);
        assert_eq!((report.archive_positions, report.mismatches), (0, 1));
    }
}
