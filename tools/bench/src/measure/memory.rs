//! What the programs hold in memory.

use super::iperf::{self, Direction, Flow};
use super::proc;
use super::servers::Servers;
use crate::contestant::End;
use crate::session::Session;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use taupe_lab::error::Result;

/// The resident set of one side's programs together, in bytes: what they hold of physical
/// memory, with what they share with others (code, libraries).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// Now.
    pub now: u64,
    /// The most it ever was, of each program.
    pub peak: u64,
}

/// Both sides' programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// On the client's side.
    pub client: Resident,
    /// On the server's side.
    pub server: Resident,
}

/// Looks at the programs of a session; `None` where none make the tunnel.
///
/// # Errors
///
/// [`Error::Io`](taupe_lab::Error::Io) when one has ended.
pub fn measure(session: &Session) -> Result<Option<Memory>> {
    if session.processes().is_empty() {
        return Ok(None);
    }
    Ok(Some(Memory {
        client: of(&session.client)?,
        server: of(&session.server)?,
    }))
}

/// Looks at the programs of one side.
///
/// # Errors
///
/// [`Error::Io`](taupe_lab::Error::Io) when one has ended.
pub fn of(end: &End) -> Result<Resident> {
    let mut sum = Resident::default();
    for process in &end.processes {
        let (now, peak) = proc::resident(process.id())?;
        sum.now = sum.now.saturating_add(now);
        sum.peak = sum.peak.saturating_add(peak);
    }
    Ok(sum)
}

/// What the measuring process itself holds of physical memory, in bytes.
///
/// # Errors
///
/// [`Error::Io`](taupe_lab::Error::Io) where there is no procfs.
pub fn of_this_process() -> Result<u64> {
    proc::resident(std::process::id()).map(|(now, _)| now)
}

/// From one look at the memory to the next, under load.
const LOOK: Duration = Duration::from_secs(1);

/// What each side's programs held over time, in bytes, by the seconds since the load
/// began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Growth {
    /// The client's side and the server's, without the warm-up.
    pub ends: [Vec<(f64, f64)>; 2],
}

impl Growth {
    /// The most that an end held, in bytes.
    pub fn most(&self) -> u64 {
        let all = self.ends.iter().flatten();
        all.map(|(_, bytes)| *bytes as u64).max().unwrap_or(0)
    }

    /// Bytes a second by which the end grew that grew more: the slope of the straight
    /// line with the least squares. `None` for less than two looks.
    pub fn slope(&self) -> Option<f64> {
        let slopes = self.ends.iter().filter_map(|looks| slope(looks));
        slopes.max_by(f64::total_cmp)
    }
}

fn slope(looks: &[(f64, f64)]) -> Option<f64> {
    let count = looks.len() as f64;
    let sum = |of: fn(&(f64, f64)) -> f64| looks.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (sum(|look| look.0), sum(|look| look.1));
    let products = looks.iter().map(|(x, y)| (x - mean_x) * (y - mean_y));
    let squares = looks.iter().map(|(x, _)| (x - mean_x).powi(2));
    let (products, squares) = (products.sum::<f64>(), squares.sum::<f64>());
    (squares > 0.0).then_some(products / squares)
}

/// Looks once a second at what the programs hold, while four streams each way take all
/// they can for so many seconds. What comes within the warm-up is left out.
///
/// # Errors
///
/// iperf3's; [`Error::Io`](taupe_lab::Error::Io) when a program has ended.
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
        let looks = scope.spawn(move || {
            let mut growth = Growth::default();
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if begin.elapsed() < warm_up {
                    continue;
                }
                for (looks, end) in growth
                    .ends
                    .iter_mut()
                    .zip([&session.client, &session.server])
                {
                    looks.push((begin.elapsed().as_secs_f64(), of(end)?.now as f64));
                }
            }
            Ok(growth)
        });
        let transfer = iperf::transfer(session, servers, flow);
        drop(end);
        let looks = looks
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        transfer.and(looks)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_that_grows_more_counts() {
        let line = |slope: f64| {
            let noise = [1.0, -1.0, -1.0, 1.0];
            let looks = (0..40).map(|x| (f64::from(x), 5e6 + slope * f64::from(x)));
            looks
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
