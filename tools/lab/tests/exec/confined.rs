//! Rights of a command, and packets that leave the machine.

use crate::{BEYOND, NAME, PROGRAM, SERVER, World, home};
use rustix::mount::{MountFlags, mount};
use std::fs::File;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;
use taupe_lab::capture::Capture;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

/// Forbidden packets on the cable: all except the tunnel and neighbour discovery (which may have
/// hop-by-hop options, next header 0).
const CLEAR: &str = "(ip and not (udp and port 51821)) or (ip6 and not icmp6 and ip6[6] != 0)";

/// Generous time limit for busy machines.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn only_the_tunnel() -> Result<()> {
    let world = World::new()?;
    let clear = Capture::start(&world.near, "eth0", CLEAR)?;
    let wire = Capture::start(&world.near, "eth0", "udp and port 51821")?;

    step("loopback and the tunnel, and default routes by the tunnel only");
    let links = world.output_of("ip -o link | cut -d: -f2 | tr -d '\\n'")?;
    // Other links are the kernel's own fallback tunnels (sit0).
    ensure!(
        links.contains(" lo") && links.contains(" home"),
        "{links:?}"
    );
    ensure!(!links.contains("eth0"), "{links:?}");
    let routes = world.output_of("ip route show default; ip -6 route show default")?;
    let all_inside = routes.lines().all(|route| route.contains("dev home"));
    ensure!(routes.lines().count() == 2 && all_inside, "{routes}");

    step("both families reach what is behind it, by name and by address");
    let script = format!(
        "set -e; ping -n -c 1 -W 20 {BEYOND}; ping -n -c 1 -W 20 fd77::2; getent ahostsv4 {NAME}; \
         ping -n -c 1 -W 20 beyond; ping -n -c 1 -W 5 127.0.0.1"
    );
    let reported = world.output_of(&script)?;
    ensure!(
        reported.contains(&format!("{BEYOND}    STREAM")),
        "{reported}"
    );
    ensure!(
        world.queries.count() >= 2,
        "the tunnel's name server was not asked"
    );

    step("what AllowedIPs lacks is unreachable at once");
    let some = world.file("some", "", "10.77.0.0/24")?;
    let script = "for address in 192.0.2.2 2001:db8::2; do (: <>/dev/tcp/$address/9); done";
    let attempt = world.user(&[PROGRAM, "exec", &some, "--", "bash", "-c", script])?;
    let refusals = attempt.stderr.matches("connect: Network is unreachable");
    ensure!(refusals.count() == 2, "{attempt:?}");

    step("on the cable there was the tunnel");
    let sent = wire.stop_once("WireGuard on the cable", |packets| packets.len() > 4)?;
    ensure!(!sent.is_empty(), "nothing was captured");
    let clear = clear.stop()?;
    ensure!(
        clear.is_empty(),
        "{} packets beside the tunnel",
        clear.len()
    );
    Ok(())
}

pub(crate) fn no_outer_socket() -> Result<()> {
    let world = World::new()?;
    let clear = Capture::start(&world.near, "eth0", CLEAR)?;
    step("a socket of the network outside is not inherited, a pipe is");
    let script = format!(
        "import os, socket, subprocess
inside = '''import os, socket, sys
os.write(int(sys.argv[2]), b'written')
try:
    socket.socket(fileno=int(sys.argv[1])).sendto(b'out', ('192.0.2.2', 9))
    print('sent')
except OSError as error:
    print(error.strerror)'''
read, write = os.pipe()
outside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()
command = ['{PROGRAM}', 'exec', '{}', '--', 'python3', '-c', inside, str(outside), str(write)]
subprocess.run(command, pass_fds=[outside, write])
print(os.read(read, 7).decode())",
        home()
    );
    let attempt = world.user(&["python3", "-c", &script])?;
    ensure!(
        attempt.stdout == "Bad file descriptor\nwritten\n",
        "{attempt:?}"
    );
    let clear = clear.stop()?;
    ensure!(
        clear.is_empty(),
        "{} packets beside the tunnel",
        clear.len()
    );
    Ok(())
}

pub(crate) fn no_right() -> Result<()> {
    const FOLDER: &str = "/run/exec/programs";
    const CAT: &str = "/run/exec/programs/cat";
    let world = World::new()?;
    step("no capability, none to get, and the same user");
    let status = world.output_of("cat /proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        ensure!(
            field(set).as_deref() == Some("0000000000000000"),
            "{status}"
        );
    }
    ensure!(field("NoNewPrivs:").as_deref() == Some("1"), "{status}");
    ensure!(
        field("Uid:").as_deref() == Some("4711 4711 4711 4711"),
        "{status}"
    );
    ensure!(
        field("Gid:").as_deref() == Some("4712 4712 4712 4712"),
        "{status}"
    );

    step("one that is joined has none either");
    let mut first = world.start("echo begun; sleep 600")?;
    wait_until("begun", PATIENCE, || Ok(first.output().contains("begun")))?;
    let joined = world.join("grep -c '^Cap.*0000000000000000$' /proc/self/status")?;
    ensure!(joined.stdout == "5\n", "{joined:?}");
    let open = "ls -l /proc/self/fd | sed 's/.* -> //' | grep -v pipe: | grep -v /fd$";
    let outside = world.user(&["bash", "-c", open])?;
    let fds = world.join(open)?;
    ensure!(fds.stdout == outside.stdout, "{fds:?} {outside:?}");
    ensure!(first.runs()?, "{}", first.output());
    drop(first);

    step("no descriptor and no process of ours, and no exit from the namespaces");
    let fds = world.output_of(open)?;
    ensure!(fds == outside.stdout, "{fds} {outside:?}");
    for script in [
        "ls /proc/$PPID/fd",
        "ls /proc/$PPID/root/",
        "nsenter --net=/proc/$PPID/ns/net true",
        "ip address add 192.0.2.77/24 dev home",
        "umount /run",
        "umount /run/exec/session/taupe",
        // With all rights in nested namespaces.
        "unshare --user --map-root-user --mount umount /run/exec/session/taupe",
        "unshare --user --map-root-user --mount umount /etc/resolv.conf",
        "unshare --user --map-root-user --mount umount -l /run",
        "unshare --user --map-root-user ip address add 192.0.2.77/24 dev home",
    ] {
        let attempt = world.exec(script)?;
        ensure!(
            attempt.status.is_some_and(|status| status != 0),
            "{script}: {attempt:?}"
        );
    }

    step("a program with capabilities of its file starts, and gets none");
    // On a file system that allows capabilities of files.
    mount("lab", FOLDER, "tmpfs", MountFlags::NODEV, None).map_err(Error::io(FOLDER))?;
    let copy = format!("chmod 755 {FOLDER}; cp /bin/cat {CAT}; setcap cap_net_raw+ep {CAT}");
    world.near.run(&["sh", "-c", &copy])?;
    let script = format!("{CAT} /proc/self/status | grep CapEff");
    let outside = world.user(&["sh", "-c", &script])?;
    ensure!(
        outside.stdout == "CapEff:\t0000000000002000\n",
        "{outside:?}"
    );
    let reported = world.output_of(&script)?;
    ensure!(reported == "CapEff:\t0000000000000000\n", "{reported}");
    Ok(())
}

/// Returns pseudo-random bytes.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(count);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

pub(crate) fn transfer() -> Result<()> {
    const LENGTH: usize = 100_000_000;
    let world = World::new()?;
    let path = taupe_lab::sandbox::scratch("bytes");
    let mut file = File::create(&path).map_err(Error::io("bytes"))?;
    file.write_all(&bytes(LENGTH)).map_err(Error::io("bytes"))?;
    let address = SocketAddr::from((SERVER, 7777));
    let listener = world
        .far
        .enter(|| TcpListener::bind(address).map_err(Error::io("listen")))?;
    let server = std::thread::spawn({
        let path = path.clone();
        move || {
            let (mut stream, _) = listener.accept()?;
            std::io::copy(&mut File::open(path)?, &mut stream)
        }
    });
    let expected = world
        .near
        .run(&["sha256sum", &path.display().to_string()])?;
    let reported = world.output_of(&format!("sha256sum < /dev/tcp/{SERVER}/7777"))?;
    let first = |text: &str| text.split(' ').next().map(str::to_owned);
    ensure!(
        first(&reported) == first(&expected.stdout),
        "{reported} {}",
        expected.stdout
    );
    let sent = server
        .join()
        .map_err(|_| Error::unmet("the server panicked"))?;
    let sent = sent.map_err(Error::io("send"))?;
    ensure!(sent == LENGTH as u64, "{sent} bytes sent");
    Ok(())
}

pub(crate) fn killed_holder() -> Result<()> {
    let world = World::new()?;
    step("a command that pings for ever");
    let script = format!(
        "trap '' HUP; echo pid $$; \
         while :; do ping -n -c 1 -W 1 {BEYOND} >/dev/null && echo answered || echo nothing; \
         sleep 0.05; done"
    );
    let holder = world.start(&script)?;
    wait_until("an answer", PATIENCE, || {
        Ok(holder.output().contains("answered"))
    })?;
    let pid = holder.output();
    let pid = pid.split_whitespace().nth(1).unwrap_or_default().to_owned();

    step("its tunnel is killed, and it is not");
    let clear = Capture::start(&world.near, "eth0", CLEAR)?;
    // The process is `setpriv`, which has executed `taupe`.
    holder.signal(rustix::process::Signal::KILL)?;
    wait_until("no answer", PATIENCE, || {
        Ok(holder.output().ends_with("nothing\n"))
    })?;
    let links = world
        .near
        .run(&["nsenter", "-t", &pid, "-n", "ip", "-o", "link"])?;
    ensure!(!links.stdout.contains("home"), "{}", links.stdout);
    let clear = clear.stop()?;
    ensure!(
        clear.is_empty(),
        "{} packets beside the tunnel",
        clear.len()
    );
    world.near.run(&["kill", "-9", &pid])?;

    step("another tunnel can begin");
    world
        .output_of(&format!("ping -n -c 1 -W 20 {BEYOND}"))
        .map(drop)
}
