//! The end of a program in a console.

use std::io;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;
use windows_sys::Win32::System::Console::{CTRL_BREAK_EVENT, CTRL_C_EVENT, SetConsoleCtrlHandler};
use windows_sys::core::BOOL;

/// More than the system gives a program whose console is gone.
const LONGER: Duration = Duration::from_secs(60);

type Handler = Box<dyn Fn() + Send + Sync>;

static HANDLER: OnceLock<Handler> = OnceLock::new();

/// Calls `end`, in a thread of the system's, whenever the program is to end: by Ctrl-C or
/// Ctrl-Break, because its window is closed, the user logs off or the machine goes off. After
/// the last three the system ends the process some seconds later.
///
/// # Errors
///
/// When it has been called before ([`io::ErrorKind::AlreadyExists`]), or the system refuses.
pub fn on_end(end: impl Fn() + Send + Sync + 'static) -> io::Result<()> {
    if HANDLER.set(Box::new(end)).is_err() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // SAFETY: the handler is a function of the signature that is asked for, and there as long
    // as the process.
    match unsafe { SetConsoleCtrlHandler(Some(handle), 1) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Says that every event is dealt with, so that the process goes on for now.
extern "system" fn handle(event: u32) -> BOOL {
    if let Some(end) = HANDLER.get() {
        end();
    }
    if !matches!(event, CTRL_C_EVENT | CTRL_BREAK_EVENT) {
        // The system ends the process when this returns. It has ended by itself before.
        thread::sleep(LONGER);
    }
    1
}
