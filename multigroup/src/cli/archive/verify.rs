//! `multigroup archive verify`: reads everything in an archive and judges it.

use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use transport::io::clock;

use super::super::failure::Failure;
use super::super::json::Target;
use super::{block_on, failure, parse};
use crate::archive::{Checked, check};

/// Between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(3);

/// Read everything in an archive, and judge it
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  multigroup archive verify --from file:///var/lib/demo/archive")]
pub(super) struct Verify {
    /// The archive, file:///PATH or s3://BUCKET/PREFIX
    #[arg(long, value_name = "URL")]
    from: String,
    /// Where to write the result as JSON: a file, or - for stdout instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<Target>,
}

impl Verify {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let url = parse(&self.from)?;
        let mut told = clock::now();
        let mut progress = |objects: u64, bytes: u64| {
            let now = clock::now();
            if now.saturating_duration_since(told) >= PROGRESS_INTERVAL {
                told = now;
                tell(objects, bytes);
            }
        };
        let checked = block_on(check(&url, &mut progress))?;
        let checked = checked.map_err(|error| failure(&url, &error))?;
        if let Some(target) = &self.json {
            target.write(&value(&checked), out)?;
        }
        if self.json != Some(Target::Stdout) {
            write_table(out, &checked).map_err(Failure::of_stdout)?;
        }
        match checked.first_faults.first() {
            None => Ok(()),
            Some(first) => Err(Failure::work(format!(
                "{url} has {} faults, the first: {first}; what is before a fault is sound, and no \
                 object must be changed by hand",
                checked.faults
            ))),
        }
    }
}

/// A plain line every few seconds, on the terminal one that is overwritten.
#[expect(clippy::print_stderr, reason = "progress of a command")]
fn tell(objects: u64, bytes: u64) {
    let mib = bytes >> 20;
    if std::io::stderr().is_terminal() {
        eprint!("\rread {objects} objects, {mib} MiB");
    } else {
        eprintln!("read {objects} objects, {mib} MiB");
    }
}

fn write_table(out: &mut dyn Write, checked: &Checked) -> std::io::Result<()> {
    let id = checked.identity.cluster_id;
    let id = id.map_or_else(|| "without an id".to_owned(), |id| format!("id {id}"));
    writeln!(out, "cluster    {}, {id}", checked.identity.cluster)?;
    writeln!(out, "objects    {}", checked.objects)?;
    writeln!(out, "bytes      {}", checked.bytes)?;
    writeln!(out, "segments   {}", checked.segments)?;
    writeln!(out, "entries    {}", checked.entries)?;
    writeln!(out, "overlaps   {} entries, compared", checked.overlaps)?;
    let (have, all) = (checked.positions.len(), checked.identity.groups);
    writeln!(out, "groups     {have} of {all} have a position")?;
    writeln!(out, "faults     {}", checked.faults)?;
    for fault in &checked.first_faults {
        writeln!(out, "  {fault}")?;
    }
    Ok(())
}

fn value(checked: &Checked) -> Value {
    let positions = checked.positions.iter();
    let positions = positions.map(|(group, position)| {
        let (index, term) = (position.index.to_u64(), position.term.to_u64());
        (group.to_string(), json!({"index": index, "term": term}))
    });
    json!({
        "schema": "multigroup.archive-verify/1",
        "cluster": checked.identity.cluster,
        "cluster_id": checked.identity.cluster_id,
        "groups": checked.identity.groups,
        "objects": checked.objects,
        "bytes": checked.bytes,
        "segments": checked.segments,
        "entries": checked.entries,
        "overlap_entries": checked.overlaps,
        "newest_ms": checked.newest_ms,
        "faults": checked.faults,
        "first_faults": checked.first_faults,
        "positions": positions.collect::<serde_json::Map<_, _>>(),
    })
}
