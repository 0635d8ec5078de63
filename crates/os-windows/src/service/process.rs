//! Running this process as a service.

use super::super::wide::wide;
use super::ServiceError;
use std::ffi::c_void;
use std::io;
use std::ptr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;
use windows_sys::Win32::Foundation::{
    ERROR_CALL_NOT_IMPLEMENTED, ERROR_FAILED_SERVICE_CONTROLLER_CONNECT,
    ERROR_SERVICE_SPECIFIC_ERROR, NO_ERROR,
};
use windows_sys::Win32::System::Services::{
    RegisterServiceCtrlHandlerExW, SERVICE_ACCEPT_POWEREVENT, SERVICE_ACCEPT_SHUTDOWN,
    SERVICE_ACCEPT_STOP, SERVICE_CONTROL_INTERROGATE, SERVICE_CONTROL_POWEREVENT,
    SERVICE_CONTROL_SHUTDOWN, SERVICE_CONTROL_STOP, SERVICE_RUNNING, SERVICE_START_PENDING,
    SERVICE_STATUS, SERVICE_STATUS_HANDLE, SERVICE_STOP_PENDING, SERVICE_STOPPED,
    SERVICE_TABLE_ENTRYW, SERVICE_WIN32_OWN_PROCESS, SetServiceStatus, StartServiceCtrlDispatcherW,
};
use windows_sys::Win32::UI::WindowsAndMessaging::PBT_APMRESUMEAUTOMATIC;

/// Maximum milliseconds between two status reports, as announced to the service manager.
const HINT: u32 = 30_000;

/// Interval of the status reports while the service starts or stops.
const WORD: Duration = Duration::from_secs(10);

/// Requests of the service manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// Stop the service: it is being stopped, or the machine shuts down.
    End,
    /// The machine resumed from sleep.
    Awoke,
}

/// The service's work. It gets a function that reports the service as running, and the manager's
/// requests, and returns its exit code: 0, or an error that the service manager shows and that
/// triggers a restart.
type Body = Box<dyn FnOnce(&dyn Fn(), Receiver<Control>) -> u32 + Send>;

/// A process runs one service. A global variable is needed because the system's callbacks get no
/// context.
static SERVICE: Mutex<Option<(Vec<u16>, Body)>> = Mutex::new(None);

/// State shared by the service manager's callbacks and the service. It is never freed, because the
/// system may call back until the process ends.
static LINK: OnceLock<Mutex<Link>> = OnceLock::new();

struct Link {
    status: Status,
    controls: Sender<Control>,
}

/// Runs the service `name` in this process, which the service manager has started. `body` runs on a
/// thread of the system's, and calls its first argument once the service is running. When `body`
/// returns, the service has ended.
///
/// # Errors
///
/// [`ServiceError::NotAService`] if the service manager did not start the process. Later errors are in the
/// service's exit code.
pub fn run(
    name: &str,
    body: impl FnOnce(&dyn Fn(), Receiver<Control>) -> u32 + Send + 'static,
) -> Result<(), ServiceError> {
    let system = |source| ServiceError::System {
        what: "be a service",
        source,
    };
    let mut wide_name = wide(name).map_err(system)?;
    let table = [
        SERVICE_TABLE_ENTRYW {
            lpServiceName: wide_name.as_mut_ptr(),
            lpServiceProc: Some(main),
        },
        SERVICE_TABLE_ENTRYW {
            lpServiceName: ptr::null_mut(),
            lpServiceProc: None,
        },
    ];
    let service = (wide_name.clone(), Box::new(body) as Body);
    *locked(&SERVICE) = Some(service);
    // SAFETY: the table ends with an entry of nulls. The table and the name in it outlive the call,
    // which lasts as long as the service.
    if unsafe { StartServiceCtrlDispatcherW(table.as_ptr()) } != 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error().map(i32::cast_unsigned) {
        Some(ERROR_FAILED_SERVICE_CONTROLLER_CONNECT) => Err(ServiceError::NotAService),
        _ => Err(system(error)),
    }
}

/// The system calls this once, on a separate thread.
extern "system" fn main(_count: u32, _arguments: *mut *mut u16) {
    let service = locked(&SERVICE).take();
    let Some((name, body)) = service else {
        return;
    };
    // SAFETY: the name ends with a zero, and the handler is a function of the required signature;
    // it needs no context.
    let handle =
        unsafe { RegisterServiceCtrlHandlerExW(name.as_ptr(), Some(control), ptr::null()) };
    if handle.is_null() {
        // The service manager notices that the service does not respond.
        return;
    }
    let (sender, controls) = channel();
    let status = Status {
        handle,
        phase: Phase::Starting,
        checkpoint: 0,
    };
    status.tell(NO_ERROR, 0);
    let link = LINK.get_or_init(|| {
        Mutex::new(Link {
            status,
            controls: sender,
        })
    });
    // Without these reports, the service manager considers the service dead after the announced
    // time.
    let _ = thread::Builder::new()
        .name("service".into())
        .spawn(move || {
            loop {
                thread::sleep(WORD);
                locked(link).status.advance();
            }
        });
    let enter = |phase, error, code| locked(link).status.enter(phase, error, code);
    let running = || enter(Phase::Running, NO_ERROR, 0);
    match body(&running, controls) {
        0 => enter(Phase::Stopped, NO_ERROR, 0),
        code => enter(Phase::Stopped, ERROR_SERVICE_SPECIFIC_ERROR, code),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The system calls this on the thread that called [`run`], from the registration to the end of the
/// process. It may call even after the service has stopped, so the handler uses only data that is
/// never freed.
extern "system" fn control(
    control: u32,
    kind: u32,
    _data: *mut c_void,
    _context: *mut c_void,
) -> u32 {
    let request = match (control, kind) {
        (SERVICE_CONTROL_STOP | SERVICE_CONTROL_SHUTDOWN, _) => Some(Control::End),
        (SERVICE_CONTROL_POWEREVENT, PBT_APMRESUMEAUTOMATIC) => Some(Control::Awoke),
        (SERVICE_CONTROL_POWEREVENT | SERVICE_CONTROL_INTERROGATE, _) => None,
        _ => return ERROR_CALL_NOT_IMPLEMENTED,
    };
    if let (Some(request), Some(link)) = (request, LINK.get()) {
        let mut link = locked(link);
        if request == Control::End {
            link.status.enter(Phase::Stopping, NO_ERROR, 0);
        }
        // The receiver is gone if the service has ended.
        let _ = link.controls.send(request);
    }
    NO_ERROR
}

/// The phase of a service. It never goes back, no matter which thread reports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Starting,
    Running,
    Stopping,
    Stopped,
}

/// Reports the service's status to the service manager, until the service has stopped.
struct Status {
    handle: SERVICE_STATUS_HANDLE,
    phase: Phase,
    /// Progress counter, which grows while the service starts or stops.
    checkpoint: u32,
}

// SAFETY: the handle is a number that stands for the service and is valid in any thread of the
// process (documentation of `SetServiceStatus`: "can be called by any thread").
unsafe impl Send for Status {}

impl Status {
    /// Enters a phase, unless the service is in that phase or a later one. For example, a service
    /// that was stopped while it started does not become running.
    fn enter(&mut self, phase: Phase, error: u32, code: u32) {
        if phase > self.phase {
            self.phase = phase;
            self.checkpoint = 0;
            self.tell(error, code);
        }
    }

    /// Reports progress if the service is starting or stopping.
    fn advance(&mut self) {
        if matches!(self.phase, Phase::Starting | Phase::Stopping) {
            self.checkpoint = self.checkpoint.saturating_add(1);
            self.tell(NO_ERROR, 0);
        }
    }

    fn tell(&self, error: u32, code: u32) {
        let state = match self.phase {
            Phase::Starting => SERVICE_START_PENDING,
            Phase::Running => SERVICE_RUNNING,
            Phase::Stopping => SERVICE_STOP_PENDING,
            Phase::Stopped => SERVICE_STOPPED,
        };
        let accepted = match self.phase {
            Phase::Starting => SERVICE_ACCEPT_STOP | SERVICE_ACCEPT_SHUTDOWN,
            Phase::Running => {
                SERVICE_ACCEPT_STOP | SERVICE_ACCEPT_SHUTDOWN | SERVICE_ACCEPT_POWEREVENT
            }
            Phase::Stopping | Phase::Stopped => 0,
        };
        let is_settled = matches!(self.phase, Phase::Running | Phase::Stopped);
        let status = SERVICE_STATUS {
            dwServiceType: SERVICE_WIN32_OWN_PROCESS,
            dwCurrentState: state,
            dwControlsAccepted: accepted,
            dwWin32ExitCode: error,
            dwServiceSpecificExitCode: code,
            dwCheckPoint: if is_settled { 0 } else { self.checkpoint },
            dwWaitHint: if is_settled { 0 } else { HINT },
        };
        // SAFETY: the handle comes from `RegisterServiceCtrlHandlerExW` and needs no closing; the
        // status is read before the call returns. An error is ignored because there is no remedy.
        unsafe { SetServiceStatus(self.handle, &raw const status) };
    }
}

#[cfg(test)]
mod tests {
    use super::{NO_ERROR, Phase, Status};
    use std::ptr;

    #[test]
    fn a_service_that_is_stopped_while_it_starts_does_not_run() {
        let mut status = Status {
            // A null handle: nothing is reported.
            handle: ptr::null_mut(),
            phase: Phase::Starting,
            checkpoint: 0,
        };
        status.advance();
        status.advance();
        assert_eq!(status.checkpoint, 2, "it is seen to start");
        status.enter(Phase::Stopping, NO_ERROR, 0);
        assert_eq!(status.checkpoint, 0);
        status.enter(Phase::Running, NO_ERROR, 0);
        assert_eq!(status.phase, Phase::Stopping);
        status.enter(Phase::Stopped, NO_ERROR, 0);
        status.enter(Phase::Stopping, NO_ERROR, 0);
        assert_eq!(status.phase, Phase::Stopped);
        status.advance();
        assert_eq!(status.checkpoint, 0, "nothing more is said");
    }
}
