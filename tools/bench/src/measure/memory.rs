//! Memory of the programs.

use super::iperf::{self, Direction, Flow};
use super::proc;
use super::servers::Servers;
use crate::contestant::End;
use crate::session::Session;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use taupe_lab::error::Result;
use taupe_lab::process::Process;

/// The resident set of one side's programs together, in bytes. It includes memory shared with other
/// programs (code, libraries).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// The current size.
    pub now: u64,
    /// The sum of the programs' peaks.
    pub peak: u64,
}

/// Memory of both sides' programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The client's side.
    pub client: Resident,
    /// The server's side.
    pub server: Resident,
}

/// Returns the memory of a session's programs; `None` if no programs run the tunnel.
///
/// # Errors
///
/// [`Error::Io`](taupe_lab::Error::Io) if one has ended.
pub fn measure(session: &Session) -> Result<Option<Memory>> {
    if session.processes().is_empty() {
        return Ok(None);
    }
    Ok(Some(Memory {
        client: of(&session.client)?,
        server: of(&session.server)?,
    }))
}

/// Returns the memory of one side's programs.
///
/// # Errors
///
/// [`Error::Io`](taupe_lab::Error::Io) if one has ended.
pub fn of(end: &End) -> Result<Resident> {
    let mut sum = Resident::default();
    for process in end.processes.iter().flat_map(Process::all_ids) {
        let (now, peak) = proc::resident(process)?;
        sum.now = sum.now.saturating_add(now);
        sum.peak = sum.peak.saturating_add(peak);
    }
    Ok(sum)
}

/// Returns the physical memory of the measuring process itself, in bytes.
///
/// # Errors
///
/// [`Error::Io`](taupe_lab::Error::Io) without procfs.
pub fn of_this_process() -> Result<u64> {
    proc::resident(std::process::id()).map(|(now, _)| now)
}

/// Interval of samples under load.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Memory of each side's programs over time: pairs of seconds since the load began and bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Growth {
    /// The client's side and the server's, without the warm-up.
    pub ends: [Vec<(f64, f64)>; 2],
}

impl Growth {
    /// Returns the peak of either end, in bytes.
    pub fn most(&self) -> u64 {
        let all = self.ends.iter().flatten();
        all.map(|(_, bytes)| *bytes as u64).max().unwrap_or(0)
    }

    /// Returns the growth in bytes per second of the end that grows faster: the slope of a
    /// least-squares line. `None` for fewer than two samples.
    pub fn slope(&self) -> Option<f64> {
        let slopes = self.ends.iter().filter_map(|samples| slope(samples));
        slopes.max_by(f64::total_cmp)
    }
}

fn slope(samples: &[(f64, f64)]) -> Option<f64> {
    let count = samples.len() as f64;
    let sum = |of: fn(&(f64, f64)) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (sum(|look| look.0), sum(|look| look.1));
    let products = samples.iter().map(|(x, y)| (x - mean_x) * (y - mean_y));
    let squares = samples.iter().map(|(x, _)| (x - mean_x).powi(2));
    let (products, squares) = (products.sum::<f64>(), squares.sum::<f64>());
    (squares > 0.0).then_some(products / squares)
}

/// Samples the memory once a second while four streams in each direction run at full speed for
/// `seconds`. Samples of the warm-up are omitted.
///
/// # Errors
///
/// iperf3's; [`Error::Io`](taupe_lab::Error::Io) if a program has ended.
pub fn growth(
    session: &Session,
    servers: &mut Servers,
    warm_up: Duration,
    seconds: u32,
) -> Result<Growth> {
    let flow = Flow {
        direction: Direction::Both,
        streams: 4,
        seconds,
    };
    let begin = Instant::now();
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let samples = scope.spawn(move || {
            let mut growth = Growth::default();
            while ended.recv_timeout(SAMPLE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if begin.elapsed() < warm_up {
                    continue;
                }
                for (samples, end) in growth
                    .ends
                    .iter_mut()
                    .zip([&session.client, &session.server])
                {
                    samples.push((begin.elapsed().as_secs_f64(), of(end)?.now as f64));
                }
            }
            Ok(growth)
        });
        let transfer = iperf::transfer(session, servers, flow);
        drop(end);
        let samples = samples
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        transfer.and(samples)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_that_grows_more_counts() {
        let line = |slope: f64| {
            let noise = [1.0, -1.0, -1.0, 1.0];
            let samples = (0..40).map(|x| (f64::from(x), 5e6 + slope * f64::from(x)));
            samples
                .zip(noise.iter().cycle())
                .map(|((x, y), n)| (x, y + n))
                .collect::<Vec<_>>()
        };
        let growth = Growth {
            ends: [line(-3.0), line(2.5)],
        };
        let slope = growth.slope().unwrap_or_default();
        assert!((slope - 2.5).abs() < 0.01, "{slope}");
        assert_eq!(growth.most(), 5_000_098);
        let short = Growth {
            ends: [vec![(1.0, 7.0)], Vec::new()],
        };
        assert_eq!((short.slope(), short.most()), (None, 7));
        assert_eq!(Growth::default().slope(), None);
    }
}
