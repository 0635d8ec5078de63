//! Tests with a program that records its arguments.

use super::super::tests::World;
use super::*;
use std::fs;

const RECORDER: &str = r#"
echo "$*" >> "${0%/*}/../arguments"
[ "$1" = -a ] && cat > "${0%/*}/../input"
exit 0
"#;

fn read(world: &World, name: &str) -> String {
    fs::read_to_string(world.folder.join(name)).unwrap_or_default()
}

#[test]
fn asked_as_wg_quick_asks() {
    let world = World::new();
    world.program("resolvconf", RECORDER);
    let dns = world.choose();
    dns.apply(&world.paths).unwrap();
    assert_eq!(
        read(&world, "input"),
        "nameserver 192.0.2.1\nnameserver 2001:db8::1\nsearch a.example ~b.example\n"
    );
    dns.undo(&world.paths).unwrap();
    assert_eq!(read(&world, "arguments"), "-a wg0 -m 0 -x\n-d wg0 -f\n");
}

#[test]
fn record_named_as_debians_program_sorts() {
    let world = World::new();
    world.program("resolvconf", RECORDER);
    let folder = world.folder.join("etc/resolvconf");
    fs::create_dir(&folder).unwrap();
    let order = "# interface-order(5)\nlo.inet6\nlo.@(dnsmasq|pdnsd)\n tun*\ntap*\n";
    fs::write(folder.join("interface-order"), order).unwrap();
    let dns = world.choose();
    assert_eq!(dns.to_string(), "resolvconf -a tun.wg0 -m 0 -x");
    // The record's name was saved, so a later change of the order does not matter.
    fs::remove_dir_all(folder).unwrap();
    dns.undo(&world.paths).unwrap();
    assert_eq!(read(&world, "arguments"), "-d tun.wg0 -f\n");
}

#[test]
fn failure() {
    let world = World::new();
    world.program("resolvconf", "exit 7");
    let error = world.choose().apply(&world.paths).unwrap_err().to_string();
    assert!(
        error.contains("resolvconf -a wg0 -m 0 -x` ended with exit status: 7"),
        "{error}"
    );
}

/// The program does not read its input, and its child keeps the pipes open.
#[test]
fn ends_without_reading() {
    let world = World::new();
    world.program("resolvconf", "exec <&-; sleep 2 & exit 0");
    world.choose().apply(&world.paths).unwrap();
}

#[test]
fn never_ends() {
    let world = World::new();
    let program = world.program("resolvconf", "exec sleep 30");
    let limit = Duration::from_millis(200);
    let error = finish(Command::new(program), "", Output::Passed, limit).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(error.to_string().contains("killed"), "{error}");
}

#[test]
fn cannot_be_started() {
    let world = World::new();
    let program = world.program("resolvconf", "");
    let dns = world.choose();
    fs::write(&program, "#!/no/such/shell\n").unwrap();
    let error = dns.apply(&world.paths).unwrap_err();
    assert!(matches!(error, DnsError::Start { .. }), "{error}");
}

#[test]
fn uninstalled_while_up() {
    let world = World::new();
    let program = world.program("resolvconf", RECORDER);
    let dns = world.choose();
    fs::remove_file(program).unwrap();
    assert_eq!(dns.undo(&world.paths).unwrap(), None);
}

#[test]
fn what_it_holds() {
    let world = World::new();
    let ask = || super::super::current(&world.paths, "wg0").unwrap();
    assert_eq!(ask(), None);

    // Debian's program lists all records, whichever is requested.
    let script = "[ \"$1\" = -l ] || exit 9\n\
        echo '# resolv.conf from eth0'; echo 'nameserver 198.51.100.1'\n\
        echo '# resolv.conf from wg0'; echo 'nameserver 192.0.2.1'; echo 'search a.example'\n\
        echo '# resolv.conf from wg00'; echo 'nameserver 198.51.100.2'\n";
    world.program("resolvconf", script);
    let expected = Settings {
        servers: vec!["192.0.2.1".parse().unwrap()],
        search: vec!["a.example".to_owned()],
    };
    assert_eq!(ask(), Some(expected.clone()));

    // If the program cannot list records, its file is read.
    world.program("resolvconf", "exit 1");
    let folder = world.folder.join("etc/resolvconf/run/interface");
    fs::create_dir_all(&folder).unwrap();
    fs::write(
        folder.join("wg0"),
        "nameserver 192.0.2.1\nsearch a.example\n",
    )
    .unwrap();
    assert_eq!(ask(), Some(expected));
}
