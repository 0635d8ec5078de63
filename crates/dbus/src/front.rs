//! The front: `org.taupe.Service1` on the system's bus.
//!
//! The main thread reads messages. Each call has a thread, which
//!
//! 1. gets the caller's user ID from the bus,
//! 2. asks polkit whether any request of the caller can be authorised, without a dialogue,
//! 3. has the service prepare the request, which reads the descriptors and says which class is needed,
//! 4. asks polkit for this class,
//! 5. has the service execute the request, and answers.
//!
//! A caller that goes away meanwhile ends nothing: the service executes a request to its end.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::geteuid;
use taupe_service::{Answer, FromFront, Link, LinkError, MAX_TEXT, Request, SOCKET};
use thiserror::Error;
use zbus::connection::Builder;
use zbus::message::{Flags, Type};
use zbus::{Connection, Message, MessageStream};

use crate::bus::{BUS, BUS_PATH, BUSY, INTERFACE, NAME, NOT_AUTHORIZED, PATH, REFUSED, next};
use crate::limits::{Limits, Place};
use crate::methods::{self, MethodError};
use crate::polkit::{self, NotAuthorized, Question, admit, authorize};

const UNKNOWN_METHOD: &str = "org.freedesktop.DBus.Error.UnknownMethod";
const INVALID_ARGUMENTS: &str = "org.freedesktop.DBus.Error.InvalidArgs";

/// Time for the service to prepare a request.
const PREPARATION: Duration = Duration::from_secs(30);

/// Time for the service to execute a request, such as `taupe up` with a slow name server. The service ends a
/// command after 610 seconds.
const EXECUTION: Duration = Duration::from_secs(630);

/// Reason why the front ends.
#[derive(Debug, Error)]
pub(crate) enum FrontError {
    #[error(
        "this program must not run as root: the message bus or systemd starts it as its own user"
    )]
    Root,
    #[error("cannot use the D-Bus system bus: {0}")]
    Bus(#[from] zbus::Error),
}

/// Error of a call, with its name on the bus.
#[derive(Debug, Error)]
enum CallError {
    #[error("{0}")]
    Method(#[from] MethodError),
    #[error("too many requests at once; wait for one to end")]
    Busy,
    #[error("{0}")]
    NotAuthorized(#[from] NotAuthorized),
    #[error("{0}")]
    Refused(String),
    #[error(
        "the root service cannot be reached ({0}); start it with `sudo systemctl start taupe-service.socket`, or \
         without systemd by `taupe service` as root"
    )]
    NoService(std::io::Error),
    #[error("{0}")]
    Link(#[from] LinkError),
    #[error("cannot use the D-Bus system bus: {0}")]
    Bus(#[from] zbus::Error),
}

impl CallError {
    fn name(&self) -> &'static str {
        match self {
            Self::Method(MethodError::Unknown) => UNKNOWN_METHOD,
            Self::Method(_) => INVALID_ARGUMENTS,
            Self::Busy => BUSY,
            Self::NotAuthorized(_) => NOT_AUTHORIZED,
            Self::Refused(_) | Self::NoService(_) | Self::Link(_) | Self::Bus(_) => REFUSED,
        }
    }
}

/// Result of an executed request.
struct Done {
    status: u8,
    errors: String,
    output: OwnedFd,
}

/// Serves until the bus closes the connection.
pub(crate) fn run() -> Result<(), FrontError> {
    if geteuid().is_root() {
        return Err(FrontError::Root);
    }
    let builder = Builder::system().method_timeout(polkit::PATIENCE);
    let bus = zbus::block_on(builder.build())?;
    // It exists before the name does, so that no call is lost.
    let mut stream = MessageStream::from(&bus);
    zbus::block_on(bus.request_name(NAME))?;
    let limits = Limits::default();
    while let Some(message) = next(&mut stream) {
        let message = message?;
        if message.message_type() == Type::MethodCall {
            dispatch(&bus, &limits, message);
        }
    }
    Ok(())
}

/// Answers a call, in a thread of its own unless it is trivial.
fn dispatch(bus: &Connection, limits: &Limits, message: Message) {
    let header = message.header();
    let interface = header.interface().map(|name| name.as_str().to_owned());
    let member = header.member().map(|name| name.as_str().to_owned());
    match (interface.as_deref(), member.as_deref()) {
        (Some("org.freedesktop.DBus.Introspectable"), Some("Introspect")) => {
            answer(
                bus,
                &message,
                Ok(Reply::Text(include_str!("introspection.xml"))),
            );
        }
        (Some("org.freedesktop.DBus.Peer"), Some("Ping")) => {
            answer(bus, &message, Ok(Reply::Nothing));
        }
        (Some(INTERFACE) | None, _) if header.path().is_some_and(|path| path.as_str() == PATH) => {
            // A long message is dropped at once: the bus permits some of 32 MiB.
            if message.body().len() > MAX_TEXT {
                return answer(bus, &message, Err(MethodError::TooLong.into()));
            }
            let sender = header.sender().map(|name| name.as_str().to_owned());
            let Some(place) = sender.and_then(|sender| limits.take(&sender)) else {
                return answer(bus, &message, Err(CallError::Busy));
            };
            let (bus, call) = (bus.clone(), message.clone());
            let thread = thread::Builder::new().name("call".to_owned());
            let started = thread.spawn(move || {
                let outcome = serve(&bus, &call, place);
                answer(&bus, &call, outcome.map(Reply::Done));
            });
            if started.is_err() {
                // The thread has taken the connection along; the caller gets no answer but an error.
                eprintln!("taupe-dbus: cannot start a thread for a call");
            }
        }
        _ => answer(bus, &message, Err(MethodError::Unknown.into())),
    }
}

/// Body of an answer.
enum Reply {
    Nothing,
    Text(&'static str),
    Done(Done),
}

fn answer(bus: &Connection, call: &Message, outcome: Result<Reply, CallError>) {
    let header = call.header();
    if header.primary().flags().contains(Flags::NO_REPLY_EXPECTED) {
        return;
    }
    let sent = match outcome {
        Ok(Reply::Nothing) => zbus::block_on(bus.reply(&header, &())),
        Ok(Reply::Text(text)) => zbus::block_on(bus.reply(&header, &text)),
        Ok(Reply::Done(done)) => {
            let output = zbus::OwnedFd::from(done.output);
            let body = (done.status, done.errors, output);
            zbus::block_on(bus.reply(&header, &body))
        }
        Err(error) => {
            let text = error.to_string();
            zbus::block_on(bus.reply_error(&header, error.name(), &text))
        }
    };
    if let Err(error) = sent {
        eprintln!("taupe-dbus: cannot answer a call: {error}");
    }
}

/// Executes a call.
fn serve(bus: &Connection, call: &Message, mut place: Place) -> Result<Done, CallError> {
    let header = call.header();
    // The bus sets the sender of each message.
    let sender = header.sender().ok_or(MethodError::Arguments)?.as_str();
    let caller = user_of(bus, sender)?;
    if !place.take_for(caller) {
        return Err(CallError::Busy);
    }
    let flags = header.primary().flags();
    let is_interactive = flags.contains(Flags::ALLOW_INTERACTIVE_AUTH);
    admit(bus, sender, is_interactive)?;
    let (request, descriptors) = methods::read(call)?;
    let (in_words, tunnel) = (methods::in_words(&request), methods::tunnel(&request));
    let link = Link::connect(Path::new(SOCKET)).map_err(CallError::NoService)?;
    link.set_patience(PREPARATION).map_err(LinkError::from)?;
    let (class, reasons) = match prepare(&link, caller, request, &descriptors)? {
        Answer::Needs { class, reasons } => (class, reasons),
        Answer::Refused { reason } => return Err(CallError::Refused(reason)),
        Answer::Done { .. } => return Err(LinkError::Invalid.into()),
    };
    drop(descriptors);
    let question = Question {
        sender,
        class,
        reasons: &reasons,
        caller,
        request: in_words,
        tunnel: &tunnel,
        is_interactive,
    };
    authorize(bus, &question)?;
    link.set_patience(EXECUTION).map_err(LinkError::from)?;
    let granted = class;
    link.send(&FromFront::Execute { caller, granted }, &[])?;
    match link.receive()? {
        (Answer::Done { status, errors }, output) => Ok(Done {
            status,
            errors,
            output: output.into_iter().next().ok_or(LinkError::Invalid)?,
        }),
        (Answer::Refused { reason }, _) => Err(CallError::Refused(reason)),
        (Answer::Needs { .. }, _) => Err(LinkError::Invalid.into()),
    }
}

fn prepare(
    link: &Link,
    caller: u32,
    request: Request,
    descriptors: &[OwnedFd],
) -> Result<Answer, LinkError> {
    let descriptors: Vec<_> = descriptors.iter().map(|it| it.as_fd()).collect();
    let sent = link.send(&FromFront::Prepare { caller, request }, &descriptors);
    match sent {
        // The service may have refused this process without waiting for a message.
        Ok(()) | Err(LinkError::Closed) => Ok(link.receive()?.0),
        Err(error) => Err(error),
    }
}

/// Returns the user ID with which a connection was made.
fn user_of(bus: &Connection, sender: &str) -> Result<u32, zbus::Error> {
    let answer = zbus::block_on(bus.call_method(
        Some(BUS),
        BUS_PATH,
        Some(BUS),
        "GetConnectionUnixUser",
        &sender,
    ))?;
    answer.body().deserialize()
}
