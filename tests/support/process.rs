//! The product's and the examples' own binaries, run to their end.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::{PATIENCE, within};

/// What a process left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// Runs `program` in `dir` to its end; a test that is given up takes the process with it.
///
/// # Panics
/// When it can't be started, or doesn't end in time.
pub async fn run(program: &str, dir: &Path, arguments: &[&str]) -> Finished {
    run_within(PATIENCE, program, dir, arguments).await
}

/// The same for one that may take so long.
///
/// # Panics
/// When it can't be started, or doesn't end in time.
pub async fn run_within(
    limit: Duration,
    program: &str,
    dir: &Path,
    arguments: &[&str],
) -> Finished {
    let mut command = Command::new(program);
    command
        .current_dir(dir)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = within(limit, program, command.output())
        .await
        .expect("a process");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output in UTF-8");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    Finished {
        code: output.status.code(),
        stdout,
        stderr,
    }
}
