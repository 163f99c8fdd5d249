//! Benchmark of stable packages: one manifest with 200 packages against 200 single calls and one
//! `dpkg-query -W`.
//!
//! Uses the installed packages of the machine and changes nothing; a run that would change a package
//! stops the benchmark.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark sets up its environment directly and panics on errors"
)]

use std::process::Command;

mod support;

const PACKAGES: usize = 200;
const ROUNDS: usize = 15;

/// Rounds of 200 processes each.
const SINGLE_ROUNDS: usize = 3;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("singles") => singles(&args[2..]),
        Some("measure") => support::measure(&args[2..]),
        _ => compare(),
    }
}

/// Returns up to `PACKAGES` installed packages with their versions.
fn installed() -> Vec<(String, String)> {
    let format = "-f=${db:Status-Status} ${Package} ${Version}\n";
    let output = Command::new("dpkg-query").args(["-W", format]).output();
    let output = output.expect("dpkg-query: this benchmark needs a Debian machine");
    let text = String::from_utf8(output.stdout).unwrap();
    let package = |line: &str| {
        let (name, version) = line.strip_prefix("installed ")?.split_once(' ')?;
        Some((name.to_owned(), version.to_owned()))
    };
    let mut found: Vec<(String, String)> = text.lines().filter_map(package).collect();
    found.dedup_by(|a, b| a.0 == b.0);
    found.truncate(PACKAGES);
    found
}

fn compare() {
    let packages = installed();
    let count = packages.len();
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("manifest.yaml");
    let entries: String = packages
        .iter()
        .map(|(name, version)| {
            format!("        - {name}: {{ensure: '{version}', provider: apt}}\n")
        })
        .collect();
    std::fs::write(
        &path,
        format!("ccm:\n  resources:\n    - package:\n{entries}"),
    )
    .unwrap();
    let manifest = path.to_str().unwrap();
    let ccm = env!("CARGO_BIN_EXE_ccm");
    // Noop: a package that is upgraded during the benchmark is not changed back.
    let apply = [ccm, "apply", manifest, "--noop", "--no-report"];
    let checked = Command::new(ccm)
        .args(["apply", manifest, "--noop", "--detailed-exitcodes"])
        .output()
        .unwrap();
    assert!(checked.status.success(), "not stable: {checked:?}");

    let baseline = ["dpkg-query", "-W"];
    let [ours, query] = support::best_of(ROUNDS, [&apply, &baseline]);
    let own = std::env::current_exe().unwrap();
    let mut singles = vec![own.to_str().unwrap(), "singles"];
    singles.extend(packages.iter().map(|(name, _)| name.as_str()));
    let [each] = support::best_of(SINGLE_ROUNDS, [&singles]);

    let ratio = |a: support::Cost, b: support::Cost| a.time.as_secs_f64() / b.time.as_secs_f64();
    println!("{count} stable packages");
    println!(
        "  one manifest        {:>10.2?}  {:>5.1} MiB",
        ours.time,
        ours.peak_kib as f64 / 1024.0
    );
    println!("  {count} single queries  {:>10.2?}", each.time);
    println!("  one dpkg-query      {:>10.2?}", query.time);
    println!("single queries to one manifest: {:.1}", ratio(each, ours));
    println!("one manifest to one dpkg-query: {:.2}", ratio(ours, query));
}

/// Runs one command per package.
fn singles(packages: &[String]) {
    for package in packages {
        let status = Command::new(env!("CARGO_BIN_EXE_ccm"))
            .args(["ensure", "package", package, "--noop", "--provider", "apt"])
            .output()
            .unwrap()
            .status;
        assert!(status.success(), "{package}");
    }
}
