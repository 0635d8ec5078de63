//! Named pipes, on which tunnels are configured as on a socket elsewhere
//! (<https://www.wireguard.com/xplatform/>).
//!
//! Every wait has an end: a client or a server that says nothing is let go.

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

/// Where this machine's pipes are.
const PIPES: &str = r"\\.\pipe\";

/// Where tunnels' are. Only administrators can make pipes here, so that nobody else's is taken
/// for a tunnel's.
const TUNNELS: &str = r"ProtectedPrefix\Administrators\WireGuard\";

/// What belongs to the system, and what it and administrators may use and nobody else, as
/// wireguard-windows has it; the last part keeps processes out that are less trusted than
/// those of an elevated administrator.
const OF_THE_SYSTEM: &str = "O:SYD:P(A;;GA;;;SY)(A;;GA;;;BA)S:(ML;;NWNRNX;;;HI)";

/// The same of whose it is not that it is the system's.
const OF_ADMINISTRATORS: &str = "D:P(A;;GA;;;SY)(A;;GA;;;BA)S:(ML;;NWNRNX;;;HI)";

/// Room in the system for what has been written and not read, in bytes, each way.
const BUFFER: u32 = 64 << 10;

/// The path of a tunnel's pipe.
#[must_use]
pub fn of_tunnel(name: &str) -> OsString {
    format!("{PIPES}{TUNNELS}{name}").into()
}

/// The tunnels that have a pipe.
///
/// # Errors
///
/// When the pipes cannot be listed.
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

/// A pipe that administrators may connect to.
pub struct Listener {
    path: Vec<u16>,
    descriptor: &'static str,
    /// What the next client connects to, so that there is always something.
    next: OwnedHandle,
    stop: Arc<Event>,
}

/// Ends a [`Listener`]'s wait for clients.
#[derive(Clone)]
pub struct Stopper(Arc<Event>);

impl Stopper {
    /// Has [`Listener::accept`] return `None` from now on.
    pub fn stop(&self) {
        self.0.set();
    }
}

impl Listener {
    /// Makes a pipe of a name that nobody has. It belongs to the system, as `wg.exe` wants it,
    /// or where this process may not have that, to who runs it.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::AddrInUse`] if somebody has the name,
    /// [`io::ErrorKind::PermissionDenied`] for who is no elevated administrator.
    pub fn bind(path: &OsStr) -> io::Result<Self> {
        let path = wide(path)?;
        // The flag below says so too, and of who comes at the same moment; Wine takes no notice
        // of it.
        if exists(&path) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let stop = Arc::new(Event::new()?);
        // Who may not have it is told by the system.
        let _ = privilege::enable_restore();
        let mut descriptor = OF_THE_SYSTEM;
        let mut made = create(&path, descriptor, true);
        if matches!(&made, Err(error) if may_not_give_away(error)) {
            descriptor = OF_ADMINISTRATORS;
            made = create(&path, descriptor, true);
        }
        let next = made.map_err(|error| match is(&error, ERROR_ACCESS_DENIED) {
            // The system says the same of a name that is taken and of one that may not be had.
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

    /// What ends [`Listener::accept`].
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.stop))
    }

    /// Waits for a client, whose every silence is to last `patience` at most; `None` once it
    /// has been stopped.
    ///
    /// # Errors
    ///
    /// What the system says. It can be called again.
    pub fn accept(&mut self, patience: Duration) -> io::Result<Option<Stream>> {
        let event = Event::new()?;
        let connected = overlap(&self.next, &event, Some(&self.stop), None, |pipe, begun| {
            // SAFETY: the pipe is this listener's and in overlapped mode; `overlap` keeps what
            // `begun` points to until it has ended.
            unsafe { ConnectNamedPipe(pipe, begun) }
        });
        match connected {
            Ok(Ended::Done(_)) => {}
            Ok(Ended::Stopped | Ended::TimedOut) => return Ok(None),
            // Who connected before it was waited for; also who has gone again since, whose
            // stream ends at once.
            Err(error) if is(&error, ERROR_PIPE_CONNECTED) || is(&error, ERROR_NO_DATA) => {}
            Err(error) => return Err(error),
        }
        let next = create(&self.path, self.descriptor, false)?;
        let pipe = std::mem::replace(&mut self.next, next);
        Ok(Some(Stream {
            pipe,
            event,
            patience,
        }))
    }
}

/// One end of a connection.
pub struct Stream {
    pipe: OwnedHandle,
    event: Event,
    patience: Duration,
}

impl Stream {
    /// Connects to a pipe, for whose every silence `patience` is the longest; `None` if there
    /// is none of this name. The server learns who asks, and cannot act in their name.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::PermissionDenied`] for who may not; [`io::ErrorKind::TimedOut`] if it
    /// has had no time for this client.
    pub fn connect(path: &OsStr, patience: Duration) -> io::Result<Option<Self>> {
        let until = Instant::now() + patience;
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
                        patience,
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
            // SAFETY: text that ends with a zero. Whatever comes of it, the next try tells.
            unsafe { WaitNamedPipeW(name.as_ptr(), milliseconds(left)) };
        }
    }

    /// Sets how long any silence may last from now on.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Whether the server's end was made by the system or an administrator, and not by a
    /// program that only has the name.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn is_administrators(&self) -> io::Result<bool> {
        let (mut owner, mut descriptor): (PSID, PSECURITY_DESCRIPTOR) =
            (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the handle is open; of the places only those for the owner and for what has
        // to be freed are given.
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
        // SAFETY: the system has made it just now, to be freed in this way, and it is nobody else's.
        let descriptor = unsafe { Descriptor::from_raw(descriptor) };
        let is_one = [WinLocalSystemSid, WinBuiltinAdministratorsSid]
            .into_iter()
            // SAFETY: the owner is a part of the descriptor, which is there until the end.
            .any(|kind| !owner.is_null() && unsafe { IsWellKnownSid(owner, kind) } != 0);
        drop(descriptor);
        Ok(is_one)
    }

    fn transfer(&self, begin: impl FnOnce(HANDLE, *mut OVERLAPPED) -> BOOL) -> io::Result<usize> {
        match overlap(&self.pipe, &self.event, None, Some(self.patience), begin)? {
            Ended::Done(bytes) => Ok(bytes as usize),
            Ended::TimedOut | Ended::Stopped => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        let read = self.transfer(|pipe, begun| {
            // SAFETY: `buffer` has room for `length` bytes; `transfer` returns when the system
            // has let go of it and of what `begun` points to.
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
            // SAFETY: there are `length` bytes; `transfer` returns when the system has let go
            // of them and of what `begun` points to.
            unsafe { WriteFile(pipe, bytes.as_ptr(), length, ptr::null_mut(), begun) }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How an operation has ended.
enum Ended {
    /// With so many bytes.
    Done(u32),
    TimedOut,
    Stopped,
}

/// Carries out an operation in overlapped mode. When it returns, the system uses nothing of it
/// any more: one that has not ended in time is cancelled, and that is waited for.
fn overlap(
    pipe: &OwnedHandle,
    event: &Event,
    stop: Option<&Event>,
    patience: Option<Duration>,
    begin: impl FnOnce(HANDLE, *mut OVERLAPPED) -> BOOL,
) -> io::Result<Ended> {
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
        let limit = patience.map_or(INFINITE, milliseconds);
        // SAFETY: `count` of the handles are there, of events that outlive the call.
        waited = unsafe { WaitForMultipleObjects(count, events.as_ptr(), 0, limit) };
        if waited != WAIT_OBJECT_0 {
            // SAFETY: an operation of this handle that was begun above. Whether it can still be
            // cancelled is seen below.
            unsafe { CancelIoEx(handle, begun) };
        }
    }
    let mut bytes = 0;
    // SAFETY: the operation was begun on this handle, and is waited for until it has ended.
    let ended = unsafe { GetOverlappedResult(handle, begun, &raw mut bytes, 1) };
    if ended != 0 {
        return Ok(Ended::Done(bytes));
    }
    match waited {
        WAIT_OBJECT_0 => Err(io::Error::last_os_error()),
        WAIT_TIMEOUT => Ok(Ended::TimedOut),
        _ => Ok(Ended::Stopped),
    }
}

/// Makes an end for a client to connect to.
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
    // SAFETY: the path ends with a zero, the attributes and their descriptor outlive the call,
    // and the rest are plain values.
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
    // SAFETY: the handle was made just now and is nobody else's.
    Ok(unsafe { OwnedHandle::from_raw_handle(pipe) })
}

/// Whether there is a pipe of this name, which takes no right to know.
fn exists(path: &[u16]) -> bool {
    // SAFETY: text that ends with a zero.
    let is_free = unsafe { WaitNamedPipeW(path.as_ptr(), 1) };
    is_free != 0 || !is(&io::Error::last_os_error(), ERROR_FILE_NOT_FOUND)
}

/// Whether it is that this process may make nothing for the system: what is said of an owner depends
/// on whether the privilege is lacking or of no use.
fn may_not_give_away(error: &io::Error) -> bool {
    is(error, ERROR_INVALID_OWNER) || is(error, ERROR_PRIVILEGE_NOT_HELD)
}

fn is(error: &io::Error, code: u32) -> bool {
    error.raw_os_error() == Some(code.cast_signed())
}

fn milliseconds(time: Duration) -> u32 {
    // All ones would be "for ever".
    u32::try_from(time.as_millis()).map_or(INFINITE - 1, |time| time.clamp(1, INFINITE - 1))
}

#[cfg(test)]
mod tests {
    use super::may_not_give_away;
    use std::io;

    #[test]
    fn who_lacks_the_privilege_makes_a_pipe_of_its_own() {
        // ERROR_INVALID_OWNER, ERROR_PRIVILEGE_NOT_HELD.
        for code in [1307, 1314] {
            assert!(may_not_give_away(&io::Error::from_raw_os_error(code)));
        }
        // ERROR_ACCESS_DENIED is of who may have no such pipe at all, or of one that is there.
        assert!(!may_not_give_away(&io::Error::from_raw_os_error(5)));
    }
}
