//! The command line.

use std::process::ExitCode;

/// Runs the command named by the process's arguments and gives its exit code.
#[must_use]
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
