//! The kernel's type information (BTF), as far as the relocation of an eBPF object needs it.
//!
//! aya-obj compares each type that an object accesses with every type of the kernel. Without a
//! reduction these comparisons are most of the time that loading takes in user space.
//!
//! Format of BTF: Documentation/bpf/btf.rst of Linux.

#[cfg(any(test, feature = "testing"))]
mod sample;

use std::collections::HashSet;
use std::fs;

use aya::{Btf, EbpfError, Endianness};
use aya_obj::Object;
use aya_obj::btf::BtfError;

use crate::error::TransparentError;

const PATH: &str = "/sys/kernel/btf/vmlinux";

/// Lengths in bytes: of the smallest header, and of the part that all types begin with.
const HEADER: usize = 24;
const COMMON: usize = 12;

/// Kinds of types (`BTF_KIND_*`).
const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const FLOAT: u32 = 16;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// Reads the kernel's types whose names occur in `object`, and those that these contain. Type ids
/// differ from the kernel's.
///
/// # Errors
///
/// [`TransparentError::TypeInformation`], [`TransparentError::NarrowKernel`],
/// [`TransparentError::Object`]: the type information has an unknown format, or `object` is invalid.
pub(super) fn of_object(object: &[u8]) -> Result<Btf, TransparentError> {
    let kernel = fs::read(PATH).map_err(|error| match is_narrow_kernel() {
        // Another kernel of 32 bits, with type information, would not do either.
        true => TransparentError::narrow_kernel(),
        false => {
            let path = PATH.into();
            TransparentError::object(BtfError::FileError { path, error }.into())
        }
    })?;
    let types = Types::parse(&kernel);
    if types.as_ref().and_then(Types::long_size) == Some(4) {
        return Err(TransparentError::narrow_kernel());
    }
    let reduced = || {
        let own = Object::parse(object)?.btf.map(|own| own.to_bytes());
        let own = own.unwrap_or_default();
        let reduced = Types::parse(&own).and_then(|own| types?.reduced(&own.names()));
        let reduced = reduced.ok_or(BtfError::InvalidTypeInfo)?;
        Ok::<_, EbpfError>(Btf::parse(&reduced, Endianness::default())?)
    };
    reduced().map_err(TransparentError::object)
}

/// Checks without type information whether the kernel has pointers of 32 bits. Only a program of 32
/// bits runs on such a kernel.
fn is_narrow_kernel() -> bool {
    let machine = rustix::system::uname();
    cfg!(target_pointer_width = "32") && is_narrow(&machine.machine().to_string_lossy())
}

/// Checks whether a kernel of 32 bits calls its machine so (`uname -m`). With `setarch linux32`, a
/// kernel for AArch64 says `armv8l`, and one for x86-64 `i686` like those of 32 bits.
fn is_narrow(machine: &str) -> bool {
    !machine.contains("64") && machine != "armv8l" && !machine.ends_with("86")
}

/// BTF in the byte order of this machine.
struct Types<'a> {
    /// One record per type, from id 1 on.
    records: Vec<&'a [u8]>,
    strings: &'a [u8],
}

impl<'a> Types<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let start = u32_at(bytes, 4)?;
        let section = |offset, length| {
            let start = start.checked_add(u32_at(bytes, offset)?)?;
            bytes.get(start..start.checked_add(u32_at(bytes, length)?)?)
        };
        let mut types = section(8, 12)?;
        let mut records = Vec::new();
        while !types.is_empty() {
            let (record, rest) = types.split_at_checked(record_length(types)?)?;
            records.push(record);
            types = rest;
        }
        Some(Self {
            records,
            strings: section(16, 20)?,
        })
    }

    /// Returns the size of `unsigned long` in bytes, which is that of a pointer. gcc and clang name
    /// it differently.
    fn long_size(&self) -> Option<usize> {
        let is_long = |record: &&&[u8]| {
            let is_named = matches!(
                self.name(record),
                Some(b"long unsigned int" | b"unsigned long")
            );
            kind(record) == Some(INT) && is_named
        };
        let long = self.records.iter().find(is_long)?;
        u32_at(long, 8)
    }

    /// Returns all names in the strings, including those of members and functions. The empty name
    /// is not among them, because it would stand for all anonymous types.
    fn names(&self) -> HashSet<&'a [u8]> {
        let names = self.strings.split(|byte| *byte == 0);
        let names = names.filter(|name| !name.is_empty());
        names.map(without_flavor).collect()
    }

    /// Returns BTF with the types of these names, the types that they contain, and all strings.
    fn reduced(&self, names: &HashSet<&[u8]>) -> Option<Vec<u8>> {
        let mut kept = Kept {
            ids: vec![0; self.records.len() + 1],
            old: Vec::new(),
        };
        for (index, record) in self.records.iter().enumerate() {
            if is_data(kind(record)?) && names.contains(self.name(record)?) {
                kept.add(index + 1)?;
            }
        }
        let mut types = Vec::new();
        let mut next = 0;
        while let Some(&old) = kept.old.get(next) {
            let start = types.len();
            types.extend_from_slice(self.records.get(old - 1)?);
            for at in references(types.get(start..)?)? {
                let at = start + at;
                let new = kept.add(u32_at(&types, at)?)?;
                types
                    .get_mut(at..at + 4)?
                    .copy_from_slice(&new.to_ne_bytes());
            }
            for at in dropped_references(types.get(start..)?)? {
                let at = start + at;
                types.get_mut(at..at + 4)?.fill(0);
            }
            next += 1;
        }
        let length = u32::try_from(types.len()).ok()?;
        let mut all = 0xeb9f_u16.to_ne_bytes().to_vec();
        // Version and flags.
        all.extend([1, 0]);
        let strings = u32::try_from(self.strings.len()).ok()?;
        for field in [HEADER as u32, 0, length, length, strings] {
            all.extend(field.to_ne_bytes());
        }
        all.extend(types);
        all.extend(self.strings);
        Some(all)
    }

    fn name(&self, record: &[u8]) -> Option<&'a [u8]> {
        let rest = self.strings.get(u32_at(record, 0)?..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some(without_flavor(rest.get(..end)?))
    }
}

/// The types to keep.
struct Kept {
    /// New id of each old one. 0: none yet, and the type `void`.
    ids: Vec<u32>,
    /// Old id of each new one, from id 1 on.
    old: Vec<usize>,
}

impl Kept {
    /// Keeps a type and returns its new id.
    fn add(&mut self, old: usize) -> Option<u32> {
        let id = self.ids.get_mut(old)?;
        if *id == 0 && old != 0 {
            self.old.push(old);
            *id = u32::try_from(self.old.len()).ok()?;
        }
        Some(*id)
    }
}

/// Returns the part before `___`. What follows distinguishes definitions of one kernel type.
fn without_flavor(name: &[u8]) -> &[u8] {
    let flavor = name.windows(3).position(|three| three == b"___");
    flavor.and_then(|at| name.get(..at)).unwrap_or(name)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_ne_bytes(*bytes)).ok()
}

fn kind(record: &[u8]) -> Option<u32> {
    Some(u32::try_from(u32_at(record, 4)?).ok()? >> 24 & 0x1f)
}

/// Returns the number of members, values or parameters.
fn count(record: &[u8]) -> Option<usize> {
    Some(u32_at(record, 4)? & 0xffff)
}

fn record_length(record: &[u8]) -> Option<usize> {
    let each = match kind(record)? {
        INT | VAR | DECL_TAG => return Some(COMMON + 4),
        ARRAY => return Some(COMMON + 12),
        STRUCT | UNION | DATASEC | ENUM64 => 12,
        ENUM | FUNC_PROTO => 8,
        PTR | FWD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNC | FLOAT | TYPE_TAG => 0,
        _ => return None,
    };
    Some(COMMON + each * count(record)?)
}

/// Returns true for types of data that have names.
fn is_data(kind: u32) -> bool {
    matches!(
        kind,
        INT | STRUCT | UNION | ENUM | FWD | TYPEDEF | FLOAT | ENUM64
    )
}

/// Returns the offsets of the type ids in a record that the reduced types keep.
fn references(record: &[u8]) -> Option<Vec<usize>> {
    Some(match kind(record)? {
        ARRAY => vec![COMMON, COMMON + 4],
        STRUCT | UNION => (0..count(record)?).map(|it| COMMON + 12 * it + 4).collect(),
        TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => vec![8],
        _ => Vec::new(),
    })
}

/// Returns the offsets of the other type ids. No relocation follows a pointer or a function, and a
/// pointer's target may contain half of all types.
fn dropped_references(record: &[u8]) -> Option<Vec<usize>> {
    Some(match kind(record)? {
        PTR => vec![8],
        FUNC_PROTO => {
            let parameters = (0..count(record)?).map(|it| COMMON + 8 * it + 4);
            parameters.chain([8]).collect()
        }
        _ => Vec::new(),
    })
}

/// Reads bytes as the kernel's types. For fuzzers.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Some(types) = Types::parse(bytes) else {
        return;
    };
    types.long_size();
    for names in [HashSet::from([&b"sock"[..], b"wide"]), types.names()] {
        let Some(reduced) = types.reduced(&names) else {
            continue;
        };
        let again = Types::parse(&reduced).expect("types");
        assert!(again.records.len() <= types.records.len());
        // Nothing is left that these names do not need.
        assert!(again.reduced(&names).as_ref() == Some(&reduced));
        let _ = Btf::parse(&reduced, Endianness::default());
    }
}

/// Returns types for fuzzers.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    sample::seeds()
}

#[cfg(test)]
mod tests {
    use super::super::CaptureMode;
    use super::sample::{Builder, kernel};
    use super::*;

    /// Relocation by the reduced types gives the same instructions as by all types.
    #[test]
    fn reduced_types_relocate_alike() {
        let all = Btf::from_sys_fs().expect("types of this kernel");
        for mode in [CaptureMode::TrafficControl, CaptureMode::Fwmark] {
            let relocated = |types: &Btf| {
                let mut object = Object::parse(mode.object()).expect("an object");
                object.relocate_btf(types).expect("relocations");
                let functions = object.functions.into_iter();
                let instructions =
                    functions.map(|(key, it)| (key, format!("{:?}", it.instructions)));
                instructions.collect::<Vec<_>>()
            };
            let reduced = of_object(mode.object()).expect("reduced types");
            assert!(relocated(&reduced) == relocated(&all), "{mode:?}");
        }
    }

    #[test]
    fn machines_of_narrow_kernels() {
        for machine in ["armv6l", "armv7l", "riscv32"] {
            assert!(is_narrow(machine), "{machine}");
        }
        for machine in ["x86_64", "i686", "aarch64", "armv8l", "riscv64"] {
            assert!(!is_narrow(machine), "{machine}");
        }
    }

    #[test]
    fn the_width_of_a_kernel_is_that_of_its_long() {
        for (name, size) in [
            ("long unsigned int", 8),
            ("long unsigned int", 4),
            ("unsigned long", 4),
        ] {
            let mut kernel = Builder::new();
            kernel.add("unsigned int", INT, 0, 4, &[32]);
            kernel.add("long unsigned int", TYPEDEF, 0, 1, &[]);
            kernel.add(name, INT, 0, size, &[8 * size]);
            let bytes = kernel.bytes();
            let types = Types::parse(&bytes).expect("types");
            assert_eq!(types.long_size(), Some(size as usize), "{name}");
        }
        let bytes = Builder::new().bytes();
        assert_eq!(Types::parse(&bytes).expect("no types").long_size(), None);
    }

    #[test]
    fn named_types_keep_what_they_contain() {
        let kernel = kernel().bytes();
        let names = HashSet::from([&b"sock"[..], b"wide"]);
        let reduced = Types::parse(&kernel).and_then(|kernel| kernel.reduced(&names));
        let reduced = reduced.expect("reduced types");
        let types = Types::parse(&reduced).expect("types");
        let kinds = types.records.iter().map(|it| kind(it).expect("a kind"));
        let kinds: Vec<_> = kinds.collect();
        let expected = [
            STRUCT, FWD, STRUCT, ENUM64, // By name, in their order.
            TYPEDEF, TYPEDEF, CONST, FUNC_PROTO, ARRAY, UNION, INT, PTR,
        ];
        assert_eq!(kinds, expected);
        // Members of the structure are the typedefs; pointers and functions lead nowhere.
        assert_eq!(u32_at(types.records[0], 16), Some(5));
        assert_eq!(u32_at(types.records[0], 28), Some(6));
        assert_eq!(
            u32_at(types.records[8], 12),
            Some(10),
            "elements are the union"
        );
        for dropped in [7, 11] {
            assert_eq!(u32_at(types.records[dropped], 8), Some(0));
        }
        assert!(Btf::parse(&reduced, Endianness::default()).is_ok());
    }

    /// Types that refer to no type, or end early, are refused. No other change of a byte leads to a
    /// panic.
    #[test]
    fn invalid_types_are_refused() {
        let valid = kernel().bytes();
        let names = HashSet::from([&b"sock"[..]]);
        for length in 0..valid.len() {
            assert!(Types::parse(&valid[..length]).is_none(), "{length}");
        }
        for at in 0..valid.len() {
            for changed in [0, 1, 0x7f, 0xff] {
                let mut bytes = valid.clone();
                bytes[at] = changed;
                let _ = Types::parse(&bytes).and_then(|types| types.reduced(&names));
            }
        }
        let mut dangling = Builder::new();
        dangling.add("sock", TYPEDEF, 0, 2, &[]);
        let dangling = dangling.bytes();
        let types = Types::parse(&dangling).expect("types");
        assert_eq!(types.reduced(&names), None);
        let mut unknown = Builder::new();
        unknown.add("sock", 31, 0, 0, &[]);
        assert!(Types::parse(&unknown.bytes()).is_none());
    }
}
