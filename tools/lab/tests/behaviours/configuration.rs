//! Configuration: actions that it triggers, and large configurations.

use crate::pair::{End, neighbours};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;
use taupe_lab::host::Host;
use taupe_lab::peers::Keys;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::scratch_file;
use taupe_lab::{Result, ensure, uapi};

/// A persistent keepalive begins when the link comes up, and not before.
pub(crate) fn keepalive_at_link_up() -> Result<()> {
    let (host, far) = neighbours()?;
    let end = End::start(&host, "wg0", &[])?;
    let peer = Keys::new(&far)?;
    end.tunnel
        .wg_with_input("setconf", &with_keepalive(&end.keys.private, &peer))?;
    ensure_silent_until(&end, &peer, || end.link(&["up"]))
}

/// The same if the link is up and the private key is set later.
pub(crate) fn keepalive_at_key() -> Result<()> {
    let (host, far) = neighbours()?;
    let end = End::start(&host, "wg0", &[])?;
    let peer = Keys::new(&far)?;
    end.link(&["up"])?;
    end.tunnel
        .wg_with_input("addconf", &with_keepalive("", &peer))?;
    ensure_silent_until(&end, &peer, || {
        let file = scratch_file("key", &end.keys.private)?;
        end.tunnel.set(&["private-key", &file]).map(drop)
    })
}

fn with_keepalive(private_key: &str, peer: &Keys) -> String {
    let interface = match private_key {
        "" => String::new(),
        key => format!("[Interface]\nPrivateKey = {key}\n"),
    };
    format!(
        "{interface}[Peer]\nPublicKey = {}\nEndpoint = 192.0.2.2:9\nPersistentKeepalive = 1\n",
        peer.public
    )
}

fn ensure_silent_until(end: &End, peer: &Keys, event: impl FnOnce() -> Result<()>) -> Result<()> {
    std::thread::sleep(Duration::from_millis(1500));
    let (_, sent) = end.transfer(peer)?;
    ensure!(sent == 0, "{sent} bytes were sent before");
    event()?;
    wait_until("the first message", Duration::from_secs(4), || {
        Ok(end.transfer(peer)?.1 > 0)
    })
}

/// Configurations whose answer exceeds one read.
pub(crate) fn long_answers() -> Result<()> {
    let host = Host::new("a")?;
    let end = End::start(&host, "wg0", &[])?;
    let mut forty = Vec::new();
    for number in 1..=40 {
        let prefixes = (1..=52).map(|second| format!("{number}.{second}.0.0/16"));
        forty.push((key(number), prefixes.collect()));
    }
    ensure_read_back(&end, &forty)?;

    let mut thirty: Vec<_> = (1..30).map(|number| (key(number), Vec::new())).collect();
    let last = ["255.2.3.4/32", "abcd::255/128"].map(str::to_owned);
    thirty.push((key(30), last.into()));
    ensure_read_back(&end, &thirty)?;
    let written = host.run(&["wg", "showconf", "wg0"])?.stdout;
    let peers = written.lines().filter(|line| *line == "[Peer]").count();
    ensure!(peers == 30, "{peers} peers in {written}");
    end.tunnel.wg_with_input("setconf", &written)?;
    ensure_shown(&end, &thirty)?;

    let many = (1..=197).map(|number| format!("abcd::{number:x}/128"));
    let two = [(key(1), Vec::new()), (key(2), many.collect())];
    ensure_read_back(&end, &two)
}

type Peers = [(String, Vec<String>)];

/// Returns a public key that encodes a number. The last Base64 digit of 32 bytes holds four bits; 8
/// sets all of them.
fn key(number: u32) -> String {
    format!("{number:042}8=")
}

fn ensure_read_back(end: &End, peers: &Peers) -> Result<()> {
    let mut text = format!("[Interface]\nPrivateKey = {}\n", end.keys.private);
    for (key, prefixes) in peers {
        let _ = writeln!(text, "[Peer]\nPublicKey = {key}");
        for prefix in prefixes {
            let _ = writeln!(text, "AllowedIPs = {prefix}");
        }
    }
    end.tunnel.wg_with_input("setconf", &text)?;
    ensure_shown(end, peers)
}

fn ensure_shown(end: &End, peers: &Peers) -> Result<()> {
    let shown = end.tunnel.show(Some("allowed-ips"))?.stdout;
    let in_order = |mut prefixes: Vec<String>| {
        prefixes.sort();
        prefixes
    };
    let shown: BTreeMap<_, _> = shown
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(key, prefixes)| {
            let prefixes = prefixes.split(' ').filter(|prefix| *prefix != "(none)");
            (
                key.to_owned(),
                in_order(prefixes.map(str::to_owned).collect()),
            )
        })
        .collect();
    let expected: BTreeMap<_, _> = peers
        .iter()
        .map(|(key, prefixes)| (key.clone(), in_order(prefixes.clone())))
        .collect();
    ensure!(shown == expected, "{shown:?}\nand not\n{expected:?}");
    Ok(())
}

/// `allowed_ip=-…` removes one prefix from the peer that has it.
pub(crate) fn allowed_ips_one_by_one() -> Result<()> {
    let host = Host::new("a")?;
    let end = End::start(&host, "wg0", &[])?;
    let (peer, other) = ("b8".repeat(32), "c8".repeat(32));
    let mut all = Vec::new();
    for number in 1..=197 {
        all.push(format!("192.168.0.{number}/32"));
        all.push(format!("abcd::{number:x}/128"));
    }
    let lines = |sign: &str, prefixes: &[&str]| {
        prefixes.iter().fold(String::new(), |mut text, prefix| {
            let _ = writeln!(text, "allowed_ip={sign}{prefix}");
            text
        })
    };
    let every: Vec<_> = all.iter().map(String::as_str).collect();
    uapi::set("wg0", &format!("public_key={peer}\n{}", lines("", &every)))?;
    ensure!(allowed(&peer)?.len() == 394, "not 394");

    let removed = [
        "192.168.0.1/32",
        "192.168.0.20/32",
        "192.168.0.100/32",
        "abcd::1/128",
        "abcd::20/128",
        "abcd::c5/128",
    ];
    // Neither a wider prefix nor another peer's prefix is removed.
    let unmoved = ["192.168.0.0/24", "abcd::/64", "10.0.0.0/8"];
    uapi::set(
        "wg0",
        &format!("public_key={other}\nallowed_ip=10.0.0.0/8\n"),
    )?;
    let minus = format!("{}{}", lines("-", &removed), lines("-", &unmoved));
    uapi::set("wg0", &format!("public_key={peer}\n{minus}"))?;
    let left = allowed(&peer)?;
    ensure!(left.len() == 388, "{} are left", left.len());
    let mut expected = all.clone();
    expected.retain(|prefix| !removed.contains(&&**prefix));
    expected.sort();
    ensure!(left == expected, "{left:?}");
    ensure!(allowed(&other)? == ["10.0.0.0/8"], "{:?}", allowed(&other)?);

    uapi::set(
        "wg0",
        &format!("public_key={peer}\n{}", lines("", &removed)),
    )?;
    ensure!(allowed(&peer)?.len() == 394, "not 394 again");
    end.tunnel.show(None).map(drop)
}

/// Returns the allowed IPs of a peer, sorted as text.
fn allowed(peer: &str) -> Result<Vec<String>> {
    let answer = uapi::exchange("wg0", "get=1\n\n")?;
    let mut lines = answer
        .lines()
        .skip_while(|line| *line != format!("public_key={peer}"));
    lines.next();
    let mut prefixes: Vec<_> = lines
        .take_while(|line| !line.starts_with("public_key="))
        .filter_map(|line| line.strip_prefix("allowed_ip="))
        .map(str::to_owned)
        .collect();
    prefixes.sort();
    Ok(prefixes)
}
