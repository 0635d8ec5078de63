//! Taupe with the other implementations, in both roles, over both protocols, with and without a
//! preshared key.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use taupe_lab::guest::{self, GuestOptions};
use taupe_lab::host::{Host, link};
use taupe_lab::interop::{Cell, Exercise, OUTER, Pair, Yard, table};
use taupe_lab::peers::{Implementation, Quirks, Tunnel};
use taupe_lab::sandbox::{Suite, SystemTest};
use taupe_lab::{Result, ensure};

/// The name of the peer that is Linux itself, in a virtual machine, and of its only test.
const KERNEL: &str = "kernel";

/// The name of the kernel that runs the tests. Its tests run in guests that have this program.
const THIS_KERNEL: &str = "this-kernel";

/// Bytes of a transfer.
const BYTES: usize = 4_000_001;

fn main() {
    let mut cells: Vec<(Implementation, Cell)> = Implementation::PEERS
        .into_iter()
        .flat_map(|peer| Cell::all().into_iter().map(move |cell| (peer, cell)))
        .collect();
    // The longest tests start first.
    cells.sort_by_key(|(_, cell)| std::cmp::Reverse(cell.limit()));
    let programs = cells.into_iter().map(|(peer, cell)| {
        let body = move || with_program(peer, cell);
        SystemTest::new(cell.name(peer.name()), body).limit(cell.limit())
    });
    // The guest boots first, and its emulated processor shares the real ones with other tests.
    let limit: Duration = Cell::all().iter().map(Cell::limit).sum();
    let kernel = SystemTest::new(KERNEL, with_kernel).limit(guest::BOOT + limit);
    let of_this_machine = Cell::all().into_iter().map(|cell| {
        let body = move || with_kernel_of_this_machine(cell);
        SystemTest::new(cell.name(THIS_KERNEL), body).fixture()
    });
    let tests = [kernel].into_iter().chain(programs).chain(of_this_machine);
    // All tests that wait for a natural rekey, and four others at the same time.
    let waiting = Implementation::PEERS.len() * 2 + 1;
    let suite = Suite::new(tests.collect())
        .parallel(waiting + 4)
        .prepare(|| Implementation::Taupe.install().map(drop))
        .prepare(|| guest::install().map(drop));
    Implementation::PEERS
        .into_iter()
        .fold(suite, |suite, peer| {
            suite.prepare(move || peer.install().map(drop))
        })
        .conclude(|verdicts| {
            let kernel = guest::version().unwrap_or_default();
            let programs = Implementation::PEERS.iter();
            let peers: Vec<_> = programs
                .map(|program| (program.name(), program.version()))
                .chain([(KERNEL, &*kernel)])
                .collect();
            println!("{}", table(&peers, verdicts));
            println!(
                "The initiator roams to another port, with a preshared key to another address;"
            );
            println!("boringtun as the initiator only to a port, gotatun only to an address.");
        })
        .main()
}

/// Runs a cell with a program in another machine.
fn with_program(peer: Implementation, cell: Cell) -> Result<()> {
    let (near, far) = neighbours()?;
    run(&near, "wgnear", &peer.start(&far, "wgfar")?, BYTES, cell)
}

/// Runs a cell with an interface of the kernel in another machine.
fn with_kernel_of_this_machine(cell: Cell) -> Result<()> {
    let (near, far) = neighbours()?;
    far.ip(&["link", "add", "wgfar", "type", "wireguard"])?;
    let peer = Tunnel::at(THIS_KERNEL, far, "wgfar", Quirks::default());
    // Its processor may be an emulated one.
    run(&near, "wgnear", &peer, BYTES / 10, cell)
}

/// Returns two connected machines.
fn neighbours() -> Result<(Host, Host)> {
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    let [ours, theirs] = &OUTER;
    link(near.port("eth0", ours), far.port("eth0", theirs), 1500)?;
    Ok((near, far))
}

/// Runs all cells with the kernel of one guest.
fn with_kernel() -> Result<()> {
    let cells: Vec<_> = (1..).zip(Cell::all()).collect();
    let links = cells.iter().map(|(number, _)| *number).max();
    let yard = Yard::new(links.unwrap_or_default(), GuestOptions::default())?;
    let (waiting, sessions): (Vec<_>, Vec<_>) = cells
        .into_iter()
        .partition(|(_, cell)| cell.exercise == Exercise::NaturalRekey);
    let failed = Mutex::new(Vec::new());
    let run_all = |cells: &[(u8, Cell)]| {
        for (number, cell) in cells {
            if let Err(error) = in_guest(&yard, *number, *cell) {
                eprintln!("{cell}: {error}");
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.push(cell.to_string());
            }
        }
    };
    // Cells with sessions run one after the other while the others wait for their rekeys.
    thread::scope(|scope| {
        for cell in waiting.chunks(1) {
            scope.spawn(|| run_all(cell));
        }
        run_all(&sessions);
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(failed.is_empty(), "{failed:?} failed");
    Ok(())
}

/// Runs a cell with an interface of the guest's kernel.
fn in_guest(yard: &Yard, number: u8, cell: Cell) -> Result<()> {
    let (near, far) = yard.neighbours(number)?;
    // Machines share the folder of the devices' sockets.
    let interface = format!("wg{number}");
    let peer = far.kernel_tunnel("wgfar")?;
    run(&near, &interface, &peer, BYTES, cell)
}

/// Runs a cell between Taupe in `near` and its peer.
fn run(near: &Host, interface: &str, peer: &Tunnel, bytes: usize, cell: Cell) -> Result<()> {
    let pair = Pair {
        host: near,
        taupe: &Implementation::Taupe.start(near, interface)?,
        peer,
        bytes,
    };
    pair.run(&cell)
}
