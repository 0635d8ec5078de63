//! Checks what a program for FreeBSD, macOS or Windows needs of its system.

use crate::workspace::Result;
use object::elf::{DT_NEEDED, FileHeader64};
use object::macho::{LC_CODE_SIGNATURE, MachHeader64, PLATFORM_MACOS};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::read::macho::{LoadCommandVariant, MachHeader as _};
use object::read::pe::PeFile64;
use object::{Endianness, FileKind, LittleEndian};
use std::fs;

/// FreeBSD's dynamic linker. It is the surest sign of a program for FreeBSD: some linkers leave the
/// system out of the header.
const FREEBSD_LINKER: &[u8] = b"/libexec/ld-elf.so.1";

/// Libraries of FreeBSD's base system that a program in Rust needs.
const FREEBSD: [&str; 3] = ["libc.so.7", "libm.so.5", "libthr.so.3"];

/// The library of macOS that has all system calls.
const MACOS: [&str; 1] = ["/usr/lib/libSystem.B.dylib"];

/// Libraries of Windows 10 that Rust's library and Taupe call, in lower case.
const WINDOWS: [&str; 13] = [
    "advapi32.dll",
    "bcryptprimitives.dll",
    "combase.dll",
    "fwpuclnt.dll",
    "iphlpapi.dll",
    "kernel32.dll",
    "ktmw32.dll",
    "ntdll.dll",
    "ole32.dll",
    "oleaut32.dll",
    "rpcrt4.dll",
    "userenv.dll",
    "ws2_32.dll",
];

/// The first parts of names that Windows 10 resolves to its own libraries: its core, and its C runtime.
const WINDOWS_SETS: [&str; 2] = ["api-ms-win-core-", "api-ms-win-crt-"];

/// Requirements of a program.
struct Needs {
    system: &'static str,
    /// Returns true for the libraries that the system has.
    is_known: fn(&str) -> bool,
    libraries: Vec<String>,
    /// False if the system runs only signed programs, as macOS does on AArch64, and this is none.
    is_signed: bool,
}

impl Needs {
    /// Returns the reasons why the system would not run the program.
    fn faults(&self) -> Vec<String> {
        let is_unknown = |library: &&String| !(self.is_known)(library);
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
        FileKind::Pe64 => Some(pe(data).map_err(|error| error.to_string())?),
        _ => None,
    }
    .ok_or_else(|| "not a program of FreeBSD, macOS or Windows".to_owned())
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
        is_known: |library| FREEBSD.contains(&library),
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
        is_known: |library| MACOS.contains(&library),
        libraries,
        is_signed,
    }))
}

fn pe(data: &[u8]) -> object::Result<Needs> {
    let file = PeFile64::parse(data)?;
    let mut libraries = Vec::new();
    if let Some(table) = file.import_table()? {
        let mut entries = table.descriptors()?;
        while let Some(entry) = entries.next()? {
            libraries.push(text(table.name(entry.name.get(LittleEndian))?));
        }
    }
    Ok(Needs {
        system: "Windows",
        is_known: is_of_windows,
        libraries,
        is_signed: true,
    })
}

fn is_of_windows(library: &str) -> bool {
    let name = library.to_ascii_lowercase();
    WINDOWS.contains(&&*name) || WINDOWS_SETS.iter().any(|set| name.starts_with(set))
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
            is_known: |library| MACOS.contains(&library),
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
    fn windows_has_its_c_runtime() {
        assert!(is_of_windows("KERNEL32.dll"));
        assert!(is_of_windows("api-ms-win-crt-heap-l1-1-0.dll"));
        assert!(!is_of_windows("libunwind.dll"));
        assert!(!is_of_windows("libgcc_s_seh-1.dll"));
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
