//! Commands about a tunnel that another version of Taupe has brought up, such as the version before an
//! upgrade. If the layout of its eBPF maps or of its journal is another one, this version cannot work on
//! it. The tunnel's own program can: the kernel keeps it while it runs, even if its file was replaced.

use crate::arguments::{Action, Order, TunnelOrder};
use crate::console::say;
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use taupe_adapter::State;
use taupe_inspect::conf;
use taupe_os_linux::packet_process::broker_of;
use taupe_transparent::capture;
use taupe_transparent::error::TransparentError;

/// Environment variable of a program that was started by another version.
const HANDED_OVER: &str = "TAUPE_HANDED_OVER";

/// Has the tunnel's own program execute the command, and does not return, if this version cannot do it
/// and that program runs.
pub(crate) fn hand_over(order: &Order, arguments: &[OsString]) {
    let interface = tunnel(order).and_then(conf::interface);
    let Some(interface) = interface.filter(|_| std::env::var_os(HANDED_OVER).is_none()) else {
        return;
    };
    let interface = interface.as_str();
    if !is_of_another_version(interface) {
        return;
    }
    let (Some(process), [name, arguments @ ..]) = (process(interface), arguments) else {
        return;
    };
    let program = format!("/proc/{process}/exe");
    let error = Command::new(&program)
        .arg0(name)
        .args(arguments)
        .env(HANDED_OVER, "1")
        .exec();
    say(&format_args!(
        "[!] another version of Taupe has brought {interface} up, and its program {program} cannot be \
         started: {error}"
    ));
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

/// Returns the tunnel's packet process, if root has started it. Another implementation has none.
fn process(interface: &str) -> Option<Pid> {
    let socket = taupe_client::socket_path(interface);
    let connection = taupe_client::connect_to(&socket).ok()?;
    let peer = socket_peercred(&connection).ok()?;
    (peer.uid.is_root() && broker_of(peer.pid).is_some()).then_some(peer.pid)
}
