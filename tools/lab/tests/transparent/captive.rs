//! Networks that block a tunnel, and the reports about them.

use std::time::Duration;

use serde_json::Value;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, BEYOND, ENDPOINT_PORT, TUNNEL, World, expect};

/// UDP to and from the WireGuard server is lost, as before the login of a captive portal; then
/// there is no route at all.
pub(crate) fn network_that_drops_udp() -> Result<()> {
    let world = World::new()?;
    let never = world.with_another("work", 9)?;
    let mole = Application::new("mole")?;
    let endpoint = format!("{}:{ENDPOINT_PORT}", BEYOND[0]);
    let [known, unknown] = [(&world, "mole"), (&never, "bird")].map(|(world, application)| {
        let [v4, _] = world.tunnel();
        world.file_with_sections(
            &format!("Address = {v4}/32"),
            &format!(
                "Endpoint = {endpoint}\nAllowedIPs = 0.0.0.0/0\nAllowedApps = {application}\n\
                 PersistentKeepalive = 1"
            ),
        )
    });
    let (known, unknown) = (known?, unknown?);
    world.up(&known)?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    let swallow = format!(
        "table inet portal {{
            chain in {{ type filter hook input priority 0; udp dport {ENDPOINT_PORT} drop; }}
        }}"
    );
    world.far.run_with_input(&["nft", "-f", "-"], &swallow)?;
    never.up(&unknown)?;
    step("swallowed, by one that worked and one that never has");
    // An application that waits for an answer keeps the handshakes going.
    let ask = format!("exec 3<>/dev/tcp/{}/8080", BEYOND[0]);
    let _waits = world.near.spawn(&[&mole.0, "-c", &ask])?;
    expect_finding(&world, "home", "udp-swallowed")?;
    expect_finding(&world, "work", "no-handshake")?;
    let output = world.taupe(&["status"])?;
    ensure!(output.status == Some(2), "{output:?}");
    for part in [
        &format!("this network seems to drop UDP to {endpoint} (a captive portal"),
        &format!("a network that drops UDP to {endpoint} (a captive portal"),
        "but the next hop 192.168.1.2 on eth0 answers",
    ] {
        ensure!(
            output.stdout.contains(part),
            "not {part}: {}",
            output.stdout
        );
    }
    let doctor = world.taupe(&["doctor"])?;
    for part in ["home: this network seems to", "work: no handshake yet"] {
        ensure!(doctor.stdout.contains(part), "not {part}: {doctor:?}");
    }
    step("nobody there to send it on");
    world.far.ip(&["link", "set", "eth0", "arp", "off"])?;
    world.near.ip(&["neighbour", "flush", "dev", "eth0"])?;
    expect_finding(&world, "work", "next-hop-silent")?;
    step("no route");
    world.far.ip(&["link", "set", "eth0", "arp", "on"])?;
    world.near.ip(&["route", "delete", "default"])?;
    expect_finding(&world, "work", "no-route")?;
    step("logged in");
    let via = ["route", "add", "default", "via", "192.168.1.2"];
    world.near.ip(&via)?;
    world
        .far
        .run(&["nft", "delete", "table", "inet", "portal"])?;
    wait_until("the tunnels", Duration::from_secs(60), || {
        Ok(world.taupe(&["status"])?.status == Some(0))
    })?;
    never.down(&unknown)?;
    world.down(&known)
}

/// Waits until a tunnel is degraded for this reason.
fn expect_finding(world: &World, interface: &str, code: &str) -> Result<()> {
    wait_until(code, Duration::from_secs(90), || {
        let output = world.taupe(&["status", "--json"])?;
        let status: Value = serde_json::from_str(&output.stdout).map_err(|error| {
            Error::unmet(format!("{error}: {}{}", output.stdout, output.stderr))
        })?;
        let mut tunnels = status["tunnels"].as_array().into_iter().flatten();
        let Some(tunnel) = tunnels.find(|tunnel| tunnel["interface"] == interface) else {
            return Err(Error::unmet(format!("no {interface}: {status}")));
        };
        let mut findings = tunnel["findings"].as_array().into_iter().flatten();
        Ok(tunnel["state"] == "degraded" && findings.any(|finding| finding["code"] == code))
    })
}
