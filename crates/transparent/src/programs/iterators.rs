//! The iterators of a tunnel: programs that the kernel runs when somebody reads them.
//!
//! Their links are pinned like those of hooks, so that a command reads them without loading a program.
//! Loading them anew would take a hundred times as long as reading them.

use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use super::CaptureMode;
use crate::error::TransparentError;
use crate::pins::{self, Pins};
use crate::syscall;

/// Iterators that only the process that loads them reads. They are not pinned: reading a pin runs its
/// program, even if only `grep -r` reads it, and the reader of `taupe_adopt` becomes the tunnel's daemon.
const OF_LOADER: [&str; 3] = ["taupe_adopt", "taupe_namespaces", "taupe_outside"];

/// Links of iterators, by the names of their programs.
#[derive(Debug, Default)]
pub(super) struct Iterators(Vec<(&'static str, OwnedFd)>);

impl Iterators {
    /// Opens the pinned iterators. They can be read even after their pins have been removed. Those that
    /// the kernel has refused are left out.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`].
    pub(super) fn open(pins: &Pins, mode: CaptureMode) -> Result<Self, TransparentError> {
        let specs = mode.programs().iter().filter(|spec| spec.is_iterator());
        let mut opened = Self::default();
        for spec in specs {
            let pin = pins.link(spec.name);
            match syscall::open(&pin) {
                Ok(link) => opened.add(spec.name, link),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    let what = format!("opening {}", pin.display());
                    return Err(TransparentError::call(what)(error));
                }
            }
        }
        Ok(opened)
    }

    /// Adds an iterator, in place of one of the same name.
    pub(super) fn add(&mut self, name: &'static str, link: OwnedFd) {
        self.0.retain(|(other, _)| *other != name);
        self.0.push((name, link));
    }

    /// Pins an iterator that commands read. One that the kernel has refused is left out.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`].
    pub(super) fn pin(&self, name: &str, path: &Path) -> Result<(), TransparentError> {
        match self.get(name).filter(|_| !OF_LOADER.contains(&name)) {
            Some(link) => pins::replace(link.as_fd(), path),
            None => Ok(()),
        }
    }

    fn get(&self, name: &str) -> Option<&OwnedFd> {
        let mut all = self.0.iter();
        all.find(|(other, _)| *other == name).map(|(_, link)| link)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Reads all output of an iterator.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Missing`], [`TransparentError::Call`].
    pub(super) fn read(&self, name: &'static str) -> Result<Vec<u8>, TransparentError> {
        let link = self.get(name).ok_or(TransparentError::Missing(name))?;
        let failed = || TransparentError::call(format!("reading {name}"));
        let mut iterator = syscall::iterator(link.as_fd()).map_err(failed())?;
        // The kernel lists up to 32 KiB per read. When it resumes in a later read, it may skip
        // entries behind one that has been removed meanwhile. The capacity keeps reads large.
        let mut output = Vec::with_capacity(1 << 20);
        iterator.read_to_end(&mut output).map_err(failed())?;
        Ok(output)
    }
}
