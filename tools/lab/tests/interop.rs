//! Taupe with the other implementations, in both roles, over both protocols, with and without a
//! preshared key.

use std::net::IpAddr;
use std::time::Duration;
use taupe_lab::Result;
use taupe_lab::guest::{self, Guest};
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::interop::{Cell, Outer, Pair, table};
use taupe_lab::peers::{Implementation, Tunnel};
use taupe_lab::sandbox::{Suite, SystemTest};

/// The outer addresses, Taupe's first.
const OUTER: [[&str; 2]; 2] = [
    ["192.0.2.1/24", "2001:db8::1/64"],
    ["192.0.2.2/24", "2001:db8::2/64"],
];

/// A peer of Taupe.
#[derive(Clone, Copy)]
enum Peer {
    /// A program in another machine.
    Program(Implementation),
    /// Linux itself, in a virtual machine.
    Kernel,
}

impl Peer {
    fn all() -> impl Iterator<Item = Self> {
        let programs = Implementation::PEERS.into_iter().map(Self::Program);
        programs.chain([Self::Kernel])
    }

    fn name(self) -> &'static str {
        match self {
            Self::Program(program) => program.name(),
            Self::Kernel => "kernel",
        }
    }

    fn version(self) -> String {
        match self {
            Self::Program(program) => program.version().to_owned(),
            Self::Kernel => guest::version().unwrap_or_default(),
        }
    }

    fn install(self) -> Result<()> {
        match self {
            Self::Program(program) => program.install().map(drop),
            Self::Kernel => guest::install().map(drop),
        }
    }

    /// Returns the time limit of a test. A guest boots first, and its emulated processor shares the
    /// real ones with other tests.
    fn limit(self, cell: &Cell) -> Duration {
        match self {
            Self::Program(_) => cell.limit(),
            Self::Kernel => guest::BOOT + cell.limit() * 3,
        }
    }

    /// Connects the peer to `eth0` of a machine, and creates its interface.
    fn start(self, near: &Host) -> Result<Tunnel> {
        match self {
            Self::Program(program) => {
                let far = Host::new("far")?;
                let [ours, theirs] = &OUTER;
                link(near.port("eth0", ours), far.port("eth0", theirs), 1500)?;
                program.start(&far, "wgfar")
            }
            Self::Kernel => {
                let guest = Guest::boot(near, "eth0", &OUTER[1])?;
                for address in OUTER[0] {
                    add_address(near, "eth0", address)?;
                }
                guest.tunnel("wgfar")
            }
        }
    }
}

fn main() {
    let mut cells: Vec<(Peer, Cell)> = Peer::all()
        .flat_map(|peer| Cell::all().into_iter().map(move |cell| (peer, cell)))
        .collect();
    // The longest tests start first.
    cells.sort_by_key(|(_, cell)| std::cmp::Reverse(cell.limit()));
    let tests = cells.into_iter().map(|(peer, cell)| {
        let limit = peer.limit(&cell);
        SystemTest::new(cell.name(peer.name()), move || run(peer, cell)).limit(limit)
    });
    // All tests that wait for a natural rekey, and four others at the same time.
    let waiting = Peer::all().count() * 2;
    let suite = Suite::new(tests.collect())
        .parallel(waiting + 4)
        .prepare(|| Implementation::Taupe.install().map(drop));
    Peer::all()
        .fold(suite, |suite, peer| suite.prepare(move || peer.install()))
        .conclude(|verdicts| {
            let versions: Vec<_> = Peer::all()
                .map(|peer| (peer.name(), peer.version()))
                .collect();
            let peers: Vec<_> = versions
                .iter()
                .map(|(name, version)| (*name, &**version))
                .collect();
            println!("{}", table(&peers, verdicts));
            println!(
                "The initiator roams to another port, with a preshared key to another address;"
            );
            println!("boringtun as the initiator only to a port, gotatun only to an address.");
        })
        .main()
}

fn run(peer: Peer, cell: Cell) -> Result<()> {
    let near = Host::new("near")?;
    let peer = peer.start(&near)?;
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
        peer: &peer,
    };
    pair.run(&cell)
}
