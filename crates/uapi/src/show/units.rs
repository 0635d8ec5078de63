//! Human-readable durations and amounts of data.

use core::fmt::{self, Write};

use super::colour::{CYAN, Colours, RESET};

/// Writes a duration in all units that are not zero: `1 minute, 3 seconds`.
pub(super) fn duration(out: &mut impl Write, paint: Colours, seconds: u64) -> fmt::Result {
    const UNITS: [(u64, &str); 5] = [
        (365 * 24 * 60 * 60, "year"),
        (24 * 60 * 60, "day"),
        (60 * 60, "hour"),
        (60, "minute"),
        (1, "second"),
    ];
    let mut left = seconds;
    let mut separator = "";
    for (length, name) in UNITS {
        let count = left / length;
        left %= length;
        if count == 0 {
            continue;
        }
        write!(out, "{separator}{count} ")?;
        paint.write(out, &[CYAN])?;
        write!(out, "{name}{}", if count == 1 { "" } else { "s" })?;
        paint.write(out, &[RESET])?;
        separator = ", ";
    }
    Ok(())
}

/// Writes an amount of data: `1.18 MiB`.
pub(super) fn bytes(out: &mut impl Write, paint: Colours, count: u64) -> fmt::Result {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = UNITS.into_iter().find(|(shift, _)| count >> shift != 0);
    let name = match unit {
        Some((shift, name)) => {
            write!(out, "{:.2} ", count as f64 / (1u64 << shift) as f64)?;
            name
        }
        None => {
            write!(out, "{count} ")?;
            "B"
        }
    };
    paint.write(out, &[CYAN])?;
    out.write_str(name)?;
    paint.write(out, &[RESET])
}
