//! VXLAN over a tunnel.
//!
//! The kernel cuts VXLAN's super-packets before it queues them, for a TUN takes none that are
//! encapsulated. A window of TCP then comes as hundreds of packets at once, and the TUN's queue
//! of 500 drops some of them.

use crate::pair::{FAR, NEAR, Pair};
use std::net::IpAddr;
use taupe_lab::host::{Host, add_address};
use taupe_lab::sandbox::figure;
use taupe_lab::traffic::{ping, serve_echo, tcp_echo};
use taupe_lab::{Error, Result, ensure};

const LENGTH: usize = 64_000_001;

/// What the queue may drop, in thousandths of the packets that are sent: twice the most that
/// was seen. TCP slows down for it, and gets through.
const MOST_DROPPED: u64 = 220;

/// A stream arrives whole, and the TUN's queue does not drop more than it is known to.
pub(crate) fn stream_over_vxlan() -> Result<()> {
    let pair = Pair::new()?;
    let (near, far) = (&pair.near.host, &pair.far.host);
    ping(near, FAR, 5)?;
    let outer_ends = [(near, NEAR, FAR), (far, FAR, NEAR)];
    for ((host, local, remote), address) in outer_ends.into_iter().zip(["10.79.0.1", "10.79.0.2"]) {
        let (local, remote) = (local.to_string(), remote.to_string());
        #[rustfmt::skip]
        host.ip(&[
            "link", "add", "vx0", "type", "vxlan", "id", "7", "dstport", "4789",
            "local", &local, "remote", &remote,
        ])?;
        host.ip(&["link", "set", "vx0", "mtu", "1370", "up"])?;
        add_address(host, "vx0", &format!("{address}/24"))?;
    }
    let server = IpAddr::from([10, 79, 0, 2]);
    ping(near, server, 5)?;
    serve_echo(far, (server, 7).into())?;

    let before = [queue(near, "wgnear")?, queue(far, "wgfar")?];
    let took = tcp_echo(near, (server, 7).into(), LENGTH)?;
    let after = [queue(near, "wgnear")?, queue(far, "wgfar")?];
    figure("64 MB there and back over VXLAN", took);
    for (way, (before, after)) in ["there", "back"]
        .into_iter()
        .zip(before.into_iter().zip(after))
    {
        let dropped = after.dropped - before.dropped;
        let offered = after.sent - before.sent + dropped;
        ensure!(offered > 0, "nothing went by the tunnel");
        let share = dropped * 1000 / offered;
        figure(&format!("{way}: dropped of a thousand packets"), share);
        ensure!(
            share <= MOST_DROPPED,
            "{way}: the TUN's queue dropped {dropped} of {offered} packets"
        );
    }
    Ok(())
}

/// What an interface has sent, and what its queue had no room for.
struct Queue {
    sent: u64,
    dropped: u64,
}

fn queue(host: &Host, interface: &str) -> Result<Queue> {
    let shown = host
        .ip(&["-s", "-j", "link", "show", "dev", interface])?
        .stdout;
    let links: serde_json::Value = serde_json::from_str(&shown)
        .map_err(|error| Error::unmet(format!("{interface}: {error}")))?;
    let count = |name: &str| {
        let count = links.pointer(&format!("/0/stats64/tx/{name}"));
        let count = count.and_then(serde_json::Value::as_u64);
        count.ok_or_else(|| Error::unmet(format!("no {name} in {shown}")))
    };
    Ok(Queue {
        sent: count("packets")?,
        dropped: count("dropped")?,
    })
}
