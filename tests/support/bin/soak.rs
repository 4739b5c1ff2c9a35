//! The runs that take as long as they are given: `soak sim [--minutes M] [--from SEED] [--threads N]`.
//! What came of one belongs into `plans/measurements/`.

#![expect(clippy::print_stdout, reason = "a command line says what it found")]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tests::world::run_seed;

const USAGE: &str = "usage: soak sim [--minutes M] [--from SEED] [--threads N]";

#[expect(
    clippy::disallowed_methods,
    reason = "how long a run may take is real time, unlike anything in it"
)]
fn now() -> Instant {
    Instant::now()
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() != Some("sim") {
        println!("{USAGE}");
        return ExitCode::from(2);
    }
    let (mut minutes, mut from, mut threads) = (1, 1_000_000, 1);
    while let Some(word) = words.next() {
        let value = words.next().and_then(|value| value.parse::<u64>().ok());
        match (word.as_str(), value) {
            ("--minutes", Some(value)) => minutes = value,
            ("--from", Some(value)) => from = value,
            ("--threads", Some(value)) => threads = value,
            _ => {
                println!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    simulate(Duration::from_secs(60 * minutes), from, threads)
}

/// Runs seeds from `from` on until the time is over, and says which failed.
fn simulate(within: Duration, from: u64, threads: u64) -> ExitCode {
    println!(
        "seeds from {from}, for {} s on {threads} threads",
        within.as_secs()
    );
    let (begin, next) = (now(), Arc::new(AtomicU64::new(from)));
    let failed = Arc::new(AtomicBool::new(false));
    let workers = (0..threads).map(|_| {
        let (next, failed) = (Arc::clone(&next), Arc::clone(&failed));
        std::thread::spawn(move || {
            let (mut events, mut answered) = (0, 0);
            while now() - begin < within {
                match run_seed(next.fetch_add(1, Ordering::Relaxed)) {
                    Ok(summary) => {
                        events += summary.counts.events;
                        answered += summary.answered;
                    }
                    Err(failure) => {
                        failed.store(true, Ordering::Relaxed);
                        println!("FAILED {failure}");
                    }
                }
            }
            (events, answered)
        })
    });
    let workers: Vec<_> = workers.collect();
    let ended = workers.into_iter().filter_map(|worker| worker.join().ok());
    let (events, answered) = ended.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
    let seeds = next.load(Ordering::Relaxed) - from;
    let took = (now() - begin).as_secs();
    println!("{seeds} seeds in {took} s: {events} events, {answered} answers");
    if failed.load(Ordering::Relaxed) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
