//! The selected sockets of a tunnel's pinned programs, of this version or another one.
//!
//! The pinned iterators list them. What these need is the same in every version: their names, the layout
//! of [`SocketRecord`](crate::records::SocketRecord), and that of the keys of `flows`.

use std::io;

use taupe_os_linux::netlink::SockDiag;
use taupe_packet::ip::Family;

use super::iterators::Iterators;
use super::{CaptureMode, SOCKET_LISTS};
use crate::error::TransparentError;
use crate::maps::PinnedFlows;
use crate::pins::Pins;
use crate::reset::{self, Socket};

/// Reads the selected sockets of pinned programs of [`CaptureMode::TrafficControl`].
pub(super) struct PinnedSockets<'a> {
    pins: &'a Pins,
    iterators: Iterators,
}

impl<'a> PinnedSockets<'a> {
    /// Opens the pinned iterators. Returns `None` if no programs of this mode are attached, so that none
    /// has a socket.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`].
    pub(super) fn open(pins: &'a Pins) -> Result<Option<Self>, TransparentError> {
        if CaptureMode::of(pins) != Some(CaptureMode::TrafficControl) {
            return Ok(None);
        }
        let iterators = Iterators::open(pins, CaptureMode::TrafficControl)?;
        Ok(Some(Self { pins, iterators }))
    }

    /// Returns the selected sockets, and those that are not listed with them and may have sent packets of
    /// the flows. The latter have ended (`TIME_WAIT`); or the kernel has refused the iterator over all
    /// selected sockets, and they belong to a process outside this PID namespace.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::Map`].
    pub(super) fn list(&self) -> Result<Vec<Socket>, TransparentError> {
        // The kernel gives each socket that it lists by netlink its cookie, by which the iterators name
        // it.
        let mut sockets = self.list_by_flows()?;
        sockets.extend(self.selected()?);
        Ok(reset::without_repetitions(sockets))
    }

    /// Returns the selected sockets that may have sent packets of the flows.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::Map`].
    pub(super) fn list_with_flows(&self) -> Result<Vec<Socket>, TransparentError> {
        let flows = PinnedFlows::read(self.pins)?;
        let mut sockets = self.selected()?;
        sockets.retain(|socket| flows.has_flow_of(&socket.connection));
        Ok(reset::without_repetitions(sockets))
    }

    fn selected(&self) -> Result<Vec<Socket>, TransparentError> {
        let [selected, open, tcp] = SOCKET_LISTS;
        let lists: &[_] = match self.iterators.has(selected) {
            true => &[selected],
            false => &[open, tcp],
        };
        let mut listed = Vec::new();
        for list in lists.iter().filter(|list| self.iterators.has(list)) {
            listed.extend(self.iterators.read(list)?);
        }
        Ok(reset::read(&listed))
    }

    fn list_by_flows(&self) -> Result<Vec<Socket>, TransparentError> {
        const UDP: [i32; 2] = [libc::IPPROTO_UDP, libc::IPPROTO_UDPLITE];
        let [selected, ..] = SOCKET_LISTS;
        let flows = PinnedFlows::read(self.pins)?;
        // The iterator over all selected sockets lists those of UDP.
        let udp = UDP.into_iter().filter(|_| !self.iterators.has(selected));
        let protocols = udp.chain([libc::IPPROTO_TCP]).map(|number| number as u8);
        let mut sockets = Vec::new();
        for protocol in protocols.filter(|protocol| flows.has_protocol(*protocol)) {
            for family in [Family::V4, Family::V6] {
                let listed = SockDiag::open().and_then(|mut all| all.sockets(protocol, family));
                let listed = listed.map_err(io::Error::other);
                let listed = listed.map_err(TransparentError::call("listing connections"))?;
                let of_flows = listed.iter().filter(|it| flows.has_flow_of(&it.id));
                sockets.extend(of_flows.map(Socket::listed));
            }
        }
        Ok(sockets)
    }
}
