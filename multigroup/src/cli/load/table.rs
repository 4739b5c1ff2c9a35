//! A run's figures for people.

use std::io::{self, Write};
use std::path::Path;

use crate::load::{Figures, Report};

pub(in crate::cli) fn write(
    report: &Report,
    ledger: Option<&Path>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let policy = report.policy.as_deref().unwrap_or("unknown");
    let sync = match report.log_sync {
        Some(true) => "on",
        Some(false) => "OFF",
        None => "unknown",
    };
    writeln!(
        out,
        "load          {} by {} writers for {} s; policy {policy}, log sync {sync}",
        report.op, report.writers, report.seconds
    )?;
    let pooled = &report.pooled;
    writeln!(
        out,
        "operations    {} acknowledged, {} failed, {:.0}/s",
        pooled.acked, pooled.errors_total, pooled.operations_per_s
    )?;
    if pooled.errors_total > 0 {
        let kinds = pooled
            .errors
            .in_words(|kind, count| format!("{kind} {count}"));
        writeln!(out, "failures      {kinds}")?;
    }
    writeln!(out, "latency       {}", latencies(pooled))?;
    if report.windows.len() > 1 {
        for window in &report.windows {
            let figures = &window.figures;
            writeln!(
                out,
                "  from {:>6} s {:>8.0}/s  {} failed  {}",
                window.start_s,
                figures.operations_per_s,
                figures.errors_total,
                latencies(figures)
            )?;
        }
        let worst = report
            .worst_window_p99_us
            .map_or_else(|| "none".to_owned(), time);
        writeln!(out, "worst window  p99 {worst}")?;
    }
    match ledger {
        Some(path) => writeln!(out, "ledger        {}", path.display()),
        None => Ok(()),
    }
}

fn latencies(figures: &Figures) -> String {
    let all = [
        ("p50", figures.p50_us),
        ("p90", figures.p90_us),
        ("p99", figures.p99_us),
        ("p99.9", figures.p999_us),
        ("max", figures.max_us),
    ];
    let known: Vec<_> = all
        .into_iter()
        .filter_map(|(name, micros)| Some(format!("{name} {}", time(micros?))))
        .collect();
    if known.is_empty() {
        "none, since nothing was acknowledged".to_owned()
    } else {
        known.join("  ")
    }
}

fn time(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} us"),
        1000..1_000_000 => format!("{:.2} ms", micros as f64 / 1e3),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}
