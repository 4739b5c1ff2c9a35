//! The control window in a whole cluster, as in the published experiment: three real nodes, 1,500
//! groups, SQLite and archive on, eight closed-loop counter writers, control windows of 8 and 16
//! frames (others with `--only WINDOW`).
//!
//! Each cohort starts with fresh data, is loaded over two timed windows, then verified to the last
//! replica, archive position and counter, and stopped cleanly; anything else fails the bench.
//! Cohorts of both window sizes alternate.
//!
//! Ids: `WINDOW`. README says what the figures mean and what they can't show.

#![expect(
    clippy::print_stdout,
    reason = "a bench shows how far it is and what it found"
)]

use std::time::Duration;

use benches::Fault;
use benches::arguments::Arguments;
use benches::cluster::{BenchCluster, Load, Shape, memory_peak_bytes};
use benches::end::single_threaded;
use benches::plot::{Panel, Series, Style};
use benches::report::{Reference, Report, Row, figure};
use serde_json::{Value, json};

const BENCH: &str = "cluster_window";
const GROUPS: u32 = 1_500;
const NODES: u16 = 3;
const WRITERS: usize = 8;
const WINDOWS: u32 = 2;

/// What runs without being asked for by name, and what can be.
const USUAL: [usize; 2] = [8, 16];
const OFFERED: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Cohorts of each window size, and the length of one timed window.
const FULL: (usize, Duration) = (2, Duration::from_secs(180));
const QUICK: (usize, Duration) = (2, Duration::from_secs(20));

/// What a cohort came to.
struct Cohort {
    commits_per_s: f64,
    worst_window_p99_us: f64,
    queue_delay_mean_us: f64,
    queue_delay_p99_us: f64,
    start_s: f64,
    memory_peak_mib: f64,
}

type Pick = fn(&Cohort) -> f64;

const QUANTITIES: [(&str, Pick); 6] = [
    ("commits_per_s", |cohort| cohort.commits_per_s),
    ("worst_window_p99_us", |cohort| cohort.worst_window_p99_us),
    ("control_queue_delay_mean_us", |cohort| {
        cohort.queue_delay_mean_us
    }),
    ("control_queue_delay_p99_us", |cohort| {
        cohort.queue_delay_p99_us
    }),
    ("start_s", |cohort| cohort.start_s),
    ("memory_peak_mib_per_node", |cohort| cohort.memory_peak_mib),
];

fn main() -> Result<(), Fault> {
    let arguments = Arguments::from_process(BENCH);
    let mut report = Report::new(BENCH, &arguments);
    let (runs, lasting) = if arguments.quick { QUICK } else { FULL };
    let sizes: Vec<_> = match &arguments.only {
        None => USUAL.to_vec(),
        Some(_) => OFFERED
            .into_iter()
            .filter(|size| arguments.wants(&size.to_string()))
            .collect(),
    };
    let runtime = single_threaded()?;
    let mut cohorts: Vec<_> = sizes.into_iter().map(|size| (size, Vec::new())).collect();
    for run in 1..=runs {
        for (size, done) in &mut cohorts {
            let cohort = runtime.block_on(cohort(*size, lasting))?;
            println!(
                "run {run}, window {size}: {} commits/s, worst window's p99 {} us, queue delay \
                 mean {} us, p99 {} us",
                figure(cohort.commits_per_s),
                figure(cohort.worst_window_p99_us),
                figure(cohort.queue_delay_mean_us),
                figure(cohort.queue_delay_p99_us),
            );
            done.push(cohort);
        }
    }
    add(&mut report, &cohorts);
    finish(&report, &arguments)
}

async fn cohort(window: usize, lasting: Duration) -> Result<Cohort, Fault> {
    let key = "transport.control_window_frames".to_owned();
    let cluster = BenchCluster::up(Shape {
        program: env!("CARGO_BIN_EXE_multigroup-under-bench"),
        nodes: NODES,
        groups: GROUPS,
        config: vec![(key, window.to_string())],
    })?;
    let load = Load {
        writers: WRITERS,
        lasting: lasting * WINDOWS,
        window: lasting,
    };
    let finished = cluster.load(load, |_| {}).await?;
    let status = cluster.status()?;
    let (queue_delay_mean_us, queue_delay_p99_us) = queue_delay(&status, window)?;
    let mut peaks = Vec::new();
    for process in cluster.processes()? {
        peaks.push(memory_peak_bytes(process)?);
    }
    let verified = cluster.verify()?;
    check(&verified)?;
    let start_s = cluster.started_in.as_secs_f64();
    cluster.down()?;
    let report = finished.report;
    Ok(Cohort {
        commits_per_s: report.pooled.operations_per_s,
        worst_window_p99_us: report.worst_window_p99_us.unwrap_or_default() as f64,
        queue_delay_mean_us,
        queue_delay_p99_us,
        start_s,
        memory_peak_mib: peaks.into_iter().max().unwrap_or_default() as f64 / f64::from(1 << 20),
    })
}

/// The whole cluster's: every replica compared, every position at its end, every counter exact.
fn check(verified: &Value) -> Result<(), Fault> {
    let wanted = [
        ("replicas", u64::from(GROUPS) * u64::from(NODES)),
        ("replicas_empty", 0),
        ("archive_positions", GROUPS.into()),
        ("counters_exact", GROUPS.into()),
        ("mismatches", 0),
    ];
    for (name, expected) in wanted {
        let got = verified[name].as_u64();
        if got != Some(expected) {
            return Err(format!("verify: {name} is {got:?}, expected {expected}").into());
        }
    }
    Ok(())
}

/// Over the control lanes of all nodes: the mean of their means by their frames, and the worst p99.
fn queue_delay(status: &Value, window: usize) -> Result<(f64, f64), Fault> {
    let nodes = status["nodes"].as_array().ok_or("status names no nodes")?;
    let lanes = nodes
        .iter()
        .filter_map(|node| node["status"]["peers"].as_array())
        .flatten();
    let (mut frames, mut sum, mut p99) = (0.0, 0.0, 0.0_f64);
    for lane in lanes.filter(|lane| lane["lane"] == "control") {
        if lane["window"].as_u64() != u64::try_from(window).ok() {
            let got = &lane["window"];
            return Err(format!("a control lane's window is {got}, expected {window}").into());
        }
        let number = |of: &Value| of.as_f64().ok_or("a figure is missing from status");
        let started = number(&lane["frames_started"])?;
        frames += started;
        sum += started * number(&lane["queue_delay_us"]["mean"])?;
        p99 = p99.max(number(&lane["queue_delay_us"]["p99"])?);
    }
    if frames == 0.0 {
        return Err("no control frame was sent".into());
    }
    Ok((sum / frames, p99))
}

/// The smallest window is what the others are held against.
fn add(report: &mut Report, cohorts: &[(usize, Vec<Cohort>)]) {
    let Some((smallest, base)) = cohorts.first() else {
        return;
    };
    for (size, cohorts) in cohorts {
        for (unit, pick) in QUANTITIES {
            let reference = (size != smallest).then(|| Reference {
                name: format!("window {smallest}"),
                runs: base.iter().map(pick).collect(),
            });
            report.push(Row {
                id: size.to_string(),
                params: vec![("window", json!(size))],
                unit,
                runs: cohorts.iter().map(pick).collect(),
                reference,
            });
        }
    }
}

fn finish(report: &Report, arguments: &Arguments) -> Result<(), Fault> {
    let mut summary = String::from(
        "Medians of the cohorts, and in brackets by that of the smallest window. Every cohort: no \
         failed operation, all replicas, positions and counters verified, a clean stop.\n\n\
         | window | commits/s | worst-window p99, us | queue delay mean, us | p99, us | peak memory \
         a node, MiB |\n|---|---|---|---|---|---|\n",
    );
    let sizes = report
        .rows()
        .iter()
        .filter(|row| row.unit == "commits_per_s");
    for size in sizes.map(|row| &row.id) {
        let cell = |unit: &str| {
            let row = report
                .rows()
                .iter()
                .find(|row| row.id == *size && row.unit == unit);
            let shown = row.and_then(|row| Some((figure(row.median()?), row.ratio())));
            match shown {
                Some((middle, Some(ratio))) => format!("{middle} ({ratio:.2})"),
                Some((middle, None)) => middle,
                None => String::new(),
            }
        };
        let cells = [
            "commits_per_s",
            "worst_window_p99_us",
            "control_queue_delay_mean_us",
        ];
        let cells = cells
            .iter()
            .chain(&["control_queue_delay_p99_us", "memory_peak_mib_per_node"]);
        let cells: Vec<_> = cells.map(|unit| cell(unit)).collect();
        summary += &format!("| {size} | {} |\n", cells.join(" | "));
    }
    let panels: Vec<_> = QUANTITIES[..4]
        .iter()
        .map(|(unit, _)| panel(report, unit))
        .collect();
    let title = "Three nodes, 1,500 groups, eight writers, by control window";
    let json = report.write(arguments, &summary, title, &panels)?;
    println!(
        "\n{summary}\nwrote {} and .md, .svg beside it",
        json.display()
    );
    Ok(())
}

fn panel(report: &Report, unit: &str) -> Panel {
    let rows = report.rows().iter().filter(|row| row.unit == unit);
    let point = |row: &Row| Some((row.id.parse::<f64>().ok()?, row.median()?));
    Panel {
        title: unit.to_owned(),
        x: "window, frames".to_owned(),
        y: unit.to_owned(),
        series: vec![Series {
            name: "median of cohorts".to_owned(),
            points: rows.filter_map(point).collect(),
            style: Style::Solid(0),
        }],
    }
}
