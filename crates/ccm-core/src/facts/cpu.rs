//! Section `cpu`: processors from `/proc/cpuinfo`, one entry per hardware thread.
//!
//! Knows the keys of x86, ARM, POWER, RISC-V and s390; missing values stay empty.

use std::path::PathBuf;

use super::files::{self, FactPaths};
use crate::model::Value;

/// Returns the section; its list is null if there are no processors.
pub(super) fn gather(paths: &FactPaths) -> Value {
    let text = files::text(&paths.proc.join("cpuinfo")).unwrap_or_default();
    let mut processors = parse(&text);
    for processor in &mut processors {
        complete(processor, paths);
    }
    let info = if processors.is_empty() {
        Value::Null
    } else {
        processors.into_iter().map(Value::from).collect()
    };
    [("info", info)].into_iter().collect()
}

/// One hardware thread.
#[derive(Clone, Debug, Default)]
struct Processor {
    number: i64,
    vendor: String,
    family: String,
    model: String,
    model_name: String,
    stepping: i64,
    physical_id: String,
    core_id: String,
    mhz: f64,
    cache_kib: i64,
    /// A list, or null. Shared between processors with equal flags.
    flags: Value,
    microcode: String,
}

impl From<Processor> for Value {
    fn from(processor: Processor) -> Self {
        [
            ("cpu", processor.number.into()),
            ("vendorId", processor.vendor.into()),
            ("family", processor.family.into()),
            ("model", processor.model.into()),
            ("stepping", processor.stepping.into()),
            ("physicalId", processor.physical_id.into()),
            ("coreId", processor.core_id.into()),
            ("cores", Value::Int(1)),
            ("modelName", processor.model_name.into()),
            ("mhz", processor.mhz.into()),
            ("cacheSize", processor.cache_kib.into()),
            ("flags", processor.flags),
            ("microcode", processor.microcode.into()),
        ]
        .into_iter()
        .collect()
    }
}

fn parse(text: &str) -> Vec<Processor> {
    let mut processors: Vec<Processor> = Vec::new();
    // Old ARM and s390 kernels print the name once for all processors.
    let mut common_name = "";
    let mut last_flags = ("", Value::Null);
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let (key, value) = (key.trim(), value.trim());
        match key {
            "Processor" => common_name = value,
            "vendor_id" if value.contains("S390") => common_name = "S390",
            "processor" | "cpu number" => processors.push(Processor {
                number: value.parse().unwrap_or_default(),
                model_name: common_name.into(),
                ..Processor::default()
            }),
            "flags" | "Features" => {
                if last_flags.0 != value {
                    let flags = value.split([',', ' ']).filter(|flag| !flag.is_empty());
                    last_flags = (value, flags.map(Value::from).collect());
                }
                if let Some(processor) = processors.last_mut() {
                    processor.flags = last_flags.1.clone();
                }
            }
            _ => {
                if let Some(processor) = processors.last_mut() {
                    processor.set(key, value);
                }
            }
        }
    }
    processors
}

impl Processor {
    /// Sets the field of one line.
    fn set(&mut self, key: &str, value: &str) {
        match key {
            "vendorId" | "vendor_id" => self.vendor = value.into(),
            "CPU implementer" => self.vendor = named(&IMPLEMENTERS, value).unwrap_or("").into(),
            "mvendorid" => self.vendor = named(&RISCV_VENDORS, value).unwrap_or("").into(),
            "cpu family" | "marchid" => self.family = value.into(),
            "model" | "CPU part" | "mimpid" => {
                self.model = value.into();
                if self.vendor == "ARM" {
                    self.model_name = named(&ARM_PARTS, value).unwrap_or("Undefined").into();
                }
            }
            "Model Name" | "model name" | "cpu" | "uarch" => {
                self.model_name = value.into();
                if value.contains("POWER") {
                    self.model = value.split(' ').next().unwrap_or_default().into();
                    self.family = "POWER".into();
                    self.vendor = "IBM".into();
                }
            }
            "stepping" | "CPU revision" => self.stepping = value.parse().unwrap_or_default(),
            "revision" => {
                let major = value.split('.').next().unwrap_or_default();
                self.stepping = major.parse().unwrap_or_default();
            }
            "cpu MHz" | "clock" | "cpu MHz dynamic" => {
                let number = value.trim_end_matches("MHz").trim();
                self.mhz = finite(number).unwrap_or(self.mhz);
            }
            "cache size" => {
                let number = value.trim_end_matches("KB").trim();
                self.cache_kib = number.parse().unwrap_or_default();
            }
            "physical id" | "hart" => self.physical_id = value.into(),
            "core id" => self.core_id = value.into(),
            "isa" | "hart isa" if self.flags.is_null() => self.flags = riscv_flags(value),
            "microcode" => self.microcode = value.into(),
            _ => {}
        }
    }
}

/// Adds values from `/sys`. Its clock rate is the maximum; that of `cpuinfo` is the current one.
fn complete(processor: &mut Processor, paths: &FactPaths) {
    let directory = format!("devices/system/cpu/cpu{}", processor.number);
    let directory: PathBuf = paths.sys.join(directory);
    if processor.core_id.is_empty() {
        let core = files::first_line(&directory.join("topology/core_id"));
        processor.core_id = core.unwrap_or_default();
    }
    let highest = files::first_line(&directory.join("cpufreq/cpuinfo_max_freq"));
    if let Some(khz) = highest.and_then(|text| finite(&text)) {
        let mhz = khz / 1000.0;
        // Some drivers report hertz.
        processor.mhz = if mhz > 9999.0 { mhz / 1000.0 } else { mhz };
    }
}

/// Parses a finite number, the only kind that JSON has.
fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Returns the extensions in `rv64imafdc_zicsr`: single letters, then longer names.
fn riscv_flags(isa: &str) -> Value {
    let mut extensions = isa.split('_');
    let base = extensions.next().and_then(|base| base.strip_prefix("rv64"));
    match base {
        None | Some("") => Value::Null,
        Some(letters) => letters
            .chars()
            .map(|letter| letter.to_string().into())
            .chain(extensions.map(Value::from))
            .collect(),
    }
}

/// Looks up a hexadecimal number in a table.
fn named(table: &[(u64, &'static str)], number: &str) -> Option<&'static str> {
    let number = u64::from_str_radix(number.strip_prefix("0x")?, 16).ok()?;
    table
        .iter()
        .find(|(known, _)| *known == number)
        .map(|(_, name)| *name)
}

const IMPLEMENTERS: [(u64, &str); 15] = [
    (0x41, "ARM"),
    (0x42, "Broadcom"),
    (0x43, "Cavium"),
    (0x44, "DEC"),
    (0x46, "Fujitsu"),
    (0x48, "HiSilicon"),
    (0x49, "Infineon"),
    (0x4d, "Motorola/Freescale"),
    (0x4e, "NVIDIA"),
    (0x50, "APM"),
    (0x51, "Qualcomm"),
    (0x56, "Marvell"),
    (0x61, "Apple"),
    (0x69, "Intel"),
    (0xc0, "Ampere"),
];

const RISCV_VENDORS: [(u64, &str); 5] = [
    (0x029, "Microchip"),
    (0x127, "MIPS"),
    (0x31e, "Andes"),
    (0x489, "SiFive"),
    (0x5b7, "T-Head"),
];

const ARM_PARTS: [(u64, &str); 69] = [
    (0x810, "ARM810"),
    (0x920, "ARM920"),
    (0x922, "ARM922"),
    (0x926, "ARM926"),
    (0x940, "ARM940"),
    (0x946, "ARM946"),
    (0x966, "ARM966"),
    (0xa20, "ARM1020"),
    (0xa22, "ARM1022"),
    (0xa26, "ARM1026"),
    (0xb02, "ARM11 MPCore"),
    (0xb36, "ARM1136"),
    (0xb56, "ARM1156"),
    (0xb76, "ARM1176"),
    (0xc05, "Cortex-A5"),
    (0xc07, "Cortex-A7"),
    (0xc08, "Cortex-A8"),
    (0xc09, "Cortex-A9"),
    (0xc0d, "Cortex-A17"),
    (0xc0e, "Cortex-A17"),
    (0xc0f, "Cortex-A15"),
    (0xc14, "Cortex-R4"),
    (0xc15, "Cortex-R5"),
    (0xc17, "Cortex-R7"),
    (0xc18, "Cortex-R8"),
    (0xc20, "Cortex-M0"),
    (0xc21, "Cortex-M1"),
    (0xc23, "Cortex-M3"),
    (0xc24, "Cortex-M4"),
    (0xc27, "Cortex-M7"),
    (0xc60, "Cortex-M0+"),
    (0xd01, "Cortex-A32"),
    (0xd02, "Cortex-A34"),
    (0xd03, "Cortex-A53"),
    (0xd04, "Cortex-A35"),
    (0xd05, "Cortex-A55"),
    (0xd06, "Cortex-A65"),
    (0xd07, "Cortex-A57"),
    (0xd08, "Cortex-A72"),
    (0xd09, "Cortex-A73"),
    (0xd0a, "Cortex-A75"),
    (0xd0b, "Cortex-A76"),
    (0xd0c, "Neoverse-N1"),
    (0xd0d, "Cortex-A77"),
    (0xd0e, "Cortex-A76AE"),
    (0xd13, "Cortex-R52"),
    (0xd20, "Cortex-M23"),
    (0xd21, "Cortex-M33"),
    (0xd40, "Neoverse-V1"),
    (0xd41, "Cortex-A78"),
    (0xd42, "Cortex-A78AE"),
    (0xd43, "Cortex-A65AE"),
    (0xd44, "Cortex-X1"),
    (0xd46, "Cortex-A510"),
    (0xd47, "Cortex-A710"),
    (0xd48, "Cortex-X2"),
    (0xd49, "Neoverse-N2"),
    (0xd4a, "Neoverse-E1"),
    (0xd4b, "Cortex-A78C"),
    (0xd4c, "Cortex-X1C"),
    (0xd4d, "Cortex-A715"),
    (0xd4e, "Cortex-X3"),
    (0xd4f, "Neoverse-V2"),
    (0xd81, "Cortex-A720"),
    (0xd82, "Cortex-X4"),
    (0xd84, "Neoverse-V3"),
    (0xd85, "Cortex-X925"),
    (0xd87, "Cortex-A725"),
    (0xd8e, "Neoverse-N3"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_processor_line_starts_a_record() {
        let found = parse("processor: 0\ncore id: 3\n\nprocessor: 1\nmicrocode: 0x1\n");
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].number, found[0].core_id.as_str()), (0, "3"));
        assert_eq!((found[1].number, found[1].core_id.as_str()), (1, ""));
        assert_eq!(found[1].microcode, "0x1");
    }

    #[test]
    fn lines_before_the_first_record_are_ignored() {
        assert!(parse("flags: a b\nHardware: board\nnonsense\n").is_empty());
    }

    #[test]
    fn flags_of_equal_processors_are_shared() {
        let found = parse("processor: 0\nflags: fpu vme\nprocessor: 1\nflags: fpu vme\n");
        let (Value::List(first), Value::List(second)) = (&found[0].flags, &found[1].flags) else {
            panic!("the flags are lists");
        };
        assert_eq!(first.len(), 2);
        assert!(std::sync::Arc::ptr_eq(first, second));
    }

    #[test]
    fn arm_parts_have_names() {
        let found = parse("processor: 0\nCPU implementer: 0x41\nCPU part: 0xd0c\n");
        assert_eq!(found[0].vendor, "ARM");
        assert_eq!(found[0].model, "0xd0c");
        assert_eq!(found[0].model_name, "Neoverse-N1");
        let unknown = parse("processor: 0\nCPU implementer: 0x41\nCPU part: 0xfff\n");
        assert_eq!(unknown[0].model_name, "Undefined");
    }

    #[test]
    fn the_model_of_power_is_part_of_its_name() {
        let found = parse(
            "processor: 0\ncpu: POWER9 (raw), altivec supported\nclock: 2300.000000MHz\n\
             revision: 2.2 (pvr 004e 1202)\n",
        );
        assert_eq!(found[0].vendor, "IBM");
        assert_eq!(found[0].model, "POWER9");
        assert_eq!(found[0].mhz, 2300.0);
        assert_eq!(found[0].stepping, 2);
    }

    #[test]
    fn riscv_extensions_are_flags() {
        assert_eq!(
            riscv_flags("rv64im_zicsr").to_string(),
            "[i m zicsr]".to_owned()
        );
        assert!(riscv_flags("rv64").is_null());
        assert!(riscv_flags("rv32im").is_null());
    }

    #[test]
    fn invalid_numbers_are_ignored() {
        let found = parse("processor: 0\nstepping: unknown\ncpu MHz: NaN\ncache size: big\n");
        assert_eq!(found[0].stepping, 0);
        assert_eq!(found[0].mhz, 0.0);
        assert_eq!(found[0].cache_kib, 0);
    }

    #[test]
    fn the_tables_hold_each_number_once() {
        for table in [&IMPLEMENTERS[..], &RISCV_VENDORS[..], &ARM_PARTS[..]] {
            assert!(table.is_sorted_by(|a, b| a.0 < b.0));
        }
    }
}
