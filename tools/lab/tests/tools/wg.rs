//! All sub-commands of `wg`.

use crate::{ensure_within, missing, numbered_key};
use std::fmt::Write;
use std::time::{Duration, Instant};
use taupe_lab::host::Host;
use taupe_lab::peers::{Implementation, Keys};
use taupe_lab::sandbox::scratch_file;
use taupe_lab::{Result, ensure};

pub(crate) fn show_in_every_form() -> Result<()> {
    let host = Host::new("a")?;
    let tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let keys = Keys::new(&host)?;
    let psk = host.run(&["wg", "genpsk"])?.text().to_owned();
    let (first, second) = (numbered_key(1), numbered_key(2));
    tunnel.wg_with_input(
        "setconf",
        &format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\nFwMark = 0xca6c\n\
             [Peer]\nPublicKey = {first}\nPresharedKey = {psk}\nEndpoint = 192.0.2.7:1234\n\
             AllowedIPs = 10.0.0.0/24, fd00::/64\nPersistentKeepalive = 25\n\
             [Peer]\nPublicKey = {second}\nEndpoint = [2001:db8::7]:99\n",
            keys.private
        ),
    )?;

    // The program determines the order of peers.
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    // The same holds for a peer's prefixes.
    let in_order = |text: &str| {
        text.replace("fd00::/64 10.0.0.0/24", "10.0.0.0/24 fd00::/64")
            .replace("fd00::/64,10.0.0.0/24", "10.0.0.0/24,fd00::/64")
    };
    let fields = [
        ("public-key", keys.public.clone()),
        ("private-key", keys.private.clone()),
        ("listen-port", "51820".to_owned()),
        ("fwmark", "0xca6c".to_owned()),
        ("peers", format!("{first}\n{second}")),
        (
            "preshared-keys",
            format!("{first}\t{psk}\n{second}\t(none)"),
        ),
        (
            "endpoints",
            format!("{first}\t192.0.2.7:1234\n{second}\t[2001:db8::7]:99"),
        ),
        (
            "allowed-ips",
            format!("{first}\t10.0.0.0/24 fd00::/64\n{second}\t(none)"),
        ),
        ("latest-handshakes", format!("{first}\t0\n{second}\t0")),
        ("transfer", format!("{first}\t0\t0\n{second}\t0\t0")),
        (
            "persistent-keepalive",
            format!("{first}\t25\n{second}\toff"),
        ),
        (
            "dump",
            format!(
                "{}\t{}\t51820\t0xca6c\n\
                 {first}\t{psk}\t192.0.2.7:1234\t10.0.0.0/24,fd00::/64\t0\t0\t0\t25\n\
                 {second}\t(none)\t[2001:db8::7]:99\t(none)\t0\t0\t0\toff",
                keys.private, keys.public
            ),
        ),
    ];
    for (field, expected) in &fields {
        let shown = in_order(&tunnel.show(Some(field))?.stdout);
        ensure!(sorted(&shown) == sorted(expected), "{field}: {shown}");
        // Older versions of `wg` print the interface's name only once.
        let all = host.run(&["wg", "show", "all", field])?.stdout;
        ensure!(all.starts_with("wg0\t"), "all {field}: {all}");
        let all = in_order(&all.replace("wg0\t", ""));
        ensure!(sorted(&all) == sorted(expected), "all {field}: {all}");
    }
    let interfaces = host.run(&["wg", "show", "interfaces"])?;
    ensure!(interfaces.text() == "wg0", "{interfaces:?}");

    let plain = host.run(&["wg"])?.stdout;
    for command in [
        &["wg", "show"][..],
        &["wg", "show", "all"],
        &["wg", "show", "wg0"],
    ] {
        let text = host.run(command)?.stdout;
        ensure!(text == plain, "{command:?} differs from `wg`: {text}");
    }
    for line in [
        "interface: wg0",
        &format!("  public key: {}", keys.public),
        "  private key: (hidden)",
        "  listening port: 51820",
        "  fwmark: 0xca6c",
        &format!("peer: {first}"),
        "  preshared key: (hidden)",
        "  endpoint: 192.0.2.7:1234",
        "  persistent keepalive: every 25 seconds",
        "  allowed ips: (none)",
    ] {
        ensure!(plain.lines().any(|shown| shown == line), "{line}: {plain}");
    }

    let written = host.run(&["wg", "showconf", "wg0"])?.stdout;
    tunnel.wg_with_input("setconf", &written)?;
    let again = host.run(&["wg", "showconf", "wg0"])?.stdout;
    ensure!(sorted(&written) == sorted(&again), "{written}\n{again}");
    ensure!(
        host.run(&["wg", "show", "doesnotexist"]).is_err(),
        "an interface that does not exist is shown"
    );
    Ok(())
}

pub(crate) fn set_addconf_and_syncconf() -> Result<()> {
    let host = Host::new("a")?;
    let tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let keys = Keys::new(&host)?;
    let (first, second, third) = (numbered_key(1), numbered_key(2), numbered_key(3));
    let peers = |expected: &[&str]| {
        let shown = tunnel.show(Some("peers"))?;
        let mut shown: Vec<_> = shown.stdout.lines().collect();
        shown.sort_unstable();
        ensure!(shown == expected, "peers {shown:?}, expected {expected:?}");
        Ok(())
    };
    let allowed = |peer: &str, expected: &[&str]| {
        let shown = tunnel.field("allowed-ips", peer)?;
        let mut shown: Vec<_> = shown.split(' ').collect();
        shown.sort_unstable();
        ensure!(shown == expected, "{shown:?}, expected {expected:?}");
        Ok(())
    };

    let file = scratch_file("private", &keys.private)?;
    tunnel.set(&["private-key", &file, "listen-port", "1111"])?;
    tunnel.set(&["peer", &first, "allowed-ips", "10.0.0.0/24,fd00::/64"])?;
    tunnel.set(&["peer", &second, "allowed-ips", "10.1.0.0/24"])?;
    allowed(&first, &["10.0.0.0/24", "fd00::/64"])?;
    // A prefix belongs to the peer that got it last.
    tunnel.set(&["peer", &second, "allowed-ips", "10.1.0.0/24,10.0.0.0/24"])?;
    allowed(&first, &["fd00::/64"])?;
    allowed(&second, &["10.0.0.0/24", "10.1.0.0/24"])?;
    tunnel.set(&["peer", &second, "allowed-ips", "0.0.0.0/0,10.0.0.0/8"])?;
    allowed(&second, &["0.0.0.0/0", "10.0.0.0/8"])?;
    tunnel.set(&["peer", &second, "allowed-ips", ""])?;
    allowed(&second, &["(none)"])?;

    let peer =
        |key: &str, allowed: &str| format!("[Peer]\nPublicKey = {key}\nAllowedIPs = {allowed}\n");
    tunnel.wg_with_input("addconf", &peer(&third, "10.3.0.0/16"))?;
    peers(&[&first, &second, &third])?;
    ensure!(
        tunnel.show(Some("listen-port"))?.text() == "1111",
        "addconf has changed the port"
    );

    tunnel.set(&["peer", &third, "persistent-keepalive", "25"])?;
    let interface = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 2222\n",
        keys.private
    );
    let synced = format!(
        "{interface}{}{}",
        peer(&first, "fd00::/64"),
        peer(&third, "10.4.0.0/16")
    );
    tunnel.wg_with_input("syncconf", &synced)?;
    peers(&[&first, &third])?;
    allowed(&third, &["10.4.0.0/16"])?;
    ensure!(
        tunnel.show(Some("listen-port"))?.text() == "2222",
        "syncconf has not changed the port"
    );

    tunnel.set(&["peer", &third, "persistent-keepalive", "off"])?;
    let keepalive = tunnel.field("persistent-keepalive", &third)?;
    ensure!(keepalive == "off", "keepalive is {keepalive}");

    tunnel.set(&["peer", &first, "remove"])?;
    peers(&[&third])?;
    let psk = host.run(&["wg", "genpsk"])?.text().to_owned();
    let file = scratch_file("psk", &psk)?;
    tunnel.set(&["peer", &third, "preshared-key", &file])?;
    ensure!(tunnel.field("preshared-keys", &third)? == psk, "no key");
    tunnel.set(&["peer", &third, "preshared-key", "/dev/null"])?;
    ensure!(
        tunnel.field("preshared-keys", &third)? == "(none)",
        "key remains"
    );
    tunnel.set(&["fwmark", "0x10"])?;
    ensure!(tunnel.show(Some("fwmark"))?.text() == "0x10", "no mark");
    tunnel.set(&["fwmark", "off"])?;
    ensure!(tunnel.show(Some("fwmark"))?.text() == "off", "mark remains");

    // The device's own key is never a peer, neither before nor after the key is set.
    tunnel.set(&["peer", &keys.public, "allowed-ips", "10.9.0.0/16"])?;
    peers(&[&third])?;
    let other = Keys::new(&host)?;
    tunnel.set(&["peer", &other.public])?;
    let file = scratch_file("other", &other.private)?;
    tunnel.set(&["private-key", &file])?;
    peers(&[&third])?;
    tunnel.set(&["private-key", "/dev/null"])?;
    ensure!(
        tunnel.show(Some("private-key"))?.text() == "(none)",
        "the private key remains"
    );
    tunnel.wg_with_input("setconf", "[Interface]\n")?;
    peers(&[])
}

pub(crate) fn many_allowed_ips() -> Result<()> {
    const COUNT: usize = 255 * 256 * 2;
    let host = Host::new("a")?;
    let tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let keys = Keys::new(&host)?;
    let mut text = format!("[Interface]\nPrivateKey = {}\n", keys.private);
    let peer = numbered_key(7);
    let _ = writeln!(text, "[Peer]\nPublicKey = {peer}");
    let mut expected = Vec::with_capacity(COUNT);
    for a in 1..=255 {
        for b in 0..=255 {
            let v6: std::net::Ipv6Addr = [a, 0, 0, 0, 0, 0, 0, b].into();
            expected.push(format!("{a}.{b}.0.0/16"));
            expected.push(format!("{v6}/128"));
            let _ = writeln!(text, "AllowedIPs = {a}.{b}.0.0/16, {v6}/128");
        }
    }
    let start = Instant::now();
    tunnel.wg_with_input("setconf", &text)?;
    taupe_lab::sandbox::figure("setconf with 130,560 allowed IPs", start.elapsed());
    let start = Instant::now();
    let shown = tunnel.field("allowed-ips", &peer)?;
    taupe_lab::sandbox::figure("reading them back", start.elapsed());
    let mut shown: Vec<_> = shown.split(' ').collect();
    shown.sort_unstable();
    expected.sort_unstable();
    ensure!(shown.len() == COUNT, "{} of {COUNT}", shown.len());
    let differing = shown.iter().zip(&expected).find(|(a, b)| **a != *b);
    ensure!(differing.is_none(), "{differing:?}");
    Ok(())
}

pub(crate) fn thousand_peers() -> Result<()> {
    const COUNT: u16 = 1000;
    let host = Host::new("a")?;
    let tunnel = Implementation::Taupe.start(&host, "wg0")?;
    host.ip(&["link", "set", "wg0", "up"])?;
    let keys = Keys::new(&host)?;
    let mut text = format!("[Interface]\nPrivateKey = {}\n", keys.private);
    for number in 1..=COUNT {
        let [high, low] = number.to_be_bytes();
        let _ = writeln!(
            text,
            "[Peer]\nPublicKey = {}\nAllowedIPs = 10.{high}.{low}.0/24\nEndpoint = 192.0.2.1:{number}",
            numbered_key(number)
        );
    }
    let start = Instant::now();
    tunnel.wg_with_input("setconf", &text)?;
    let took = start.elapsed();
    let shown = tunnel.show(Some("dump"))?.stdout;
    let peers = shown.lines().skip(1);
    ensure!(peers.count() == usize::from(COUNT), "{shown}");
    let last = numbered_key(COUNT);
    let line = shown.lines().find(|line| line.starts_with(&last));
    let line = line.ok_or_else(|| missing("the last peer"))?;
    ensure!(line.contains("\t192.0.2.1:1000\t10.3.232.0/24\t"), "{line}");
    ensure_within("setconf with 1,000 peers", took, Duration::from_secs(3))
}

pub(crate) fn setconf_with_a_bad_line() -> Result<()> {
    let host = Host::new("a")?;
    let tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let keys = Keys::new(&host)?;
    let good = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 1111\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.0.0.0/24\n",
        keys.private,
        numbered_key(1)
    );
    tunnel.wg_with_input("setconf", &good)?;
    let before = tunnel.show(Some("dump"))?.stdout;
    for bad in [
        "AllowedIPs = 10.0.0.0/33",
        "Colour = taupe",
        "Endpoint = 192.0.2.1",
    ] {
        let text = format!("{}{bad}\n", good.replace("1111", "2222"));
        for verb in ["setconf", "addconf", "syncconf"] {
            ensure!(tunnel.wg_with_input(verb, &text).is_err(), "{verb}: {bad}");
            let after = tunnel.show(Some("dump"))?.stdout;
            ensure!(after == before, "{verb}, {bad}: {before}{after}");
        }
    }
    Ok(())
}
