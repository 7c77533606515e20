//! Statistics over seeds: means with confidence intervals, and percentiles.

use serde::Serialize;

/// A mean over the seeds, with its 95 % confidence interval (Student's t; of length 0 for one seed).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

impl Estimate {
    /// The estimate of one value per seed.
    pub fn of(values: &[f64]) -> Self {
        let n = values.len();
        let mean = values.iter().sum::<f64>() / n.max(1) as f64;
        if n < 2 {
            return Self {
                mean,
                low: mean,
                high: mean,
            };
        }
        let squares = values
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>();
        let deviation = (squares / (n - 1) as f64).sqrt();
        let t = STUDENT.get(n - 2).copied().unwrap_or(1.96);
        let half = t * deviation / (n as f64).sqrt();
        Self {
            mean,
            low: mean - half,
            high: mean + half,
        }
    }

    /// The estimate of the ratios of two values per seed. 0 to 0 is 1; other ratios to 0 are undefined.
    pub fn of_ratios(before: &[f64], after: &[f64]) -> Self {
        let ratio = |(before, after): (&f64, &f64)| match (*before, *after) {
            (0.0, 0.0) => Some(1.0),
            (0.0, _) => None,
            (before, after) => Some(after / before),
        };
        let ratios: Vec<f64> = before.iter().zip(after).filter_map(ratio).collect();
        Self::of(&ratios)
    }
}

/// The smallest value that at least `per_1000` of 1000 values do not exceed (nearest rank); 0 without values.
pub fn percentile(sorted: &[u64], per_1000: u64) -> u64 {
    debug_assert!(sorted.is_sorted());
    let rank = (sorted.len() as u64 * per_1000).div_ceil(1000).max(1);
    sorted.get(rank as usize - 1).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        let estimate = Estimate::of(&[1.0, 2.0, 3.0]);
        assert_eq!(estimate.mean, 2.0);
        // 4.303 / sqrt(3)
        assert!((estimate.high - 4.4843).abs() < 1e-3, "{estimate:?}");
        assert!((estimate.low + 0.4843).abs() < 1e-3, "{estimate:?}");
        let one = Estimate::of(&[7.0]);
        assert_eq!((one.low, one.mean, one.high), (7.0, 7.0, 7.0));
        let ratio = Estimate::of_ratios(&[10.0, 20.0], &[5.0, 10.0]);
        assert_eq!((ratio.low, ratio.mean, ratio.high), (0.5, 0.5, 0.5));
        assert_eq!(Estimate::of_ratios(&[0.0, 0.0], &[0.0, 3.0]).mean, 1.0);
    }

    #[test]
    fn percentiles_are_of_the_values_themselves() {
        let values: Vec<u64> = (1..=200).collect();
        assert_eq!(percentile(&values, 500), 100);
        assert_eq!(percentile(&values, 990), 198);
        assert_eq!(percentile(&values, 1000), 200);
        assert_eq!(percentile(&[5], 10), 5);
        assert_eq!(percentile(&[], 500), 0);
    }
}
