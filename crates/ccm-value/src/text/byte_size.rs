//! Numbers of bytes for display.

/// Formats a number of bytes with a binary unit and at most one decimal, such as `1.5 MiB`.
pub fn byte_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut units = UNITS.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    while tenths >= 10_240
        && let Some(next) = units.next()
    {
        tenths /= 1024;
        unit = next;
    }
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {unit}"),
        (whole, tenth) => format!("{whole}.{tenth} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        let texts = [0, 1023, 1024, 1536, 256 << 20, 5 << 40].map(byte_size);
        let wanted = [
            "0 bytes",
            "1023 bytes",
            "1 KiB",
            "1.5 KiB",
            "256 MiB",
            "5 TiB",
        ];
        assert_eq!(texts, wanted);
    }
}
