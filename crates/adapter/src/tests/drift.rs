//! Tests of changes that other programs make to a running tunnel.

use super::model::{Listener, Model, World};
use crate::bypass::Bypass;
use crate::fixtures::{route, taupe_file as file};
use crate::{Compatibility, bypass};
use taupe_os_linux::netlink::Route;

const INTERFACE: &str = "Address = 10.9.0.2/24, fd09::2/64\nDNS = 10.9.0.1";
const PEER: &str = "AllowedIPs = 0.0.0.0/0, ::/0, 172.20.0.0/16";

fn up(model: &mut Model, interface: &str) -> Listener {
    let mut report = Listener::default();
    let up = model.up(&file(interface, PEER), Compatibility::Taupe, &mut report);
    up.expect("alive").expect("up");
    report
}

fn reload(model: &mut Model, interface: &str, peer: &str) -> Listener {
    let mut report = Listener::default();
    let reload = model.reload(&file(interface, peer), &mut report);
    reload.expect("alive").expect("reloaded");
    report
}

/// Something to remove from the world.
enum Loss {
    OfHost(String),
    OfDevice(String),
    Mark,
    ValidMark,
}

impl Loss {
    /// Returns everything that can be removed.
    fn all(world: &World) -> Vec<Self> {
        let of_host = world.of_host.iter().cloned().map(Self::OfHost);
        // Every reload sets keys and peers from the file.
        let of_device = world.of_device.iter().filter(|what| *what != "Configure");
        let of_device = of_device.cloned().map(Self::OfDevice);
        let settings = [Self::Mark, Self::ValidMark];
        of_host.chain(of_device).chain(settings).collect()
    }

    fn happen(&self, world: &mut World) {
        match self {
            Self::OfHost(what) => assert!(world.of_host.remove(what)),
            Self::OfDevice(what) => assert!(world.of_device.remove(what)),
            Self::Mark => world.mark = 0,
            Self::ValidMark => world.valid_mark = false,
        }
    }
}

#[test]
fn a_reload_makes_again_whatever_has_been_taken_away() {
    let mut model = Model::new();
    up(&mut model, INTERFACE);
    let whole = model.world.clone();
    let losses = Loss::all(&whole);
    assert!(losses.len() > 10, "{whole:?}");
    for loss in losses {
        loss.happen(&mut model.world);
        assert_ne!(model.world, whole);
        let report = reload(&mut model, INTERFACE, PEER);
        assert_eq!(model.world, whole);
        let told = report.notes.iter().any(|note| note.contains("restored"));
        assert!(told, "{:?}", report.notes);
    }
    let report = reload(&mut model, INTERFACE, PEER);
    let told = report.notes.iter().any(|note| note.contains("restored"));
    assert!(!told, "nothing has changed: {:?}", report.notes);
    model
        .down(&mut Listener::default())
        .expect("alive")
        .expect("down");
    assert_eq!(model.world, World::default());
}

/// A reload says each time that it ignores another number of lanes, and nothing while the file has
/// the device's.
#[test]
fn another_number_of_lanes_waits_for_the_next_up() {
    let with = |lanes: u8| format!("{INTERFACE}\nLanes = {lanes}");
    let mut model = Model::new();
    up(&mut model, &with(2));
    for (file, is_other) in [
        (with(2), false),
        (with(4), true),
        (with(4), true),
        (INTERFACE.to_owned(), true),
        (with(2), false),
    ] {
        let report = reload(&mut model, &file, PEER);
        let told = report.notes.iter().any(|note| note.contains("`Lanes`"));
        assert_eq!(told, is_other, "{file}: {:?}", report.notes);
    }
}

#[test]
fn what_was_taken_away_and_is_not_wanted_any_more_stays_away() {
    let mut model = Model::new();
    up(&mut model, INTERFACE);
    let is_route = |what: &String| what.contains("172.20.0.0/16");
    model.world.of_device.retain(|what| !is_route(what));
    reload(&mut model, INTERFACE, "AllowedIPs = 0.0.0.0/0, ::/0");
    assert!(!model.world.of_device.iter().any(is_route));
}

#[test]
fn what_a_command_of_the_file_has_changed_stays() {
    let hooked = format!("{INTERFACE}\nPostUp = ip route delete 172.20.0.0/16");
    let mut model = Model::new();
    model.hook = Some(|world| {
        world
            .of_device
            .retain(|what| !what.contains("172.20.0.0/16"));
    });
    up(&mut model, &hooked);
    let wanted = model.world.clone();
    // Recorded in the journal, and in the one that a reload writes.
    for _ in 0..2 {
        reload(&mut model, &hooked, PEER);
        assert_eq!(model.world, wanted);
    }
}

fn is_dns(what: &str) -> bool {
    what.starts_with("Dns")
}

#[test]
fn what_another_program_has_changed_before_the_commands_is_not_theirs() {
    for hook in ["PostUp = true", "PreUp = true"] {
        let hooked = format!("{INTERFACE}\n{hook}");
        let mut model = Model::new();
        model.loses_dns = true;
        let report = up(&mut model, &hooked);
        let is_said = report.notes.iter().any(|note| note.contains("PostUp"));
        assert!(!is_said, "{hook}: {:?}", report.notes);
        model.loses_dns = false;
        assert!(!model.world.of_host.iter().any(|what| is_dns(what)));
        reload(&mut model, &hooked, PEER);
        assert!(
            model.world.of_host.iter().any(|what| is_dns(what)),
            "{hook}"
        );
    }
}

#[test]
fn name_servers_that_a_command_changes_are_told() {
    let hooked = format!("{INTERFACE}\nPostUp = resolvectl domain %i corp");
    let mut model = Model::new();
    model.hook = Some(|world| world.of_host.retain(|what| !is_dns(what)));
    let report = up(&mut model, &hooked);
    let words = "while PostUp commands ran";
    let is_said = report.notes.iter().any(|note| note.contains(words));
    assert!(is_said, "{:?}", report.notes);
    reload(&mut model, &hooked, PEER);
    assert!(!model.world.of_host.iter().any(|what| is_dns(what)));
}

fn bypass(destination: &str) -> Bypass {
    Bypass {
        destination: destination.parse().expect("a network"),
        gateway: Some("192.168.1.1".parse().expect("an address")),
        interface: "eth0".to_owned(),
    }
}

/// The same as a route of the model.
fn by_router(destination: &str) -> Route {
    Route {
        gateway: bypass(destination).gateway,
        ..route(destination, 2)
    }
}

fn known(model: &Model) -> Option<Vec<Bypass>> {
    let lock = model.state().lock("wg0", std::time::Duration::ZERO);
    let journal = lock.expect("a lock").journal().expect("readable");
    journal.expect("a journal").bypasses().map(<[_]>::to_vec)
}

#[test]
fn bypasses_that_were_there_are_known_and_later_ones_are_not() {
    for hook in ["", "\nPostUp = true"] {
        let interface = format!("{INTERFACE}{hook}");
        let mut model = Model::new();
        model.routes = vec![by_router("8.8.8.8/32")];
        model.bypasses = vec![bypass("8.8.8.8/32")];
        up(&mut model, &interface);
        assert_eq!(known(&model), Some(vec![bypass("8.8.8.8/32")]));
        model.routes.push(by_router("0.0.0.0/1"));
        model.bypasses.push(bypass("0.0.0.0/1"));
        for _ in 0..2 {
            reload(&mut model, &interface, PEER);
            assert_eq!(known(&model), Some(vec![bypass("8.8.8.8/32")]));
        }
    }
}

#[test]
fn routes_that_bypass_a_tunnel_since_its_file_has_changed_are_known() {
    let mut model = Model::new();
    model.routes.push(by_router("8.8.8.8/32"));
    let peer = "AllowedIPs = 172.20.0.0/16";
    let file = file(INTERFACE, peer);
    let split = model.up(&file, Compatibility::Taupe, &mut Listener::default());
    split.expect("alive").expect("up");
    assert_eq!(known(&model), Some(Vec::new()));
    let report = reload(&mut model, INTERFACE, PEER);
    assert_eq!(known(&model), Some(vec![bypass("8.8.8.8/32")]));
    let listed = bypass::Listed(&[bypass("8.8.8.8/32")]).to_string();
    let is_named = report.notes.iter().any(|note| note.contains(&listed));
    assert!(is_named, "{:?}", report.notes);
}
