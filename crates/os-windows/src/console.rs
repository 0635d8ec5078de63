//! Handling the end of a console program.

use std::io;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;
use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, CTRL_C_EVENT, SetConsoleCtrlHandler};
use windows_sys::core::BOOL;

/// Longer than the system waits before it ends a program whose console was closed.
const LONGER: Duration = Duration::from_secs(60);

type Handler = Box<dyn Fn() + Send + Sync>;

static HANDLER: OnceLock<Handler> = OnceLock::new();

/// Calls `end`, in a thread of the system, when the program should end: on Ctrl-C or Ctrl-Break,
/// when its window is closed, the user logs off or the machine shuts down. After the last three the
/// system ends the process some seconds later.
///
/// # Errors
///
/// [`io::ErrorKind::AlreadyExists`] if it was called before; otherwise the system's.
pub fn on_end(end: impl Fn() + Send + Sync + 'static) -> io::Result<()> {
    if HANDLER.set(Box::new(end)).is_err() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // SAFETY: the handler is a function of the required signature, and exists as long as the
    // process.
    match unsafe { SetConsoleCtrlHandler(Some(handle), 1) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Reports every event as handled, so that the process continues for now.
extern "system" fn handle(event: u32) -> BOOL {
    if let Some(end) = HANDLER.get() {
        end();
    }
    if !matches!(event, CTRL_C_EVENT | CTRL_BREAK_EVENT) {
        // The system ends the process when this returns; normally the process ends by itself
        // earlier.
        thread::sleep(LONGER);
    }
    1
}
