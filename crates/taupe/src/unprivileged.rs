//! Commands of users without root, by the service (docs/design/service.md).
//!
//! The program `taupe-dbus` calls the service over the message bus. It is not part of this program, so that
//! root's processes have no D-Bus server and routers need no more room. If it is not installed, or nobody
//! serves, the commands fail as they do without it.

use crate::arguments::{Action, AppAction, AppOrder, AppPlace, Order, TunnelOrder};
use crate::console::say;
use crate::remarks::with_command;
use crate::{FAILED, complain, status};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use taupe_config::file::{Compatibility, Dialect, KeyFile, parse_with};
use taupe_inspect::check::{self, check};
use taupe_inspect::conf::{self, Conf};
use taupe_inspect::is_root;
use taupe_os_linux::message_socket;
use taupe_service::{Link, Request, Source, TunnelName, UNAVAILABLE, seal};

/// The program's path, from the folder of this one.
const PROGRAM: &str = "../libexec/taupe-dbus";

/// Reason why a request is not sent.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
    /// The errors have been printed.
    #[error("{file} has {errors}")]
    Wrong { file: String, errors: String },
    #[error("{0}")]
    Name(#[from] taupe_service::InvalidName),
    #[error("cannot run {PROGRAM}: {0}")]
    Program(#[source] io::Error),
    #[error("cannot copy the file into memory: {0}")]
    Seal(#[source] io::Error),
    #[error("cannot create a socket: {0}")]
    Socket(#[source] io::Error),
    #[error("cannot pass the request on: {0}")]
    Link(#[from] taupe_service::LinkError),
}

/// Executes a command by the service, for a user who is not root. Returns `None` if the command is not one
/// of the service's, or there is no service.
pub(crate) fn run(order: &Order, arguments: usize) -> Option<ExitCode> {
    if is_root() || !is_supported(order, arguments) {
        return None;
    }
    let program = program()?;
    let is_available = Command::new(&program).arg("available").status();
    if !is_available.is_ok_and(|status| status.success()) {
        return None;
    }
    let failed = match order {
        Order::Status(_) => status::UNKNOWN,
        _ => FAILED,
    };
    match requests(order).and_then(|requests| call_all(&program, requests)) {
        Ok(status) => {
            if let (Order::App(_), 0) = (order, status) {
                say(
                    &"[!] this change lasts until the tunnel goes down; to keep it, edit your file",
                );
            }
            (status != UNAVAILABLE).then(|| status.into())
        }
        Err(error) => Some(complain(&error, failed)),
    }
}

/// Returns true if the service has the command with these options. `arguments` is the number of words of
/// the command line: the service has no options of `up`, `down` and `reload`.
fn is_supported(order: &Order, arguments: usize) -> bool {
    const WITHOUT_OPTIONS: usize = 3;
    match order {
        Order::Tunnel(TunnelOrder {
            compatibility,
            action,
            ..
        }) => {
            *compatibility == Compatibility::Taupe
                && arguments == WITHOUT_OPTIONS
                && matches!(action, Action::Up(_) | Action::Down { .. } | Action::Reload)
        }
        Order::Status(order) => order.watch.is_none() && !order.all_peers,
        Order::Flows(order) => !order.follow,
        Order::App(order) => matches!(
            order.action,
            AppAction::Edit(AppPlace::Allowed | AppPlace::Nowhere, _)
        ),
        _ => false,
    }
}

fn program() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let program = this.parent()?.join(PROGRAM);
    program.is_file().then_some(program)
}

type RequestWithFiles = (Request, Vec<OwnedFd>);

fn requests(order: &Order) -> Result<Vec<RequestWithFiles>, RequestError> {
    let one = |request| Ok(vec![(request, Vec::new())]);
    match order {
        Order::Tunnel(TunnelOrder { action, file, .. }) => match action {
            Action::Down { .. } => one(Request::Down {
                tunnel: name(file)?,
            }),
            Action::Reload => {
                let (tunnel, source, files) = source(file)?;
                Ok(vec![(Request::Reload { tunnel, source }, files)])
            }
            _ => {
                let (tunnel, source, files) = source(file)?;
                Ok(vec![(Request::Up { tunnel, source }, files)])
            }
        },
        Order::Status(order) => one(Request::Status {
            tunnel: order.file.as_deref().map(name).transpose()?,
            all: false,
            json: order.json,
        }),
        Order::Flows(order) => one(Request::Flows {
            tunnel: order.file.as_deref().map(name).transpose()?,
            all: false,
            json: order.json,
        }),
        Order::App(AppOrder {
            file,
            action: AppAction::Edit(place, applications),
        }) => {
            let tunnel = name(file)?;
            let request = |application: &taupe_config::application::Application| {
                let (tunnel, application) = (tunnel.clone(), application.to_string());
                let request = match place {
                    AppPlace::Allowed => Request::AppAllow {
                        tunnel,
                        application,
                    },
                    _ => Request::AppRemove {
                        tunnel,
                        application,
                    },
                };
                (request, Vec::new())
            };
            Ok(applications.iter().map(request).collect())
        }
        _ => Ok(Vec::new()),
    }
}

fn name(word: &OsStr) -> Result<TunnelName, RequestError> {
    let name = conf::interface(word).ok_or(taupe_service::InvalidName)?;
    Ok(name.as_str().parse()?)
}

/// Returns the file of a word: the file at this path, with its key files, or the one that root has listed
/// by this name.
fn source(word: &OsStr) -> Result<(TunnelName, Source, Vec<OwnedFd>), RequestError> {
    if !word.as_encoded_bytes().ends_with(b".conf") {
        return Ok((name(word)?, Source::Listed, Vec::new()));
    }
    let conf = Conf::find(word, Compatibility::Taupe)?;
    let checked = check(&conf, Compatibility::Taupe)?;
    for remark in &checked.remarks {
        say(&with_command(remark));
    }
    if checked.file.is_none() {
        return Err(RequestError::Wrong {
            file: conf.shown.display().to_string(),
            errors: check::count(&checked.remarks),
        });
    }
    let folder = conf.path.parent().unwrap_or(Path::new("/"));
    let keys = RefCell::new(Vec::new());
    // Only for the paths that it asks for.
    let _ = parse_with(&checked.text, Dialect::Taupe, &|path| {
        let text = check::key_file(&folder.join(path))?;
        let mut keys = keys.borrow_mut();
        if !keys.iter().any(|(known, _)| known == path) {
            keys.push((path.to_owned(), text.clone()));
        }
        Ok(KeyFile { text, others: 0 })
    });
    let keys = keys.into_inner();
    let texts = std::iter::once(&checked.text).chain(keys.iter().map(|(_, text)| text));
    let files = texts.map(|text| seal(text)).collect::<io::Result<Vec<_>>>();
    let files = files.map_err(RequestError::Seal)?;
    let key_files = keys.into_iter().map(|(path, _)| path).collect();
    let tunnel = conf.interface.as_str().parse()?;
    Ok((tunnel, Source::Passed { key_files }, files))
}

/// Sends requests one after the other until one fails. Returns the last exit status.
fn call_all(program: &Path, requests: Vec<RequestWithFiles>) -> Result<u8, RequestError> {
    let mut status = 0;
    for (request, files) in requests {
        status = call(program, &request, &files)?;
        if status != 0 {
            break;
        }
    }
    Ok(status)
}

fn call(program: &Path, request: &Request, files: &[OwnedFd]) -> Result<u8, RequestError> {
    let (near, far) = message_socket::pair().map_err(RequestError::Socket)?;
    let mut command = Command::new(program);
    let child = command.arg("call").stdin(Stdio::from(far)).spawn();
    let mut child: Child = child.map_err(RequestError::Program)?;
    // It has this process's copy of the other end, without which the socket would stay open.
    drop(command);
    let files: Vec<_> = files.iter().map(|it| it.as_fd()).collect();
    let sent = Link::new(near).send(request, &files);
    let ended: ExitStatus = child.wait().map_err(RequestError::Program)?;
    // A program that ends without reading the request says why.
    match ended.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) | None => sent?,
        Some(_) => {}
    }
    Ok(ended
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(FAILED))
}
