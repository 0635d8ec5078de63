//! Certificates made by easy-rsa, once per sandbox. The keys protect nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use taupe_lab::error::{Error, Result};
use taupe_lab::process::run;
use taupe_lab::sandbox::scratch;

/// Debian's path of easy-rsa.
const EASY_RSA: &str = "/usr/share/easy-rsa/easyrsa";

/// The file of Diffie-Hellman parameters; see [`path`].
pub(super) const DH: &str = "dh.pem";

const HERE: &str = "this machine";

/// Checks that easy-rsa is installed.
pub(super) fn check() -> Result<()> {
    let path = PathBuf::from(EASY_RSA);
    if path.is_file() {
        return Ok(());
    }
    Err(Error::Missing {
        name: "easy-rsa".to_owned(),
        path,
        remedy: "`scripts/packages bench` installs it".to_owned(),
    })
}

/// Returns the path of a file that [`make`] makes: `ca.crt`, `issued/SIDE.crt`, `private/SIDE.key`.
pub(super) fn path(name: &str) -> PathBuf {
    folder().join(name)
}

fn folder() -> PathBuf {
    scratch("openvpn-pki")
}

/// Makes a certificate authority and certificates for both sides, unless they exist.
pub(super) fn make() -> Result<()> {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    // This file is made last, so its presence means that all exist.
    if path(DH).exists() {
        return Ok(());
    }
    for arguments in [
        &["init-pki"][..],
        &["build-ca", "nopass"],
        &["build-server-full", "server", "nopass"],
        &["build-client-full", "client", "nopass"],
    ] {
        let mut command = Command::new(EASY_RSA);
        command
            .args(arguments)
            .env("EASYRSA_PKI", folder())
            .env("EASYRSA_BATCH", "1")
            .current_dir(scratch(""));
        run(HERE, command, None)?;
    }
    parameters(&path(DH))
}

/// Writes the group of 4,096 bits from RFC 7919. Generating another one takes minutes and is no
/// safer.
fn parameters(file: &Path) -> Result<()> {
    let mut command = Command::new("openssl");
    command
        .args(["genpkey", "-genparam", "-algorithm", "DH"])
        .args(["-pkeyopt", "group:ffdhe4096", "-out"])
        .arg(file);
    run(HERE, command, None).map(drop)
}
