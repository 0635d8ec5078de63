//! Tunnels that carry all applications.

use crate::checks::{after, kill_tunnel, own_words, printed};
use crate::world::{SOON, TUNNEL, UPLINK, World};
use rustix::process::Signal;
use std::time::Duration;
use taupe_lab::documents::Block;
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings};
use taupe_lab::process::wait_until;
use taupe_lab::server::PORT;
use taupe_lab::uapi::socket;
use taupe_lab::{Result, ensure};

/// The commands about a file `wg0.conf`, in the folder of the reader and in `/etc/wireguard`.
pub(crate) fn one(block: &Block) -> Result<()> {
    let world = World::new()?;
    world.write("wg0.conf", &world.conf(""))?;
    world.write_etc("wg0.conf", &world.conf(""))?;
    let before = world.network()?;
    let mut shell = world.shell()?;
    for command in &block.commands {
        let words = own_words(command);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut session = None;
        match &*words {
            // A shorter MTU is the edit.
            ["taupe", "reload", ..] => {
                world.write("wg0.conf", &world.conf("MTU = 1380"))?;
                session = Some(handshake(&world)?);
            }
            ["taupe", "down", ..] if command.comment.contains("killed") => {
                kill_tunnel(&world, "wg0")?;
                world.must_be("curl", None, "killed")?;
            }
            _ => {}
        }
        let output = shell.run(block, command)?;
        after(&world, command, &output, &before)?;
        match &*words {
            ["taupe", "up", ..] if command.comment.contains("a second time") => {
                let again = world.start(&command.text)?;
                ends(again, false, "is up")?;
            }
            ["taupe", "reload", ..] => {
                let now = Some(handshake(&world)?);
                ensure!(now == session, "the session has not continued");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the time of the latest handshake.
fn handshake(world: &World) -> Result<String> {
    let shown = world
        .near
        .run(&["wg", "show", "wg0", "latest-handshakes"])?;
    ensure!(!shown.text().ends_with("\t0"), "no handshake: {shown:?}");
    Ok(shown.stdout)
}

/// Waits for the end of a program, and checks its exit status and output.
pub(crate) fn ends(
    mut process: taupe_lab::process::Process,
    succeeds: bool,
    expected: &str,
) -> Result<()> {
    let status = process.wait(SOON)?;
    let output = process.output();
    ensure!(
        status.success() == succeeds && output.contains(expected),
        "`{}`: {status}: {output}",
        process.command()
    );
    Ok(())
}

/// Debian's `wg-quick` with Taupe's device.
pub(crate) fn by_wg_quick(block: &Block) -> Result<()> {
    let world = World::new()?;
    // Without `resolvconf`, wg-quick refuses name servers.
    let text = world.server.file("", "AllowedIPs = 0.0.0.0/0, ::/0");
    world.write("wg1.conf", &text)?;
    let mut shell = world.shell()?;
    for command in &block.commands {
        let output = shell.run(block, command)?;
        printed(command, &output, "[#] taupe-device wg1")?;
        ensure!(socket("wg1").exists(), "wg1 is not a device of Taupe");
        world.must_be("curl", Some(TUNNEL), "up")?;
    }
    let file = world.folder.join("wg1.conf").display().to_string();
    world.near.run(&["wg-quick", "down", &file])?;
    world.must_be("curl", Some(UPLINK), "down")
}

/// A tunnel in the foreground, with a log.
pub(crate) fn with_a_log(block: &Block) -> Result<()> {
    let world = World::new()?;
    world.write("wg0.conf", &world.conf(""))?;
    let before = world.network()?;
    for command in &block.commands {
        let mut process = world.start(&command.text)?;
        wait_until("a handshake in the log", SOON, || {
            ensure!(process.runs()?, "it has ended: {}", process.output());
            Ok(process.output().contains("accepted a handshake response"))
        })?;
        world.must_be("curl", Some(TUNNEL), "up")?;
        process.signal(Signal::INT)?;
        ends(process, true, "")?;
        let now = world.network()?;
        ensure!(now == before, "it leaves\n{now}\ninstead of\n{before}");
    }
    Ok(())
}

/// A tunnel inside another one: the server of the inner one is behind the server of the outer one.
pub(crate) fn two(block: &Block) -> Result<()> {
    const INSIDE: &str = "10.88.0.1";
    let world = World::new()?;
    let [client, keys] = [Keys::new(&world.near)?, Keys::new(&world.far)?];
    let inner = Implementation::Taupe.start(&world.far, "wginner")?;
    inner.configure(&Settings {
        private_key: &keys.private,
        listen_port: Some(PORT + 1),
        addresses: &["10.88.0.2/24"],
        peers: &[PeerSettings {
            public_key: &client.public,
            preshared_key: None,
            endpoint: None,
            allowed_ips: "10.88.0.1/32",
        }],
    })?;
    let outer = world.server.file("", "AllowedIPs = 10.77.0.0/24");
    world.write("outer.conf", &outer)?;
    world.write(
        "inner.conf",
        &format!(
            "[Interface]\nPrivateKey = {}\nAddress = {INSIDE}/24\n[Peer]\nPublicKey = {}\n\
             Endpoint = 10.77.0.2:{}\nAllowedIPs = 0.0.0.0/0\n",
            client.private,
            keys.public,
            PORT + 1
        ),
    )?;
    let before = world.network()?;
    let mut shell = world.shell()?;
    for command in &block.commands {
        let output = shell.run(block, command)?;
        let words = own_words(command);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match &*words {
            ["taupe", "up", ..] => {
                world.must_be("curl", Some(INSIDE), "up")?;
                let outer = world.server.shown()?;
                ensure!(outer.contains("latest handshake"), "not via outer: {outer}");
            }
            _ => after(&world, command, &output, &before)?,
        }
    }
    wait_until("the end of both", Duration::from_secs(10), || {
        Ok(!socket("inner").exists() && !socket("outer").exists())
    })
}
