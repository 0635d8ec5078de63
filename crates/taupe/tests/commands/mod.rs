//! A file of a tunnel, and the commands on it.

use crate::sandbox::{TAUPE, run};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

pub(crate) const FILE: &str = "/run/tunnels/wg0.conf";

const PEER: &str = "\n[Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n\
                    AllowedIPs = 10.9.1.0/24\n";

/// Writes a file with additional lines in its `[Interface]`.
pub(crate) fn write(lines: &str) {
    fs::create_dir_all("/run/tunnels").expect("folder");
    let key = "PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
    let text = format!("[Interface]\n{key}\nAddress = 10.9.0.1/24\n{lines}\n{PEER}");
    fs::write(FILE, text).expect("written");
    fs::set_permissions(FILE, fs::Permissions::from_mode(0o600)).expect("mode");
}

/// Runs the command. Returns its exit status and what it printed to standard error.
fn taupe(arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(TAUPE, arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    (output.status.code(), text)
}

pub(crate) fn succeeds(arguments: &[&str]) -> String {
    let (status, text) = taupe(arguments);
    assert_eq!(status, Some(0), "{arguments:?}: {text}");
    text
}

pub(crate) fn fails(arguments: &[&str]) -> String {
    let (status, text) = taupe(arguments);
    assert_eq!(status, Some(1), "{arguments:?}: {text}");
    text
}

/// Returns the number of journals that `up` has left.
pub(crate) fn journals() -> usize {
    fs::read_dir("/run/taupe").map_or(0, Iterator::count)
}
