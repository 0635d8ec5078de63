//! Checks that only administrators can change a file. This must hold for programs that the system
//! runs and files from which it reads keys.

use super::descriptor::Descriptor;
use super::wide::wide;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use windows_sys::Win32::Foundation::{ERROR_ALREADY_EXISTS, GENERIC_ALL, GENERIC_WRITE};
use windows_sys::Win32::Security::Authorization::{GetNamedSecurityInfoW, SE_FILE_OBJECT};
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, OWNER_SECURITY_INFORMATION, SECURITY_ATTRIBUTES,
};
use windows_sys::Win32::Storage::FileSystem::{
    CreateDirectoryW, DELETE, FILE_ALL_ACCESS, FILE_APPEND_DATA, FILE_DELETE_CHILD,
    FILE_GENERIC_EXECUTE, FILE_GENERIC_READ, FILE_GENERIC_WRITE, FILE_WRITE_DATA, WRITE_DAC,
    WRITE_OWNER,
};

/// SDDL: full access for the system and administrators only, inherited by everything in the folder.
const PRIVATE: &str = "D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)";

/// Accounts that a service may trust: the system, administrators, and Windows's own installer. The
/// owner of a file is checked separately.
const TRUSTED: [&str; 8] = [
    "SY",
    "BA",
    "LA",
    "DA",
    "EA",
    "CO",
    "OW",
    "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464",
];

/// Rights that allow replacing a file or folder.
const REPLACE: u32 = DELETE | WRITE_DAC | WRITE_OWNER | GENERIC_ALL;

/// A file, or a folder in its path, that accounts other than administrators may change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exposed {
    /// The file or folder.
    pub path: PathBuf,
    /// The account as the system writes it: a group's name or a SID.
    pub who: String,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} can be changed by {}", self.path.display(), self.who)
    }
}

/// Creates a folder with access for the system and administrators only. The access list is set at
/// creation, so that nobody can open the folder before. An existing folder stays as it is.
///
/// # Errors
///
/// The system's; creating the folder needs an administrator.
pub fn make_private(folder: &Path) -> io::Result<()> {
    let descriptor = Descriptor::parse(PRIVATE)?;
    let attributes = SECURITY_ATTRIBUTES {
        nLength: size_of::<SECURITY_ATTRIBUTES>() as u32,
        lpSecurityDescriptor: descriptor.raw(),
        bInheritHandle: 0,
    };
    let path = wide(folder)?;
    // SAFETY: the path ends with a zero, and the attributes and their descriptor outlive the call.
    if unsafe { CreateDirectoryW(path.as_ptr(), &raw const attributes) } != 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() == Some(ERROR_ALREADY_EXISTS.cast_signed()) && folder.is_dir() {
        true => Ok(()),
        false => Err(error),
    }
}

/// Returns the first of a file and the folders above it that accounts other than administrators may
/// change or replace, or `None` if there is none.
///
/// # Errors
///
/// If the system does not return the security descriptor.
pub fn exposed(path: &Path) -> io::Result<Option<Exposed>> {
    find_exposed(path, 0)
}

/// Like [`exposed`], for a program, which can also be attacked by files in its folder.
///
/// # Errors
///
/// If the system does not return a security descriptor.
pub fn exposed_program(path: &Path) -> io::Result<Option<Exposed>> {
    find_exposed(path, FILE_WRITE_DATA | GENERIC_WRITE)
}

/// `folder_rights` are further rights that count for the file's folder.
fn find_exposed(path: &Path, folder_rights: u32) -> io::Result<Option<Exposed>> {
    let above = FILE_DELETE_CHILD | REPLACE;
    let rights = [
        FILE_WRITE_DATA | FILE_APPEND_DATA | GENERIC_WRITE | REPLACE,
        above | folder_rights,
    ];
    let rights = rights.into_iter().chain(std::iter::repeat(above));
    for (path, rights) in path.ancestors().zip(rights) {
        if let Some(who) = untrusted_account(&security_descriptor(path)?, rights) {
            return Ok(Some(Exposed {
                path: path.to_owned(),
                who,
            }));
        }
    }
    Ok(None)
}

/// Returns the owner and the access list of a file as SDDL.
fn security_descriptor(path: &Path) -> io::Result<String> {
    let path = wide(path)?;
    let parts = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;
    let mut descriptor = ptr::null_mut();
    // SAFETY: the path ends with a zero. Of the output pointers, only the one for the descriptor is
    // not null.
    let error = unsafe {
        GetNamedSecurityInfoW(
            path.as_ptr(),
            SE_FILE_OBJECT,
            parts,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            &raw mut descriptor,
        )
    };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error.cast_signed()));
    }
    // SAFETY: the system allocated the descriptor in the call above, to be freed with `LocalFree`,
    // and nothing else owns it.
    unsafe { Descriptor::from_raw(descriptor) }.text(parts)
}

/// Returns an untrusted account that has one of these rights or is the owner. Ignores entries that
/// deny rights.
fn untrusted_account(text: &str, rights: u32) -> Option<String> {
    let owner = text.split("O:").nth(1).unwrap_or_default();
    let owner = owner.split_once("D:").map_or(owner, |(owner, _)| owner);
    let owner = owner.split_once("G:").map_or(owner, |(owner, _)| owner);
    if !TRUSTED.contains(&owner) {
        return Some(format!("its owner, {}", account_name(owner)));
    }
    let everyone = || Some("everyone".to_owned());
    let Some((_, list)) = text.split_once("D:") else {
        return everyone();
    };
    if list.starts_with("NO_ACCESS_CONTROL") {
        return everyone();
    }
    let entries = list.split('(').skip(1);
    let mut entries = entries.filter_map(|entry| {
        let mut parts = entry.trim_end_matches(')').split(';');
        let (kind, flags, has) = (parts.next()?, parts.next()?, parts.next()?);
        let who = parts.nth(2)?;
        // The entry only applies to objects created inside the folder.
        let is_for_others = flags.as_bytes().chunks(2).any(|flag| flag == b"IO");
        let allows = matches!(kind, "A" | "XA" | "OA" | "ZA") && !is_for_others;
        (allows && mask(has) & rights != 0 && !TRUSTED.contains(&who)).then(|| account_name(who))
    });
    entries.next()
}

/// Returns rights as a number; unknown rights count as all rights.
fn mask(text: &str) -> u32 {
    if let Some(digits) = text.strip_prefix("0x") {
        return u32::from_str_radix(digits, 16).unwrap_or(u32::MAX);
    }
    let letters = text.as_bytes().chunks(2).map(|right| match right {
        b"FA" => FILE_ALL_ACCESS,
        b"FR" => FILE_GENERIC_READ,
        b"FW" => FILE_GENERIC_WRITE,
        b"FX" => FILE_GENERIC_EXECUTE,
        // Generic rights: all, write, read, execute.
        b"GA" => 0x1000_0000,
        b"GW" => 0x4000_0000,
        b"GR" => 0x8000_0000,
        b"GX" => 0x2000_0000,
        // Standard rights: read the descriptor, delete, write the descriptor, write the owner.
        b"RC" => 0x2_0000,
        b"SD" => 0x1_0000,
        b"WD" => 0x4_0000,
        b"WO" => 0x8_0000,
        // The lowest bits, under their names for directory services.
        b"CC" => 1,
        b"DC" => 1 << 1,
        b"LC" => 1 << 2,
        b"SW" => 1 << 3,
        b"RP" => 1 << 4,
        b"WP" => 1 << 5,
        b"DT" => 1 << 6,
        b"LO" => 1 << 7,
        b"CR" => 1 << 8,
        _ => u32::MAX,
    });
    letters.fold(0, |all, right| all | right)
}

fn account_name(who: &str) -> String {
    match who {
        "BU" => "Users".to_owned(),
        "AU" => "Authenticated Users".to_owned(),
        "WD" => "Everyone".to_owned(),
        "IU" => "INTERACTIVE".to_owned(),
        "PU" => "Power Users".to_owned(),
        "BG" => "Guests".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        FILE_DELETE_CHILD, FILE_WRITE_DATA, REPLACE, exposed, make_private, untrusted_account,
    };

    /// The descriptor of a standard installation.
    const PROGRAM_FILES: &str = "O:S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464\
        D:PAI(A;;FA;;;S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464)\
        (A;;0x1301bf;;;SY)(A;OICIIO;GA;;;SY)(A;;0x1301bf;;;BA)(A;OICIIO;GA;;;BA)\
        (A;;0x1200a9;;;BU)(A;OICIIO;GXGR;;;BU)(A;OICIIO;GA;;;CO)";
    const DRIVE: &str = "O:S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464\
        D:PAI(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1200a9;;;BU)(A;OICIIO;SDGXGWGR;;;AU)\
        (A;;LC;;;AU)";

    #[test]
    fn who_is_no_administrator_is_found() {
        let all = FILE_WRITE_DATA | FILE_DELETE_CHILD | REPLACE;
        assert_eq!(untrusted_account(PROGRAM_FILES, all), None);
        // Users may create folders on a drive, which does not change the existing ones.
        assert_eq!(untrusted_account(DRIVE, all), None);
        for (text, who) in [
            // The descriptor of a file created on a drive.
            (
                "O:BAD:AI(A;ID;FA;;;BA)(A;ID;0x1301bf;;;AU)",
                "Authenticated Users",
            ),
            ("O:BAD:(A;;CCDCLC;;;BU)", "Users"),
            (
                "O:BAG:S-1-5-21-1-2-3-513D:(A;;SD;;;S-1-5-21-1-2-3-1001)",
                "S-1-5-21-1-2-3-1001",
            ),
            (
                "O:S-1-5-21-1-2-3-1001G:BAD:P(A;;FA;;;SY)",
                "its owner, S-1-5-21-1-2-3-1001",
            ),
            ("O:BAD:P(XA;;GA;;;WD;(Exists x))", "Everyone"),
            ("O:BAD:P(A;;??;;;BG)", "Guests"),
            ("O:SYD:NO_ACCESS_CONTROL", "everyone"),
            ("O:SY", "everyone"),
            ("", "its owner, "),
        ] {
            assert_eq!(untrusted_account(text, all).as_deref(), Some(who), "{text}");
        }
        // The right to read is not the right to write.
        assert_eq!(
            untrusted_account("O:BAD:P(A;;FRFX;;;WD)(D;;FA;;;BU)", all),
            None
        );
    }

    #[test]
    fn a_folder_is_made_once_and_found_as_it_is() {
        let folder = std::env::temp_dir().join(format!("taupe-private-{}", std::process::id()));
        make_private(&folder).expect("made");
        make_private(&folder).expect("there");
        // The folders above it belong to this user.
        exposed(&folder).expect("known").expect("exposed");
        std::fs::remove_dir(&folder).expect("removed");
        std::fs::write(&folder, "").expect("a file");
        make_private(&folder).expect_err("there is a file");
        std::fs::remove_file(&folder).expect("removed");
    }
}
