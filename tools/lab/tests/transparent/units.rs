//! The rights of the systemd units: a tunnel with all changes that Taupe makes to a system in the unit
//! without commands, and a file with commands in both.

use std::fs;
use std::path::Path;

use taupe_lab::cgroup::Group;
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::surroundings::own_etc;
use taupe_lab::{Error, Result, ensure};

use crate::boot::{Machine, install};
use crate::world::{Application, SERVER, TUNNEL, UPLINK, World, expect};

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Commands that need more than Taupe does: a setting of the kernel, rules, another user.
fn commands(result: &Path) -> String {
    format!(
        "PostUp = sysctl -q -w net.ipv4.ip_forward=1; nft add table ip lab_%i\n\
         PostUp = runuser -u nobody -- id -un >{}\n\
         PostDown = nft delete table ip lab_%i\n",
        result.display()
    )
}

pub(crate) fn with_and_without_commands() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    own_etc("nameserver 198.51.100.1\n")?;
    let (file, key) = install(&world, "")?;
    let read = |path: &str| fs::read_to_string(path).map_err(Error::io(path.to_owned()));
    let text = read(&file)?;
    let with = |lines: &str| {
        let text = text.replace("[Interface]\n", &format!("[Interface]\n{lines}"));
        fs::write(&file, text).map_err(Error::io(&*file))
    };
    let servers = format!("DNS = {}\n", SERVER[0]);
    with(&servers)?;
    let before = read(RESOLV_CONF)?;
    let group = Group::new()?;
    // Nobody has to reach anything before the tunnel is up.
    let online = scratch("bird.answers");
    fs::write(&online, "nobody\n").map_err(Error::io("answers"))?;
    step("a full tunnel with name servers");
    let machine = Machine::start(&world, &group, &key, &["taupe@"])?;
    machine.wait_for("taupe@home", "active")?;
    for family in [0, 1] {
        expect(&world, &mole, family, Some(TUNNEL[family]))?;
    }
    ensure!(read(RESOLV_CONF)?.contains(SERVER[0]), "no server is set");
    let valid_mark = "/proc/sys/net/ipv4/conf/all/src_valid_mark";
    let valid_mark = || world.near.run(&["cat", valid_mark]);
    ensure!(valid_mark()?.stdout.trim() == "1", "src_valid_mark is off");
    machine.systemctl(&["reload", "taupe@home"])?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    step("a reload with commands");
    let result = scratch("user");
    with(&(servers.clone() + &commands(&result)))?;
    let refused = machine.attempt(&["reload", "taupe@home"])?;
    ensure!(refused.status != Some(0), "reloaded: {refused:?}");
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    with(&servers)?;
    step("stopped");
    machine.systemctl(&["stop", "taupe@home"])?;
    ensure!(read(RESOLV_CONF)? == before, "{}", read(RESOLV_CONF)?);
    ensure!(valid_mark()?.stdout.trim() == "0", "src_valid_mark is on");
    expect(&world, &mole, 0, Some(UPLINK[0]))?;
    step("commands where they are not permitted");
    with(&(servers.clone() + &commands(&result)))?;
    let refused = machine.attempt(&["start", "taupe@home"])?;
    ensure!(refused.status == Some(1), "started: {refused:?}");
    let log = machine.log()?;
    ensure!(
        log.contains(
            "home.conf has PostUp, PostDown, and the unit taupe@home does not permit commands"
        ) && log.contains("`systemctl enable --now taupe-hooks@home`"),
        "{log}"
    );
    ensure!(!result.exists(), "a command ran");
    step("commands where they are permitted");
    machine.systemctl(&["start", "taupe-hooks@home"])?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    let user = read(&result.display().to_string())?;
    ensure!(user.trim() == "nobody", "{user}");
    let forwards = world.near.run(&["sysctl", "-n", "net.ipv4.ip_forward"])?;
    ensure!(forwards.stdout.trim() == "1", "{forwards:?}");
    let table = ["nft", "list", "table", "ip", "lab_home"];
    world.near.run(&table)?;
    machine.systemctl(&["stop", "taupe-hooks@home"])?;
    let left = world.near.attempt(&table)?;
    ensure!(left.status != Some(0), "PostDown did not run: {left:?}");
    ensure!(read(RESOLV_CONF)? == before, "{}", read(RESOLV_CONF)?);
    step("a privileged port");
    with("ListenPort = 53\n")?;
    let refused = machine.attempt(&["start", "taupe@home"])?;
    ensure!(refused.status == Some(1), "started: {refused:?}");
    let log = machine.log()?;
    let reason = "UDP port 53 needs CAP_NET_BIND_SERVICE, which this process lacks";
    ensure!(log.contains(reason), "{log}");
    machine.systemctl(&["start", "taupe-hooks@home"])?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    machine.systemctl(&["stop", "taupe-hooks@home"])?;
    step("two tunnels, whose filters are on the same link");
    // Without CAP_SYS_ADMIN the kernel does not give the name of the other tunnel's filter.
    with("AllowedApps = mole\n")?;
    let (bird, other) = (Application::new("bird")?, world.with_another("work", 2)?);
    let second = other.file("AllowedApps = bird")?;
    fs::copy(&second, "/etc/wireguard/work.conf").map_err(Error::io(&*second))?;
    machine.systemctl(&["start", "taupe@home"])?;
    machine.systemctl(&["start", "taupe@work"])?;
    for name in ["home", "work"] {
        let status = world.taupe(&["status", name])?.stdout;
        let is_transparent = status.starts_with(&format!("{name}: up, for selected applications"));
        ensure!(is_transparent, "{status}: {}", machine.log()?);
    }
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    expect(&world, &bird, 0, Some(&other.tunnel()[0]))?;
    let log = machine.log()?;
    ensure!(!log.contains("another program"), "{log}");
    machine.systemctl(&["stop", "taupe@home", "taupe@work"])?;
    expect(&world, &mole, 0, None)
}
