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
pub(crate) fn static_program_alone() -> Result<()> {
    let taupe = cross::released(cross::MUSL)?;
    let guest = boot(Kernel::Arm64, vec![taupe.clone()])?;
    let inside = program(&taupe);
    guest.run(&format!(
        "mkdir -p /alone/dev/net && mknod /alone/dev/net/tun c 10 200 && cp {inside} /alone/taupe"
    ))?;
    let alone = |words: &str| guest.run(&format!("env -i /applets/chroot /alone /taupe {words}"));
    step("keys");
    let key = alone("genkey")?;
    let file = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 51820\n",
        key.text()
    );
    guest.run(&format!("umask 077 && printf '{file}' > /alone/wg0.conf"))?;
    step("check");
    alone("check /wg0.conf")?;
    step("device");
    guest.run(
        "env -i /applets/chroot /alone /taupe device --foreground wg0 > /dev/null 2>&1 &
         until [ -S /alone/var/run/wireguard/wg0.sock ]; do sleep 0.1; done",
    )?;
    alone("setconf wg0 /wg0.conf")?;
    let port = alone("show wg0 listen-port")?;
    ensure!(port.text() == "51820", "{port:?}");
    guest.run("ip link show wg0")?;
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
