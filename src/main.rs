//! The `ccm` program, or the supervisor of a command that it runs; the command line is in
//! [`ccm::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    match ccm_core::system::supervise() {
        Some(code) => code,
        None => ccm::cli::main(std::env::args_os()),
    }
}
