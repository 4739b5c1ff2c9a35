//! Rounds between shards: their number and size, what an idle shard says, and what a lost base
//! does. What counts as consent is tested in `round::tests`.

use super::world::{World, ms};
use crate::limits::BEAT_BYTES_MAX;

fn sum(world: &World, of: impl Fn(&crate::proto::host::HostStats) -> u64) -> u64 {
    world
        .nodes
        .iter()
        .flatten()
        .map(|node| of(&node.core.stats()))
        .sum()
}

/// H4: at most 2 beat frames per peer and round, at most 24 bytes a group, over encoded bytes; and
/// an idle shard's rounds list nothing.
#[test]
fn idle_rounds_take_one_small_frame_per_peer() {
    let mut world = World::new(3, 150, 60);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(1000));
    let (frames, bytes) = (world.control_frames, world.control_bytes);
    let (listed, rounds) = (sum(&world, |s| s.beats_listed), sum(&world, |s| s.rounds));
    world.run(ms(10_000));
    let (frames, bytes) = (world.control_frames - frames, world.control_bytes - bytes);
    let rounds = sum(&world, |s| s.rounds) - rounds;
    println!("idle: {rounds} rounds, {frames} frames, {bytes} bytes in 10 s");
    // 3 nodes x 2 peers x 100 rounds.
    assert!((590..=610).contains(&rounds), "{rounds}");
    assert_eq!(frames, rounds);
    assert_eq!(sum(&world, |s| s.beats_listed), listed);
    assert!(bytes <= rounds * 40, "{bytes} bytes");
    assert_eq!(sum(&world, |s| s.campaigns), 150);
}

#[test]
fn a_full_listing_takes_at_most_24_bytes_a_group_in_at_most_two_frames() {
    let mut world = World::new(3, 1500, 61);
    world.run_until(ms(5000), World::all_led);
    world.run(ms(500));
    // The links break and come back: each leader states all its groups.
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        world.link(a, b, false);
        world.link(a, b, true);
    }
    let (frames, bytes) = (world.control_frames, world.control_bytes);
    let (listed, beats) = (
        sum(&world, |s| s.beats_listed),
        sum(&world, |s| s.beat_frames),
    );
    world.run(ms(60));
    let (frames, bytes) = (world.control_frames - frames, world.control_bytes - bytes);
    let listed = sum(&world, |s| s.beats_listed) - listed;
    let beats = sum(&world, |s| s.beat_frames) - beats;
    println!("{listed} groups in {beats} beat frames, {frames} frames, {bytes} bytes");
    assert!(listed >= 3000, "{listed}");
    assert!(
        bytes <= listed * BEAT_BYTES_MAX as u64,
        "{bytes} bytes for {listed} groups"
    );
    assert!(beats <= 2 * 2 * 6, "{beats} frames");
    assert_eq!(sum(&world, |s| s.campaigns), 1500);
}

#[test]
fn a_lost_round_is_followed_by_a_full_listing_and_no_election() {
    let mut world = World::new(3, 30, 62);
    world.run_until(ms(3000), World::all_led);
    world.run(ms(1000));
    world.weather.lose = 300;
    world.run(ms(20_000));
    assert_eq!(sum(&world, |s| s.campaigns), 30);
    world.weather.lose = 0;
    world.run(ms(1000));
    assert!(world.all_led());
}

const ALONE: &str = "RAFT_HOST_TEST_ALONE";

/// What a quiet replica costs: printed, and bounded (design.md 6: 16 KiB, SQLite aside). The
/// process's memory is everyone's who runs in it, so the measure is taken in one of its own.
#[test]
fn an_idle_replica_takes_less_than_16_kib() {
    if std::env::var_os(ALONE).is_some() {
        let each = bytes_of_an_idle_replica();
        println!("{each} bytes for an idle replica, the test's own log and machine included");
        assert!(each < 16 * 1024, "{each} bytes");
        return;
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .arg(format!("{module}::an_idle_replica_takes_less_than_16_kib"))
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    println!("{said}{}", String::from_utf8_lossy(&child.stderr));
    assert!(said.contains("bytes for an idle replica"), "not measured");
    assert!(child.status.success(), "{}", child.status);
}

fn bytes_of_an_idle_replica() -> u64 {
    let before = resident();
    let mut world = World::new(3, 3000, 63);
    world.run_until(ms(9000), World::all_led);
    world.run(ms(2000));
    resident().saturating_sub(before) / 9000
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = status.split_whitespace().nth(1).unwrap();
    pages.parse::<u64>().unwrap() * 4096
}
