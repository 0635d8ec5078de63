//! Properties of the virtual machine that the tests rely on.

use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use taupe_lab::guest::{self, Guest, GuestOptions};
use taupe_lab::host::{Host, add_address};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Place, Settings};
use taupe_lab::process::{outrank_others, wait_until};
use taupe_lab::sandbox::{Suite, SystemTest, figure, scratch, step};
use taupe_lab::snmp::{self, Snmp};
use taupe_lab::{Error, Result, ensure, traffic};

fn main() {
    let limit = guest::BOOT + Duration::from_secs(60);
    Suite::new(vec![
        SystemTest::new("a_guest_reaches_its_host", guest_reaches_host).limit(limit),
        SystemTest::new("a_guest_runs_scripts", guest_runs_scripts).limit(limit),
        SystemTest::new("an_ended_guest_is_reported", guest_ends).limit(limit),
        SystemTest::new("handshake_after_a_suspend", handshake_after_a_suspend).limit(2 * limit),
        SystemTest::new("flood_filter_in_a_guest", flood_filter_in_a_guest).limit(limit),
    ])
    .prepare(|| guest::install().map(drop))
    .prepare(|| Implementation::WireguardGo.install().map(drop))
    .prepare(|| Implementation::Taupe.install().map(drop))
    .main()
}

fn guest_reaches_host() -> Result<()> {
    let host = Host::new("a")?;
    let start = Instant::now();
    let guest = Guest::boot(&host, "tap0", &["192.0.2.2/24", "fd00::2/64"])?;
    figure("boot", start.elapsed());
    add_address(&host, "tap0", "192.0.2.1/24")?;
    add_address(&host, "tap0", "fd00::1/64")?;
    for address in ["192.0.2.2", "fd00::2"] {
        let address: IpAddr = address.parse().map_err(|_| Error::unmet(address))?;
        traffic::ping(&host, address, 5)?;
        let server = (address, 7).into();
        guest.serve_echo(server)?;
        traffic::tcp_echo(&host, server, 1_000_001)?;
    }
    // Two guests on one machine are independent.
    Guest::boot(&host, "tap1", &[])?.run("ip link add wg0 type wireguard")?;
    let result = guest.run("ip link show wg0");
    ensure!(matches!(result, Err(Error::Command { .. })), "{result:?}");
    Ok(())
}

fn guest_runs_scripts() -> Result<()> {
    let guest = Guest::boot(&Host::new("a")?, "tap0", &[])?;
    let output = guest.run("echo out; echo err >&2")?;
    ensure!(
        output.stdout == "out\n" && output.stderr == "err\n",
        "{output:?}"
    );
    match guest.run("echo out; echo err >&2; exit 7") {
        Err(Error::Command { status, output, .. })
            if status == "exit status 7" && output == "err\nout\n" => {}
        other => return Err(Error::unmet(format!("{other:?}"))),
    }

    // Longer than a terminal line or a program's arguments may be.
    let text = "it's".repeat(100_000);
    let output = Place::run_with_input(&guest, &["cat"], &text)?;
    ensure!(output.stdout == text, "{} bytes", output.stdout.len());
    let words = ["echo", "a b", "'", "$HOME;", "*"];
    let output = Place::run(&guest, &words)?;
    ensure!(output.text() == "a b ' $HOME; *", "{output:?}");

    let second = Duration::from_secs(1);
    for script in ["sleep 20", "trap '' TERM; sleep 20; sleep 20"] {
        let result = guest.run_within(second, script);
        let in_time = matches!(result, Err(Error::Timeout { .. }));
        ensure!(in_time, "{result:?}");
    }
    // A background process does not delay the answer, and its later output is not mixed up with it.
    guest.run("(sleep 1; echo late) & echo early")?;
    let output = guest.run("sleep 2; echo on time")?;
    ensure!(output.stdout == "on time\n", "{output:?}");

    // Seconds later the guest still has the correct time, so its timers are right.
    let before = now();
    let time = guest.run("date +%s")?;
    let time: u64 = time.text().parse().map_err(|_| Error::unmet("a time"))?;
    let possible = before - 2..=now() + 2;
    ensure!(possible.contains(&time), "{time} is not in {possible:?}");
    Ok(())
}

fn guest_ends() -> Result<()> {
    let guest = Guest::boot(&Host::new("a")?, "tap0", &[])?;
    for script in ["poweroff -f", "true"] {
        let result = guest.run(script);
        ensure!(matches!(result, Err(Error::Io { .. })), "{result:?}");
    }
    Ok(())
}

/// Returns seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |time| time.as_secs())
}

/// Returns a guest with Taupe, at the other end of 192.0.2.1, and the program's path in it.
fn guest_with_taupe(host: &Host) -> Result<(Guest, String)> {
    // Debug information makes up most of the program.
    let taupe = scratch("taupe");
    let program = Implementation::Taupe.program()?;
    let (from, to) = (program.display().to_string(), taupe.display().to_string());
    host.run(&["strip", "-o", &to, &from])?;
    let equipment = GuestOptions {
        memory: 384,
        programs: vec![taupe.clone()],
        ..GuestOptions::default()
    };
    let guest = Guest::boot_with(host, "tap0", &["192.0.2.2/24"], &equipment)?;
    add_address(host, "tap0", "192.0.2.1/24")?;
    Ok((guest, guest::program(&taupe)))
}

/// After a suspend, a machine begins a new handshake by itself, although nothing is sent through
/// its tunnel and no service reports the suspend.
fn handshake_after_a_suspend() -> Result<()> {
    let host = Host::new("a")?;
    let (theirs, ours) = (Keys::new(&host)?, Keys::new(&host)?);
    let server = Implementation::Taupe.start(&host, "wgfar")?;
    server.configure(&Settings {
        private_key: &theirs.private,
        listen_port: Some(51821),
        addresses: &["10.77.0.254/24"],
        peers: &[PeerSettings {
            public_key: &ours.public,
            preshared_key: None,
            endpoint: None,
            allowed_ips: "10.77.0.1/32",
        }],
    })?;
    let (guest, taupe) = guest_with_taupe(&host)?;
    guest.run(&format!(
        "umask 077; cat > /tmp/home.conf <<'END'
[Interface]
PrivateKey = {}
Address = 10.77.0.1/32

[Peer]
PublicKey = {}
Endpoint = 192.0.2.1:51821
AllowedIPs = 10.77.0.0/24
END
         {taupe} up /tmp/home.conf && ping -c 1 -W 20 10.77.0.254",
        ours.private, theirs.public
    ))?;
    let shaken = || -> Result<u64> {
        let field = server.field("latest-handshakes", &ours.public)?;
        field.parse().map_err(|_| Error::unmet(field))
    };
    let before = shaken()?;
    ensure!(before > 0, "no handshake");
    step("sleep");
    // The hardware clock wakes it.
    guest.run_within(
        Duration::from_secs(60),
        "echo +5 > /sys/class/rtc/rtc0/wakealarm && echo mem > /sys/power/state",
    )?;
    // One second is promised; the emulated processor gets three. The times are whole seconds, and
    // it has slept five.
    let promised = Duration::from_secs(3);
    wait_until("a handshake", promised, || Ok(shaken()? >= before + 4))
}

/// The socket filter against floods of handshakes works on this kernel too.
fn flood_filter_in_a_guest() -> Result<()> {
    /// Sent within a millisecond: twice the limit of the filter.
    const BURST: usize = 32;
    outrank_others()?;
    let host = Host::new("a")?;
    let (guest, taupe) = guest_with_taupe(&host)?;
    guest.run(&format!(
        "{taupe} device wg0 && {taupe} genkey > /tmp/key &&
         {taupe} set wg0 private-key /tmp/key listen-port 51820 && ip link set wg0 up"
    ))?;
    let shed = || Snmp::new(guest.run(&format!("cat {}", snmp::FILES[0]))?.stdout).filtered();
    ensure!(shed()? == 0, "without a flood");
    let socket = host.enter(|| UdpSocket::bind("192.0.2.1:0").map_err(Error::io("bind")))?;
    let mut initiation = [0; 148];
    initiation[0] = 1;
    let stop = AtomicBool::new(false);
    let flood = || {
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..BURST {
                let sent = socket.send_to(&initiation, "192.0.2.2:51820");
                sent.map_err(Error::io("the flood"))?;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let flooding = scope.spawn(flood);
        let limit = Duration::from_secs(60);
        let found = wait_until("a flood that is shed", limit, || Ok(shed()? > 0));
        stop.store(true, Ordering::Relaxed);
        let flooded = flooding.join();
        flooded.unwrap_or_else(|_| Err(Error::unmet("the flood panicked")))?;
        found
    })?;
    figure("shed", shed()?);
    Ok(())
}
