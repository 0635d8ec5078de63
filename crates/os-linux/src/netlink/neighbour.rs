//! Neighbours, and packets that wait for neighbour resolution.

use std::net::IpAddr;

use netlink_bindings::rt_neigh::{Ndmsg, NudState, OpNewneighDo, Request};
use taupe_packet::ip::Family;

use super::{
    client::{Netlink, address_family},
    error::Result,
};

impl Netlink {
    /// Returns the neighbours that the kernel is resolving, with their links. The kernel queues
    /// packets for them.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn incomplete_neighbours(&mut self) -> Result<Vec<(u32, IpAddr)>> {
        let request = Request::new().op_getneigh_dump(&Ndmsg::new());
        self.rtnetlink
            .dump(&request, |body, all| all.extend(parse_incomplete(body)))
            .map_err(|error| error.context("list the neighbours"))
    }

    /// Returns true if a neighbour on a link answers neighbour solicitations (ARP or ND). Returns
    /// `None` if the kernel has no state for it or does not ask (point-to-point links, static
    /// entries).
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn is_neighbour_reachable(&mut self, link: u32, neighbour: IpAddr) -> Result<Option<bool>> {
        let request = Request::new().op_getneigh_dump(&Ndmsg::new());
        let all = self
            .rtnetlink
            .dump(&request, |body, all| all.extend(parse_reachability(body)))
            .map_err(|error| error.context("list the neighbours"))?;
        let known = all.iter().find(|one| one.0 == link && one.1 == neighbour);
        Ok(known.map(|one| one.2))
    }

    /// Removes a neighbour entry and drops the packets that wait for its address. Their senders get
    /// a "host unreachable" error.
    ///
    /// # Errors
    ///
    /// The kernel's: `ENOENT` if there is no such entry.
    pub fn delete_neighbour(&mut self, link: u32, neighbour: IpAddr) -> Result<()> {
        let mut header = Ndmsg::new();
        header.ndm_family = address_family(Family::of(neighbour));
        header.ndm_ifindex = link.cast_signed();
        let mut request = Request::new().op_delneigh_do(&header);
        request.encode().push_dst(neighbour);
        self.rtnetlink.request(&request, |_| {}).map_err(|error| {
            let name = self.rtnetlink.interface_name(link);
            error.context(format!("delete the neighbour {neighbour} on {name}"))
        })
    }
}

/// Parses a neighbour entry that the kernel has resolved or is resolving: the link, the neighbour,
/// and true if the neighbour answers. The kernel probes a stale neighbour again before it sends
/// more than a few packets to it.
pub(super) fn parse_reachability(body: &[u8]) -> Option<(u32, IpAddr, bool)> {
    const UNREACHABLE: u16 = NudState::Incomplete as u16 | NudState::Failed as u16;
    const REACHABLE: u16 = NudState::Reachable as u16
        | NudState::Stale as u16
        | NudState::Delay as u16
        | NudState::Probe as u16;
    let (header, attributes) = OpNewneighDo::decode_request(body);
    let is = |states| header.ndm_state & states != 0;
    (is(UNREACHABLE) || is(REACHABLE)).then_some(())?;
    let link = header.ndm_ifindex.cast_unsigned();
    Some((link, attributes.get_dst().ok()?, is(REACHABLE)))
}

/// Parses an entry that the kernel is resolving: the link and the neighbour.
pub(super) fn parse_incomplete(body: &[u8]) -> Option<(u32, IpAddr)> {
    let (header, attributes) = OpNewneighDo::decode_request(body);
    (header.ndm_state & NudState::Incomplete as u16 != 0).then_some(())?;
    Some((
        header.ndm_ifindex.cast_unsigned(),
        attributes.get_dst().ok()?,
    ))
}
