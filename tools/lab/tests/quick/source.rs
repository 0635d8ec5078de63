//! The source of outer datagrams if the uplink has only link-local addresses.

use crate::{World, read};
use taupe_lab::capture::Capture;
use taupe_lab::sandbox::scratch_file;
use taupe_lab::{Error, Result, ensure};

/// The tunnel's own address, which is closest to the server's.
const OWN: &str = "2001:db8::1:1";

/// Another address of this machine, further away.
const OTHER: &str = "2001:db8:9::1";

/// The kernel would choose the tunnel's own address: answers would be routed into the tunnel, and
/// the outer network would see an inner address.
pub(crate) fn never_the_tunnels_own() -> Result<()> {
    let world = World::new()?;
    let (near, far) = (&world.near, &world.far);
    let router = link_local(&world, "far")?;
    let here = link_local(&world, "near")?;
    near.ip(&["address", "delete", "2001:db8::1/64", "dev", "eth0"])?;
    near.ip(&["-6", "route", "flush", "default"])?;
    #[rustfmt::skip]
    near.ip(&["-6", "route", "add", "default", "via", &router, "dev", "eth0"])?;
    let route = format!("{OTHER}/128");
    far.ip(&["-6", "route", "add", &route, "via", &here, "dev", "eth0"])?;
    let text = read(world.file("", "AllowedIPs = 10.77.0.2/32")?)?;
    let text = text
        .replace("Endpoint = 192.0.2.2:", "Endpoint = [2001:db8::2]:")
        .replace("fd77::1/64", &format!("{OWN}/128"));
    let file = scratch_file(&format!("{}.conf", crate::INTERFACE), &text)?;
    let inside = "10.77.0.2".parse().map_err(|_| Error::unmet("address"))?;
    for other in [false, true] {
        if other {
            near.ip(&["address", "add", &route, "dev", "lo"])?;
        }
        let shown = Capture::start(far, "eth0", &format!("src host {OWN}"))?;
        world.up(&file)?;
        let works = world.tunnelled(inside)?;
        world.down(&file)?;
        let packets = shown.stop()?;
        ensure!(
            packets.is_empty(),
            "{} from the tunnel's own",
            packets.len()
        );
        ensure!(
            works == other,
            "with another address: {other}, works: {works}"
        );
    }
    Ok(())
}

/// Returns the link-local address of a machine's uplink.
fn link_local(world: &World, name: &str) -> Result<String> {
    let host = if name == "far" {
        &world.far
    } else {
        &world.near
    };
    let shown = host.ip(&[
        "-6", "-o", "address", "show", "dev", "eth0", "scope", "link",
    ])?;
    let mut words = shown.stdout.split_whitespace();
    let address = words.find(|word| word.starts_with("fe80"));
    let address = address.and_then(|word| word.split('/').next());
    address
        .map(str::to_owned)
        .ok_or_else(|| Error::unmet(format!("no link-local address: {}", shown.stdout)))
}
