//! The configuration pipe of a tunnel: accepts clients, and passes whole, checked requests to
//! who carries the tunnel.

use super::carrier::Asked;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use taupe_sys::windows::pipe::{Listener, Stopper, Stream};
use taupe_upkeep::configuration::converse;
use tracing::debug;

/// Clients served at once; one more is let go.
const MOST_CLIENTS: usize = 32;

/// A client that says nothing for this long is let go.
const PATIENCE: Duration = Duration::from_secs(60);

/// From an error of the system to the next try.
const PAUSE: Duration = Duration::from_millis(100);

/// What serves clients, until it is dropped.
pub(super) struct Server {
    stopper: Stopper,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves clients of the pipe from now on.
    ///
    /// # Errors
    ///
    /// When there can be no further thread.
    pub(super) fn start(listener: Listener, asked: Sender<Asked>) -> io::Result<Self> {
        let stopper = listener.stopper();
        let accepting = thread::Builder::new()
            .name("uapi".into())
            .spawn(move || accept(listener, &asked))?;
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

fn accept(mut listener: Listener, asked: &Sender<Asked>) {
    let serving = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept(PATIENCE) {
            Ok(Some(stream)) => stream,
            Ok(None) => return,
            Err(error) => {
                debug!(%error, "accepting a configuration client failed");
                thread::sleep(PAUSE);
                continue;
            }
        };
        if serving.load(Ordering::Acquire) >= MOST_CLIENTS {
            debug!("too many configuration clients: one refused");
            continue;
        }
        serving.fetch_add(1, Ordering::AcqRel);
        let (asked, counter) = (asked.clone(), Arc::clone(&serving));
        let client = move || {
            if let Err(error) = serve(stream, &asked) {
                debug!(%error, "configuration client ended");
            }
            counter.fetch_sub(1, Ordering::AcqRel);
        };
        let started = thread::Builder::new().name("uapi client".into());
        if started.spawn(client).is_err() {
            serving.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn serve(mut stream: Stream, asked: &Sender<Asked>) -> io::Result<()> {
    converse(&mut stream, taupe_sys::interface::index, |request| {
        let (sender, answer) = sync_channel(1);
        asked.send(Asked::Configuration(request, sender)).ok()?;
        answer.recv().ok()
    })
}
