//! How far a run is, on stderr: a bar with rate and time left on a terminal, else a plain line every
//! few seconds. A run that is over sooner says nothing.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use transport::io::clock;

use crate::load::Progress;

/// Between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Where progress is shown.
pub(super) enum Display {
    Bar { bar: ProgressBar, last: Mutex<Last> },
    Lines { last: Mutex<Last> },
}

/// When something was last shown, of which part of the run, and the count then.
#[derive(Clone, Copy)]
pub(super) struct Last {
    at: Instant,
    part: Part,
    count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Keys,
    Operations,
}

impl Last {
    fn at(at: Instant) -> Self {
        Self {
            at,
            part: Part::Keys,
            count: 0,
        }
    }

    /// Counts from here if another part of the run has begun; gives whether it has.
    fn turn_to(&mut self, progress: Progress, now: Instant) -> bool {
        let (part, count) = match progress {
            Progress::Preparing { .. } => (Part::Keys, 0),
            Progress::Running { acked, .. } => (Part::Operations, acked),
        };
        let is_new = part != self.part;
        if is_new {
            *self = Self {
                at: now,
                part,
                count,
            };
        }
        is_new
    }

    /// How many a second since it was last shown, which is now.
    fn rate(&mut self, count: u64, now: Instant) -> f64 {
        let since = now.duration_since(self.at).as_secs_f64().max(1e-3);
        let rate = count.saturating_sub(self.count) as f64 / since;
        (self.at, self.count) = (now, count);
        rate
    }
}

impl Display {
    pub(super) fn new() -> Self {
        let last = Mutex::new(Last::at(clock::now()));
        if !std::io::stderr().is_terminal() {
            return Self::Lines { last };
        }
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::Bar { bar, last }
    }

    pub(super) fn show(&self, progress: Progress) {
        match self {
            Self::Bar { bar, last } => {
                let (position, length) = share(progress);
                bar.set_length(length);
                bar.set_position(position);
                let (mut last, now) = (lock(last), clock::now());
                last.turn_to(progress, now);
                bar.set_message(line(progress, &mut last, now));
            }
            Self::Lines { last } => {
                let (mut last, now) = (lock(last), clock::now());
                let is_new = last.turn_to(progress, now);
                if !is_new && now.duration_since(last.at) >= LINE_INTERVAL {
                    let line = line(progress, &mut last, now);
                    // With stderr gone there is nobody left to tell.
                    let _unheard = writeln!(std::io::stderr(), "load: {line}");
                }
            }
        }
    }

    pub(super) fn clear(&self) {
        match self {
            Self::Bar { bar, .. } => bar.finish_and_clear(),
            Self::Lines { .. } => {}
        }
    }
}

fn lock(last: &Mutex<Last>) -> std::sync::MutexGuard<'_, Last> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How much of the whole, as a bar has it.
fn share(progress: Progress) -> (u64, u64) {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    match progress {
        Progress::Preparing { made, of } => (made as u64, of as u64),
        Progress::Running { elapsed, of, .. } => (millis(elapsed.min(of)), millis(of)),
    }
}

/// One line; the rate is that since the line before.
fn line(progress: Progress, last: &mut Last, now: Instant) -> String {
    match progress {
        Progress::Preparing { made, of } => {
            let rate = last.rate(made as u64, now);
            let left = if rate > 0.0 {
                format!("{:.0} s left", (of - made) as f64 / rate)
            } else {
                "none now".to_owned()
            };
            format!("{made} of {of} keys created, {rate:.0}/s, {left}")
        }
        Progress::Running {
            elapsed,
            of,
            acked,
            failed,
            ..
        } => {
            let rate = last.rate(acked, now);
            let left = of.saturating_sub(elapsed).as_secs_f64();
            format!("{acked} acknowledged, {failed} failed, {rate:.0}/s, {left:.0} s left")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_rate_since_the_last_and_the_time_left() {
        let start = clock::now();
        let mut last = Last::at(start);
        let keys = |made| Progress::Preparing { made, of: 100 };
        let made = line(keys(40), &mut last, start + Duration::from_secs(4));
        assert_eq!(made, "40 of 100 keys created, 10/s, 6 s left");
        let mut last = Last::at(start);
        let running = |elapsed, acked| Progress::Running {
            elapsed: Duration::from_secs(elapsed),
            of: Duration::from_secs(30),
            acked,
            failed: 2,
            in_flight: 8,
        };
        assert!(!last.turn_to(keys(1), start));
        assert!(last.turn_to(running(0, 0), start));
        assert!(!last.turn_to(running(1, 10), start));
        let first = line(running(5, 500), &mut last, start + Duration::from_secs(5));
        assert_eq!(first, "500 acknowledged, 2 failed, 100/s, 25 s left");
        let second = line(
            running(10, 3000),
            &mut last,
            start + Duration::from_secs(10),
        );
        assert_eq!(second, "3000 acknowledged, 2 failed, 500/s, 20 s left");
        assert_eq!(
            share(running(45, 0)),
            (30_000, 30_000),
            "never more than the whole"
        );
    }
}
