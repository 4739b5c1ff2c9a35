//! The product's own `main`, built where the integration tests can find it.

use std::process::ExitCode;

fn main() -> ExitCode {
    multigroup::cli::main()
}
