//! Type `process`: whether a process of a name is running. The kernel truncates names to 15 bytes;
//! longer ones are compared with the command line.

use std::fs;
use std::path::Path;

use super::super::document::Entry;
use super::{
    Attribute, AttributeReader, FirstAttribute, InspectError, ProbeContext, ResourceType,
    not_implemented,
};

/// Maximum length of a name in `/proc/PID/comm`.
const MAX_COMM: usize = 15;

pub(super) const RESOURCE_TYPE: ResourceType = ResourceType {
    key: "process",
    name: "Process",
    target: "comm",
    settings: &[],
    attributes: &[Attribute::new("running")],
    first: FirstAttribute::Required,
    inspect,
};

fn inspect<'a>(
    entry: &'a Entry,
    _: &'a ProbeContext<'a>,
) -> Result<AttributeReader<'a>, InspectError> {
    let name = entry.target();
    Ok(Box::new(move |attribute| match attribute {
        "running" => is_running(&name).map(Into::into),
        other => not_implemented(other),
    }))
}

fn is_running(name: &str) -> Result<bool, InspectError> {
    let entries = fs::read_dir("/proc").map_err(InspectError::Processes)?;
    let is_process = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    };
    // Processes may exit meanwhile; unreadable ones are skipped.
    let mut processes = entries.flatten().filter(is_process);
    Ok(processes.any(|process| has_name(&process.path(), name)))
}

fn has_name(process: &Path, name: &str) -> bool {
    let Ok(comm) = fs::read(process.join("comm")) else {
        return false;
    };
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    if comm == name.as_bytes() {
        return true;
    }
    if comm.len() < MAX_COMM || !name.as_bytes().starts_with(comm) {
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
    fn a_long_name_is_compared_with_the_command_line() {
        let long = process(
            "systemd-resolve\n",
            "/usr/lib/systemd/systemd-resolved\0-x\0",
        );
        assert!(has_name(long.path(), "systemd-resolved"));
        assert!(has_name(long.path(), "systemd-resolve"));
        assert!(!has_name(long.path(), "systemd-resolver"));
    }

    #[test]
    fn a_short_name_must_be_equal() {
        let short = process("sh\n", "/bin/shell\0");
        assert!(has_name(short.path(), "sh"));
        assert!(!has_name(short.path(), "shell"));
        assert!(!has_name(Path::new("/no/such"), "sh"));
    }
}
