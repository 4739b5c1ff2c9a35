//! What a commit costs, and where: three real nodes in the reference shape, 1,500 groups, SQLite and
//! archive on, under 1, 8, 64 and 256 closed-loop counter writers. For each: commits a second and
//! their latency; the CPU time of all three nodes and of the writers for each commit, by kind of
//! thread; and how often a thread went to sleep for each commit, which is how often one had to be
//! woken: the hops.
//!
//! The references run before and after each timed part: three logs that sync at once, and a TLS
//! round trip over loopback with one frame in flight. A commit can't be faster than their sum (one
//! sync, one round trip), so one writer's latency is held against it.
//!
//! Ids: `WRITERS`. README says what the figures mean and what they can't show.

#![expect(
    clippy::print_stdout,
    reason = "a bench shows how far it is and what it found"
)]

use std::time::Duration;

use benches::Fault;
use benches::arguments::{Arguments, workspace};
use benches::cluster::{BenchCluster, Load, Shape};
use benches::end::{OtherEnd, single_threaded};
use benches::fleet::Fleet;
use benches::meter::ThreadMeter;
use benches::plot::{Panel, Series, Style};
use benches::processes::{ByThread, usage};
use benches::raw::{RawAcceptor, RawExchange, Tags};
use benches::report::{Reference, Report, Row, figure};
use benches::syncs;
use multigroup::load::Progress;
use serde_json::json;

const BENCH: &str = "commit_cost";
const GROUPS: u32 = 1_500;
const WRITERS: [usize; 4] = [1, 8, 64, 256];

/// Runs of each number of writers, and how long each is.
const FULL: (usize, Duration) = (5, Duration::from_secs(10));
const QUICK: (usize, Duration) = (3, Duration::from_secs(4));

/// How long each reference runs, before and after each timed part.
const REFERENCE: Duration = Duration::from_millis(700);

/// Of the frame that makes the round trip: an append of one small command.
const FRAME_BYTES: usize = 256;

/// One timed part.
struct Timed {
    commits_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// Of all three nodes, for each commit.
    nodes: Vec<(String, f64, f64)>,
    /// The writers' CPU time in µs a commit.
    writers_us: f64,
    /// Median of the syncs, and of the round trips, around it.
    sync_us: f64,
    round_trip_us: f64,
}

/// The round trip, kept open over the whole bench.
struct RoundTrip {
    _other: OtherEnd,
    _acceptor: RawAcceptor,
    exchange: RawExchange,
}

impl RoundTrip {
    async fn open() -> Result<Self, Fault> {
        let fleet = Fleet::new()?;
        let other = OtherEnd::start()?;
        let acceptor = RawAcceptor::start(&other, fleet.credentials(2)?).await?;
        let credentials = fleet.credentials(1)?;
        let to = acceptor.address();
        let exchange = RawExchange::dial(to, &credentials, 2, FRAME_BYTES, Tags::None).await?;
        Ok(Self {
            _other: other,
            _acceptor: acceptor,
            exchange,
        })
    }

    async fn median_us(&mut self) -> Result<f64, Fault> {
        let ends = [ThreadMeter::of_this_thread()?];
        let run = self.exchange.run(1, REFERENCE, &ends).await?;
        Ok(run.latencies.quantile_us(0.5))
    }
}

struct Bench {
    arguments: Arguments,
    report: Report,
    cluster: BenchCluster,
    round_trip: RoundTrip,
}

fn main() -> Result<(), Fault> {
    let arguments = Arguments::from_process(BENCH);
    single_threaded()?.block_on(async {
        println!("starting three nodes with {GROUPS} groups");
        let cluster = BenchCluster::up(Shape {
            program: env!("CARGO_BIN_EXE_multigroup-under-bench"),
            nodes: 3,
            groups: GROUPS,
            config: Vec::new(),
        })?;
        let mut bench = Bench {
            report: Report::new(BENCH, &arguments),
            arguments,
            cluster,
            round_trip: RoundTrip::open().await?,
        };
        // The keys are made and every database is opened before anything is timed.
        bench.load(64, Duration::from_secs(2)).await?;
        let (runs, lasting) = if bench.arguments.quick { QUICK } else { FULL };
        // Runs of one number of writers lie apart, so that a slow minute doesn't fall on one of them.
        let mut of = WRITERS.map(|writers| (writers, Vec::new()));
        for run in 1..=runs {
            for (writers, timed) in &mut of {
                if bench.arguments.wants(&writers.to_string()) {
                    let found = bench.run(*writers, lasting).await?;
                    println!(
                        "run {run}, {writers} writers: {} commits/s, p50 {} us, p99 {} us",
                        figure(found.commits_per_s),
                        figure(found.p50_us),
                        figure(found.p99_us)
                    );
                    timed.push(found);
                }
            }
        }
        bench.cluster.verify()?;
        for (writers, timed) in of.iter().filter(|(_, timed)| !timed.is_empty()) {
            bench.add(*writers, timed);
        }
        bench.finish()
    })
}

impl Bench {
    /// One timed part; the threads' usage is that of the timed part alone.
    async fn load(&self, writers: usize, lasting: Duration) -> Result<Counted, Fault> {
        let processes = self.cluster.processes()?;
        let own = i32::try_from(std::process::id())?;
        let read = || Ok::<_, Fault>((usage(&processes)?, usage(&[own])?));
        let mut before = None;
        let load = Load {
            writers,
            lasting,
            window: lasting,
        };
        let finished = self.cluster.load(load, |progress| {
            if before.is_none() && matches!(progress, Progress::Running { .. }) {
                before = Some(read());
            }
        });
        let finished = finished.await?;
        let after = read()?;
        let before = before.ok_or("the timed part was never begun")??;
        let figures = finished.report.pooled;
        Ok(Counted {
            acked: figures.acked as f64,
            commits_per_s: figures.operations_per_s,
            p50_us: figures.p50_us.unwrap_or_default() as f64,
            p99_us: figures.p99_us.unwrap_or_default() as f64,
            nodes: after.0.since(&before.0),
            writers: after.1.since(&before.1),
        })
    }

    async fn run(&mut self, writers: usize, lasting: Duration) -> Result<Timed, Fault> {
        let before = self.references().await?;
        let counted = self.load(writers, lasting).await?;
        let after = self.references().await?;
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / counted.acked;
        let nodes = counted.nodes.kinds().map(|(kind, used)| {
            let sleeps = used.sleeps as f64 / counted.acked;
            (kind.to_owned(), each(used.cpu), sleeps)
        });
        Ok(Timed {
            commits_per_s: counted.commits_per_s,
            p50_us: counted.p50_us,
            p99_us: counted.p99_us,
            nodes: nodes.collect(),
            writers_us: each(counted.writers.total().cpu),
            sync_us: f64::midpoint(before.0, after.0),
            round_trip_us: f64::midpoint(before.1, after.1),
        })
    }

    async fn references(&mut self) -> Result<(f64, f64), Fault> {
        let folder = workspace().join("target/bench");
        let syncs = syncs::three_at_once(&folder, REFERENCE)?;
        Ok((syncs.quantile_us(0.5), self.round_trip.median_us().await?))
    }

    fn add(&mut self, writers: usize, timed: &[Timed]) {
        let mut push = |kind: Option<&str>, unit, runs, reference| {
            let mut params = vec![("writers", json!(writers))];
            params.extend(kind.map(|kind| ("threads", json!(kind))));
            self.report.push(Row {
                id: writers.to_string(),
                params,
                unit,
                runs,
                reference,
            });
        };
        let all = |of: fn(&Timed) -> f64| timed.iter().map(of).collect::<Vec<_>>();
        push(None, "commits_per_s", all(|run| run.commits_per_s), None);
        let reference = Reference {
            name: "three syncs at once and a TLS round trip".to_owned(),
            runs: all(|run| run.sync_us + run.round_trip_us),
        };
        push(None, "p50_us", all(|run| run.p50_us), Some(reference));
        push(None, "p99_us", all(|run| run.p99_us), None);
        push(None, "sync_p50_us", all(|run| run.sync_us), None);
        push(
            None,
            "tls_round_trip_p50_us",
            all(|run| run.round_trip_us),
            None,
        );
        let kinds = timed.first().map_or(&[][..], |run| &run.nodes);
        let of_kind = |kind: &str, pick: fn(&(String, f64, f64)) -> f64| {
            let found = |run: &Timed| run.nodes.iter().find(|(name, ..)| name == kind).map(pick);
            timed.iter().filter_map(found).collect::<Vec<_>>()
        };
        let sum = |pick: fn(&(String, f64, f64)) -> f64| {
            let of_run = |run: &Timed| run.nodes.iter().map(pick).sum();
            timed.iter().map(of_run).collect::<Vec<f64>>()
        };
        push(
            Some("all of the nodes"),
            "cpu_us_per_commit",
            sum(|kind| kind.1),
            None,
        );
        for (kind, ..) in kinds {
            push(
                Some(kind),
                "cpu_us_per_commit",
                of_kind(kind, |kind| kind.1),
                None,
            );
        }
        push(
            Some("the writers"),
            "cpu_us_per_commit",
            all(|run| run.writers_us),
            None,
        );
        push(
            Some("all of the nodes"),
            "sleeps_per_commit",
            sum(|kind| kind.2),
            None,
        );
        for (kind, ..) in kinds {
            push(
                Some(kind),
                "sleeps_per_commit",
                of_kind(kind, |kind| kind.2),
                None,
            );
        }
    }

    fn finish(self) -> Result<(), Fault> {
        let mut summary = String::from(
            "Medians of the runs. CPU and sleeps are those of all three nodes for each commit.\n",
        );
        for unit in ["cpu_us_per_commit", "sleeps_per_commit"] {
            let table = self.report.pivot(unit, "threads", "writers", |_| true);
            summary += &format!("\n### {unit}\n\n{table}");
        }
        let panels = [
            panel(&self.report, "commits_per_s", "commits/s"),
            panel(&self.report, "p50_us", "p50, us"),
            panel(&self.report, "p99_us", "p99, us"),
        ];
        let title = "Three nodes, 1,500 groups, by the number of writers";
        let json = self
            .report
            .write(&self.arguments, &summary, title, &panels)?;
        println!(
            "\n{summary}\nwrote {} and .md, .svg beside it",
            json.display()
        );
        self.cluster.down()
    }
}

/// What one timed part counted.
struct Counted {
    acked: f64,
    commits_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    nodes: ByThread,
    writers: ByThread,
}

fn panel(report: &Report, unit: &str, y: &str) -> Panel {
    let rows = || report.rows().iter().filter(|row| row.unit == unit);
    let point = |row: &Row, of: Option<f64>| {
        let writers = row.param("writers")?.parse::<f64>().ok()?;
        Some((writers, of?))
    };
    let mut series = vec![Series {
        name: "ours".to_owned(),
        points: rows().filter_map(|row| point(row, row.median())).collect(),
        style: Style::Solid(0),
    }];
    let reference = rows().filter_map(|row| {
        let reference = row.reference.as_ref()?;
        point(row, benches::report::median(&reference.runs))
    });
    let reference: Vec<_> = reference.collect();
    if !reference.is_empty() {
        series.push(Series {
            name: "syncs and round trip".to_owned(),
            points: reference,
            style: Style::Pale(0),
        });
    }
    Panel {
        title: unit.to_owned(),
        x: "writers".to_owned(),
        y: y.to_owned(),
        series,
    }
}
