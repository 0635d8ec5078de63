//! Requests of users to a service with simulated commands.

mod hostile;
mod world;

use crate::message::{Answer, Class, Request, Source};
use std::collections::BTreeSet;
use world::{ALICE, BOB, World, name, refused, seals};

#[test]
fn a_user_brings_a_tunnel_up_and_takes_it_down() {
    let world = World::new();
    let answer = world.up(ALICE, "u-home", "AllowedApps = uid:1000", Class::User);
    assert_eq!(answer.status(), 0, "{answer:?}");
    let copy = world.registry().join("u-home.conf");
    assert_eq!(
        world.calls(),
        [format!("up {} transparent", copy.display())]
    );
    let text = std::fs::read_to_string(&copy).expect("a copy");
    assert!(text.contains("AllowedApps = uid:1000"), "{text}");
    assert!(text.contains("\nAppsOfUser = 1000\n"), "{text}");

    let down = Request::Down {
        tunnel: name("u-home"),
    };
    assert_eq!(world.needs(ALICE, &down).0, Class::User);
    let answer = world.call(ALICE, down, Class::User);
    assert_eq!(answer.status(), 0, "{answer:?}");
    assert_eq!(world.calls(), [format!("down {}", copy.display())]);
    assert!(!copy.exists(), "the copy is left");
    assert_eq!(world.files(), BTreeSet::new());
}

#[test]
fn a_failed_up_leaves_nothing() {
    let world = World::new();
    world.fail(1);
    let answer = world.up(ALICE, "u-home", "AllowedApps = uid:1000", Class::User);
    assert_eq!(answer.status(), 1, "{answer:?}");
    assert_eq!(world.files(), BTreeSet::new());
}

#[test]
fn a_failed_reload_restores_the_copy() {
    let world = World::new();
    world.up(ALICE, "u-home", "AllowedApps = uid:1000", Class::User);
    let copy = world.registry().join("u-home.conf");
    let before = std::fs::read(&copy).expect("a copy");
    world.fail(1);
    let request = Request::Reload {
        tunnel: name("u-home"),
        source: Source::Passed {
            key_files: Vec::new(),
        },
    };
    let fds = seals(&["AllowedApps = uid:1000\nMTU = 1300"]);
    let answer = world.call_with(ALICE, request, fds, Class::User);
    assert_eq!(answer.status(), 1, "{answer:?}");
    assert_eq!(std::fs::read(&copy).expect("a copy"), before);
}

#[test]
fn an_administrator_can_permit_a_full_tunnel() {
    let world = World::new();
    let (class, reasons) = world.needs_up(ALICE, "home", "PostUp = echo");
    assert_eq!(class, Class::Admin);
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    let answer = world.up(ALICE, "home", "PostUp = echo", Class::Admin);
    assert_eq!(answer.status(), 0, "{answer:?}");
    let copy = world.registry().join("home.conf");
    assert_eq!(world.calls(), [format!("up {}", copy.display())]);
}

#[test]
fn members_of_the_group_bring_up_listed_tunnels() {
    let world = World::new();
    world.list("office", "PostUp = echo");
    let up = Request::Up {
        tunnel: name("office"),
        source: Source::Listed,
    };
    // The test's group is that of root, whose only member is root.
    let answer = world.call(ALICE, up.clone(), Class::Admin);
    assert!(
        refused(&answer).contains("no tunnel office is listed for you"),
        "{answer:?}"
    );
    let answer = world.call(0, up, Class::User);
    assert_eq!(answer.status(), 0, "{answer:?}");
    let down = Request::Down {
        tunnel: name("office"),
    };
    assert_eq!(world.needs(0, &down).0, Class::User);
    assert_eq!(world.needs(ALICE, &down).0, Class::Admin);
}

#[test]
fn everybody_sees_only_their_own() {
    let world = World::new();
    world.up(ALICE, "u-home", "AllowedApps = uid:1000", Class::User);
    world.up(BOB, "u-work", "AllowedApps = uid:1001", Class::User);
    world.calls();
    let status = |tunnel: Option<&str>, all| Request::Status {
        tunnel: tunnel.map(name),
        all,
        json: false,
    };
    world.call(ALICE, status(None, false), Class::User);
    world.call(ALICE, status(Some("u-home"), false), Class::User);
    assert_eq!(world.calls(), ["status u-home", "status u-home"]);
    for other in [
        status(Some("u-work"), false),
        status(None, true),
        status(Some("none"), false),
    ] {
        assert_eq!(world.needs(ALICE, &other).0, Class::Admin, "{other:?}");
        assert!(refused(&world.call(ALICE, other, Class::User)).contains("an administrator"));
    }
    assert_eq!(world.calls(), Vec::<String>::new());
    world.call(ALICE, status(None, true), Class::Admin);
    assert_eq!(world.calls(), ["status of all"]);

    let flows = |tunnel: Option<&str>, all| Request::Flows {
        tunnel: tunnel.map(name),
        all,
        json: false,
    };
    world.call(ALICE, flows(None, false), Class::User);
    world.call(ALICE, flows(Some("u-home"), false), Class::User);
    world.call(ALICE, flows(Some("u-work"), false), Class::Admin);
    assert_eq!(
        world.calls(),
        [
            "flows of Some(1000) in None explained Some([\"u-home\"])",
            "flows of Some(1000) in Some(\"u-home\") explained Some([\"u-home\"])",
            "flows of None in Some(\"u-work\") explained None",
        ]
    );
}

#[test]
fn lists_name_own_and_listed_tunnels() {
    let world = World::new();
    world.list("office", "PostUp = echo");
    world.up(ALICE, "u-home", "AllowedApps = uid:1000", Class::User);
    let list = |caller| world.call(caller, Request::List, Class::User).output();
    assert_eq!(list(ALICE), "u-home up yours\n");
    assert_eq!(list(BOB), "");
    assert_eq!(list(0), "office down listed\n");
}

#[test]
fn an_application_of_the_owner_needs_nobodys_consent() {
    let world = World::new();
    world.up(ALICE, "u-home", "AllowedApps = uid:1000", Class::User);
    world.calls();
    let allow = |application: &str| Request::AppAllow {
        tunnel: name("u-home"),
        application: application.to_owned(),
    };
    let remove = Request::AppRemove {
        tunnel: name("u-home"),
        application: "firefox".to_owned(),
    };
    for request in [allow("uid:1000"), allow("firefox"), allow("/"), remove] {
        assert_eq!(world.needs(ALICE, &request).0, Class::User, "{request:?}");
    }
    assert_eq!(world.needs(BOB, &allow("uid:1001")).0, Class::Admin);
    let answer = world.call(ALICE, allow("firefox"), Class::User);
    assert_eq!(answer.status(), 0, "{answer:?}");
    // It still takes nothing from another user's tunnel.
    let (class, reasons) = world.needs_up(BOB, "u-work", "AllowedApps = uid:1001");
    assert_eq!(class, Class::User, "{reasons:?}");
}

/// With an administrator's consent, an own tunnel may select applications of everybody.
#[test]
fn an_application_in_an_unrestricted_tunnel_needs_an_administrator() {
    for lines in [
        "AllowedApps = firefox\nKillSwitch = all",
        "AllowedApps = firefox, uid:1001",
        "AllowedApps = firefox\nAppsOfUser = 1001",
    ] {
        let world = World::new();
        let answer = world.up(ALICE, "u-home", lines, Class::Admin);
        assert_eq!(answer.status(), 0, "{answer:?}");
        world.calls();
        let edit = |application: &str| Request::AppAllow {
            tunnel: name("u-home"),
            application: application.to_owned(),
        };
        assert_eq!(world.needs(ALICE, &edit("curl")).0, Class::Admin, "{lines}");
        let answer = world.call(ALICE, edit("curl"), Class::User);
        assert!(
            refused(&answer).contains("curl selects processes of other users"),
            "{answer:?}"
        );
        assert_eq!(world.calls(), Vec::<String>::new());
    }
}

#[test]
fn an_edit_does_not_cut_the_owner_off() {
    let world = World::new();
    world.up(
        ALICE,
        "u-home",
        "AllowedApps = firefox\nDNS = 10.0.0.1",
        Class::User,
    );
    world.calls();
    for (application, is_refused) in [("curl", false), ("/", true), ("taupe-dbus", true)] {
        let allow = Request::AppAllow {
            tunnel: name("u-home"),
            application: application.to_owned(),
        };
        let answer = world.call(ALICE, allow, Class::Admin);
        if is_refused {
            assert!(refused(&answer).contains("SystemBus = allow"), "{answer:?}");
            assert_eq!(world.calls(), Vec::<String>::new());
        } else {
            assert_eq!((answer.status(), world.calls().len()), (0, 1));
        }
    }
}

/// A tunnel for another user's applications is not in the way.
#[test]
fn a_tunnel_of_root_for_one_user() {
    let world = World::new();
    world.run_by_root("vpn", true);
    for (user, class) in [(BOB, Class::User), (ALICE, Class::Admin)] {
        world.restrict("vpn", user);
        let (found, reasons) = world.needs_up(ALICE, "u-home", "AllowedApps = firefox");
        assert_eq!(found, class, "{reasons:?}");
    }
}

#[test]
fn a_tunnel_of_root_that_selects_applications_is_not_circumvented() {
    let world = World::new();
    world.run_by_root("vpn", true);
    let (class, reasons) = world.needs_up(ALICE, "u-home", "AllowedApps = uid:1000");
    assert_eq!(class, Class::Admin, "{reasons:?}");
    assert!(
        reasons
            .iter()
            .any(|it| it.contains("vpn selects applications")),
        "{reasons:?}"
    );
}

/// An administrator who consents to applications of everybody does not consent to routes by that.
#[test]
fn a_file_that_selects_applications_never_falls_back_to_routes() {
    let world = World::new();
    for (tunnel, lines, granted, mode) in [
        ("u-1", "AllowedApps = firefox", Class::User, " transparent"),
        ("u-2", "AllowedApps = uid:0", Class::Admin, " transparent"),
        ("u-3", "KillSwitch = app", Class::Admin, " transparent"),
        ("u-4", "", Class::Admin, ""),
    ] {
        let answer = world.up(ALICE, tunnel, lines, granted);
        assert_eq!(answer.status(), 0, "{answer:?}");
        let copy = world.registry().join(format!("{tunnel}.conf"));
        assert_eq!(world.calls(), [format!("up {}{mode}", copy.display())]);
    }
}

#[test]
fn a_file_for_a_tunnel_in_another_mode_needs_an_administrator() {
    let world = World::new();
    let own = "AllowedApps = uid:1000";
    world.up(ALICE, "u-home", own, Class::User);
    world.calls();
    assert_eq!(world.reload(ALICE, "u-home", own, Class::User).status(), 0);
    world.fall_back("u-home");
    world.calls();
    let answer = world.reload(ALICE, "u-home", own, Class::User);
    assert!(
        refused(&answer).contains("addresses and routes of everybody"),
        "{answer:?}"
    );
    assert_eq!(world.calls(), Vec::<String>::new());
    assert_eq!(world.reload(ALICE, "u-home", own, Class::Admin).status(), 0);
}

#[test]
fn a_file_does_not_take_applications_from_a_later_tunnel_of_root() {
    let world = World::new();
    let own = "AllowedApps = uid:1000";
    world.up(ALICE, "u-home", own, Class::User);
    world.run_by_root("vpn", true);
    world.calls();
    let answer = world.reload(ALICE, "u-home", own, Class::User);
    assert!(
        refused(&answer).contains("vpn selects applications"),
        "{answer:?}"
    );
    assert_eq!(world.calls(), Vec::<String>::new());
}

/// Not even an administrator's consent lets a request edit a file of root.
#[test]
fn applications_of_roots_tunnels_are_not_edited() {
    let world = World::new();
    world.list("office", "");
    let up = Request::Up {
        tunnel: name("office"),
        source: Source::Listed,
    };
    assert_eq!(world.call(0, up, Class::User).status(), 0);
    world.run_by_root("vpn", true);
    world.calls();
    for tunnel in ["office", "vpn"].map(name) {
        let application = "uid:1000".to_owned();
        for request in [
            Request::AppAllow {
                tunnel: tunnel.clone(),
                application: application.clone(),
            },
            Request::AppRemove {
                tunnel: tunnel.clone(),
                application,
            },
        ] {
            for caller in [0, ALICE] {
                let answer = world.call(caller, request.clone(), Class::Admin);
                assert!(
                    refused(&answer).contains("has a file of root"),
                    "{answer:?}"
                );
            }
        }
    }
    assert_eq!(world.calls(), Vec::<String>::new());
}

#[test]
fn a_tunnel_that_root_brought_up_in_place_of_a_users_is_roots() {
    let world = World::new();
    world.up(ALICE, "u-home", "AllowedApps = uid:1000", Class::User);
    world.run_by_root("u-home", false);
    let down = Request::Down {
        tunnel: name("u-home"),
    };
    assert_eq!(world.needs(ALICE, &down).0, Class::Admin);
}

#[test]
fn the_front_of_another_version_is_told_so() {
    let world = World::new();
    let answer = world.raw(br#"{"version":7,"message":{"Anything":1}}"#);
    let Answer::Refused { reason } = answer else {
        panic!("{answer:?}");
    };
    assert!(reason.contains("version 7"), "{reason}");
}
