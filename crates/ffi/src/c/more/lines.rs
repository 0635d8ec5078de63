//! Which lines are written, and where to.

use core::ffi::c_char;
use std::ffi::CString;

use crate::c::boundary::guard;
use crate::c::{make, wireguard_tunnel};
use crate::log::{Level, Sink, process_sink};

/// How much a line matters.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum taupe_log_level {
    /// A tunnel does not work.
    TAUPE_LOG_ERROR = 0,
    /// Sessions that come and go.
    TAUPE_LOG_INFO = 1,
    /// Each handshake message.
    TAUPE_LOG_DEBUG = 2,
    /// Each packet that is dropped.
    TAUPE_LOG_TRACE = 3,
}

/// What writes a line to a function of C's.
pub(in crate::c) fn line_writer(
    log_func: unsafe extern "C" fn(*const c_char),
) -> impl Fn(&str) + Send + Sync {
    move |line| {
        if let Ok(line) = CString::new(line) {
            // SAFETY: it has been given for this, with a string that lives through the call.
            unsafe { log_func(line.as_ptr()) };
        }
    }
}

/// As new_tunnel, but its lines go to a function of its own, up to `log_level`, a
/// taupe_log_level; NULL for none. See set_logging_function.
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
    let sink = log_printer.map(|printer| Sink::new(level, line_writer(printer)));
    let keys = [static_private, server_static_public, preshared_key];
    // SAFETY: the caller vouches for the strings.
    unsafe { make(keys, keep_alive, index, sink) }
}

/// Chooses the lines of set_logging_function, up to `level`, a taupe_log_level: at first
/// all. false if there is no such level, or no function yet.
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
