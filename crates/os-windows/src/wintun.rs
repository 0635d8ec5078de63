//! A virtual adapter: reads the packets that the system sends through it, and passes packets to the
//! system as received (Wintun, whose `wintun.dll` contains the driver).
//!
//! This module has not been tested on Windows yet; Wine has no such drivers.

use super::library::{Place, load};
use std::io;
use std::sync::Arc;
use windows_sys::Win32::Foundation::{
    ERROR_BUFFER_OVERFLOW, ERROR_FILE_NOT_FOUND, ERROR_MOD_NOT_FOUND,
};
use wintun_bindings::{Error, Session};

/// The library's file, in the program's folder or the system's.
pub const LIBRARY: &str = "wintun.dll";

/// The kind of adapter that the system shows.
const KIND: &str = "Taupe";

/// Bytes of each ring buffer: about 5,600 packets of 1,500 bytes.
const RING: u32 = 8 << 20;

/// Maximum bytes of a packet.
pub const MAX_PACKET_LEN: usize = wintun_bindings::MAX_IP_PACKET_SIZE as usize;

/// Error of creating an adapter.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The library is missing.
    #[error("there is no {LIBRARY} in this program's folder or the system's")]
    Missing,
    /// The library cannot be used.
    #[error("{LIBRARY} cannot be used: {0}")]
    Library(String),
    /// The library failed to create the adapter.
    #[error("Wintun cannot create the adapter {name}: {reason}")]
    Refused {
        /// The adapter's name.
        name: String,
        /// The library's message.
        reason: String,
    },
}

/// A virtual adapter. The system removes it with its addresses and routes when it is dropped or the
/// process ends for any reason. Threads may share it.
pub struct Adapter {
    session: Arc<Session>,
}

impl Adapter {
    /// Creates an adapter without addresses and routes. Replaces an adapter of the same `guid` that
    /// an earlier process left behind. Needs an elevated administrator.
    ///
    /// # Errors
    ///
    /// See [`CreateError`]; after an error no adapter remains.
    pub fn create(name: &str, guid: u128) -> Result<Self, CreateError> {
        let library = load(LIBRARY, Place::ProgramOrSystem).map_err(|error| {
            let code = error.raw_os_error().map(i32::cast_unsigned);
            match code {
                Some(ERROR_MOD_NOT_FOUND | ERROR_FILE_NOT_FOUND) => CreateError::Missing,
                _ => CreateError::Library(error.to_string()),
            }
        })?;
        // SAFETY: the library has this name and comes from the folder of this program or of the
        // system. Accounts that may write there could replace this program as well, and the code
        // that starts a tunnel warns about such accounts. The library's functions have had these
        // signatures since version 0.14. Earlier versions lack one of the functions, and loading
        // them fails here.
        let library = unsafe { wintun_bindings::load_from_library(library) }
            .map_err(|error| CreateError::Library(error.to_string()))?;
        let refused = |error: Error| CreateError::Refused {
            name: name.to_owned(),
            reason: error.to_string(),
        };
        let adapter = wintun_bindings::Adapter::create(&library, name, KIND, Some(guid));
        let session = adapter.and_then(|adapter| adapter.start_session(RING));
        let session = session.map_err(refused)?;
        // The library keeps log lines in memory until an error reads them, and no error follows.
        wintun_bindings::reset_logger(&library);
        Ok(Self { session })
    }

    /// Returns the identifier for the system's functions (`NET_LUID`).
    #[must_use]
    pub fn luid(&self) -> u64 {
        let luid = self.session.get_adapter().get_luid();
        // SAFETY: the union is valid for all bytes; its value is a number.
        unsafe { luid.Value }
    }

    /// Waits for a packet that the system sends through the adapter, and returns its length.
    /// Returns `None` after [`close`](Self::close).
    ///
    /// # Errors
    ///
    /// An error if the adapter was removed, or if `buffer` is shorter than both [`MAX_PACKET_LEN`] and the
    /// packet.
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

    /// Passes a packet to the system as received. The packet is dropped if the ring buffer is full.
    ///
    /// # Errors
    ///
    /// An error if the adapter was removed, or if the packet is longer than [`MAX_PACKET_LEN`].
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

    /// Makes [`Self::read`] return `None` from now on, also in a thread that waits in it.
    pub fn close(&self) {
        // Setting an existing event cannot fail.
        let _ = self.session.shutdown();
    }
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error().map(i32::cast_unsigned) == Some(ERROR_BUFFER_OVERFLOW)
}
