//! The product's own `main`, built where the benches can find it, with their profile.

use std::process::ExitCode;

fn main() -> ExitCode {
    multigroup::cli::main()
}
