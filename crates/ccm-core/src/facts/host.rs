//! The host as a whole: its name, kernel, distribution, age and identity.
//!
//! Asked for in nearly every run, so it costs a few dozen small reads and no process.

use std::ffi::CStr;

use chrono::{DateTime, Utc};

use super::files::{self, Places};
use super::virtualization::{self, Virtualization};
use super::{platform, wide};
use crate::model::Value;

/// Returns the section.
pub(super) fn gather(places: &Places, now: DateTime<Utc>) -> Value {
    [("info", info(places, now))].into_iter().collect()
}

fn info(places: &Places, now: DateTime<Utc>) -> Value {
    let kernel = rustix::system::uname();
    let uptime = wide(rustix::system::sysinfo().uptime);
    let platform = platform::detect(places);
    let virtualization = virtualization::detect(places);
    [
        ("hostname", text(kernel.nodename())),
        ("uptime", uptime.into()),
        (
            "bootTime",
            boot_time(places, virtualization, now)
                .unwrap_or_else(|| wide(now.timestamp()).saturating_sub(uptime))
                .into(),
        ),
        ("procs", processes(places).into()),
        ("os", "linux".into()),
        ("platform", platform.name.into()),
        ("platformFamily", platform.family.into()),
        ("platformVersion", platform.version.into()),
        ("kernelVersion", text(kernel.release())),
        ("kernelArch", text(kernel.machine())),
        ("virtualizationSystem", virtualization.system.into()),
        ("virtualizationRole", virtualization.role.into()),
        ("hostId", id(places).into()),
    ]
    .into_iter()
    .collect()
}

fn text(bytes: &CStr) -> Value {
    (*bytes.to_string_lossy()).into()
}

/// Returns when the machine started, in seconds since 1970. The kernel's own record is that of the
/// machine outside, so a container counts back from its own uptime.
fn boot_time(places: &Places, virtualization: Virtualization, now: DateTime<Utc>) -> Option<u64> {
    if virtualization.is_container() {
        let text = files::text(&places.proc.join("uptime"))?;
        let uptime: f64 = text.split_whitespace().next()?.parse().ok()?;
        let now = now.timestamp_millis() as f64 / 1000.0;
        // A float that is no such number becomes the nearest one: zero at least.
        return Some((now - uptime) as u64);
    }
    let text = files::text(&places.proc.join("stat"))?;
    let time = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    time.trim().parse().ok()
}

/// Returns how many processes there are.
fn processes(places: &Places) -> u64 {
    let Ok(entries) = std::fs::read_dir(&places.proc) else {
        return 0;
    };
    let count = entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
        })
        .count();
    wide(count)
}

/// Returns what tells this host from every other: the board's identity, else that of the
/// installation, else that of this boot.
fn id(places: &Places) -> String {
    let board = places.sys.join("class/dmi/id/product_uuid");
    let boot = places.proc.join("sys/kernel/random/boot_id");
    files::first_line(&board)
        .or_else(|| machine_id(&files::first_line(&places.etc.join("machine-id"))?))
        .or_else(|| files::first_line(&boot))
        .unwrap_or_default()
        .to_lowercase()
}

/// Returns the 32 digits of a machine's id in the form of a UUID.
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
    fn what_is_not_32_hex_digits_is_no_machine_id() {
        for line in ["", "uninitialized", "0123456789abcdef0123456789abcdeg"] {
            assert_eq!(machine_id(line), None, "{line}");
        }
    }
}
