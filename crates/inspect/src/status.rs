//! State of all tunnels that `taupe up` has set up, and the counters of their eBPF programs.
//!
//! ```text
//! journals, pins, devices, links ─ look (here) ─► judge ─► print, or JSON
//! ```

mod code;
mod devices;
mod judge;
mod peers;
mod settings;
mod way;

use crate::check;
use crate::conf::{self, Conf};
use crate::rules::resolve;
use crate::traffic;
use crate::tunnel::{attached, word_of};
use crate::{endpoint_names, families, names};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use taupe_adapter::journal::Header;
use taupe_adapter::{Compatibility, State as Journals};
use taupe_client::{DeviceStatus, PeerStatus, Suite};
use taupe_config::destinations::table_for_peers;
use taupe_config::file::{File, Forwarded, Key, Peer as FilePeer};
use taupe_os_linux::netlink::{Netlink, NetlinkError};
use taupe_runtime::clock::boot;
use taupe_transparent::capture::{in_effect, missing_dns_feature};
use taupe_transparent::error::TransparentError;
use taupe_transparent::programs::{CaptureMode, MissingFeature, Programs};
use taupe_transparent::state::Lock;
use taupe_transparent::uplinks::{LinkHeader, survey};
use taupe_uapi::show;

pub use code::FindingCode;
use devices::Devices;
pub use devices::warnings;
pub use judge::{Finding, State};
pub use settings::advised;

/// Reason why no state can be shown.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Conf(#[from] conf::Error),
    #[error("{}", crate::advice::error(.0))]
    Fault(#[from] TransparentError),
    #[error(transparent)]
    System(#[from] NetlinkError),
}

/// Collects the state of one tunnel, or of all.
pub fn look(file: Option<&std::ffi::OsStr>) -> Result<Status, Failure> {
    let headers = Journals::default().here();
    let names: BTreeSet<String> = match file {
        // The file may have been removed since.
        Some(word) => {
            let name = named(word, &headers)?;
            BTreeSet::from([name])
        }
        // A tunnel whose kill switch is active may have lost its journal.
        None => {
            let made = headers.iter().map(|header| header.interface.clone());
            made.chain(in_effect()?).collect()
        }
    };
    let killed = Journals::default().killed();
    let devices = Devices::read();
    let tunnels = names.iter().map(|name| {
        let header = headers.iter().find(|header| header.interface == *name);
        Tunnel::look(name, header, killed.contains(name), &devices)
    });
    let tunnels = tunnels.collect::<Result<Vec<_>, _>>()?;
    Ok(Status {
        schema: 1,
        state: tunnels.iter().map(|tunnel| tunnel.state).max(),
        tunnels,
    })
}

/// Returns the tunnel that a word means: an existing one, or that of an existing file.
fn named(word: &std::ffi::OsStr, headers: &[Header]) -> Result<String, Failure> {
    let name = conf::interface(word).map(|name| name.to_string());
    let is_there = |name: &String| {
        headers.iter().any(|header| header.interface == *name)
            || taupe_transparent::capture::is_in_effect(name).unwrap_or(false)
    };
    match name.filter(is_there) {
        Some(name) => Ok(name),
        None => Ok(Conf::find(word, Compatibility::Taupe)?
            .interface
            .to_string()),
    }
}

/// Content of `taupe status --json`. While `schema` stays the same, members may be added, but none
/// is removed or changes its meaning.
#[derive(Serialize)]
pub struct Status {
    pub schema: u32,
    /// Worst state of all tunnels. `None` if there are no tunnels.
    pub state: Option<State>,
    pub tunnels: Vec<Tunnel>,
}

impl Status {
    pub fn json(&self) -> String {
        crate::json::text(self)
    }
}

/// Method by which packets enter a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Selected applications' packets, at the uplink by which they would leave.
    Transparent,
    /// Selected applications' packets, by the mark of their sockets.
    Marks,
    /// Packets of all applications, by routes.
    Adapter,
}

#[derive(Serialize)]
pub struct Tunnel {
    pub interface: String,
    pub state: State,
    /// Reasons why it is not fully up.
    pub findings: Vec<Finding>,
    /// Remarks that are not faults.
    pub notes: Vec<String>,
    /// `None` if there is no such tunnel.
    pub mode: Option<Mode>,
    /// File from which it was set up.
    pub file: Option<PathBuf>,
    /// Tunnel that carries its datagrams.
    pub via: Option<String>,
    /// Time when it was set up, in seconds since 1970.
    pub since: Option<u64>,
    /// Traffic that is blocked if its process ends: `app`, `all` or `off`.
    pub kill_switch: Option<&'static str>,
    /// Rules about applications in its file, as it is now.
    pub rules: Vec<Line>,
    /// True if it also carries packets that this machine forwards.
    pub forwarded: bool,
    pub uplinks: Vec<Uplink>,
    /// Guarantees of transparent mode that do not hold on this system.
    pub gaps: Vec<GapLine>,
    /// Counters of its eBPF programs since it was set up, without zeros.
    pub counters: Vec<Counter>,
    pub peers: Vec<Peer>,
    #[serde(skip)]
    pub lock: Option<Lock>,
}

/// A line of a file that selects an application.
#[derive(Serialize)]
pub struct Line {
    pub line: usize,
    pub key: &'static str,
    pub application: String,
}

/// A link by which selected applications' packets can leave.
#[derive(Serialize)]
pub struct Uplink {
    pub name: String,
    /// True if a filter sends their packets on this link to the tunnel. Other links drop their
    /// packets.
    pub guarded: bool,
}

/// A guarantee of transparent mode that the kernel, or the namespaces in which `up` runs, do not
/// support.
#[derive(Serialize)]
pub struct GapLine {
    /// Stable identifier.
    pub code: &'static str,
    pub text: String,
}

#[derive(Serialize)]
pub struct Counter {
    /// Stable identifier.
    pub name: String,
    pub count: u64,
    /// Its meaning, to be printed after the number.
    pub text: &'static str,
}

/// A peer, without secrets.
#[derive(Serialize)]
pub struct Peer {
    pub public_key: String,
    pub endpoint: Option<String>,
    pub latest_handshake: Option<u64>,
    pub unanswered_handshakes: u32,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// `None` if post-quantum handshakes are not configured.
    pub post_quantum: Option<Handshakes>,
}

/// Post-quantum state of the handshakes with a peer.
#[derive(Serialize)]
pub struct Handshakes {
    /// Setting: `require`, `prefer` or `off`.
    pub wanted: &'static str,
    /// True if the setting is `prefer` and the peer has made a post-quantum handshake, which is
    /// required from then on.
    pub latched: bool,
    /// Post-quantum suite of the session. `None` for an ordinary session, or without a session.
    pub suite: Option<&'static str>,
    /// `ordinary` or the suite of the session. `None` without a session.
    pub session: Option<&'static str>,
    /// Setting and session in words, to be printed after `post-quantum:`.
    pub text: String,
}

impl Handshakes {
    fn of(device: &DeviceStatus, peer: &PeerStatus) -> Option<Self> {
        let wanted = show::handshake_mode(peer)?;
        let now = boot();
        let session = peer.session.filter(|session| session.is_alive(now));
        Some(Self {
            wanted: wanted.name(),
            latched: peer.pq_pinned,
            suite: session.and_then(|session| session.suite.map(Suite::name)),
            session: session.map(|session| session.name()),
            text: show::handshake_state(device, peer, now)?.to_string(),
        })
    }
}

impl Tunnel {
    fn look(
        interface: &str,
        header: Option<&Header>,
        is_killed: bool,
        devices: &Devices,
    ) -> Result<Self, Failure> {
        let (programs, unseen) = match attached(interface, header) {
            // A tunnel that cannot be read does not hide the others.
            Err(fault @ TransparentError::Schema { .. }) => {
                (None, Some((FindingCode::UnknownLayout, fault)))
            }
            Err(fault @ TransparentError::InitRootInaccessible { .. }) => {
                (None, Some((FindingCode::OutOfReach, fault)))
            }
            programs => (programs?, None),
        };
        let device = devices.get(interface);
        let mut tunnel = Self {
            interface: interface.to_owned(),
            state: State::Up,
            findings: Vec::new(),
            notes: Vec::new(),
            mode: programs
                .as_ref()
                .map(|programs| match programs.mode() {
                    CaptureMode::TrafficControl => Mode::Transparent,
                    CaptureMode::Fwmark => Mode::Marks,
                })
                .or(header.filter(|_| unseen.is_none()).map(|_| Mode::Adapter)),
            file: header.map(|header| header.config.clone()),
            via: header.and_then(|header| Some(header.outer.as_ref()?.name.clone())),
            since: header.map(|header| seconds(header.since())),
            kill_switch: programs.as_ref().map(|programs| lock_word(programs.lock())),
            rules: Vec::new(),
            forwarded: false,
            uplinks: Vec::new(),
            gaps: Vec::new(),
            counters: Vec::new(),
            peers: Vec::new(),
            lock: programs.as_ref().map(Programs::lock),
        };
        let unseen = unseen.map(|(code, fault)| Finding::new(code, crate::advice::error(&fault)));
        tunnel.findings.extend(unseen);
        // A tunnel that is being brought up may have neither programs nor peers yet.
        let is_whole = Journals::default().of_running(interface).is_some();
        let is_running = match &programs {
            Some(programs) => programs.is_up() && (is_whole || header.is_none()),
            None => is_whole,
        };
        if let Some(programs) = &programs {
            tunnel.see_programs(programs, is_running)?;
        }
        tunnel.findings.extend(judge::process(&judge::Process {
            interface,
            word: &word_of(interface),
            is_running,
            is_killed,
            is_changing: header.is_some() && !is_whole && !is_killed,
            answers: device.is_some(),
            lock: tunnel.lock,
        }));
        let mut file = header.and_then(file_of);
        if is_running {
            tunnel.findings.extend(settings::findings(interface));
            tunnel.notes.extend(settings::place(interface));
        }
        if is_running && let Some(device) = device {
            let before = tunnel.findings.len();
            tunnel.see_outer(devices);
            let is_cut_off = tunnel.findings.len() > before;
            tunnel.see_device(device, file.as_ref(), is_cut_off);
            // If a peer does not answer, neither do the name servers behind it.
            let all_answer = tunnel.findings.len() == before;
            if all_answer && tunnel.mode == Some(Mode::Transparent) {
                let silent = traffic::ask(interface).silent;
                tunnel
                    .findings
                    .extend(silent.iter().map(judge::name_servers));
            }
            let shared = devices.with_the_same_key(interface, file.as_ref());
            tunnel.findings.extend(shared);
        }
        if let Some(header) = header {
            tunnel.see_file(header, file.as_mut(), is_running);
        }
        tunnel.state = judge::state(is_running, &tunnel.findings);
        Ok(tunnel)
    }

    fn see_programs(&mut self, programs: &Programs, is_running: bool) -> Result<(), Failure> {
        if programs.mode() == CaptureMode::TrafficControl {
            let mut system = Netlink::open()?;
            let own = taupe_os_linux::interface::index(&self.interface).unwrap_or_default();
            let survey = survey(
                &system.links()?,
                &system.addresses()?,
                &system.routes()?,
                own,
            );
            let guarded = programs.guarded()?;
            for link in survey.guarded {
                let is_guarded = guarded.contains(&link.index);
                if is_running && !is_guarded && link.has_default_route {
                    let is_known = link.header != LinkHeader::Unknown;
                    self.findings.push(judge::unguarded(&link.name, is_known));
                }
                self.uplinks.push(Uplink {
                    name: link.name,
                    guarded: is_guarded,
                });
            }
            let gaps = programs.missing_features().into_iter();
            self.gaps = gaps
                .map(|gap| GapLine {
                    code: gap_code(gap),
                    text: crate::advice::missing_feature(gap),
                })
                .collect();
        }
        if is_running && programs.are_flows_refused() {
            self.findings.push(judge::flows_refused());
        }
        let counts = programs
            .counts()?
            .into_iter()
            .filter(|(_, count)| *count > 0);
        self.counters = counts
            .map(|(reason, count)| Counter {
                name: reason.code().to_owned(),
                count,
                text: reason.text(),
            })
            .collect();
        Ok(())
    }

    /// Adds findings about the tunnel that carries this one. If its peers are silent, they are the
    /// cause.
    fn see_outer(&mut self, devices: &Devices) {
        let Some(outer) = &self.via else { return };
        let Some(device) = devices.get(outer) else {
            return;
        };
        for peer in &device.status.peers {
            // Peers of an outer tunnel always have an Endpoint in their file.
            match peers::heard(device, peer, false, Some(device.fwmark)) {
                Some(judge::Heard::Finding(Finding { code, text })) => {
                    let text = peers::of_outer(outer, &text);
                    self.findings.push(Finding::new(code, text));
                }
                Some(judge::Heard::Note(note)) => self.notes.push(peers::of_outer(outer, &note)),
                Some(judge::Heard::NotCalled) | None => {}
            }
        }
    }

    /// Adds findings about peers. If the tunnel `is_cut_off` by the tunnel that carries it, its own
    /// peers' silence is no finding.
    fn see_device(&mut self, device: &taupe_client::Device, file: Option<&File>, is_cut_off: bool) {
        // The path of a tunnel through another one lies in a network that this machine cannot
        // examine.
        let mark = self.via.is_none().then_some(device.fwmark);
        let mut not_called = 0;
        for peer in &device.status.peers {
            let key = peers::encoded(peer);
            let is_caller = peers::is_caller(peer, file);
            match peers::heard(device, peer, is_caller, mark) {
                Some(judge::Heard::Finding(_)) if is_cut_off => {}
                Some(judge::Heard::Finding(finding)) => {
                    self.findings.push(finding);
                    let doubt = self.via.as_deref().map(judge::one_way);
                    self.notes
                        .extend(doubt.filter(|doubt| !self.notes.contains(doubt)));
                }
                Some(judge::Heard::Note(note)) => self.notes.push(note),
                Some(judge::Heard::NotCalled) => not_called += 1,
                None => {}
            }
            self.peers.push(Peer {
                public_key: key,
                endpoint: peer.endpoint.map(|endpoint| endpoint.to_string()),
                latest_handshake: peer.latest_handshake.map(|at| at.as_secs()),
                unanswered_handshakes: peer.unanswered.map_or(0, |silence| silence.initiations),
                received_bytes: peer.rx_bytes,
                sent_bytes: peer.tx_bytes,
                post_quantum: Handshakes::of(&device.status, peer),
            });
        }
        self.notes
            .extend(judge::not_called(not_called, device.status.peers.len()));
    }

    /// Adds what the file contains now.
    fn see_file(&mut self, header: &Header, file: Option<&mut File>, is_running: bool) {
        let path = &header.config;
        let Some(file) = file else {
            let shown = path.display();
            self.notes.push(format!(
                "{shown} cannot be read or has errors (`taupe check {shown}` says which)"
            ));
            return;
        };
        if header.is_edited() {
            self.notes.push(format!(
                "{0} has been edited since; `taupe reload {0}` has the tunnel follow",
                path.display()
            ));
        }
        if self.mode == Some(Mode::Adapter) {
            return;
        }
        let apps = &file.transparent.apps;
        for (key, list) in [
            (Key::AllowedApps, &apps.allowed),
            (Key::DisallowedApps, &apps.disallowed),
        ] {
            self.rules.extend(list.iter().map(|rule| Line {
                line: rule.line,
                key: key.name(),
                application: rule.application.to_string(),
            }));
        }
        self.forwarded = file.transparent.forwarded == Some(Forwarded::Tunnel);
        if !is_running || self.mode.is_none() {
            return;
        }
        for text in endpoint_names::without_address(&self.interface, file) {
            self.findings
                .push(Finding::new(FindingCode::EndpointUnresolved, text));
        }
        let past_tunnel = |text| Finding::new(FindingCode::NamesPastTunnel, text);
        if self.mode != Some(Mode::Transparent) {
            self.findings.extend(names::way_past().map(past_tunnel));
            return;
        }
        if let Ok(Some(gap)) = missing_dns_feature(&self.interface) {
            self.findings
                .push(past_tunnel(crate::advice::missing_feature(gap)));
        }
        // A file that could not be brought up gets no warnings.
        let mut rules = file.transparent.apps.clone();
        if resolve(&mut rules).is_ok() && !file.interface.addresses.is_empty() {
            let routed: Vec<_> = file.peers.iter().flat_map(FilePeer::routed).collect();
            let names = match file.interface.dns.as_slice() {
                [] => names::way_past().into_iter().collect(),
                servers => names::doubts(servers, &routed),
            };
            self.findings.extend(names.into_iter().map(past_tunnel));
            let bypass_lan = file.transparent.bypass_lan.unwrap_or(false);
            let destinations = table_for_peers(&file.peers, bypass_lan);
            // Refused destinations are blocked, and applications try the other address family.
            let lacks = families::without_route(&destinations);
            self.notes.extend(lacks.iter().map(ToString::to_string));
        }
    }
}

/// Reads the current content of a tunnel's file. `None` if it cannot be read or has errors.
fn file_of(header: &Header) -> Option<File> {
    let path = &header.config;
    let text = check::read(path).ok()?;
    check::parse_with_available_keys(path, &text).file
}

/// Returns the file's word for a kill switch.
const fn lock_word(lock: Lock) -> &'static str {
    match lock {
        Lock::Selected => "app",
        Lock::All => "all",
        Lock::Off => "off",
    }
}

/// Returns the word for a gap in JSON.
const fn gap_code(gap: MissingFeature) -> &'static str {
    match gap {
        MissingFeature::SocketHandover => "handover",
        MissingFeature::SocketFamilies => "families",
        MissingFeature::Forwarding => "forwarding",
        MissingFeature::NameServices => "services",
        MissingFeature::Nfqueue => "queues",
        MissingFeature::PidNamespaces => "outsiders",
    }
}

/// Returns the time since the Unix epoch.
pub fn now() -> Duration {
    UNIX_EPOCH.elapsed().unwrap_or_default()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
