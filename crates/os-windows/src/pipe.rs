//! Named pipes, which configure tunnels on Windows as sockets do elsewhere
//! (<https://www.wireguard.com/xplatform/>).
//!
//! Every wait has a time limit, so that a silent client or server cannot block the other end.

use super::descriptor::Descriptor;
use super::event::Event;
use super::privilege;
use super::wide::wide;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::windows::fs::OpenOptionsExt as _;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_BROKEN_PIPE, ERROR_FILE_NOT_FOUND, ERROR_INVALID_OWNER,
    ERROR_IO_PENDING, ERROR_NO_DATA, ERROR_PIPE_BUSY, ERROR_PIPE_CONNECTED,
    ERROR_PRIVILEGE_NOT_HELD, HANDLE, INVALID_HANDLE_VALUE, WAIT_OBJECT_0, WAIT_TIMEOUT,
};
use windows_sys::Win32::Security::Authorization::{GetSecurityInfo, SE_KERNEL_OBJECT};
use windows_sys::Win32::Security::{
    IsWellKnownSid, OWNER_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, PSID, SECURITY_ATTRIBUTES,
    WinBuiltinAdministratorsSid, WinLocalSystemSid,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_FIRST_PIPE_INSTANCE, FILE_FLAG_OVERLAPPED, PIPE_ACCESS_DUPLEX, ReadFile,
    SECURITY_IDENTIFICATION, WriteFile,
};
use windows_sys::Win32::System::IO::{CancelIoEx, GetOverlappedResult, OVERLAPPED};
use windows_sys::Win32::System::Pipes::{
    ConnectNamedPipe, CreateNamedPipeW, PIPE_READMODE_BYTE, PIPE_REJECT_REMOTE_CLIENTS,
    PIPE_TYPE_BYTE, PIPE_UNLIMITED_INSTANCES, PIPE_WAIT, WaitNamedPipeW,
};
use windows_sys::Win32::System::Threading::{INFINITE, WaitForMultipleObjects};
use windows_sys::core::BOOL;

/// The namespace of this machine's pipes.
const PIPES: &str = r"\\.\pipe\";

/// The prefix of tunnels' pipes. Only administrators can create pipes with it, so nobody else can
/// impersonate a tunnel.
const TUNNELS: &str = r"ProtectedPrefix\Administrators\WireGuard\";

/// SDDL, as in wireguard-windows: the system is the owner, and only the system and administrators
/// have access. The mandatory label excludes processes with a lower integrity level than those of
/// an elevated administrator.
const OF_THE_SYSTEM: &str = "O:SYD:P(A;;GA;;;SY)(A;;GA;;;BA)S:(ML;;NWNRNX;;;HI)";

/// The same without an owner.
const OF_ADMINISTRATORS: &str = "D:P(A;;GA;;;SY)(A;;GA;;;BA)S:(ML;;NWNRNX;;;HI)";

/// Bytes that the system buffers in each direction.
const BUFFER: u32 = 64 << 10;

/// Returns the path of a tunnel's pipe.
#[must_use]
pub fn path_of_tunnel(name: &str) -> OsString {
    format!("{PIPES}{TUNNELS}{name}").into()
}

/// Returns the tunnels that have a pipe.
///
/// # Errors
///
/// If the pipes cannot be listed.
pub fn tunnels() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(PIPES)? {
        let entry = entry?.file_name();
        if let Some(name) = entry.to_str().and_then(|path| path.strip_prefix(TUNNELS)) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// A pipe to which administrators may connect.
pub struct Listener {
    path: Vec<u16>,
    descriptor: &'static str,
    /// The instance to which the next client connects. There is always one.
    next: OwnedHandle,
    stop: Arc<Event>,
}

/// Ends a [`Listener`]'s wait for clients.
#[derive(Clone)]
pub struct Stopper(Arc<Event>);

impl Stopper {
    /// Makes [`Listener::accept`] return `None` from now on.
    pub fn stop(&self) {
        self.0.set();
    }
}

impl Listener {
    /// Creates a pipe with a name that is not in use. The system becomes its owner, as `wg.exe`
    /// requires. If this process may not set that owner, the user who runs it is the owner.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AddrInUse`] if the name is in use, [`io::ErrorKind::PermissionDenied`] if
    /// the caller is not an elevated administrator.
    pub fn bind(path: &OsStr) -> io::Result<Self> {
        let path = wide(path)?;
        // The flag FILE_FLAG_FIRST_PIPE_INSTANCE makes the same check without a race, but Wine
        // ignores it.
        if exists(&path) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let stop = Arc::new(Event::new()?);
        // Without the privilege, the creation below fails and is repeated.
        let _ = privilege::enable_restore();
        let mut descriptor = OF_THE_SYSTEM;
        let mut made = create(&path, descriptor, true);
        if matches!(&made, Err(error) if cannot_set_owner(error)) {
            descriptor = OF_ADMINISTRATORS;
            made = create(&path, descriptor, true);
        }
        let next = made.map_err(|error| match is(&error, ERROR_ACCESS_DENIED) {
            // The system reports the same error for a name in use and for a missing permission.
            true if exists(&path) => io::ErrorKind::AddrInUse.into(),
            _ => error,
        })?;
        Ok(Self {
            path,
            descriptor,
            next,
            stop,
        })
    }

    /// Returns a handle that ends [`Listener::accept`].
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Waits for a client. Each later read or write of its stream waits for at most `timeout`.
    /// Returns `None` after the listener was stopped.
    ///
    /// # Errors
    ///
    /// The system's. The function can be called again.
    pub fn accept(&mut self, timeout: Duration) -> io::Result<Option<Stream>> {
        let event = Event::new()?;
        let connected =
            perform_overlapped(&self.next, &event, Some(&self.stop), None, |pipe, begun| {
                // SAFETY: the pipe belongs to this listener and is in overlapped mode; `overlap` keeps
                // the structure that `begun` points to alive until the operation has ended.
                unsafe { ConnectNamedPipe(pipe, begun) }
            });
        match connected {
            Ok(Outcome::Done(_)) => {}
            Ok(Outcome::Stopped | Outcome::TimedOut) => return Ok(None),
            // A client connected before the wait. If it has disconnected since, its stream ends at
            // once.
            Err(error) if is(&error, ERROR_PIPE_CONNECTED) || is(&error, ERROR_NO_DATA) => {}
            Err(error) => return Err(error),
        }
        let next = create(&self.path, self.descriptor, false)?;
        let pipe = std::mem::replace(&mut self.next, next);
        Ok(Some(Stream {
            pipe,
            event,
            timeout,
        }))
    }
}

/// One end of a connection.
pub struct Stream {
    pipe: OwnedHandle,
    event: Event,
    timeout: Duration,
}

impl Stream {
    /// Connects to a pipe. Each read or write waits for at most `timeout`. Returns `None` if there
    /// is no pipe of this name. The server can identify the client, but cannot impersonate it.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::PermissionDenied`] if access is denied; [`io::ErrorKind::TimedOut`] if the
    /// server did not accept this client in time.
    pub fn connect(path: &OsStr, timeout: Duration) -> io::Result<Option<Self>> {
        let until = Instant::now() + timeout;
        let name = wide(path)?;
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .custom_flags(FILE_FLAG_OVERLAPPED)
            .security_qos_flags(SECURITY_IDENTIFICATION);
        loop {
            let error = match options.open(path) {
                Ok(pipe) => {
                    return Ok(Some(Self {
                        pipe: pipe.into(),
                        event: Event::new()?,
                        timeout,
                    }));
                }
                Err(error) => error,
            };
            if error.kind() == io::ErrorKind::NotFound {
                return Ok(None);
            }
            let left = until.saturating_duration_since(Instant::now());
            if !is(&error, ERROR_PIPE_BUSY) {
                return Err(error);
            }
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // SAFETY: the name ends with a zero. The result is ignored because the next attempt
            // shows it.
            unsafe { WaitNamedPipeW(name.as_ptr(), milliseconds(left)) };
        }
    }

    /// Sets how long each read or write may wait from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Returns true if the system or administrators own the server's end. Otherwise another program
    /// may have created a pipe of this name.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn is_owned_by_administrators(&self) -> io::Result<bool> {
        let (mut owner, mut descriptor): (PSID, PSECURITY_DESCRIPTOR) =
            (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the handle is open. Of the output pointers, only those for the owner and for the
        // descriptor are not null.
        let error = unsafe {
            GetSecurityInfo(
                self.pipe.as_raw_handle(),
                SE_KERNEL_OBJECT,
                OWNER_SECURITY_INFORMATION,
                &raw mut owner,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
                &raw mut descriptor,
            )
        };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error.cast_signed()));
        }
        // SAFETY: the system allocated the descriptor in the call above, to be freed with
        // `LocalFree`, and nothing else owns it.
        let descriptor = unsafe { Descriptor::from_raw(descriptor) };
        let is_one = [WinLocalSystemSid, WinBuiltinAdministratorsSid]
            .into_iter()
            // SAFETY: the owner is a part of the descriptor, which is dropped only below.
            .any(|kind| !owner.is_null() && unsafe { IsWellKnownSid(owner, kind) } != 0);
        drop(descriptor);
        Ok(is_one)
    }

    fn transfer(&self, begin: impl FnOnce(HANDLE, *mut OVERLAPPED) -> BOOL) -> io::Result<usize> {
        match perform_overlapped(&self.pipe, &self.event, None, Some(self.timeout), begin)? {
            Outcome::Done(bytes) => Ok(bytes as usize),
            Outcome::TimedOut | Outcome::Stopped => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        let read = self.transfer(|pipe, begun| {
            // SAFETY: `buffer` has `length` bytes; `transfer` returns only after the system has
            // released the buffer and the structure that `begun` points to.
            unsafe { ReadFile(pipe, buffer.as_mut_ptr(), length, ptr::null_mut(), begun) }
        });
        match read {
            Err(error) if is(&error, ERROR_BROKEN_PIPE) => Ok(0),
            read => read,
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.transfer(|pipe, begun| {
            // SAFETY: there are `length` bytes; `transfer` returns only after the system has
            // released them and the structure that `begun` points to.
            unsafe { WriteFile(pipe, bytes.as_ptr(), length, ptr::null_mut(), begun) }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Result of an overlapped operation.
enum Outcome {
    /// Completed; with the number of bytes.
    Done(u32),
    TimedOut,
    Stopped,
}

/// Performs an operation in overlapped mode. When it returns, the system no longer uses any of the
/// operation's memory: an operation that has not ended in time is cancelled, and the cancellation
/// is awaited.
fn perform_overlapped(
    pipe: &OwnedHandle,
    event: &Event,
    stop: Option<&Event>,
    timeout: Option<Duration>,
    begin: impl FnOnce(HANDLE, *mut OVERLAPPED) -> BOOL,
) -> io::Result<Outcome> {
    let handle = pipe.as_raw_handle();
    let mut begun = OVERLAPPED {
        hEvent: event.raw(),
        ..OVERLAPPED::default()
    };
    let begun: *mut OVERLAPPED = &raw mut begun;
    let mut waited = WAIT_OBJECT_0;
    if begin(handle, begun) == 0 {
        let error = io::Error::last_os_error();
        if !is(&error, ERROR_IO_PENDING) {
            return Err(error);
        }
        let events = [event.raw(), stop.unwrap_or(event).raw()];
        let count = if stop.is_some() { 2 } else { 1 };
        let limit = timeout.map_or(INFINITE, milliseconds);
        // SAFETY: the array has `count` handles, of events that outlive the call.
        waited = unsafe { WaitForMultipleObjects(count, events.as_ptr(), 0, limit) };
        if waited != WAIT_OBJECT_0 {
            // SAFETY: the operation was started on this handle above. It may have ended already,
            // which the next call shows.
            unsafe { CancelIoEx(handle, begun) };
        }
    }
    let mut bytes = 0;
    // SAFETY: the operation was started on this handle, and the call waits until it has ended.
    let ended = unsafe { GetOverlappedResult(handle, begun, &raw mut bytes, 1) };
    if ended != 0 {
        return Ok(Outcome::Done(bytes));
    }
    match waited {
        WAIT_OBJECT_0 => Err(io::Error::last_os_error()),
        WAIT_TIMEOUT => Ok(Outcome::TimedOut),
        _ => Ok(Outcome::Stopped),
    }
}

/// Creates an instance to which a client can connect.
fn create(path: &[u16], descriptor: &str, is_first: bool) -> io::Result<OwnedHandle> {
    let descriptor = Descriptor::parse(descriptor)?;
    let attributes = SECURITY_ATTRIBUTES {
        nLength: size_of::<SECURITY_ATTRIBUTES>() as u32,
        lpSecurityDescriptor: descriptor.raw(),
        bInheritHandle: 0,
    };
    let first = if is_first {
        FILE_FLAG_FIRST_PIPE_INSTANCE
    } else {
        0
    };
    // SAFETY: the path ends with a zero, the attributes and their descriptor outlive the call, and
    // the other arguments are plain values.
    let pipe = unsafe {
        CreateNamedPipeW(
            path.as_ptr(),
            PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED | first,
            PIPE_TYPE_BYTE | PIPE_READMODE_BYTE | PIPE_WAIT | PIPE_REJECT_REMOTE_CLIENTS,
            PIPE_UNLIMITED_INSTANCES,
            BUFFER,
            BUFFER,
            0,
            &raw const attributes,
        )
    };
    if pipe == INVALID_HANDLE_VALUE {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above created the handle, and nothing else owns it.
    Ok(unsafe { OwnedHandle::from_raw_handle(pipe) })
}

/// Returns true if there is a pipe of this name. This needs no access to the pipe.
fn exists(path: &[u16]) -> bool {
    // SAFETY: the path ends with a zero.
    let is_free = unsafe { WaitNamedPipeW(path.as_ptr(), 1) };
    is_free != 0 || !is(&io::Error::last_os_error(), ERROR_FILE_NOT_FOUND)
}

/// Returns true if the error means that this process may not make the system the owner. The code
/// depends on whether the privilege is missing or insufficient.
fn cannot_set_owner(error: &io::Error) -> bool {
    is(error, ERROR_INVALID_OWNER) || is(error, ERROR_PRIVILEGE_NOT_HELD)
}

fn is(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code.cast_signed())
}

fn milliseconds(time: Duration) -> u32 {
    // `INFINITE` is all ones.
    u32::try_from(time.as_millis()).map_or(INFINITE - 1, |time| time.clamp(1, INFINITE - 1))
}

#[cfg(test)]
mod tests {
    use super::cannot_set_owner;
    use std::io;

    #[test]
    fn who_lacks_the_privilege_makes_a_pipe_of_its_own() {
        // ERROR_INVALID_OWNER, ERROR_PRIVILEGE_NOT_HELD.
        for code in [1307, 1314] {
            assert!(cannot_set_owner(&io::Error::from_raw_os_error(code)));
        }
        // ERROR_ACCESS_DENIED means that the caller may not create such a pipe, or that the name is
        // in use.
        assert!(!cannot_set_owner(&io::Error::from_raw_os_error(5)));
    }
}
