//! Interfaces.

use netlink_bindings::rt_link::{Ifinfomsg, OpGetlinkDo, Request};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{
    client::{Netlink, is_interface_name},
    error::Result,
    socket::{NetlinkSocket, RequestError, unreadable},
};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The index, never 0.
    pub index: u32,
    /// The name, at most 15 bytes.
    pub name: String,
    /// Administratively up.
    pub up: bool,
    /// Maximum transmission unit in bytes.
    pub mtu: u32,
    /// The kind of virtual interface, such as `wireguard`, `tun` or `bridge`; `None` for hardware.
    pub kind: Option<String>,
    /// The link-layer framing.
    pub medium: Medium,
    /// The index of the link's controller: a bridge, a bond or a VRF.
    pub controller: Option<u32>,
}

/// The link-layer framing of a link's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Medium {
    /// Ethernet; with the link's own address (`ARPHRD_ETHER`).
    Ethernet([u8; 6]),
    /// Packets return to this host (`ARPHRD_LOOPBACK`).
    Loopback,
    /// None, or something other than Ethernet (`ARPHRD_*`).
    Other(u16),
}

impl Netlink {
    /// Returns every interface.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        list(&mut self.rtnetlink)
    }

    /// Returns the interfaces that cannot transfer packets now: they are down or have no carrier.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn links_without_carrier(&mut self) -> Result<Vec<Link>> {
        let mut request = Request::new().op_getlink_dump(&Ifinfomsg::new());
        request.encode().push_ext_mask(RTEXT_FILTER_SKIP_STATS);
        self.rtnetlink
            .dump(&request, |body, all| {
                let (header, _) = OpGetlinkDo::decode_request(body);
                let carries = header.ifi_flags & libc::IFF_LOWER_UP as u32 != 0;
                all.extend(parse(body).filter(|_| !carries));
            })
            .map_err(|error| error.context("list the interfaces without a carrier"))
    }

    /// Returns the interface of this name, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// The kernel's; `EINVAL` for an invalid interface name.
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        find(&mut self.rtnetlink, name)
    }

    /// Sets an interface's MTU in bytes.
    ///
    /// # Errors
    ///
    /// The kernel's: `EINVAL` for an MTU that the interface does not support.
    pub fn set_mtu(&mut self, interface: u32, mtu: u32) -> Result<()> {
        let change = |header: &Ifinfomsg| {
            let mut request = Request::new().op_setlink_do(header);
            request.encode().push_mtu(mtu);
            request
        };
        header(interface)
            .and_then(|header| self.rtnetlink.request(&change(&header), |_| {}))
            .map_err(|error| {
                let name = self.rtnetlink.interface_name(interface);
                error.context(format!("set the MTU of {name} to {mtu}"))
            })
    }

    /// Sets an interface up or down.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn set_up(&mut self, interface: u32, up: bool) -> Result<()> {
        const UP: u32 = libc::IFF_UP as u32;
        header(interface)
            .and_then(|mut header| {
                header.ifi_flags = if up { UP } else { 0 };
                header.ifi_change = UP;
                let request = Request::new().op_setlink_do(&header);
                self.rtnetlink.request(&request, |_| {})
            })
            .map_err(|error| {
                let name = self.rtnetlink.interface_name(interface);
                error.context(format!("set {name} {}", if up { "up" } else { "down" }))
            })
    }

    /// Deletes an interface.
    ///
    /// # Errors
    ///
    /// The kernel's: `EOPNOTSUPP` for hardware.
    pub fn delete_link(&mut self, interface: u32) -> Result<()> {
        header(interface)
            .and_then(|header| {
                let request = Request::new().op_dellink_do(&header);
                self.rtnetlink.request(&request, |_| {})
            })
            .map_err(|error| {
                let name = self.rtnetlink.interface_name(interface);
                error.context(format!("delete {name}"))
            })
    }
}

/// Omit the counters (Linux 4.4).
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

pub(super) fn list(socket: &mut NetlinkSocket) -> Result<Vec<Link>> {
    let mut request = Request::new().op_getlink_dump(&Ifinfomsg::new());
    request.encode().push_ext_mask(RTEXT_FILTER_SKIP_STATS);
    socket
        .dump(&request, |body, all| all.extend(parse(body)))
        .map_err(|error| error.context("list the interfaces"))
}

/// Returns the interface of this name, or `None` if there is none.
pub(super) fn find(socket: &mut NetlinkSocket, name: &str) -> Result<Option<Link>> {
    let what = || format!("look for the interface {name:?}");
    if !is_interface_name(name) {
        return Err(not_a_name().context(what()));
    }
    let request = request_by_name(name, None);
    let mut found = None;
    match socket.request(&request, |body| found = parse(body)) {
        Ok(()) => match found {
            Some(link) => Ok(Some(link)),
            None => Err(unreadable().context(what())),
        },
        Err(error) if error.is(Errno::NODEV) => Ok(None),
        Err(error) => Err(error.context(what())),
    }
}

/// Returns a request for the interface of this name in the socket's network namespace, or in the
/// one with this id there (`IFLA_TARGET_NETNSID`, Linux 4.15).
pub(super) fn request_by_name(name: &str, namespace: Option<i32>) -> OpGetlinkDo<'static> {
    let mut request = Request::new().op_getlink_do(&Ifinfomsg::new());
    let mut attributes = request
        .encode()
        .push_ifname_bytes(name.as_bytes())
        .push_ext_mask(RTEXT_FILTER_SKIP_STATS);
    if let Some(id) = namespace {
        attributes = attributes.push_target_netnsid(id);
    }
    drop(attributes);
    request
}

/// Returns a header that selects an interface by its index.
fn header(interface: u32) -> std::result::Result<Ifinfomsg, RequestError> {
    let mut header = Ifinfomsg::new();
    header.ifi_index = match i32::try_from(interface) {
        Ok(index @ 1..) => index,
        // 0 is not an index; the kernel would look at the name attribute instead.
        _ => return Err(Errno::NODEV.into()),
    };
    Ok(header)
}

pub(super) fn not_a_name() -> RequestError {
    RequestError {
        source: Errno::INVAL.into(),
        reason: Some(
            "an interface's name has 1 to 15 bytes, and no slash, colon or space".to_owned(),
        ),
    }
}

pub(super) fn parse(body: &[u8]) -> Option<Link> {
    let (header, attributes) = OpGetlinkDo::decode_request(body);
    Some(Link {
        index: u32::try_from(header.ifi_index)
            .ok()
            .filter(|&index| index != 0)?,
        name: attributes.get_ifname().ok()?.to_string_lossy().into_owned(),
        up: header.ifi_flags & libc::IFF_UP as u32 != 0,
        mtu: attributes.get_mtu().ok()?,
        kind: attributes
            .get_linkinfo()
            .and_then(|info| info.get_kind())
            .ok()
            .map(|kind| kind.to_string_lossy().into_owned()),
        medium: medium(header.ifi_type, attributes.get_address().ok()),
        controller: attributes.get_master().ok().filter(|&index| index != 0),
    })
}

fn medium(kind: u16, address: Option<&[u8]>) -> Medium {
    match (kind, address.map(<[u8; 6]>::try_from)) {
        (libc::ARPHRD_LOOPBACK, _) => Medium::Loopback,
        (libc::ARPHRD_ETHER, Some(Ok(address))) => Medium::Ethernet(address),
        (other, _) => Medium::Other(other),
    }
}
