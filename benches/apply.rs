//! Benchmark of a stable run with files: ratio to a minimal program, and cost per file by number of
//! files.
//!
//! The baseline is this program started as `baseline MANIFEST`: it parses the YAML with an
//! independent parser, then stats, reads and compares every file.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark sets up its environment directly and panics on errors"
)]

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

mod support;

const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];
const ROUNDS: usize = 15;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("baseline") => baseline(Path::new(&args[2])),
        Some("measure") => support::measure(&args[2..]),
        _ => compare(),
    }
}

/// Returns a manifest of files with content, owner and mode.
fn manifest(directory: &Path, files: usize) -> String {
    let mut text = String::from("ccm:\n  resources:\n    - file:\n");
    for number in 0..files {
        let name = directory.join(format!("file-{number}"));
        let _ = write!(
            text,
            "        - {}:\n            ensure: present\n            content: \"setting_{number} = on\\nsecond line of file {number}\\n\"\n            owner: root\n            group: root\n            mode: \"0644\"\n",
            name.display()
        );
    }
    text
}

fn compare() {
    println!(
        "{:>7} {:>11} {:>11} {:>8} {:>13} {:>10}",
        "files", "stable run", "baseline", "ratio", "time per file", "peak RSS"
    );
    let mut per_file = Vec::new();
    for files in SIZES {
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("out");
        std::fs::create_dir(&out).unwrap();
        let path = scratch.path().join("manifest.yaml");
        std::fs::write(&path, manifest(&out, files)).unwrap();
        let manifest = path.to_str().unwrap();
        let ccm = [env!("CARGO_BIN_EXE_ccm"), "apply", manifest, "--no-report"];
        let own = std::env::current_exe().unwrap();
        let baseline = [own.to_str().unwrap(), "baseline", manifest];
        support::run(&ccm);
        let [ours, plain] = support::best_of(ROUNDS, [&ccm, &baseline]);
        let each = ours.time / u32::try_from(files).unwrap();
        per_file.push(each);
        println!(
            "{files:>7} {:>11.2?} {:>11.2?} {:>8.2} {each:>13.2?} {:>6.1} MiB",
            ours.time,
            plain.time,
            ours.time.as_secs_f64() / plain.time.as_secs_f64(),
            ours.peak_kib as f64 / 1024.0
        );
    }
    println!(
        "cost per file at 10,000 files relative to 100: {:.2}",
        per_file[3].as_secs_f64() / per_file[1].as_secs_f64()
    );
}

/// The baseline program.
fn baseline(manifest: &Path) {
    let text = std::fs::read_to_string(manifest).unwrap();
    let document: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    let files = document["ccm"]["resources"][0]["file"]
        .as_sequence()
        .unwrap();
    for file in files {
        let (name, properties) = file.as_mapping().unwrap().iter().next().unwrap();
        let name = name.as_str().unwrap();
        let found = std::fs::metadata(name).unwrap();
        let mode = u32::from_str_radix(properties["mode"].as_str().unwrap(), 8).unwrap();
        assert_eq!(found.mode() & 0o7777, mode);
        assert_eq!((found.uid(), found.gid()), (0, 0));
        let content = std::fs::read(name).unwrap();
        assert_eq!(content, properties["content"].as_str().unwrap().as_bytes());
    }
}
