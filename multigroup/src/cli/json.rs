//! Where `--json` writes: a file, written whole or not at all, or `-` for standard output.

use std::convert::Infallible;
use std::io::Write;
use std::path::PathBuf;
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
            Self::File(path) => durable::write(path, text.as_bytes(), durable::Readers::All)
                .map_err(|error| Failure::of_input("write", path, &error)),
        }
    }
}
