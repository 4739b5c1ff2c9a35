//! The fuzz targets' bodies over their committed seeds: what the fuzzers found worth keeping stays
//! found, without a fuzzer.

use std::path::Path;

use tests::fuzz::TARGETS;
use transport::io::clock;

#[test]
fn every_committed_seed_holds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for (target, body) in TARGETS {
        let entries = std::fs::read_dir(seeds.join(target)).expect("the target's seeds");
        let mut replayed = 0;
        for entry in entries {
            let path = entry.expect("a seed").path();
            let input = std::fs::read(&path).expect("a seed's bytes");
            let now = clock::now();
            let held = std::panic::catch_unwind(|| body(now, &input));
            assert!(held.is_ok(), "{} does not hold", path.display());
            replayed += 1;
        }
        assert!(replayed >= 5, "{target} has {replayed} seeds");
    }
}
