//! Welch's t-test of the times that two classes of input take, as Reparaz, Balasch and Verbauwhede
//! describe it ("Dude, is my code constant time?", 2017).

use crate::common::Random;
use std::time::Duration;

/// Inputs that are made before any of them is measured, so that both classes
/// find caches and predictors alike.
const AT_ONCE: usize = 64;

/// The number of crops beside none.
const CROPS: i32 = 100;

/// Nanoseconds that `run` says of what `make` makes of each class, in random turns,
/// for as long as `go_on` says so of the number of samples.
pub(crate) fn sample<I>(
    mut make: impl FnMut(&mut Random, bool) -> I,
    mut run: impl FnMut(&mut I) -> Duration,
    go_on: impl Fn(usize) -> bool,
) -> [Vec<f64>; 2] {
    let mut random = Random(7);
    let mut samples = [Vec::new(), Vec::new()];
    while go_on(samples.iter().map(Vec::len).sum()) {
        let mut inputs: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let class = random.next() & 1 == 1;
                (class, make(&mut random, class))
            })
            .collect();
        for (class, input) in &mut inputs {
            samples[usize::from(*class)].push(run(input).as_nanos() as f64);
        }
    }
    samples
}

/// The greatest |t|: of all samples, and of those below each of many percentiles,
/// as interruptions hide small differences. The percentiles are dudect's.
pub(crate) fn greatest_t(samples: &[Vec<f64>; 2]) -> f64 {
    let mut sorted: Vec<_> = (samples.iter().enumerate())
        .flat_map(|(class, samples)| samples.iter().map(move |sample| (*sample, class)))
        .collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let crops = (1..=CROPS).map(|i| 1.0 - 0.5_f64.powf(10.0 * f64::from(i) / f64::from(CROPS)));
    let mut ends: Vec<_> = crops
        .map(|part| {
            let limit = sorted[(part * sorted.len() as f64) as usize].0;
            sorted.partition_point(|(sample, _)| *sample < limit)
        })
        .collect();
    ends.push(sorted.len());

    let middle = sorted[sorted.len() / 2].0;
    let mut moments = [Moments::default(); 2];
    let (mut at, mut greatest) = (0, 0.0_f64);
    for end in ends {
        for (sample, class) in &sorted[at..end] {
            // Near zero, or squares would lose what they differ by.
            moments[*class].add(sample - middle);
        }
        at = end;
        // A crop of next to nothing has no t, and `max` leaves it out.
        greatest = greatest.max(t(&moments).abs());
    }
    greatest
}

#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, sample: f64) {
        self.count += 1.0;
        self.sum += sample;
        self.squares += sample * sample;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count
    }

    /// The variance of the mean.
    fn variance(&self) -> f64 {
        let squares = self.squares - self.sum * self.mean();
        squares / (self.count - 1.0) / self.count
    }
}

fn t([a, b]: &[Moments; 2]) -> f64 {
    (a.mean() - b.mean()) / (a.variance() + b.variance()).sqrt()
}
