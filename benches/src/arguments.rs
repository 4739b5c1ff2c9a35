//! The command line that all benches have: `[--quick] [--only ID] [--json F]`. `--bench` comes from
//! cargo and means nothing. A relative path counts from the workspace's root, wherever the bench
//! was started from.

use std::path::{Path, PathBuf};

/// What the bench was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// A short run, to see that the bench works; its figures are coarse.
    pub quick: bool,
    /// Only what has this id, or one that begins with it and a slash.
    pub only: Option<String>,
    /// Where the JSON goes; plot and table go beside it.
    pub json: Option<PathBuf>,
}

/// The workspace's root.
#[must_use]
pub fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

impl Arguments {
    /// Reads the process's own; on a mistake says how it is done and ends the process with 2.
    #[must_use]
    #[expect(clippy::print_stderr, reason = "the place for usage errors")]
    pub fn from_process(bench: &str) -> Self {
        match Self::parse(std::env::args().skip(1)) {
            Ok(arguments) => arguments,
            Err(mistake) => {
                eprintln!("{mistake}");
                eprintln!(
                    "usage: cargo bench -p benches --bench {bench} -- \
                     [--quick] [--only ID] [--json FILE]"
                );
                std::process::exit(2);
            }
        }
    }

    fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut words = words.into_iter();
        let mut read = Self::default();
        while let Some(word) = words.next() {
            let mut value = || {
                let value = words.next().filter(|value| !value.starts_with("--"));
                value.ok_or_else(|| format!("{word} needs a value"))
            };
            match word.as_str() {
                "--quick" => read.quick = true,
                "--bench" => {}
                "--only" => read.only = Some(value()?),
                "--json" => read.json = Some(workspace().join(value()?)),
                _ => return Err(format!("{word} is no option of this bench")),
            }
        }
        Ok(read)
    }

    /// Whether `id` was asked for.
    #[must_use]
    pub fn wants(&self, id: &str) -> bool {
        self.only.as_deref().is_none_or(|only| {
            id.strip_prefix(only)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Where the JSON goes.
    #[must_use]
    pub fn json_file(&self, bench: &str) -> PathBuf {
        let default = || {
            let folder = workspace().join("target/bench").join(bench);
            folder.join(format!("{bench}.json"))
        };
        self.json.clone().unwrap_or_else(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Arguments, String> {
        Arguments::parse(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn cargos_own_word_is_ignored_and_paths_count_from_the_root() {
        let read = parse("--quick --only lane/16 --json target/x.json --bench").unwrap();
        assert!(read.quick);
        assert_eq!(read.only.as_deref(), Some("lane/16"));
        assert_eq!(read.json_file("window"), workspace().join("target/x.json"));
        assert!(workspace().join("Cargo.lock").exists());
    }

    #[test]
    fn a_mistyped_option_is_refused() {
        assert!(parse("--quik").unwrap_err().contains("--quik"));
        assert!(parse("--json").unwrap_err().contains("--json"));
        assert!(parse("--only --quick").unwrap_err().contains("--only"));
    }

    #[test]
    fn only_picks_an_id_and_what_lies_under_it() {
        let only = parse("--only lane/1").unwrap();
        assert!(only.wants("lane/1") && only.wants("lane/1/64"));
        assert!(!only.wants("lane/16/64") && !only.wants("lane"));
        assert!(parse("").unwrap().wants("anything"));
    }
}
