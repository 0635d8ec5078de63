//! An application that opens more flows than its limit.

use std::time::Duration;

use serde_json::Value;
use taupe_lab::capture::Capture;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

use crate::chatter::{self, SELECTED};
use crate::world::{Application, ENDPOINT_PORT, TUNNEL, World, expect};

/// Time limit for the removal of the application's idle flows, which happens every two seconds; a
/// rejection is reported for ten.
const LIMIT: Duration = Duration::from_secs(60);

/// Neither the flood nor its aftermath blocks another application or leaves unencrypted, and
/// `status` reports it while it lasts.
pub(crate) fn flow_limit_is_per_application() -> Result<()> {
    let world = World::new()?;
    let (mole, other) = (chatter::install("mole")?, Application::new("vole")?);
    let file = world.file("AllowedApps = mole, vole")?;
    world.up(&file)?;
    expect(&world, &other, 0, Some(TUNNEL[0]))?;
    ensure!(findings(&world)?.is_empty(), "not up before the flood");
    // The tunnel's own datagrams may use a port of this range.
    let filter = format!("udp portrange 20000-55999 and not udp port {ENDPOINT_PORT}");
    let clear = Capture::start(&world.far, "eth0", &filter)?;
    step("a flood");
    chatter::flood_by(&world.near, &mole, &SELECTED)?;
    let reported = findings(&world)?;
    ensure!(reported == ["flows-refused"], "{reported:?}");
    step("another application");
    for family in [0, 1] {
        expect(&world, &other, family, Some(TUNNEL[family]))?;
    }
    step("room again");
    wait_until("an end of it", LIMIT, || Ok(findings(&world)?.is_empty()))?;
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&file)
}

/// Returns the codes of the findings.
fn findings(world: &World) -> Result<Vec<String>> {
    let output = world.taupe(&["status", "--json"])?;
    let status: Value = serde_json::from_str(&output.stdout)
        .map_err(|error| Error::unmet(format!("{error}: {output:?}")))?;
    let findings = status["tunnels"][0]["findings"].as_array();
    let findings = findings.ok_or_else(|| Error::unmet(output.stdout.clone()))?;
    let codes = findings
        .iter()
        .filter_map(|finding| finding["code"].as_str());
    Ok(codes.map(str::to_owned).collect())
}
