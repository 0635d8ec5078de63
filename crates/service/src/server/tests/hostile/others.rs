//! Requests about tunnels of others.

use super::OWN;
use crate::message::{Class, Request, Source};
use crate::server::tests::world::{ALICE, BOB, World, name, refused, seals};

/// Refuses these requests of Alice about a tunnel of Bob, whatever the file.
fn is_not_hers(request: &Request) {
    is_refused(request, "is not your tunnel");
}

fn is_refused(request: &Request, words: &str) {
    let world = World::new();
    world.up(BOB, "u-work", "AllowedApps = uid:1001", Class::User);
    world.run_by_root("root", false);
    let files = world.files();
    world.calls();
    let fds = || match request {
        Request::Reload { .. } => seals(&[OWN]),
        _ => Vec::new(),
    };
    let reply = world.call_with(ALICE, request.clone(), fds(), Class::User);
    assert!(refused(&reply).contains(words), "{reply:?}");
    assert_eq!(world.calls(), Vec::<String>::new());
    assert_eq!(world.files(), files);
}

#[test]
fn down_of_anothers_tunnel() {
    for tunnel in ["u-work", "root"] {
        is_not_hers(&Request::Down {
            tunnel: name(tunnel),
        });
    }
}

#[test]
fn status_of_anothers_tunnel() {
    for tunnel in ["u-work", "root"] {
        is_not_hers(&Request::Status {
            tunnel: Some(name(tunnel)),
            all: false,
            json: true,
        });
    }
}

#[test]
fn flows_of_anothers_tunnel() {
    for tunnel in ["u-work", "root"] {
        is_not_hers(&Request::Flows {
            tunnel: Some(name(tunnel)),
            all: false,
            json: true,
        });
    }
}

#[test]
fn reload_of_anothers_tunnel() {
    let source = Source::Passed {
        key_files: Vec::new(),
    };
    is_not_hers(&Request::Reload {
        tunnel: name("u-work"),
        source,
    });
}

#[test]
fn applications_of_anothers_tunnel() {
    for (tunnel, words) in [
        ("u-work", "is not your tunnel"),
        ("root", "has a file of root"),
    ] {
        let (tunnel, application) = (name(tunnel), "uid:1000".to_owned());
        let allow = Request::AppAllow {
            tunnel: tunnel.clone(),
            application: application.clone(),
        };
        is_refused(&allow, words);
        let remove = Request::AppRemove {
            tunnel,
            application,
        };
        is_refused(&remove, words);
    }
}
