//! Packages that are as wanted: what a manifest of 200 costs beside 200 calls for one each, and
//! beside the one query that any program has to make.
//!
//! `cargo bench --bench packages` prints ratios; absolute times only tell about the machine. The
//! packages are the machine's own, in the versions that are installed: nothing is changed, and a
//! run that would change something stops the benchmark. The floor is a bare `dpkg-query -W`.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark arranges the world by hand and stops at the first surprise"
)]

use std::process::Command;

mod support;

const PACKAGES: usize = 200;
const ROUNDS: usize = 15;

/// Whole rounds of 200 processes take a while.
const SINGLE_ROUNDS: usize = 3;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("singles") => singles(&args[2..]),
        Some("measure") => support::measure(&args[2..]),
        _ => compare(),
    }
}

/// Returns packages of this machine, as many as there are up to the number wanted.
fn installed() -> Vec<(String, String)> {
    let format = "-f=${db:Status-Status} ${Package} ${Version}\n";
    let output = Command::new("dpkg-query").args(["-W", format]).output();
    let output = output.expect("dpkg-query: this benchmark wants a Debian machine");
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
    // Noop, so that a package somebody upgrades meanwhile is not changed back.
    let apply = [ccm, "apply", manifest, "--noop", "--no-report"];
    let checked = Command::new(ccm)
        .args(["apply", manifest, "--noop", "--detailed-exitcodes"])
        .output()
        .unwrap();
    assert!(checked.status.success(), "not stable: {checked:?}");

    let floor = ["dpkg-query", "-W"];
    let [ours, bare] = support::best_of(ROUNDS, [&apply, &floor]);
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
    println!("  one bare dpkg-query {:>10.2?}", bare.time);
    println!("single queries to one manifest: {:.1}", ratio(each, ours));
    println!(
        "one manifest to one bare dpkg-query: {:.2}",
        ratio(ours, bare)
    );
}

/// Asks for each package by itself, as a script would.
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
