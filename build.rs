//! Link options of the released program, for a fast start; see docs/performance.md.
//!
//! - Not position-independent: the addresses in tables of functions and texts are known when the program is
//!   linked. Otherwise the dynamic linker writes some 60,000 of them into 1.5 MB of memory at every start,
//!   which takes longer than the work of most commands. Stack, heap and libraries stay at random addresses.
//!   `CCM_PIE=1` builds a position-independent program.
//! - The unwinder is linked statically: one library less to load.
//! - Functions that every start, a small run and an idle agent use are next to each other: the kernel maps
//!   64 KiB around each page of code that is used, and scattered over 26 MB they made most of it resident.
//!   `packaging/link/record` writes the list. A function that it does not name is linked where it was.

use std::env;

/// Linker script that lists the functions of a start, a small run and an idle agent.
const ORDER: &str = "packaging/link/start.ld";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CCM_PIE");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let is_gnu_linux = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if !is("PROFILE", "release") || !is_gnu_linux {
        return;
    }
    if !is("CCM_PIE", "1") {
        println!("cargo::rustc-link-arg-bin=ccm=-no-pie");
    }
    // A given linker, such as that of `scripts/package`, may have an unwinder of its own.
    if env::var_os("RUSTC_LINKER").is_none() {
        println!("cargo::rustc-link-lib=static:-bundle,+verbatim=libgcc_eh.a");
        if is("CARGO_CFG_TARGET_ARCH", "x86_64")
            && let Ok(root) = env::var("CARGO_MANIFEST_DIR")
        {
            println!("cargo::rerun-if-changed={ORDER}");
            println!("cargo::rustc-link-arg-bin=ccm=-Wl,-T,{root}/{ORDER}");
        }
    }
}
