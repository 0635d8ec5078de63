//! The system's event log (Event Viewer, "Windows Logs", "Application").

use super::wide::wide;
use std::io;
use std::ptr;
use windows_registry::LOCAL_MACHINE;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::EventLog::{
    DeregisterEventSource, EVENTLOG_ERROR_TYPE, EVENTLOG_INFORMATION_TYPE, EVENTLOG_WARNING_TYPE,
    RegisterEventSourceW, ReportEventW,
};

/// Registry key of the sources of the log "Application".
const SOURCES: &str = r"SYSTEM\CurrentControlSet\Services\EventLog\Application";

/// A program in every Windows whose messages 1 to 1000 consist only of the event's text.
const MESSAGES: &str = r"%SystemRoot%\System32\EventCreate.exe";

/// The message number to use.
const EVENT: u32 = 1;

/// Maximum length of an event's text, in UTF-16 units (`ReportEventW`: 31,839).
const LONGEST: usize = 31_000;

/// Severity of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something needs attention.
    Warning,
    /// Information about normal operation.
    Information,
}

/// Registers a source, so that Event Viewer shows its events as they were written. Registering it
/// again has no effect.
///
/// # Errors
///
/// The registry's; it needs an administrator.
pub fn register(source: &str) -> io::Result<()> {
    let types = EVENTLOG_ERROR_TYPE | EVENTLOG_WARNING_TYPE | EVENTLOG_INFORMATION_TYPE;
    LOCAL_MACHINE
        .create(format!(r"{SOURCES}\{source}"))
        .and_then(|key| {
            key.set_expand_string("EventMessageFile", MESSAGES)?;
            key.set_u32("TypesSupported", types.into())
        })
        .map_err(|error| plain(&error.into()))
}

/// Removes the registration of a source; its events stay. A source that is not registered is not an
/// error.
///
/// # Errors
///
/// The registry's; it needs an administrator.
pub fn unregister(source: &str) -> io::Result<()> {
    let removed = LOCAL_MACHINE.remove_tree(format!(r"{SOURCES}\{source}"));
    match removed.map_err(|error| plain(&error.into())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Extracts the system's error from an `HRESULT`, in whose lower half the registry library returns
/// it.
fn plain(error: &io::Error) -> io::Error {
    let code = error.raw_os_error().unwrap_or_default();
    io::Error::from_raw_os_error(code & 0xffff)
}

/// A handle for writing events of one source.
pub struct EventLog(HANDLE);

// SAFETY: the handle stands for a connection to the service that writes the log. Any thread may use
// it: the documentation of `ReportEventW` has no restriction on threads, and the service processes
// each call as a unit.
unsafe impl Send for EventLog {}
// SAFETY: as above; each report is one call, and calls share only the handle.
unsafe impl Sync for EventLog {}

impl EventLog {
    /// Opens the log. Event Viewer adds a remark to the events of a source that is not registered.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn open(source: &str) -> io::Result<Self> {
        let source = wide(source)?;
        // SAFETY: null means this machine, and the text ends with a zero.
        let handle = unsafe { RegisterEventSourceW(ptr::null(), source.as_ptr()) };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(handle))
    }

    /// Writes an event; a text that is too long is truncated. A space is inserted between a percent
    /// sign and a digit, because Event Viewer would replace the two with a parameter.
    ///
    /// # Errors
    ///
    /// The system's, for example if the log is full.
    pub fn report(&self, level: Level, text: &str) -> io::Result<()> {
        let mut text = wide(shown(text))?;
        if text.len() > LONGEST {
            text.truncate(LONGEST);
            text.push(0);
        }
        let kind = match level {
            Level::Error => EVENTLOG_ERROR_TYPE,
            Level::Warning => EVENTLOG_WARNING_TYPE,
            Level::Information => EVENTLOG_INFORMATION_TYPE,
        };
        let texts = [text.as_ptr()];
        // SAFETY: the handle is open as long as `self` lives. There is one text, as announced,
        // which ends with a zero, and there are neither a user nor data.
        let reported = unsafe {
            ReportEventW(
                self.0,
                kind,
                0,
                EVENT,
                ptr::null_mut(),
                1,
                0,
                texts.as_ptr(),
                ptr::null(),
            )
        };
        match reported {
            0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// Returns a text that Event Viewer shows as written, with the characters replaced that it cannot
/// show.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii_digit() && shown.ends_with('%') {
            shown.push(' ');
        }
        shown.push(if character == '\0' {
            '\u{fffd}'
        } else {
            character
        });
    }
    shown
}

impl Drop for EventLog {
    fn drop(&mut self) {
        // SAFETY: the handle comes from `RegisterEventSourceW`, and is not used afterwards.
        unsafe { DeregisterEventSource(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn nothing_of_a_text_is_taken_for_a_place_of_another() {
        assert_eq!(
            shown("fe80::1%12 has %%2 of 5%"),
            "fe80::1% 12 has %% 2 of 5%"
        );
        assert_eq!(shown("a\0b % 1 100%"), "a\u{fffd}b % 1 100%");
    }
}
