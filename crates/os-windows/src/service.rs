//! Installing, starting, stopping and removing services, and running a process as a service.

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

/// Maximum time without progress of a service that is starting or stopping.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Time between two status queries.
const PAUSE: Duration = Duration::from_millis(50);

/// Delays between a failure and the restart: for the first, the second and all later failures.
const RESTARTS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
];

/// Time without a failure after which the count of failures is reset.
const RESET_PERIOD: Duration = Duration::from_hours(1);

/// A service to install.
pub struct Definition {
    /// The name in the service manager.
    pub name: String,
    /// The name in the user interface.
    pub display_name: String,
    /// The description in the user interface.
    pub description: String,
    /// The program, an absolute path.
    pub program: PathBuf,
    /// The program's arguments.
    pub arguments: Vec<OsString>,
}

/// The state of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The service is not running.
    Stopped,
    /// The service is starting or stopping.
    Changing,
    /// The service is running.
    Running,
}

/// Error of an operation on a service.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The operation needs an administrator.
    #[error("the service manager admits only an elevated administrator")]
    AccessDenied,
    /// A service of this name exists.
    #[error("the service {0} is installed already")]
    Exists(String),
    /// There is no service of this name.
    #[error("there is no service {0}")]
    Missing(String),
    /// The service was removed, but a process still has it open.
    #[error("the service {0} is being removed, but another program still has it open")]
    MarkedForDeletion(String),
    /// The service is running already.
    #[error("the service {0} is running already")]
    Running(String),
    /// The service is not running.
    #[error("the service {0} is not running")]
    NotRunning(String),
    /// The service ended instead of running.
    #[error("the service {name} ended at once, with exit code {code}")]
    Ended {
        /// The service's name.
        name: String,
        /// Its exit code, or the system's error.
        code: u32,
    },
    /// The service did not reach the state in time.
    #[error(
        "the service {name} has not {what}, and has reported no progress for {} s",
        TIMEOUT.as_secs()
    )]
    TimedOut {
        /// The service's name.
        name: String,
        /// The state to reach.
        what: &'static str,
    },
    /// This process was not started by the service manager.
    #[error("only the service manager can start this process")]
    NotAService,
    /// Anything else.
    #[error("cannot {what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A property that an installed service lacks, because this system does not support it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissingFeature {
    /// The service starts together with the machine, instead of about two minutes later.
    DelayedStart,
    /// The service is not restarted after a failure.
    Recovery,
}

/// Installs a service without starting it. The service starts after the machine and other services
/// (delayed automatic start), and again after a failure. If a step fails, the previous steps are
/// undone.
///
/// # Errors
///
/// See [`ServiceError`].
pub fn install(definition: &Definition) -> Result<Vec<MissingFeature>, ServiceError> {
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
        // The account LocalSystem.
        account_name: None,
        account_password: None,
    };
    // The right to start the service is required for restarts after a failure.
    let rights = ServiceAccess::CHANGE_CONFIG | ServiceAccess::START | ServiceAccess::DELETE;
    let service = manager(access)?
        .create_service(&info, rights)
        .map_err(failed("install the service", name))?;
    describe(&service, definition).inspect_err(|_| {
        let _ = service.delete();
    })
}

fn describe(
    service: &Service,
    definition: &Definition,
) -> Result<Vec<MissingFeature>, ServiceError> {
    let name = &definition.name;
    service
        .set_description(&definition.description)
        .map_err(failed("describe the service", name))?;
    let restart = |delay| ServiceAction {
        action_type: ServiceActionType::Restart,
        delay,
    };
    let actions = ServiceFailureActions {
        reset_period: ServiceFailureResetPeriod::After(RESET_PERIOD),
        reboot_msg: None,
        command: None,
        actions: Some(RESTARTS.map(restart).to_vec()),
    };
    let recovery = service
        .update_failure_actions(actions)
        // Also restart a service that ended with an error, not only one that crashed.
        .and_then(|()| service.set_failure_actions_on_non_crash_failures(true));
    let delayed = service.set_delayed_auto_start(true);
    let mut lacking = Vec::new();
    for (set, what, lack) in [
        (
            delayed,
            "delay the service's start",
            MissingFeature::DelayedStart,
        ),
        (
            recovery,
            "have the service started again",
            MissingFeature::Recovery,
        ),
    ] {
        match set {
            Err(error) if is_unknown(&error) => lacking.push(lack),
            set => set.map_err(failed(what, name))?,
        }
    }
    Ok(lacking)
}

/// Starts a service and waits until it is running.
///
/// # Errors
///
/// See [`ServiceError`].
pub fn start(name: &str) -> Result<(), ServiceError> {
    let service = open(name, ServiceAccess::START | ServiceAccess::QUERY_STATUS)?;
    let started = service.start::<OsString>(&[]);
    let until = |state| state != State::Changing;
    let looked = settle(&service, name, "started", until)?;
    if let Err(error) = started {
        // The service may end before the manager has contacted it. Its status then contains its
        // exit code; greater numbers are the manager's own errors.
        let is_told = (1..=255).contains(&looked.code);
        if !(has_code(&error, &[ERROR_SERVICE_REQUEST_TIMEOUT]) && is_told) {
            return Err(failed("start the service", name)(error));
        }
    }
    match looked.state {
        State::Running => Ok(()),
        _ => Err(ServiceError::Ended {
            name: name.to_owned(),
            code: looked.code,
        }),
    }
}

/// Stops a service and waits until it has ended.
///
/// # Errors
///
/// See [`ServiceError`].
pub fn stop(name: &str) -> Result<(), ServiceError> {
    let service = open(name, ServiceAccess::STOP | ServiceAccess::QUERY_STATUS)?;
    stop_it(&service, name)
}

fn stop_it(service: &Service, name: &str) -> Result<(), ServiceError> {
    service.stop().map_err(failed("stop the service", name))?;
    settle(service, name, "stopped", |state| state == State::Stopped).map(drop)
}

/// Stops a service if it is running, and removes it.
///
/// # Errors
///
/// See [`ServiceError`].
pub fn uninstall(name: &str) -> Result<(), ServiceError> {
    let rights = ServiceAccess::STOP | ServiceAccess::QUERY_STATUS | ServiceAccess::DELETE;
    let service = open(name, rights)?;
    match stop_it(&service, name) {
        Ok(()) | Err(ServiceError::NotRunning(_)) => {}
        Err(error) => return Err(error),
    }
    service.delete().map_err(failed("remove the service", name))
}

/// Returns the state of a service, or `None` if there is no service of this name.
///
/// # Errors
///
/// See [`ServiceError`].
pub fn state(name: &str) -> Result<Option<State>, ServiceError> {
    match open(name, ServiceAccess::QUERY_STATUS) {
        Ok(service) => query(&service, name).map(|looked| Some(looked.state)),
        Err(ServiceError::Missing(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn manager(access: ServiceManagerAccess) -> Result<ServiceManager, ServiceError> {
    ServiceManager::local_computer(None::<&str>, access)
        .map_err(failed("reach the service manager", ""))
}

fn open(name: &str, access: ServiceAccess) -> Result<Service, ServiceError> {
    manager(ServiceManagerAccess::CONNECT)?
        .open_service(name, access)
        .map_err(failed("open the service", name))
}

/// Status of a service in the service manager.
struct Status {
    state: State,
    /// The exit code, once the service has ended.
    code: u32,
    /// Progress counter of starting or stopping.
    checkpoint: u32,
}

fn query(service: &Service, name: &str) -> Result<Status, ServiceError> {
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
    Ok(Status {
        state,
        code,
        checkpoint: status.checkpoint,
    })
}

/// Waits until a service reaches a state; the time limit restarts with each progress of the
/// service.
fn settle(
    service: &Service,
    name: &str,
    what: &'static str,
    is_settled: impl Fn(State) -> bool,
) -> Result<Status, ServiceError> {
    let (mut until, mut checkpoint) = (Instant::now() + TIMEOUT, 0);
    loop {
        let looked = query(service, name)?;
        if is_settled(looked.state) {
            return Ok(looked);
        }
        if std::mem::replace(&mut checkpoint, looked.checkpoint) != looked.checkpoint {
            until = Instant::now() + TIMEOUT;
        }
        if Instant::now() >= until {
            return Err(ServiceError::TimedOut {
                name: name.to_owned(),
                what,
            });
        }
        thread::sleep(PAUSE);
    }
}

/// Converts an error of the service library.
fn failed<'a>(
    what: &'static str,
    name: &'a str,
) -> impl FnOnce(windows_service::Error) -> ServiceError + use<'a> {
    move |error| {
        let source = match error {
            windows_service::Error::Winapi(source) => source,
            other => io::Error::new(io::ErrorKind::InvalidInput, other),
        };
        let name = || name.to_owned();
        match source.raw_os_error().map(i32::cast_unsigned) {
            Some(ERROR_ACCESS_DENIED) => ServiceError::AccessDenied,
            Some(ERROR_SERVICE_EXISTS) => ServiceError::Exists(name()),
            Some(ERROR_SERVICE_DOES_NOT_EXIST) => ServiceError::Missing(name()),
            Some(ERROR_SERVICE_MARKED_FOR_DELETE) => ServiceError::MarkedForDeletion(name()),
            Some(ERROR_SERVICE_ALREADY_RUNNING) => ServiceError::Running(name()),
            Some(ERROR_SERVICE_NOT_ACTIVE) => ServiceError::NotRunning(name()),
            _ => ServiceError::System { what, source },
        }
    }
}

/// Returns true if the system does not support the property, as in Wine.
fn is_unknown(error: &windows_service::Error) -> bool {
    has_code(error, &[ERROR_INVALID_LEVEL, ERROR_CALL_NOT_IMPLEMENTED])
}

/// Returns true if the error has one of these codes.
fn has_code(error: &windows_service::Error, codes: &[u32]) -> bool {
    let windows_service::Error::Winapi(error) = error else {
        return false;
    };
    let code = error.raw_os_error().map(i32::cast_unsigned);
    code.is_some_and(|code| codes.contains(&code))
}
