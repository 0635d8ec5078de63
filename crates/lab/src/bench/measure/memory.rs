//! What the programs hold in memory.

use super::proc;
use crate::bench::contestant::End;
use crate::bench::session::Session;
use crate::error::Result;

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
/// [`Error::Io`](crate::Error::Io) when one has ended.
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
/// [`Error::Io`](crate::Error::Io) when one has ended.
pub fn of(end: &End) -> Result<Resident> {
    let mut sum = Resident::default();
    for process in &end.processes {
        let (now, peak) = proc::resident(process.id())?;
        sum.now = sum.now.saturating_add(now);
        sum.peak = sum.peak.saturating_add(peak);
    }
    Ok(sum)
}
