//! Transparent mode: the measuring programs connect to the other machine as if there were no
//! tunnel, and are either selected applications or not.

use super::wireguard::{self, WireGuard};
use super::{Contestant, End, PackedProgram};
use crate::pair::Pair;
use crate::side::{PORT, Side};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Process, wait_until};

/// Time limit for `taupe up`.
const UP: Duration = Duration::from_secs(20);

/// The server's side, the same as for an ordinary tunnel.
const SERVER: WireGuard = wireguard::program(Implementation::Taupe, "Taupe");

/// `taupe up` with a file that selects applications.
#[derive(Debug)]
pub(super) struct Transparent {
    id: &'static str,
    title: &'static str,
    /// True if the measuring programs are selected.
    selected: bool,
}

/// The traffic of the measuring programs goes through the tunnel.
pub(super) const SELECTED: Transparent = Transparent {
    id: "taupe-transparent",
    title: "Taupe, transparent",
    selected: true,
};

/// The traffic of the measuring programs bypasses the tunnel, which is up. This measures the cost
/// for applications that are not selected.
pub(super) const NOT_SELECTED: Transparent = Transparent {
    id: "direct-past-taupe",
    title: "no tunnel, past Taupe",
    selected: false,
};

impl Contestant for Transparent {
    fn id(&self) -> &str {
        self.id
    }

    fn title(&self) -> &str {
        self.title
    }

    fn install(&self) -> Result<()> {
        SERVER.install()
    }

    fn version(&self) -> Result<Option<String>> {
        SERVER.version()
    }

    fn packed(&self) -> Result<Vec<PackedProgram>> {
        SERVER.packed()
    }

    fn prepare(&self, pair: &Pair) -> Result<()> {
        SERVER.prepare(pair)
    }

    fn start(&self, pair: &Pair, side: Side) -> Result<End> {
        match side {
            Side::Server => Ok(End {
                address: side.outer().into(),
                ..SERVER.start(pair, side)?
            }),
            Side::Client => {
                let interface = wireguard::interface();
                let process = self.up(pair, &interface)?;
                let (address, interface) = match self.selected {
                    true => (side.inner(), interface),
                    false => (side.outer(), PORT.to_owned()),
                };
                Ok(End {
                    address: address.into(),
                    interface: Some(interface),
                    processes: vec![process],
                })
            }
        }
    }
}

impl Transparent {
    /// Brings the client's side up, and waits for its notification.
    fn up(&self, pair: &Pair, interface: &str) -> Result<Process> {
        let file = pair.write(&format!("{interface}.conf"), &self.file(pair)?)?;
        let notices = pair.path("notify");
        // The notification socket of an earlier start.
        let _ = fs::remove_file(&notices);
        let socket = UnixDatagram::bind(&notices).map_err(Error::io(&*notices))?;
        socket.set_nonblocking(true).map_err(Error::io(&*notices))?;
        let program = Implementation::Taupe.program()?.display().to_string();
        let mut command = pair
            .client
            .command(&[&program, "up", "--foreground", &file]);
        command.env("NOTIFY_SOCKET", &notices);
        let mut process = Process::start(pair.client.name(), command)?;
        wait_until("taupe up", UP, || {
            ensure!(process.runs()?, "taupe up ended: {}", process.output());
            let mut notice = [0; 256];
            let length = socket.recv(&mut notice).unwrap_or(0);
            let notice = notice.get(..length).unwrap_or_default();
            Ok(notice
                .split(|byte| *byte == b'\n')
                .any(|line| line == b"READY=1"))
        })?;
        Ok(process)
    }

    /// Returns the client's file: an ordinary tunnel for all destinations, and the selected
    /// applications.
    fn file(&self, pair: &Pair) -> Result<String> {
        let path = pair.path(wireguard::file(Side::Client));
        let ordinary = fs::read_to_string(&path).map_err(Error::io(&*path))?;
        let own = std::env::current_exe().map_err(Error::io("own executable"))?;
        let apps = match self.selected {
            // `taupe-lab` itself also sends pings and datagrams.
            true => format!("iperf3, qperf, ping, {}", own.display()),
            false => "nobody-of-these".to_owned(),
        };
        let (head, rest) = ordinary
            .split_once('\n')
            .ok_or_else(|| Error::unmet(format!("{path} is empty")))?;
        Ok(format!(
            "{head}\nAddress = {}/24\nMTU = {}\n{rest}AllowedIPs = 0.0.0.0/0\nAllowedApps = {apps}\n",
            Side::Client.inner(),
            wireguard::MTU,
        ))
    }
}
