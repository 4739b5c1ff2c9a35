//! What the ledger says that each key must hold, summed over all runs. A counter lies between what
//! was acknowledged and what may have happened beyond that. Of a value that was set only its
//! presence is judged: writers of one key at once leave open whose write came last.

use std::collections::BTreeMap;

use super::report::Mismatch;
use crate::command::parse_integer;
use crate::keyspace::KeySpace;
use crate::load::LedgerEntry;

/// What is known of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The key.
    pub key: String,
    /// Its group.
    pub group: u64,
    /// Whether it is a counter.
    pub is_counter: bool,
    /// Writes acknowledged.
    pub acked: u64,
    /// Writes that may have happened.
    pub unknown: u64,
}

/// The account of each key, in the order of groups.
#[must_use]
pub fn accounts(entries: &[LedgerEntry], space: KeySpace) -> Vec<Account> {
    let mut accounts: BTreeMap<(u64, &str), Account> = BTreeMap::new();
    for entry in entries {
        let group = space.group_of(entry.key.as_bytes()).to_u64();
        let account = accounts
            .entry((group, &entry.key))
            .or_insert_with(|| Account {
                key: entry.key.clone(),
                group,
                is_counter: entry.op == "incr",
                acked: 0,
                unknown: 0,
            });
        account.acked = account.acked.saturating_add(entry.acked);
        account.unknown = account.unknown.saturating_add(entry.unknown);
    }
    accounts.into_values().collect()
}

impl Account {
    /// What is wrong with the key's value, if anything is.
    pub(super) fn fault(&self, value: Option<&[u8]>) -> Option<String> {
        let Self {
            key,
            acked,
            unknown,
            ..
        } = self;
        let Some(value) = value else {
            return Some(format!(
                "key {key} is missing, {acked} writes were acknowledged"
            ));
        };
        if !self.is_counter {
            return None;
        }
        let least = i128::from(*acked);
        let most = least + i128::from(*unknown);
        match parse_integer(value) {
            Some(count) if (least..=most).contains(&i128::from(count)) => None,
            Some(count) => Some(format!(
                "counter {key} is {count}, {acked} were acknowledged and {unknown} more may have \
                 happened"
            )),
            None => Some(format!("counter {key} holds no number")),
        }
    }

    pub(super) fn mismatch(&self, node: Option<u64>, what: String) -> Mismatch {
        Mismatch {
            group: Some(self.group),
            node,
            what,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(op: &str, key: &str, acked: u64, unknown: u64) -> LedgerEntry {
        LedgerEntry {
            run: "r".to_owned(),
            op: op.to_owned(),
            key: key.to_owned(),
            acked,
            unknown,
            last: String::new(),
        }
    }

    #[test]
    fn a_counter_lies_between_acked_and_acked_plus_unknown_over_all_runs() {
        let space = KeySpace::new(8).unwrap();
        let entries = [
            entry("incr", "c", 5, 1),
            entry("set", "v", 2, 0),
            entry("incr", "c", 3, 1),
        ];
        let accounts = accounts(&entries, space);
        assert_eq!(accounts.len(), 2);
        let of = |key: &str| accounts.iter().find(|one| one.key == key).unwrap();
        let counter = of("c");
        assert_eq!(counter.group, space.group_of(b"c").to_u64());
        for value in ["8", "9", "10"] {
            assert_eq!(counter.fault(Some(value.as_bytes())), None, "{value}");
        }
        for (value, word) in [
            ("7", "is 7"),
            ("11", "is 11"),
            ("-8", "is -8"),
            ("x", "number"),
        ] {
            let fault = counter.fault(Some(value.as_bytes())).unwrap();
            assert!(fault.contains(word), "{fault}");
        }
        assert!(counter.fault(None).unwrap().contains("missing"));
        assert_eq!(of("v").fault(Some(b"anything")), None);
        assert!(of("v").fault(None).is_some());
    }
}
