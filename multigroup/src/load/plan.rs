//! What a load run shall do. [`RawPlan`] is what was asked for; a [`Plan`] is one that can be run.

use std::time::Duration;

use thiserror::Error;

use super::client::Endpoint;
use crate::keyspace::KeySpace;
use crate::limits::{
    LOAD_KEYS_MAX, LOAD_TIME_MAX, LOAD_VALUE_BYTES_MAX, LOAD_VALUE_BYTES_MIN, LOAD_WINDOWS_MAX,
    LOAD_WRITERS_MAX,
};

/// What the writers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Add one to a counter.
    Incr,
    /// Set a value.
    Set,
    /// Read a value.
    Get,
    /// In turn: read, add, read, set.
    Mixed,
}

impl Operation {
    /// Its name in arguments and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Incr => "incr",
            Self::Set => "set",
            Self::Get => "get",
            Self::Mixed => "mixed",
        }
    }

    /// Whether it adds to counters.
    #[must_use]
    pub const fn has_counters(self) -> bool {
        matches!(self, Self::Incr | Self::Mixed)
    }

    /// Whether it reads or sets values.
    #[must_use]
    pub const fn has_values(self) -> bool {
        matches!(self, Self::Set | Self::Get | Self::Mixed)
    }

    /// Whether it changes values.
    #[must_use]
    pub const fn sets_values(self) -> bool {
        matches!(self, Self::Set | Self::Mixed)
    }
}

/// Where a writer goes on after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the next node.
    Roam,
    /// To the same one.
    Pin,
}

/// Whether what a run writes is kept account of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// In the ledger of the cluster's folder.
    Ledger,
    /// Nowhere: the run has keys of its own, so that no ledger's account of a key is put wrong.
    None,
}

/// What was asked for.
#[derive(Clone, Debug)]
pub struct RawPlan {
    /// The nodes; writer w begins at node w modulo their number.
    pub endpoints: Vec<Endpoint>,
    /// The cluster's groups.
    pub space: KeySpace,
    /// Writers.
    pub writers: usize,
    /// The timed part.
    pub duration: Duration,
    /// Keys; `None` for as many as there are groups.
    pub keys: Option<usize>,
    /// Bytes of a value that is set.
    pub value_bytes: usize,
    /// What the writers do.
    pub operation: Operation,
    /// The length of a window; `None` for one window over the whole run.
    pub window: Option<Duration>,
    /// Where a writer goes on after a failure.
    pub route: Route,
    /// How long an operation may take, a new connection included.
    pub patience: Duration,
    /// Whether what it writes is kept account of.
    pub account: Account,
}

/// Why a run can't be done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nowhere to send to.
    #[error("no endpoint is given")]
    NoEndpoint,
    /// An amount is out of range.
    #[error("{what} is {got}, and must be from {min} to {max}")]
    Amount {
        /// Which.
        what: &'static str,
        /// As asked for.
        got: usize,
        /// The least.
        min: usize,
        /// The most.
        max: usize,
    },
    /// A time is out of range.
    #[error("{what} is {got:?}, and must be from {min:?} to {max:?}")]
    Time {
        /// Which.
        what: &'static str,
        /// As asked for.
        got: Duration,
        /// The least.
        min: Duration,
        /// The most.
        max: Duration,
    },
    /// So short a window makes too many of them.
    #[error("{duration:?} in windows of {window:?} is more than {max} windows")]
    Windows {
        /// The run.
        duration: Duration,
        /// Its window.
        window: Duration,
        /// The bound.
        max: usize,
    },
}

/// A run that can be done.
#[derive(Clone, Debug)]
pub struct Plan {
    raw: RawPlan,
    keys: usize,
    window: Duration,
}

impl TryFrom<RawPlan> for Plan {
    type Error = PlanError;

    fn try_from(raw: RawPlan) -> Result<Self, PlanError> {
        if raw.endpoints.is_empty() {
            return Err(PlanError::NoEndpoint);
        }
        let keys = raw.keys.unwrap_or(raw.space.groups() as usize);
        let value_min = if raw.operation.has_values() {
            LOAD_VALUE_BYTES_MIN
        } else {
            0
        };
        let amounts = [
            ("the number of writers", raw.writers, 1, LOAD_WRITERS_MAX),
            ("the number of keys", keys, 1, LOAD_KEYS_MAX),
            (
                "the length of a value",
                raw.value_bytes,
                value_min,
                LOAD_VALUE_BYTES_MAX,
            ),
        ];
        for (what, got, min, max) in amounts {
            if !(min..=max).contains(&got) {
                return Err(PlanError::Amount {
                    what,
                    got,
                    min,
                    max,
                });
            }
        }
        let least = Duration::from_millis(1);
        let window = raw.window.unwrap_or(raw.duration);
        let times = [
            ("the run's length", raw.duration),
            ("the window's length", window),
            ("the time for one operation", raw.patience),
        ];
        for (what, got) in times {
            let (min, max) = (least, LOAD_TIME_MAX);
            if !(min..=max).contains(&got) {
                return Err(PlanError::Time {
                    what,
                    got,
                    min,
                    max,
                });
            }
        }
        let windows = raw.duration.as_micros().div_ceil(window.as_micros());
        if windows > LOAD_WINDOWS_MAX as u128 {
            let (duration, max) = (raw.duration, LOAD_WINDOWS_MAX);
            return Err(PlanError::Windows {
                duration,
                window,
                max,
            });
        }
        Ok(Self { raw, keys, window })
    }
}

impl Plan {
    /// What it was made from.
    #[must_use]
    pub const fn raw(&self) -> &RawPlan {
        &self.raw
    }

    /// Keys.
    #[must_use]
    pub const fn keys(&self) -> usize {
        self.keys
    }

    /// The length of a window, at most that of the run.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.window.min(self.raw.duration)
    }

    /// How many windows the run has.
    #[must_use]
    pub fn windows(&self) -> usize {
        let count = self
            .raw
            .duration
            .as_micros()
            .div_ceil(self.window().as_micros());
        usize::try_from(count).unwrap_or(LOAD_WINDOWS_MAX)
    }

    /// The names of the counters, or of the values: key i has a tag that maps it to group i modulo
    /// the groups. Keys that no ledger tells of have names of their own.
    pub(super) fn names(&self, kind: &str) -> Vec<String> {
        let tags = self.raw.space.tags();
        let kind = match self.raw.account {
            Account::Ledger => kind.to_owned(),
            Account::None => format!("free-{kind}"),
        };
        (0..self.keys)
            .map(|key| format!("{kind}:{{{}}}:{key}", tags[key % tags.len()]))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> RawPlan {
        RawPlan {
            endpoints: vec!["127.0.0.1:1".parse().unwrap()],
            space: KeySpace::new(10).unwrap(),
            writers: 8,
            duration: Duration::from_secs(30),
            keys: None,
            value_bytes: 16,
            operation: Operation::Incr,
            window: None,
            route: Route::Roam,
            patience: Duration::from_secs(15),
            account: Account::Ledger,
        }
    }

    #[test]
    fn what_no_ledger_tells_of_has_keys_of_its_own() {
        let account = Account::None;
        let free = Plan::try_from(RawPlan { account, ..raw() }).unwrap();
        let kept = Plan::try_from(raw()).unwrap().names("counter");
        let free = free.names("counter");
        assert!(free.iter().all(|name| !kept.contains(name)));
        for (at, name) in free.iter().enumerate() {
            let group = raw().space.group_of(name.as_bytes());
            assert_eq!(group.to_u64(), at as u64, "{name}");
        }
    }

    #[test]
    fn key_i_belongs_to_group_i_modulo_the_groups() {
        let keys = Some(35);
        let plan = Plan::try_from(RawPlan { keys, ..raw() }).unwrap();
        let names = plan.names("counter");
        assert_eq!(names.len(), 35);
        for (at, name) in names.iter().enumerate() {
            let group = plan.raw().space.group_of(name.as_bytes());
            assert_eq!(group.to_u64(), at as u64 % 10, "{name}");
        }
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), 35);
        assert_eq!(Plan::try_from(raw()).unwrap().keys(), 10, "one per group");
    }

    #[test]
    fn windows_cover_the_run() {
        let windows = |window| {
            let window = Some(Duration::from_secs(window));
            Plan::try_from(RawPlan { window, ..raw() })
                .unwrap()
                .windows()
        };
        assert_eq!([10, 7, 30, 99].map(windows), [3, 5, 1, 1]);
        assert_eq!(Plan::try_from(raw()).unwrap().windows(), 1);
    }

    #[test]
    fn what_can_t_be_run_is_refused_by_name() {
        let window = Some(Duration::from_millis(100));
        let cases = [
            (
                RawPlan {
                    endpoints: vec![],
                    ..raw()
                },
                "no endpoint",
            ),
            (
                RawPlan {
                    writers: 0,
                    ..raw()
                },
                "the number of writers is 0",
            ),
            (
                RawPlan {
                    writers: 5000,
                    ..raw()
                },
                "from 1 to 4096",
            ),
            (
                RawPlan {
                    keys: Some(0),
                    ..raw()
                },
                "the number of keys is 0",
            ),
            (
                RawPlan {
                    value_bytes: 15,
                    operation: Operation::Set,
                    ..raw()
                },
                "from 16 to",
            ),
            (
                RawPlan {
                    value_bytes: 200_000,
                    ..raw()
                },
                "the length of a value is 200000, and must be from 0 to 192512",
            ),
            (
                RawPlan {
                    duration: Duration::ZERO,
                    ..raw()
                },
                "the run's length is 0ns",
            ),
            (
                RawPlan {
                    patience: Duration::MAX,
                    ..raw()
                },
                "the time for one operation",
            ),
            (
                RawPlan { window, ..raw() },
                "30s in windows of 100ms is more than 256",
            ),
        ];
        for (raw, expected) in cases {
            let error = Plan::try_from(raw).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let value_bytes = 1;
        assert!(
            Plan::try_from(RawPlan {
                value_bytes,
                ..raw()
            })
            .is_ok(),
            "no value is set"
        );
    }
}
