//! The network lock: blocks the network access of programs, whether or not the process of a tunnel
//! is alive (Windows Filtering Platform).
//!
//! The system keeps blocking filters for each program across restarts. A tunnel that carries these
//! programs opens a [`Pass`] for them, which belongs to its process: when the process ends for any
//! reason, the system removes the pass and the programs are blocked again. Traffic to this machine
//! itself is never blocked.
//!
//! All filters belong to a provider and a sublayer of Taupe, so that they can be distinguished from
//! others and removed completely.
//!
//! This module has not been tested on Windows yet; Wine implements only stubs of these functions.

mod engine;

use engine::{Engine, Filter};
use std::io;
use std::path::Path;
use windows_sys::core::GUID;

/// The provider that identifies Taupe's filters.
const PROVIDER: GUID = GUID::from_u128(0x7a9d_6e21_53c4_4b0e_9f10_2f6b_8a71_d5c3);

/// Taupe's sublayer in each layer. Within it a pass overrides a block.
const SUBLAYER: GUID = GUID::from_u128(0x1c84_b2f9_0e6d_4d57_a3b8_64e9_57c0_3f12);

/// Blocks these programs from now on, also after a restart, and unblocks all other programs. A
/// program is given by the path of its file, which must exist. If one of them fails, nothing is
/// changed.
///
/// # Errors
///
/// [`io::ErrorKind::NotFound`] if a file does not exist, [`io::ErrorKind::PermissionDenied`] if the
/// caller is not an elevated administrator.
pub fn set(programs: &[&Path]) -> io::Result<()> {
    let engine = Engine::open(false)?;
    let programs = programs
        .iter()
        .map(|path| {
            let named = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            };
            engine::Program::of(path).map_err(named)
        })
        .collect::<io::Result<Vec<_>>>()?;
    engine.transaction(|engine| {
        engine.remove_filters(&PROVIDER)?;
        engine.add_sublayer(&PROVIDER, &SUBLAYER)?;
        for program in &programs {
            engine.add(&PROVIDER, &SUBLAYER, program, Filter::Block)?;
        }
        Ok(())
    })
}

/// Removes the lock with its provider and sublayer. While there is a [`Pass`], the provider and the
/// sublayer stay, which block nothing. No lock is not an error.
///
/// # Errors
///
/// [`io::ErrorKind::PermissionDenied`] if the caller is not an elevated administrator.
pub fn clear() -> io::Result<()> {
    let engine = Engine::open(false)?;
    engine.transaction(|engine| engine.remove_filters(&PROVIDER))?;
    match engine.transaction(|engine| engine.remove_sublayer(&PROVIDER, &SUBLAYER)) {
        Err(error) if engine::is_in_use(&error) => Ok(()),
        removed => removed,
    }
}

/// Permits locked programs to use the network, until it is dropped or this process ends.
pub struct Pass {
    _engine: Engine,
}

impl Pass {
    /// Opens a pass for programs whose packets something else handles from now on. Returns `None`
    /// if there is no lock. Ignores programs whose file no longer exists.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::PermissionDenied`] if the caller is not an elevated administrator.
    pub fn open(programs: &[&Path]) -> io::Result<Option<Self>> {
        let engine = Engine::open(true)?;
        // Checked first, because looking up thousands of programs takes time.
        if !engine.has_sublayer(&SUBLAYER)? {
            return Ok(None);
        }
        let programs = programs
            .iter()
            .map(|path| engine::Program::of(path))
            .filter(|found| !matches!(found, Err(error) if error.kind() == io::ErrorKind::NotFound))
            .collect::<io::Result<Vec<_>>>()?;
        let added = engine.transaction(|engine| {
            for program in &programs {
                engine.add(&PROVIDER, &SUBLAYER, program, Filter::Pass)?;
            }
            Ok(())
        });
        match added {
            Err(error) if engine::is_sublayer_missing(&error) => Ok(None),
            added => added.map(|()| Some(Self { _engine: engine })),
        }
    }
}
