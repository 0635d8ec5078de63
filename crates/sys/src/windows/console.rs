//! The end of a program in a console.

use std::io;
use std::sync::OnceLock;
use windows_sys::Win32::System::Console::SetConsoleCtrlHandler;
use windows_sys::core::BOOL;

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
extern "system" fn handle(_event: u32) -> BOOL {
    if let Some(end) = HANDLER.get() {
        end();
    }
    1
}
