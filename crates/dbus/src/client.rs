//! `taupe-dbus call`: a request of the `taupe` command, which comes through a socket at standard input.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;

use taupe_service::{Link, LinkError, MAX_OUTPUT, Request, UNAVAILABLE};
use thiserror::Error;
use zbus::message::Flags;
use zbus::{Connection, Message, MessageStream};

use crate::agent::Agent;
use crate::bus::{BUS, BUS_PATH, INTERFACE, NAME, PATH, next};
use crate::methods;

/// Exit status of a failed command.
const FAILED: u8 = 1;

/// Exit status of `taupe status` if no state is known.
const UNKNOWN_STATE: u8 = 3;

/// Reason why a call has no result.
#[derive(Debug, Error)]
enum ClientError {
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("{}", description(.0))]
    Bus(#[from] zbus::Error),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
}

/// Returns what an error says, without its name on the bus.
fn description(error: &zbus::Error) -> String {
    match error {
        zbus::Error::MethodError(_, Some(text), _) => text.clone(),
        error => error.to_string(),
    }
}

/// Succeeds if there is a service. Prints nothing.
pub(crate) fn available() -> ExitCode {
    match zbus::block_on(Connection::system()) {
        Ok(bus) if is_available(&bus) => ExitCode::SUCCESS,
        _ => ExitCode::from(UNAVAILABLE),
    }
}

/// Executes the request. Exits with [`UNAVAILABLE`], and prints nothing, if there is no bus.
pub(crate) fn main() -> ExitCode {
    let Ok(bus) = zbus::block_on(Connection::system()) else {
        return ExitCode::from(UNAVAILABLE);
    };
    let mut failed = FAILED;
    match call(&bus, &mut failed) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("taupe: {error}");
            ExitCode::from(failed)
        }
    }
}

/// Returns true if the bus knows the service, or can start it.
fn is_available(bus: &Connection) -> bool {
    ["ListNames", "ListActivatableNames"]
        .into_iter()
        .any(|list| {
            let answer = zbus::block_on(bus.call_method(Some(BUS), BUS_PATH, Some(BUS), list, &()));
            let names = answer.and_then(|answer| answer.body().deserialize::<Vec<String>>());
            names.is_ok_and(|names| names.iter().any(|name| name == NAME))
        })
}

/// Makes the call. `failed` becomes the exit status of a failure.
fn call(bus: &Connection, failed: &mut u8) -> Result<u8, ClientError> {
    let link = Link::new(io::stdin().as_fd().try_clone_to_owned()?);
    let (request, descriptors): (Request, _) = link.receive()?;
    if matches!(request, Request::Status { .. }) {
        *failed = UNKNOWN_STATE;
    }
    let agent = Agent::start();
    let answer = ask(bus, &request, descriptors);
    drop(agent);
    let answer = answer?;
    let body = answer.body();
    let (status, errors, output): (u8, String, zbus::OwnedFd) = body.deserialize()?;
    io::stderr().write_all(errors.as_bytes())?;
    let text = taupe_service::read_sealed(OwnedFd::from(output), MAX_OUTPUT);
    let text = text.map_err(|error| io::Error::other(format!("the output {error}")))?;
    let mut stdout = io::stdout();
    stdout.write_all(&text)?;
    stdout.flush()?;
    Ok(status)
}

/// Calls the method, and waits for its answer as long as a user needs to authenticate.
fn ask(bus: &Connection, request: &Request, descriptors: Vec<OwnedFd>) -> zbus::Result<Message> {
    let mut stream = MessageStream::from(bus);
    let builder = Message::method_call(PATH, methods::name(request))
        .destination(NAME)
        .interface(INTERFACE)
        .with_flags(Flags::ALLOW_INTERACTIVE_AUTH);
    let message = methods::build(builder, request, descriptors)?;
    let serial = message.primary_header().serial_num();
    zbus::block_on(bus.send(&message))?;
    while let Some(answer) = next(&mut stream) {
        let answer = answer?;
        if answer.header().reply_serial() == Some(serial) {
            return match answer.message_type() {
                zbus::message::Type::Error => Err(answer.into()),
                _ => Ok(answer),
            };
        }
    }
    Err(io::Error::from(io::ErrorKind::ConnectionAborted).into())
}
