//! The kernel's type information (BTF), as far as the relocation of an eBPF object needs it.
//!
//! aya-obj compares each of the some 50 types that an object accesses with every type of the
//! kernel, and a kernel has more than 100,000. Without a reduction these comparisons are most of
//! the time that loading takes in user space.
//!
//! Format of BTF: Documentation/bpf/btf.rst of Linux.

use std::collections::HashSet;
use std::fs;

use aya::{Btf, EbpfError, Endianness};
use aya_obj::Object;
use aya_obj::btf::BtfError;

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
/// [`EbpfError::BtfError`]: the kernel has no type information, or in an unknown format.
/// [`EbpfError::ParseError`]: `object` is invalid.
pub(super) fn of_object(object: &[u8]) -> Result<Btf, EbpfError> {
    let kernel = fs::read(PATH).map_err(|error| BtfError::FileError {
        path: PATH.into(),
        error,
    })?;
    let own = Object::parse(object)?.btf.map(|own| own.to_bytes());
    let own = own.unwrap_or_default();
    let reduced = Types::parse(&own).and_then(|own| Types::parse(&kernel)?.reduced(&own.names()));
    let reduced = reduced.ok_or(BtfError::InvalidTypeInfo)?;
    Ok(Btf::parse(&reduced, Endianness::default())?)
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

    /// Returns all names in the strings, including those of members and functions.
    fn names(&self) -> HashSet<&'a [u8]> {
        let names = self.strings.split(|byte| *byte == 0);
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
            // No relocation follows a pointer, and the target may contain half of all types.
            if kind(types.get(start..)?)? == PTR {
                types.get_mut(start + 8..start + 12)?.fill(0);
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

/// Returns the offsets of the type ids in a record, except the one of a pointer's target.
fn references(record: &[u8]) -> Option<Vec<usize>> {
    Some(match kind(record)? {
        ARRAY => vec![COMMON, COMMON + 4],
        STRUCT | UNION => (0..count(record)?).map(|it| COMMON + 12 * it + 4).collect(),
        TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => vec![8],
        _ => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::CaptureMode;
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
            assert!(reduced.to_bytes().len() < all.to_bytes().len());
            assert!(relocated(&reduced) == relocated(&all), "{mode:?}");
        }
    }

    /// Cut anywhere, or with any byte changed, types end in an error or in other types.
    #[test]
    fn invalid_types_are_refused() {
        let object = Object::parse(CaptureMode::Fwmark.object()).expect("an object");
        let types = object.btf.expect("its types").to_bytes();
        let names = Types::parse(&types).expect("its types").names();
        for length in (0..types.len()).step_by(13) {
            assert!(Types::parse(&types[..length]).is_none());
        }
        for at in (0..types.len()).step_by(13) {
            let mut changed = types.clone();
            changed[at] ^= 0xff;
            let _ = Types::parse(&changed).and_then(|types| types.reduced(&names));
        }
    }
}
