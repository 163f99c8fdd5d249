//! Section `memory`: memory and swap, from `/proc/meminfo`, `/proc/vmstat` and `/proc/swaps`.

use std::collections::HashMap;

use super::files::{self, FactPaths};
use super::{partition, percent, to_u64};
use crate::model::Value;
use crate::model::value::Map;

/// The unit of meminfo.
const KIB: u64 = 1024;

/// The page size for counts of vmstat; upstream uses it on every architecture.
const PAGE: u64 = 4 * KIB;

/// The names of meminfo, the facts they become, and their unit.
const MEMINFO: [(&str, &str, u64); 34] = [
    ("MemTotal", "total", KIB),
    ("MemAvailable", "available", KIB),
    ("MemFree", "free", KIB),
    ("Active", "active", KIB),
    ("Inactive", "inactive", KIB),
    ("Buffers", "buffers", KIB),
    ("Cached", "cached", KIB),
    ("Writeback", "writeBack", KIB),
    ("Dirty", "dirty", KIB),
    ("WritebackTmp", "writeBackTmp", KIB),
    ("Shmem", "shared", KIB),
    ("Slab", "slab", KIB),
    ("SReclaimable", "sreclaimable", KIB),
    ("SUnreclaim", "sunreclaim", KIB),
    ("PageTables", "pageTables", KIB),
    ("SwapCached", "swapCached", KIB),
    ("CommitLimit", "commitLimit", KIB),
    ("Committed_AS", "committedAS", KIB),
    ("HighTotal", "highTotal", KIB),
    ("HighFree", "highFree", KIB),
    ("LowTotal", "lowTotal", KIB),
    ("LowFree", "lowFree", KIB),
    ("SwapTotal", "swapTotal", KIB),
    ("SwapFree", "swapFree", KIB),
    ("Mapped", "mapped", KIB),
    ("VmallocTotal", "vmallocTotal", KIB),
    ("VmallocUsed", "vmallocUsed", KIB),
    ("VmallocChunk", "vmallocChunk", KIB),
    ("HugePages_Total", "hugePagesTotal", 1),
    ("HugePages_Free", "hugePagesFree", 1),
    ("HugePages_Rsvd", "hugePagesRsvd", 1),
    ("HugePages_Surp", "hugePagesSurp", 1),
    ("Hugepagesize", "hugePageSize", KIB),
    ("AnonHugePages", "anonHugePages", KIB),
];

/// The names of vmstat and the facts they become.
const VMSTAT: [(&str, &str); 6] = [
    ("pswpin", "sin"),
    ("pswpout", "sout"),
    ("pgpgin", "pgIn"),
    ("pgpgout", "pgOut"),
    ("pgfault", "pgFault"),
    ("pgmajfault", "pgMajFault"),
];

/// Returns the section. What cannot be read is null.
pub(super) fn gather(paths: &FactPaths) -> Value {
    let read = |name: &str| files::text(&paths.proc.join(name));
    let swap = [
        (
            "info",
            read("vmstat").map_or(Value::Null, |text| swap_info(&text)),
        ),
        (
            "devices",
            read("swaps").map_or(Value::Null, |text| swap_devices(&text)),
        ),
    ];
    [
        (
            "virtual",
            read("meminfo").map_or(Value::Null, |text| virtual_memory(&text)),
        ),
        ("swap", swap.into_iter().collect()),
    ]
    .into_iter()
    .collect()
}

fn virtual_memory(meminfo: &str) -> Value {
    let counts: HashMap<&str, u64> = meminfo.lines().filter_map(count).collect();
    let bytes = |name: &str| {
        let count = counts.get(name).copied().unwrap_or_default();
        count.saturating_mul(KIB)
    };
    let mut facts: Map = MEMINFO
        .iter()
        .map(|(name, fact, unit)| {
            let count = counts.get(name).copied().unwrap_or_default();
            (fact.to_owned().into(), count.saturating_mul(*unit).into())
        })
        .collect();
    let total = bytes("MemTotal");
    // Reclaimable slab memory counts as cache.
    let cached = bytes("Cached").saturating_add(bytes("SReclaimable"));
    let available = if counts.contains_key("MemAvailable") {
        bytes("MemAvailable")
    } else {
        // Not reported by old kernels and some containers.
        bytes("MemFree").saturating_add(cached)
    };
    let used = total.saturating_sub(available);
    facts.extend([
        ("cached".into(), cached.into()),
        ("available".into(), available.into()),
        ("used".into(), used.into()),
        ("usedPercent".into(), percent(used, total).into()),
        // Only other operating systems have these; upstream includes them.
        ("wired".into(), Value::Int(0)),
        ("laundry".into(), Value::Int(0)),
    ]);
    facts.into()
}

/// Returns the name and number of a line like `MemTotal:  1024 kB`.
fn count(line: &str) -> Option<(&str, u64)> {
    let (name, rest) = line.split_once(':')?;
    let number = rest.split_whitespace().next()?.parse().ok()?;
    Some((name.trim(), number))
}

fn swap_info(vmstat: &str) -> Value {
    let system = rustix::system::sysinfo();
    let unit = to_u64(system.mem_unit);
    let total = to_u64(system.totalswap).saturating_mul(unit);
    let free = to_u64(system.freeswap).saturating_mul(unit);
    let used = total.saturating_sub(free);
    let pages: HashMap<&str, u64> = vmstat
        .lines()
        .filter_map(|line| {
            let (name, number) = line.split_once(' ')?;
            Some((name, number.trim().parse().ok()?))
        })
        .collect();
    let mut facts: Map = VMSTAT
        .iter()
        .map(|(name, fact)| {
            let count = pages.get(name).copied().unwrap_or_default();
            (fact.to_owned().into(), count.saturating_mul(PAGE).into())
        })
        .collect();
    facts.extend([
        ("total".into(), total.into()),
        ("used".into(), used.into()),
        ("free".into(), free.into()),
        ("usedPercent".into(), percent(used, total).into()),
    ]);
    facts.into()
}

/// Returns the devices below the header of `/proc/swaps`, or null if there are none.
fn swap_devices(swaps: &str) -> Value {
    let devices: Vec<Value> = swaps.lines().skip(1).filter_map(swap_device).collect();
    if devices.is_empty() {
        Value::Null
    } else {
        devices.into()
    }
}

fn swap_device(line: &str) -> Option<Value> {
    let mut fields = line.split_whitespace();
    let name = partition::unescape(fields.next()?);
    let _type = fields.next()?;
    let total: u64 = fields.next()?.parse().ok()?;
    let used: u64 = fields.next()?.parse().ok()?;
    let free = total.saturating_sub(used);
    let device = [
        ("name", name.into()),
        ("usedBytes", used.saturating_mul(KIB).into()),
        ("freeBytes", free.saturating_mul(KIB).into()),
    ];
    Some(device.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_is_total_minus_available() {
        let facts = virtual_memory("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 750 kB\n");
        assert_eq!(facts.get("used"), Some(&Value::Int(250 * 1024)));
        assert_eq!(facts.get("usedPercent"), Some(&Value::Float(25.0)));
    }

    #[test]
    fn available_defaults_to_free_and_cached_memory() {
        let facts = virtual_memory(
            "MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 200 kB\nSReclaimable: 50 kB\n",
        );
        assert_eq!(facts.get("cached"), Some(&Value::Int(250 * 1024)));
        assert_eq!(facts.get("available"), Some(&Value::Int(350 * 1024)));
    }

    #[test]
    fn huge_pages_are_counted_not_measured() {
        let facts = virtual_memory("HugePages_Total: 8\nHugepagesize: 2048 kB\n");
        assert_eq!(facts.get("hugePagesTotal"), Some(&Value::Int(8)));
        assert_eq!(facts.get("hugePageSize"), Some(&Value::Int(2048 * 1024)));
    }

    #[test]
    fn no_memory_at_all_is_zero_percent_used() {
        let facts = virtual_memory("");
        assert_eq!(facts.get("usedPercent"), Some(&Value::Float(0.0)));
    }

    #[test]
    fn large_numbers_saturate() {
        let facts = virtual_memory("MemTotal: 18446744073709551615 kB\n");
        assert_eq!(facts.get("total"), Some(&Value::Uint(u64::MAX)));
    }

    #[test]
    fn page_counts_become_bytes() {
        let facts = swap_info("pswpin 3\npswpout x\npgfault 1\n");
        assert_eq!(facts.get("sin"), Some(&Value::Int(3 * 4096)));
        assert_eq!(facts.get("sout"), Some(&Value::Int(0)));
    }

    #[test]
    fn swap_devices_are_null_when_there_are_none() {
        assert!(swap_devices("Filename Type Size Used Priority\n").is_null());
    }

    #[test]
    fn a_swap_device_has_used_and_free_bytes() {
        let devices =
            swap_devices("Filename Type Size Used Priority\n/swap\\040file file 10 4 -2\n");
        assert_eq!(
            devices.to_string(),
            "[map[freeBytes:6144 name:/swap file usedBytes:4096]]"
        );
    }
}
