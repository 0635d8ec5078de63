//! Taupe against the other userspace implementations, in both roles, over both
//! protocols, with and without a preshared key.

use std::net::IpAddr;
use taupe_lab::Result;
use taupe_lab::host::{Host, link};
use taupe_lab::interop::{Cell, Outer, Pair, table};
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    let mut cells: Vec<(Implementation, Cell)> = Implementation::PEERS
        .into_iter()
        .flat_map(|peer| Cell::all().into_iter().map(move |cell| (peer, cell)))
        .collect();
    // Those that take the longest begin first.
    cells.sort_by_key(|(_, cell)| std::cmp::Reverse(cell.limit()));
    let tests = cells.into_iter().map(|(peer, cell)| {
        SystemTest::new(cell.name(peer.name()), move || run(peer, cell)).limit(cell.limit())
    });
    Suite::new(tests.collect())
        .prepare(|| {
            for program in [Implementation::Taupe].iter().chain(&Implementation::PEERS) {
                program.install()?;
            }
            Ok(())
        })
        .conclude(|verdicts| {
            let peers = Implementation::PEERS.map(|peer| (peer.name(), peer.version()));
            println!("{}", table(&peers, verdicts));
            println!(
                "The initiator roams to another port, with a preshared key to another address;"
            );
            println!("boringtun as the initiator only to a port, gotatun only to an address.");
        })
        .main()
}

fn run(peer: Implementation, cell: Cell) -> Result<()> {
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    link(
        near.port("eth0", &["192.0.2.1/24", "2001:db8::1/64"]),
        far.port("eth0", &["192.0.2.2/24", "2001:db8::2/64"]),
        1500,
    )?;
    let outer: [IpAddr; 2] = match cell.outer {
        Outer::V4 => [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
        Outer::V6 => [
            [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
            [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2].into(),
        ],
    };
    let pair = Pair {
        host: &near,
        uplinks: ["eth0", "eth0"],
        outer,
        taupe: &Implementation::Taupe.start(&near, "wgnear")?,
        peer: &peer.start(&far, "wgfar")?,
    };
    pair.run(&cell)
}
