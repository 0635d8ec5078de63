//! `taupe web`: a page about tunnels and applications for a browser of this machine.
//!
//! Two processes serve it: this one, which has the rights to read the state, and the program
//! `taupe-web`, which parses requests and has no rights.

mod machine;
mod switches;

use crate::arguments::WebOrder;
use crate::console::{NotPrinted, print, say};
use crate::listening::{ListenUnixError, bind_unix};
use crate::request_server::{RequestServer, descriptors};
use crate::{logging, root};
use machine::{Machine, ThisMachine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};
use switches::Switches;
use taupe_adapter::Compatibility;
use taupe_os_linux::own_program::run_helper;
use taupe_web_link::{
    Extent, Layer, PROGRAM, Secret, Start, ToParent, ToServer, Token, is_of_one_message, receive,
    send, send_facts,
};

/// Shortest time between the end of a reading and the next one.
const INTERVAL: Duration = Duration::from_secs(1);

/// Reason why there is no page.
#[derive(Debug, thiserror::Error)]
enum WebError {
    #[error(transparent)]
    NotRoot(#[from] root::RootError),
    #[error(transparent)]
    Output(#[from] NotPrinted),
    #[error("cannot listen at {0} (--listen): {1}; choose another port")]
    Listen(SocketAddr, #[source] io::Error),
    #[error(transparent)]
    ListenUnix(#[from] ListenUnixError),
    #[error("cannot find the folder of this program, in which {PROGRAM} is searched: {0}")]
    OwnPath(#[source] io::Error),
    #[error(
        "there is no {PROGRAM} in {0}; install Taupe's package with the page, or build it (`cargo build -p {PROGRAM}`)"
    )]
    Missing(String),
    #[error("the system has no random numbers for a token: {0}")]
    Random(#[source] io::Error),
    #[error("cannot run {PROGRAM}, which serves the page: {0}")]
    Start(#[source] io::Error),
    #[error("cannot wait for {PROGRAM} and the terminal: {0}")]
    Poll(#[source] io::Error),
    #[error("the socket of {PROGRAM}, which serves the page: {0}")]
    Socket(#[source] io::Error),
    #[error("cannot wait for the end of {PROGRAM}: {0}")]
    Wait(#[source] io::Error),
    #[error("{PROGRAM}, which serves the page, was ended, because it sent {0}")]
    Misbehaved(&'static str),
    #[error("{PROGRAM}, which serves the page, has ended ({0})")]
    ServerEnded(ExitStatus),
}

/// Serves the page until a signal arrives.
pub(crate) fn main(order: &WebOrder, arguments: &[OsString]) -> ExitCode {
    match run(order, arguments) {
        Ok(never) => match never {},
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

fn run(order: &WebOrder, arguments: &[OsString]) -> Result<std::convert::Infallible, WebError> {
    root::require(Compatibility::Taupe, arguments)?;
    logging::begin(logging::level(env::var("LOG_LEVEL").ok().as_deref()));
    let program = find_program()?;
    let tcp = order.listen.map(|address| {
        let bound = TcpListener::bind(address).and_then(|it| Ok((it.local_addr()?, it)));
        bound.map_err(|error| WebError::Listen(address, error))
    });
    let (tcp, unix) = (tcp.transpose()?, order.unix.as_deref().map(bind_unix));
    let unix = unix.transpose()?;
    let addresses = Addresses {
        tcp: tcp.as_ref().map(|(address, _)| *address),
        unix: order.unix.clone(),
        path: Secret::random().map_err(WebError::Random)?,
    };
    let token = next_token(0)?;
    let tcp = tcp.map(|(_, listener)| listener);
    let start_message = Start {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        has_tcp: tcp.is_some(),
        has_unix: unix.is_some(),
        path: addresses.path.clone(),
        token: token.clone(),
        has_switches: order.has_switches,
    };
    let listeners = descriptors(tcp.as_ref(), unix.as_ref());
    let server = start(&program, start_message, &listeners);
    let mut server = server.map_err(WebError::Start)?;
    // The child has the listening sockets. The file of the Unix socket is removed at the end.
    let _file = unix.map(|it| it.file);
    drop(tcp);
    let switches = order.has_switches.then(Switches::default);
    let mut conversation = Conversation::new(addresses, token, ThisMachine::default(), switches);
    loop {
        let wake = conversation.terminal.wait(server.socket());
        match wake.map_err(WebError::Poll)? {
            Wake::Enter => conversation.renew_token(server.socket())?,
            Wake::Message if conversation.receive(server.socket())? => {}
            Wake::Message => {
                let ended = server.wait().map_err(WebError::Wait)?;
                return Err(WebError::ServerEnded(ended));
            }
        }
    }
}

/// Starts the process that serves the page, with these listening sockets.
fn start(
    program: &Path,
    message: Start,
    listeners: &[BorrowedFd<'_>],
) -> io::Result<RequestServer> {
    let run = |socket: &_, output: &_| run_helper(program, PROGRAM, socket, Some(output));
    let server = RequestServer::start(run)?;
    send(server.socket(), &ToServer::Start(message), listeners)?;
    Ok(server)
}

fn next_token(number: u32) -> Result<Token, WebError> {
    Ok(Token {
        number: number.saturating_add(1),
        secret: Secret::random().map_err(WebError::Random)?,
    })
}

/// Returns the path of the program that serves the page: in `libexec` beside the folder `bin` of this
/// program, or beside this program.
fn find_program() -> Result<PathBuf, WebError> {
    let own = env::current_exe().map_err(WebError::OwnPath)?;
    let folders = folders(&own);
    let mut files = folders.iter().map(|folder| folder.join(PROGRAM));
    files.find(|file| file.is_file()).ok_or_else(|| {
        let shown: Vec<_> = folders.iter().map(|it| it.display().to_string()).collect();
        WebError::Missing(shown.join(" or "))
    })
}

fn folders(own: &Path) -> Vec<PathBuf> {
    let Some(beside) = own.parent() else {
        return Vec::new();
    };
    let prefix = beside
        .parent()
        .filter(|_| beside.file_name() == Some(OsStr::new("bin")));
    let installed = prefix.map(|prefix| prefix.join("libexec"));
    installed.into_iter().chain([beside.to_owned()]).collect()
}

/// Places where the page is served.
struct Addresses {
    tcp: Option<SocketAddr>,
    unix: Option<PathBuf>,
    /// First part of the paths of all pages.
    path: Secret,
}

impl Addresses {
    /// Returns the addresses with a token.
    fn text(&self, token: &Token) -> String {
        let target = format!("{}/?token={}", self.path.reveal(), token.secret.reveal());
        let mut text = String::new();
        if let Some(address) = self.tcp {
            text += &format!("http://{address}/{target}\n");
        }
        if let Some(path) = &self.unix {
            text += &format!("http://localhost/{target} at {}\n", path.display());
        }
        text
    }
}

/// The exchange of messages with the process that serves the page, which this process does not trust.
struct Conversation<M> {
    addresses: Addresses,
    /// The latest token.
    token: Token,
    terminal: Terminal,
    is_serving: bool,
    /// Number of the token whose browser was reported.
    reported: u32,
    machine: M,
    /// `None` if the page changes nothing.
    switches: Option<Switches>,
    /// End of the latest reading.
    read_at: Option<Instant>,
}

impl<M: Machine> Conversation<M> {
    fn new(addresses: Addresses, token: Token, machine: M, switches: Option<Switches>) -> Self {
        Self {
            addresses,
            token,
            terminal: Terminal::of_this_process(),
            is_serving: false,
            reported: 0,
            machine,
            switches,
            read_at: None,
        }
    }

    /// Prints an address with another token. The token before and its session end.
    fn renew_token(&mut self, socket: BorrowedFd<'_>) -> Result<(), WebError> {
        if !self.is_serving {
            return Ok(());
        }
        self.token = next_token(self.token.number)?;
        print(self.addresses.text(&self.token).as_bytes())?;
        let message = ToServer::Token(self.token.clone());
        unless_ended(send(socket, &message, &[])).map_err(WebError::Socket)
    }

    /// Receives and handles a message. Returns false if the process has ended.
    fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<bool, WebError> {
        let message = match receive::<ToParent>(socket) {
            Ok(Some((message, _))) => message,
            Ok(None) => return Ok(false),
            Err(error) if is_of_one_message(&error) => {
                return Err(WebError::Misbehaved("an unknown message"));
            }
            Err(error) => return Err(WebError::Socket(error)),
        };
        match message {
            ToParent::Serving(_) if self.is_serving => {
                return Err(WebError::Misbehaved("a second report that it serves"));
            }
            ToParent::Serving(layers) => {
                self.is_serving = true;
                log_layers(&layers);
                print(self.addresses.text(&self.token).as_bytes())?;
                if self.terminal.has_input {
                    say(
                        &"Paste this address into a browser within 60 seconds. Enter prints another one and \
                          ends the session of the browser, Ctrl-C ends the page.",
                    );
                }
                crate::system::notify_ready();
            }
            ToParent::Admitted(number) => self.report_browser(number)?,
            ToParent::Wanted => self.answer(socket)?,
            ToParent::Switch(switch) => {
                let Some(switches) = &mut self.switches else {
                    return Err(WebError::Misbehaved(
                        "a change of applications without --switches",
                    ));
                };
                let outcome = switches.make(&switch, &mut self.machine);
                let sent = send(socket, &ToServer::Switched(outcome), &[]);
                unless_ended(sent).map_err(WebError::Socket)?;
            }
        }
        Ok(true)
    }

    /// Prints that a browser was admitted, once for each token.
    fn report_browser(&mut self, number: u32) -> Result<(), WebError> {
        if number <= self.reported || number > self.token.number {
            return Err(WebError::Misbehaved("a token that is not valid"));
        }
        self.reported = number;
        say(&match self.terminal.has_input {
            true => {
                "a browser has opened the address; if it was not yours, press Enter, which ends its session"
            }
            false => {
                "a browser has opened the address; if it was not yours, end this command and start it again"
            }
        });
        Ok(())
    }

    /// Sends the state, at most once a second.
    fn answer(&mut self, socket: BorrowedFd<'_>) -> Result<(), WebError> {
        if let Some(at) = self.read_at {
            thread::sleep(INTERVAL.saturating_sub(at.elapsed()));
        }
        let read = self.machine.read();
        self.read_at = Some(Instant::now());
        let sent = match read {
            Ok((facts, files)) => {
                if let Some(switches) = &mut self.switches {
                    switches.files = files;
                }
                send_facts(socket, &facts)
            }
            Err(reason) => send(socket, &ToServer::unreadable(&reason), &[]),
        };
        // The page shows why it has no state.
        let sent = unless_ended(sent).or_else(|error| {
            let reason = format!("cannot pass the state on to {PROGRAM}: {error}");
            unless_ended(send(socket, &ToServer::unreadable(&reason), &[]))
        });
        sent.map_err(WebError::Socket)
    }
}

/// Ignores that the process has ended, which the next turn reports.
fn unless_ended(sent: io::Result<()>) -> io::Result<()> {
    match sent {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        sent => sent,
    }
}

/// Logs which layers of the process's confinement hold.
fn log_layers(layers: &[Layer]) {
    for Layer { text, extent } in layers {
        let text: String = text
            .chars()
            .filter(|it| !it.is_control())
            .take(200)
            .collect();
        match extent {
            Extent::Full => tracing::debug!("{PROGRAM} is confined: {text}"),
            Extent::Partial => tracing::info!("{PROGRAM} is confined: {text}"),
            Extent::None => tracing::warn!("{PROGRAM} is less confined: {text}"),
        }
    }
}

/// Event for which this process waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wake {
    Message,
    Enter,
}

/// Standard input, if it is a terminal.
struct Terminal {
    has_input: bool,
}

impl Terminal {
    fn of_this_process() -> Self {
        Self {
            has_input: io::stdin().is_terminal(),
        }
    }

    /// Waits for a message at the socket, or for Enter.
    fn wait(&mut self, socket: BorrowedFd<'_>) -> io::Result<Wake> {
        let stdin = io::stdin();
        loop {
            // In the background, reading from the terminal would stop this process.
            let is_read = self.has_input && tcgetpgrp(&stdin).is_ok_and(|it| it == getpgrp());
            let mut files = vec![PollFd::from_borrowed_fd(socket, PollFlags::IN)];
            if is_read {
                files.push(PollFd::new(&stdin, PollFlags::IN));
            }
            let again = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            match poll(&mut files, self.has_input.then_some(&again)) {
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            let mut ready = files.iter().map(|file| !file.revents().is_empty());
            let (has_message, has_input) = (ready.next(), ready.next());
            // First, so that a process with many messages cannot keep the user from ending a session.
            if has_input == Some(true) {
                match rustix::io::read(&stdin, &mut [0; 256]) {
                    Ok(1..) => return Ok(Wake::Enter),
                    // The terminal is closed.
                    _ => self.has_input = false,
                }
            }
            if has_message == Some(true) {
                return Ok(Wake::Message);
            }
        }
    }
}

#[cfg(test)]
mod tests;
