//! Rates of the last minutes, for sparklines.

use std::collections::VecDeque;

/// Samples that are kept.
pub(crate) const SAMPLES: usize = 60;

/// Histories that a table keeps, at most.
const MAX_HISTORIES: usize = 512;

/// Heights of a sparkline's bars.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The latest samples, the oldest first.
#[derive(Clone, Default, Debug)]
pub(crate) struct History(VecDeque<u64>);

impl History {
    fn push(&mut self, sample: u64) {
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    fn is_silent(&self) -> bool {
        self.0.iter().all(|sample| *sample == 0)
    }

    /// Draws the latest samples, one per cell, relative to the highest of them. Nothing is drawn for
    /// zero.
    pub(crate) fn bars(&self, cells: usize) -> String {
        let latest = self.0.len().saturating_sub(cells);
        let samples = self.0.iter().skip(latest);
        let highest = samples.clone().copied().max().unwrap_or_default();
        let empty = cells.saturating_sub(self.0.len());
        let bars = samples.map(|sample| match sample {
            0 => ' ',
            sample => {
                let step = u128::from(*sample) * BARS.len() as u128;
                let level = step.div_ceil(u128::from(highest.max(1)));
                let level = usize::try_from(level).unwrap_or(BARS.len());
                BARS[level.clamp(1, BARS.len()) - 1]
            }
        });
        std::iter::repeat_n(' ', empty).chain(bars).collect()
    }
}

/// A history for each row of a table.
#[derive(Default, Debug)]
pub(crate) struct Histories(std::collections::HashMap<String, History>);

impl Histories {
    /// Appends one sample for each row. A row that is missing gets a zero, and is forgotten after a
    /// history of zeros.
    pub(crate) fn push<'a>(&mut self, samples: impl Iterator<Item = (&'a str, u64)>) {
        let mut samples: std::collections::HashMap<&str, u64> = samples.collect();
        self.0.retain(|key, history| {
            let sample = samples.remove(key.as_str());
            history.push(sample.unwrap_or_default());
            sample.is_some() || !history.is_silent()
        });
        for (key, sample) in samples {
            if self.0.len() >= MAX_HISTORIES {
                return;
            }
            self.0.entry(key.to_owned()).or_default().push(sample);
        }
    }

    pub(crate) fn bars(&self, key: &str, cells: usize) -> String {
        let history = self.0.get(key);
        history.map_or_else(|| " ".repeat(cells), |history| history.bars(cells))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_relative_to_the_highest() {
        let mut history = History::default();
        for sample in [0, 1, 4, 8] {
            history.push(sample);
        }
        assert_eq!(history.bars(6), "   ▁▄█");
        assert_eq!(history.bars(2), "▄█");
        history.push(u64::MAX);
        assert_eq!(history.bars(3), "▁▁█");
        assert_eq!(history.bars(0), "");
    }

    #[test]
    fn histories_are_bounded_and_forgotten() {
        let mut all = Histories::default();
        let names: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        for _ in 0..2 * SAMPLES {
            all.push(names.iter().map(|name| (name.as_str(), 1)));
        }
        assert_eq!(all.0.len(), MAX_HISTORIES);
        assert!(all.0.values().all(|history| history.0.len() == SAMPLES));
        for _ in 0..SAMPLES - 1 {
            all.push(std::iter::once(("7", 0)));
        }
        assert_eq!(all.0.len(), MAX_HISTORIES, "they still have a sample");
        all.push(std::iter::once(("7", 0)));
        assert!(all.0.len() <= 1, "{}", all.0.len());
    }
}
