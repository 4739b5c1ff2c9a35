//! What whole processes cost, thread by thread: CPU time and sleeps of every thread of some
//! processes, added up by the threads' names with the digits at their ends left out. A thread that
//! ended between two readings is missing from the difference; nodes under load end none.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::Fault;
use crate::meter::{ThreadMeter, Usage};

/// The usage of each kind of thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByThread(BTreeMap<String, Usage>);

/// Reads all threads of these processes.
///
/// # Errors
/// One of the processes isn't running.
pub fn usage(processes: &[i32]) -> Result<ByThread, Fault> {
    let mut all = BTreeMap::<_, Usage>::new();
    for process in processes {
        let tasks = PathBuf::from(format!("/proc/{process}/task"));
        let listed = fs::read_dir(&tasks).map_err(|error| format!("process {process}: {error}"))?;
        for task in listed {
            let folder = task?.path();
            // One that ends while it is read has no part in what follows.
            let Ok(name) = fs::read_to_string(folder.join("comm")) else {
                continue;
            };
            let Ok(used) = ThreadMeter::at(folder).read() else {
                continue;
            };
            let kind = all.entry(kind(&name)).or_default();
            *kind = kind.plus(used);
        }
    }
    Ok(ByThread(all))
}

fn kind(name: &str) -> String {
    let name = name.trim();
    let kind = name.trim_end_matches(|last: char| last.is_ascii_digit());
    kind.trim_end_matches('-').to_owned()
}

impl ByThread {
    /// What was used since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let used = self.0.iter().map(|(kind, used)| {
            let before = earlier.0.get(kind).copied().unwrap_or_default();
            (kind.clone(), used.since(before))
        });
        Self(used.collect())
    }

    /// Each kind and what it used.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, Usage)> {
        self.0.iter().map(|(kind, used)| (kind.as_str(), *used))
    }

    /// All together.
    #[must_use]
    pub fn total(&self) -> Usage {
        self.0.values().copied().fold(Usage::default(), Usage::plus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_differ_by_a_number_are_one_kind() {
        assert_eq!(kind("raft-shard-0\n"), "raft-shard");
        assert_eq!(kind("tokio-rt-worker\n"), "tokio-rt-worker");
        assert_eq!(kind("raft-apply-12"), "raft-apply");
    }

    #[test]
    fn this_process_is_read_and_another_one_is_refused() {
        let own = i32::try_from(std::process::id()).unwrap();
        let first = usage(&[own]).unwrap();
        // A thread's account may be a tick old: work until it shows.
        let mut shown = false;
        for _ in 0..10_000 {
            std::hint::black_box((0..100_000_u64).fold(0, |sum, n| std::hint::black_box(sum ^ n)));
            shown = usage(&[own]).unwrap().since(&first).total().cpu > std::time::Duration::ZERO;
            if shown {
                break;
            }
        }
        assert!(shown);
        assert!(usage(&[i32::MAX]).is_err());
    }
}
