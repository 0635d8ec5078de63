//! A virtual adapter: packets that the system sends by it, and packets that it shall take as
//! received (Wintun, whose `wintun.dll` brings the driver).
//!
//! Has not yet run: Wine has no such drivers, and no Windows machine was at hand.

use super::library::{Place, load};
use std::io;
use std::sync::Arc;
use windows_sys::Win32::Foundation::{
    ERROR_BUFFER_OVERFLOW, ERROR_FILE_NOT_FOUND, ERROR_MOD_NOT_FOUND,
};
use wintun_bindings::{Error, Session};

/// The library's file, in the program's folder or the system's.
pub const LIBRARY: &str = "wintun.dll";

/// What the system calls the kind of such adapters.
const KIND: &str = "Taupe";

/// Room for packets in each direction, in bytes: some 5,600 of 1,500 bytes.
const RING: u32 = 8 << 20;

/// The longest packet that there is.
pub const LONGEST: usize = wintun_bindings::MAX_IP_PACKET_SIZE as usize;

/// Why there is no adapter.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// There is no library.
    #[error(
        "there is no {LIBRARY} beside this program or in the system's folder, without which there \
         is no adapter: take the one for this processor from https://www.wintun.net, and put it \
         beside taupe.exe"
    )]
    Missing,
    /// There is one that is not to be used.
    #[error(
        "{LIBRARY} cannot be used: {0}; is it the one for this processor, of version 0.14 or \
         later?"
    )]
    Library(String),
    /// The library could not make it.
    #[error("Wintun cannot make the adapter {name}: {reason}")]
    Refused {
        /// The adapter's name.
        name: String,
        /// What the library says.
        reason: String,
    },
}

/// An adapter, as long as it is there and the process lives: the system removes it with its
/// addresses and routes, however the process ends. Threads may share it.
pub struct Adapter {
    session: Arc<Session>,
}

impl Adapter {
    /// Makes one that has neither addresses nor routes. One of the same `guid` that a process
    /// before has left is replaced. It takes an elevated administrator.
    ///
    /// # Errors
    ///
    /// See [`CreateError`]; nothing is left behind.
    pub fn create(name: &str, guid: u128) -> Result<Self, CreateError> {
        let library = load(LIBRARY, Place::ProgramOrSystem).map_err(|error| {
            let code = error.raw_os_error().map(i32::cast_unsigned);
            match code {
                Some(ERROR_MOD_NOT_FOUND | ERROR_FILE_NOT_FOUND) => CreateError::Missing,
                _ => CreateError::Library(error.to_string()),
            }
        })?;
        // SAFETY: the library is the one that is called so, from the folder of this program or
        // of the system: who may write there could replace this program as well, and whoever
        // starts a tunnel warns of that. Its functions have had these signatures since version
        // 0.14, before which one of them is missing, and that is an error here.
        let library = unsafe { wintun_bindings::load_from_library(library) }
            .map_err(|error| CreateError::Library(error.to_string()))?;
        let refused = |error: Error| CreateError::Refused {
            name: name.to_owned(),
            reason: error.to_string(),
        };
        let adapter = wintun_bindings::Adapter::create(&library, name, KIND, Some(guid));
        let session = adapter.and_then(|adapter| adapter.start_session(RING));
        let session = session.map_err(refused)?;
        // Its lines are kept in memory until an error asks for them, and there is none to come.
        wintun_bindings::reset_logger(&library);
        Ok(Self { session })
    }

    /// By which the system's functions know it (`NET_LUID`).
    #[must_use]
    pub fn luid(&self) -> u64 {
        let luid = self.session.get_adapter().get_luid();
        // SAFETY: every value of the union's bytes is a number.
        unsafe { luid.Value }
    }

    /// Waits for a packet that the system sends by it, and the packet's length; `None` once it
    /// has been [closed](Self::close).
    ///
    /// # Errors
    ///
    /// That the adapter is gone, or that `buffer` has less room than [`LONGEST`] and than the
    /// packet takes.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.session.try_recv(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(Some),
            }
            match self.session.wait_read() {
                Ok(()) => {}
                Err(Error::ShuttingDown) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Has the system take a packet as received. One that finds no room is dropped.
    ///
    /// # Errors
    ///
    /// That the adapter is gone, or that the packet is longer than [`LONGEST`].
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        let length = u16::try_from(packet.len());
        let length = length.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        match self.session.allocate_send_packet(length) {
            Ok(mut place) => {
                place.bytes_mut().copy_from_slice(packet);
                self.session.send_packet(place);
                Ok(())
            }
            Err(Error::Io(error)) if is_full(&error) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends [`Self::read`], in whichever thread it waits, from now on.
    pub fn close(&self) {
        // Of an event that is there it cannot fail.
        let _ = self.session.shutdown();
    }
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error().map(i32::cast_unsigned) == Some(ERROR_BUFFER_OVERFLOW)
}
