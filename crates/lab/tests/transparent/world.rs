//! A machine with an uplink, and the internet behind it.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use rustix::mount::{MountFlags, mount};
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::process::Attempt;
use taupe_lab::sandbox::{scratch, scratch_file};
use taupe_lab::{Error, Result, ensure};

/// The tunnel's interface on `near`.
pub(crate) const INTERFACE: &str = "home";

/// Addresses behind the default route, of a server that tells its clients who
/// they are.
pub(crate) const BEYOND: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 1)),
];

/// One in the local network, of the same server.
pub(crate) const NEIGHBOUR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 2));

/// Who `near` is in the tunnel.
pub(crate) const TUNNEL: [&str; 2] = ["10.77.0.1", "fd77::1"];

/// Who it is without.
pub(crate) const UPLINK: [&str; 2] = ["192.168.1.1", "2001:db8::1"];

/// How long a program waits for an answer that will not come.
const PATIENCE: &str = "3";

/// The server's port.
const PORT: u16 = 8080;

/// The machine `near`; its neighbour `far` is its router, its WireGuard server and
/// the internet in one.
pub(crate) struct World {
    pub(crate) near: Host,
    pub(crate) far: Host,
    /// Keeps the server running.
    _server: Tunnel,
    keys: [Keys; 2],
}

impl World {
    pub(crate) fn new() -> Result<Self> {
        // `ip netns exec` hides the machine's; what is pinned here goes with the
        // sandbox.
        let pins = "/run/taupe/bpf";
        std::fs::create_dir_all(pins).map_err(Error::io(pins))?;
        mount("bpf", pins, "bpf", MountFlags::empty(), None).map_err(Error::io(pins))?;

        let (near, far) = (Host::new("near")?, Host::new("far")?);
        // Otherwise an address appears while a test looks.
        near.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        far.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        near.sysctl("net/ipv4/conf/all/rp_filter", "1")?;
        link(
            near.port("eth0", &["192.168.1.1/24", "2001:db8::1/64"]),
            far.port("eth0", &["192.168.1.2/24", "2001:db8::2/64"]),
            1500,
        )?;
        near.ip(&["route", "add", "default", "via", "192.168.1.2"])?;
        near.ip(&["-6", "route", "add", "default", "via", "2001:db8::2"])?;
        for address in BEYOND {
            add_address(&far, "lo", &address.to_string())?;
            serve(&far, SocketAddr::new(address, PORT))?;
        }
        serve(&far, SocketAddr::new(NEIGHBOUR, PORT))?;
        let keys = [Keys::new(&near)?, Keys::new(&far)?];
        let server = Implementation::Taupe.start(&far, "wgfar")?;
        server.configure(&Settings {
            private_key: &keys[1].private,
            listen_port: Some(51821),
            addresses: &["10.77.0.2/24", "fd77::2/64"],
            peers: &[PeerSettings {
                public_key: &keys[0].public,
                preshared_key: None,
                endpoint: None,
                allowed_ips: "10.77.0.1/32, fd77::1/128",
            }],
        })?;
        Ok(Self {
            near,
            far,
            _server: server,
            keys,
        })
    }

    /// Writes a file for `near` with these lines in its `[Peer]`.
    pub(crate) fn file(&self, peer: &str) -> Result<String> {
        self.whole_file(
            "Address = 10.77.0.1/32, fd77::1/128",
            &format!("Endpoint = 192.168.1.2:51821\nAllowedIPs = 0.0.0.0/0, ::/0\n{peer}"),
        )
    }

    /// Writes a file for `near` with these lines beside the keys.
    pub(crate) fn whole_file(&self, interface: &str, peer: &str) -> Result<String> {
        let [near, far] = &self.keys;
        scratch_file(
            &format!("{INTERFACE}.conf"),
            &format!(
                "[Interface]\nPrivateKey = {}\n{interface}\n\n[Peer]\nPublicKey = {}\n{peer}\n",
                near.private, far.public
            ),
        )
    }

    /// Runs the command on `near`.
    pub(crate) fn taupe(&self, arguments: &[&str]) -> Result<Attempt> {
        let program = Implementation::Taupe.program()?;
        let program = program.display().to_string();
        self.near.attempt(&[&[&*program], arguments].concat())
    }

    pub(crate) fn up(&self, file: &str) -> Result<()> {
        succeeded("up", &self.taupe(&["up", file])?)
    }

    pub(crate) fn down(&self, file: &str) -> Result<()> {
        succeeded("down", &self.taupe(&["down", file])?)
    }

    /// Who the server beyond takes an application for that asks it; `None` when it
    /// gets no answer.
    pub(crate) fn asks(&self, application: &Application, server: IpAddr) -> Result<Option<String>> {
        // The shell opens the connection itself: it is its own.
        let ask = format!("exec 3<>/dev/tcp/{server}/{PORT} && read -r -u 3 line && echo $line");
        let Application(path) = application;
        let attempt = self
            .near
            .attempt(&["timeout", PATIENCE, path, "-c", &ask])?;
        Ok((attempt.status == Some(0)).then(|| attempt.stdout.trim().to_owned()))
    }

    /// All that somebody sees of the network's configuration; the lines about
    /// links apart.
    pub(crate) fn configuration(&self) -> Result<(String, Vec<String>)> {
        let mut all = String::new();
        for command in [
            &["ip", "-4", "route", "show", "table", "all"][..],
            &["ip", "-6", "route", "show", "table", "all"],
            &["ip", "rule"],
            &["ip", "-6", "rule"],
            &["ip", "-o", "address"],
            &["nft", "list", "ruleset"],
            &["cat", "/etc/resolv.conf"],
        ] {
            let output = self.near.run(command)?;
            all += &format!("# {}\n{}\n", command.join(" "), output.stdout);
        }
        let settings = "cd /proc/sys/net && grep -r . ipv4/conf/all ipv4/conf/default \
                        ipv4/conf/eth0 ipv6/conf/all ipv6/conf/default ipv6/conf/eth0 \
                        ipv4/ip_forward 2>/dev/null | grep -v stable_secret | sort";
        all += &self.near.run(&["sh", "-c", settings])?.stdout;
        let links = self.near.run(&["ip", "-o", "link"])?.stdout;
        Ok((all, links.lines().map(str::to_owned).collect()))
    }
}

pub(crate) fn succeeded(what: &str, attempt: &Attempt) -> Result<()> {
    ensure!(
        attempt.status == Some(0),
        "taupe {what}: {}{}",
        attempt.stdout,
        attempt.stderr
    );
    Ok(())
}

/// A program that talks to servers: a shell by another name.
pub(crate) struct Application(pub(crate) String);

impl Application {
    /// One of this name.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let folder = scratch("applications");
        std::fs::create_dir_all(&folder).map_err(Error::io("applications"))?;
        let path = folder.join(name);
        std::fs::copy("/bin/bash", &path).map_err(Error::io("/bin/bash"))?;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, mode).map_err(Error::io(name))?;
        Ok(Self(path.display().to_string()))
    }
}

/// Tells everybody who connects the address that they have.
fn serve(host: &Host, at: SocketAddr) -> Result<()> {
    let listener = host.enter(|| TcpListener::bind(at).map_err(Error::io(at.to_string())))?;
    // Until the sandbox ends.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let Ok(peer) = stream.peer_addr() else { return };
                let _ = writeln!(stream, "{}", peer.ip());
                let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
                // Until it closes.
                let _ = stream.read(&mut [0]);
            });
        }
    });
    Ok(())
}
