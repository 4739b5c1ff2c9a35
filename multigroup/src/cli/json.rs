//! Where `--json` writes: a file, written whole or not at all, or `-` for standard output.

use std::convert::Infallible;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Serialize;

use super::durable;
use super::failure::Failure;

/// The value of a `--json` option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Stdout,
    File(PathBuf),
}

impl FromStr for Target {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "-" => Self::Stdout,
            path => Self::File(path.into()),
        })
    }
}

impl Target {
    /// Writes one value and a line's end.
    pub(super) fn write(&self, value: &impl Serialize, out: &mut dyn Write) -> Result<(), Failure> {
        let mut text = serde_json::to_string_pretty(value)
            .map_err(|error| Failure::work(format!("can't form the JSON result: {error}")))?;
        text.push('\n');
        match self {
            Self::Stdout => out.write_all(text.as_bytes()).map_err(Failure::of_stdout),
            Self::File(path) if holds_pem(path) => Err(Failure::usage(format!(
                "{} holds a certificate or a key, which the JSON result would take the place of; \
                 choose another file",
                path.display()
            ))),
            Self::File(path) => durable::write(path, text.as_bytes(), durable::Readers::All)
                .map_err(|error| Failure::of_input("write", path, &error)),
        }
    }
}

/// Whether the file begins like one that nobody means to overwrite with a result.
fn holds_pem(path: &Path) -> bool {
    let mut first = [0; 11];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && first == *b"-----BEGIN "
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_takes_the_place_of_an_older_result_and_of_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("result.json");
        let write = |content: &str| {
            std::fs::write(&target, content).unwrap();
            Target::File(target.clone())
                .write(&1, &mut Vec::new())
                .is_ok()
        };
        assert!(write("{}"));
        assert!(write(""));
        assert!(!write("-----BEGIN PRIVATE KEY-----\n"));
        assert!(
            std::fs::read_to_string(&target)
                .unwrap()
                .contains("PRIVATE KEY")
        );
    }
}
