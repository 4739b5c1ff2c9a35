//! The disk's part of a commit, alone: three logs that sync at the same moment, as three nodes on
//! one machine do. Each is a file written with zeros before, in which a record is written behind
//! the one before and synced (`fdatasync`). All three begin together, and a round has taken as long
//! as the slowest of them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use transport::io::clock;

use crate::Fault;
use crate::meter::Latencies;

/// As many as there are nodes.
const FILES: usize = 3;

/// Of each file, written with zeros first; a run starts over when it has filled that.
const FILE_BYTES: usize = 8 << 20;

/// A record of one small command with what a log adds to it, in whole sectors.
const RECORD: [u8; 512] = [0x5a; 512];

/// What the threads agree by.
struct Rounds {
    start: Barrier,
    done: Barrier,
    over: AtomicBool,
    until: Instant,
}

impl Rounds {
    /// Takes part in all rounds; gives how long each took.
    fn sync(&self, file: &File, leads: bool) -> std::io::Result<Latencies> {
        let (mut rounds, mut failed) = (Latencies::default(), None);
        for at in (0..FILE_BYTES).step_by(RECORD.len()).cycle() {
            if leads {
                self.over
                    .store(clock::now() >= self.until, Ordering::Relaxed);
            }
            // The barrier orders the flag: all read what the leading thread has just written.
            self.start.wait();
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            let began = clock::now();
            let written = file.write_all_at(&RECORD, at as u64);
            failed = failed.or(written.and_then(|()| file.sync_data()).err());
            self.done.wait();
            rounds.record(clock::now() - began, 1);
        }
        failed.map_or(Ok(rounds), Err)
    }
}

/// How long rounds take over some time, with files in this folder.
///
/// # Errors
/// The disk failed.
pub fn three_at_once(folder: &Path, lasting: Duration) -> Result<Latencies, Fault> {
    let folder = tempfile::TempDir::with_prefix_in("syncs-", folder)?;
    let files: std::io::Result<Vec<_>> = (0..FILES)
        .map(|number| prepared(&folder.path().join(number.to_string())))
        .collect();
    let files = files?;
    let rounds = Rounds {
        start: Barrier::new(FILES),
        done: Barrier::new(FILES),
        over: AtomicBool::new(false),
        until: clock::now() + lasting,
    };
    let rounds = &rounds;
    thread::scope(|scope| {
        let sync = |(number, file)| scope.spawn(move || rounds.sync(file, number == 0));
        let running: Vec<_> = files.iter().enumerate().map(sync).collect();
        let mut taken = Err("there was no round".into());
        for (number, thread) in running.into_iter().enumerate() {
            let of_one = thread.join().map_err(|_| "a syncing thread panicked")??;
            if number == 0 {
                taken = Ok(of_one);
            }
        }
        taken
    })
}

fn prepared(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    file.write_all_at(&vec![0; FILE_BYTES], 0)?;
    file.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_is_timed() {
        let folder = tempfile::tempdir().unwrap();
        let rounds = three_at_once(folder.path(), Duration::from_millis(20)).unwrap();
        assert!(rounds.frames() > 0 && rounds.quantile_us(0.5) > 0.0);
    }
}
