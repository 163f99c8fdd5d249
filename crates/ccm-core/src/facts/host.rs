//! Section `host`: name, kernel, distribution, uptime and host id.

use std::ffi::CStr;

use chrono::{DateTime, Utc};

use super::files::{self, FactPaths};
use super::virtualization::{self, Virtualization};
use super::{platform, to_u64};
use crate::model::Value;

/// Returns the section.
pub(super) fn gather(paths: &FactPaths, now: DateTime<Utc>) -> Value {
    [("info", info(paths, now))].into_iter().collect()
}

fn info(paths: &FactPaths, now: DateTime<Utc>) -> Value {
    let kernel = rustix::system::uname();
    let uptime = to_u64(rustix::system::sysinfo().uptime);
    let platform = platform::detect(paths);
    let virtualization = virtualization::detect(paths);
    [
        ("hostname", text(kernel.nodename())),
        ("uptime", uptime.into()),
        (
            "bootTime",
            boot_time(paths, virtualization, now)
                .unwrap_or_else(|| to_u64(now.timestamp()).saturating_sub(uptime))
                .into(),
        ),
        ("procs", processes(paths).into()),
        ("os", "linux".into()),
        ("platform", platform.name.into()),
        ("platformFamily", platform.family.into()),
        ("platformVersion", platform.version.into()),
        ("kernelVersion", text(kernel.release())),
        ("kernelArch", text(kernel.machine())),
        ("virtualizationSystem", virtualization.system.into()),
        ("virtualizationRole", virtualization.role.into()),
        ("hostId", id(paths).into()),
    ]
    .into_iter()
    .collect()
}

fn text(bytes: &CStr) -> Value {
    (*bytes.to_string_lossy()).into()
}

/// Returns the boot time in seconds since 1970. In a container it is computed from the container's
/// uptime, because `btime` is that of the host.
fn boot_time(paths: &FactPaths, virtualization: Virtualization, now: DateTime<Utc>) -> Option<u64> {
    if virtualization.is_container() {
        let text = files::text(&paths.proc.join("uptime"))?;
        let uptime: f64 = text.split_whitespace().next()?.parse().ok()?;
        let now = now.timestamp_millis() as f64 / 1000.0;
        // The cast saturates; negative values become zero.
        return Some((now - uptime) as u64);
    }
    let text = files::text(&paths.proc.join("stat"))?;
    let time = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    time.trim().parse().ok()
}

/// Returns the number of processes.
fn processes(paths: &FactPaths) -> u64 {
    let Ok(entries) = std::fs::read_dir(&paths.proc) else {
        return 0;
    };
    let count = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
        })
        .count();
    to_u64(count)
}

/// Returns a unique host id: the UUID of the board, the machine id, or the boot id.
fn id(paths: &FactPaths) -> String {
    let board = paths.sys.join("class/dmi/id/product_uuid");
    let boot = paths.proc.join("sys/kernel/random/boot_id");
    files::first_line(&board)
        .or_else(|| machine_id(&files::first_line(&paths.etc.join("machine-id"))?))
        .or_else(|| files::first_line(&boot))
        .unwrap_or_default()
        .to_lowercase()
}

/// Returns a machine id of 32 digits in UUID form.
fn machine_id(line: &str) -> Option<String> {
    if line.len() != 32 || !line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let part = |from, to| line.get(from..to);
    let parts = [
        part(0, 8)?,
        part(8, 12)?,
        part(12, 16)?,
        part(16, 20)?,
        part(20, 32)?,
    ];
    Some(parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_id_is_dashed_like_a_uuid() {
        assert_eq!(
            machine_id("0123456789abcdef0123456789abcdef").as_deref(),
            Some("01234567-89ab-cdef-0123-456789abcdef")
        );
    }

    #[test]
    fn a_machine_id_has_32_hex_digits() {
        for line in ["", "uninitialized", "0123456789abcdef0123456789abcdeg"] {
            assert_eq!(machine_id(line), None, "{line}");
        }
    }
}
