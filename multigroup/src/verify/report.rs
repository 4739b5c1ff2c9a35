//! The result as programs read it: `multigroup.verify/1`.

use std::fmt;

use serde::Serialize;

use crate::limits::MISMATCHES_SHOWN;

/// The schema of [`Report`].
pub const VERIFY_SCHEMA: &str = "multigroup.verify/1";

/// Something that isn't as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// The group; none where it is the archive that is at fault.
    pub group: Option<u64>,
    /// The node whose replica is at fault, where one alone is.
    pub node: Option<u64>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = self.group {
            write!(f, "group {group}")?;
            if let Some(node) = self.node {
                write!(f, ", node {node}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.what)
    }
}

/// What came of a verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// [`VERIFY_SCHEMA`].
    pub schema: &'static str,
    /// Replicas that hold something and were read.
    pub replicas: u64,
    /// Replicas that were read and hold nothing.
    pub replicas_empty: u64,
    /// Archive positions that were compared.
    pub archive_positions: u64,
    /// Counters whose value is what the account says.
    pub counters_exact: u64,
    /// Lines of the load ledger that a crash cut off, whose operations nothing accounts for.
    pub ledger_lines_cut: u64,
    /// Everything that isn't as it must be.
    pub mismatches: u64,
    /// The first of them.
    pub first_mismatches: Vec<Mismatch>,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            schema: VERIFY_SCHEMA,
            replicas: 0,
            replicas_empty: 0,
            archive_positions: 0,
            counters_exact: 0,
            ledger_lines_cut: 0,
            mismatches: 0,
            first_mismatches: Vec::new(),
        }
    }
}

impl Report {
    pub(super) fn add(&mut self, mismatch: Mismatch) {
        self.mismatches += 1;
        if self.first_mismatches.len() < MISMATCHES_SHOWN {
            self.first_mismatches.push(mismatch);
        }
    }

    pub(super) fn add_all(&mut self, mismatches: impl IntoIterator<Item = Mismatch>) {
        mismatches
            .into_iter()
            .for_each(|mismatch| self.add(mismatch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mismatches_are_counted_and_the_first_ten_told() {
        let mut report = Report::default();
        report.add_all((0..12).map(|group| Mismatch {
            group: Some(group),
            node: (group > 0).then_some(2),
            what: "rows".to_owned(),
        }));
        let value = serde_json::to_value(&report).unwrap();
        let keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        let mut expected = vec![
            "schema",
            "replicas",
            "replicas_empty",
            "archive_positions",
            "counters_exact",
            "ledger_lines_cut",
            "mismatches",
            "first_mismatches",
        ];
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(value["mismatches"], 12);
        let told = value["first_mismatches"].as_array().unwrap();
        assert_eq!(told.len(), 10);
        assert_eq!(told[9]["group"], 9);
        assert_eq!(told[0]["node"], serde_json::Value::Null);
        assert_eq!(
            report.first_mismatches[1].to_string(),
            "group 1, node 2: rows"
        );
    }
}
