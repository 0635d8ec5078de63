//! Neighbours, and packets that wait for neighbour resolution.

use std::net::IpAddr;

use netlink_bindings::rt_neigh::{Ndmsg, NudState, OpNewneighDo, Request};
use taupe_packet::ip::Family;

use super::{
    client::{System, number},
    error::Result,
};

impl System {
    /// Returns the neighbours that the kernel is resolving, with their links. The kernel queues
    /// packets for them.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn neighbours_asked_for(&mut self) -> Result<Vec<(u32, IpAddr)>> {
        let request = Request::new().op_getneigh_dump(&Ndmsg::new());
        self.route
            .list(&request, |body, all| all.extend(asked_for(body)))
            .map_err(|refusal| refusal.of("list the neighbours"))
    }

    /// Returns true if a neighbour on a link answers neighbour solicitations (ARP or ND). Returns
    /// `None` if the kernel has no state for it or does not ask (point-to-point links, static
    /// entries).
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn neighbour_answers(&mut self, link: u32, neighbour: IpAddr) -> Result<Option<bool>> {
        let request = Request::new().op_getneigh_dump(&Ndmsg::new());
        let all = self
            .route
            .list(&request, |body, all| all.extend(heard(body)))
            .map_err(|refusal| refusal.of("list the neighbours"))?;
        let known = all.iter().find(|one| one.0 == link && one.1 == neighbour);
        Ok(known.map(|one| one.2))
    }

    /// Removes a neighbour entry and drops the packets that wait for its address. Their senders get
    /// a "host unreachable" error.
    ///
    /// # Errors
    ///
    /// The kernel's: `ENOENT` if there is no such entry.
    pub fn forget_neighbour(&mut self, link: u32, neighbour: IpAddr) -> Result<()> {
        let mut header = Ndmsg::new();
        header.ndm_family = number(Family::of(neighbour));
        header.ndm_ifindex = link.cast_signed();
        let mut request = Request::new().op_delneigh_do(&header);
        request.encode().push_dst(neighbour);
        self.route.ask(&request, |_| {}).map_err(|refusal| {
            let name = self.route.interface(link);
            refusal.of(format!("forget the neighbour {neighbour} on {name}"))
        })
    }
}

/// Parses a neighbour entry that the kernel has resolved or is resolving: the link, the neighbour,
/// and true if the neighbour answers. The kernel probes a stale neighbour again before it sends
/// more than a few packets to it.
pub(super) fn heard(body: &[u8]) -> Option<(u32, IpAddr, bool)> {
    const SILENT: u16 = NudState::Incomplete as u16 | NudState::Failed as u16;
    const ANSWERS: u16 = NudState::Reachable as u16
        | NudState::Stale as u16
        | NudState::Delay as u16
        | NudState::Probe as u16;
    let (header, attributes) = OpNewneighDo::decode_request(body);
    let is = |states| header.ndm_state & states != 0;
    (is(SILENT) || is(ANSWERS)).then_some(())?;
    let link = header.ndm_ifindex.cast_unsigned();
    Some((link, attributes.get_dst().ok()?, is(ANSWERS)))
}

/// Parses an entry that the kernel is resolving: the link and the neighbour.
pub(super) fn asked_for(body: &[u8]) -> Option<(u32, IpAddr)> {
    let (header, attributes) = OpNewneighDo::decode_request(body);
    (header.ndm_state & NudState::Incomplete as u16 != 0).then_some(())?;
    Some((
        header.ndm_ifindex.cast_unsigned(),
        attributes.get_dst().ok()?,
    ))
}
