//! Files that select applications.

use super::{OWN, is_refused};
use crate::message::{Class, Request};
use crate::server::tests::world::{ALICE, World, name};
use std::fs;

#[test]
fn a_file_for_everybodys_applications() {
    let world = World::new();
    for lines in [
        "",
        "KillSwitch = app",
        "AllowedApps = uid:1001",
        "AllowedApps = firefox, uid:root",
        "DisallowedApps = firefox, uid:1001",
        "AllowedApps = firefox\nKillSwitch = all",
        "DisallowedApps = firefox\nForwarded = tunnel",
    ] {
        let reply = world.up(ALICE, "u-home", lines, Class::User);
        is_refused(&world, &reply, "an administrator must authorise this:");
    }
}

#[test]
fn a_file_for_applications_of_another_user() {
    for user in ["0", "root", "1001", "nobody", "no-such-user"] {
        for mark in ["", "#@ws:", "#@taupe:"] {
            for list in ["AllowedApps", "DisallowedApps"] {
                let lines = format!("{mark}{list} = firefox\n{mark}appsofuser = {user}");
                let world = World::new();
                let (class, reasons) = world.needs_up(ALICE, "u-home", &lines);
                assert_eq!(class, Class::Admin, "{lines}");
                assert!(
                    reasons.iter().any(|it| it.contains("is not you")),
                    "{reasons:?}"
                );
                let reply = world.up(ALICE, "u-home", &lines, Class::User);
                is_refused(&world, &reply, "an administrator must authorise this:");
            }
        }
    }
}

/// Whatever a file of class `user` selects, the copy that is executed has the caller's condition.
#[test]
fn the_copy_that_is_executed_is_restricted_to_the_caller() {
    for lines in [
        "DisallowedApps = firefox",
        "AllowedApps = /, cgroup:/",
        "AllowedApps = firefox\n# AppsOfUser = 1001",
        "#@taupe:AllowedApps = firefox",
        "AllowedApps = firefox\nAppsOfUser = 1000",
    ] {
        let world = World::new();
        let reply = world.up(ALICE, "u-home", lines, Class::User);
        assert_eq!(reply.status(), 0, "{reply:?}");
        let copy = world.registry().join("u-home.conf");
        let text = fs::read_to_string(copy).expect("a copy");
        let found = text.lines().filter(|line| line.contains("AppsOfUser"));
        assert_eq!(found.collect::<Vec<_>>(), ["AppsOfUser = 1000"], "{lines}");
    }
    // Two of them are an error, not a choice.
    let world = World::new();
    let lines = "AllowedApps = x\nAppsOfUser = 1000\nAppsOfUser = 0";
    let reply = world.up(ALICE, "u-home", lines, Class::Admin);
    is_refused(&world, &reply, "the file has an error in line 6");
}

/// Root has brought up a tunnel after the caller's, which could take processes from it.
#[test]
fn an_application_beside_a_tunnel_of_root() {
    let world = World::new();
    let reply = world.up(ALICE, "u-home", "AllowedApps = nothing", Class::User);
    assert_eq!(reply.status(), 0, "{reply:?}");
    let edits = |is_allowed| {
        let (tunnel, application) = (name("u-home"), "firefox".to_owned());
        match is_allowed {
            true => Request::AppAllow {
                tunnel,
                application,
            },
            false => Request::AppRemove {
                tunnel,
                application,
            },
        }
    };
    for is_allowed in [true, false] {
        assert_eq!(world.needs(ALICE, &edits(is_allowed)).0, Class::User);
    }
    world.run_by_root("work", true);
    for is_allowed in [true, false] {
        let (class, reasons) = world.needs(ALICE, &edits(is_allowed));
        assert_eq!(class, Class::Admin);
        assert_eq!(reasons, ["work selects applications that may be yours"]);
    }
}

#[test]
fn a_tunnel_that_would_cut_its_owner_off() {
    let world = World::new();
    for apps in [
        OWN,
        "AllowedApps = taupe-dbus",
        "AllowedApps = curl, /usr/",
        "AllowedApps = cgroup:/user.slice",
        "AllowedApps = /usr/libexec/taupe-dbus\nAppsOfUser = 1000",
    ] {
        let lines = format!("{apps}\nDNS = 10.0.0.1");
        let reply = world.up(ALICE, "u-home", &lines, Class::Admin);
        is_refused(&world, &reply, "write SystemBus = allow");
    }
}
