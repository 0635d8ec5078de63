//! Time to open TCP connections, one after the other.

use super::latency::RoundTrips;
use crate::session::Session;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use taupe_lab::error::{Error, Result};

/// Fewer than the backlog of a listening socket (128): the kernel completes the connections, and no
/// server accepts them.
const COUNT: usize = 100;

/// Time limit for a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens a hundred connections, and measures each from the creation of the socket until it is
/// connected.
///
/// # Errors
///
/// [`Error::Io`] if a connection fails.
pub fn measure(session: &Session) -> Result<RoundTrips> {
    let failed = || Error::io("connections to measure with");
    let target = (session.target(), 0);
    let bind = || TcpListener::bind(target).map_err(failed());
    let listener = session.pair.server.enter(bind)?;
    let address = listener.local_addr().map_err(failed())?;
    session.pair.client.enter(|| {
        let mut connections = Vec::with_capacity(COUNT);
        let mut found = RoundTrips::default();
        for _ in 0..COUNT {
            let begin = Instant::now();
            let connection = TcpStream::connect_timeout(&address, PATIENCE);
            let took = begin.elapsed();
            connections.push(connection.map_err(failed())?);
            found.answered.push(took.as_secs_f64());
        }
        Ok(found)
    })
}
