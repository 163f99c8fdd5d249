//! Parses, dispatches and turns the result into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    ccm::cli::main(std::env::args_os())
}
