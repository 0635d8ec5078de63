//! `wg-quick` with Taupe as its userspace implementation.

use std::net::IpAddr;
use std::time::Duration;
use taupe_lab::host::neighbours;
use taupe_lab::peers::Implementation;
use taupe_lab::process::{self, wait_until};
use taupe_lab::sandbox::scratch_file;
use taupe_lab::server::Server;
use taupe_lab::traffic::first_answer;
use taupe_lab::uapi::socket;
use taupe_lab::{Error, Result, ensure};

/// Addresses reachable only through the tunnel.
const BEYOND: [&str; 2] = ["198.51.100.1", "2001:db8:5::1"];

pub(crate) fn default_route() -> Result<()> {
    let (near, far) = neighbours()?;
    let server = Server::start(&near, &far)?;
    for address in BEYOND {
        far.ip(&["address", "add", address, "dev", "lo"])?;
    }

    let file = scratch_file(
        "wgnear.conf",
        &server.file("", "AllowedIPs = 0.0.0.0/0, ::/0"),
    )?;
    let daemon = Implementation::Taupe.daemon()?.display().to_string();
    let quick = |verb: &str| {
        let mut command = near.command(&["wg-quick", verb, &file]);
        command.env("WG_QUICK_USERSPACE_IMPLEMENTATION", &daemon);
        process::run(near.name(), command, None)
    };
    let state = || -> Result<String> {
        let mut text = String::new();
        for command in [
            &["ip", "-4", "rule"][..],
            &["ip", "-6", "rule"],
            &["ip", "-4", "route", "show", "table", "all"],
            &["ip", "-6", "route", "show", "table", "all"],
            &["nft", "list", "ruleset"],
        ] {
            text.push_str(&near.run(command)?.stdout);
        }
        Ok(text)
    };
    // The kernel adds its own address and its route a second after the link comes up.
    wait_until("link-local address", Duration::from_secs(5), || {
        let addresses = near.ip(&["-6", "address", "show", "dev", "eth0", "-tentative"])?;
        Ok(addresses.stdout.contains("fe80:"))
    })?;
    let before = state()?;

    let up = quick("up")?;
    ensure!(
        up.stderr.contains(&format!("[#] {daemon} wgnear")),
        "wg-quick has not started Taupe: {}",
        up.stderr
    );
    let mtu = near.run(&["cat", "/sys/class/net/wgnear/mtu"])?;
    ensure!(mtu.text() == "1420", "MTU {}", mtu.text());
    for address in BEYOND {
        let address: IpAddr = address.parse().map_err(|_| Error::unmet("address"))?;
        first_answer(&near, address, Duration::from_secs(5))?;
    }
    let mark = near.run(&["wg", "show", "wgnear", "fwmark"])?;
    ensure!(mark.text() == "0xca6c", "mark {}", mark.text());

    quick("down")?;
    let after = state()?;
    ensure!(after == before, "left behind:\n{after}instead of\n{before}");
    wait_until("end of the socket", Duration::from_secs(3), || {
        Ok(!socket("wgnear").exists())
    })
}
