//! The `ccm` program; the command line is in [`ccm::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccm::cli::main(std::env::args_os())
}
