//! The same file with Debian's `wg-quick` and with Taupe: the resulting system states are compared.

use crate::state::State;
use crate::{World, called};
use taupe_lab::peers::Implementation;
use taupe_lab::process::{self, Attempt};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

/// A file, and the lines in which the system state after `taupe up` may differ from that after
/// Debian's `wg-quick`. Taupe called as `wg-quick` must give the same state.
struct Case {
    name: &'static str,
    interface: &'static str,
    peer: &'static str,
    differences: &'static [&'static str],
}

/// The reason why `taupe up` differs: each family of a full tunnel has an unreachable default route
/// behind the tunnel's, so that nothing leaves unencrypted if the device is killed and its routes
/// disappear.
const CLOSED_4: &str = "+ ip -4 -d route show table all: unreachable default table 51820 proto boot scope global metric 4294967295";
const CLOSED_6: &str = "+ ip -6 -d route show table all: unreachable default dev lo table 51820 proto boot scope global metric 4294967295 pref medium";

const CASES: &[Case] = &[
    Case {
        name: "two networks",
        interface: "",
        peer: "AllowedIPs = 10.88.0.0/16, fd88::/48, 198.51.100.0/24",
        differences: &[],
    },
    Case {
        name: "networks in networks",
        interface: "",
        peer: "AllowedIPs = 10.0.0.0/8, 10.88.0.0/16, 10.77.0.0/24, 10.77.0.2/32, fd77::/48, fd77::2/128",
        differences: &[],
    },
    Case {
        name: "full tunnel, IPv4",
        interface: "",
        peer: "AllowedIPs = 0.0.0.0/0",
        differences: &[
            CLOSED_4,
            CLOSED_6,
            "+ ip -6 rule: 32764: from all lookup main suppress_prefixlength 0",
            "+ ip -6 rule: 32765: not from all fwmark 0xca6c lookup 51820",
        ],
    },
    Case {
        name: "full tunnel, IPv6",
        interface: "",
        peer: "AllowedIPs = ::/0",
        differences: &[CLOSED_6],
    },
    Case {
        name: "full tunnel, both",
        interface: "",
        peer: "AllowedIPs = 0.0.0.0/0, ::/0",
        differences: &[CLOSED_4, CLOSED_6],
    },
    Case {
        name: "full tunnel with more",
        interface: "MTU = 1380\nListenPort = 51999",
        peer: "AllowedIPs = 0.0.0.0/0, ::/0, 198.51.100.0/24, 2001:db8:5::/48\nPersistentKeepalive = 25",
        differences: &[CLOSED_4, CLOSED_6],
    },
    Case {
        name: "full tunnel with a mark of one's own",
        interface: "FwMark = 0x1234",
        peer: "AllowedIPs = 0.0.0.0/0, ::/0",
        differences: &[
            "+ ip -4 -d route show table all: unreachable default table 4660 proto boot scope global metric 4294967295",
            "+ ip -6 -d route show table all: unreachable default dev lo table 4660 proto boot scope global metric 4294967295 pref medium",
        ],
    },
    Case {
        name: "a table",
        interface: "Table = 1234",
        peer: "AllowedIPs = 0.0.0.0/0, ::/0, 10.88.0.0/16",
        differences: &[],
    },
    Case {
        name: "no table",
        interface: "Table = off",
        peer: "AllowedIPs = 0.0.0.0/0, ::/0",
        differences: &[],
    },
    Case {
        name: "names for the system",
        interface: "DNS = 10.77.0.53, fd77::53, example.org, example.net",
        peer: "AllowedIPs = 10.88.0.0/16",
        differences: &[],
    },
];

pub(crate) fn all() -> Result<()> {
    let world = World::new()?;
    conntrack_begins(&world)?;
    let tools = Tools::new()?;
    for case in CASES {
        step(case.name);
        let file = world.file(case.interface, case.peer)?;
        let before = State::of(&world.near)?;
        let mut after_up = Vec::new();
        let mut reported = Vec::new();
        for [up, down] in [tools.debian(), tools.wg_quick(), tools.taupe()] {
            tools.forget()?;
            unset_valid_mark(&world)?;
            tools.succeed(&world, &up, &file)?;
            after_up.push(State::of_the_network(&world.near)?);
            reported.push(tools.resolvconf_input()?);
            tools.succeed(&world, &down, &file)?;
            if down[0].ends_with("wg-quick") {
                // Both programs leave this sysctl set.
                unset_valid_mark(&world)?;
            }
            let difference = before.difference(&State::of(&world.near)?);
            ensure!(
                difference.is_empty(),
                "{}: {up:?} and {down:?} left:\n{difference}",
                case.name
            );
        }
        let difference = after_up[0].difference(&after_up[1]);
        ensure!(
            difference.is_empty(),
            "{}: called as wg-quick, Taupe differs from Debian's:\n{difference}",
            case.name
        );
        // The rules of `taupe up` match the interface by its index.
        let numbered = after_up[0].replacing("iifname != ", "iif != ");
        let difference = numbered.difference(&after_up[2]);
        let mut lines: Vec<_> = difference.lines().collect();
        let mut expected = case.differences.to_vec();
        lines.sort_unstable();
        expected.sort_unstable();
        ensure!(
            lines == expected,
            "{}: taupe up differs from Debian's wg-quick by\n{difference}and should by\n{expected:#?}",
            case.name
        );
        ensure!(
            reported[1] == reported[0] && reported[2] == reported[0],
            "{}: resolvconf received {reported:#?}",
            case.name
        );
    }
    Ok(())
}

/// A tunnel brought up by one program is taken down by the other.
pub(crate) fn crossed() -> Result<()> {
    let world = World::new()?;
    conntrack_begins(&world)?;
    let tools = Tools::new()?;
    for case in CASES {
        step(case.name);
        let file = world.file(case.interface, case.peer)?;
        let before = State::of_the_network(&world.near)?;
        for [up, down] in [
            [tools.debian()[0].clone(), tools.taupe()[1].clone()],
            [tools.debian()[0].clone(), tools.wg_quick()[1].clone()],
            [tools.wg_quick()[0].clone(), tools.debian()[1].clone()],
        ] {
            tools.forget()?;
            tools.succeed(&world, &up, &file)?;
            tools.succeed(&world, &down, &file)?;
            // Debian's program leaves the sysctl set, and so does one that did not set it.
            unset_valid_mark(&world)?;
            let difference = before.difference(&State::of_the_network(&world.near)?);
            ensure!(
                difference.is_empty(),
                "{}: {up:?} and {down:?} left:\n{difference}",
                case.name
            );
        }
    }
    Ok(())
}

/// The compared programs, and a `resolvconf` that logs its input.
struct Tools {
    path: String,
    device: String,
}

type Invocation = Vec<String>;

impl Tools {
    fn new() -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let folder = scratch("bin");
        std::fs::create_dir_all(&folder).map_err(Error::io("bin"))?;
        let script = folder.join("resolvconf");
        let log = scratch("resolvconf.log").display().to_string();
        let text = format!(
            "#!/bin/sh\n{{ echo \"resolvconf $*\"; case $1 in -a) cat;; esac; }} >> {log}\n"
        );
        std::fs::write(&script, text).map_err(Error::io("resolvconf"))?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))
            .map_err(Error::io("resolvconf"))?;
        let path = std::env::var("PATH").unwrap_or_default();
        Ok(Self {
            path: format!("{}:{path}", folder.display()),
            device: Implementation::Taupe.daemon()?.display().to_string(),
        })
    }

    fn debian(&self) -> [Invocation; 2] {
        ["up", "down"].map(|verb| vec!["wg-quick".to_owned(), verb.to_owned()])
    }

    fn wg_quick(&self) -> [Invocation; 2] {
        let program = called("wg-quick").unwrap_or_default();
        ["up", "down"].map(|verb| vec![program.clone(), verb.to_owned()])
    }

    fn taupe(&self) -> [Invocation; 2] {
        let program = called("taupe").unwrap_or_default();
        let up = vec![program.clone(), "up".to_owned(), "--adapter".to_owned()];
        [up, vec![program, "down".to_owned()]]
    }

    fn run(&self, world: &World, invocation: &Invocation, file: &str) -> Result<Attempt> {
        let mut words: Vec<&str> = invocation.iter().map(String::as_str).collect();
        words.push(file);
        let mut command = world.near.command(&words);
        command
            .env("PATH", &self.path)
            .env("WG_QUICK_USERSPACE_IMPLEMENTATION", &self.device);
        process::attempt(world.near.name(), command, None)
    }

    fn succeed(&self, world: &World, invocation: &Invocation, file: &str) -> Result<()> {
        let attempt = self.run(world, invocation, file)?;
        ensure!(attempt.status == Some(0), "{invocation:?}: {attempt:?}");
        Ok(())
    }

    fn forget(&self) -> Result<()> {
        std::fs::write(scratch("resolvconf.log"), "").map_err(Error::io("resolvconf.log"))
    }

    /// Returns resolvconf's log so far. `wg-quick down` removes the servers twice; once is
    /// sufficient.
    fn resolvconf_input(&self) -> Result<Vec<String>> {
        let text = crate::read(scratch("resolvconf.log"))?;
        Ok(text.lines().map(str::to_owned).collect())
    }
}

fn unset_valid_mark(world: &World) -> Result<()> {
    world.near.sysctl("net/ipv4/conf/all/src_valid_mark", "0")
}

/// Connection tracking starts with the first rule that needs it, and remains active; so do families
/// in the output of `ip rule`. This triggers both before the comparison.
pub(crate) fn conntrack_begins(world: &World) -> Result<()> {
    let rules = "add table ip lab; add chain ip lab c { type filter hook prerouting priority 0; }; \
                 add rule ip lab c ct mark 1; delete table ip lab";
    world.near.run(&["nft", rules]).map(drop)
}
