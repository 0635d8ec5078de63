//! The network lock: programs that the system lets use no network, whether or not a tunnel's
//! process lives (Windows Filtering Platform).
//!
//! Blocking filters by program are kept by the system over restarts. A tunnel that carries
//! the programs opens a [`Pass`] for them, which is the process's own: when the process ends,
//! however it does, the system takes the pass away, and the programs are held back again.
//! What they send to this machine itself is never held back.
//!
//! All of it belongs to a provider and a sublayer of Taupe's own, so that it can be told from
//! others' and removed to the last filter.
//!
//! Has not yet run: Wine has stubs for all of it, and no Windows machine was at hand.

mod engine;

use engine::{Engine, Filter};
use std::io;
use std::path::Path;
use windows_sys::core::GUID;

/// Taupe's, by which the system knows whose the filters are.
const PROVIDER: GUID = GUID::from_u128(0x7a9d_6e21_53c4_4b0e_9f10_2f6b_8a71_d5c3);

/// Taupe's part of each layer, in which a pass wins over a block.
const SUBLAYER: GUID = GUID::from_u128(0x1c84_b2f9_0e6d_4d57_a3b8_64e9_57c0_3f12);

/// Holds programs back from now on, also after a restart; what was locked before is no more. A
/// program is the path of its file, which has to be there. All of them or, if one fails, none
/// is changed.
///
/// # Errors
///
/// [`io::ErrorKind::NotFound`] for a file that is not there,
/// [`io::ErrorKind::PermissionDenied`] for who is no elevated administrator.
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
        engine.remove_kept(&PROVIDER)?;
        engine.add_place(&PROVIDER, &SUBLAYER)?;
        for program in &programs {
            engine.add(&PROVIDER, &SUBLAYER, program, Filter::Block)?;
        }
        Ok(())
    })
}

/// Takes the lock away, and all that there is of it; while there is a [`Pass`], all but its
/// place, which holds nothing back. None is no error.
///
/// # Errors
///
/// [`io::ErrorKind::PermissionDenied`] for who is no elevated administrator.
pub fn clear() -> io::Result<()> {
    let engine = Engine::open(false)?;
    engine.transaction(|engine| engine.remove_kept(&PROVIDER))?;
    match engine.transaction(|engine| engine.remove_place(&PROVIDER, &SUBLAYER)) {
        Err(error) if engine::is_in_use(&error) => Ok(()),
        removed => removed,
    }
}

/// Lets locked programs through as long as it is there, and this process.
pub struct Pass {
    _engine: Engine,
}

impl Pass {
    /// For programs whose packets something else takes care of from now on; `None` where there
    /// is no lock. One whose file is not there any more is none.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::PermissionDenied`] for who is no elevated administrator.
    pub fn open(programs: &[&Path]) -> io::Result<Option<Self>> {
        let engine = Engine::open(true)?;
        // To learn so of thousands of programs takes its time.
        if !engine.has_place(&SUBLAYER)? {
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
            Err(error) if engine::is_no_place(&error) => Ok(None),
            added => added.map(|()| Some(Self { _engine: engine })),
        }
    }
}
