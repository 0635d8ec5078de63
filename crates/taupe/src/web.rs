//! `taupe web`: a page about tunnels and applications for a browser of this machine.
//!
//! Two processes serve it: this one, which has the rights to read the state, and the program
//! `taupe-web`, which parses requests and has no rights.

use crate::arguments::WebOrder;
use crate::console::{NotPrinted, print, say};
use crate::flows;
use crate::listening::{ListenUnixError, bind_unix};
use crate::root;
use crate::status::with_advice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};
use taupe_adapter::Compatibility;
use taupe_inspect::flows as inspect_flows;
use taupe_inspect::metrics::live::Facts;
use taupe_inspect::status::Files;
use taupe_os_linux::message_socket;
use taupe_os_linux::own_program::run_helper;
use taupe_web_link::{PROGRAM, Secret, Start, ToParent, ToServer, receive, send, send_facts};

/// Shortest time between two readings.
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
    #[error(
        "there is no {PROGRAM} in {0}; install Taupe's package with the page, or build it (`cargo build -p {PROGRAM}`)"
    )]
    Missing(String),
    #[error("cannot run {PROGRAM}, which serves the page: {0}")]
    Server(#[source] io::Error),
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
    let program = find_program()?;
    let tcp = order.listen.map(|address| {
        TcpListener::bind(address).map_err(|error| WebError::Listen(address, error))
    });
    let (tcp, unix) = (tcp.transpose()?, order.unix.as_deref().map(bind_unix));
    let unix = unix.transpose()?;
    let address = tcp.as_ref().map(TcpListener::local_addr).transpose();
    let address = address.map_err(WebError::Server)?;
    let page = Page {
        address,
        unix: order.unix.clone(),
    };
    let token = Secret::random().map_err(WebError::Server)?;
    let server = Server::start(&program, tcp.as_ref(), unix.as_ref(), &page, &token)?;
    drop((tcp, unix));
    server.run(&page, &token)
}

/// Returns the path of the program that serves the page: in `libexec` beside the folder `bin` of this
/// program, or beside this program.
fn find_program() -> Result<PathBuf, WebError> {
    let own = env::current_exe().map_err(WebError::Server)?;
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
struct Page {
    address: Option<SocketAddr>,
    unix: Option<PathBuf>,
}

impl Page {
    /// Prints the addresses with a token.
    fn print(&self, token: &Secret) -> Result<(), NotPrinted> {
        let token = token.reveal();
        let mut text = String::new();
        if let Some(address) = self.address {
            text += &format!("http://{address}/?token={token}\n");
        }
        if let Some(path) = &self.unix {
            text += &format!("http://localhost/?token={token} at {}\n", path.display());
        }
        print(text.as_bytes())
    }
}

/// The process that serves the page.
struct Server {
    child: Child,
    socket: OwnedFd,
    /// Beginning of the latest reading.
    read_at: Option<Instant>,
    /// The files of the latest reading.
    files: Files,
}

impl Server {
    /// Starts it, with these listening sockets.
    fn start(
        program: &Path,
        tcp: Option<&TcpListener>,
        unix: Option<&UnixListener>,
        page: &Page,
        token: &Secret,
    ) -> Result<Self, WebError> {
        let start = Start {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            port: page.address.map(|address| address.port()),
            has_unix: unix.is_some(),
            token: token.clone(),
        };
        let listeners = tcp.map(TcpListener::as_fd).into_iter();
        let listeners: Vec<_> = listeners.chain(unix.map(UnixListener::as_fd)).collect();
        let started = || {
            let (socket, theirs) = message_socket::pair()?;
            let server = Self {
                child: run_helper(program, PROGRAM, &theirs)?,
                socket,
                read_at: None,
                files: Files::default(),
            };
            send(server.socket.as_fd(), &ToServer::Start(start), &listeners)?;
            Ok(server)
        };
        started().map_err(WebError::Server)
    }

    /// Reads the state whenever the process wants it, until it ends.
    fn run(mut self, page: &Page, token: &Secret) -> Result<std::convert::Infallible, WebError> {
        let mut terminal = Terminal::of_this_process();
        let mut is_serving = false;
        loop {
            if terminal.wait(&self.socket).map_err(WebError::Server)? == Wake::Enter {
                let token = Secret::random().map_err(WebError::Server)?;
                page.print(&token)?;
                self.pass(|socket| send(socket.as_fd(), &ToServer::Token(token), &[]))?;
                continue;
            }
            let received = receive::<ToParent>(self.socket.as_fd());
            let Some((event, _)) = received.map_err(WebError::Server)? else {
                let ended = self.child.wait().map_err(WebError::Server)?;
                return Err(WebError::ServerEnded(ended));
            };
            match event {
                // Once: this process does not trust the other one.
                ToParent::Serving if is_serving => {}
                ToParent::Serving => {
                    is_serving = true;
                    page.print(token)?;
                    if terminal.has_input {
                        say(
                            &"Open this address within 60 seconds. Enter prints another one, Ctrl-C ends.",
                        );
                    }
                    crate::system::notify_ready();
                }
                ToParent::Wanted => self.answer()?,
            }
        }
    }

    /// Sends the state, at most once a second.
    fn answer(&mut self) -> Result<(), WebError> {
        if let Some(at) = self.read_at {
            thread::sleep(INTERVAL.saturating_sub(at.elapsed()));
        }
        self.read_at = Some(Instant::now());
        // A tunnel that cannot be read has a finding.
        let listed = inspect_flows::look(None, &mut |_| {});
        let facts = Facts::read(
            listed.map_err(|error| flows::with_advice(&error)),
            &mut self.files,
        );
        self.pass(|socket| match &facts {
            Ok(facts) => send_facts(socket.as_fd(), facts),
            Err(error) => {
                let reason = with_advice(error);
                send(socket.as_fd(), &ToServer::Unreadable(reason), &[])
            }
        })
    }

    /// Sends something. If the process has ended, the next turn says so.
    fn pass(&self, send: impl FnOnce(&OwnedFd) -> io::Result<()>) -> Result<(), WebError> {
        match send(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(WebError::Server(error)),
            _ => Ok(()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended, or must not outlive this process.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
    fn wait(&mut self, socket: &OwnedFd) -> io::Result<Wake> {
        let stdin = io::stdin();
        loop {
            // In the background, reading from the terminal would stop this process.
            let is_read = self.has_input && tcgetpgrp(&stdin).is_ok_and(|it| it == getpgrp());
            let mut files = vec![PollFd::new(socket, PollFlags::IN)];
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
            if has_message == Some(true) {
                return Ok(Wake::Message);
            }
            if has_input == Some(true) {
                match rustix::io::read(&stdin, &mut [0; 256]) {
                    Ok(1..) => return Ok(Wake::Enter),
                    // The terminal is closed.
                    _ => self.has_input = false,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::folders;
    use std::path::Path;

    #[test]
    fn the_helper_is_in_libexec_or_beside() {
        for (own, expected) in [
            ("/usr/bin/taupe", &["/usr/libexec", "/usr/bin"][..]),
            ("/src/target/debug/taupe", &["/src/target/debug"]),
        ] {
            let expected: Vec<_> = expected.iter().map(Path::new).collect();
            assert_eq!(folders(Path::new(own)), expected);
        }
    }
}
