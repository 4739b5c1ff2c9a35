//! Finished runs on disk, so that a bench that was stopped goes on where it was: one file for each
//! run of a cell, under the commit that it measured. A tree that differs from its commit measures
//! nothing that could be named, so nothing of it is kept or reused.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use benches::Fault;
use benches::arguments::workspace;
use benches::report::commit;

/// Figures by their units.
pub(crate) type Figures = BTreeMap<String, f64>;

/// One run of a cell: what is measured, and what it is held against.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pair {
    pub(crate) off: Figures,
    pub(crate) on: Figures,
}

/// The runs of one commit.
#[derive(Debug)]
pub(crate) struct Saved {
    folder: Option<PathBuf>,
}

impl Saved {
    pub(crate) fn open(quick: bool) -> Self {
        let commit = commit();
        let kind = if quick { "quick" } else { "full" };
        let named = commit.len() >= 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        let folder = named.then(|| {
            let all = workspace().join("target/bench/commit_wait/runs");
            all.join(format!("{}-{kind}", &commit[..12]))
        });
        Self { folder }
    }

    fn file(&self, cell: &str, run: usize) -> Option<PathBuf> {
        let name = cell.replace('/', "-");
        let folder = self.folder.as_ref()?;
        Some(folder.join(format!("{name}-{run}.json")))
    }

    /// A run that was finished before.
    pub(crate) fn load(&self, cell: &str, run: usize) -> Option<Pair> {
        let text = fs::read(self.file(cell, run)?).ok()?;
        let [off, on]: [Figures; 2] = serde_json::from_slice(&text).ok()?;
        Some(Pair { off, on })
    }

    /// Keeps a run. It is whole or not there.
    pub(crate) fn keep(&self, cell: &str, run: usize, pair: &Pair) -> Result<(), Fault> {
        let Some(file) = self.file(cell, run) else {
            return Ok(());
        };
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let unfinished = file.with_extension("part");
        fs::write(&unfinished, serde_json::to_vec(&[&pair.off, &pair.on])?)?;
        fs::rename(unfinished, file)?;
        Ok(())
    }
}
