//! The result of a load run as programs read it: `multigroup.load/1`.

use std::time::Duration;

use serde::Serialize;

use super::plan::Plan;
use super::tally::{FailureKind, Tally, Window};

/// Failed operations by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ErrorCounts {
    /// [`FailureKind::Timeout`].
    pub timeout: u64,
    /// [`FailureKind::Unknown`].
    pub unknown: u64,
    /// [`FailureKind::Refused`].
    pub refused: u64,
    /// [`FailureKind::NoLeader`].
    pub no_leader: u64,
    /// [`FailureKind::Connection`].
    pub connection: u64,
    /// [`FailureKind::Protocol`].
    pub protocol: u64,
}

impl ErrorCounts {
    /// Each kind's name and count.
    #[must_use]
    pub const fn by_name(&self) -> [(&'static str, u64); 6] {
        [
            ("timeout", self.timeout),
            ("unknown", self.unknown),
            ("refused", self.refused),
            ("no_leader", self.no_leader),
            ("connection", self.connection),
            ("protocol", self.protocol),
        ]
    }

    /// The kinds that there were, each as its name and its count in the order that `told` gives
    /// them.
    #[must_use]
    pub fn in_words(&self, told: impl Fn(&str, u64) -> String) -> String {
        let there = self.by_name().into_iter().filter(|(_, count)| *count > 0);
        let there: Vec<_> = there.map(|(name, count)| told(name, count)).collect();
        there.join(", ")
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_name().iter().map(|(_, count)| count).sum()
    }

    pub(super) const fn count(&mut self, kind: FailureKind) {
        *self.of_mut(kind) += 1;
    }

    pub(super) const fn add(&mut self, other: &Self) {
        self.timeout += other.timeout;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.no_leader += other.no_leader;
        self.connection += other.connection;
        self.protocol += other.protocol;
    }

    const fn of_mut(&mut self, kind: FailureKind) -> &mut u64 {
        match kind {
            FailureKind::Timeout => &mut self.timeout,
            FailureKind::Unknown => &mut self.unknown,
            FailureKind::Refused => &mut self.refused,
            FailureKind::NoLeader => &mut self.no_leader,
            FailureKind::Connection => &mut self.connection,
            FailureKind::Protocol => &mut self.protocol,
        }
    }
}

/// Counts, rate and latencies of a stretch of time. Latencies are those of acknowledged operations,
/// and missing if there was none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Operations begun.
    pub operations: u64,
    /// Of these, acknowledged.
    pub acked: u64,
    /// Acknowledged operations a second.
    pub operations_per_s: f64,
    /// Half of them took no longer.
    pub p50_us: Option<u64>,
    /// 90 of 100 took no longer.
    pub p90_us: Option<u64>,
    /// 99 of 100 took no longer.
    pub p99_us: Option<u64>,
    /// 999 of 1000 took no longer.
    pub p999_us: Option<u64>,
    /// None took longer.
    pub max_us: Option<u64>,
    /// The others, by kind.
    pub errors: ErrorCounts,
    /// All of the others.
    pub errors_total: u64,
}

impl Figures {
    fn of(window: &Window, length: Duration) -> Self {
        let at = |quantile: f64| {
            let any = !window.latencies_us.is_empty();
            any.then(|| window.latencies_us.value_at_quantile(quantile))
        };
        let errors_total = window.errors.total();
        let rate = if length.is_zero() {
            0.0
        } else {
            window.acked as f64 / length.as_secs_f64()
        };
        Self {
            operations: window.acked + errors_total,
            acked: window.acked,
            operations_per_s: rounded(rate),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: at(1.0),
            errors: window.errors,
            errors_total,
        }
    }
}

/// The figures of one window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowFigures {
    /// When it began, from the run's start.
    pub start_s: f64,
    /// How long it was.
    pub seconds: f64,
    /// What happened in it.
    #[serde(flatten)]
    pub figures: Figures,
}

/// The program that made a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Build {
    /// The commit, where the build knew one.
    pub commit: &'static str,
    /// `release` or `debug`.
    pub profile: &'static str,
}

impl Build {
    /// This program.
    pub const THIS: Self = Self {
        commit: env!("MULTIGROUP_COMMIT"),
        profile: env!("MULTIGROUP_PROFILE"),
    };
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// `multigroup.load/1`.
    pub schema: &'static str,
    /// Writers.
    pub writers: usize,
    /// The timed part, as it was.
    pub seconds: f64,
    /// What the writers did.
    pub op: &'static str,
    /// The policy of the cluster's groups, where it is known.
    pub policy: Option<String>,
    /// Whether the cluster syncs its log, where it is known.
    pub log_sync: Option<bool>,
    /// Everything.
    pub pooled: Figures,
    /// The same by windows.
    pub windows: Vec<WindowFigures>,
    /// The highest p99 of a window.
    pub worst_window_p99_us: Option<u64>,
    /// The program.
    pub build: Build,
}

impl Report {
    pub(super) fn new(plan: &Plan, tally: &Tally, length: Duration) -> Self {
        let mut pooled = Window::new();
        let mut windows = Vec::with_capacity(tally.windows.len());
        let mut start = Duration::ZERO;
        for window in &tally.windows {
            pooled.add(window);
            // A run that was stopped early has no later windows, and a shorter last one.
            let part = plan.window().min(length.saturating_sub(start));
            if !part.is_zero() || windows.is_empty() {
                windows.push(WindowFigures {
                    start_s: rounded(start.as_secs_f64()),
                    seconds: rounded(part.as_secs_f64()),
                    figures: Figures::of(window, part),
                });
            }
            start += plan.window();
        }
        let worst = windows
            .iter()
            .filter_map(|window| window.figures.p99_us)
            .max();
        Self {
            schema: "multigroup.load/1",
            writers: plan.raw().writers,
            seconds: rounded(length.as_secs_f64()),
            op: plan.raw().operation.name(),
            policy: None,
            log_sync: None,
            pooled: Figures::of(&pooled, length),
            windows,
            worst_window_p99_us: worst,
            build: Build::THIS,
        }
    }
}

/// To a thousandth: more digits would only look exact.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
