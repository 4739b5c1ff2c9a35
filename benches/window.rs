//! The control window: how many frames a second go over the control lane, how long each takes and
//! what it costs, for windows of 1 to 64 frames, frames of 64 bytes to 16 KiB, and delays of 0 to
//! 2 ms each way. Beside each figure stands that of a plain TLS exchange (`benches::raw`) with the
//! same frame size and as many frames in flight; the two alternate, run by run.
//!
//! Each end is one thread and has a core of its own; `shared` is the same with both on one core.
//!
//! More references: at the usual window the plain exchange with the lane's tags made and checked
//! beside it; the exchange with no window at all; the lane left to put several items into one
//! frame; and the cost of the tag alone.
//!
//! Ids: `lane/WINDOW/BYTES/direct`, `…/shared`, `…/relay/DELAY`, `lane/16/BYTES/direct/tagged`,
//! `…/shared/tagged`, `unwindowed/BYTES`, `batched/BYTES`, `tag/BYTES`. README says what the figures
//! mean.

#![expect(
    clippy::print_stdout,
    reason = "a bench shows how far it is and what it found"
)]

use std::time::Duration;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use benches::Fault;
use benches::arguments::Arguments;
use benches::cores::{self, Cores, Placement};
use benches::end::{OtherEnd, single_threaded};
use benches::fleet::Fleet;
use benches::lane::Link;
use benches::meter::{Run, ThreadMeter};
use benches::plot::{Panel, Series, Style};
use benches::raw::{RawAcceptor, RawExchange, Tags};
use benches::relay::Relay;
use benches::report::{Reference, Report, Row, figure, median};
use serde_json::{Value, json};
use transport::Credentials;
use transport::io::clock;

const BENCH: &str = "window";

/// The window whose figures the project aims at, for the rows that have one window only.
const USUAL_WINDOW: usize = 16;

/// What is run, and for how long.
struct Plan {
    windows: &'static [usize],
    frame_bytes: &'static [usize],
    delays: &'static [Duration],
    runs: usize,
    lasting: Duration,
    /// Before each set of runs, uncounted.
    warming: Duration,
}

const FULL: Plan = Plan {
    windows: &[1, 2, 4, 8, 16, 32, 64],
    frame_bytes: &[64, 1 << 10, 4 << 10, 16 << 10],
    delays: &[Duration::from_micros(500), Duration::from_millis(2)],
    runs: 5,
    lasting: Duration::from_millis(600),
    warming: Duration::from_millis(100),
};

const QUICK: Plan = Plan {
    windows: &[1, 8, 16, 64],
    frame_bytes: &[64, 4 << 10],
    delays: &[Duration::from_micros(500), Duration::from_millis(2)],
    runs: 3,
    lasting: Duration::from_millis(120),
    warming: Duration::from_millis(30),
};

/// How frames get to the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Over loopback, each end on a core of its own.
    Direct,
    /// Over loopback, both ends on one core.
    Shared,
    /// Through the relay, each end on a core of its own.
    Relay(Duration),
}

impl Way {
    fn id(self, window: usize, frame_bytes: usize) -> String {
        let lane = format!("lane/{window}/{frame_bytes}");
        match self {
            Self::Direct => format!("{lane}/direct"),
            Self::Shared => format!("{lane}/shared"),
            Self::Relay(delay) => format!("{lane}/relay/{}us", delay.as_micros()),
        }
    }

    fn params(self, window: usize, frame_bytes: usize) -> Vec<(&'static str, Value)> {
        let (path, delay) = match self {
            Self::Direct => ("direct", Duration::ZERO),
            Self::Shared => ("shared", Duration::ZERO),
            Self::Relay(delay) => ("relay", delay),
        };
        vec![
            ("window", json!(window)),
            ("frame_bytes", json!(frame_bytes)),
            ("delay_us", json!(u64::try_from(delay.as_micros()).ok())),
            ("path", json!(path)),
        ]
    }

    const fn placement(self) -> Placement {
        match self {
            Self::Direct | Self::Relay(_) => Placement::Apart,
            Self::Shared => Placement::Shared,
        }
    }

    fn title(self) -> String {
        match self {
            Self::Direct => "direct".to_owned(),
            Self::Shared => "direct, both ends on one core".to_owned(),
            Self::Relay(delay) => format!("relay, {} µs each way", delay.as_micros()),
        }
    }
}

struct Bench {
    plan: Plan,
    arguments: Arguments,
    fleet: Fleet,
    other: OtherEnd,
    ends: [ThreadMeter; 2],
    cores: Cores,
    /// Node 1, which dials.
    credentials: Credentials,
    raw: RawAcceptor,
    report: Report,
}

/// Runs of two things that alternated.
#[derive(Default)]
struct Pairs {
    ours: Vec<Run>,
    reference: Vec<Run>,
    /// A second reference, where there is one.
    tagged: Vec<Run>,
}

/// One quantity of a run, its unit and how to read it off.
type Quantity = (&'static str, fn(&Run) -> f64);

const QUANTITIES: [Quantity; 5] = [
    ("frames_per_s", Run::frames_per_s),
    ("send_to_reply_p50_us", |run| run.latencies.quantile_us(0.5)),
    ("send_to_reply_p99_us", |run| {
        run.latencies.quantile_us(0.99)
    }),
    ("cpu_us_per_frame", Run::cpu_us_per_item),
    ("sleeps_per_frame", Run::sleeps_per_item),
];

fn main() -> Result<(), Fault> {
    let arguments = Arguments::from_process(BENCH);
    let plan = if arguments.quick { QUICK } else { FULL };
    let runtime = single_threaded()?;
    let report = Report::new(BENCH, &arguments);
    runtime.block_on(async {
        let fleet = Fleet::new()?;
        let other = OtherEnd::start()?;
        let raw = RawAcceptor::start(&other, fleet.credentials(2)?).await?;
        let mut bench = Bench {
            plan,
            arguments,
            ends: [ThreadMeter::of_this_thread()?, other.meter().clone()],
            cores: Cores::of_this_process()?,
            credentials: fleet.credentials(1)?,
            fleet,
            other,
            raw,
            report,
        };
        bench.tags()?;
        bench.unwindowed().await?;
        bench.batched().await?;
        bench.sweep().await?;
        bench.finish()
    })
}

impl Bench {
    async fn link(&self, window: usize, way: Way) -> Result<Link, Fault> {
        let credentials = [self.credentials.clone(), self.fleet.credentials(2)?];
        Link::start(&self.other, credentials, u16::try_from(window)?, |target| {
            Ok(match way {
                Way::Direct | Way::Shared => target,
                Way::Relay(delay) => Relay::start(target, delay)?.address(),
            })
        })
        .await
    }

    async fn raw(&self, frame_bytes: usize, way: Way, tags: Tags) -> Result<RawExchange, Fault> {
        let address = match way {
            Way::Direct | Way::Shared => self.raw.address(),
            Way::Relay(delay) => Relay::start(self.raw.address(), delay)?.address(),
        };
        RawExchange::dial(address, &self.credentials, 2, frame_bytes, tags).await
    }

    /// Puts the ends on their cores.
    async fn place(&self, placement: Placement) -> Result<(), Fault> {
        cores::bind(self.cores.of(0, placement))?;
        let core = self.cores.of(1, placement);
        Ok(self.other.run(async move { cores::bind(core) }).await??)
    }

    /// All windows, sizes and delays. Where there is no delay the direct way and the relay
    /// alternate too, so that their difference is what the relay costs.
    async fn sweep(&mut self) -> Result<(), Fault> {
        let undelayed = vec![Way::Direct, Way::Shared, Way::Relay(Duration::ZERO)];
        let delayed = self
            .plan
            .delays
            .iter()
            .map(|delay| vec![Way::Relay(*delay)]);
        let sets: Vec<Vec<Way>> = std::iter::once(undelayed).chain(delayed).collect();
        for window in self.plan.windows {
            for ways in &sets {
                let wanted = |frame_bytes: &&usize| {
                    let mut ids = ways.iter().map(|way| way.id(*window, **frame_bytes));
                    ids.any(|id| self.arguments.wants(&id))
                };
                let sizes: Vec<usize> = self
                    .plan
                    .frame_bytes
                    .iter()
                    .filter(wanted)
                    .copied()
                    .collect();
                if sizes.is_empty() {
                    continue;
                }
                let mut links = Vec::new();
                for way in ways {
                    links.push(self.link(*window, *way).await?);
                }
                for frame_bytes in sizes {
                    self.cell(*window, frame_bytes, ways, &links).await?;
                }
                for link in links {
                    link.stop(&self.other).await?;
                }
            }
        }
        Ok(())
    }

    /// One window and size, over some ways: ours and the raw exchange in turns.
    async fn cell(
        &mut self,
        window: usize,
        frame_bytes: usize,
        ways: &[Way],
        links: &[Link],
    ) -> Result<(), Fault> {
        let (ends, lasting) = (&self.ends, self.plan.lasting);
        if self.cores.count() < 2 {
            return Err("each end needs a core of its own, and there is one".into());
        }
        let mut rivals = Vec::new();
        for (way, link) in ways.iter().zip(links) {
            let raw = self.raw(frame_bytes, *way, Tags::None).await?;
            let tagged = if has_tagged_reference(*way, window) {
                Some(self.raw(frame_bytes, *way, Tags::AsOnTheLane).await?)
            } else {
                None
            };
            rivals.push((*way, link, raw, tagged, Pairs::default()));
        }
        for (way, link, raw, tagged, _) in &mut rivals {
            let warming = self.plan.warming;
            self.place(way.placement()).await?;
            link.run(frame_bytes, warming, ends).await?;
            raw.run(window, warming, ends).await?;
            if let Some(tagged) = tagged {
                tagged.run(window, warming, ends).await?;
            }
        }
        for _ in 0..self.plan.runs {
            for (way, link, raw, tagged, pairs) in &mut rivals {
                self.place(way.placement()).await?;
                pairs.ours.push(link.run(frame_bytes, lasting, ends).await?);
                pairs.reference.push(raw.run(window, lasting, ends).await?);
                if let Some(tagged) = tagged {
                    pairs.tagged.push(tagged.run(window, lasting, ends).await?);
                }
            }
        }
        let results: Vec<(Way, Pairs)> = rivals
            .into_iter()
            .map(|(way, .., pairs)| (way, pairs))
            .collect();
        for (way, mut pairs) in results {
            let id = way.id(window, frame_bytes);
            if !self.arguments.wants(&id) {
                continue;
            }
            let params = way.params(window, frame_bytes);
            let name = format!("raw tokio-rustls exchange, {window} in flight");
            self.add(&id, &params, &QUANTITIES, &pairs, &name);
            if !pairs.tagged.is_empty() {
                pairs.reference = std::mem::take(&mut pairs.tagged);
                let (id, name) = (
                    format!("{id}/tagged"),
                    format!("{name}, with the lane's tags"),
                );
                self.add(&id, &params, &QUANTITIES, &pairs, &name);
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        id: &str,
        params: &[(&'static str, Value)],
        quantities: &[Quantity],
        pairs: &Pairs,
        reference: &str,
    ) {
        let mut said = String::new();
        for (unit, quantity) in quantities {
            let row = Row {
                id: id.to_owned(),
                params: params.to_vec(),
                unit,
                runs: pairs.ours.iter().map(quantity).collect(),
                reference: Some(Reference {
                    name: reference.to_owned(),
                    runs: pairs.reference.iter().map(quantity).collect(),
                }),
            };
            let middle = row.median().map_or_else(String::new, figure);
            let ratio = row.ratio().unwrap_or(f64::NAN);
            said += &format!("  {unit} {middle} ({ratio:.2})");
            self.report.push(row);
        }
        println!("{id:<28}{said}");
    }

    /// The raw exchange without a window, against itself with the usual one.
    async fn unwindowed(&mut self) -> Result<(), Fault> {
        for frame_bytes in self.plan.frame_bytes {
            let id = format!("unwindowed/{frame_bytes}");
            if !self.arguments.wants(&id) {
                continue;
            }
            let (ends, lasting) = (&self.ends, self.plan.lasting);
            let mut raw = self.raw(*frame_bytes, Way::Direct, Tags::None).await?;
            self.place(Placement::Apart).await?;
            raw.run_unwindowed(self.plan.warming, ends).await?;
            let mut pairs = Pairs::default();
            for _ in 0..self.plan.runs {
                pairs.ours.push(raw.run_unwindowed(lasting, ends).await?);
                let windowed = raw.run(USUAL_WINDOW, lasting, ends).await?;
                pairs.reference.push(windowed);
            }
            let name = format!("raw tokio-rustls exchange, {USUAL_WINDOW} in flight");
            let params = [
                ("window", Value::Null),
                ("frame_bytes", json!(frame_bytes)),
                ("delay_us", json!(0)),
                ("path", json!("direct")),
            ];
            let [rate, _, _, cpu, sleeps] = QUANTITIES;
            self.add(&id, &params, &[rate, cpu, sleeps], &pairs, &name);
        }
        Ok(())
    }

    /// The lane with as many items in flight, left to put several into one frame.
    async fn batched(&mut self) -> Result<(), Fault> {
        let wanted = |bytes: &&usize| self.arguments.wants(&format!("batched/{bytes}"));
        let sizes: Vec<usize> = self
            .plan
            .frame_bytes
            .iter()
            .filter(wanted)
            .copied()
            .collect();
        if sizes.is_empty() {
            return Ok(());
        }
        let link = self.link(USUAL_WINDOW, Way::Direct).await?;
        for item_bytes in sizes {
            let (ends, lasting) = (&self.ends, self.plan.lasting);
            let mut raw = self.raw(item_bytes, Way::Direct, Tags::None).await?;
            let mut pairs = Pairs::default();
            self.place(Placement::Apart).await?;
            for run in 0..=self.plan.runs {
                let ours = link.run_batched(USUAL_WINDOW, item_bytes, lasting, ends);
                let ours = ours.await?;
                let reference = raw.run(USUAL_WINDOW, lasting, ends).await?;
                // The first warms up.
                if run > 0 {
                    pairs.ours.push(ours);
                    pairs.reference.push(reference);
                }
            }
            let name = format!("raw tokio-rustls exchange, {USUAL_WINDOW} in flight");
            let params = [
                ("window", json!(USUAL_WINDOW)),
                ("item_bytes", json!(item_bytes)),
                ("delay_us", json!(0)),
                ("path", json!("direct")),
            ];
            let quantities: [Quantity; 6] = [
                ("items_per_s", Run::items_per_s),
                ("items_per_frame", |run| {
                    run.items_per_s() / run.frames_per_s()
                }),
                ("send_to_reply_p50_us", QUANTITIES[1].1),
                ("send_to_reply_p99_us", QUANTITIES[2].1),
                ("cpu_us_per_item", Run::cpu_us_per_item),
                ("sleeps_per_item", Run::sleeps_per_item),
            ];
            let id = format!("batched/{item_bytes}");
            self.add(&id, &params, &quantities, &pairs, &name);
        }
        link.stop(&self.other).await
    }

    /// The tag over one frame, AES-256 against AES-128.
    fn tags(&mut self) -> Result<(), Fault> {
        for frame_bytes in self.plan.frame_bytes {
            let id = format!("tag/{frame_bytes}");
            if !self.arguments.wants(&id) {
                continue;
            }
            let (mut long, mut short) = (Vec::new(), Vec::new());
            for _ in 0..self.plan.runs {
                let lasting = self.plan.lasting / 4;
                long.push(tag_ns(&aead::AES_256_GCM, *frame_bytes, lasting)?);
                short.push(tag_ns(&aead::AES_128_GCM, *frame_bytes, lasting)?);
            }
            let row = Row {
                id,
                params: vec![
                    ("frame_bytes", json!(frame_bytes)),
                    ("key_bits", json!(256)),
                ],
                unit: "tag_ns",
                runs: long,
                reference: Some(Reference {
                    name: "tag under AES-128".to_owned(),
                    runs: short,
                }),
            };
            let middle = row.median().map_or_else(String::new, figure);
            let ratio = row.ratio().unwrap_or(f64::NAN);
            println!("{:<28}  tag_ns {middle} ({ratio:.2})", row.id);
            self.report.push(row);
        }
        Ok(())
    }

    fn finish(self) -> Result<(), Fault> {
        let ways = [Way::Direct, Way::Shared, Way::Relay(Duration::ZERO)].into_iter();
        let ways: Vec<_> = ways
            .chain(self.plan.delays.iter().copied().map(Way::Relay))
            .collect();
        let mut summary = String::from(
            "Ours, and in brackets ours by the raw exchange's of the same row. Medians of runs that \
             alternated.\n",
        );
        let mut panels = Vec::new();
        for way in ways {
            let of_way = |row: &Row| is_plain(row) && is_of(row, way);
            if !self.report.rows().iter().any(of_way) {
                continue;
            }
            for (unit, _) in QUANTITIES {
                let table = self.report.pivot(unit, "window", "frame_bytes", of_way);
                summary += &format!("\n### {}: {unit}\n\n{table}", way.title());
            }
            panels.push(panel(&self.report, way));
        }
        let title = "Control lane (dots) and raw TLS exchange (pale), frames per second";
        let json = self
            .report
            .write(&self.arguments, &summary, title, &panels)?;
        println!(
            "\n{summary}\nwrote {} and .md, .svg beside it",
            json.display()
        );
        Ok(())
    }
}

/// Whether the exchange that pays for tags runs too.
fn has_tagged_reference(way: Way, window: usize) -> bool {
    window == USUAL_WINDOW && matches!(way, Way::Direct | Way::Shared)
}

/// A row of the lane against the plain exchange.
fn is_plain(row: &Row) -> bool {
    row.id.starts_with("lane/") && !row.id.ends_with("/tagged")
}

/// Nanoseconds for one tag over a frame.
fn tag_ns(
    cipher: &'static aead::Algorithm,
    frame_bytes: usize,
    lasting: Duration,
) -> Result<f64, Fault> {
    const BETWEEN_CLOCKS: u32 = 256;
    let key = UnboundKey::new(cipher, &vec![7; cipher.key_len()])?;
    let key = LessSafeKey::new(key);
    let frame = vec![0x5a; frame_bytes];
    let began = clock::now();
    let mut count = 0_u32;
    loop {
        for _ in 0..BETWEEN_CLOCKS {
            let mut nonce = [0; aead::NONCE_LEN];
            nonce[..4].copy_from_slice(&count.to_be_bytes());
            let nonce = Nonce::assume_unique_for_key(nonce);
            let aad = Aad::from(std::hint::black_box(&frame));
            let tag = key.seal_in_place_separate_tag(nonce, aad, &mut [])?;
            std::hint::black_box(tag.as_ref());
            count += 1;
        }
        let took = clock::now() - began;
        if took >= lasting {
            return Ok(took.as_secs_f64() * 1e9 / f64::from(count));
        }
    }
}

/// Whether a row is of this way.
fn is_of(row: &Row, way: Way) -> bool {
    let named = |(name, value): (&str, Value)| {
        let found = row.params.iter().find(|(of, _)| *of == name);
        found.is_some_and(|(_, of)| *of == value)
    };
    way.params(0, 0).into_iter().skip(2).all(named)
}

/// Frames per second by window, a curve for each size, ours and the raw exchange's.
fn panel(report: &Report, way: Way) -> Panel {
    let rows = report
        .rows()
        .iter()
        .filter(|row| row.unit == "frames_per_s" && is_plain(row) && is_of(row, way));
    let mut series: Vec<Series> = Vec::new();
    for row in rows {
        let number = |name| row.param(name)?.parse::<f64>().ok();
        let (Some(window), Some(bytes)) = (number("window"), row.param("frame_bytes")) else {
            continue;
        };
        let colour = FULL.frame_bytes.iter().position(|b| b.to_string() == bytes);
        let colour = colour.unwrap_or(0);
        let raw = row.reference.as_ref().and_then(|raw| median(&raw.runs));
        for (name, middle, style) in [
            (format!("{bytes} B"), row.median(), Style::Solid(colour)),
            (format!("{bytes} B, raw"), raw, Style::Pale(colour)),
        ] {
            let Some(middle) = middle else { continue };
            match series.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push((window, middle)),
                None => series.push(Series {
                    name,
                    points: vec![(window, middle)],
                    style,
                }),
            }
        }
    }
    Panel {
        title: way.title(),
        x: "window, frames".to_owned(),
        y: "frames/s".to_owned(),
        series,
    }
}
