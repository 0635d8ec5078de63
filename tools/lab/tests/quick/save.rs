//! Saves the state of a tunnel to its file.

use crate::{INTERFACE, World, read};
use rustix::mount::{MountFlags, mount};
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

/// A peer added by hand is in the file after `down`, with everything that was there before.
pub(crate) fn round_trip() -> Result<()> {
    let world = World::new()?;
    let file = world.file(
        "SaveConfig = true\nMTU = 1380\nPostUp = true; echo %i up # not a comment\nPostDown = true",
        "AllowedIPs = 10.88.0.0/16, fd88::/48\nPersistentKeepalive = 25",
    )?;
    world.up(&file)?;
    let added = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAQE=";
    world.near.run(&[
        "wg",
        "set",
        INTERFACE,
        "peer",
        added,
        "allowed-ips",
        "10.99.0.0/16",
    ])?;
    world.down(&file)?;
    let saved = read(&file)?;
    for line in [
        "Address = 10.77.0.1/24",
        "Address = fd77::1/64",
        "MTU = 1380",
        "SaveConfig = true",
        "PostDown = true",
        "Endpoint = 192.0.2.2:51821",
        "PersistentKeepalive = 25",
        "AllowedIPs = 10.99.0.0/16",
        &format!("PublicKey = {added}"),
        &format!("PrivateKey = {}", world.server.client.private),
    ] {
        ensure!(
            saved.lines().any(|saved| saved == line),
            "no {line:?} in:\n{saved}"
        );
    }
    let mode = world.near.run(&["stat", "-c", "%a", &file])?;
    ensure!(mode.text() == "600", "mode {}", mode.text());
    world.up(&file)?;
    world.down(&file)?;
    ensure!(
        read(&file)? == saved,
        "it is another file after one more round"
    );
    Ok(())
}

/// The file is unchanged, and so is the tunnel, which is the only place of its state.
pub(crate) fn full_disk() -> Result<()> {
    let world = World::new()?;
    let original = read(world.file("SaveConfig = true", "AllowedIPs = 10.88.0.0/16")?)?;
    let folder = scratch("small");
    std::fs::create_dir_all(&folder).map_err(Error::io("small"))?;
    let options = std::ffi::CString::new("size=8k").map_err(|_| Error::unmet("options"))?;
    mount(
        "small",
        &folder,
        "tmpfs",
        MountFlags::NOSUID,
        options.as_c_str(),
    )
    .map_err(Error::io("tmpfs"))?;
    let file = folder.join(format!("{INTERFACE}.conf"));
    std::fs::write(&file, &original).map_err(Error::io("file"))?;
    let filler = folder.join("filler");
    while std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(&filler)
        .and_then(|mut filler| std::io::Write::write_all(&mut filler, &[0; 512]))
        .is_ok()
    {}
    let file = file.display().to_string();
    world.up(&file)?;
    let listed = || world.near.run(&["ls", "-A", &folder.display().to_string()]);
    let before = listed()?;

    for verb in ["save", "down"] {
        let attempt = world.taupe(&[verb, &file])?;
        ensure!(attempt.status == Some(1), "{verb}: {attempt:?}");
        ensure!(
            attempt.stderr.contains("No space left"),
            "{verb}: {attempt:?}"
        );
        ensure!(read(&file)? == original, "{verb} lost the file");
        ensure!(listed()?.stdout == before.stdout, "{verb} left something");
        world.near.run(&["wg", "show", INTERFACE])?;
    }
    let down = world.taupe(&["down", "--no-save", &file])?;
    ensure!(down.status == Some(0), "{down:?}");
    ensure!(read(&file)? == original, "down --no-save changed the file");
    Ok(())
}
