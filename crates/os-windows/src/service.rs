//! Services: installed, started, stopped and removed, and what a process does that is one.

mod process;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};
use windows_service::service::{
    Service, ServiceAccess, ServiceAction, ServiceActionType, ServiceErrorControl, ServiceExitCode,
    ServiceFailureActions, ServiceFailureResetPeriod, ServiceInfo, ServiceStartType, ServiceState,
    ServiceType,
};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};
use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_CALL_NOT_IMPLEMENTED, ERROR_INVALID_LEVEL,
    ERROR_SERVICE_ALREADY_RUNNING, ERROR_SERVICE_DOES_NOT_EXIST, ERROR_SERVICE_EXISTS,
    ERROR_SERVICE_MARKED_FOR_DELETE, ERROR_SERVICE_NOT_ACTIVE, ERROR_SERVICE_REQUEST_TIMEOUT,
};

pub use process::{Control, run};

/// How long a service that starts or stops may say nothing of how far it has come.
const PATIENCE: Duration = Duration::from_secs(30);

/// From one look at a service to the next.
const PAUSE: Duration = Duration::from_millis(50);

/// From the failure of a service to its next start: the first, the second, later ones.
const RESTARTS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
];

/// A service without a failure for so long is again one that has had none.
const FORGIVEN: Duration = Duration::from_hours(1);

/// A service that is to be.
pub struct Definition {
    /// By which it is known.
    pub name: String,
    /// What people are shown.
    pub display_name: String,
    /// What it does, for people.
    pub description: String,
    /// The program, an absolute path.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// How a service is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It has ended, or not begun.
    Stopped,
    /// It begins, or is about to end.
    Changing,
    /// It runs.
    Running,
}

/// Why something of a service was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It takes an administrator.
    #[error(
        "only an elevated administrator may do that; open a terminal with \"Run as administrator\""
    )]
    NoRights,
    /// There is one of this name.
    #[error("the service {0} is installed already; uninstall it first, or leave it")]
    Exists(String),
    /// There is none of this name.
    #[error("there is no service {0}; install it first")]
    Missing(String),
    /// It is still there for who has it open.
    #[error(
        "the service {0} is being removed, and will be gone when nothing has it open any more; \
         close the window of Services, or start the machine anew"
    )]
    Leaving(String),
    /// It runs already.
    #[error("the service {0} runs already")]
    Running(String),
    /// It does not run.
    #[error("the service {0} does not run")]
    NotRunning(String),
    /// It ended instead of running.
    #[error("the service {name} ended at once, with {code}; the event log says why")]
    Ended {
        /// Which.
        name: String,
        /// Its exit code, or the system's error.
        code: u32,
    },
    /// It takes too long.
    #[error(
        "the service {name} has not {what}, and said nothing of it for {} s; `sc.exe query {name}` \
         tells more", PATIENCE.as_secs()
    )]
    Slow {
        /// Which.
        name: String,
        /// What it should have.
        what: &'static str,
    },
    /// This process was not started by the service manager.
    #[error("only the service manager can run this; start the service instead")]
    NotAService,
    /// Anything else.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

/// What an installed service has not got, because this system has no such thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lacking {
    /// It starts with the machine, and not some two minutes later.
    DelayedStart,
    /// It is not started again when it has failed.
    Recovery,
}

/// Installs a service that starts with the machine, when other services have (delayed automatic
/// start), and again when it fails; it is not started now. Whole or not at all: a step that
/// fails takes back those before it.
///
/// # Errors
///
/// See [`Error`].
pub fn install(definition: &Definition) -> Result<Vec<Lacking>, Error> {
    let name = &definition.name;
    let access = ServiceManagerAccess::CONNECT | ServiceManagerAccess::CREATE_SERVICE;
    let info = ServiceInfo {
        name: name.into(),
        display_name: definition.display_name.clone().into(),
        service_type: ServiceType::OWN_PROCESS,
        start_type: ServiceStartType::AutoStart,
        error_control: ServiceErrorControl::Normal,
        executable_path: definition.program.clone(),
        launch_arguments: definition.arguments.clone(),
        dependencies: Vec::new(),
        // The system's.
        account_name: None,
        account_password: None,
    };
    // To start it again when it fails takes the right to start it.
    let rights = ServiceAccess::CHANGE_CONFIG | ServiceAccess::START | ServiceAccess::DELETE;
    let service = manager(access)?
        .create_service(&info, rights)
        .map_err(failed("install the service", name))?;
    describe(&service, definition).inspect_err(|_| {
        let _ = service.delete();
    })
}

fn describe(service: &Service, definition: &Definition) -> Result<Vec<Lacking>, Error> {
    let name = &definition.name;
    service
        .set_description(&definition.description)
        .map_err(failed("describe the service", name))?;
    let restart = |delay| ServiceAction {
        action_type: ServiceActionType::Restart,
        delay,
    };
    let actions = ServiceFailureActions {
        reset_period: ServiceFailureResetPeriod::After(FORGIVEN),
        reboot_msg: None,
        command: None,
        actions: Some(RESTARTS.map(restart).to_vec()),
    };
    let recovery = service
        .update_failure_actions(actions)
        // For who ends with an error too, and not only for who crashes.
        .and_then(|()| service.set_failure_actions_on_non_crash_failures(true));
    let delayed = service.set_delayed_auto_start(true);
    let mut lacking = Vec::new();
    for (set, what, lack) in [
        (delayed, "delay the service's start", Lacking::DelayedStart),
        (
            recovery,
            "have the service started again",
            Lacking::Recovery,
        ),
    ] {
        match set {
            Err(error) if is_unknown(&error) => lacking.push(lack),
            set => set.map_err(failed(what, name))?,
        }
    }
    Ok(lacking)
}

/// Starts a service and waits until it runs.
///
/// # Errors
///
/// See [`Error`].
pub fn start(name: &str) -> Result<(), Error> {
    let service = open(name, ServiceAccess::START | ServiceAccess::QUERY_STATUS)?;
    let started = service.start::<OsString>(&[]);
    let until = |state| state != State::Changing;
    let looked = settle(&service, name, "started", until)?;
    if let Err(error) = started {
        // One that ended before the manager had spoken with it says by its status why; greater
        // numbers are the manager's own.
        let is_told = (1..=255).contains(&looked.code);
        if !(has_code(&error, &[ERROR_SERVICE_REQUEST_TIMEOUT]) && is_told) {
            return Err(failed("start the service", name)(error));
        }
    }
    match looked.state {
        State::Running => Ok(()),
        _ => Err(Error::Ended {
            name: name.to_owned(),
            code: looked.code,
        }),
    }
}

/// Stops a service and waits until it has.
///
/// # Errors
///
/// See [`Error`].
pub fn stop(name: &str) -> Result<(), Error> {
    let service = open(name, ServiceAccess::STOP | ServiceAccess::QUERY_STATUS)?;
    stop_it(&service, name)
}

fn stop_it(service: &Service, name: &str) -> Result<(), Error> {
    service.stop().map_err(failed("stop the service", name))?;
    settle(service, name, "stopped", |state| state == State::Stopped).map(drop)
}

/// Stops a service if it runs, and removes it.
///
/// # Errors
///
/// See [`Error`].
pub fn uninstall(name: &str) -> Result<(), Error> {
    let rights = ServiceAccess::STOP | ServiceAccess::QUERY_STATUS | ServiceAccess::DELETE;
    let service = open(name, rights)?;
    match stop_it(&service, name) {
        Ok(()) | Err(Error::NotRunning(_)) => {}
        Err(error) => return Err(error),
    }
    service.delete().map_err(failed("remove the service", name))
}

/// How a service is; `None` if there is none of this name.
///
/// # Errors
///
/// See [`Error`].
pub fn state(name: &str) -> Result<Option<State>, Error> {
    match open(name, ServiceAccess::QUERY_STATUS) {
        Ok(service) => look(&service, name).map(|looked| Some(looked.state)),
        Err(Error::Missing(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn manager(access: ServiceManagerAccess) -> Result<ServiceManager, Error> {
    ServiceManager::local_computer(None::<&str>, access)
        .map_err(failed("reach the service manager", ""))
}

fn open(name: &str, access: ServiceAccess) -> Result<Service, Error> {
    manager(ServiceManagerAccess::CONNECT)?
        .open_service(name, access)
        .map_err(failed("open the service", name))
}

/// What the service manager says of a service.
struct Looked {
    state: State,
    /// Its exit code, once it has one.
    code: u32,
    /// How far it has come with starting or stopping.
    checkpoint: u32,
}

fn look(service: &Service, name: &str) -> Result<Looked, Error> {
    let status = service
        .query_status()
        .map_err(failed("ask how the service is", name))?;
    let state = match status.current_state {
        ServiceState::Stopped => State::Stopped,
        ServiceState::Running => State::Running,
        _ => State::Changing,
    };
    let code = match status.exit_code {
        ServiceExitCode::Win32(code) | ServiceExitCode::ServiceSpecific(code) => code,
    };
    Ok(Looked {
        state,
        code,
        checkpoint: status.checkpoint,
    })
}

/// Waits until a service is as it should be.
fn settle(
    service: &Service,
    name: &str,
    what: &'static str,
    is_settled: impl Fn(State) -> bool,
) -> Result<Looked, Error> {
    let (mut until, mut checkpoint) = (Instant::now() + PATIENCE, 0);
    loop {
        let looked = look(service, name)?;
        if is_settled(looked.state) {
            return Ok(looked);
        }
        if std::mem::replace(&mut checkpoint, looked.checkpoint) != looked.checkpoint {
            until = Instant::now() + PATIENCE;
        }
        if Instant::now() >= until {
            return Err(Error::Slow {
                name: name.to_owned(),
                what,
            });
        }
        thread::sleep(PAUSE);
    }
}

/// What the library's error means.
fn failed<'a>(
    what: &'static str,
    name: &'a str,
) -> impl FnOnce(windows_service::Error) -> Error + use<'a> {
    move |error| {
        let source = match error {
            windows_service::Error::Winapi(source) => source,
            other => io::Error::new(io::ErrorKind::InvalidInput, other),
        };
        let name = || name.to_owned();
        match source.raw_os_error().map(i32::cast_unsigned) {
            Some(ERROR_ACCESS_DENIED) => Error::NoRights,
            Some(ERROR_SERVICE_EXISTS) => Error::Exists(name()),
            Some(ERROR_SERVICE_DOES_NOT_EXIST) => Error::Missing(name()),
            Some(ERROR_SERVICE_MARKED_FOR_DELETE) => Error::Leaving(name()),
            Some(ERROR_SERVICE_ALREADY_RUNNING) => Error::Running(name()),
            Some(ERROR_SERVICE_NOT_ACTIVE) => Error::NotRunning(name()),
            _ => Error::System { what, source },
        }
    }
}

/// Whether the system has no such thing, as Wine has not.
fn is_unknown(error: &windows_service::Error) -> bool {
    has_code(error, &[ERROR_INVALID_LEVEL, ERROR_CALL_NOT_IMPLEMENTED])
}

/// Whether the system has said one of these.
fn has_code(error: &windows_service::Error, codes: &[u32]) -> bool {
    let windows_service::Error::Winapi(error) = error else {
        return false;
    };
    let code = error.raw_os_error().map(i32::cast_unsigned);
    code.is_some_and(|code| codes.contains(&code))
}
