//! The class of authorisation that a file needs.
//!
//! A tunnel of class [`Class::User`] concerns only its owner's processes: transparent mode, and rules that
//! select no process of another user. Everything that concerns other users, the machine's network or root's
//! rights needs [`Class::Admin`].
//!
//! Rules of Taupe are alternatives: `AllowedApps = firefox, uid:1000` matches each `firefox`, whoever
//! started it. `AppsOfUser` is a condition on all of them, so `restrict` adds it to a user's file.

use std::fmt;

use taupe_config::application::{AppRules, Application, AppsOfUser, Decision, Process, Rule, User};
use taupe_config::file::{Endpoint, File, Forwarded, KillSwitch, SystemBus, Table, Transparent};

use crate::message::Class;
use crate::name::TunnelName;

/// First characters of the name of each tunnel that needs only [`Class::User`]. A firewall may trust an
/// interface by its name, and root's tunnels have names of their own.
pub const USER_PREFIX: &str = "u-";

/// Peers in a file of class [`Class::User`], at most. Root's processes hold state and send datagrams for each.
pub(crate) const MAX_PEERS: usize = 64;

/// Endpoints in a file of class [`Class::User`] that are names, at most. Root's `taupe up` resolves each.
pub(crate) const MAX_NAMES: usize = 16;

/// The program that calls the service for a user, where the package installs it.
const CLIENT: &str = "/usr/libexec/taupe-dbus";

/// The first port that needs no right.
const FIRST_USER_PORT: u16 = 1024;

/// Reason why a file needs [`Class::Admin`]. `Display` completes the sentence "an administrator must
/// authorise this: …".
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AdminReason {
    /// `PreUp`, `PostUp`, `PreDown` or `PostDown`.
    Hooks,
    /// `Table`.
    Table,
    /// `SaveConfig`.
    SaveConfig,
    /// `Forwarded`.
    Forwarded,
    /// `KillSwitch = all`.
    KillSwitchAll,
    /// `FwMark`.
    FwMark,
    /// `Lanes`.
    Lanes,
    /// `ListenPort` of a privileged port.
    PrivilegedPort(u16),
    /// The file selects no applications: addresses, routes and name servers for everybody.
    AdapterMode,
    /// The file has no `AllowedApps`, so it selects applications of everybody.
    AllApplications,
    /// An application of other users.
    Application(String),
    /// `DisallowedApps`, for everybody.
    DisallowedApps,
    /// `AppsOfUser` of another user.
    AppsOfUser(String),
    /// The name does not begin with [`USER_PREFIX`].
    Name,
}

impl fmt::Display for AdminReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hooks => f.write_str("the file has commands, which run as root"),
            Self::Table => f.write_str("the file sets Table"),
            Self::SaveConfig => f.write_str("the file sets SaveConfig"),
            Self::Forwarded => f.write_str("the file sets Forwarded"),
            Self::KillSwitchAll => f.write_str("KillSwitch = all blocks the traffic of all users"),
            Self::FwMark => {
                f.write_str("FwMark can bypass routing and firewall rules")
            }
            Self::Lanes => f.write_str("Lanes takes processor time of all users"),
            Self::PrivilegedPort(port) => {
                write!(f, "ListenPort {port} is below {FIRST_USER_PORT}")
            }
            Self::AdapterMode => f.write_str(
                "the file selects no applications, so it changes addresses, routes and name servers \
                 of everybody",
            ),
            Self::AllApplications => {
                f.write_str("the file has no AllowedApps, so it selects everybody's applications")
            }
            Self::Application(application) => write!(
                f,
                "{application} selects processes of other users too"
            ),
            Self::DisallowedApps => f.write_str("DisallowedApps selects processes of other users too"),
            Self::AppsOfUser(user) => write!(f, "AppsOfUser = {user} is not you"),
            Self::Name => write!(
                f,
                "the name of a user's own tunnel begins with {USER_PREFIX}; rename the file"
            ),
        }
    }
}

/// Returns the class for some reasons.
#[must_use]
pub fn class_of<T>(reasons: &[T]) -> Class {
    match reasons {
        [] => Class::User,
        _ => Class::Admin,
    }
}

/// Returns all reasons why a file needs [`Class::Admin`] if `caller` brings it up as `tunnel`.
#[must_use]
pub fn reasons(file: &File, tunnel: &TunnelName, caller: u32) -> Vec<AdminReason> {
    if caller == 0 {
        return Vec::new();
    }
    let File {
        interface,
        transparent,
        ..
    } = file;
    let hooks = &interface.hooks;
    let has_hooks = [
        &hooks.pre_up,
        &hooks.post_up,
        &hooks.pre_down,
        &hooks.post_down,
    ];
    let port = interface
        .listen_port
        .filter(|port| (1..FIRST_USER_PORT).contains(port));
    let AppRules {
        allowed,
        disallowed,
        of_user,
        ..
    } = &transparent.apps;
    let only = of_user.as_ref().map(|only| &only.user);
    let is_for_all = only.is_none();
    let of_others = allowed
        .iter()
        .map(|rule| &rule.application)
        .filter(|application| is_for_all && !is_own(application, caller));
    let selects = transparent.first.is_some();
    let simple = [
        (
            has_hooks.iter().any(|commands| !commands.is_empty()),
            AdminReason::Hooks,
        ),
        (interface.table != Table::Auto, AdminReason::Table),
        (interface.save_config, AdminReason::SaveConfig),
        (transparent.forwarded.is_some(), AdminReason::Forwarded),
        (
            transparent.kill_switch == Some(KillSwitch::All),
            AdminReason::KillSwitchAll,
        ),
        (interface.fwmark.is_some(), AdminReason::FwMark),
        (interface.lanes.is_some(), AdminReason::Lanes),
        (!selects, AdminReason::AdapterMode),
        (
            selects && is_for_all && allowed.is_empty(),
            AdminReason::AllApplications,
        ),
        (
            is_for_all && !disallowed.is_empty(),
            AdminReason::DisallowedApps,
        ),
        (!tunnel.as_str().starts_with(USER_PREFIX), AdminReason::Name),
    ];
    let simple = simple.into_iter().filter(|(applies, _)| *applies);
    let mut reasons: Vec<_> = simple.map(|(_, reason)| reason).collect();
    reasons.extend(port.map(AdminReason::PrivilegedPort));
    reasons.extend(of_others.map(|application| AdminReason::Application(application.to_string())));
    let other = only.filter(|only| **only != User::Id(caller));
    reasons.extend(other.map(|user| AdminReason::AppsOfUser(user.to_string())));
    reasons
}

/// Restricts the applications that a file selects to the caller's processes (`AppsOfUser`). A file that
/// names other users, or has a setting that concerns everybody, stays as it is and needs [`Class::Admin`].
pub(crate) fn restrict(file: &mut File, caller: u32) {
    let Transparent {
        apps,
        kill_switch,
        forwarded,
        ..
    } = &mut file.transparent;
    let rules = || apps.allowed.iter().chain(&apps.disallowed);
    let names_other = |rule: &Rule| match &rule.application {
        Application::User(user) => *user != User::Id(caller),
        _ => false,
    };
    let concerns_all =
        *kill_switch == Some(KillSwitch::All) || *forwarded == Some(Forwarded::Tunnel);
    if caller != 0
        && !concerns_all
        && rules().next().is_some()
        && !rules().any(names_other)
        && apps.of_user.is_none()
    {
        apps.of_user = Some(AppsOfUser {
            user: User::Id(caller),
            line: 0,
        });
    }
}

/// Returns true if `AppsOfUser` restricts a file to this user.
#[must_use]
pub(crate) fn is_restricted(file: &File, user: u32) -> bool {
    let only = file.transparent.apps.of_user.as_ref();
    only.is_some_and(|only| only.user == User::Id(user))
}

/// Returns the reason why a file of class [`Class::User`] is too large, if it is.
#[must_use]
pub(crate) fn excess(file: &File) -> Option<String> {
    let is_name = |endpoint: &Option<Endpoint>| matches!(endpoint, Some(Endpoint::Name { .. }));
    let names = file.peers.iter().filter(|peer| is_name(&peer.endpoint));
    match (file.peers.len(), names.count()) {
        (peers, _) if peers > MAX_PEERS => Some(format!(
            "the file has {peers} peers, and a user's file may have {MAX_PEERS}"
        )),
        (_, names) if names > MAX_NAMES => Some(format!(
            "the file has {names} endpoints with a name, and a user's file may have {MAX_NAMES}; write addresses"
        )),
        _ => None,
    }
}

/// Returns true if an application is all processes of a user, and no others.
#[must_use]
pub(crate) fn is_own(application: &Application, user: u32) -> bool {
    *application == Application::User(User::Id(user))
}

/// Returns true if the tunnel would refuse its owner the message bus, and so this service: transparent mode
/// refuses the bus to selected processes if the file has `DNS`, because names can be resolved over it. Only
/// processes that a rule names are refused. A client that inherits the rule of a shell is not recognised.
#[must_use]
pub(crate) fn cuts_off(file: &File, user: u32) -> bool {
    let cgroup = format!("/user.slice/user-{user}.slice");
    let client = Process {
        path: CLIENT.as_bytes(),
        name: b"taupe-dbus",
        cgroup: cgroup.as_bytes(),
        uid: user,
    };
    let transparent = &file.transparent;
    let is_named = matches!(
        transparent.apps.decide(&client),
        (Decision::Tunnel, Some(_))
    );
    is_named && !file.interface.dns.is_empty() && transparent.system_bus != Some(SystemBus::Allow)
}

#[cfg(test)]
mod tests {
    use super::{
        AdminReason, MAX_NAMES, MAX_PEERS, cuts_off, excess, is_restricted, reasons, restrict,
    };
    use taupe_config::file::{Dialect, File, parse};

    const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAGE=";
    const PEER: &str = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBA=";

    fn file(lines: &str) -> File {
        let text = format!(
            "[Interface]\nPrivateKey = {KEY}\nAddress = 10.0.0.2/32\n{lines}\n\
             [Peer]\nPublicKey = {PEER}\nEndpoint = 192.0.2.1:51820\nAllowedIPs = 0.0.0.0/0\n"
        );
        let parsed = parse(text.as_bytes(), Dialect::Taupe);
        parsed
            .file
            .unwrap_or_else(|| panic!("{lines}: {:?}", parsed.diagnostics))
    }

    fn of(lines: &str) -> Vec<AdminReason> {
        reasons(&file(lines), &"u-home".parse().expect("a name"), 1000)
    }

    /// Returns the reasons for a file as the service executes it.
    fn of_restricted(lines: &str) -> Vec<AdminReason> {
        let mut file = file(lines);
        restrict(&mut file, 1000);
        reasons(&file, &"u-home".parse().expect("a name"), 1000)
    }

    const OWN: &str = "AllowedApps = uid:1000\n";

    #[test]
    fn a_tunnel_for_the_callers_processes_is_of_class_user() {
        for more in [
            "",
            "MTU = 1420",
            "DNS = 10.0.0.1",
            "ListenPort = 51820",
            "ListenPort = 0",
            "KillSwitch = app",
            "KillSwitch = off",
            "BypassLanTraffic = true",
            "Children = own",
            "SystemBus = allow",
        ] {
            assert_eq!(of(&format!("{OWN}{more}")), [], "{more}");
            assert_eq!(of_restricted(&format!("{OWN}{more}")), [], "{more}");
        }
    }

    #[test]
    fn any_application_of_the_caller_is_of_class_user() {
        for lines in [
            "AllowedApps = firefox",
            "AllowedApps = /usr/bin/curl, dir:/opt/games, cgroup:/, snap:firefox, uid:1000",
            "DisallowedApps = firefox, cgroup:x.service, uid:1000",
            "AllowedApps = firefox\nDisallowedApps = curl",
            "AllowedApps = firefox\nForwarded = direct",
        ] {
            let mut file = file(lines);
            assert!(!is_restricted(&file, 1000));
            restrict(&mut file, 1000);
            assert!(is_restricted(&file, 1000) && !is_restricted(&file, 1001));
            // Forwarded has a reason of its own.
            let expected: &[_] = match lines.contains("Forwarded") {
                true => &[AdminReason::Forwarded],
                false => &[],
            };
            assert_eq!(of_restricted(lines), expected, "{lines}");
            assert!(!of(lines).is_empty(), "{lines}");
        }
    }

    #[test]
    fn applications_of_another_user_need_an_administrator() {
        for user in ["0", "1001", "root"] {
            let lines = format!("AllowedApps = firefox, uid:1000\nAppsOfUser = {user}");
            let expected = [AdminReason::AppsOfUser(user.to_owned())];
            assert_eq!(of(&lines), expected);
            assert_eq!(of_restricted(&lines), expected);
        }
        for (lines, count) in [
            ("AllowedApps = firefox, uid:1001", 2),
            ("AllowedApps = firefox\nKillSwitch = all", 2),
            ("DisallowedApps = firefox\nForwarded = tunnel", 3),
        ] {
            assert_eq!(of_restricted(lines).len(), count, "{lines}");
        }
    }

    #[test]
    fn each_setting_that_concerns_others_needs_an_administrator() {
        use AdminReason::*;
        for (more, reason) in [
            ("PreUp = true", Hooks),
            ("PostUp = true", Hooks),
            ("PreDown = true", Hooks),
            ("PostDown = true", Hooks),
            ("Table = off", Table),
            ("Table = 100", Table),
            ("SaveConfig = true", SaveConfig),
            ("Forwarded = tunnel", Forwarded),
            ("Forwarded = direct", Forwarded),
            ("KillSwitch = all", KillSwitchAll),
            ("FwMark = 0xca6c", FwMark),
            ("Lanes = 2", Lanes),
            ("ListenPort = 53", PrivilegedPort(53)),
            ("DisallowedApps = curl", DisallowedApps),
        ] {
            assert_eq!(of(&format!("{OWN}{more}")), [reason], "{more}");
            // In a line that is a comment to other programs, too.
            if more.starts_with(['F', 'K', 'D']) && !more.starts_with("FwMark") {
                assert_eq!(of(&format!("{OWN}#@ws:{more}")).len(), 1, "{more}");
            }
        }
    }

    #[test]
    fn applications_of_others_need_an_administrator() {
        for application in [
            "firefox",
            "/usr/bin/curl",
            "/",
            "dir:/opt/games",
            "cgroup:x.service",
            "cgroup:/",
            "uid:0",
            "uid:1001",
            "uid:nobody",
            "flatpak:org.mozilla.firefox",
            "snap:firefox",
        ] {
            let found = of(&format!("AllowedApps = uid:1000, {application}"));
            assert!(
                matches!(&*found, [AdminReason::Application(_)]),
                "{application}: {found:?}"
            );
        }
        assert_eq!(of("KillSwitch = app"), [AdminReason::AllApplications]);
        assert_eq!(of(""), [AdminReason::AdapterMode]);
    }

    #[test]
    fn files_of_users_have_few_peers_and_few_names() {
        let with = |count: usize, host: &str| {
            let peers: String = (0..count)
                .map(|number| {
                    let key = format!("{number:02}{:A<41}=", "");
                    format!("[Peer]\nPublicKey = {key}\nEndpoint = {host}:51820\n")
                })
                .collect();
            let text = format!("[Interface]\nPrivateKey = {KEY}\n{OWN}{peers}");
            let parsed = parse(text.as_bytes(), Dialect::Taupe);
            let problems = parsed.diagnostics;
            excess(&parsed.file.unwrap_or_else(|| panic!("{problems:?}")))
        };
        assert_eq!(with(MAX_PEERS, "192.0.2.1"), None);
        let many = with(MAX_PEERS + 1, "192.0.2.1").expect("too many");
        assert!(many.contains("65 peers"), "{many}");
        assert_eq!(with(MAX_NAMES, "example.org"), None);
        let many = with(MAX_NAMES + 1, "example.org").expect("too many");
        assert!(many.contains("17 endpoints with a name"), "{many}");
    }

    #[test]
    fn root_needs_nobodys_consent() {
        let name = "home".parse().expect("a name");
        assert_eq!(reasons(&file("PostUp = true"), &name, 0), []);
        assert!(reasons(&file(OWN), &name, 1000).contains(&AdminReason::Name));
    }

    #[test]
    fn name_servers_would_cut_the_owner_off() {
        assert!(cuts_off(&file(&format!("{OWN}DNS = 10.0.0.1")), 1000));
        assert!(!cuts_off(
            &file(&format!("{OWN}DNS = 10.0.0.1\nSystemBus = allow")),
            1000
        ));
        assert!(!cuts_off(&file(OWN), 1000));
        for (apps, is_cut_off) in [
            ("AllowedApps = firefox", false),
            ("AllowedApps = uid:1001", false),
            ("AllowedApps = /usr/bin/", false),
            ("AllowedApps = cgroup:/system.slice", false),
            ("AllowedApps = taupe*", true),
            ("AllowedApps = /usr/", true),
            ("AllowedApps = cgroup:/user.slice", true),
            ("AllowedApps = /\nAppsOfUser = 1000", true),
            ("AllowedApps = /\nAppsOfUser = 1001", false),
            // The bus is refused only to processes that a rule names.
            ("DisallowedApps = firefox", false),
        ] {
            let file = file(&format!("{apps}\nDNS = 10.0.0.1"));
            assert_eq!(cuts_off(&file, 1000), is_cut_off, "{apps}");
        }
    }
}
