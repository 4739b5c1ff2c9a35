//! The `multigroup` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    multigroup::cli::main()
}
