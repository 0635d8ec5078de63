//! Start and end of a device, and the release of its resources.

use crate::pair::{End, FAR, NEAR, NEAR_OUTER, Pair, await_port, neighbours};
use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use taupe_lab::host::Host;
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Quirks, Settings, Tunnel};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::scratch_file;
use taupe_lab::traffic::{first_answer, ping, serve_echo, tcp_echo};
use taupe_lab::uapi::socket;
use taupe_lab::{Error, Result, ensure, uapi};

/// The interface is moved into a machine that is then deleted, and the interface with it: the
/// program ends, its socket is removed, its name is free.
pub(crate) fn ends_with_its_namespace() -> Result<()> {
    let (host, other) = (Host::new("a")?, Host::new("b")?);
    let mut end = End::start(&host, "wg0", &[])?;
    host.move_interface("wg0", &other)?;
    other.ip(&["link", "set", "wg0", "up"])?;
    end.tunnel.set(&["listen-port", "1111"])?;
    other.delete()?;
    let process = end.tunnel.process();
    let process = process.ok_or_else(|| Error::unmet("no program"))?;
    let status = process.wait(Duration::from_secs(10))?;
    ensure!(status.success(), "it ended with {status}");
    ensure!(!socket("wg0").exists(), "the socket remains");
    let again = End::start(&host, "wg0", &[])?;
    again.link(&["up"])
}

/// Resources of a program.
#[derive(Debug, PartialEq, Eq)]
struct Resources {
    descriptors: usize,
    threads: Vec<String>,
}

impl Resources {
    /// Returns the resources of each process.
    fn of_all(processes: &[u32]) -> Result<Vec<Self>> {
        processes.iter().map(|process| Self::of(*process)).collect()
    }

    fn of(process: u32) -> Result<Self> {
        let entries = |what: &str| {
            let path = format!("/proc/{process}/{what}");
            fs::read_dir(&path).map_err(Error::io(path))
        };
        let mut threads: Vec<_> = entries("task")?
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
            .map(|name| name.trim().to_owned())
            .collect();
        threads.sort();
        Ok(Self {
            descriptors: entries("fd")?.count(),
            threads,
        })
    }
}

/// Returns the resident memory of some processes in KiB (`proc_pid_status(5)`).
pub(crate) fn resident(processes: &[u32]) -> Result<u64> {
    processes.iter().map(|process| resident_of(*process)).sum()
}

fn resident_of(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).map_err(Error::io(&*path))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| Error::unmet(format!("{path} has no VmRSS")))
}

/// After many changes of the port and the link, and many clients, the program uses no more
/// resources than at first, and carries packets.
pub(crate) fn resources_return_to_baseline() -> Result<()> {
    const PORTS: u16 = 200;
    const LINKS: usize = 200;
    const CLIENTS: usize = 500;
    let mut pair = Pair::new()?;
    let processes = pair.near.ids()?;
    let near = pair.near.host.clone();
    ping(&near, FAR, 5)?;
    let before = Resources::of_all(&processes)?;
    let memory = resident(&processes)?;
    let back = |what: &str| {
        let mut now = Resources::of_all(&processes)?;
        let settled = wait_until("the baseline", Duration::from_secs(10), || {
            now = Resources::of_all(&processes)?;
            Ok(now == before)
        });
        settled.map_err(|_| Error::unmet(format!("after {what}: {now:?}, before: {before:?}")))
    };

    for port in 0..PORTS {
        uapi::set("wgnear", &format!("listen_port={}\n", 20_000 + port))?;
    }
    back("changes of port")?;
    ping(&near, FAR, 5)?;

    let mut batch = String::new();
    for _ in 0..LINKS {
        let _ = writeln!(batch, "link set wgnear down\nlink set wgnear up");
    }
    near.run_with_input(&["ip", "-batch", "-"], &batch)?;
    back("changes of the link")?;
    // Taking the link down ends sessions and removes IPv6 addresses.
    near.run(&["wg", "show", "wgnear"])?;
    first_answer(&near, FAR, Duration::from_secs(15))?;

    for _ in 0..CLIENTS {
        let answer = uapi::exchange("wgnear", "get=1\n\n")?;
        ensure!(answer.ends_with("errno=0\n\n"), "{answer}");
    }
    back("clients")?;
    ping(&near, FAR, 5)?;
    let grown = resident(&processes)?.saturating_sub(memory);
    ensure!(grown < 8 * 1024, "memory has grown by {grown} KiB");
    Ok(())
}

/// Another program opens the TUN and the configuration socket and passes them on: with and without
/// virtio headers, in the foreground and background.
pub(crate) fn passed_descriptors() -> Result<()> {
    let (near, far) = neighbours()?;
    let launcher = scratch_file("launcher.py", LAUNCHER)?;
    let program = Implementation::Taupe.program()?.display().to_string();
    for (interface, mode, foreground) in [
        ("wgheaders", "0x5001", true),
        ("wgplain", "0x1001", true),
        ("wgback", "0x5001", false),
    ] {
        let mut command = vec!["python3", &launcher, interface, mode, &program, "device"];
        command.push(interface);
        if foreground {
            command.push("-f");
        }
        let mut process = near.spawn(&command)?;
        if foreground {
            wait_until("configuration socket", Duration::from_secs(10), || {
                ensure!(process.runs()?, "it ended: {}", process.output());
                Ok(uapi::exchange(interface, "get=1\n\n").is_ok())
            })?;
        } else {
            let status = process.wait(Duration::from_secs(10))?;
            ensure!(status.success(), "{status}: {}", process.output());
        }
        speaks(&near, &far, interface)?;
        let start = Instant::now();
        near.ip(&["link", "delete", interface])?;
        if foreground {
            let status = process.wait(Duration::from_secs(10))?;
            ensure!(status.success(), "{status} after {:?}", start.elapsed());
        }
    }
    Ok(())
}

/// TUNSETIFF with IFF_TUN, IFF_NO_PI and optionally IFF_VNET_HDR, then `exec`.
const LAUNCHER: &str = r#"
import fcntl, os, socket, struct, sys
name, mode, program = sys.argv[1], int(sys.argv[2], 16), sys.argv[3:]
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", name.encode(), mode))
os.makedirs("/var/run/wireguard", mode=0o700, exist_ok=True)
uapi = socket.socket(socket.AF_UNIX)
uapi.bind("/var/run/wireguard/" + name + ".sock")
uapi.listen()
os.set_inheritable(tun, True)
os.set_inheritable(uapi.fileno(), True)
os.environ.update(WG_TUN_FD=str(tun), WG_UAPI_FD=str(uapi.fileno()))
os.execv(program[0], program)
"#;

/// An existing interface connects to an ordinary one.
fn speaks(near: &Host, far: &Host, interface: &str) -> Result<()> {
    let tunnel = Tunnel::at("taupe", near.clone(), interface, Quirks::default());
    let keys = Keys::new(near)?;
    let peer = End::start(far, "wgfar", &[])?;
    tunnel.configure(&Settings {
        private_key: &keys.private,
        listen_port: Some(51820),
        addresses: &["10.77.0.1/24"],
        peers: &[PeerSettings {
            public_key: &peer.keys.public,
            preshared_key: None,
            endpoint: None,
            allowed_ips: "10.77.0.2/32",
        }],
    })?;
    await_port(near, 51820)?;
    peer.tunnel.configure(&Settings {
        private_key: &peer.keys.private,
        listen_port: None,
        addresses: &["10.77.0.2/24"],
        peers: &[PeerSettings {
            public_key: &keys.public,
            preshared_key: None,
            endpoint: Some(SocketAddr::new(NEAR_OUTER, 51820)),
            allowed_ips: "10.77.0.1/32",
        }],
    })?;
    let port = match interface {
        "wgheaders" => 7,
        "wgplain" => 8,
        _ => 9,
    };
    ping(far, NEAR, 5)?;
    serve_echo(near, (NEAR, port).into())?;
    tcp_echo(far, (NEAR, port).into(), 500_001).map(drop)
}
