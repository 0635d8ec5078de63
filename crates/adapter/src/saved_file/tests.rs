use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::PathBuf;

use ipnet::IpNet;
use taupe_client::Device;

use super::{Access, Compatibility, Running, lasting, replace, write};
use crate::fixtures::file;

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("taupe-save-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a folder");
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("folder").flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_is_replaced_by_one_for_its_owner_only() {
    let scratch = Scratch::new("replaced");
    let path = scratch.0.join("wg0.conf");
    fs::write(&path, "old").expect("written");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("chmod");
    let before = fs::metadata(&path).expect("there").ino();
    replace(&path, b"new", Access::Closed).expect("replaced");
    let after = fs::metadata(&path).expect("there");
    assert_eq!(fs::read(&path).expect("there"), b"new");
    assert_eq!(after.mode() & 0o7777, 0o600);
    assert_ne!(after.ino(), before, "not written over");
    assert_eq!(scratch.names(), ["wg0.conf"]);

    fs::set_permissions(&path, Permissions::from_mode(0o604)).expect("chmod");
    replace(&path, b"newer", Access::Kept).expect("replaced");
    assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o604);
}

#[test]
fn a_file_of_a_few_stays_theirs() {
    let scratch = Scratch::new("group");
    let path = scratch.0.join("wg0.conf");
    fs::write(&path, "old").expect("written");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("chmod");
    // Only root can change a file's owner.
    let given = chown(&path, Some(1), Some(2)).is_ok();
    replace(&path, b"new", Access::Closed).expect("replaced");
    let after = fs::metadata(&path).expect("there");
    assert_eq!(fs::read(&path).expect("there"), b"new");
    assert_eq!(after.mode() & 0o7777, 0o640);
    assert!(!given || (after.uid(), after.gid()) == (1, 2));
}

#[test]
fn what_a_link_leads_to_is_replaced() {
    let scratch = Scratch::new("link");
    let folder = scratch.0.join("real");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("file"), "old").expect("written");
    let link = scratch.0.join("wg0.conf");
    symlink("real/file", &link).expect("a link");
    replace(&link, b"new", Access::Closed).expect("replaced");
    assert!(link.is_symlink());
    assert_eq!(fs::read(folder.join("file")).expect("there"), b"new");
    assert_eq!(fs::read_dir(&folder).expect("folder").count(), 1);
}

#[test]
fn a_file_that_cannot_be_replaced_stays() {
    let scratch = Scratch::new("failed");
    // A file cannot replace a folder, which only the last step detects.
    let path = scratch.0.join("wg0.conf");
    fs::create_dir(&path).expect("a folder");
    let error = replace(&path, b"new", Access::Closed).expect_err("a folder");
    assert!(error.to_string().contains("as it was"), "{error}");
    assert_eq!(scratch.names(), ["wg0.conf"]);
    replace(&scratch.0.join("missing.conf"), b"new", Access::Closed).expect_err("not there");
    assert_eq!(scratch.names(), ["wg0.conf"]);
}

#[test]
fn the_kernels_own_addresses_are_not_the_files() {
    let nets = ["10.9.0.2/24", "fe80::1/64", "fe80::2/64", "fd09::2/64"];
    let nets: Vec<IpNet> = nets
        .iter()
        .map(|net| net.parse().expect("network"))
        .collect();
    let old = file("Address = fe80::2/64", "");
    let kept: Vec<_> = lasting(&nets, &old)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(kept, ["10.9.0.2/24", "fe80::2/64", "fd09::2/64"]);
}

#[test]
fn an_address_that_was_added_alone_keeps_its_network_in_the_file() {
    let nets = [
        "192.168.1.209/32",
        "10.9.0.2/16",
        "10.8.0.2/32",
        "fd09::2/128",
    ];
    let nets = nets.map(|net| net.parse().expect("network"));
    let old = file("Address = 192.168.1.209/24, 10.9.0.2/24, fd09::2/64", "");
    let kept: Vec<_> = lasting(&nets, &old)
        .iter()
        .map(ToString::to_string)
        .collect();
    // A prefix length that was changed on the interface is saved.
    let expected = [
        "192.168.1.209/24",
        "10.9.0.2/16",
        "10.8.0.2/32",
        "fd09::2/64",
    ];
    assert_eq!(kept, expected);
}

#[test]
fn a_mark_that_was_chosen_is_not_the_files() {
    let scratch = Scratch::new("mark");
    let path = scratch.0.join("wg0.conf");
    let mut device = Device::new("wg0");
    device.fwmark = 51820;
    let saved = |interface: &str, compatibility| {
        fs::write(&path, "").expect("written");
        let running = Running {
            device: &device,
            addresses: &[],
            mtu: 1420,
            dns: None,
        };
        let old = file(interface, "");
        write(&old, &path, running, compatibility).expect("saved");
        fs::read_to_string(&path).expect("there")
    };
    assert!(!saved("", Compatibility::Taupe).contains("FwMark"));
    assert!(saved("FwMark = 51820", Compatibility::Taupe).contains("FwMark = 0xca6c"));
    assert!(saved("", Compatibility::WgQuick).contains("FwMark = 0xca6c"));
    let kept = saved(
        "DNS = 10.9.0.1, example.org\nMTU = 1300",
        Compatibility::Taupe,
    );
    assert!(
        kept.contains("10.9.0.1") && kept.contains("example.org"),
        "{kept}"
    );
    assert!(kept.contains("MTU = 1420"), "{kept}");
}
