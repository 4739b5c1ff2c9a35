//! A demo's result for people: one table.

use std::io::{self, Write};

use super::report::{LaneSince, Report};
use crate::cli::load::table as load_table;

pub(super) fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let Report { nodes, groups, .. } = report;
    let durable = if report.durable {
        "durable"
    } else {
        "NOT DURABLE"
    };
    let archive = if report.archive { "on" } else { "off" };
    writeln!(
        out,
        "cluster       {nodes} nodes, {groups} groups; on {}, {durable}; archive {archive}",
        report.fs
    )?;
    if let Some(seconds) = report.start_seconds {
        writeln!(
            out,
            "start         {seconds:.1} s until every group had a leader"
        )?;
    }
    if let Some(load) = &report.load {
        load_table::write(load, None, out)?;
    }
    if let Some(changes) = report.leader_changes_during_load {
        writeln!(out, "leaders       {changes} changes during the load")?;
    }
    for lane in &report.peers {
        write_lane(lane, out)?;
    }
    let memory = report.rss_max_bytes.iter();
    let memory: Vec<_> = memory.map(|bytes| mebibytes(*bytes)).collect();
    if !memory.is_empty() {
        writeln!(
            out,
            "memory        {} MiB at most, by node",
            memory.join(", ")
        )?;
    }
    if let Some(verified) = &report.verify {
        writeln!(
            out,
            "verified      {} replicas, {} empty; {} archive positions; {} counters exact; {} \
             mismatches",
            verified.replicas,
            verified.replicas_empty,
            verified.archive_positions,
            verified.counters_exact,
            verified.mismatches
        )?;
        for mismatch in &verified.first_mismatches {
            writeln!(out, "  {mismatch}")?;
        }
    }
    if let Some(accounting) = &report.final_accounting {
        writeln!(out, "accounting    {accounting}")?;
    }
    let result = if report.ok { "ok" } else { "FAILED" };
    writeln!(out, "result        {result}")
}

fn write_lane(since: &LaneSince, out: &mut dyn Write) -> io::Result<()> {
    let lane = &since.lane;
    writeln!(
        out,
        "lane {} to {}   {:<8}{:>10} items in {:>8} frames, {:>6.1} MiB; {} not replied",
        since.node,
        lane.peer,
        lane.lane,
        lane.frames_started,
        lane.frames_begun,
        lane.bytes_sent as f64 / f64::from(1 << 20),
        lane.ended() - lane.frames_replied
    )
}

fn mebibytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "?".to_owned(), |bytes| (bytes >> 20).to_string())
}
