//! Statistics of a few samples.

/// Summary of samples, in their unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Number of samples, at least one.
    pub count: usize,
    /// The median.
    pub median: f64,
    /// The least sample.
    pub min: f64,
    /// The greatest sample.
    pub max: f64,
    /// The median absolute deviation from the median.
    pub mad: f64,
}

/// Returns the summary of samples; `None` if there are none or one is not a number.
pub fn summary(samples: &[f64]) -> Option<Summary> {
    let median = median(samples)?;
    let deviations: Vec<f64> = samples.iter().map(|x| (x - median).abs()).collect();
    Some(Summary {
        count: samples.len(),
        median,
        min: quantile(samples, 0.0)?,
        max: quantile(samples, 1.0)?,
        mad: self::median(&deviations)?,
    })
}

/// Returns the median; of an even number of samples, the mean of the two in the middle.
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// Returns the value below which the share `q` (0 to 1) of the samples lies, interpolated between
/// neighbours (R's type 7).
pub fn quantile(samples: &[f64], q: f64) -> Option<f64> {
    if q.is_nan() || samples.is_empty() || samples.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    let share = position - position.floor();
    // A weighted sum, because the difference of two huge samples can overflow.
    Some(sorted[below] * (1.0 - share) + sorted[above] * share)
}

/// The ratio of two medians.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The first median divided by the second.
    pub value: f64,
    /// The uncertainty of the ratio, from both median absolute deviations; `None` if one of them
    /// has only a single sample and therefore no known deviation.
    ///
    /// Relative deviations of independent quantities add in quadrature, to first order (JCGM
    /// 100:2008, "Guide to the expression of uncertainty in measurement", 5.1.6).
    pub spread: Option<f64>,
}

/// Returns the ratio of two medians; `None` if it is undefined, such as for a divisor of zero.
pub fn ratio(one: &Summary, other: &Summary) -> Option<Ratio> {
    let value = one.median / other.median;
    if other.median == 0.0 || !value.is_finite() {
        return None;
    }
    // This form also holds for a median of zero.
    let spread = (one.mad / other.median).hypot(value * other.mad / other.median);
    let known = one.count > 1 && other.count > 1 && spread.is_finite();
    Some(Ratio {
        value,
        spread: known.then_some(spread),
    })
}

/// Returns the pooled median absolute deviation of two sets of samples: the root of the mean of
/// both squares, weighted by degrees of freedom, as in a pooled standard deviation. `None` if both
/// are single samples.
///
/// √(((n₁ − 1) MAD₁² + (n₂ − 1) MAD₂²) / (n₁ + n₂ − 2)), from A. Akinshin, "Nonparametric Cohen's
/// d-consistent effect size" (2020), but with plain deviations: they are not scaled to the standard
/// deviation of a normal distribution.
pub fn pooled_mad(one: &Summary, other: &Summary) -> Option<f64> {
    let weight = |summary: &Summary| summary.count.saturating_sub(1) as f64;
    let weights = weight(one) + weight(other);
    // Scales by the weights before squaring, which avoids overflow.
    let part = |summary: &Summary| (weight(summary) / weights).sqrt() * summary.mad;
    (weights > 0.0).then(|| part(one).hypot(part(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Option<f64>, expected: f64) {
        let found = found.expect("a value");
        assert!((found - expected).abs() < 1e-12, "{found} for {expected}");
    }

    /// R: `quantile(c(1, 2, 4, 8, 16), c(0, .1, .25, .5, .9, .99, 1), type = 7)`.
    #[test]
    fn quantiles_are_those_of_r() {
        let samples = [16.0, 1.0, 8.0, 2.0, 4.0];
        for (q, expected) in [
            (0.0, 1.0),
            (0.1, 1.4),
            (0.25, 2.0),
            (0.5, 4.0),
            (0.9, 12.8),
            (0.99, 15.68),
            (1.0, 16.0),
        ] {
            close(quantile(&samples, q), expected);
        }
        // R: quantile(1:10, c(.05, .333), type = 7)
        let samples: Vec<f64> = (1..=10).map(f64::from).collect();
        close(quantile(&samples, 0.05), 1.45);
        close(quantile(&samples, 0.333), 3.997);
    }

    #[test]
    fn shares_outside_are_the_ends() {
        close(quantile(&[3.0, 1.0], -1.0), 1.0);
        close(quantile(&[3.0, 1.0], 7.0), 3.0);
    }

    #[test]
    fn medians_of_empty_samples() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
        assert_eq!(summary(&[f64::INFINITY]), None);
        assert_eq!(quantile(&[1.0], f64::NAN), None);
    }

    /// R: `mad(c(1, 1, 2, 2, 4, 6, 9), constant = 1)` is 1.
    #[test]
    fn deviation_of_known_samples() {
        let found = summary(&[1.0, 1.0, 2.0, 2.0, 4.0, 6.0, 9.0]).expect("samples");
        assert_eq!((found.count, found.median, found.mad), (7, 2.0, 1.0));
        assert_eq!((found.min, found.max), (1.0, 9.0));
        let one = summary(&[5.0]).expect("a sample");
        assert_eq!((one.count, one.median, one.mad), (1, 5.0, 0.0));
        let even = summary(&[1.0, 2.0, 4.0, 9.0]).expect("samples");
        assert_eq!((even.median, even.mad), (3.0, 1.5));
    }

    #[test]
    fn ratios_carry_both_spreads() {
        let one = summary(&[5.0, 6.0, 7.0]).expect("samples");
        let other = summary(&[2.0, 3.0, 4.0]).expect("samples");
        let found = ratio(&one, &other).expect("a ratio");
        close(Some(found.value), 2.0);
        // 2 × √((1/6)² + (1/3)²)
        close(found.spread, 0.745_355_992_499_93);
        let single = summary(&[3.0]).expect("a sample");
        assert_eq!(ratio(&one, &single).expect("a ratio").spread, None);
        let zero = summary(&[0.0, 0.0]).expect("samples");
        assert_eq!(ratio(&one, &zero), None);
        assert_eq!(ratio(&zero, &one).expect("a ratio").value, 0.0);
    }

    #[test]
    fn pooled_deviation_weighs_by_degrees_of_freedom() {
        let with = |count, mad| Summary {
            count,
            median: 1.0,
            min: 1.0,
            max: 1.0,
            mad,
        };
        close(pooled_mad(&with(3, 3.0), &with(3, 4.0)), 12.5f64.sqrt());
        close(pooled_mad(&with(2, 0.0), &with(4, 2.0)), 3f64.sqrt());
        // A single sample has no deviation, and does not change the other's.
        close(pooled_mad(&with(1, 0.0), &with(5, 2.0)), 2.0);
        assert_eq!(pooled_mad(&with(1, 0.0), &with(1, 0.0)), None);
        close(pooled_mad(&with(3, 1e200), &with(3, 1e200)), 1e200);
    }
}
