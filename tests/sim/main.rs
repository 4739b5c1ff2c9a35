//! The simulated world, over fixed seeds. `SIM_SEED=n` replays one and `SIM_SEEDS=a..b` runs a range
//! in their place; `SIM_TRACE=1` prints what happens (CONTRIBUTING, "The simulation").

use tests::world::trace::Trace;
use tests::world::{run_seed, run_seed_traced};

/// The seeds of the gate.
const SEEDS: std::ops::Range<u64> = 1..201;

#[expect(clippy::print_stdout, reason = "a run prints its seed first")]
#[test]
fn every_seed_holds() {
    let seeds = wanted();
    let mut failed = Vec::new();
    let (mut runs, mut events, mut elections, mut answered) = (0_u64, 0, 0, 0);
    for seed in seeds {
        println!("seed {seed}");
        match run_seed_traced(seed, Trace::from_env()) {
            Ok(summary) => {
                runs += 1;
                events += summary.counts.events;
                elections += summary.elections;
                answered += summary.answered;
                println!("  {summary:?}");
            }
            Err(failure) => {
                println!("  FAILED {failure}");
                failed.push(failure);
            }
        }
    }
    println!("{runs} held: {events} events, {elections} elections, {answered} answers");
    assert!(
        failed.is_empty(),
        "{} seeds failed: {failed:#?}",
        failed.len()
    );
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
    SEEDS.collect()
}

#[test]
fn a_seed_goes_the_same_way_each_time() {
    for seed in [3, 4] {
        let (first, second) = (run_seed(seed), run_seed(seed));
        assert_eq!(first, second, "seed {seed}");
    }
}
