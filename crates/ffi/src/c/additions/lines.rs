//! Log lines: their levels, and the functions that receive them.

use core::ffi::c_char;
use core::time::Duration;
use std::ffi::CString;
use std::time::UNIX_EPOCH;

use crate::c::boundary::guard;
use crate::c::{make, wireguard_tunnel};
use crate::clock;
use crate::log::{Level, Sink, process_sink};

/// Level of a log line.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum taupe_log_level {
    /// A tunnel does not work.
    TAUPE_LOG_ERROR = 0,
    /// A session begins or ends.
    TAUPE_LOG_INFO = 1,
    /// Each handshake message.
    TAUPE_LOG_DEBUG = 2,
    /// Each dropped packet.
    TAUPE_LOG_TRACE = 3,
}

/// A C function that receives log lines.
type Printer = unsafe extern "C" fn(*const c_char);

fn print(printer: Printer, line: String) {
    if let Ok(line) = CString::new(line) {
        // SAFETY: the caller has passed the function for this purpose. The string lives during the
        // call.
        unsafe { printer(line.as_ptr()) };
    }
}

/// Returns a sink in the form of boringtun 0.6 and 0.7: with a timestamp and a line end.
pub(in crate::c) fn stamped(printer: Printer) -> Sink {
    Sink::new(Level::Trace, move |_, line| {
        print(printer, stamp(clock::now().wall, line));
    })
}

/// The last second of the year 9999 in Unix time. `humantime` panics for later times and for
/// times before 1970.
const LAST_SECOND: Duration = Duration::from_secs(253_402_300_799);

/// Returns a line with its time. `wall` is the time since the Unix epoch, or 0 if the clock is set
/// before it.
fn stamp(wall: Duration, line: &str) -> String {
    let time = UNIX_EPOCH + wall.min(LAST_SECOND);
    format!("{} {line}\n", humantime::format_rfc3339_micros(time))
}

/// Returns a sink in the form of boringtun 0.3: with the level and without a line end.
fn labelled(printer: Printer, level: Level) -> Sink {
    Sink::new(level, move |level, line| {
        print(printer, format!("[{level:?}] {line}"));
    })
}

/// Creates a tunnel as new_tunnel does, with a log function of its own for lines up to
/// `log_level`, a taupe_log_level. If `log_printer` is NULL, the lines go to the function of
/// set_logging_function.
///
/// Each line begins with its level, for example `[Info] `, and has no "\n", as in boringtun in
/// 2021. The rules of set_logging_function apply to `log_printer` too.
///
/// # Safety
/// Each string is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_new_tunnel_with_log(
    static_private: *const c_char,
    server_static_public: *const c_char,
    preshared_key: *const c_char,
    keep_alive: u16,
    index: u32,
    log_printer: Option<unsafe extern "C" fn(*const c_char)>,
    log_level: u32,
) -> *mut wireguard_tunnel {
    let level = Level::of(log_level).unwrap_or(Level::Trace);
    let sink = log_printer.map(|printer| labelled(printer, level));
    let keys = [static_private, server_static_public, preshared_key];
    // SAFETY: the caller guarantees the strings.
    unsafe { make(keys, keep_alive, index, sink) }
}

/// Selects the lines that go to the function of set_logging_function: those up to `level`, a
/// taupe_log_level. Default: all. Returns false if there is no such level or no function yet.
#[unsafe(no_mangle)]
pub extern "C" fn taupe_set_log_level(level: u32) -> bool {
    guard(false, || match (Level::of(level), process_sink()) {
        (Some(level), Some(sink)) => {
            sink.set_level(level);
            true
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_have_a_time_for_any_clock() {
        let stamped = |wall| stamp(wall, "text");
        let now = Duration::new(1_700_000_000, 1_000);
        assert_eq!(stamped(now), "2023-11-14T22:13:20.000001Z text\n");
        assert_eq!(
            stamped(Duration::ZERO),
            "1970-01-01T00:00:00.000000Z text\n"
        );
        assert_eq!(stamped(LAST_SECOND), "9999-12-31T23:59:59.000000Z text\n");
        assert_eq!(stamped(Duration::MAX), stamped(LAST_SECOND));
    }
}
