//! Commands about a tunnel that another version of Taupe has brought up, such as the version before an
//! upgrade. If the layout of its eBPF maps or of its journal is another one, this version cannot work on
//! it. The tunnel's own program can: the kernel keeps it while it runs, even if its file was replaced.

use crate::arguments::{Action, Order, TunnelOrder};
use crate::console::say;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use taupe_adapter::State;
use taupe_inspect::conf;
use taupe_os_linux::packet_process::broker_of;
use taupe_transparent::capture;
use taupe_transparent::error::TransparentError;

/// Environment variable of a program that another version has started: the interface. Commands of its
/// file about other tunnels can be handed over in turn.
const HANDED_OVER: &str = "TAUPE_HANDED_OVER";

/// Replaces this process by the tunnel's own program, which executes the same command, if this version
/// cannot. Returns if there is no need, or if that program has ended or cannot be started.
pub(crate) fn hand_over(order: &Order, arguments: &[OsString]) {
    let interface = tunnel(order).and_then(conf::interface);
    let (Some(interface), [name, arguments @ ..]) = (interface, arguments) else {
        return;
    };
    if let Some(mut program) = OtherProgram::of(interface.as_str()) {
        let error = program.command.arg0(name).args(arguments).exec();
        say(&format_args!("[!] that program cannot be started: {error}"));
    }
}

/// The program of a tunnel that this version cannot read.
pub(crate) struct OtherProgram {
    command: Command,
    /// The program's file, which the command names by its number.
    _file: File,
}

impl OtherProgram {
    /// Finds the program, and prints that it will execute the command.
    pub(crate) fn of(interface: &str) -> Option<Self> {
        let is_handed_over = std::env::var_os(HANDED_OVER).is_some_and(|name| name == interface);
        if is_handed_over || !is_of_another_version(interface) {
            return None;
        }
        let file = program(interface)?;
        say(&format_args!(
            "another version of Taupe has brought {interface} up, and its program executes this"
        ));
        let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
        command.env(HANDED_OVER, interface);
        Some(Self {
            command,
            _file: file,
        })
    }

    /// Runs the program with these arguments, and waits for its end.
    ///
    /// # Errors
    ///
    /// The program cannot be started.
    pub(crate) fn run(mut self, arguments: &[&OsStr]) -> io::Result<ExitStatus> {
        self.command.arg0("taupe").args(arguments).status()
    }
}

/// Returns the word by which a command names a tunnel that exists.
fn tunnel(order: &Order) -> Option<&OsStr> {
    let word = match order {
        Order::Tunnel(TunnelOrder { action, file, .. }) => match action {
            Action::Down { .. } | Action::Lock | Action::Reload | Action::Save => Some(file),
            Action::Up(_) | Action::Strip => None,
        },
        Order::App(order) => Some(&order.file),
        Order::Status(order) => order.file.as_ref(),
        Order::Flows(order) => order.file.as_ref(),
        Order::Explain(order) => order.file.as_ref(),
        _ => None,
    };
    word.map(OsString::as_os_str)
}

fn is_of_another_version(interface: &str) -> bool {
    let layout = capture::lock(interface);
    matches!(layout, Err(TransparentError::Schema { .. }))
        || State::default().is_of_another_version(interface)
}

/// Opens the program of the tunnel's packet process. Returns `None` if the device is not Taupe's or not
/// root's, if it runs in a container, or if others can write to the program.
fn program(interface: &str) -> Option<File> {
    let socket = taupe_client::socket_path(interface);
    let connection = taupe_client::connect_to(&socket).ok()?;
    let peer = socket_peercred(&connection).ok()?;
    let of_peer = |name: &str| format!("/proc/{}/{name}", peer.pid);
    let namespace = |path: &str| fs::read_link(path).ok();
    let is_here = ["ns/pid", "ns/user"].iter().all(|name| {
        namespace(&of_peer(name))
            .is_some_and(|it| Some(it) == namespace(&format!("/proc/self/{name}")))
    });
    let is_ours = peer.uid.is_root() && is_here && broker_of(peer.pid).is_some();
    let program = File::open(of_peer("exe")).ok().filter(|_| is_ours)?;
    let data = program.metadata().ok()?;
    let is_safe = data.uid() == 0 && data.mode() & 0o022 == 0;
    // As long as the peer holds the connection, its number is not another process's.
    let mut peer = [PollFd::new(&connection, PollFlags::IN)];
    let is_connected = poll(&mut peer, Some(&Timespec::default())) == Ok(0);
    (is_safe && is_connected).then_some(program)
}
