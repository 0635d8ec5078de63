//! Traffic control filters (`linux/pkt_sched.h`, `linux/rtnetlink.h`).

use std::ffi::CStr;

use netlink_bindings::{
    consts::NLM_F_DUMP,
    utils::{find_attr, parse_u32},
};
use rustix::io::Errno;

use super::{client::Netlink, error::Result, socket::RawRequest};

/// The direction of the packets that a filter of a `clsact` qdisc sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Outgoing packets.
    Egress,
    /// Incoming packets.
    Ingress,
}

/// A filter of a link's `clsact` qdisc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The position: lower is earlier.
    pub priority: u16,
    /// Distinguishes filters of one priority; 0 for the priority itself, which the kernel lists
    /// before its filters.
    pub handle: u32,
    /// The name of the filter's BPF program, or empty.
    pub name: String,
}

const RTM_GETTFILTER: u16 = 46;

/// `struct tcmsg`: family and padding, interface, handle, parent, then priority and protocol as
/// halves of one word.
const HEADER: usize = 20;

/// The chain of a filter, absent for the first (Linux 4.13).
const TCA_CHAIN: u16 = 11;

/// Options of the filter's kind, and among them the name of a BPF program.
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_NAME: u16 = 7;

impl Netlink {
    /// Returns the filters of a link's `clsact` qdisc in the order in which they see packets, or
    /// none if there is no such link. Programs in tcx run before them and are not listed.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn filters(&mut self, link: u32, hook: Hook) -> Result<Vec<Filter>> {
        let mut body = [0; HEADER];
        body[4..8].copy_from_slice(&link.to_ne_bytes());
        body[12..16].copy_from_slice(&parent(hook).to_ne_bytes());
        let request = RawRequest {
            message_type: RTM_GETTFILTER,
            flags: NLM_F_DUMP as u16,
            body: &body,
        };
        let listed = self.rtnetlink.dump(&request, |body, all| {
            all.extend(filter(body, link, parent(hook)));
        });
        match listed {
            Err(error) if error.is(Errno::NODEV) => Ok(Vec::new()),
            listed => listed.map_err(|error| error.context("list the filters of a link")),
        }
    }
}

/// `TC_H_CLSACT` with `TC_H_MIN_EGRESS` or `TC_H_MIN_INGRESS`.
pub(super) const fn parent(hook: Hook) -> u32 {
    match hook {
        Hook::Egress => 0xffff_fff3,
        Hook::Ingress => 0xffff_fff2,
    }
}

/// Parses a filter of the first chain.
pub(super) fn filter(body: &[u8], link: u32, parent: u32) -> Option<Filter> {
    let (header, attributes) = body.split_at_checked(HEADER)?;
    let word = |at: usize| parse_u32(header.get(at..)?);
    let chain = find_attr(attributes, TCA_CHAIN).and_then(parse_u32);
    // Before Linux 4.20 the kernel lists more than was requested.
    ((word(4)?, word(12)?) == (link, parent) && chain.unwrap_or(0) == 0).then_some(())?;
    let own = find_attr(attributes, TCA_OPTIONS);
    let name = own.and_then(|own| find_attr(own, TCA_BPF_NAME));
    let name = name.and_then(|name| CStr::from_bytes_until_nul(name).ok());
    Some(Filter {
        priority: (word(16)? >> 16) as u16,
        handle: word(8)?,
        name: name.unwrap_or_default().to_string_lossy().into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_of_other_links_and_chains_are_none() {
        let header = |link: u32| {
            let words = [0, link, 7, 0xffff_fff3, 1 << 16 | 0x0300];
            words.map(u32::to_ne_bytes).concat()
        };
        let chain = |number: u32| [&[8, 0, 11, 0][..], &number.to_ne_bytes()].concat();
        let found = Some(Filter {
            priority: 1,
            handle: 7,
            name: String::new(),
        });
        let read = |body: &[u8]| filter(body, 2, parent(Hook::Egress));
        assert_eq!(read(&header(2)), found);
        assert_eq!(read(&[header(2), chain(0)].concat()), found);
        assert_eq!(read(&[header(2), chain(1)].concat()), None);
        assert_eq!(read(&header(3)), None);
        assert_eq!(filter(&header(2), 2, parent(Hook::Ingress)), None);
        assert_eq!(read(&header(2)[..19]), None);

        let options = [&[12, 0, 2, 0, 8, 0, 7, 0][..], b"seen"].concat();
        let unended = [&header(2)[..], &options].concat();
        assert_eq!(read(&unended), found);
        let options = [&[12, 0, 2, 0, 8, 0, 7, 0][..], b"see\0"].concat();
        let named = read(&[&header(2)[..], &options].concat());
        assert_eq!(named.map(|filter| filter.name).as_deref(), Some("see"));
    }
}
