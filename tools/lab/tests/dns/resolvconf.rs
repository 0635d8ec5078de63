//! The two programs called `resolvconf` that are not systemd's.

use crate::system::{
    INTERFACE, RESOLV_CONF, SERVER, Tunnel, deviation, found_and_restored, own_etc, resolv_conf,
    unmet,
};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use taupe_adapter::dns::{self, Paths};
use taupe_lab::packages::{OPENRESOLV, Packages, RESOLVCONF};
use taupe_lab::process;
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

/// The machine's servers without the tunnel.
const UPLINK: &str = "nameserver 198.51.100.53\nsearch home.example\n";

pub(crate) fn of_openresolv() -> Result<()> {
    own_etc()?;
    let program = install(OPENRESOLV)?;
    as_wg_quick(&program, INTERFACE)
}

pub(crate) fn of_debian() -> Result<()> {
    own_etc()?;
    let program = install(RESOLVCONF)?;
    // The state after the package's scripts have run at boot.
    fs::create_dir_all("/run/resolvconf/interface").map_err(Error::io("/run/resolvconf"))?;
    fs::write("/run/resolvconf/enable-updates", "").map_err(Error::io("/run/resolvconf"))?;
    fs::remove_file(RESOLV_CONF).map_err(Error::io(RESOLV_CONF))?;
    symlink("/run/resolvconf/resolv.conf", RESOLV_CONF).map_err(Error::io(RESOLV_CONF))?;
    as_wg_quick(&program, &format!("tun.{INTERFACE}"))
}

/// Installs the files of a package: those of `/etc` there, the others in the sandbox's own folder,
/// which the scripts are given.
fn install(packages: Packages) -> Result<PathBuf> {
    let (folder, place) = (packages.folder()?, scratch("resolvconf"));
    let copy = |from: String, to: &str| {
        let mut command = Command::new("cp");
        command.args(["-a", &from, to]);
        process::run("the sandbox", command, None)
    };
    copy(folder.display().to_string(), &place.display().to_string())?;
    copy(format!("{}/etc/.", folder.display()), "/etc")?;
    let script = format!(
        "grep -rlI /lib/resolvconf {0} /etc/resolvconf* | xargs sed -i 's|/lib/resolvconf|{0}/lib/resolvconf|g'",
        place.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    process::run("the sandbox", command, None)?;
    Ok(place.join("sbin/resolvconf"))
}

/// Taupe's state equals that of wg-quick, while the tunnel is up and after it.
fn as_wg_quick(program: &std::path::Path, record: &str) -> Result<()> {
    let tunnel = Tunnel::new()?;
    let run = |arguments: &[&str], input: &str| {
        let mut command = Command::new(program);
        command.args(arguments);
        process::run("the sandbox", command, Some(input))
    };
    run(&["-a", "eth0"], UPLINK)?;
    let before = resolv_conf()?;
    ensure!(
        format!("{before:?}").contains("198.51.100.53"),
        "{before:?}"
    );

    let input = format!("nameserver {SERVER}\nnameserver fd77::2\nsearch a.example b.example\n");
    run(&["-a", record, "-m", "0", "-x"], &input)?;
    let expected = resolv_conf()?;
    ensure!(format!("{expected:?}").contains(SERVER), "{expected:?}");
    run(&["-d", record, "-f"], "")?;
    ensure!(resolv_conf()? == before, "{:?}", resolv_conf()?);

    let folder = program.parent().ok_or_else(|| Error::unmet("no folder"))?;
    let paths = Paths::new("/".into(), folder.as_os_str(), None);
    let search = ["a.example", "b.example"];
    let dns = tunnel.choose(&paths, &[SERVER, "fd77::2"], &search)?;
    ensure!(
        dns.to_string() == format!("resolvconf -a {record} -m 0 -x"),
        "{dns}"
    );
    tunnel.apply(&dns, &paths)?;
    let seen = resolv_conf()?;
    ensure!(seen == expected, "{seen:?} instead of {expected:?}");

    let blocked = dns::current(&paths, INTERFACE).map_err(unmet)?;
    let blocked = blocked.ok_or_else(|| Error::unmet("nothing is known of the interface"))?;
    let words: Vec<String> = blocked.servers.iter().map(ToString::to_string).collect();
    ensure!(words == [SERVER, "fd77::2"], "{blocked:?}");
    ensure!(blocked.search == search, "{blocked:?}");

    for _ in 0..2 {
        tunnel.undo(&dns, &paths)?;
        let after = resolv_conf()?;
        ensure!(after == before, "{after:?} instead of {before:?}");
    }
    let blocked = dns::current(&paths, INTERFACE).map_err(unmet)?;
    ensure!(blocked.is_none(), "{blocked:?}");

    let text = || fs::read_to_string(RESOLV_CONF).map_err(Error::io(RESOLV_CONF));
    let before = text()?;
    tunnel.apply(&dns, &paths)?;
    let found = deviation(&tunnel, &dns, &paths)?;
    ensure!(found.is_none(), "untouched: {found:?}");
    // Writes through the symbolic link, like a DHCP client.
    fs::write(RESOLV_CONF, "nameserver 192.0.2.53\n").map_err(Error::io(RESOLV_CONF))?;
    found_and_restored(&tunnel, &dns, &paths, "names are asked of 192.0.2.53")?;
    tunnel.undo(&dns, &paths)?;
    ensure!(text()? == before, "{} instead of {before}", text()?);
    Ok(())
}
