//! Taupe in the guest, with programs of this machine.

use taupe_lab::guest::{self, GuestOptions, Kernel};
use taupe_lab::interop::{Cell, Exercise, Outer, Pair, Role, Yard};
use taupe_lab::peers::{Implementation, Place as _};
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

use crate::{cross, inside};

/// The programs of this machine.
pub(crate) const PEERS: [Implementation; 2] = [Implementation::Taupe, Implementation::WireguardGo];

/// The test that always runs.
const SHORT: Cell = Cell {
    role: Role::Responds,
    outer: Outer::V6,
    exercise: Exercise::Session { psk: true },
};

/// Runs tests of the interoperation matrix with the roles exchanged: a program of this machine takes
/// Taupe's role, and Taupe in the guest that of the peer.
pub(crate) fn peers_of_this_machine() -> Result<()> {
    let pairs: Vec<_> = match inside::is_whole() {
        true => PEERS
            .into_iter()
            .flat_map(|peer| Cell::all().into_iter().map(move |cell| (peer, cell)))
            .zip(1..)
            .collect(),
        false => vec![((Implementation::Taupe, SHORT), 1)],
    };
    let links = pairs.iter().map(|(_, number)| *number).max();
    let taupe = match inside::is_whole() {
        true => cross::released(cross::GNU)?,
        false => cross::program("taupe")?,
    };
    let options = GuestOptions {
        kernel: Kernel::Arm64,
        memory: 512,
        programs: vec![taupe.clone()],
        ..GuestOptions::default()
    };
    let yard = Yard::new(links.unwrap_or_default(), options)?;
    let mut failed = Vec::new();
    for ((peer, cell), number) in pairs {
        step(&format!("{} {cell}", peer.name()));
        let run = || {
            let (near, far) = yard.neighbours(number)?;
            let (ours, theirs) = (format!("wg{number}"), format!("taupe{number}"));
            far.run(&[&guest::program(&taupe), "device", &theirs])?;
            let pair = Pair {
                host: &near,
                taupe: &peer.start(&near, &ours)?,
                peer: &far.program_tunnel(&theirs, Implementation::Taupe.quirks())?,
                bytes: 400_001,
            };
            pair.run(&cell)
        };
        if let Err(error) = run() {
            eprintln!("{error}");
            failed.push(format!("{} {cell}", peer.name()));
        }
    }
    ensure!(failed.is_empty(), "{failed:?} failed");
    Ok(())
}
