//! Other builds of the command in the guest.

use std::path::PathBuf;

use taupe_lab::guest::{Guest, GuestOptions, Kernel, program};
use taupe_lab::host::Host;
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

use crate::cross;
use crate::inside::{LIMIT, TRANSPARENT, check_hooks};

fn boot(kernel: Kernel, programs: Vec<PathBuf>) -> Result<Guest> {
    let options = GuestOptions {
        kernel,
        memory: 1024,
        programs,
        ..GuestOptions::default()
    };
    Guest::boot_with(&Host::new("yard")?, "tap0", &[], &options)
}

/// The static program of `make musl` works in a root directory that has nothing else but
/// `/dev/net/tun` and a file.
pub(crate) fn static_program_in_empty_root() -> Result<()> {
    let taupe = cross::released(cross::MUSL)?;
    let guest = boot(Kernel::Arm64, vec![taupe.clone()])?;
    let run = |script: &str| guest.run_within(LIMIT, script);
    let inside = program(&taupe);
    run(&format!(
        "mkdir -p /empty/dev/net && mknod /empty/dev/net/tun c 10 200 && cp {inside} /empty/taupe"
    ))?;
    let in_root = |words: &str| run(&format!("env -i /applets/chroot /empty /taupe {words}"));
    step("keys");
    let key = in_root("genkey")?;
    let file = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 51820\n",
        key.text()
    );
    run(&format!("umask 077 && printf '{file}' > /empty/wg0.conf"))?;
    step("check");
    in_root("check /wg0.conf")?;
    step("device");
    run(
        "env -i /applets/chroot /empty /taupe device --foreground wg0 > /device.log 2>&1 &
         until [ -S /empty/var/run/wireguard/wg0.sock ]; do
             kill -0 $! || { cat /device.log; exit 1; }
             sleep 0.1
         done",
    )?;
    in_root("setconf wg0 /wg0.conf")?;
    let port = in_root("show wg0 listen-port")?;
    ensure!(port.text() == "51820", "{port:?}");
    run("ip link show wg0")?;
    Ok(())
}

/// A program of 32 bits on a 64-bit kernel loads and attaches the eBPF programs, and tunnels the
/// selected application.
pub(crate) fn program_of_32_bits() -> Result<()> {
    let kernel = Kernel::Arm64Backports;
    let test = cross::program(TRANSPARENT.name)?;
    let guest = boot(kernel, vec![cross::program_of_32_bits()?, test])?;
    check_hooks(&guest, kernel)?;
    guest.run_test(TRANSPARENT.name, "selected_and_unselected", LIMIT)
}
