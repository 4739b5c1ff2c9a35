//! The simulated world, over fixed seeds and those that once found something. `SIM_SEED=n` replays
//! one and `SIM_SEEDS=a..b` runs a range in their place, `SIM_FIRST=1` up to the first that fails;
//! `SIM_TRACE=1` prints what happens (CONTRIBUTING, "The simulation").

use tests::world::trace::Trace;
use tests::world::{run_seed, run_seed_traced};

/// The seeds of the gate.
const SEEDS: std::ops::Range<u64> = 1..201;

/// Seeds of the scripts (`tests/support/world/focus.rs`).
const SCRIPTED: [std::ops::Range<u64>; 2] =
    [1_000_000_001..1_000_000_006, 2_000_000_001..2_000_000_004];

/// Seeds that found a fault, one a line, with what broke.
const REGRESSIONS: &str = include_str!("regressions.txt");

#[expect(clippy::print_stdout, reason = "a run prints its seed first")]
#[test]
fn every_seed_holds() {
    let first_only = std::env::var_os("SIM_FIRST").is_some();
    let mut failed = Vec::new();
    let (mut runs, mut events, mut elections, mut crashes, mut answered) = (0_u64, 0, 0, 0, 0);
    for seed in wanted() {
        println!("seed {seed}");
        match run_seed_traced(seed, Trace::from_env()) {
            Ok(summary) => {
                runs += 1;
                events += summary.counts.events;
                elections += summary.elections;
                crashes += summary.counts.crashes;
                answered += summary.answered;
            }
            Err(failure) => {
                println!("FAILED {failure}");
                failed.push(failure.seed);
                if first_only {
                    break;
                }
            }
        }
    }
    println!(
        "{runs} held: {events} events, {elections} elections, {crashes} crashes, {answered} answers"
    );
    assert!(failed.is_empty(), "seeds failed: {failed:?}");
    // A world in which nothing happens holds as well.
    let per_run = |count: u64| runs < 50 || count > runs;
    assert!(per_run(elections) && per_run(crashes) && per_run(answered / 20));
}

fn wanted() -> Vec<u64> {
    if let Ok(seed) = std::env::var("SIM_SEED") {
        return vec![seed.parse().expect("SIM_SEED is a number")];
    }
    if let Ok(range) = std::env::var("SIM_SEEDS") {
        let (first, end) = range.split_once("..").expect("SIM_SEEDS is a..b");
        let number = |text: &str| text.parse::<u64>().expect("SIM_SEEDS is a..b");
        return (number(first)..number(end)).collect();
    }
    let scripted = SCRIPTED.into_iter().flatten();
    SEEDS.chain(scripted).chain(regressions()).collect()
}

fn regressions() -> impl Iterator<Item = u64> {
    let lines = REGRESSIONS.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok())
}

#[test]
fn a_seed_goes_the_same_way_each_time() {
    for seed in [3, 4, 5] {
        let (first, second) = (run_seed(seed), run_seed(seed));
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn every_regression_has_its_seed() {
    let lines = REGRESSIONS
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    assert_eq!(lines.count(), regressions().count());
}
