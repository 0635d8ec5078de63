//! Filters of traffic control (`linux/pkt_sched.h`, `linux/rtnetlink.h`).

use netlink_bindings::{
    consts::NLM_F_DUMP,
    utils::{find_attr, parse_u32},
};
use rustix::io::Errno;

use super::{Plain, Result, System};
use crate::system::{Filter, Hook};

const RTM_GETTFILTER: u16 = 46;

/// `struct tcmsg`: family and padding, interface, handle, parent, then priority and
/// protocol as halves of one word.
const HEADER: usize = 20;

/// The chain that a filter is in, if it is not the first (Linux 4.13).
const TCA_CHAIN: u16 = 11;

impl System {
    /// What of a link's `clsact` queue sees packets first; `None` if there is nothing,
    /// or no such link. What is in tcx comes before.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn first_filter(&mut self, link: u32, hook: Hook) -> Result<Option<Filter>> {
        let mut body = [0; HEADER];
        body[4..8].copy_from_slice(&link.to_ne_bytes());
        body[12..16].copy_from_slice(&parent(hook).to_ne_bytes());
        let request = Plain {
            kind: RTM_GETTFILTER,
            flags: NLM_F_DUMP as u16,
            body: &body,
        };
        let listed = self.route.list(&request, |body, all| {
            all.extend(filter(body, link, parent(hook)));
        });
        let all = match listed {
            Err(refusal) if refusal.is(Errno::NODEV) => return Ok(None),
            listed => listed.map_err(|refusal| refusal.of("list the filters of a link"))?,
        };
        // A priority is listed by itself, then with each of its filters.
        let first = all.first().copied();
        let mut filters = all.into_iter().filter(|filter| filter.handle != 0);
        Ok(match (first, filters.next()) {
            (Some(first), Some(filter)) if first.priority == filter.priority => Some(filter),
            (first, _) => first,
        })
    }
}

/// `TC_H_CLSACT` with `TC_H_MIN_EGRESS` or `TC_H_MIN_INGRESS`.
const fn parent(hook: Hook) -> u32 {
    match hook {
        Hook::Egress => 0xffff_fff3,
        Hook::Ingress => 0xffff_fff2,
    }
}

/// One of the first chain.
fn filter(body: &[u8], link: u32, parent: u32) -> Option<Filter> {
    let (header, attributes) = body.split_at_checked(HEADER)?;
    let word = |at: usize| parse_u32(header.get(at..)?);
    let chain = find_attr(attributes, TCA_CHAIN).and_then(parse_u32);
    // Before Linux 4.20 more is listed than was asked for.
    ((word(4)?, word(12)?) == (link, parent) && chain.unwrap_or(0) == 0).then_some(())?;
    Some(Filter {
        priority: (word(16)? >> 16) as u16,
        handle: word(8)?,
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
        });
        let read = |body: &[u8]| filter(body, 2, parent(Hook::Egress));
        assert_eq!(read(&header(2)), found);
        assert_eq!(read(&[header(2), chain(0)].concat()), found);
        assert_eq!(read(&[header(2), chain(1)].concat()), None);
        assert_eq!(read(&header(3)), None);
        assert_eq!(filter(&header(2), 2, parent(Hook::Ingress)), None);
        assert_eq!(read(&header(2)[..19]), None);
    }
}
