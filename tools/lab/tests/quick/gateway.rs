//! A tunnel whose peers initiate.

use crate::World;
use std::time::Duration;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::scratch_file;
use taupe_lab::{Error, Result, ensure};

/// The port for the peers.
const PORT: u16 = 51_822;

/// A client that has left, and one that has never connected, are no fault: `status` is "up", even
/// while packets are sent to them.
pub(crate) fn clients_leave() -> Result<()> {
    let world = World::new()?;
    let client = &world.server.keys.public;
    let never = world.taupe(&["genkey"])?.stdout;
    let never = scratch_file("never", &never)?;
    let never = world
        .near
        .run(&["sh", "-c", &format!("wg pubkey < {never}")])?;
    let file = scratch_file(
        "gateway.conf",
        &format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.77.0.1/24\nListenPort = {PORT}\n\
             [Peer]\nPublicKey = {client}\nAllowedIPs = 10.77.0.2/32\n\
             [Peer]\nPublicKey = {}\nAllowedIPs = 10.77.0.3/32\n",
            world.server.client.private,
            never.text()
        ),
    )?;
    world.up(&file)?;
    let endpoint = format!("192.0.2.1:{PORT}");
    let peer = &world.server.client.public;
    world
        .far
        .run(&["wg", "set", "wgfar", "peer", peer, "endpoint", &endpoint])?;
    let ping = ["ping", "-n", "-c", "1", "-W", "5", "10.77.0.1"];
    wait_until("the client's call", Duration::from_secs(30), || {
        Ok(world.far.attempt(&ping)?.status == Some(0))
    })?;
    let before = world.taupe(&["status"])?;
    ensure!(before.status == Some(0), "{before:?}");

    world.far.ip(&["link", "set", "wgfar", "down"])?;
    // Handshakes of the session's renewal.
    let limit = Duration::from_secs(120);
    wait_until("handshakes without an answer", limit, || {
        let still = ["ping", "-n", "-c", "1", "-W", "1", "10.77.0.2"];
        world.near.attempt(&still)?;
        let status = world.taupe(&["status", "--json"])?;
        let json: serde_json::Value = serde_json::from_str(&status.stdout)
            .map_err(|error| Error::unmet(format!("{error}: {}", status.stdout)))?;
        ensure!(
            status.status == Some(0) && json["state"] == "up",
            "{}",
            status.stdout
        );
        let peers = json["tunnels"][0]["peers"].as_array();
        let mut peers = peers.into_iter().flatten();
        let gone = peers.find(|one| one["public_key"] == **client);
        let unanswered = gone.and_then(|one| one["unanswered_handshakes"].as_u64());
        Ok(unanswered >= Some(2))
    })?;
    let after = world.taupe(&["status"])?.stdout;
    let waiting = "no handshake yet with 1 of its 2 peers: they have not started one";
    ensure!(after.contains(waiting), "{after}");
    world.down(&file).map(drop)
}
