//! Sizes, offsets and constants of the two systems, each with its name in C.
//!
//! The encoders and decoders read their numbers from these tables. [`assertions`] returns the same
//! numbers, and the test `layouts` has zig's C compiler compare them with the systems' own headers.
//! zig lacks three of macOS's headers: `netinet6/in6_var.h`, `netinet6/nd6.h` and `sys/sys_domain.h`.
//! Their numbers are from Apple's published source (xnu-11417, unchanged since xnu-8792, which is
//! macOS 13), and [`Assertion::is_in_headers`] is false for them.

mod constants;
mod freebsd;
mod macos;
mod structures;

pub(crate) use self::{
    constants::*,
    macos::{CONTROL_INFO, IN_PKTINFO, SOCKADDR_CTL},
    structures::*,
};

use crate::System;

/// The flag of an interface that is administratively up.
pub const IFF_UP: u32 = constants::IFF_UP;

/// The flag of a route that is in use.
pub const RTF_UP: u32 = constants::RTF_UP;

/// The flag of a route that a program or an administrator has added.
pub const RTF_STATIC: u32 = constants::RTF_STATIC;

/// The flag of a route that macOS has made of another one, for one destination.
pub const RTF_WASCLONED: u32 = constants::RTF_WASCLONED;

/// A statement about a system's C headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assertion {
    /// The statement.
    pub fact: Fact,
    /// False if zig ships no header with the declaration.
    pub is_in_headers: bool,
}

/// A fact about a declaration in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The size of a type in bytes.
    Size(&'static str, usize),
    /// The offset of a type's member in bytes.
    Offset(&'static str, &'static str, usize),
    /// The value of a constant.
    Value(&'static str, u32),
    /// The value of a constant that is a string.
    Text(&'static str, &'static str),
}

impl Fact {
    /// Returns the name of the type or constant.
    #[must_use]
    pub const fn declaration(&self) -> &'static str {
        match self {
            Self::Size(name, _)
            | Self::Offset(name, ..)
            | Self::Value(name, _)
            | Self::Text(name, _) => name,
        }
    }
}

/// Returns everything that the crate assumes about a system's headers.
#[must_use]
pub fn assertions(system: System) -> Vec<Assertion> {
    let mut in_headers = COMMON.to_vec();
    let mut from_source = Vec::new();
    let facts = of(system).facts();
    match system {
        System::FreeBsd => {
            in_headers.extend(facts);
            in_headers.extend_from_slice(IN6_VAR);
            in_headers.extend_from_slice(FREEBSD_ONLY);
            in_headers.extend(IN6_NDIREQ.facts());
            // The unit of `SA_SIZE`.
            in_headers.push(Fact::Value("sizeof(long)", of(system).alignment as u32));
        }
        System::MacOs => {
            let is_missing = |fact: &Fact| macos::FROM_SOURCE.contains(&fact.declaration());
            (from_source, in_headers) = in_headers.into_iter().chain(facts).partition(is_missing);
            from_source.extend_from_slice(IN6_VAR);
            from_source.extend_from_slice(MACOS_SOURCE_ONLY);
            in_headers.extend_from_slice(MACOS_ONLY);
            in_headers.extend(CONTROL_INFO.facts());
            in_headers.extend(SOCKADDR_CTL.facts());
            in_headers.extend(IN_PKTINFO.facts());
            in_headers.push(Fact::Text("UTUN_CONTROL_NAME", UTUN_CONTROL_NAME));
        }
    }
    // The encoders' own computation of the padding.
    in_headers.extend([
        Fact::Value(
            "CMSG_SPACE(sizeof(struct in_addr))",
            of(system).control_space(4) as u32,
        ),
        Fact::Value(
            "CMSG_SPACE(sizeof(struct in6_pktinfo))",
            of(system).control_space(20) as u32,
        ),
    ]);
    let assertion = |is_in_headers| {
        move |fact| Assertion {
            fact,
            is_in_headers,
        }
    };
    let in_headers = in_headers.into_iter().map(assertion(true));
    let from_source = from_source.into_iter().map(assertion(false));
    in_headers.chain(from_source).collect()
}

/// Returns a system's table.
pub(crate) const fn of(system: System) -> &'static Layout {
    match system {
        System::FreeBsd => &freebsd::LAYOUT,
        System::MacOs => &macos::LAYOUT,
    }
}
