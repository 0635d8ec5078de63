//! Checks what a program for FreeBSD or macOS needs of its system.

use crate::workspace::Result;
use object::elf::{DT_NEEDED, FileHeader64};
use object::macho::{LC_CODE_SIGNATURE, MachHeader64, PLATFORM_MACOS};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::read::macho::{LoadCommandVariant, MachHeader as _};
use object::{Endianness, FileKind};
use std::fs;

/// FreeBSD's dynamic linker. It is the surest sign of a program for FreeBSD: some linkers leave the
/// system out of the header.
const FREEBSD_LINKER: &[u8] = b"/libexec/ld-elf.so.1";

/// Libraries of FreeBSD's base system that a program in Rust needs.
const FREEBSD: [&str; 3] = ["libc.so.7", "libm.so.5", "libthr.so.3"];

/// The library of macOS that has all system calls.
const MACOS: [&str; 1] = ["/usr/lib/libSystem.B.dylib"];

/// Requirements of a program.
struct Needs {
    system: &'static str,
    /// The libraries that the system has.
    known: &'static [&'static str],
    libraries: Vec<String>,
    /// False if the system runs only signed programs, as macOS does on AArch64, and this is none.
    is_signed: bool,
}

impl Needs {
    /// Returns the reasons why the system would not run the program.
    fn faults(&self) -> Vec<String> {
        let is_unknown = |library: &&String| !self.known.contains(&library.as_str());
        let unknown = self.libraries.iter().filter(is_unknown);
        let mut faults: Vec<_> = unknown
            .map(|library| format!("{} has no {library}", self.system))
            .collect();
        if !self.is_signed {
            faults.push("there is no code signature".to_owned());
        }
        faults
    }
}

/// Prints what the program needs. Returns false if its system lacks some of it.
pub(crate) fn check(path: &str) -> Result<bool> {
    let data = fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let needs = read(&data).map_err(|error| format!("{path}: {error}"))?;
    let libraries = needs.libraries.join(", ");
    println!("{path}: for {}; needs {libraries}", needs.system);
    let faults = needs.faults();
    for fault in &faults {
        println!("{path}: {fault}");
    }
    Ok(faults.is_empty())
}

fn read(data: &[u8]) -> std::result::Result<Needs, String> {
    let kind = FileKind::parse(data).map_err(|error| error.to_string())?;
    match kind {
        FileKind::Elf64 => elf(data).map_err(|error| error.to_string())?,
        FileKind::MachO64 => mach_o(data).map_err(|error| error.to_string())?,
        _ => None,
    }
    .ok_or_else(|| "not a program of FreeBSD or macOS".to_owned())
}

fn elf(data: &[u8]) -> object::Result<Option<Needs>> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let mut is_freebsd = false;
    for segment in header.program_headers(endian, data)? {
        is_freebsd |= segment.interpreter(endian, data)? == Some(FREEBSD_LINKER);
    }
    if !is_freebsd {
        return Ok(None);
    }
    let sections = header.sections(endian, data)?;
    let mut libraries = Vec::new();
    if let Some((entries, names)) = sections.dynamic(endian, data)? {
        let names = sections.strings(endian, data, names)?;
        for entry in entries
            .iter()
            .filter(|entry| entry.d_tag(endian) == DT_NEEDED)
        {
            libraries.push(text(entry.string(endian, names)?));
        }
    }
    Ok(Some(Needs {
        system: "FreeBSD",
        known: &FREEBSD,
        libraries,
        is_signed: true,
    }))
}

fn mach_o(data: &[u8]) -> object::Result<Option<Needs>> {
    let header = MachHeader64::<Endianness>::parse(data, 0)?;
    let endian = header.endian()?;
    let mut commands = header.load_commands(endian, data, 0)?;
    let (mut libraries, mut is_signed, mut is_macos) = (Vec::new(), false, false);
    while let Some(command) = commands.next()? {
        match command.variant()? {
            LoadCommandVariant::Dylib(library) => {
                libraries.push(text(command.string(endian, library.dylib.name)?));
            }
            LoadCommandVariant::BuildVersion(version) => {
                is_macos = version.platform.get(endian) == PLATFORM_MACOS;
            }
            _ => is_signed |= command.cmd() == LC_CODE_SIGNATURE,
        }
    }
    Ok(is_macos.then_some(Needs {
        system: "macOS",
        known: &MACOS,
        libraries,
        is_signed,
    }))
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_system_lacks_is_a_fault() {
        let needs = |libraries: &[&str], is_signed| Needs {
            system: "macOS",
            known: &MACOS,
            libraries: libraries.iter().map(|&it| it.to_owned()).collect(),
            is_signed,
        };
        assert!(needs(&MACOS, true).faults().is_empty());
        let all = [MACOS[0], "/usr/lib/libiconv.2.dylib"];
        let found = [
            "macOS has no /usr/lib/libiconv.2.dylib",
            "there is no code signature",
        ];
        assert_eq!(needs(&all, false).faults(), found);
    }

    #[test]
    fn a_program_of_another_system_is_refused() {
        let own = std::env::current_exe()
            .and_then(fs::read)
            .expect("this program");
        assert!(read(&own).is_err());
        assert!(read(b"#!/bin/sh\n").is_err());
    }
}
