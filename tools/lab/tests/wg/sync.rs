//! `syncconf` does not disturb unchanged settings.

use crate::compare::{Call, Program, with_keys};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use taupe_lab::host::{Host, link};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings};
use taupe_lab::sandbox::scratch_file;
use taupe_lab::traffic::first_answer;
use taupe_lab::{Result, ensure};

pub(crate) fn keeps_sessions() -> Result<()> {
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    link(
        near.port("eth0", &["192.0.2.1/24"]),
        far.port("eth0", &["192.0.2.2/24"]),
        1500,
    )?;
    let keys = [Keys::new(&near)?, Keys::new(&far)?, Keys::new(&far)?];
    let here = Implementation::Taupe.start(&near, "wgnear")?;
    let there = Implementation::Taupe.start(&far, "wgfar")?;
    let peer = |key, port, allowed_ips| PeerSettings {
        public_key: key,
        preshared_key: None,
        endpoint: Some(SocketAddr::from(([192, 0, 2, 2], port))),
        allowed_ips,
    };
    here.configure(&Settings {
        private_key: &keys[0].private,
        listen_port: Some(51820),
        addresses: &["10.77.0.1/24"],
        peers: &[peer(&keys[1].public, 51821, "10.77.0.2/32")],
    })?;
    there.configure(&Settings {
        private_key: &keys[1].private,
        listen_port: Some(51821),
        addresses: &["10.77.0.2/24"],
        peers: &[PeerSettings {
            endpoint: None,
            ..peer(&keys[0].public, 51820, "10.77.0.1/32")
        }],
    })?;
    let address: IpAddr = [10, 77, 0, 2].into();
    first_answer(&near, address, Duration::from_secs(5))?;
    let handshake = || here.field("latest-handshakes", &keys[1].public);
    let before = handshake()?;
    ensure!(before != "0", "no handshake");

    let file = |rest: &str| {
        let text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\n{rest}[Peer]\nPublicKey = {}\n\
             Endpoint = 192.0.2.2:51821\nAllowedIPs = 10.77.0.2/32, 10.77.9.0/24\n",
            keys[0].private, keys[1].public
        );
        scratch_file("wgnear.conf", &text)
    };
    let added = format!(
        "[Peer]\nPublicKey = {}\nAllowedIPs = 10.77.8.0/24\n",
        keys[2].public
    );
    for rest in [added.as_str(), ""] {
        let call = Call::new(&["syncconf", "wgnear", &file(rest)?]);
        let output = call.run(Program::Taupe)?;
        ensure!(
            output.status == Some(0) && output.err().is_empty(),
            "{output}"
        );
        let peers = here.show(Some("peers"))?.stdout;
        ensure!(
            peers.contains(&keys[2].public) != rest.is_empty(),
            "{peers}"
        );
        ensure!(handshake()? == before, "the session is gone");
        let networks = here.field("allowed-ips", &keys[1].public)?;
        ensure!(networks.contains("10.77.9.0/24"), "{networks}");
        first_answer(&near, address, Duration::from_secs(5))?;
    }
    // `setconf` does not keep the session.
    let output = Call::new(&["setconf", "wgnear", &file("")?]).run(Program::Taupe)?;
    ensure!(output.status == Some(0), "{output}");
    ensure!(handshake()? == "0", "setconf keeps the session");
    Ok(())
}

/// Removes a preshared key and a keepalive that the file lacks, and nothing else.
pub(crate) fn takes_away() -> Result<()> {
    let host = Host::new("a")?;
    let tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let before = "[Interface]\nPrivateKey = {K1}\nListenPort = 5\n\
        [Peer]\nPublicKey = {P1}\nPresharedKey = {P2}\nEndpoint = 192.0.2.1:5\n\
        AllowedIPs = 192.0.2.0/24\nPersistentKeepalive = 25\n\
        [Peer]\nPublicKey = {P2}\nPresharedKey = {P1}\nEndpoint = 192.0.2.2:5\n\
        AllowedIPs = 198.51.100.0/24\nPersistentKeepalive = 25\n";
    tunnel.wg_with_input("setconf", &with_keys(before))?;
    let after = before
        .replacen("PresharedKey = {P2}\n", "", 1)
        .replacen("PersistentKeepalive = 25\n", "", 1)
        .replacen("Endpoint = 192.0.2.2:5\n", "", 1);
    let file = scratch_file("wg0.conf", &with_keys(&after))?;
    let output = Call::new(&["syncconf", "wg0", &file]).run(Program::Taupe)?;
    ensure!(
        output.status == Some(0) && output.err().is_empty(),
        "{output}"
    );
    let dump = tunnel.show(Some("dump"))?.stdout;
    let peers: Vec<_> = dump.lines().skip(1).collect();
    let expected = [
        "{P1}\t(none)\t192.0.2.1:5\t192.0.2.0/24\t0\t0\t0\toff",
        "{P2}\t{P1}\t192.0.2.2:5\t198.51.100.0/24\t0\t0\t0\t25",
    ];
    ensure!(peers == expected.map(with_keys), "{dump}");
    Ok(())
}
