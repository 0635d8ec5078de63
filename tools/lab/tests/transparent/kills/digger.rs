//! A selected application that sends continuously, and the machine that receives its records.
//!
//! Each record is sent by a new socket and has the time from before that socket was created. A socket
//! is therefore never older than its record, and a mode that selects sockets when they are created
//! selects this one by the rules of that time.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use taupe_lab::host::Host;
use taupe_lab::process::Process;
use taupe_lab::{Error, Result};

use crate::world::{BEYOND, TUNNEL};

/// First argument of this program as the application.
pub(crate) const WORD: &str = "--digger";

/// Port of the receiver, which no other program uses.
const PORT: u16 = 7300;

/// Interval between records to one receiver.
const PAUSE: Duration = Duration::from_millis(4);

/// Time after which a connection without an answer is given up.
const SHORT: Duration = Duration::from_millis(200);

/// Length of a record: a time in microseconds since 1970, in 16 digits.
const RECORD: usize = 16;

/// Starts the application with this executable, a copy of this program.
pub(super) fn start(host: &Host, executable: &str) -> Result<Process> {
    host.spawn(&[executable, WORD])
}

/// Runs as the application.
pub(crate) fn main() -> ! {
    for remote in BEYOND.map(|address| SocketAddr::new(address, PORT)) {
        let send: [fn(SocketAddr) -> io::Result<()>; 2] = [send_datagram, send_by_connection];
        for send in send {
            thread::spawn(move || {
                loop {
                    // While it is blocked, sending fails.
                    let _ = send(remote);
                    thread::sleep(PAUSE);
                }
            });
        }
    }
    loop {
        thread::park();
    }
}

fn record() -> String {
    format!("{:016}", now().as_micros())
}

/// Returns the time as records have it.
pub(super) fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

fn send_datagram(to: SocketAddr) -> io::Result<()> {
    let record = record();
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    UdpSocket::bind(any)?
        .send_to(record.as_bytes(), to)
        .map(drop)
}

fn send_by_connection(to: SocketAddr) -> io::Result<()> {
    let record = record();
    TcpStream::connect_timeout(&to, SHORT)?.write_all(record.as_bytes())
}

/// Records that have reached the receiver.
#[derive(Debug, Default)]
pub(super) struct ReceivedRecords {
    /// Number of records from the tunnel's addresses, by family.
    pub(super) by_tunnel: [AtomicU64; 2],
    /// Times and sources of the records from other addresses.
    outside: Mutex<Vec<(Duration, IpAddr)>>,
}

impl ReceivedRecords {
    fn note(&self, record: &[u8], from: IpAddr) {
        let from = from.to_canonical();
        if TUNNEL.contains(&&*from.to_string()) {
            self.by_tunnel[usize::from(from.is_ipv6())].fetch_add(1, Ordering::Relaxed);
            return;
        }
        let time = str::from_utf8(record).ok().and_then(|it| it.parse().ok());
        // A packet that is no record of the application would be a defect of the test.
        let time = Duration::from_micros(time.unwrap_or(u64::MAX));
        let mut outside = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        outside.push((time, from));
    }

    /// Returns and forgets the records from other addresses.
    pub(super) fn take_outside(&self) -> Vec<(Duration, IpAddr)> {
        let mut outside = self.outside.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *outside)
    }
}

/// Receives records on `far` until the sandbox ends.
pub(super) fn receive(far: &Host) -> Result<Arc<ReceivedRecords>> {
    let received = Arc::new(ReceivedRecords::default());
    for address in BEYOND {
        let at = SocketAddr::new(address, PORT);
        let what = || format!("receiver at {at}");
        let (datagrams, listener) = far.enter(|| {
            let datagrams = UdpSocket::bind(at).map_err(Error::io(what()))?;
            let listener = TcpListener::bind(at).map_err(Error::io(what()))?;
            Ok((datagrams, listener))
        })?;
        let noted = Arc::clone(&received);
        thread::spawn(move || {
            let mut record = [0; RECORD];
            while let Ok((length, from)) = datagrams.recv_from(&mut record) {
                noted.note(&record[..length], from.ip());
            }
        });
        let noted = Arc::clone(&received);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut record = [0; RECORD];
                let read = stream
                    .set_read_timeout(Some(SHORT))
                    .and_then(|()| stream.read_exact(&mut record));
                if let (Ok(()), Ok(from)) = (read, stream.peer_addr()) {
                    noted.note(&record, from.ip());
                }
            }
        });
    }
    Ok(received)
}
