//! Tests of the choice of the method, and that no call can hang.

use super::*;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder with its own `/etc`, `/run`, `/bin` and `/proc`.
pub(super) struct World {
    pub(super) folder: PathBuf,
    pub(super) paths: Paths,
}

impl World {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("taupe-dns-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        for below in ["etc", "run/dbus", "bin", "proc/sys/kernel/random"] {
            fs::create_dir_all(folder.join(below)).unwrap();
        }
        let path = folder.join("bin");
        let world = Self {
            paths: Paths::new(folder.clone(), path.as_os_str(), None),
            folder,
        };
        world.restart();
        world
    }

    /// Simulates a restart of the system.
    pub(super) fn restart(&self) {
        let file = self.folder.join("proc/sys/kernel/random/boot_id");
        let before = fs::read_to_string(&file).unwrap_or_default();
        fs::write(&file, format!("{}boot\n", before.trim())).unwrap();
    }

    /// Adds a shell script to the `PATH`.
    pub(super) fn program(&self, name: &str, script: &str) -> PathBuf {
        let path = self.folder.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub(super) fn choose(&self) -> Dns {
        let servers = ["192.0.2.1", "2001:db8::1"].map(|server| server.parse().unwrap());
        let search = ["a.example", "~b.example"].map(str::to_owned);
        choose(&self.paths, "wg0", &servers, &search)
            .unwrap()
            .unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn no_servers_no_change() {
    let world = World::new();
    let search = ["a.example".to_owned()];
    assert_eq!(choose(&world.paths, "wg0", &[], &search).unwrap(), None);
}

#[test]
fn a_server_that_is_named_twice_is_set_once() {
    let world = World::new();
    let servers = ["192.0.2.1", "192.0.2.2", "192.0.2.1"].map(|server| server.parse().unwrap());
    let dns = choose(&world.paths, "wg0", &servers, &[]).unwrap().unwrap();
    assert_eq!(dns.settings.servers, servers[..2]);
}

#[test]
fn the_file_where_there_is_nothing_else() {
    let world = World::new();
    fs::write(world.paths.resolv_conf(), "nameserver 198.51.100.1\n").unwrap();
    let dns = world.choose();
    assert_eq!(dns.method, Method::File);
    assert_eq!(
        dns.to_string(),
        "mv /etc/resolv.conf /etc/resolv.conf.before-taupe; \
         printf 'nameserver %s\\n' 192.0.2.1 2001:db8::1 > /etc/resolv.conf"
    );
    let json = serde_json::to_string(&dns).unwrap();
    assert_eq!(serde_json::from_str::<Dns>(&json).unwrap(), dns);
}

#[test]
fn resolvconf_before_the_file() {
    let world = World::new();
    let program = world.program("resolvconf", "");
    let dns = world.choose();
    let record = "wg0".to_owned();
    assert_eq!(dns.method, Method::Resolvconf { program, record });
    assert_eq!(dns.to_string(), "resolvconf -a wg0 -m 0 -x");
    assert_eq!(dns.undo_line(), "resolvconf -d wg0 -f");
}

/// The commands shown match the effect.
#[test]
fn the_lines_of_two_tunnels_and_of_another_program() {
    let world = World::new();
    let paths = &world.paths;
    let file = paths.resolv_conf();
    let original = paths.beside("resolv.conf.before-taupe");
    let dns = |interface: &str, server: &str| {
        let server = server.parse().unwrap();
        choose(paths, interface, &[server], &[]).unwrap().unwrap()
    };
    let keep = "mv /etc/resolv.conf /etc/resolv.conf.before-taupe; ";
    let back = "mv /etc/resolv.conf.before-taupe /etc/resolv.conf";
    let [write_first, write_second] = ["192.0.2.1", "192.0.2.2"]
        .map(|server| format!("printf 'nameserver %s\\n' {server} > /etc/resolv.conf"));
    fs::write(&file, "nameserver 198.51.100.1\n").unwrap();
    let (first, second) = (dns("wg0", "192.0.2.1"), dns("wg1", "192.0.2.2"));
    assert_eq!(first.line_now(paths), format!("{keep}{write_first}"));
    first.apply(paths).unwrap();
    assert_eq!(first.undo_line_now(paths).as_deref(), Some(back));
    assert_eq!(second.line_now(paths), write_second);
    second.apply(paths).unwrap();
    assert_eq!(second.undo_line_now(paths), Some(write_first));
    assert_eq!(first.undo_line_now(paths), Some(write_second));
    first.undo(paths).unwrap();
    assert_eq!(first.undo_line_now(paths), None);
    assert_eq!(second.undo_line_now(paths).as_deref(), Some(back));

    // Another program has replaced the file.
    fs::write(&file, "nameserver 198.51.100.2\n").unwrap();
    assert_eq!(second.undo_line_now(paths), None);
    assert!(matches!(
        second.undo(paths),
        Ok(Some(Note::Replaced { .. }))
    ));

    // The other program's file was deleted, so only the saved one is left.
    fs::remove_file(&file).unwrap();
    assert_eq!(second.undo_line_now(paths).as_deref(), Some(back));
    fs::remove_file(&original).unwrap();
    assert_eq!(second.undo_line_now(paths), None);
    let alone = "printf 'nameserver %s\\n' 192.0.2.1 > /etc/resolv.conf";
    assert_eq!(first.line_now(paths), alone);
    first.apply(paths).unwrap();
    assert_eq!(
        first.undo_line_now(paths).as_deref(),
        Some("rm /etc/resolv.conf")
    );
}

/// A second tunnel adds to Taupe's file, even if a program that would manage the file is available
/// now.
#[test]
fn the_file_while_it_is_taupes() {
    let world = World::new();
    world.choose().apply(&world.paths).unwrap();
    world.program("resolvconf", "");
    assert_eq!(world.choose().method, Method::File);
}

/// All link targets with which systemd-resolved manages the file.
#[test]
fn resolved_that_cannot_be_asked() {
    let targets = [
        Some("/run/systemd/resolve/resolv.conf"),
        Some("../run/systemd/resolve/stub-resolv.conf"),
        None,
    ];
    for target in targets {
        let world = World::new();
        let file = world.paths.resolv_conf();
        match target {
            Some(target) => symlink(target, &file).unwrap(),
            None => fs::write(&file, "options edns0\nnameserver   127.0.0.53\n").unwrap(),
        }
        let dns = world.choose();
        assert_eq!(dns.method, Method::File);
        let reason = &dns.passed_over[0];
        assert!(reason.contains("systemd-resolved is in charge"), "{reason}");
        assert!(
            reason.contains("dbus/system_bus_socket does not answer"),
            "{reason}"
        );
        // The error of the fallback method includes the reason for the fallback.
        fs::create_dir(world.paths.draft()).unwrap();
        let error = dns.apply(&world.paths).unwrap_err().to_string();
        assert!(
            error.contains("cannot change") && error.contains(reason),
            "{error}"
        );
    }
}

/// systemd's `resolvconf` needs systemd-resolved, which is not running.
#[test]
fn resolvconf_that_is_resolvectl() {
    let world = World::new();
    world.program("resolvectl", "");
    symlink("resolvectl", world.folder.join("bin/resolvconf")).unwrap();
    let dns = world.choose();
    assert_eq!(dns.method, Method::File);
    assert!(
        dns.passed_over[0].contains("another name of resolvectl"),
        "{dns:?}"
    );
}

/// A bus that accepts connections and does not answer.
#[test]
fn bus_that_hangs() {
    let world = World::new();
    let socket = world.folder.join("run/dbus/system_bus_socket");
    let _listener = UnixListener::bind(socket).unwrap();
    fs::write(world.paths.resolv_conf(), "nameserver 127.0.0.53\n").unwrap();
    let dns = world.choose();
    assert_eq!(dns.method, Method::File);
    assert!(dns.passed_over[0].contains("nothing within 5s"), "{dns:?}");
}

/// A bus that closes each connection at once.
#[test]
fn bus_that_hangs_up() {
    let world = World::new();
    let socket = world.folder.join("run/dbus/system_bus_socket");
    let listener = UnixListener::bind(socket).unwrap();
    fs::write(world.paths.resolv_conf(), "nameserver 127.0.0.53\n").unwrap();
    std::thread::spawn(move || while listener.accept().is_ok() {});
    let dns = world.choose();
    assert_eq!(dns.method, Method::File);
    assert!(!dns.passed_over[0].contains("nothing within"), "{dns:?}");
}

#[test]
fn file_that_cannot_be_read() {
    let world = World::new();
    fs::create_dir(world.paths.resolv_conf()).unwrap();
    let servers = ["192.0.2.1".parse().unwrap()];
    let error = choose(&world.paths, "wg0", &servers, &[]).unwrap_err();
    assert!(matches!(error, DnsError::Read { .. }), "{error}");
}

#[test]
fn addresses_of_the_bus() {
    let paths = Paths::new("/".into(), "".as_ref(), Some("unix:path=/x"));
    assert_eq!(paths.bus(), "unix:path=/x");
    let paths = Paths::new("/".into(), "relative:/y".as_ref(), None);
    assert_eq!(paths.bus(), "unix:path=/run/dbus/system_bus_socket");
    assert_eq!(paths.program("no-such-program"), None);
    assert_eq!(paths.resolv_conf(), Path::new("/etc/resolv.conf"));
}

#[test]
fn who_is_told_of_a_copy_is_told_when_it_ends() {
    let note = Note::Replaced {
        path: "/etc/resolv.conf".into(),
        original: "/etc/resolv.conf.before-taupe".into(),
    };
    let copy = "/etc/resolv.conf.before-taupe until the next tunnel changes the file";
    assert!(note.to_string().contains(copy), "{note}");
}
