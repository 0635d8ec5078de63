//! Machines with an uplink each, and the internet behind them.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, kill_process};
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::process::{Attempt, Process, is_emulated, wait_until};
use taupe_lab::sandbox::{scratch, scratch_file};
use taupe_lab::{Error, Result, ensure};
use taupe_os_linux::packet_process::broker_of;

/// The first machine's tunnel.
pub(crate) const INTERFACE: &str = "home";

/// Addresses behind the default route, of a server that reports its client's address.
pub(crate) const BEYOND: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1)),
];

/// An address of the same server in the first machine's local network.
pub(crate) const NEIGHBOUR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 2));

/// The first machine's addresses in the tunnel.
pub(crate) const TUNNEL: [&str; 2] = ["10.77.0.1", "fd77::1"];

/// The first machine's addresses on the uplink.
pub(crate) const UPLINK: [&str; 2] = ["192.168.1.1", "2001:db8:1::1"];

/// The WireGuard server's addresses in the tunnel.
pub(crate) const SERVER: [&str; 2] = ["10.77.0.254", "fd77::fe"];

/// Port of the WireGuard server.
pub(crate) const ENDPOINT_PORT: u16 = 51821;

/// Time to wait for an answer that must not come.
const PATIENCE: u64 = 20;

/// Port of the server that reports client addresses.
pub(crate) const PORT: u16 = 8080;

/// The machine `near`; its neighbour `far` is its router, its WireGuard server and the internet in
/// one.
///
/// The first machine has 192.168.1.1, and 10.77.0.1 in the tunnel; machine 2 has 192.168.2.1 and
/// 10.77.0.2, and so on.
pub(crate) struct World {
    pub(crate) near: Host,
    pub(crate) far: Host,
    /// Its tunnel.
    pub(crate) interface: String,
    /// The host part of its addresses in the tunnel.
    host: u8,
    /// The number of its uplink's network.
    number: u8,
    server: Rc<Server>,
    keys: Keys,
}

/// The WireGuard server, which runs as long as a world refers to it.
struct Server {
    tunnel: Tunnel,
    keys: Keys,
}

impl World {
    pub(crate) fn new() -> Result<Self> {
        // `ip netns exec` hides the machine's mount; objects pinned here disappear with the
        // sandbox.
        let pins = "/run/taupe/bpf";
        std::fs::create_dir_all(pins).map_err(Error::io(pins))?;
        mount("bpf", pins, "bpf", MountFlags::empty(), None).map_err(Error::io(pins))?;

        let far = Host::new("far")?;
        // Otherwise an address may appear in the middle of a test.
        far.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        for address in BEYOND {
            add_address(&far, "lo", &address.to_string())?;
            serve(&far, SocketAddr::new(address, PORT))?;
        }
        let keys = Keys::new(&far)?;
        let tunnel = Implementation::Taupe.start(&far, "wgfar")?;
        tunnel.configure(&Settings {
            private_key: &keys.private,
            listen_port: Some(ENDPOINT_PORT),
            addresses: &SERVER
                .map(|address| match address.contains(':') {
                    true => format!("{address}/64"),
                    false => format!("{address}/24"),
                })
                .each_ref()
                .map(String::as_str),
            peers: &[],
        })?;
        Self::behind(far, Rc::new(Server { tunnel, keys }), 1, "near", INTERFACE)
    }

    /// Creates another machine on the same internet, with this number and this tunnel.
    pub(crate) fn beside(&self, number: u8, name: &str, interface: &str) -> Result<Self> {
        let (far, server) = (self.far.clone(), Rc::clone(&self.server));
        Self::behind(far, server, number, name, interface)
    }

    fn behind(
        far: Host,
        server: Rc<Server>,
        number: u8,
        name: &str,
        interface: &str,
    ) -> Result<Self> {
        let near = Host::new(name)?;
        near.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        near.sysctl("net/ipv4/conf/all/rp_filter", "1")?;
        let keys = Keys::new(&near)?;
        let world = Self {
            near,
            far,
            interface: interface.to_owned(),
            host: number,
            number,
            server,
            keys,
        };
        world.introduce()?;
        let port = format!("eth{}", number - 1);
        world.wire("eth0", &port, number)?;
        world.near.ip(&[
            "route",
            "add",
            "default",
            "via",
            &format!("192.168.{number}.2"),
        ])?;
        world.near.ip(&[
            "-6",
            "route",
            "add",
            "default",
            "via",
            &format!("2001:db8:{number}::2"),
        ])?;
        serve(&world.far, SocketAddr::new(world.neighbour(), PORT))?;
        // The kernel adds an address after it has noticed that both ends of the cable are
        // connected, which takes up to a second, or longer on a busy machine. The route to the
        // address appears last.
        let own = ["ip", "-6", "route", "show", "table", "local", "dev", "eth0"];
        wait_until("the cable's own address", Duration::from_secs(30), || {
            Ok(world.near.run(&own)?.stdout.contains("fe80:"))
        })?;
        Ok(world)
    }

    /// Returns the same machine with another tunnel, in which it has this host part.
    pub(crate) fn with_another(&self, interface: &str, host: u8) -> Result<Self> {
        let another = Self {
            near: self.near.clone(),
            far: self.far.clone(),
            interface: interface.to_owned(),
            host,
            number: self.number,
            server: Rc::clone(&self.server),
            keys: Keys::new(&self.near)?,
        };
        another.introduce()?;
        Ok(another)
    }

    /// Adds the tunnel as a peer of the server.
    fn introduce(&self) -> Result<()> {
        let tunnel = self.tunnel();
        let peer = PeerSettings {
            public_key: &self.keys.public,
            preshared_key: None,
            endpoint: None,
            allowed_ips: &format!("{}/32, {}/128", tunnel[0], tunnel[1]),
        };
        let server = &self.server.tunnel;
        server.wg_with_input("addconf", &peer.to_string()).map(drop)
    }

    /// Lets the server send a keepalive at this interval in seconds; 0 disables it.
    pub(crate) fn calls(&self, seconds: u16) -> Result<()> {
        let interval = seconds.to_string();
        let peer = ["peer", &self.keys.public, "persistent-keepalive", &interval];
        self.server.tunnel.set(&peer).map(drop)
    }

    /// Connects a cable from `near` to `far`, with addresses of the network of this number.
    pub(crate) fn wire(&self, interface: &str, port: &str, network: u8) -> Result<()> {
        let addresses = |host: u8| {
            [
                format!("192.168.{network}.{host}/24"),
                format!("2001:db8:{network}::{host}/64"),
            ]
        };
        let [here, there] = [addresses(1), addresses(2)];
        link(
            self.near
                .port(interface, &here.each_ref().map(String::as_str)),
            self.far.port(port, &there.each_ref().map(String::as_str)),
            1500,
        )
    }

    /// Returns the address of `far` in its local network.
    pub(crate) fn neighbour(&self) -> IpAddr {
        Ipv4Addr::new(192, 168, self.number, 2).into()
    }

    /// Returns its addresses in the tunnel.
    pub(crate) fn tunnel(&self) -> [String; 2] {
        [
            format!("10.77.0.{}", self.host),
            format!("fd77::{}", self.host),
        ]
    }

    /// Returns its addresses on the uplink.
    pub(crate) fn uplink(&self) -> [String; 2] {
        [
            format!("192.168.{}.1", self.number),
            format!("2001:db8:{}::1", self.number),
        ]
    }

    /// Returns the WireGuard server.
    pub(crate) fn server(&self) -> &Tunnel {
        &self.server.tunnel
    }

    /// Returns the server's public key.
    pub(crate) fn server_key(&self) -> &str {
        &self.server.keys.public
    }

    /// Writes a file for `near` with these lines in its `[Peer]`.
    pub(crate) fn file(&self, peer: &str) -> Result<String> {
        let [v4, v6] = self.tunnel();
        let endpoint = SocketAddr::new(self.neighbour(), ENDPOINT_PORT);
        self.file_with_sections(
            &format!("Address = {v4}/32, {v6}/128"),
            &format!("Endpoint = {endpoint}\nAllowedIPs = 0.0.0.0/0, ::/0\n{peer}"),
        )
    }

    /// Writes a file for `near` with these lines beside the keys.
    pub(crate) fn file_with_sections(&self, interface: &str, peer: &str) -> Result<String> {
        scratch_file(
            &format!("{}.conf", self.interface),
            &format!(
                "[Interface]\nPrivateKey = {}\n{interface}\n\n[Peer]\nPublicKey = {}\n{peer}\n",
                self.keys.private,
                self.server_key()
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

    /// Runs `up` inside a cgroup namespace, whose root is a group without applications, and a time
    /// namespace. The group is removed at the end.
    pub(crate) fn up_from_a_container(&self, file: &str) -> Result<()> {
        const SCRIPT: &str = r#"
            root=$(mktemp -d) && mount -t cgroup2 none "$root" || exit
            group=$root/taupe-lab-$$
            mkdir "$group" && (
                echo 0 > "$group/cgroup.procs" &&
                exec unshare --fork --cgroup --time --monotonic 100000 "$@"
            )
            status=$?
            # A process that is listed may have started another one before it is moved.
            for attempt in 1 2 3 4 5 6 7 8 9; do
                while read -r id; do
                    echo "$id" > "$root/cgroup.procs"
                done < "$group/cgroup.procs"
                rmdir "$group" 2>/dev/null && break
            done
            test ! -e "$group" || { echo "$group is left" >&2; status=1; }
            umount "$root" && rmdir "$root"
            exit $status
        "#;
        let program = Implementation::Taupe.program()?.display().to_string();
        let command = ["sh", "-c", SCRIPT, "sh", &program, "up", file];
        succeeded("up", &self.near.attempt(&command)?)
    }

    pub(crate) fn down(&self, file: &str) -> Result<()> {
        succeeded("down", &self.taupe(&["down", file])?)
    }

    /// Runs `up --foreground` with these options, and waits until an application uses the tunnel.
    pub(crate) fn stay_up(
        &self,
        options: &[&str],
        file: &str,
        selected: &Application,
    ) -> Result<Process> {
        let program = Implementation::Taupe.program()?.display().to_string();
        let command = [&[&*program, "up", "--foreground"], options, &[file]].concat();
        let mut process = self.near.spawn(&command)?;
        // A connection opened earlier would have to end first. The kernel of an emulated machine may
        // leave gaps, which make the tunnel degraded.
        let states: &[_] = if is_emulated() {
            &["up", "degraded"]
        } else {
            &["up"]
        };
        let standing = states
            .iter()
            .map(|state| format!("{}: {state}", self.interface));
        let standing: Vec<_> = standing.collect();
        wait_until("the tunnel", Duration::from_secs(20), || {
            ensure!(process.runs()?, "it ended: {}", process.output());
            let status = self.taupe(&["status", &self.interface])?;
            Ok(standing.iter().any(|it| status.stdout.starts_with(it)))
        })?;
        expect(self, selected, 0, Some(&self.tunnel()[0]))?;
        Ok(process)
    }

    /// Waits until the server has received the tunnel's first handshake; before, it cannot reach
    /// the tunnel. The file needs a `PersistentKeepalive`.
    pub(crate) fn meet(&self) -> Result<()> {
        wait_until("a handshake", Duration::from_secs(30), || {
            let handshake = self
                .server()
                .field("latest-handshakes", &self.keys.public)?;
            Ok(handshake != "0")
        })
    }

    /// Returns the id of the process that carries the tunnel's packets.
    pub(crate) fn device(&self) -> Result<Pid> {
        self.server_of(&self.interface)
    }

    /// Returns the id of the tunnel's daemon, the broker of [`Self::device`].
    pub(crate) fn daemon(&self) -> Result<Pid> {
        let device = self.device()?;
        broker_of(device).ok_or_else(|| Error::unmet(format!("{device:?} has no broker")))
    }

    /// Returns the id of the process that listens at the configuration socket of an interface.
    pub(crate) fn server_of(&self, interface: &str) -> Result<Pid> {
        let socket = format!("/var/run/wireguard/{interface}.sock");
        let listed = self.near.run(&["ss", "-xlpH", "src", &socket])?.stdout;
        let number = listed
            .split("pid=")
            .nth(1)
            .and_then(|rest| rest.split([',', ')']).next());
        let process = number
            .and_then(|number| number.parse().ok())
            .and_then(Pid::from_raw);
        process.ok_or_else(|| Error::unmet(format!("no process at {socket}: {listed}")))
    }

    /// Kills the process, and waits until its interface is gone.
    pub(crate) fn kill_device(&self) -> Result<()> {
        kill_process(self.device()?, Signal::KILL).map_err(Error::io("kill"))?;
        self.wait_for_end()
    }

    /// Waits until the interface is gone.
    pub(crate) fn wait_for_end(&self) -> Result<()> {
        wait_until("end of the interface", Duration::from_secs(15), || {
            let show = ["ip", "link", "show", "dev", &self.interface];
            Ok(self.near.attempt(&show)?.status != Some(0))
        })
    }

    /// Returns the client address of an application as seen by the server beyond; `None` without an
    /// answer.
    pub(crate) fn asks(&self, application: &Application, server: IpAddr) -> Result<Option<String>> {
        self.asks_from(&self.near, application, server)
    }

    /// The same for an application on any machine.
    pub(crate) fn asks_from(
        &self,
        host: &Host,
        application: &Application,
        server: IpAddr,
    ) -> Result<Option<String>> {
        // The shell opens the connection itself, so the socket belongs to it.
        let ask = format!("exec 3<>/dev/tcp/{server}/{PORT} && read -r -u 3 line && echo $line");
        let Application(path) = application;
        let attempt = host.attempt(&["timeout", &PATIENCE.to_string(), path, "-c", &ask])?;
        Ok((attempt.status == Some(0)).then(|| attempt.stdout.trim().to_owned()))
    }

    /// Checks that the configuration is unchanged, and names differences otherwise.
    pub(crate) fn is_as_before(&self, before: &(String, Vec<String>), what: &str) -> Result<()> {
        let now = self.configuration()?;
        let lines = |(all, links): &(String, Vec<String>)| -> Vec<String> {
            all.lines()
                .map(str::to_owned)
                .chain(links.clone())
                .collect()
        };
        let (old, new) = (lines(before), lines(&now));
        let gone = old.iter().filter(|line| !new.contains(line));
        let come = new.iter().filter(|line| !old.contains(line));
        let gone: Vec<_> = gone.collect();
        let come: Vec<_> = come.collect();
        ensure!(
            now == *before,
            "{what} on {}: gone {gone:#?}, come {come:#?}",
            self.near.name()
        );
        Ok(())
    }

    /// Returns the visible network configuration, with the lines about links separately.
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

/// Checks the client address of an application at the server beyond; `None` if the server must not
/// receive anything.
pub(crate) fn expect(
    world: &World,
    application: &Application,
    family: usize,
    who: Option<&str>,
) -> Result<()> {
    let found = world.asks(application, BEYOND[family])?;
    ensure!(
        found.as_deref() == who,
        "{} is {found:?} to {}, not {who:?}",
        application.0,
        BEYOND[family]
    );
    Ok(())
}

/// Checks that an application is rejected in both families, at once: an attempt whose packets are
/// dropped would end only after [`PATIENCE`].
pub(crate) fn expect_refused(world: &World, application: &Application) -> Result<()> {
    for family in [0, 1] {
        let began = Instant::now();
        expect(world, application, family, None)?;
        ensure!(
            began.elapsed() < Duration::from_secs(PATIENCE * 3 / 4),
            "it was not refused at once"
        );
    }
    Ok(())
}

/// A program that connects to servers: a copy of a shell under another name.
pub(crate) struct Application(pub(crate) String);

impl Application {
    /// Creates an application of this name.
    pub(crate) fn new(name: &str) -> Result<Self> {
        Self::copy_of(Path::new("/bin/bash"), name)
    }

    /// Copies another program under this name.
    pub(crate) fn copy_of(program: &Path, name: &str) -> Result<Self> {
        let folder = scratch("applications");
        std::fs::create_dir_all(&folder).map_err(Error::io("applications"))?;
        let path = folder.join(name);
        std::fs::copy(program, &path).map_err(Error::io(program.display().to_string()))?;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, mode).map_err(Error::io(name))?;
        Ok(Self(path.display().to_string()))
    }
}

/// Returns the line of a tunnel's file that has the private key, and the key.
pub(crate) fn private_key(text: &str) -> Result<(&str, &str)> {
    let pair = |line| Some((line, str::strip_prefix(line, "PrivateKey = ")?));
    let found = text.lines().find_map(pair);
    found.ok_or_else(|| Error::unmet("a file with a private key"))
}

/// Runs a server that tells every client its address.
pub(crate) fn serve(host: &Host, at: SocketAddr) -> Result<()> {
    let listener = host.enter(|| TcpListener::bind(at).map_err(Error::io(at.to_string())))?;
    // Until the sandbox ends.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let Ok(peer) = stream.peer_addr() else { return };
                let _ = writeln!(stream, "{}", peer.ip());
                let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
                // Until the client closes.
                let _ = stream.read(&mut [0]);
            });
        }
    });
    Ok(())
}
