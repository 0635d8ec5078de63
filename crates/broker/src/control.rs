//! Commands of the broker to a packet process.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use crate::link::{Link, LinkError};
use crate::message::FromBroker;

/// Time that a packet process has to read a message, and to execute a command.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Times that a wait may take in all, if the broker is busy. A packet process could keep it busy with
/// requests that take long.
const BUSY: u32 = 6;

/// Interval between checks of a wait whether the broker itself is busy.
const SLICE: Duration = Duration::from_millis(250);

/// Commands of the broker's threads to the packet process.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) link: Arc<Link>,
    progress: Mutex<Progress>,
    progressed: Condvar,
    /// Held while a thread waits until flows are removed.
    forgetting: Mutex<()>,
    /// True after [`Self::stop`].
    is_stopped: AtomicBool,
}

/// State of the packet process.
#[derive(Debug, Default)]
struct Progress {
    has_ended: bool,
    /// True while a request of it is executed. Its other messages wait meanwhile.
    is_served: bool,
    /// Number of requests that were begun.
    requests: u64,
    /// Number of [`FromBroker::Forget`].
    to_forget: u64,
    /// Number of [`FromPacketProcess::Forgotten`](crate::message::FromPacketProcess::Forgotten).
    forgotten: u64,
}

/// The time that is left for a packet process.
pub(crate) struct Patience {
    left: Duration,
    /// The end also if the broker is busy until then.
    end: Instant,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self::of(PATIENCE)
    }

    fn of(left: Duration) -> Self {
        let end = Instant::now() + BUSY * left;
        Self { left, end }
    }
}

impl Control {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            progress: Mutex::default(),
            progressed: Condvar::new(),
            forgetting: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Returns true after [`Self::stop`].
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Sends a command. A packet process that cannot be sent one is ended.
    pub(crate) fn command(
        &self,
        command: &FromBroker,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        self.link
            .send(command, descriptors)
            .inspect_err(|error| match error {
                LinkError::Closed => debug!("the packet process has ended already"),
                error => self.give_up(error),
            })
    }

    /// Sends a [`FromBroker::Forget`], and waits until it is executed.
    pub(crate) fn forget(
        &self,
        command: &FromBroker,
        patience: &mut Patience,
    ) -> Result<(), LinkError> {
        let _one_at_a_time = self
            .forgetting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.note(|progress| progress.to_forget += 1);
        self.command(command, &[])?;
        self.wait(
            |progress| progress.forgotten == progress.to_forget,
            patience,
            "it does not remove flows",
        )
    }

    /// Stops the device. Returns before it has ended.
    pub(crate) fn stop(control: Arc<Self>) {
        // Before the command, so that whoever receives its answer sees this.
        control.is_stopped.store(true, Ordering::Relaxed);
        if control.command(&FromBroker::Stop, &[]).is_err() {
            return;
        }
        let wait = move || {
            // After the time, `wait` has ended the process.
            let _ = control.wait(
                |_| false,
                &mut Patience::new(),
                "it does not end the device",
            );
        };
        // Without the thread, a packet process that misbehaves may take any time.
        let _ = thread::Builder::new().name("stop".into()).spawn(wait);
    }

    /// Waits until `is_done`, or until the packet process has ended. Ends one that takes too long, and
    /// logs `why`. Time in which the broker is busy with a single request does not count, up to a limit.
    fn wait(
        &self,
        is_done: impl Fn(&Progress) -> bool,
        patience: &mut Patience,
        why: &'static str,
    ) -> Result<(), LinkError> {
        let goes_on = |progress: &mut Progress| !progress.has_ended && !is_done(progress);
        let mut progress = self.progress();
        loop {
            let requests = progress.requests;
            let waited = self.progressed.wait_timeout_while(progress, SLICE, goes_on);
            let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            progress = after;
            if !timeout.timed_out() {
                break;
            }
            // Only a single long request stops the clock. Otherwise the process could extend its time by
            // many short ones.
            if !progress.is_served || progress.requests != requests {
                patience.left = patience.left.saturating_sub(SLICE);
            }
            if patience.left.is_zero() || Instant::now() > patience.end {
                // Logging may block.
                drop(progress);
                self.give_up(&LinkError::Unexpected(why));
                return Err(LinkError::Unexpected(why));
            }
        }
        match progress.has_ended {
            true => Err(LinkError::Closed),
            false => Ok(()),
        }
    }

    /// Ends a packet process by closing the socket. The process exits when it finds the socket closed.
    /// Otherwise the supervisor, whose end is closed too, kills it.
    fn give_up(&self, why: &LinkError) {
        self.link.close();
        // Logging may block, so it comes last.
        warn!(%why, "the packet process was ended");
    }

    /// Notes that the packet process has removed flows.
    ///
    /// # Errors
    /// [`LinkError::Unexpected`] if no removal was requested.
    pub(crate) fn note_forgotten(&self) -> Result<(), LinkError> {
        let mut progress = self.progress();
        if progress.forgotten == progress.to_forget {
            return Err(LinkError::Unexpected("it has removed flows unasked"));
        }
        progress.forgotten += 1;
        drop(progress);
        self.progressed.notify_all();
        Ok(())
    }

    /// Executes a request.
    pub(crate) fn serve<T>(&self, execute: impl FnOnce() -> T) -> T {
        self.note(|progress| {
            progress.is_served = true;
            progress.requests += 1;
        });
        let executed = execute();
        self.note(|progress| progress.is_served = false);
        executed
    }

    /// Notes that the packet process has ended.
    pub(crate) fn note_end(&self) {
        self.note(|progress| progress.has_ended = true);
    }

    /// Notes progress, and wakes the threads that wait for it.
    fn note(&self, progress: impl FnOnce(&mut Progress)) {
        progress(&mut self.progress());
        self.progressed.notify_all();
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Control, Patience, SLICE};
    use crate::link::{Link, LinkError};
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use taupe_os_linux::message_socket;

    /// Returns the control of a packet process, and its end of the socket.
    fn control() -> (Control, OwnedFd) {
        let (ours, theirs) = message_socket::pair().expect("sockets");
        (Control::new(Arc::new(Link::new(ours))), theirs)
    }

    #[test]
    fn many_short_requests_are_no_excuse() {
        let (control, _process) = control();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    control.serve(|| thread::sleep(SLICE / 50));
                }
            });
            let waited = control.wait(|_| false, &mut Patience::of(2 * SLICE), "it waits");
            is_over.store(true, Ordering::Relaxed);
            assert!(matches!(waited, Err(LinkError::Unexpected("it waits"))));
        });
    }

    #[test]
    fn a_wait_ends_even_if_the_broker_stays_busy() {
        let (control, _process) = control();
        let (begun, begin) = mpsc::channel();
        let (over, end) = mpsc::channel();
        thread::scope(|scope| {
            let control = &control;
            scope.spawn(move || {
                control.serve(|| {
                    begun.send(()).expect("a receiver");
                    end.recv().expect("the end");
                });
            });
            begin.recv().expect("a request");
            let waited = control.wait(|_| false, &mut Patience::of(SLICE), "it waits");
            over.send(()).expect("a receiver");
            assert!(matches!(waited, Err(LinkError::Unexpected("it waits"))));
        });
    }

    #[test]
    fn a_long_request_stops_the_clock() {
        let (control, _process) = control();
        let (begun, begin) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                control.serve(|| {
                    begun.send(()).expect("a receiver");
                    thread::sleep(6 * SLICE);
                });
                control.note_end();
            });
            begin.recv().expect("a request");
            let waited = control.wait(|_| false, &mut Patience::of(2 * SLICE), "it waits");
            assert!(matches!(waited, Err(LinkError::Closed)), "{waited:?}");
        });
    }
}
