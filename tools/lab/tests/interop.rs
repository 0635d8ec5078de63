//! Taupe with the other implementations, in both roles, over both protocols, with and without a
//! preshared key.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use taupe_lab::guest::{self, Guest, GuestOptions};
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::interop::{Cell, Exercise, Outer, Pair, table};
use taupe_lab::peers::{Implementation, Place as _, Tunnel};
use taupe_lab::sandbox::{Suite, SystemTest};
use taupe_lab::{Result, ensure};

/// The outer addresses, Taupe's first.
const OUTER: [[&str; 2]; 2] = [
    ["192.0.2.1/24", "2001:db8::1/64"],
    ["192.0.2.2/24", "2001:db8::2/64"],
];

/// The name of the peer that is Linux itself, in a virtual machine, and of its only test.
const KERNEL: &str = "kernel";

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
    // All tests that wait for a natural rekey, and four others at the same time.
    let waiting = Implementation::PEERS.len() * 2 + 1;
    let suite = Suite::new([kernel].into_iter().chain(programs).collect())
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
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    let [ours, theirs] = &OUTER;
    link(near.port("eth0", ours), far.port("eth0", theirs), 1500)?;
    run(&near, "wgnear", &peer.start(&far, "wgfar")?, cell)
}

/// Runs all cells with the kernel of one guest, because booting costs more than a cell.
fn with_kernel() -> Result<()> {
    let yard = Host::new("yard")?;
    let cells: Vec<_> = (1..).zip(Cell::all()).collect();
    let options = GuestOptions {
        more_taps: cells
            .iter()
            .map(|(number, _)| format!("tap{number}"))
            .collect(),
        ..GuestOptions::default()
    };
    let guest = Guest::boot_with(&yard, "tap0", &[], &options)?;
    let (waiting, sessions): (Vec<_>, Vec<_>) = cells
        .into_iter()
        .partition(|(_, cell)| cell.exercise == Exercise::NaturalRekey);
    let failed = Mutex::new(Vec::new());
    let run_all = |cells: &[(u16, Cell)]| {
        for (number, cell) in cells {
            if let Err(error) = in_guest(&yard, &guest, *number, *cell) {
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

/// Runs a cell between a machine and a namespace of the guest, with the guest's link of this number.
fn in_guest(yard: &Host, guest: &Guest, number: u16, cell: Cell) -> Result<()> {
    let near = Host::new(&format!("near{number}"))?;
    let far = guest.namespace(&format!("far{number}"))?;
    let tap = format!("tap{number}");
    yard.move_interface(&tap, &near)?;
    near.ip(&["link", "set", &tap, "name", "eth0", "up"])?;
    guest.run(&format!(
        "ip link set eth{number} netns far{number} name eth0 && ip -n far{number} link set eth0 up"
    ))?;
    let [ours, theirs] = &OUTER;
    for address in ours {
        add_address(&near, "eth0", address)?;
    }
    for address in theirs {
        far.add_address("eth0", address)?;
    }
    // Machines share the folder of the devices' sockets.
    let interface = format!("wg{number}");
    run(&near, &interface, &far.kernel_tunnel("wgfar")?, cell)
}

/// Runs a cell between Taupe in `near` and its peer.
fn run(near: &Host, interface: &str, peer: &Tunnel, cell: Cell) -> Result<()> {
    let outer: [IpAddr; 2] = match cell.outer {
        Outer::V4 => [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
        Outer::V6 => [
            [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
            [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2].into(),
        ],
    };
    let pair = Pair {
        host: near,
        uplinks: ["eth0", "eth0"],
        outer,
        taupe: &Implementation::Taupe.start(near, interface)?,
        peer,
    };
    pair.run(&cell)
}
