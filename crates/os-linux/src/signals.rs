//! Signals: those that ask a process to end, and blocked ones.

use std::io;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::{ptr, thread};

use rustix::io::{read, retry_on_intr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// Handler for SIGTERM and SIGINT that keeps them from ending the process at once.
///
/// The signals are caught by handlers rather than blocked for a `signalfd(2)`: a program that is
/// started later would inherit a blocked signal, but does not inherit a handler (`signal(7)`).
pub struct Termination {
    signals: Signals,
}

impl Termination {
    /// Catches the signals from now on, for the life of the process. A signal that arrives before
    /// [`Self::then`] is delivered to it.
    ///
    /// # Errors
    ///
    /// If no descriptor is left for the pipe that the handlers write to.
    pub fn catch() -> io::Result<Self> {
        let signals = Signals::new([SIGTERM, SIGINT])?;
        Ok(Self { signals })
    }

    /// Calls `end` in a new thread with the name of the first signal. Further signals have no
    /// effect: `timeout(1)`, for example, sends its signal twice, and the second must not interrupt
    /// the shutdown that the first began.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if no thread can be started.
    pub fn then(mut self, end: impl FnOnce(&'static str) + Send + 'static) -> io::Result<()> {
        let wait = move || {
            if let Some(signal) = self.signals.forever().next() {
                end(name(signal));
            }
        };
        let builder = thread::Builder::new().name("signals".into());
        builder.spawn(wait).map(drop)
    }
}

fn name(signal: i32) -> &'static str {
    if signal == SIGINT {
        "SIGINT"
    } else {
        "SIGTERM"
    }
}

/// Signals by which a user or a service manager ends the processes of a group.
pub const INTERRUPTIONS: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// Blocks signals in this thread and in threads that it starts later.
///
/// # Errors
///
/// `EINVAL` for an invalid number.
pub fn block(signals: &[i32]) -> io::Result<()> {
    set_mask(signals).map(drop)
}

/// Blocks signals, and returns them as a set.
fn set_mask(signals: &[i32]) -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the function initialises the set, which lives until it returns.
    let mut set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    };
    for &signal in signals {
        // SAFETY: the set is initialised and lives until the function returns. An invalid
        // number is an error.
        if unsafe { libc::sigaddset(&raw mut set, signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: the function reads the set, which lives until it returns, and accepts a null
    // pointer in the place of the former set.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(set)
}

/// Blocked signals, which are read from a descriptor (`signalfd(2)`).
#[derive(Debug)]
pub struct BlockedSignals(OwnedFd);

/// A signal that was read from [`BlockedSignals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// The number.
    pub number: i32,
    /// True if the kernel sent it, false if a process did (`si_code` in `sigaction(2)`). The
    /// signals of a terminal's keys are the kernel's.
    pub is_from_kernel: bool,
}

impl BlockedSignals {
    /// Blocks signals in this thread and in threads that it starts later, and opens a descriptor
    /// for them.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an invalid number, `EMFILE` if no descriptor is left.
    pub fn block(signals: &[i32]) -> io::Result<Self> {
        let set = set_mask(signals)?;
        // SAFETY: the function reads the set, which lives until it returns. -1 requests a new
        // descriptor.
        let descriptor = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel created this descriptor for this call, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Waits for the next signal.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn next(&self) -> io::Result<ReceivedSignal> {
        const SIGNO: usize = offset_of!(libc::signalfd_siginfo, ssi_signo);
        const CODE: usize = offset_of!(libc::signalfd_siginfo, ssi_code);
        // The kernel writes whole structures only.
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        retry_on_intr(|| read(&self.0, &mut info))?;
        let int = |at: usize| {
            let bytes = info.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| i32::from_ne_bytes(*bytes))
        };
        Ok(ReceivedSignal {
            number: int(SIGNO),
            is_from_kernel: int(CODE) > 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGWINCH;

    use super::{BlockedSignals, ReceivedSignal};

    #[test]
    fn a_blocked_signal_is_read_with_its_sender() {
        // A signal to this thread: other threads of the test program do not block it.
        let read = std::thread::spawn(|| {
            let signals = BlockedSignals::block(&[SIGWINCH]).expect("a descriptor");
            // SAFETY: both calls take numbers and touch no memory.
            unsafe { libc::pthread_kill(libc::pthread_self(), SIGWINCH) };
            signals.next().expect("a signal")
        });
        let expected = ReceivedSignal {
            number: SIGWINCH,
            is_from_kernel: false,
        };
        assert_eq!(read.join().expect("thread"), expected);
        assert!(BlockedSignals::block(&[-1]).is_err());
    }
}
