//! The commands of an article of 2018 that set up WireGuard on a gigabit link, in its order.

use crate::{ensure_within, missing, neighbours};
use std::net::IpAddr;
use std::time::Duration;
use taupe_lab::host::Host;
use taupe_lab::peers::{Implementation, Tunnel};
use taupe_lab::sandbox::scratch;
use taupe_lab::traffic::first_answer;
use taupe_lab::{Error, Result, ensure};

/// One end, after all steps that need no knowledge of the other.
struct End<'a> {
    host: &'a Host,
    interface: &'a str,
    public_key: String,
    port: String,
    _tunnel: Tunnel,
}

pub(crate) fn commands_of_an_article_of_2018() -> Result<()> {
    let (near, far) = neighbours()?;
    near.run(&[
        "sh",
        "-c",
        &format!("umask 077; wg genpsk > {}", path("psk")),
    ])?;
    let near = End::set_up(&near, "wgnear", "10.0.0.1/24")?;
    let far = End::set_up(&far, "wgfar", "10.0.0.2/24")?;
    far.add_peer(&near, "10.0.0.1/32", "192.0.2.1")?;
    near.add_peer(&far, "10.0.0.2/32", "192.0.2.2")?;

    let limit = Duration::from_millis(1500);
    let address: IpAddr = [10, 0, 0, 2].into();
    let took = first_answer(near.host, address, Duration::from_secs(10))?;
    ensure_within("first answer after the last command", took, limit)?;

    let shown = near.host.run(&["wg", "show", near.interface])?.stdout;
    ensure!(shown.contains("latest handshake: "), "{shown}");
    ensure!(shown.contains("transfer: "), "{shown}");
    Ok(())
}

impl<'a> End<'a> {
    fn set_up(host: &'a Host, interface: &'a str, address: &str) -> Result<Self> {
        let (private, public) = (path("private"), path("public"));
        let genkey = format!("umask 077; wg genkey > {private}; wg pubkey < {private} > {public}");
        host.run(&["sh", "-c", &genkey])?;
        let tunnel = Implementation::Taupe.start(host, interface)?;
        host.run(&["ip", "address", "add", address, "dev", interface])?;
        host.run(&["wg", "set", interface, "private-key", &private])?;
        host.run(&["ip", "link", "set", interface, "up"])?;

        let public_key = std::fs::read_to_string(&public).map_err(Error::io("public key"))?;
        let shown = host.run(&["wg", "show", interface])?.stdout;
        let port = shown
            .lines()
            .find_map(|line| line.strip_prefix("  listening port: "))
            .ok_or_else(|| missing("the listening port before there is a peer"))?;
        ensure!(port != "0", "{shown}");
        Ok(Self {
            host,
            interface,
            public_key: public_key.trim().to_owned(),
            port: port.to_owned(),
            _tunnel: tunnel,
        })
    }

    fn add_peer(&self, other: &End<'_>, allowed: &str, address: &str) -> Result<()> {
        let endpoint = format!("{address}:{}", other.port);
        #[rustfmt::skip]
        self.host.run(&[
            "wg", "set", self.interface, "peer", &other.public_key,
            "preshared-key", &path("psk"), "allowed-ips", allowed, "endpoint", &endpoint,
        ])?;
        Ok(())
    }
}

fn path(name: &str) -> String {
    scratch(name).display().to_string()
}
