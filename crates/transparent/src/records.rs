//! The records that the eBPF iterators write: `bpf/records.h` in Rust.

use std::mem::offset_of;

use aya::Pod;

/// The verdict on a process, and its rules.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ProcessRecord {
    /// PID in the reader's PID namespace.
    pub(crate) id: u32,
    /// The bits of its rules (`RULE_*`).
    pub(crate) bits: u32,
    pub(crate) verdict: u32,
    pub(crate) zero: u32,
    /// The rule about its executable.
    pub(crate) own: u64,
    /// The rule of the program that started it.
    pub(crate) inherited: u64,
    /// The rule that a started program inherits if no rule names it.
    pub(crate) handed_on: u64,
}

/// A selected socket. The same in every version, since each version reads the pinned iterators of others.
/// To change it, give these iterators other names.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SocketRecord {
    pub(crate) cookie: u64,
    /// An IPv4 address is in the first four bytes.
    pub(crate) local: [u8; 16],
    pub(crate) remote: [u8; 16],
    pub(crate) interface: u32,
    pub(crate) local_port: u16,
    /// In network order.
    pub(crate) remote_port: [u8; 2],
    pub(crate) family: u16,
    pub(crate) protocol: u16,
    pub(crate) state: u16,
    pub(crate) is_leaving: u16,
}

const _: () = {
    assert!(offset_of!(SocketRecord, cookie) == 0 && offset_of!(SocketRecord, local) == 8);
    assert!(offset_of!(SocketRecord, remote) == 24 && offset_of!(SocketRecord, interface) == 40);
    assert!(offset_of!(SocketRecord, local_port) == 44);
    assert!(offset_of!(SocketRecord, remote_port) == 46);
    assert!(offset_of!(SocketRecord, family) == 48 && offset_of!(SocketRecord, protocol) == 50);
    assert!(offset_of!(SocketRecord, state) == 52 && offset_of!(SocketRecord, is_leaving) == 54);
    assert!(size_of::<SocketRecord>() == 56);
};

/// Cookie of a socket to which the kernel has not assigned one yet (`ANY_COOKIE`).
pub(crate) const ANY_COOKIE: u64 = u64::MAX;

/// A network namespace, or the end of the list.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct NamespaceRecord {
    pub(crate) is_end: u64,
    pub(crate) cookie: u64,
}

// SAFETY: the type consists of integers and arrays of integers without padding, so any bytes are a
// valid value, and a value has no uninitialised bytes.
unsafe impl Pod for ProcessRecord {}
// SAFETY: as above.
unsafe impl Pod for SocketRecord {}
// SAFETY: as above.
unsafe impl Pod for NamespaceRecord {}

/// Splits the output of an iterator into records. Ignores an incomplete record at the end.
pub(crate) fn parse<T: Pod>(output: &[u8]) -> impl Iterator<Item = T> {
    const { assert!(size_of::<T>() > 0) };
    output.chunks_exact(size_of::<T>()).map(|bytes| {
        // SAFETY: the chunk has the size of `T`, any bytes are a valid `T` since it is `Pod`, and
        // the read needs no alignment.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    })
}

#[cfg(test)]
mod tests {
    use super::{NamespaceRecord, parse};

    #[test]
    fn records_are_read_at_any_alignment() {
        let mut bytes = vec![0xff];
        for word in [0_u64, 7, 1, 9, 3] {
            bytes.extend(word.to_ne_bytes());
        }
        let records: Vec<NamespaceRecord> = parse(&bytes[1..]).collect();
        let fields: Vec<_> = records.iter().map(|it| (it.is_end, it.cookie)).collect();
        // The last word is no complete record.
        assert_eq!(fields, [(0, 7), (1, 9)]);
    }
}
