//! Processes: whether one of a name runs. The kernel keeps fifteen bytes of a name; of a longer
//! one the rest is taken from the command line.

use std::fs;
use std::path::Path;

use super::super::document::Entry;
use super::{Attribute, Family, First, Look, LookError, World, unanswered};

/// How much of a name the kernel keeps.
const KEPT: usize = 15;

pub(super) const FAMILY: Family = Family {
    key: "process",
    name: "Process",
    target: "comm",
    settings: &[],
    attributes: &[Attribute::new("running")],
    first: First::Required,
    look,
};

fn look<'a>(entry: &'a Entry, _: &'a World<'a>) -> Result<Look<'a>, LookError> {
    let name = entry.target();
    Ok(Box::new(move |attribute| match attribute {
        "running" => runs(&name).map(Into::into),
        other => unanswered(other),
    }))
}

fn runs(name: &str) -> Result<bool, LookError> {
    let entries = fs::read_dir("/proc").map_err(LookError::Processes)?;
    let is_process = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    };
    // Processes come and go while we look.
    let mut processes = entries.flatten().filter(is_process);
    Ok(processes.any(|process| is_called(&process.path(), name)))
}

fn is_called(process: &Path, name: &str) -> bool {
    let Ok(comm) = fs::read(process.join("comm")) else {
        return false;
    };
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    if comm == name.as_bytes() {
        return true;
    }
    if comm.len() < KEPT || !name.as_bytes().starts_with(comm) {
        return false;
    }
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default();
    program.rsplit(|byte| *byte == b'/').next() == Some(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(comm: &str, line: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [("comm", comm), ("cmdline", line)] {
            let mut file = fs::File::create(directory.path().join(name)).unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        }
        directory
    }

    #[test]
    fn a_long_name_is_finished_by_the_command_line() {
        let long = process(
            "systemd-resolve\n",
            "/usr/lib/systemd/systemd-resolved\0-x\0",
        );
        assert!(is_called(long.path(), "systemd-resolved"));
        assert!(is_called(long.path(), "systemd-resolve"));
        assert!(!is_called(long.path(), "systemd-resolver"));
    }

    #[test]
    fn a_short_name_is_the_whole_name() {
        let short = process("sh\n", "/bin/shell\0");
        assert!(is_called(short.path(), "sh"));
        assert!(!is_called(short.path(), "shell"));
        assert!(!is_called(Path::new("/no/such"), "sh"));
    }
}
