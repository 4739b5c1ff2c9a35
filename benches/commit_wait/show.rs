//! What the cells came to: rows with every run, a table for each experiment and a plot of each that
//! has a curve.

use benches::Fault;
use benches::arguments::Arguments;
use benches::plot::{Panel, Series, Style};
use benches::report::{Reference, Report, Row, figure, median};

use crate::Cell;
use crate::saved::{Figures, Pair};
use crate::settings::Setting;

/// All that is measured, in the order of the tables; a cell has some of it.
const UNITS: [&str; 33] = [
    "commits_per_s",
    "p50_us",
    "p99_us",
    "share_of_clients_by_delay",
    "all_groups_led_s",
    "all_groups_writable_s",
    "full_speed_s",
    "commits_per_s_then",
    "retried_requests",
    "retried_by_in_flight",
    "attempts_beyond_the_first",
    "acknowledged_lost",
    "applied_twice",
    "groups_led_by_the_killed",
    "coherent_after_s",
    "bytes_sent_by_missed",
    "missed_mib",
    "catching_up_p99_by_steady",
    "down_p99_by_steady",
    "commits_per_s_catching_up",
    "nodes_cpu_us_per_commit",
    "leader_cpu_us_per_commit",
    "leader_shard_cpu_us_per_commit",
    "clients_cpu_us_per_commit",
    "leader_sleeps_per_commit",
    "others_busy_cores",
    "handed_off_share",
    "inline_since_full_share",
    "passes_per_s",
    "passes_per_commit",
    "looked_at_per_reply",
    "worker_wakeups_per_commit",
    "shard_turns_per_commit",
];

/// What the table of an experiment shows, off and on.
fn columns(experiment: &str) -> &'static [&'static str] {
    match experiment {
        "A3" => &["commits_per_s", "share_of_clients_by_delay", "p99_us"],
        "A6" => &[
            "all_groups_led_s",
            "all_groups_writable_s",
            "full_speed_s",
            "retried_by_in_flight",
            "acknowledged_lost",
            "applied_twice",
        ],
        "A8" => &[
            "coherent_after_s",
            "bytes_sent_by_missed",
            "catching_up_p99_by_steady",
        ],
        "A11" => &[
            "leader_cpu_us_per_commit",
            "leader_shard_cpu_us_per_commit",
            "passes_per_s",
            "looked_at_per_reply",
            "worker_wakeups_per_commit",
            "shard_turns_per_commit",
        ],
        _ => &["commits_per_s", "p99_us", "nodes_cpu_us_per_commit"],
    }
}

/// Picks a half of a run.
type Half = fn(&Pair) -> &Figures;

/// One half of a run in a line.
pub(crate) fn in_short(setting: &Setting, half: &Figures) -> String {
    let shown = columns(setting.experiment).iter().filter_map(|unit| {
        let value = half.get(*unit)?;
        Some(format!("{unit} {}", figure(*value)))
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// A quantity over the runs of one half; runs that don't have it are left out.
fn of(runs: &[Pair], unit: &str, half: Half) -> Vec<f64> {
    let found = runs.iter().filter_map(|run| half(run).get(unit).copied());
    found.filter(|value| value.is_finite()).collect()
}

const fn on(pair: &Pair) -> &Figures {
    &pair.on
}

const fn off(pair: &Pair) -> &Figures {
    &pair.off
}

pub(crate) fn finish(
    report: &mut Report,
    arguments: &Arguments,
    cells: &[Cell],
) -> Result<(), Fault> {
    for unit in UNITS {
        for Cell { setting, runs } in cells {
            let (ours, reference) = (of(runs, unit, on), of(runs, unit, off));
            if !ours.is_empty() {
                report.push(Row {
                    id: setting.id(),
                    params: setting.params(),
                    unit,
                    runs: ours,
                    reference: Some(Reference {
                        name: "waiter off".to_owned(),
                        runs: reference,
                    }),
                });
            }
        }
    }
    let mut summary = String::from(
        "Medians of the runs: off → on (on by off). Off and on alternated, on one running cluster but \
         for A6 and A8, where each had a fresh one.\n",
    );
    for alike in cells.chunk_by(|a, b| a.setting.experiment == b.setting.experiment) {
        summary += &table(alike);
    }
    let panels: Vec<_> = ["A1", "A2", "A3", "A5"]
        .iter()
        .filter_map(|of| panel(of, cells))
        .collect();
    let title = "Commits a second with the quorum-ack waiter off (pale) and on";
    let json = report.write(arguments, &summary, title, &panels)?;
    println!(
        "\n{summary}\nwrote {} and .md, .svg beside it",
        json.display()
    );
    Ok(())
}

fn table(cells: &[Cell]) -> String {
    let Some(first) = cells.first() else {
        return String::new();
    };
    let columns = columns(first.setting.experiment);
    let mut out = format!(
        "\n### {}\n\n| cell | {} | published, on by off |\n|{}\n",
        first.setting.experiment,
        columns.join(" | "),
        "---|".repeat(columns.len() + 2)
    );
    for Cell { setting, runs } in cells {
        let cell = |unit: &&str| {
            let (ours, reference) = (median(&of(runs, unit, on)), median(&of(runs, unit, off)));
            let show = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), figure);
            let ratio = ours
                .zip(reference)
                .map(|(ours, reference)| ours / reference);
            let ratio = ratio.filter(|ratio| ratio.is_finite());
            let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
            format!("{} → {}{ratio}", show(reference), show(ours))
        };
        let shown: Vec<_> = columns.iter().map(cell).collect();
        let shown = shown.join(" | ");
        out += &format!("| {} | {shown} | {} |\n", setting.id(), setting.published);
    }
    out
}

/// What lies along the horizontal axis of an experiment's plot, and its curves' names.
fn axis(setting: &Setting) -> (&'static str, f64, String) {
    let clients = format!("{} clients", setting.clients);
    match setting.experiment {
        "A2" => ("workers", setting.workers.into(), clients),
        "A3" => ("ack delay, ms", setting.ack_delay_ms.into(), clients),
        "A5" => ("cap", setting.cap.into(), clients),
        _ => ("clients", setting.clients as f64, String::new()),
    }
}

fn panel(experiment: &str, cells: &[Cell]) -> Option<Panel> {
    let mine = || {
        cells
            .iter()
            .filter(|cell| cell.setting.experiment == experiment)
    };
    let (x, ..) = axis(&mine().next()?.setting);
    let mut names: Vec<_> = mine().map(|cell| axis(&cell.setting).2).collect();
    names.sort();
    names.dedup();
    let mut series = Vec::new();
    for (colour, name) in names.iter().enumerate() {
        let halves: [(&str, Half, Style); 2] = [
            ("off", off, Style::Pale(colour)),
            ("on", on, Style::Solid(colour)),
        ];
        for (word, half, style) in halves {
            let mine = mine().filter(|cell| axis(&cell.setting).2 == *name);
            let point = |cell: &Cell| {
                let middle = median(&of(&cell.runs, "commits_per_s", half))?;
                Some((axis(&cell.setting).1, middle))
            };
            let name = format!("{word} {name}").trim().to_owned();
            series.push(Series {
                name,
                points: mine.filter_map(point).collect(),
                style,
            });
        }
    }
    Some(Panel {
        title: experiment.to_owned(),
        x: x.to_owned(),
        y: "commits/s".to_owned(),
        series,
    })
}
