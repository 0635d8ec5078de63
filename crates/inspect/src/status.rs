//! State of all tunnels that `taupe up` has set up, and the counters of their eBPF programs.
//!
//! ```text
//! journals, pins, devices, links ─ status ─► findings ─► text or JSON
//! ```

mod code;
mod devices;
mod endpoint_path;
mod files;
mod findings;
mod peers;
mod settings;
mod sources;

use crate::check;
use crate::conf;
use crate::rules::resolve;
use crate::traffic;
use crate::tunnel::{file_argument, open_maps};
use crate::{dns, endpoint_names, families};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use taupe_adapter::journal::Header;
use taupe_adapter::{Journals, State as JournalFolder};
use taupe_client::PublicKey;
use taupe_config::application::AppRules;
use taupe_config::destinations::table_for_peers;
use taupe_config::file::{File, Forwarded, Key, Peer as FilePeer, PeerName};
use taupe_os_linux::netlink::{Netlink, NetlinkError};
use taupe_transparent::capture::missing_dns_feature;
use taupe_transparent::error::TransparentError;
use taupe_transparent::programs::{CaptureMode, MissingFeature, TunnelMaps};
use taupe_transparent::state::Lock;
use taupe_transparent::uplinks::{LinkHeader, survey};

pub use code::FindingCode;
use devices::Devices;
pub use devices::{peers_with_endpoint, warnings};
pub use files::Files;
pub use findings::{Finding, SESSION_LIFETIME, State, USUAL_CAUSES};
use peers::FilePeers;
pub(crate) use peers::encoded;
pub use peers::{Peer, PeerLanes, PostQuantumStatus};
pub use settings::with_advice;
use sources::Sources;

/// Reason why no state can be shown.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum StatusError {
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error(transparent)]
    Fault(#[from] TransparentError),
    #[error(transparent)]
    System(#[from] NetlinkError),
}

/// Collects the state of one tunnel, or of all.
///
/// # Errors
/// See [`StatusError`].
pub fn look(file: Option<&OsStr>) -> Result<Status, StatusError> {
    Sources::read(file, &mut Files::default())?.status()
}

/// State of all tunnels, and parts of what it follows from.
pub(crate) struct Looked {
    pub(crate) status: Status,
    /// Devices whose interfaces are in this network namespace, or that carry one of the tunnels, with
    /// their names.
    pub(crate) devices: Vec<(String, taupe_client::Device)>,
    /// Rules of each tunnel's file, by the tunnel's name. Tunnels without rules are left out.
    pub(crate) rules: BTreeMap<String, AppRules>,
}

/// As [`look`] for all tunnels. Files that have not changed since an earlier call are not parsed again.
pub(crate) fn look_with_devices(files: &mut Files) -> Result<Looked, StatusError> {
    let sources = Sources::read(None, files)?;
    let status = sources.status()?;
    let outer: HashSet<_> = status
        .tunnels
        .iter()
        .filter_map(|it| it.via.as_deref())
        .collect();
    let is_here =
        |name: &str| taupe_os_linux::interface::index(name).is_some() || outer.contains(name);
    let with_rules = sources.tunnels.into_iter().filter_map(|(name, file)| {
        let rules = file?.transparent.apps.clone();
        (!rules.allowed.is_empty() || !rules.disallowed.is_empty()).then_some((name, rules))
    });
    let rules = with_rules.collect();
    // Sockets of other network namespaces may be in the same folder.
    let devices: BTreeMap<_, _> = sources.devices.into_all().into_iter().collect();
    let devices = devices.into_iter().filter(|(name, _)| is_here(name));
    let devices = devices.collect();
    Ok(Looked {
        status,
        devices,
        rules,
    })
}

/// Content of `taupe status --json`. While `schema` stays the same, members may be added, but none
/// is removed or changes its meaning.
#[derive(Serialize)]
pub struct Status {
    /// Version of the format.
    pub schema: u32,
    /// Worst state of all tunnels. `None` if there are no tunnels.
    pub state: Option<State>,
    /// State of each tunnel, by name.
    pub tunnels: Vec<Tunnel>,
}

impl Status {
    /// Formats the status as a JSON document.
    #[must_use]
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

/// State of a tunnel.
#[derive(Serialize)]
pub struct Tunnel {
    /// Name of the tunnel and its interface.
    pub interface: String,
    /// State of the tunnel as a whole.
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
    pub rules: Vec<RuleLine>,
    /// The only user whose applications these rules select (`AppsOfUser`).
    pub apps_of_user: Option<String>,
    /// True if it also carries packets that this machine forwards.
    pub forwarded: bool,
    /// Links by which selected applications' packets can leave.
    pub uplinks: Vec<Uplink>,
    /// Guarantees of transparent mode that do not hold on this system.
    pub gaps: Vec<GapLine>,
    /// Counters of its eBPF programs since it was set up, without zeros.
    pub counters: Vec<Counter>,
    /// Peers of the device.
    pub peers: Vec<Peer>,
    /// Kill switch, if the tunnel selects applications.
    #[serde(skip)]
    pub(crate) lock: Option<Lock>,
}

/// A line of a file that selects an application.
#[derive(Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct RuleLine {
    pub line: usize,
    pub key: &'static str,
    pub application: String,
}

/// A link by which selected applications' packets can leave.
#[derive(Serialize)]
pub struct Uplink {
    /// Name of the link.
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
    /// Sentence with the consequence.
    pub text: String,
}

/// A counter of a tunnel's eBPF programs.
#[derive(Serialize)]
pub struct Counter {
    /// Stable identifier.
    pub name: String,
    /// Number of packets.
    pub count: u64,
    /// Its meaning, to be printed after the number.
    pub text: &'static str,
}

impl Tunnel {
    /// Returns a tunnel without properties.
    #[must_use]
    pub fn named(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            state: State::Up,
            findings: Vec::new(),
            notes: Vec::new(),
            mode: None,
            file: None,
            via: None,
            since: None,
            kill_switch: None,
            rules: Vec::new(),
            apps_of_user: None,
            forwarded: false,
            uplinks: Vec::new(),
            gaps: Vec::new(),
            counters: Vec::new(),
            peers: Vec::new(),
            lock: None,
        }
    }

    fn look(
        interface: &str,
        file: Option<&File>,
        journals: &Journals,
        devices: &Devices,
    ) -> Result<Self, StatusError> {
        let header = journals.header(interface);
        let word = file_argument(interface, header.map(|header| &*header.config));
        let (maps, unreadable) = match open_maps(interface, header) {
            // A tunnel that cannot be read does not hide the others.
            Err(fault @ TransparentError::Schema { .. }) => {
                (None, Some((FindingCode::UnknownLayout, fault)))
            }
            Err(fault @ TransparentError::InitRootInaccessible { .. }) => {
                (None, Some((FindingCode::OutOfReach, fault)))
            }
            maps => (maps?, None),
        };
        let device = devices.get(interface);
        let mut tunnel = Self {
            mode: maps
                .as_ref()
                .map(|maps| match maps.mode() {
                    CaptureMode::TrafficControl => Mode::Transparent,
                    CaptureMode::Fwmark => Mode::Marks,
                })
                .or(header
                    .filter(|_| unreadable.is_none())
                    .map(|_| Mode::Adapter)),
            file: header.map(|header| header.config.clone()),
            via: header.and_then(|header| Some(header.outer.as_ref()?.name.clone())),
            since: header.map(|header| unix_seconds(header.since())),
            kill_switch: maps.as_ref().map(|maps| kill_switch_word(maps.lock())),
            lock: maps.as_ref().map(TunnelMaps::lock),
            ..Self::named(interface)
        };
        match unreadable {
            // No fault: `taupe status NAME` has the tunnel's own program look.
            Some((FindingCode::UnknownLayout, _)) if device.is_some() => tunnel.notes.push(format!(
                "another version of Taupe has brought {interface} up; `taupe status {interface}` \
                 says more"
            )),
            Some((code, fault)) => {
                let text = crate::advice::error(&fault);
                tunnel.findings.push(Finding::new(code, text));
            }
            None => {}
        }
        // A tunnel that is being brought up may have neither programs nor peers yet.
        let is_complete = journals.is_running(interface);
        let is_killed = journals.is_killed(interface);
        let is_running = match &maps {
            Some(maps) => maps.is_up() && (is_complete || header.is_none()),
            None => is_complete,
        };
        if let Some(maps) = &maps {
            tunnel.add_maps(maps, is_running)?;
        }
        tunnel
            .findings
            .extend(findings::process_finding(&findings::ProcessObservation {
                interface,
                word: &word,
                is_running,
                is_killed,
                is_changing: header.is_some() && !is_complete && !is_killed,
                answers: device.is_some(),
                lock: tunnel.lock,
                blocks: journals.blocks(interface),
            }));
        if is_running {
            tunnel.findings.extend(settings::findings(interface, &word));
            tunnel
                .notes
                .extend(settings::relocation_note(journals, interface));
        }
        if is_running && let Some(device) = device {
            let before = tunnel.findings.len();
            tunnel.add_outer(devices);
            let is_cut_off = tunnel.findings.len() > before;
            let in_file = FilePeers::of(file);
            tunnel.add_peers(device, &in_file, is_cut_off);
            // If a peer does not answer, neither do the name servers behind it.
            let all_answer = tunnel.findings.len() == before;
            if all_answer && tunnel.mode == Some(Mode::Transparent) {
                let silent = traffic::query(interface).silent;
                tunnel
                    .findings
                    .extend(silent.iter().map(findings::silent_name_servers));
            }
            let shared = devices.sharing_key(interface, &in_file);
            tunnel.findings.extend(shared);
        }
        if let Some(header) = header {
            tunnel.add_file(header, file, device, is_running);
        }
        tunnel.state = findings::overall_state(is_running, &tunnel.findings);
        Ok(tunnel)
    }

    fn add_maps(&mut self, maps: &TunnelMaps, is_running: bool) -> Result<(), StatusError> {
        if maps.mode() == CaptureMode::TrafficControl {
            let mut system = Netlink::open()?;
            let own = taupe_os_linux::interface::index(&self.interface).unwrap_or_default();
            let survey = survey(
                &system.links()?,
                &system.addresses()?,
                &system.routes()?,
                own,
            );
            let guarded = maps.guarded()?;
            for link in survey.guarded {
                let is_guarded = guarded.contains(&link.index);
                if is_running && !is_guarded && link.has_default_route {
                    let is_known = link.header != LinkHeader::Unknown;
                    self.findings
                        .push(findings::unguarded(&link.name, is_known));
                }
                self.uplinks.push(Uplink {
                    name: link.name,
                    guarded: is_guarded,
                });
            }
            let gaps = taupe_transparent::capture::missing_features(&self.interface)?.into_iter();
            self.gaps = gaps
                .map(|gap| GapLine {
                    code: gap_code(gap),
                    text: crate::advice::missing_feature(gap),
                })
                .collect();
        }
        if is_running && maps.are_flows_refused() {
            self.findings.push(findings::flows_refused());
        }
        let counts = maps.counts()?.into_iter().filter(|(_, count)| *count > 0);
        self.counters = counts
            .map(|(reason, count)| Counter {
                name: reason.code().to_owned(),
                count,
                text: reason.text(),
            })
            .collect();
        Ok(())
    }

    /// Adds findings about the tunnel that carries this one.
    fn add_outer(&mut self, devices: &Devices) {
        let Some(outer) = &self.via else { return };
        let Some(device) = devices.get(outer) else {
            return;
        };
        for peer in &device.status.peers {
            // Peers of an outer tunnel always have an Endpoint in their file.
            match peers::assess(device, peer, &FilePeers::default(), Some(device.fwmark)) {
                Some(findings::PeerAssessment::Finding(finding)) => {
                    let text = peers::of_outer(outer, &finding.text);
                    let finding = Finding { text, ..finding };
                    self.findings.push(finding.of_peer(peers::encoded(peer)));
                }
                Some(findings::PeerAssessment::Note(note)) => {
                    self.notes.push(peers::of_outer(outer, &note))
                }
                Some(findings::PeerAssessment::AwaitingInitiation) | None => {}
            }
        }
    }

    /// Adds findings about peers. If the tunnel `is_cut_off` by the tunnel that carries it, its own
    /// peers' silence is no finding.
    fn add_peers(&mut self, device: &taupe_client::Device, file: &FilePeers<'_>, is_cut_off: bool) {
        // The path of a tunnel through another one lies in a network that this machine cannot
        // examine.
        let mark = self.via.is_none().then_some(device.fwmark);
        let mut awaiting = 0;
        for peer in &device.status.peers {
            match peers::assess(device, peer, file, mark) {
                Some(findings::PeerAssessment::Finding(_)) if is_cut_off => {}
                Some(findings::PeerAssessment::Finding(finding)) => {
                    self.findings.push(finding.of_peer(peers::encoded(peer)));
                    let doubt = self.via.as_deref().map(findings::one_way_note);
                    self.notes
                        .extend(doubt.filter(|doubt| !self.notes.contains(doubt)));
                }
                Some(findings::PeerAssessment::Note(note)) => self.notes.push(note),
                Some(findings::PeerAssessment::AwaitingInitiation) => awaiting += 1,
                None => {}
            }
            self.peers.push(Peer::of(device, peer, file));
        }
        self.notes
            .extend(findings::awaiting_note(awaiting, device.status.peers.len()));
    }

    /// Adds what the file contains now.
    fn add_file(
        &mut self,
        header: &Header,
        file: Option<&File>,
        device: Option<&taupe_client::Device>,
        is_running: bool,
    ) {
        let path = &header.config;
        let Some(file) = file else {
            let shown = path.display();
            self.notes.push(format!(
                "{shown} cannot be read or has errors; `taupe check {shown}` lists them"
            ));
            return;
        };
        if header.is_edited() {
            self.notes.push(format!(
                "{0} has been edited since; `taupe reload {0}` applies the change, or says why it cannot",
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
            self.rules.extend(list.iter().map(|rule| RuleLine {
                line: rule.line,
                key: key.name(),
                application: rule.application.to_string(),
            }));
        }
        let of_user = apps.of_user.as_ref();
        self.apps_of_user = of_user.map(|only| only.user.to_string());
        self.forwarded = file.transparent.forwarded == Some(Forwarded::Tunnel);
        if !is_running || self.mode.is_none() {
            return;
        }
        let missing = device.map(|device| endpoint_names::without_address(device, file));
        for text in missing.into_iter().flatten() {
            self.findings
                .push(Finding::new(FindingCode::EndpointUnresolved, text));
        }
        let bypassing = |text| Finding::new(FindingCode::NamesPastTunnel, text);
        if self.mode != Some(Mode::Transparent) {
            self.findings
                .extend(dns::local_resolver_warning().map(bypassing));
            return;
        }
        if let Ok(Some(gap)) = missing_dns_feature(&self.interface) {
            self.findings
                .push(bypassing(crate::advice::missing_feature(gap)));
        }
        // A file that could not be brought up gets no warnings.
        let mut rules = file.transparent.apps.clone();
        if resolve(&mut rules).is_ok() && !file.interface.addresses.is_empty() {
            let routed: Vec<_> = file.peers.iter().flat_map(FilePeer::routed).collect();
            let names = match file.interface.dns.as_slice() {
                [] => dns::local_resolver_warning().into_iter().collect(),
                servers => dns::warnings(servers, &routed),
            };
            self.findings.extend(names.into_iter().map(bypassing));
            let bypass_lan = file.transparent.bypass_lan.unwrap_or(false);
            let destinations = table_for_peers(&file.peers, bypass_lan);
            // Refused destinations are blocked, and applications try the other address family.
            let missing = families::families_without_route(&destinations);
            self.notes.extend(missing.iter().map(ToString::to_string));
        }
    }
}

/// Returns the names that the file of a tunnel gives to its peers.
#[must_use]
pub fn peer_names(interface: &str) -> HashMap<PublicKey, PeerName> {
    let header = JournalFolder::default().of_running(interface);
    let file = header.as_ref().and_then(current_file);
    let peers = file.into_iter().flat_map(|file| file.peers);
    peers
        .filter_map(|peer| Some((peer.public_key, peer.name?)))
        .collect()
}

/// Reads the current content of a tunnel's file. `None` if it cannot be read or has errors.
fn current_file(header: &Header) -> Option<File> {
    let path = &header.config;
    let text = check::read(path).ok()?;
    check::parse_with_available_keys(path, &text).file
}

/// Returns the file's word for a kill switch.
const fn kill_switch_word(lock: Lock) -> &'static str {
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
#[must_use]
pub fn now() -> Duration {
    UNIX_EPOCH.elapsed().unwrap_or_default()
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
