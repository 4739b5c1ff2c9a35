//! `multigroup archive ls`: the objects of an archive, and how far it goes.

use std::collections::BTreeSet;
use std::io::Write;

use clap::Args;
use raft_host::id::GroupId;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::super::failure::Failure;
use super::super::json::Target;
use super::{block_on, failure, parse};
use crate::archive::{Listed, list};
use crate::certificates::rfc3339;

/// List the objects of an archive
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  multigroup archive ls --from file:///var/lib/demo/archive")]
pub(super) struct Ls {
    /// The archive, file:///PATH or s3://BUCKET/PREFIX
    #[arg(long, value_name = "URL")]
    from: String,
    /// Where to write the list as JSON: a file, or - for stdout instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<Target>,
}

#[derive(Default)]
struct Sums {
    objects: u64,
    bytes: u64,
    entries: u64,
    groups: BTreeSet<GroupId>,
}

impl Ls {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let url = parse(&self.from)?;
        let table = self.json != Some(Target::Stdout);
        let (mut sums, mut values, mut written) = (Sums::default(), Vec::new(), Ok(()));
        if table {
            written = writeln!(
                out,
                "{:>6} {:>10} {:<20} {:>6} {:>9} {:>12}",
                "node", "object", "made", "groups", "entries", "bytes"
            );
        }
        let listed = block_on(list(&url, |listed| {
            sums.add(&listed);
            if table && written.is_ok() {
                written = write_line(out, &listed);
            }
            if self.json.is_some() {
                values.push(value(&listed));
            }
        }))?;
        written.map_err(Failure::of_stdout)?;
        listed.map_err(|error| failure(&url, &error))?;
        if table {
            let (objects, groups) = (sums.objects, sums.groups.len());
            let (entries, bytes) = (sums.entries, sums.bytes);
            writeln!(
                out,
                "{objects} objects, {groups} groups, {entries} entries, {bytes} bytes"
            )
            .map_err(Failure::of_stdout)?;
        }
        if let Some(target) = &self.json {
            let value = json!({
                "schema": "multigroup.archive-ls/1",
                "objects_total": sums.objects,
                "groups_total": sums.groups.len(),
                "entries_total": sums.entries,
                "bytes_total": sums.bytes,
                "objects": values,
            });
            target.write(&value, out)?;
        }
        Ok(())
    }
}

impl Sums {
    fn add(&mut self, listed: &Listed) {
        self.objects += 1;
        self.bytes += listed.header.bytes();
        self.entries += entries(listed);
        self.groups
            .extend(listed.segments.iter().map(|segment| segment.group));
    }
}

fn entries(listed: &Listed) -> u64 {
    let segments = listed.segments.iter();
    let counts = segments.map(|s| s.last.to_u64() - s.first.to_u64() + 1);
    counts.sum()
}

fn made(listed: &Listed) -> String {
    let seconds = i64::try_from(listed.header.made_ms / 1000).unwrap_or(i64::MAX);
    let made = OffsetDateTime::from_unix_timestamp(seconds);
    made.map(rfc3339).unwrap_or_default()
}

fn write_line(out: &mut dyn Write, listed: &Listed) -> std::io::Result<()> {
    let header = &listed.header;
    writeln!(
        out,
        "{:>6} {:>10} {:<20} {:>6} {:>9} {:>12}",
        header.name.node,
        header.name.sequence,
        made(listed),
        header.segments,
        entries(listed),
        header.bytes()
    )
}

fn value(listed: &Listed) -> Value {
    let header = &listed.header;
    json!({
        "node": header.name.node,
        "sequence": header.name.sequence,
        "made_ms": header.made_ms,
        "groups": header.segments,
        "entries": entries(listed),
        "bytes": header.bytes(),
    })
}
