//! Watches the settings of a tunnel from its own process.
//!
//! The kernel sends notifications about links, addresses, routes, rules and nf_tables tables, and
//! inotify reports changes of `/etc/resolv.conf`. For `src_valid_mark` and the settings of
//! systemd-resolved there are no notifications: they are compared whenever something else changes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify;
use rustix::io::Errno;
use taupe_os_linux::watch::SettingsWatch;

use crate::journal::State;
use crate::verify::{Finding, verify};

/// The file of name servers, no matter which program writes it.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Delay after an event, because changes come in groups.
const PAUSE: Duration = Duration::from_millis(500);

/// Limits the share of time spent in comparisons, which list all routes, while routes change all
/// the time: after each comparison the thread waits this many times its duration.
const SHARE: u32 = 20;

/// Compares a tunnel's changes with the system after each event, until it is dropped.
pub struct Watch {
    stop: Arc<OwnedFd>,
}

impl Watch {
    /// Starts watching a tunnel that `up` is bringing up in the calling thread's network namespace.
    /// `tell` gets all findings whenever they differ from the previous ones. Returns `None` for a
    /// device that `up` has not made.
    ///
    /// # Errors
    /// The kernel's.
    pub fn begin(
        interface: &str,
        tell: impl FnMut(&[Finding]) + Send + 'static,
    ) -> io::Result<Option<Self>> {
        if !State::default().is_begun(interface) {
            return Ok(None);
        }
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let watcher = Watcher {
            interface: interface.to_owned(),
            settings: SettingsWatch::open()?,
            stop: Arc::clone(&stop),
            found: Vec::new(),
            tell,
        };
        let thread = thread::Builder::new().name("settings".into());
        thread.spawn(move || watcher.run())?;
        Ok(Some(Self { stop }))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A comparison may wait for a message bus, so this does not wait for the thread's end.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

struct Watcher<F> {
    interface: String,
    settings: SettingsWatch,
    stop: Arc<OwnedFd>,
    /// The findings that were reported last.
    found: Vec<Finding>,
    tell: F,
}

impl<F: FnMut(&[Finding])> Watcher<F> {
    fn run(mut self) {
        loop {
            // Opened before the comparison, so that changes during it are noticed; and opened again
            // each time, because the file may have been replaced.
            let files = watch_files().ok();
            let began = Instant::now();
            let verified = verify(&self.interface);
            let is_changing = matches!(verified, Ok(None));
            if let Ok(Some(found)) = verified
                && found != self.found
            {
                (self.tell)(&found);
                self.found = found;
            }
            let pause = PAUSE.max(began.elapsed() * SHARE);
            let is_stopped = !is_changing && self.wait(files.as_ref(), None);
            if is_stopped || self.wait(None, Some(pause)) {
                return;
            }
        }
    }

    /// Waits for an event, or for the given time. Returns true if the thread should end.
    fn wait(&mut self, files: Option<&OwnedFd>, patience: Option<Duration>) -> bool {
        let end = patience.map(|patience| Instant::now() + patience);
        loop {
            let mut fds = vec![PollFd::new(&*self.stop, PollFlags::IN)];
            if end.is_none() {
                fds.extend(
                    self.settings
                        .fds()
                        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                );
                fds.extend(files.map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let count = match poll(&mut fds, left.as_ref()) {
                Err(Errno::INTR) => continue,
                Err(_) => return true,
                Ok(count) => count,
            };
            let is_stopped = fds.first().is_some_and(|stop| !stop.revents().is_empty());
            drop(fds);
            if count > 0 && !is_stopped && self.settings.drain().is_err() {
                return true;
            }
            return is_stopped;
        }
    }
}

/// Watches the file and its folder, because the file may be written or replaced. If it is a mount
/// point, it is in another folder.
fn watch_files() -> io::Result<OwnedFd> {
    use inotify::{CreateFlags, WatchFlags};
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let file = Path::new(RESOLV_CONF);
    let written = WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB;
    // If the file does not exist yet, only its folder is watched.
    let _ = inotify::add_watch(&watch, file, written);
    if let Some(folder) = file.parent() {
        let named = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        inotify::add_watch(&watch, folder, named)?;
    }
    Ok(watch)
}
