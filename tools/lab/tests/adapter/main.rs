//! The steps of a tunnel on this kernel, with a failure or the death of the process at each step.

mod faulty;
mod system;

use std::time::Duration;

use taupe_adapter::{Compatibility, Machine, UpError};
use taupe_config::file::Endpoint;
use taupe_lab::sandbox::{Suite, SystemTest, step};
use taupe_lab::{Error, Result, ensure};

use faulty::Fault;
use system::{KINDS, TestHost, Tunnel, file, only};

fn main() {
    let long = Duration::from_secs(240);
    Suite::new(vec![
        SystemTest::new("an_up_that_fails_anywhere_leaves_nothing", fails).limit(long),
        SystemTest::new("an_up_that_is_killed_anywhere_can_be_taken_down", killed).limit(long),
        SystemTest::new("a_down_that_is_killed_anywhere_can_be_done_again", twice).limit(long),
        SystemTest::new("a_reload_makes_what_a_new_tunnel_would_be", reloaded).limit(long),
        SystemTest::new("a_reload_looks_routes_up_outside_the_tunnel", around),
        SystemTest::new("a_reload_keeps_the_port_that_peers_know", port),
        SystemTest::new("the_last_tunnel_restores_the_sysctl", sysctl),
        SystemTest::new("very_many_routes", many).limit(long),
    ])
    .main()
}

/// Runs `test` with a fault at the first, second… call until it returns false, because no call is
/// left.
fn at_every_call(mut test: impl FnMut(usize) -> Result<bool>) -> Result<usize> {
    let mut number = 0;
    while test(number)? {
        number += 1;
    }
    ensure!(number > 0, "there was nothing to strike");
    Ok(number)
}

fn fails() -> Result<()> {
    let bench = TestHost::new()?;
    for (name, interface, peer) in KINDS {
        for compatibility in [Compatibility::Taupe, Compatibility::WgQuick] {
            step(&format!("{name}, {compatibility:?}"));
            let file = file(interface, peer)?;
            let mut tunnel = Tunnel::new("wgt", &file, compatibility);
            let before = bench.state()?;
            at_every_call(|number| {
                tunnel.strike(number, Fault::Fail);
                let outcome = tunnel.up();
                if !tunnel.struck() {
                    ensure!(matches!(outcome, Some(Ok(()))), "nothing failed");
                    tunnel.end()?;
                    bench.is_as(&before, compatibility)?;
                    return Ok(false);
                }
                match outcome {
                    Some(Err(UpError::Failed { leftovers, .. })) if leftovers.is_empty() => {}
                    other => return Err(Error::unmet(format!("call {number}: {other:?}"))),
                }
                bench.is_as(&before, compatibility)?;
                Ok(true)
            })?;
        }
    }
    Ok(())
}

fn killed() -> Result<()> {
    let bench = TestHost::new()?;
    for (name, interface, peer) in KINDS {
        for fault in [Fault::DieBefore, Fault::DieAfter] {
            step(&format!("{name}, {fault:?}"));
            let file = file(interface, peer)?;
            let mut tunnel = Tunnel::new("wgt", &file, Compatibility::Taupe);
            let before = bench.state()?;
            at_every_call(|number| {
                tunnel.strike(number, fault);
                let outcome = tunnel.up();
                let struck = tunnel.struck();
                ensure!(struck == outcome.is_none(), "it died of the fault");
                tunnel.end()?;
                bench.is_as(&before, Compatibility::Taupe)?;
                Ok(struck)
            })?;
        }
    }
    Ok(())
}

fn twice() -> Result<()> {
    let bench = TestHost::new()?;
    for (name, interface, peer) in KINDS {
        for fault in [Fault::DieBefore, Fault::DieAfter] {
            step(&format!("{name}, {fault:?}"));
            let file = file(interface, peer)?;
            let mut tunnel = Tunnel::new("wgt", &file, Compatibility::Taupe);
            let before = bench.state()?;
            at_every_call(|number| {
                tunnel.make()?;
                tunnel.strike(number, fault);
                let outcome = tunnel.down();
                let struck = tunnel.struck();
                ensure!(struck == outcome.is_none(), "it died of the fault");
                if tunnel.has_journal() {
                    tunnel.end()?;
                }
                bench.is_as(&before, Compatibility::Taupe)?;
                Ok(struck)
            })?;
        }
    }
    Ok(())
}

fn reloaded() -> Result<()> {
    let bench = TestHost::new()?;
    let before = bench.state()?;
    for (old_name, old_interface, old_peer) in KINDS {
        for (new_name, new_interface, new_peer) in KINDS {
            step(&format!("{old_name} to {new_name}"));
            let (old, new) = (
                file(old_interface, old_peer)?,
                file(new_interface, new_peer)?,
            );
            let mut tunnel = Tunnel::new("wgt", &new, Compatibility::Taupe);
            tunnel.make()?;
            let fresh = bench.settled()?;
            tunnel.end()?;
            let mut tunnel = Tunnel::new("wgt", &old, Compatibility::Taupe);
            tunnel.make()?;
            tunnel.reload(&new)?;
            let reloaded = bench.settled()?;
            ensure!(
                reloaded == fresh,
                "only reloaded: {:#?}, only fresh: {:#?}",
                only(&reloaded, &fresh),
                only(&fresh, &reloaded)
            );
            tunnel.end()?;
            bench.is_as(&before, Compatibility::Taupe)?;
        }
    }
    Ok(())
}

/// The route to the endpoint does not go through the tunnel itself.
fn around() -> Result<()> {
    let bench = TestHost::new()?;
    bench.ip("-6 route change default via 2001:db8:9::1 mtu 1400")?;
    for mark in ["", "FwMark = 9"] {
        let interface = format!("Address = 10.9.0.2/24, fd09::2/64\n{mark}");
        let mut full = file(&interface, "AllowedIPs = 0.0.0.0/0, ::/0")?;
        for peer in &mut full.peers {
            let address = "[2001:db8:77::1]:51820".parse();
            peer.endpoint = address.ok().map(Endpoint::Address);
        }
        let mut tunnel = Tunnel::new("wgt", &full, Compatibility::Taupe);
        tunnel.make()?;
        let fresh = bench.settled()?;
        ensure!(fresh.contains(" mtu 1320 "), "{fresh}");
        tunnel.reload(&full)?;
        let reloaded = bench.settled()?;
        ensure!(reloaded == fresh, "{:#?}", only(&reloaded, &fresh));
        tunnel.end()?;
    }
    Ok(())
}

fn port() -> Result<()> {
    let _bench = TestHost::new()?;
    let any = file("Address = 10.9.0.2/24", "AllowedIPs = 10.0.0.0/8")?;
    let given = file("ListenPort = 4242", "AllowedIPs = 10.0.0.0/8")?;
    let mut tunnel = Tunnel::new("wgt", &any, Compatibility::Taupe);
    tunnel.make()?;
    let is = || {
        let device = taupe_client::read("wgt");
        let device = device.map_err(|error| Error::unmet(error.to_string()))?;
        Ok::<_, Error>(device.listen_port)
    };
    let before = is()?;
    tunnel.reload(&any)?;
    ensure!(is()? == before, "{} instead of {before}", is()?);
    tunnel.reload(&given)?;
    ensure!(is()? == 4242, "{}", is()?);
    tunnel.end()
}

/// Two tunnels set the same sysctl, and end in the order in which they began.
fn sysctl() -> Result<()> {
    let bench = TestHost::new()?;
    let before = bench.state()?;
    let full = file("Address = 10.9.0.2/24", "AllowedIPs = 0.0.0.0/0")?;
    let mut first = Tunnel::new("wgt", &full, Compatibility::Taupe);
    let mut second = Tunnel::new("wgu", &full, Compatibility::Taupe);
    first.make()?;
    second.make()?;
    ensure!(bench.valid_mark()? == "1", "both want it");
    first.end()?;
    ensure!(bench.valid_mark()? == "1", "the second wants it still");
    second.end()?;
    ensure!(bench.valid_mark()? == "0", "nobody wants it");
    // A tunnel made by wg-quick has no journal.
    first.make()?;
    bench.ip("rule add not fwmark 4242 table 4242")?;
    first.end()?;
    ensure!(bench.valid_mark()? == "1", "wg-quick's tunnel wants it");
    first.make()?;
    bench.ip("rule delete table 4242")?;
    first.end()?;
    ensure!(bench.valid_mark()? == "1", "as it was before the first");
    bench.reset_valid_mark()?;
    bench.is_as(&before, Compatibility::Taupe)
}

fn many() -> Result<()> {
    let bench = TestHost::new()?;
    let before = bench.state()?;
    let count = 20_000_u32;
    let networks: Vec<String> = (0..count)
        .map(|index| {
            format!(
                "AllowedIPs = {}/32",
                std::net::Ipv4Addr::from(0x0a00_0000 + 2 * index)
            )
        })
        .collect();
    let file = file("Address = 10.9.0.2/32", &networks.join("\n"))?;
    let mut tunnel = Tunnel::new("wgt", &file, Compatibility::Taupe);
    tunnel.make()?;
    let routes = bench.routes_by("wgt")?;
    ensure!(routes == count as usize, "{routes} routes");
    ensure!(
        tunnel
            .machine()
            .interface()
            .is_ok_and(|found| found.is_some()),
        "up",
    );
    tunnel.end()?;
    bench.is_as(&before, Compatibility::Taupe)
}
