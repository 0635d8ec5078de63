//! Requests of hostile callers, for fuzzers.

use taupe_config::application::{Application, Decision, Process};
use taupe_config::file::{Dialect, File, KillSwitch, Table, parse, print};

use crate::class::reasons;
use crate::link;
use crate::message::{FromFront, MAX_DESCRIPTORS, Request, Source};
use crate::name::TunnelName;
use crate::request::Prepared;
use crate::sealed::seal;

/// The user ID of the callers.
const CALLER: u32 = 1000;

/// Handles `data` as the service does before it has a grant. A NUL ends each part: first the message of
/// the front, then the descriptors' texts.
///
/// If a file needs no administrator, it selects no process of another user, and has none of the settings
/// that concern everybody. The text that would be executed is complete: printed again, it is the same.
///
/// # Panics
///
/// If one of these is wrong.
pub fn service(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == 0);
    let message = parts.next().unwrap_or_default();
    let Ok(FromFront::Prepare { request, .. }) = link::parse::<FromFront>(message) else {
        return;
    };
    let parts = parts.take(MAX_DESCRIPTORS + 1);
    let descriptors = parts.map(|text| seal(text).expect("memory")).collect();
    let Ok(prepared) = Prepared::new(CALLER, request.clone(), descriptors) else {
        return;
    };
    let (Request::Up { tunnel, .. } | Request::Reload { tunnel, .. }) = &request else {
        return;
    };
    let Some((file, text)) = prepared.file() else {
        return;
    };
    let parsed = parse(text.as_bytes(), Dialect::Taupe).file;
    let again = print(&parsed.expect("a valid text"));
    assert!(*again == *text, "printed again, the text differs");
    if reasons(file, tunnel, CALLER).is_empty() {
        check_own(file);
    }
}

/// Checks a file that needs no administrator.
fn check_own(file: &File) {
    let hooks = &file.interface.hooks;
    let hooks = [
        &hooks.pre_up,
        &hooks.post_up,
        &hooks.pre_down,
        &hooks.post_down,
    ];
    assert!(hooks.iter().all(|commands| commands.is_empty()));
    let File {
        interface,
        transparent,
        ..
    } = file;
    assert_eq!(interface.table, Table::Auto);
    assert!(!interface.save_config);
    assert_eq!((interface.fwmark, interface.lanes), (None, None));
    assert!(
        interface
            .listen_port
            .is_none_or(|port| port == 0 || port >= 1024)
    );
    assert!(interface.private_key_file.is_none() && interface.pq_private_key_file.is_none());
    assert!(
        file.peers
            .iter()
            .all(|peer| peer.preshared_key_file.is_none())
    );
    assert_eq!(transparent.forwarded, None);
    assert_ne!(transparent.kill_switch, Some(KillSwitch::All));
    // Without it the file is for the system's routes.
    assert!(transparent.first.is_some());
    let apps = &file.transparent.apps;
    let rules = apps.allowed.iter().chain(&apps.disallowed);
    let named = rules.filter_map(|rule| match &rule.application {
        Application::Executable(path) => Some(path.as_bytes()),
        _ => None,
    });
    for path in named.chain([&b"/usr/bin/curl"[..], b"/x", b""]) {
        let name = path.rsplit(|byte| *byte == b'/').next();
        for uid in [0, CALLER - 1, CALLER + 1, u32::MAX - 1] {
            let process = Process {
                path,
                name: name.unwrap_or_default(),
                cgroup: b"/init.scope",
                uid,
            };
            let (decision, _) = apps.decide(&process);
            assert_eq!(decision, Decision::Bypass, "a process of user {uid}");
        }
    }
}

/// Seeds of [`service`].
///
/// # Panics
///
/// If a message cannot be written.
#[must_use]
pub fn service_seeds() -> Vec<Vec<u8>> {
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAGE=";
    let tunnel: TunnelName = "u-home".parse().expect("a name");
    let message = |request: Request| {
        let message = FromFront::Prepare {
            caller: CALLER,
            request,
        };
        link::text_of(&message).expect("a message")
    };
    let passed = |key_files: &[&str]| Source::Passed {
        key_files: key_files.iter().map(|&path| path.to_owned()).collect(),
    };
    let file = |private: &str, lines: &str| {
        format!(
            "[Interface]\nPrivateKey = {private}\nAddress = 10.0.0.2/32\n{lines}\n[Peer]\n\
             PublicKey = BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA=\n\
             Endpoint = vpn.example.org:51820\nAllowedIPs = 0.0.0.0/0\n"
        )
    };
    let up = |key_files: &[&str], texts: &[&str]| {
        let request = Request::Up {
            tunnel: tunnel.clone(),
            source: passed(key_files),
        };
        let mut seed = message(request);
        for text in texts {
            seed.push(0);
            seed.extend(text.as_bytes());
        }
        seed
    };
    let files = [
        "AllowedApps = uid:1000",
        "AllowedApps = firefox, /usr/bin/curl",
        "AllowedApps = uid:0",
        "AllowedApps = uid:1000, snap:x\nDNS = 10.0.0.1\nSystemBus = allow",
        "DisallowedApps = cgroup:/user.slice",
        "AllowedApps = dir:/\nKillSwitch = all",
        "AllowedApps = /\nForwarded = tunnel",
        "AppsOfUser = 1000\nAllowedApps = curl",
        "AppsOfUser = 0\nAllowedApps = curl, uid:1000",
        "AppsOfUser = 1000\nDisallowedApps = uid:1001",
        "PostUp = id",
        "Table = off",
        "SaveConfig = true\nAllowedApps = *",
        "FwMark = 7\nListenPort = 80\nLanes = 4",
        "# AllowedApps = firefox",
        "#@taupe:AllowedApps = uid:1000\n#@taupe:Children = own",
        "",
    ];
    let mut seeds: Vec<_> = files
        .iter()
        .map(|lines| up(&[], &[&file(key, lines)]))
        .collect();
    let by_file = file("file:./home.key", "AllowedApps = uid:1000");
    seeds.push(up(&["./home.key"], &[&by_file, key]));
    seeds.push(up(&["./home.key"], &[&by_file]));
    seeds.push(up(&["./other.key"], &[&by_file, key]));
    seeds.push(up(&["./home.key", "./home.key"], &[&by_file, key, key]));
    seeds.push(up(&[], &[]));
    let others = [
        Request::List,
        Request::Status {
            tunnel: Some(tunnel.clone()),
            all: false,
            json: true,
        },
        Request::Flows {
            tunnel: None,
            all: true,
            json: false,
        },
        Request::Down {
            tunnel: tunnel.clone(),
        },
        Request::Up {
            tunnel: tunnel.clone(),
            source: Source::Listed,
        },
        Request::AppAllow {
            tunnel: tunnel.clone(),
            application: "firefox".to_owned(),
        },
        Request::AppRemove {
            tunnel: tunnel.clone(),
            application: "../\n".to_owned(),
        },
    ];
    seeds.extend(others.map(message));
    seeds
}
