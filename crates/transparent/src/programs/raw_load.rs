//! Loads programs of types that aya does not support: takes them out of the object and relocates
//! them to the pinned maps.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use aya_obj::Object;
use aya_obj::btf::BtfFeatures;

use super::CaptureMode;
use super::kernel_types;
use crate::pins::Pins;
use crate::syscall::{self, Code};

/// Loads the program `name` of [`CaptureMode::TrafficControl`](super::CaptureMode::TrafficControl)
/// with a program type ([`syscall::program_type`]) and attach type ([`syscall::attach_type`]).
pub(super) fn load(pins: &Pins, name: &str, kind: u32, attach_type: u32) -> io::Result<OwnedFd> {
    let bytes = CaptureMode::TrafficControl.object();
    let mut object = Object::parse(bytes).map_err(io::Error::other)?;
    // A kernel that has one of these program types supports all BTF features.
    let all = BtfFeatures::new(true, true, true, true, true, true, true, true);
    let types = object.fixup_and_sanitize_btf(&all);
    let types = types.map_err(io::Error::other)?;
    let types = types.ok_or(io::ErrorKind::NotFound)?.to_bytes();
    let kernel_types = kernel_types::of_object(bytes).map_err(io::Error::other)?;
    object
        .relocate_btf(&kernel_types)
        .map_err(io::Error::other)?;
    let program = object.programs.get(name);
    let key = program.ok_or(io::ErrorKind::NotFound)?.function_key();
    // Keep only this program and the functions that are in no program's section, since it may call
    // these. The maps of other programs may be missing.
    let sections: HashSet<_> = object
        .programs
        .values()
        .map(|it| it.function_key().0)
        .collect();
    let is_part = |other: &(usize, u64)| *other == key || !sections.contains(&other.0);
    object.functions.retain(|other, _| is_part(other));
    object.programs.retain(|other, _| other == name);
    let opened = std::mem::take(&mut object.maps);
    let opened = opened.into_iter().filter_map(|(name, map)| {
        match syscall::open(&pins.map(&name)) {
            // A map that is not pinned belongs to other programs.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            fd => Some(fd.map(|fd| (name, fd, map))),
        }
    });
    let opened = opened.collect::<io::Result<Vec<_>>>()?;
    let maps = opened
        .iter()
        .map(|(name, fd, map)| (name.as_str(), fd.as_raw_fd(), map));
    let sections = object.functions.keys().map(|(section, _)| *section);
    let sections: HashSet<_> = sections.collect();
    object
        .relocate_maps(maps, &sections)
        .map_err(io::Error::other)?;
    object.relocate_calls(&sections).map_err(io::Error::other)?;
    let function = object.functions.get(&key).ok_or(io::ErrorKind::NotFound)?;
    syscall::load(&Code {
        name,
        kind,
        attach_type,
        instructions: &function.instructions,
        types: &types,
        functions: (
            &function.func_info.func_info_bytes(),
            function.func_info_rec_size,
        ),
    })
}
