//! Values with units, as people write them: `"250ms"`, `"64MiB"`. Integers only, so nothing is rounded.

use std::time::Duration;

/// Unit suffix and its size in milliseconds, largest last.
const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// Unit suffix and its size in bytes, largest last. Decimal and binary multiples both mean what they say.
const SIZE_UNITS: [(&str, u64); 7] = [
    ("B", 1),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
];

/// Reads `"5s"`, `"250ms"`, `"2m"`, `"1h"`. The error says what to write instead.
pub(super) fn read_duration(text: &str) -> Result<Duration, String> {
    read(text, &TIME_UNITS, "write a whole number and ms, s, m or h, such as \"5s\" or \"250ms\"")
        .map(Duration::from_millis)
}

/// Reads `"64MiB"`, `"8KB"`, `"512B"` into bytes.
pub(super) fn read_size(text: &str) -> Result<u64, String> {
    read(text, &SIZE_UNITS, "write a whole number and B, KiB, MiB, GiB, KB, MB or GB, such as \"64MiB\"")
}

/// Writes a duration in the largest unit that divides it.
pub(super) fn show_duration(duration: Duration) -> String {
    show(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), &TIME_UNITS)
}

/// Writes bytes in the largest binary unit that divides them.
pub(super) fn show_size(bytes: u64) -> String {
    show(bytes, &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)])
}

fn read(text: &str, units: &[(&str, u64)], fix: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    if digits.is_empty() {
        return Err(format!("\"{text}\" does not start with a whole number; {fix}"));
    }
    let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) else {
        let fault = if unit.is_empty() { "has no unit".to_owned() } else { format!("has the unknown unit \"{unit}\"") };
        return Err(format!("\"{text}\" {fault}; {fix}"));
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(*scale))
        .ok_or_else(|| format!("\"{text}\" is too large to be counted; write a smaller value"))
}

fn show(value: u64, units: &[(&str, u64)]) -> String {
    let (name, scale) =
        units.iter().rev().find(|(_, scale)| value >= *scale && value.is_multiple_of(*scale)).unwrap_or(&units[0]);
    format!("{}{name}", value / scale)
}
