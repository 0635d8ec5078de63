//! Link-local destinations: direct if they are on the link, in the tunnel if they are behind a
//! router.

use crate::application::install;
use crate::scene::{Scene, at, everything_but, nothing, rules, unmet};
use std::net::{IpAddr, UdpSocket};
use taupe_lab::host::{Host, add_address};
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result};

/// Metadata addresses of clouds, reached by a route.
pub(crate) const BEHIND: [&str; 2] = ["169.254.169.254", "fe80:1::1"];

/// A link-local address on the link.
const BESIDE: &str = "169.254.7.7";

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("link_local_behind_a_router", behind_a_router),
        SystemTest::new("link_local_that_is_excluded", excluded),
    ]
}

/// Starts a UDP server on a host that answers with the host's name.
pub(crate) fn answer(host: &Host, device: &str, address: &str, name: &'static str) -> Result<()> {
    add_address(host, device, address)?;
    let address: IpAddr = address.parse().map_err(unmet)?;
    let socket = host.enter(|| UdpSocket::bind((address, 80)).map_err(Error::io("socket")))?;
    std::thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
            let _ = socket.send_to(name.as_bytes(), from);
        }
    });
    Ok(())
}

fn behind_a_router() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    answer(&scene.far, "lo", BEHIND[0], "far")?;
    answer(&scene.far, "down0", BESIDE, "beside")?;
    answer(&scene.beyond, "lo", BEHIND[0], "beyond")?;
    scene.expect(&other, &["udp", &at(BEHIND[0], 80)], "far")?;
    step("by the default route");
    let clear = scene.capture("net 169.254.0.0/16 or dst net fe80:1::/64")?;
    scene.expect(&chosen, &["udp", &at(BEHIND[0], 80)], "beyond")?;
    scene.expect(&chosen, &["connected-udp", &at(BEHIND[0], 80)], "beyond")?;
    step("by a route of its own, and IPv6");
    let home = &scene.home;
    home.ip(&["route", "add", "169.254.0.0/16", "via", "192.0.2.1"])?;
    scene.expect(&chosen, &["udp", &at(BEHIND[0], 80)], "beyond")?;
    let router = ["via", "2001:db8:1::1", "dev", "up0"];
    home.ip(&[&["-6", "route", "add", "fe80:1::/64"][..], &router].concat())?;
    scene.run(&chosen, &["udp", &at(BEHIND[1], 80)])?;
    nothing(&scene, clear)?;
    step("the same on the link");
    home.ip(&["route", "replace", "169.254.0.0/16", "dev", "up0"])?;
    scene.expect(&chosen, &["udp", &at(BESIDE, 80)], "beside")?;
    step("behind the router again");
    home.ip(&["route", "replace", "169.254.0.0/16", "via", "192.0.2.1"])?;
    scene.expect(&chosen, &["udp", &at(BEHIND[0], 80)], "beyond")
}

/// Destinations that the file excludes from the tunnel are direct, on the link or not.
fn excluded() -> Result<()> {
    let mut scene = Scene::new()?;
    let chosen = install("chosen")?;
    answer(&scene.far, "lo", BEHIND[0], "far")?;
    answer(&scene.beyond, "lo", BEHIND[0], "beyond")?;
    let direct = everything_but(&["169.254.0.0/16"]);
    scene.set_up(&rules(&["chosen"], &[]), &direct)?;
    scene.expect(&chosen, &["udp", &at(BEHIND[0], 80)], "far")
}
