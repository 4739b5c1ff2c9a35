//! What an exchange cost: the CPU time of the threads that ran it, how often they went to sleep,
//! and how long each frame took from being sent to its reply.
//!
//! CPU time comes from the scheduler's own account of each thread, in nanoseconds, not from clock
//! ticks: of a run of half a second a tick would be two percent. A thread that runs while it is
//! read is behind by at most one tick.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::Fault;

/// Latencies are kept to three digits between 100 ns and a minute.
const LATENCY_NS_MIN: u64 = 100;
const LATENCY_NS_MAX: u64 = 60_000_000_000;
const LATENCY_DIGITS: u8 = 3;

/// What a thread has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// On a core.
    pub cpu: Duration,
    /// Times that it went to sleep of its own will; each is a wake-up later.
    pub sleeps: u64,
}

impl Usage {
    /// Since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            sleeps: self.sleeps.saturating_sub(earlier.sleeps),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            sleeps: self.sleeps + other.sleeps,
        }
    }
}

/// Reads the usage of one thread of this process, from any of its threads.
#[derive(Clone, Debug)]
pub struct ThreadMeter {
    folder: PathBuf,
}

impl ThreadMeter {
    /// Of the calling thread.
    ///
    /// # Errors
    /// There is no `/proc` as Linux has it.
    pub fn of_this_thread() -> io::Result<Self> {
        let thread = std::fs::read_link("/proc/thread-self")?;
        Ok(Self {
            folder: PathBuf::from("/proc").join(thread),
        })
    }

    /// Of the thread whose folder in `/proc` this is.
    #[must_use]
    pub const fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Reads it.
    ///
    /// # Errors
    /// The thread has ended, or the kernel doesn't keep this account.
    pub fn read(&self) -> Result<Usage, Fault> {
        let account = std::fs::read_to_string(self.folder.join("schedstat"))?;
        let status = std::fs::read_to_string(self.folder.join("status"))?;
        parse(&account, &status)
            .ok_or_else(|| format!("{} isn't as expected", self.folder.display()).into())
    }
}

fn parse(account: &str, status: &str) -> Option<Usage> {
    let cpu = account.split_whitespace().next()?.parse().ok()?;
    let sleeps = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    Some(Usage {
        cpu: Duration::from_nanos(cpu),
        sleeps: sleeps.trim().parse().ok()?,
    })
}

/// Times from send to reply.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        match Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, LATENCY_DIGITS) {
            Ok(histogram) => Self(histogram),
            Err(error) => unreachable!("constant bounds contradict each other: {error}"),
        }
    }
}

impl Latencies {
    /// Records `frames` frames that took this long.
    pub fn record(&mut self, took: Duration, frames: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.0.saturating_record_n(nanos, frames);
    }

    /// How many frames there are.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.0.len()
    }

    /// In microseconds.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        Duration::from_nanos(self.0.value_at_quantile(quantile)).as_secs_f64() * 1e6
    }
}

/// One timed run.
#[derive(Clone, Debug)]
pub struct Run {
    /// From the first frame sent to the last reply.
    pub took: Duration,
    /// Frames sent and answered.
    pub frames: u64,
    /// Items in these frames, where they aren't the same.
    pub items: u64,
    /// Of each item.
    pub latencies: Latencies,
    /// Of both ends.
    pub usage: Usage,
}

impl Run {
    /// Frames per second.
    #[must_use]
    pub fn frames_per_s(&self) -> f64 {
        per(self.frames, self.took.as_secs_f64())
    }

    /// Items per second.
    #[must_use]
    pub fn items_per_s(&self) -> f64 {
        per(self.items, self.took.as_secs_f64())
    }

    /// CPU microseconds that both ends spent on an item.
    #[must_use]
    pub fn cpu_us_per_item(&self) -> f64 {
        self.usage.cpu.as_secs_f64() * 1e6 / count(self.items)
    }

    /// Sleeps of both ends per item.
    #[must_use]
    pub fn sleeps_per_item(&self) -> f64 {
        per(self.usage.sleeps, count(self.items))
    }
}

fn per(what: u64, of: f64) -> f64 {
    count(what) / of
}

/// A count as a quantity; those of a bench are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn count(what: u64) -> f64 {
    what as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_charged_and_a_sleeping_one_is_counted() {
        let meter = ThreadMeter::of_this_thread().unwrap();
        let before = meter.read().unwrap();
        let (sender, receiver) = std::sync::mpsc::sync_channel::<()>(0);
        let other = std::thread::spawn(move || {
            let mut sum = 0_u64;
            for number in 0..50_000_000_u64 {
                sum = std::hint::black_box(sum.wrapping_add(number));
            }
            drop(sender);
            ThreadMeter::of_this_thread().unwrap().read().unwrap()
        });
        assert!(receiver.recv().is_err(), "slept until the other was done");
        let busy = other.join().unwrap();
        assert!(busy.cpu > Duration::from_millis(5), "{busy:?}");
        let used = meter.read().unwrap().since(before);
        assert!(used.sleeps >= 1, "{used:?}");
        assert!(used.cpu < busy.cpu, "the work was the other's: {used:?}");
    }

    #[test]
    fn what_the_kernel_does_not_say_is_no_reading() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t7\n";
        let read = parse("1500 20 3\n", status).unwrap();
        assert_eq!((read.cpu, read.sleeps), (Duration::from_nanos(1500), 7));
        assert_eq!(parse("", status), None);
        assert_eq!(parse("1500 20 3", "Name:\tx\n"), None);
    }

    #[test]
    fn latencies_are_counted_once_for_each_frame() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_micros(10), 98);
        latencies.record(Duration::from_micros(500), 2);
        assert_eq!(latencies.frames(), 100);
        assert!((latencies.quantile_us(0.5) - 10.0).abs() < 0.1);
        assert!((latencies.quantile_us(0.99) - 500.0).abs() < 1.0);
    }
}
