//! Debian 11's kernel 5.10, the oldest supported one, in a virtual machine: it lacks features that
//! transparent mode needs.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use taupe_lab::capture::Capture;
use taupe_lab::guest::{self, Guest, GuestOptions, Kernel};
use taupe_lab::host::{Host, add_address};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{BEYOND, ENDPOINT_PORT, PORT, SERVER, TUNNEL, UPLINK, serve};

/// An emulated processor is slow, above all while other tests run.
pub(crate) const LIMIT: Duration = Duration::from_secs(1800);

pub(crate) fn debian_11() -> Result<()> {
    let far = Host::new("far")?;
    far.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    for address in BEYOND {
        add_address(&far, "lo", &address.to_string())?;
        serve(&far, SocketAddr::new(address, PORT))?;
    }
    let (theirs, ours) = (Keys::new(&far)?, Keys::new(&far)?);
    let server = Implementation::Taupe.start(&far, "wgfar")?;
    server.configure(&Settings {
        private_key: &theirs.private,
        listen_port: Some(ENDPOINT_PORT),
        addresses: &[&format!("{}/24", SERVER[0]), &format!("{}/64", SERVER[1])],
        peers: &[PeerSettings {
            public_key: &ours.public,
            preshared_key: None,
            endpoint: None,
            allowed_ips: &format!("{}/32, {}/128", TUNNEL[0], TUNNEL[1]),
        }],
    })?;
    // Debug information makes up most of the program.
    let taupe = scratch("taupe");
    let program = Implementation::Taupe.program()?;
    let (from, to) = (program.display().to_string(), taupe.display().to_string());
    far.run(&["strip", "-o", &to, &from])?;
    let equipment = GuestOptions {
        memory: 512,
        kernel: Kernel::Debian11,
        programs: vec![taupe.clone(), "/bin/bash".into()],
        ..GuestOptions::default()
    };
    let own = [format!("{}/24", UPLINK[0]), format!("{}/64", UPLINK[1])];
    let own = own.each_ref().map(String::as_str);
    let guest = Guest::boot_with(&far, "tap0", &own, &equipment)?;
    add_address(&far, "tap0", "192.168.1.2/24")?;
    add_address(&far, "tap0", "2001:db8:1::2/64")?;
    guest.run(&format!(
        "ip route add default via 192.168.1.2 && ip -6 route add default via 2001:db8:1::2 &&
         echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter &&
         mkdir /apps &&
         cp /lab/bash /apps/mole && cp /lab/bash /apps/bird && umask 077 &&
         cat > /tmp/home.conf <<'END'
[Interface]
PrivateKey = {}
Address = {}/32, {}/128

[Peer]
PublicKey = {}
Endpoint = 192.168.1.2:{ENDPOINT_PORT}
AllowedIPs = 0.0.0.0/0, ::/0
AllowedApps = /apps/mole
END
",
        ours.private, TUNNEL[0], TUNNEL[1], theirs.public
    ))?;
    let taupe = guest::program(&taupe);
    let configuration = "ip -4 route show table all; ip -6 route show table all; ip rule; \
                         ip -6 rule; ip -o address";
    // The route of the link's own address appears after duplicate address detection.
    guest.run(
        "i=0; until ip -6 route show table local | grep -q 'local fe80:'; do
             i=$((i + 1)); [ $i -lt 300 ] || exit 1; sleep 0.1
         done",
    )?;
    let before = guest.run(configuration)?.stdout;
    let asks = |application: &str, server: IpAddr| -> Result<Option<String>> {
        let ask = format!(
            "timeout 20 /apps/{application} -c 'exec 3<>/dev/tcp/{server}/{PORT} && \
             read -r -u 3 line && echo $line'"
        );
        match guest.run_within(LIMIT / 4, &ask) {
            Ok(answer) => Ok(Some(answer.stdout.trim().to_owned())),
            Err(Error::Command { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    };
    let expect = |application: &str, family: usize, who: Option<&str>| -> Result<()> {
        let found = asks(application, BEYOND[family])?;
        ensure!(
            found.as_deref() == who,
            "{application} is {found:?} to {}, not {who:?}",
            BEYOND[family]
        );
        Ok(())
    };
    // Only new connections: earlier ones are still being closed.
    let opens = "tcp port 8080 and (ip[33] & 2 != 0 or ip6[53] & 2 != 0)";
    step("locked");
    let lock = guest.run_within(LIMIT / 4, &format!("{taupe} lock /tmp/home.conf"))?;
    ensure!(lock.stderr.contains("home is locked: "), "{}", lock.stderr);
    let clear = Capture::start(&far, "tap0", opens)?;
    for family in [0, 1] {
        expect("mole", family, None)?;
    }
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    expect("bird", 0, Some(UPLINK[0]))?;
    step("up");
    let up = guest.run_within(LIMIT / 4, &format!("{taupe} up /tmp/home.conf"))?;
    let why = "adapter mode, because this kernel lacks a feature that transparent mode needs: bpf_";
    ensure!(up.stderr.contains(why), "{}", up.stderr);
    for family in [0, 1] {
        expect("mole", family, Some(TUNNEL[family]))?;
        expect("bird", family, Some(UPLINK[family]))?;
    }
    step("killed");
    let clear = Capture::start(&far, "tap0", opens)?;
    guest.run(
        "kill -9 $(pidof taupe) && i=0 &&
         while ip link show dev home > /dev/null 2>&1; do
             i=$((i + 1)); [ $i -lt 100 ] || { ps >&2; exit 1; }; sleep 0.1
         done",
    )?;
    for family in [0, 1] {
        expect("mole", family, None)?;
    }
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    expect("bird", 0, Some(UPLINK[0]))?;
    step("down");
    guest.run(&format!("{taupe} down /tmp/home.conf"))?;
    let after = guest.run(configuration)?.stdout;
    ensure!(before == after, "before: {before}\nafter: {after}");
    expect("mole", 0, Some(UPLINK[0]))
}
