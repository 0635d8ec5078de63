//! Formats numbers: three significant digits and a unit with a suitable prefix.

use crate::results::Unit;

/// Placeholder for a missing figure.
pub(crate) const NONE: &str = "–";

/// A unit with a prefix: the displayed number is the SI value divided by `factor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    factor: f64,
    /// `Gbit/s`; empty for plain numbers.
    pub(crate) name: &'static str,
}

impl Scale {
    /// Returns the scale that makes numbers of this size short.
    pub(crate) fn of(unit: Unit, size: f64) -> Self {
        // Rounds first: 999.7 is displayed as 1,000.
        let size = rounded(size.abs()).unwrap_or(0.0);
        let scales = scales(unit);
        let fits = scales.iter().rev().find(|(factor, _)| size >= *factor);
        // Zero gets the unit without a prefix.
        let plain = scales.iter().find(|(factor, _)| *factor == 1.0);
        let found = if size == 0.0 { plain } else { fits };
        let found = found.or(scales.first());
        let (factor, name) = found.copied().unwrap_or((1.0, ""));
        Self { factor, name }
    }

    /// Returns a common scale for several numbers: the largest that displays the smallest of them,
    /// zero aside, as at least a hundredth.
    pub(crate) fn of_all(unit: Unit, sizes: impl IntoIterator<Item = f64>) -> Self {
        let sizes = sizes.into_iter().map(f64::abs);
        let sizes: Vec<f64> = sizes.filter(|size| size.is_normal()).collect();
        let least = sizes.iter().copied().reduce(f64::min).unwrap_or(0.0);
        let most = sizes.iter().copied().reduce(f64::max).unwrap_or(0.0);
        Self::of(unit, most.min(100.0 * least))
    }

    /// Returns the number in this scale.
    pub(crate) fn number(self, value: f64) -> String {
        digits(value / self.factor)
    }

    /// Returns a deviation in this scale, with two significant digits.
    pub(crate) fn deviation(self, value: f64) -> String {
        significant(value / self.factor, 2)
    }

    /// Returns `title (Gbit/s)`.
    pub(crate) fn head(self, title: &str) -> String {
        match self.name {
            "" => title.to_owned(),
            name => format!("{title} ({name})"),
        }
    }
}

/// Returns `12.3 Gbit/s`.
pub(crate) fn quantity(value: f64, unit: Unit) -> String {
    let scale = Scale::of(unit, value);
    let number = scale.number(value);
    match scale.name {
        "" => number,
        name => format!("{number} {name}"),
    }
}

/// Returns `0.21 Gbit/s`, as [`Scale::deviation`].
pub(crate) fn deviation(value: f64, unit: Unit) -> String {
    let scale = Scale::of(unit, value);
    let number = scale.deviation(value);
    match scale.name {
        "" => number,
        name => format!("{number} {name}"),
    }
}

/// Returns three significant digits; in powers of ten only if the number would get long.
pub(crate) fn digits(value: f64) -> String {
    significant(value, 3)
}

/// Returns `count` significant digits, at least one.
fn significant(value: f64, count: usize) -> String {
    let behind = count.saturating_sub(1);
    if !value.is_finite() {
        return NONE.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let short = format!("{value:.behind$e}");
    let exponent = short.rsplit('e').next().and_then(|e| e.parse::<i32>().ok());
    match exponent {
        Some(exponent @ -4..=5) => {
            let decimals = usize::try_from(behind as i32 - exponent).unwrap_or(0);
            let number = format!("{value:.decimals$}");
            number.replace('-', "−")
        }
        _ => short.replace('-', "−"),
    }
}

/// Returns `+3.1 %`; [`NONE`] for a share that is not finite.
pub(crate) fn percent(share: f64) -> String {
    if !share.is_finite() {
        return NONE.to_owned();
    }
    let sign = if share > 0.0 { "+" } else { "" };
    format!("{sign}{} %", digits(share * 100.0))
}

/// Rounds to three significant digits; `None` if the number is not finite.
fn rounded(value: f64) -> Option<f64> {
    let value: f64 = format!("{value:.2e}").parse().ok()?;
    value.is_finite().then_some(value)
}

/// Returns factors in rising order with their unit names.
fn scales(unit: Unit) -> &'static [(f64, &'static str)] {
    match unit {
        Unit::Seconds => &[(1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s")],
        Unit::BitsPerSecond => &[
            (1.0, "bit/s"),
            (1e3, "kbit/s"),
            (1e6, "Mbit/s"),
            (1e9, "Gbit/s"),
            (1e12, "Tbit/s"),
        ],
        Unit::PacketsPerSecond => &[(1.0, "packet/s"), (1e3, "kpacket/s"), (1e6, "Mpacket/s")],
        Unit::Bytes => &[
            (1.0, "B"),
            (1e3, "kB"),
            (1e6, "MB"),
            (1e9, "GB"),
            (1e12, "TB"),
        ],
        Unit::SecondsPerGigabyte => &[(1e-6, "µs/GB"), (1e-3, "ms/GB"), (1.0, "s/GB")],
        Unit::PerGigabyte => &[(1.0, "/GB"), (1e3, "thousand/GB"), (1e6, "million/GB")],
        Unit::PerSecond => &[(1.0, "/s"), (1e3, "thousand/s"), (1e6, "million/s")],
        Unit::Count => &[(1.0, "")],
        Unit::Share => &[(1e-2, "%")],
        Unit::Cores => &[(1.0, "cores")],
        Unit::CoresPerGigabit => &[(1.0, "cores per Gbit/s")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (1.0, "1.00"),
            (9.996, "10.0"),
            (12.345, "12.3"),
            (99.96, "100"),
            (12_345.6, "12346"),
            (0.012_34, "0.0123"),
            (-0.5, "−0.500"),
            (2.5e-7, "2.50e−7"),
            (2.5e-4, "0.000250"),
            (1.5e9, "1.50e9"),
            (f64::NAN, NONE),
            (f64::INFINITY, NONE),
        ] {
            assert_eq!(digits(value), expected);
        }
    }

    #[test]
    fn units_keep_numbers_short() {
        for (value, unit, expected) in [
            (12.34e9, Unit::BitsPerSecond, "12.3 Gbit/s"),
            (999.7e6, Unit::BitsPerSecond, "1.00 Gbit/s"),
            (842e6, Unit::BitsPerSecond, "842 Mbit/s"),
            (0.5, Unit::BitsPerSecond, "0.500 bit/s"),
            (0.0, Unit::BitsPerSecond, "0 bit/s"),
            (29.2e-6, Unit::Seconds, "29.2 µs"),
            (7.0, Unit::Seconds, "7.00 s"),
            (3e-10, Unit::Seconds, "0.300 ns"),
            (5.5e6, Unit::Bytes, "5.50 MB"),
            (0.056, Unit::Share, "5.60 %"),
            (0.0, Unit::Share, "0 %"),
            (423.0, Unit::Count, "423"),
            (97_000.0, Unit::PerSecond, "97.0 thousand/s"),
            (0.25, Unit::SecondsPerGigabyte, "250 ms/GB"),
            (2.5, Unit::Cores, "2.50 cores"),
            (0.25, Unit::CoresPerGigabit, "0.250 cores per Gbit/s"),
        ] {
            assert_eq!(quantity(value, unit), expected);
        }
    }

    #[test]
    fn one_large_number_does_not_lengthen_the_others() {
        let memory = [11.3e6, 1.68e9, 8.54e6, 0.0, f64::NAN];
        let scale = Scale::of_all(Unit::Bytes, memory);
        let reported = memory.map(|size| scale.number(size));
        assert_eq!(scale.name, "MB");
        assert_eq!(reported, ["11.3", "1680", "8.54", "0", NONE]);
        assert_eq!(Scale::of_all(Unit::Bytes, []).name, "B");
    }

    #[test]
    fn deviations_have_two_digits() {
        assert_eq!(deviation(0.007_88e9, Unit::BitsPerSecond), "7.9 Mbit/s");
        assert_eq!(
            Scale::of(Unit::BitsPerSecond, 1e9).deviation(7.88e6),
            "0.0079"
        );
        assert_eq!(Scale::of(Unit::Count, 500.0).deviation(123.0), "123");
        assert_eq!(deviation(0.0, Unit::Seconds), "0 s");
    }

    #[test]
    fn percents_have_a_sign() {
        assert_eq!(percent(0.031), "+3.10 %");
        assert_eq!(percent(-0.5), "−50.0 %");
        assert_eq!(percent(f64::INFINITY), NONE);
    }
}
