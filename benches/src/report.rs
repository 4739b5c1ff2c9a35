//! What a bench found, written down three times: as JSON (`multigroup.bench/1`, for programs), as
//! Markdown tables (for people) and, by [`crate::plot`], as a picture. Each row is one quantity
//! under one setting: every run of ours, every run of the reference that it alternated with, and
//! the ratio of their medians. The machine, its load and the commit stand beside them, since a
//! figure without them says nothing.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value, json};
use time::OffsetDateTime;

use crate::Fault;
use crate::arguments::{Arguments, workspace};
use crate::plot::{self, Panel};

/// The format's name and version.
pub const SCHEMA: &str = "multigroup.bench/1";

/// What ours is held against.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// What it is.
    pub name: String,
    /// Its runs, which alternated with ours.
    pub runs: Vec<f64>,
}

/// One quantity under one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What `--only` picks it by.
    pub id: String,
    /// The setting, in the order in which tables show it.
    pub params: Vec<(&'static str, Value)>,
    /// What is counted, and in what.
    pub unit: &'static str,
    /// Every run, in order.
    pub runs: Vec<f64>,
    /// What it is held against.
    pub reference: Option<Reference>,
}

/// The middle of some values, the mean of both where there are two.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = sorted.get(middle.checked_sub(1)?)?;
    Some(f64::midpoint(*lower, upper))
}

impl Row {
    /// The middle of the runs.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        median(&self.runs)
    }

    /// Ours by the reference's.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let reference = median(&self.reference.as_ref()?.runs)?;
        self.median()
            .map(|ours| ours / reference)
            .filter(|ratio| ratio.is_finite())
    }

    /// A parameter, as tables show it.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<String> {
        let (_, value) = self.params.iter().find(|(named, _)| *named == name)?;
        Some(
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned),
        )
    }

    fn to_json(&self) -> Value {
        let params = self.params.iter().cloned();
        let params: Map<_, _> = params
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let reference = self.reference.as_ref().map(|reference| {
            json!({"name": reference.name, "median": median(&reference.runs), "runs": reference.runs})
        });
        json!({
            "id": self.id, "params": params, "unit": self.unit, "runs": self.runs,
            "median": self.median(), "reference": reference, "ratio": self.ratio(),
        })
    }
}

/// What the figures were had on.
#[derive(Clone, Debug)]
struct Machine {
    cpu: String,
    cores: usize,
    memory_bytes: u64,
    kernel: String,
    load_at_start: String,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn load() -> String {
    let load = read("/proc/loadavg");
    load.split_whitespace().next().unwrap_or("?").to_owned()
}

/// The value of a line `name: value` in a file of `/proc`.
fn line_of(file: &str, name: &str) -> Option<String> {
    let (_, value) = file
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

impl Machine {
    fn look() -> Self {
        let kib = line_of(&read("/proc/meminfo"), "MemTotal");
        let kib = kib.and_then(|kib| kib.split_whitespace().next()?.parse::<u64>().ok());
        Self {
            cpu: line_of(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kib.unwrap_or(0) * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_at_start: load(),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "cpu": self.cpu, "cores": self.cores, "memory_bytes": self.memory_bytes,
            "kernel": self.kernel, "load_1m_at_start": self.load_at_start,
            "load_1m_at_end": load(),
        })
    }
}

fn git(words: &[&str]) -> Option<String> {
    let mut git = Command::new("git");
    let said = git.arg("-C").arg(workspace()).args(words).output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    said.status.success().then_some(text)
}

/// The commit, with a mark if the tree differs from it.
#[must_use]
pub fn commit() -> String {
    let clean = git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
    let mark = if clean { "" } else { "-modified" };
    git(&["rev-parse", "HEAD"]).map_or("unknown".to_owned(), |commit| commit + mark)
}

/// What one run of a bench found.
#[derive(Clone, Debug)]
pub struct Report {
    bench: &'static str,
    quick: bool,
    machine: Machine,
    commit: String,
    began: OffsetDateTime,
    rows: Vec<Row>,
}

impl Report {
    /// An empty one; looks at the machine as it is before the first run.
    #[must_use]
    pub fn new(bench: &'static str, arguments: &Arguments) -> Self {
        Self {
            bench,
            quick: arguments.quick,
            machine: Machine::look(),
            commit: commit(),
            began: transport::io::clock::wall().into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// What there is.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The whole of it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let rows: Vec<_> = self.rows.iter().map(Row::to_json).collect();
        let profile = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        json!({
            "schema": SCHEMA, "bench": self.bench, "quick": self.quick, "profile": profile,
            "began_unix_s": self.began.unix_timestamp(),
            "machine": self.machine.to_json(), "commit": self.commit, "rows": rows,
        })
    }

    /// One table for each unit, every run in it.
    #[must_use]
    pub fn tables(&self) -> String {
        let mut out = String::new();
        let units: Vec<_> = self.rows.iter().fold(Vec::new(), |mut units, row| {
            if !units.contains(&row.unit) {
                units.push(row.unit);
            }
            units
        });
        for unit in units {
            let rows = || self.rows.iter().filter(|row| row.unit == unit);
            let names = rows().fold(Vec::new(), |mut names, row| {
                for (name, _) in &row.params {
                    if !names.contains(name) {
                        names.push(*name);
                    }
                }
                names
            });
            let params = names.join(" | ");
            out += &format!(
                "\n## {unit}\n\n| id | {params} | runs | median | reference | its runs | its median \
                 | ratio |\n|{}\n",
                "---|".repeat(names.len() + 7)
            );
            for row in rows() {
                let params = names.iter().map(|name| row.param(name).unwrap_or_default());
                let params: Vec<_> = params.collect();
                let (name, runs, middle) = match &row.reference {
                    Some(other) => (&*other.name, figures(&other.runs), median(&other.runs)),
                    None => ("", String::new(), None),
                };
                out += &format!(
                    "| {} | {} | {} | {} | {name} | {runs} | {} | {} |\n",
                    row.id,
                    params.join(" | "),
                    figures(&row.runs),
                    row.median().map_or_else(String::new, figure),
                    middle.map_or_else(String::new, figure),
                    row.ratio()
                        .map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                );
            }
        }
        out
    }

    /// A table of `unit` with a line for each value of one parameter and a column for each of
    /// another, over the rows that `pick` takes: the median, and in brackets the ratio.
    #[must_use]
    pub fn pivot(
        &self,
        unit: &str,
        line: &str,
        column: &str,
        pick: impl Fn(&Row) -> bool,
    ) -> String {
        let rows: Vec<_> = self
            .rows
            .iter()
            .filter(|row| row.unit == unit && pick(row))
            .collect();
        let values = |name: &str| {
            rows.iter().fold(Vec::new(), |mut seen, row| {
                let value = row.param(name).unwrap_or_default();
                if !seen.contains(&value) {
                    seen.push(value);
                }
                seen
            })
        };
        let columns = values(column);
        let mut out = format!("| {line} \\ {column} | {} |\n|", columns.join(" | "));
        out += &"---|".repeat(columns.len() + 1);
        for value in values(line) {
            out += &format!("\n| {value} |");
            for of_column in &columns {
                let cell = rows.iter().find(|row| {
                    row.param(line).as_ref() == Some(&value)
                        && row.param(column).as_ref() == Some(of_column)
                });
                let shown = cell.and_then(|row| {
                    let ours = figure(row.median()?);
                    Some(match row.ratio() {
                        Some(ratio) => format!("{ours} ({ratio:.2})"),
                        None => ours,
                    })
                });
                out += &format!(" {} |", shown.unwrap_or_default());
            }
        }
        out + "\n"
    }

    /// Writes the JSON where the arguments say, and table and plot beside it; says where.
    ///
    /// # Errors
    /// There is no row, a row has no runs, or the disk failed.
    pub fn write(
        &self,
        arguments: &Arguments,
        summary: &str,
        title: &str,
        panels: &[Panel],
    ) -> Result<PathBuf, Fault> {
        if self.rows.is_empty() {
            return Err(format!(
                "no row of this bench is named by --only {:?}",
                arguments.only
            )
            .into());
        }
        if let Some(row) = self.rows.iter().find(|row| row.runs.is_empty()) {
            return Err(format!("{} has no runs", row.id).into());
        }
        let json = arguments.json_file(self.bench);
        if let Some(folder) = json.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&json, format!("{:#}\n", self.to_json()))?;
        std::fs::write(json.with_extension("md"), self.markdown(summary))?;
        if !panels.is_empty() {
            plot::draw(&json.with_extension("svg"), title, panels)?;
        }
        Ok(json)
    }

    fn markdown(&self, summary: &str) -> String {
        let Machine {
            cpu, cores, kernel, ..
        } = &self.machine;
        let quick = if self.quick { ", a quick run" } else { "" };
        format!(
            "# {}\n\nCommit {}{quick}; {cpu}, {cores} cores, Linux {kernel}; load over a minute {} \
             at the start and {} at the end.\n\n{summary}\n{}",
            self.bench,
            self.commit,
            self.machine.load_at_start,
            load(),
            self.tables()
        )
    }
}

/// A figure with as many digits as it can bear, thousands apart.
#[must_use]
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let plain = format!("{value:.digits$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

fn figures(values: &[f64]) -> String {
    let shown: Vec<_> = values.iter().copied().map(figure).collect();
    shown.join(" · ")
}

#[cfg(test)]
mod tests;
