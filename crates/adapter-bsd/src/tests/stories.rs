//! Tunnels in ordinary and unusual circumstances.

use taupe_os_bsd::System;

use super::model::{Listener, Model};
use crate::fixtures::{address, by, file, freebsd_home, mac_home, machines, net};
use crate::plan::Options;
use crate::{DownError, UpError};

const FULL: &str = "AllowedIPs = 0.0.0.0/0, ::/0";

fn up(model: &mut Model, file: &taupe_config::file::File) -> Listener {
    let mut report = Listener::default();
    let up = model.up(file, Options::default(), &mut report);
    up.expect("alive").unwrap_or_else(|error| panic!("{error}"));
    report
}

/// The report of 2022, on the simulated system: rc.conf has `wireguard_enable="YES"` and
/// `wireguard_interfaces="wg0"`, so the tunnel comes up at boot, in the network of the DHCP server.
/// wg-quick ended at `route add` (`File exists`) and destroyed wg0.
#[test]
fn a_tunnel_to_the_home_network_costs_neither_itself_nor_that_network() {
    let file = file(
        "Address = 10.0.0.2/24",
        "AllowedIPs = 10.0.0.0/24, 192.168.1.0/24",
    );
    let mut model = Model::new(freebsd_home());
    let em0 = 1;
    model.must_reach = vec![(address("192.168.1.1"), em0), (address("192.168.1.9"), em0)];
    let report = up(&mut model, &file);
    let [note] = report.notes.as_slice() else {
        panic!("{:?}", report.notes);
    };
    assert_eq!(
        note.sentence,
        "AllowedIPs 192.168.1.0/24 is not tunnelled: it is the local network of 192.168.1.7 on em0"
    );
    assert!(note.remedy.is_some());
    assert_eq!(model.world.interface_to(address("10.0.0.1")), Some(3));
    assert_eq!(model.world.interface_to(address("198.51.100.9")), Some(em0));
    model
        .down(Some(&file), &mut report_of())
        .expect("alive")
        .expect("down");
    assert_eq!(model.world.snapshot.interfaces.len(), 2);
}

fn report_of() -> Listener {
    Listener::default()
}

#[test]
fn a_full_tunnel_reaches_the_endpoint_and_the_home_network_beside_itself() {
    for (snapshot, interface) in [(freebsd_home(), 1), (mac_home(), 2)] {
        let mut model = Model::new(snapshot);
        model.must_reach = vec![
            (address("192.168.1.1"), interface),
            (address("192.168.1.9"), interface),
            (address("198.51.100.9"), interface),
        ];
        let file = file("Address = 10.0.0.2/24, fd09::2/64\nDNS = 10.0.0.53", FULL);
        let report = up(&mut model, &file);
        let own = model
            .world
            .interface_to(address("8.8.8.8"))
            .expect("a route");
        assert_eq!(model.world.interface_to(address("2001:4860::1")), Some(own));
        assert_eq!(model.world.interface_to(address("10.0.0.53")), Some(own));
        let is_mac = model.world.snapshot.system == System::MacOs;
        assert_eq!(model.world.resolvconf.is_empty(), is_mac);
        if is_mac {
            let services = &model.world.snapshot.services;
            assert!(services.iter().all(|it| it.servers == ["10.0.0.53"]));
        }
        // Host routes come first, so that no datagram loops.
        let first = report
            .steps
            .iter()
            .find(|it| it.contains("route"))
            .expect("a route");
        assert!(first.contains("198.51.100.9"), "{first}");
        assert!(!model.looped);
    }
}

/// Providers give out addresses of the endpoint's own network. The address alone routes that network
/// into the tunnel.
#[test]
fn an_endpoint_in_the_network_of_the_tunnels_address_stays_outside() {
    let endpoint = "198.51.100.9/32";
    for snapshot in machines() {
        for allowed in [
            "198.51.100.0/24",
            "0.0.0.0/0, ::/0",
            "198.51.100.9/32, 10.0.0.0/8",
        ] {
            let mut model = Model::new(snapshot.clone());
            let before = model.world.clone();
            let peer = format!("AllowedIPs = {allowed}");
            let file = file("Address = 198.51.100.2/24", &peer);
            let report = up(&mut model, &file);
            assert!(!model.looped, "{allowed}");
            let way = model.world.interface_to(address("198.51.100.9"));
            assert_eq!(way, before.interface_to(address("198.51.100.9")));
            let is_named = |it: &&taupe_config::plan_note::PlanNote| it.sentence.contains(endpoint);
            let notes: Vec<_> = report.notes.iter().filter(is_named).collect();
            assert_eq!(notes.len(), usize::from(allowed.contains(endpoint)));
            model
                .down(None, &mut report_of())
                .expect("alive")
                .expect("down");
            assert_eq!(model.world, before);
        }
    }
}

#[test]
fn a_killed_process_leaves_routes_that_the_next_up_undoes() {
    let mut model = Model::new(freebsd_home());
    model.keeps_interface = true;
    let file = file("Address = 10.0.0.2/24", "AllowedIPs = 0.0.0.0/0");
    up(&mut model, &file);
    model.kill_device();
    assert_eq!(model.world.snapshot.interfaces.len(), 3);
    // IPv6 stays refused, and the endpoint's route stays.
    assert_eq!(model.world.interface_to(address("2001:4860::1")), None);
    let report = up(&mut model, &file);
    assert!(
        report
            .notes
            .iter()
            .any(|it| it.sentence == "the last wg0 was killed: undoing its changes")
    );
    model
        .down(None, &mut report_of())
        .expect("alive")
        .expect("down");
    assert_eq!(model.world.interface_to(address("2001:4860::1")), Some(1));
    assert_eq!(model.world.snapshot.interfaces.len(), 2);
    // The same with `down`.
    up(&mut model, &file);
    model.kill_device();
    model
        .down(None, &mut report_of())
        .expect("alive")
        .expect("down");
    assert_eq!(model.world.snapshot.interfaces.len(), 2);
}

#[test]
fn after_a_restart_routes_are_forgotten_and_name_servers_of_macos_restored() {
    for snapshot in [freebsd_home(), mac_home()] {
        let mut model = Model::new(snapshot);
        let before = model.world.clone();
        let file = file("Address = 10.0.0.2/24\nDNS = 10.0.0.53", FULL);
        up(&mut model, &file);
        model.kill_device();
        // The machine restarts: routes are as before, settings of services stay.
        model
            .world
            .snapshot
            .routes
            .clone_from(&before.snapshot.routes);
        model.world.resolvconf.clear();
        model.world.boot += 5000;
        // Meanwhile, another program adds the same route.
        let host = net("198.51.100.9/32");
        model
            .world
            .add_route(None, host, by("192.168.1.1"))
            .expect("a route");
        let mut report = Listener::default();
        model.down(None, &mut report).expect("alive").expect("down");
        assert!(
            model
                .world
                .snapshot
                .routes
                .iter()
                .any(|it| it.route.destination == host)
        );
        assert_eq!(model.world.snapshot.services, before.snapshot.services);
        assert!(!model.has_journal());
    }
}

#[test]
fn routes_that_another_program_has_replaced_stay() {
    let mut model = Model::new(freebsd_home());
    let file = file("Address = 10.0.0.2/24", FULL);
    up(&mut model, &file);
    let host = net("198.51.100.9/32");
    model.world.delete_route(host).expect("our route");
    model
        .world
        .add_route(None, host, by("192.168.1.66"))
        .expect("a route");
    model
        .down(None, &mut report_of())
        .expect("alive")
        .expect("down");
    let mut routes = model.world.snapshot.routes.iter();
    assert!(
        routes.any(|it| it.route.destination == host && it.route.next_hop == by("192.168.1.66"))
    );
}

#[test]
fn a_device_of_another_program_is_left_alone() {
    let mut model = Model::new(freebsd_home());
    let file = file("Address = 10.0.0.2/24", FULL);
    let device = crate::Machine::create(&mut model).expect("a device");
    let up = model
        .up(&file, Options::default(), &mut report_of())
        .expect("alive");
    assert!(matches!(up, Err(UpError::Exists(_))));
    let down = model.down(None, &mut report_of()).expect("alive");
    assert!(matches!(down, Err(DownError::NotOurs(_))));
    assert!(model.world.snapshot.interface(device.index).is_some());
}

#[test]
fn hooks_run_in_order_with_the_names_of_the_interface_and_the_tunnel() {
    let lines = "PreUp = a %i\nPostUp = b %I\nPreDown = c %i\nPostDown = d %i";
    for (snapshot, device) in [(freebsd_home(), "wg0"), (mac_home(), "utun4")] {
        let mut model = Model::new(snapshot);
        let file = file(&format!("Address = 10.0.0.2/24\n{lines}"), FULL);
        up(&mut model, &file);
        model
            .down(Some(&file), &mut report_of())
            .expect("alive")
            .expect("down");
        let expected = [
            format!("a {device}"),
            "b wg0".to_owned(),
            format!("c {device}"),
            format!("d {device}"),
        ];
        assert_eq!(model.hooks, expected);
    }
}

#[test]
fn the_devices_process_cleans_up_after_a_signal() {
    let mut model = Model::new(freebsd_home());
    let before = model.world.clone();
    let file = file(
        "Address = 10.0.0.2/24\nPostDown = d %i",
        "AllowedIPs = 0.0.0.0/0",
    );
    up(&mut model, &file);
    model.kill_device();
    let store = model.store.clone();
    crate::clean_up(&mut model, &store, "wg0", &mut report_of()).expect("clean");
    assert_eq!(model.world, before);
    assert_eq!(model.hooks, ["d wg0"]);
    // A `down` has done it already.
    crate::clean_up(&mut model, &store, "wg0", &mut report_of()).expect("clean");
}

#[test]
fn a_saved_file_has_the_addresses_of_the_interface_and_the_prefix_lengths_of_the_file() {
    let mut model = Model::new(freebsd_home());
    let file = file("Address = 192.168.1.50/24\nSaveConfig = true", FULL);
    let tunnel = model
        .up(&file, Options::default(), &mut report_of())
        .expect("alive")
        .expect("up");
    model
        .world
        .add_address(tunnel.device.index, net("10.5.0.1/16"));
    model
        .world
        .add_address(tunnel.device.index, net("fe80::1/64"));
    let path = std::env::temp_dir().join(format!("taupe-save-{}.conf", std::process::id()));
    std::fs::write(&path, "old").expect("a file");
    crate::save(&mut model, "wg0", &path, &file).expect("saved");
    let text = std::fs::read_to_string(&path).expect("a file");
    std::fs::remove_file(&path).expect("a file");
    assert!(
        text.contains("192.168.1.50/24") && text.contains("10.5.0.1/16"),
        "{text}"
    );
    assert!(
        !text.contains("fe80") && text.contains("SaveConfig = true"),
        "{text}"
    );
    // If the file cannot be written, the tunnel stays up.
    let down = model.down(Some(&file), &mut report_of()).expect("alive");
    assert!(matches!(down, Err(DownError::NotSaved { .. })));
    model
        .down(None, &mut report_of())
        .expect("alive")
        .expect("down");
}

#[test]
fn another_fib_gets_the_networks_unchanged_and_nothing_else_happens() {
    let mut snapshot = freebsd_home();
    snapshot.fibs.count = 4;
    let mut model = Model::new(snapshot);
    let before = model.world.clone();
    let file = file("Address = 10.0.0.2/24\nTable = 2", "AllowedIPs = 0.0.0.0/0");
    let up = model.up(&file, Options::default(), &mut report_of());
    let tunnel = up.expect("alive").expect("up");
    let fib: Vec<_> = model.world.snapshot.fib_routes.iter().collect();
    assert!(matches!(fib.as_slice(), [it] if it.route.destination == net("0.0.0.0/0")));
    let request = crate::SnapshotRequest {
        own: Some(tunnel.device.index),
        ..crate::SnapshotRequest::default()
    };
    let snapshot = crate::Machine::snapshot(&mut model, request).expect("a snapshot");
    assert_eq!(crate::follow(&tunnel, &snapshot), []);
    model
        .down(None, &mut report_of())
        .expect("alive")
        .expect("down");
    assert_eq!(model.world, before);
}

/// setfib(1) selects the table of `up`, and an administrator's shell has another one.
#[test]
fn down_undoes_the_routes_in_the_table_of_the_process_that_added_them() {
    let mut snapshot = freebsd_home();
    snapshot.fibs.count = 2;
    snapshot.fibs.own = 1;
    let mut model = Model::new(snapshot);
    let file = file("Address = 10.0.0.2/24", "AllowedIPs = 0.0.0.0/0");
    let before = model.world.clone();
    up(&mut model, &file);
    model.kill_device();
    // Process and shell see each other's table as another one.
    let swap = |model: &mut Model| {
        let snapshot = &mut model.world.snapshot;
        std::mem::swap(&mut snapshot.routes, &mut snapshot.fib_routes);
        snapshot.fibs.own = 1 - snapshot.fibs.own;
    };
    swap(&mut model);
    let mut report = Listener::default();
    model.down(None, &mut report).expect("alive").expect("down");
    let deleted = "route -q -n delete -inet -fib 1 198.51.100.9 -gateway 192.168.1.1";
    assert!(
        report.steps.iter().any(|it| it == deleted),
        "{:?}",
        report.steps
    );
    swap(&mut model);
    assert_eq!(model.world, before);
}

#[test]
fn a_process_that_ends_leaves_the_next_tunnel_of_the_same_name_alone() {
    let mut model = Model::new(freebsd_home());
    let file = file("Address = 10.0.0.2/24", "AllowedIPs = 0.0.0.0/0");
    up(&mut model, &file);
    let before = model.world.clone();
    // The journal is that of another process.
    let path = model.store.journal("wg0");
    let text = std::fs::read_to_string(&path).expect("a journal");
    let own = format!("\"process\":{}", std::process::id());
    assert!(text.contains(&own), "{text}");
    std::fs::write(&path, text.replace(&own, "\"process\":1")).expect("a journal");
    let store = model.store.clone();
    crate::clean_up(&mut model, &store, "wg0", &mut report_of()).expect("nothing to do");
    assert_eq!(model.world, before);
    model
        .down(None, &mut report_of())
        .expect("alive")
        .expect("down");
}

/// Quadratic work would take minutes.
#[test]
fn many_networks_and_endpoints_take_no_long_time() {
    let networks: Vec<String> = (0..20_000_u32)
        .map(|number| {
            format!(
                "{}.{}.{}.0/24",
                20 + number / 65_536,
                number / 256 % 256,
                number % 256
            )
        })
        .collect();
    let peer = format!("AllowedIPs = {}, 0.0.0.0/0, ::/0", networks.join(", "));
    let file = file("Address = 10.0.0.2/24", &peer);
    let mut snapshot = freebsd_home();
    snapshot.endpoints = (0..2_000_u32)
        .map(|number| std::net::Ipv4Addr::from(0x1400_0001 + number * 256).into())
        .collect();
    let plan = crate::plan(
        "wg0",
        &file,
        &snapshot,
        crate::Compatibility::Taupe,
        Options::default(),
    );
    let plan = plan.expect("a plan");
    assert_eq!(plan.routes().count(), 22_004);
    assert!(plan.notes.is_empty());
}

/// A user without rights, and a jail without a network of its own: the creation of an interface fails
/// with `EPERM` or `ENXIO`.
#[test]
fn a_refused_device_is_an_error_of_one_line_and_leaves_nothing() {
    let file = file("Address = 10.0.0.2/24", FULL);
    for (number, advice) in [
        (1, "by root, and in a jail"),
        (6, "a jail lacks the driver"),
    ] {
        let mut model = Model::new(freebsd_home());
        let before = model.world.clone();
        // After two snapshots, the names of endpoints and the boot.
        model.strike(4, super::model::Fault::Refuse(number));
        let up = model.up(&file, Options::default(), &mut report_of());
        let error = up.expect("alive").expect_err("refused").to_string();
        assert!(error.starts_with("`taupe device wg0`: "), "{error}");
        assert!(error.contains(advice) && !error.contains('\n'), "{error}");
        assert!(
            error.ends_with("; everything is as it was before"),
            "{error}"
        );
        assert_eq!(model.world, before);
    }
}
