//! Judges what was read of one group's replicas, all at one index: which of them is at fault.

use super::report::{Mismatch, Report};

/// Characters of a digest that a sentence shows.
const DIGEST_SHOWN: usize = 12;

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) node: u64,
    pub(super) applied: u64,
    pub(super) rows: u64,
    /// Of the rows.
    pub(super) digest: String,
    /// Of the saved outcomes, where they were read too.
    pub(super) saved: Option<String>,
}

impl Reading {
    fn content(&self) -> (u64, &str, Option<&str>) {
        (self.rows, &self.digest, self.saved.as_deref())
    }

    fn describe(&self) -> String {
        let shown = self.digest.get(..DIGEST_SHOWN).unwrap_or(&self.digest);
        format!("{} rows with digest {shown}", self.rows)
    }
}

/// What differs. The replicas that most agree with are taken to be right; if no majority agrees,
/// each is named.
pub(super) fn compare(group: u64, readings: &[Reading]) -> Vec<Mismatch> {
    let agreeing = |one: &Reading| {
        let same = readings
            .iter()
            .filter(|other| other.content() == one.content());
        same.count()
    };
    let Some(most) = readings.iter().max_by_key(|one| agreeing(one)) else {
        return Vec::new();
    };
    let majority = agreeing(most) * 2 > readings.len();
    let others = readings
        .iter()
        .filter(|one| !majority || one.content() != most.content());
    let mismatch = |one: &Reading| {
        let (rows, what) = (one.describe(), most.describe());
        let what = if !majority {
            format!(
                "holds {rows} at index {}, and no majority agrees",
                one.applied
            )
        } else if rows == what {
            "its saved outcomes differ from the other replicas'".to_owned()
        } else {
            format!("holds {rows} at index {}, the others {what}", one.applied)
        };
        Mismatch {
            group: Some(group),
            node: Some(one.node),
            what,
        }
    };
    others.map(mismatch).collect()
}

/// Counts the replicas that were read.
pub(super) fn count(report: &mut Report, readings: &[Reading]) {
    for reading in readings {
        if reading.rows > 0 && reading.applied > 0 {
            report.replicas += 1;
        } else {
            report.replicas_empty += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(node: u64, rows: u64, digest: &str) -> Reading {
        Reading {
            node,
            applied: 7,
            rows,
            digest: digest.to_owned(),
            saved: None,
        }
    }

    fn nodes(readings: &[Reading]) -> Vec<Option<u64>> {
        let found = compare(3, readings);
        assert!(found.iter().all(|mismatch| mismatch.group == Some(3)));
        found.into_iter().map(|mismatch| mismatch.node).collect()
    }

    #[test]
    fn the_replica_that_differs_from_most_is_named() {
        let same = [reading(1, 2, "a"), reading(2, 2, "a"), reading(3, 2, "a")];
        assert_eq!(nodes(&same), []);
        let [one, two, three] = same;
        let odd = reading(2, 2, "b");
        assert_eq!(nodes(&[one.clone(), odd.clone(), three.clone()]), [Some(2)]);
        let fewer = reading(1, 1, "a");
        assert_eq!(nodes(&[fewer, two.clone(), three.clone()]), [Some(1)]);
        // Two that differ, or three: nobody knows who is right.
        assert_eq!(nodes(&[one.clone(), odd.clone()]), [Some(1), Some(2)]);
        let all = [one.clone(), odd, reading(3, 2, "c")];
        assert_eq!(nodes(&all), [Some(1), Some(2), Some(3)]);
        let mut outcomes = two;
        outcomes.saved = Some("x".to_owned());
        let found = compare(3, &[one, outcomes, three]);
        assert!(found[0].what.contains("outcomes"), "{found:?}");
    }

    #[test]
    fn a_replica_without_a_value_or_an_index_does_not_count() {
        let mut report = Report::default();
        let mut unapplied = reading(2, 1, "a");
        unapplied.applied = 0;
        count(
            &mut report,
            &[reading(1, 1, "a"), unapplied, reading(3, 0, "a")],
        );
        assert_eq!((report.replicas, report.replicas_empty), (1, 2));
    }
}
