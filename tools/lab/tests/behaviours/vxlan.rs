//! VXLAN over a tunnel.
//!
//! The kernel splits VXLAN's super-packets before it queues them, because a TUN accepts no
//! encapsulated ones. A TCP window then arrives as hundreds of packets at once, and the TUN's queue
//! of 500 drops some of them.

use crate::pair::{FAR, NEAR, Pair};
use std::net::IpAddr;
use taupe_lab::host::{Host, add_address};
use taupe_lab::sandbox::figure;
use taupe_lab::traffic::{ping, serve_echo, tcp_echo};
use taupe_lab::{Result, ensure};

const LENGTH: usize = 64_000_001;

/// Bytes of the stream in a segment: the MTU without the headers of IP and of TCP with timestamps.
const SEGMENT: u64 = 1370 - 20 - 32;

/// Limit of retransmitted segments, in thousandths of all: twice the largest observed share. TCP
/// slows down for the queue, and gets through.
const MOST_REPEATED: u64 = 220;

/// A stream arrives completely, and TCP retransmits no more than the limit. It retransmits segments
/// lost in the queue or behind it.
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

    let before = [repeated(near)?, repeated(far)?];
    let took = tcp_echo(near, (server, 7).into(), LENGTH)?;
    let after = [repeated(near)?, repeated(far)?];
    figure("64 MB there and back over VXLAN", took);
    let counts = before.into_iter().zip(after);
    for (way, (before, after)) in ["there", "back"].into_iter().zip(counts) {
        let repeated = after - before;
        let all = LENGTH as u64 / SEGMENT + repeated;
        let share = repeated * 1000 / all;
        figure(&format!("{way}: repeated of a thousand segments"), share);
        ensure!(
            share <= MOST_REPEATED,
            "{way}: TCP has sent {repeated} of {all} segments again"
        );
    }
    Ok(())
}

/// Returns the number of segments that a machine's TCP has retransmitted.
fn repeated(host: &Host) -> Result<u64> {
    host.snmp()?.get("Tcp", "RetransSegs")
}
