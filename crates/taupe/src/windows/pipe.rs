//! Configuration pipe of a tunnel. It accepts clients, and passes complete, validated requests to
//! the tunnel's thread.

use super::frame_tunnel::TunnelEvent;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{Sender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use taupe_os_windows::pipe::{Listener, Stopper, Stream};
use taupe_runtime::clients::{ClientSlot, Clients, MAX_IDLE, TICK};
use taupe_runtime::configuration::serve_client;
use tracing::debug;

/// Delay before the next attempt after an error of the system.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves clients until dropped.
pub(super) struct Server {
    stopper: Stopper,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to serve clients of the pipe.
    ///
    /// # Errors
    ///
    /// Fails if no thread is left.
    pub(super) fn start(listener: Listener, events: Sender<TunnelEvent>) -> io::Result<Self> {
        let stopper = listener.stopper();
        let accepting = thread::Builder::new()
            .name("uapi".into())
            .spawn(move || accept(listener, &events))?;
        Ok(Self {
            stopper,
            accepting: Some(accepting),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(mut listener: Listener, events: &Sender<TunnelEvent>) {
    let clients = Arc::new(Clients::default());
    loop {
        let stream = match listener.accept(TICK) {
            Ok(Some(stream)) => stream,
            Ok(None) => return,
            Err(error) => {
                debug!(%error, "accepting a configuration client failed");
                thread::sleep(PAUSE);
                continue;
            }
        };
        // Meanwhile, other clients wait for an instance of the pipe.
        let slot = clients.admit();
        let events = events.clone();
        let client = move || {
            if let Err(error) = serve(stream, &slot, &events) {
                debug!(%error, "configuration client ended");
            }
        };
        let started = thread::Builder::new().name("uapi client".into());
        if let Err(error) = started.spawn(client) {
            debug!(%error, "no thread for a configuration client");
        }
    }
}

/// A client's connection. A write that timed out may have written a part, so it cannot be repeated.
struct Client(Stream);

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.set_timeout(TICK);
        self.0.read(buffer)
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.set_timeout(MAX_IDLE);
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn serve(stream: Stream, slot: &ClientSlot, events: &Sender<TunnelEvent>) -> io::Result<()> {
    serve_client(
        &mut Client(stream),
        slot,
        &taupe_client::zone::index,
        |request| {
            let (sender, answer) = sync_channel(1);
            events
                .send(TunnelEvent::Configuration(request, sender))
                .ok()?;
            answer.recv().ok()
        },
    )
}
