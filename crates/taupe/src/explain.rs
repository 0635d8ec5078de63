//! What becomes of an application's packets, or of what is forwarded, and why: the order
//! of decisions, with the one that applies.

mod application;
mod questions;

use crate::arguments::{Destination, ExplainOrder};
use crate::capture::meanwhile;
use crate::check::{self, check_alone};
use crate::conf::{self, Conf};
use crate::console::print;
use crate::doubts::interpreter;
use crate::families::{self, Lack};
use crate::judge::{Judge, resolved};
use crate::processes::{NoSubject, Subject};
use crate::root;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::fs;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use taupe_adapter::{Personality, State};
use taupe_config::application::{Decision, Doubt, Judgement, Process};
use taupe_config::destinations::{Class, class_of, has, is_link_local, is_local, of_peers};
use taupe_config::file::edit::{Entry, entries};
use taupe_config::file::{File, Forwarded, InterfaceAddress, Key, KillSwitch};
use taupe_config::prefix::{self, Prefix};
use taupe_net::system::{System, SystemError};
use taupe_transparent::capture::in_effect;
use taupe_transparent::fault::Fault;
use taupe_transparent::marks::mark_of;
use taupe_transparent::programs::Programs;
use zeroize::Zeroizing;

/// Why nothing was explained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Conf(#[from] conf::Error),
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
    #[error("{0} has errors (`taupe check` says which)")]
    Wrong(String),
    #[error(transparent)]
    NoSubject(#[from] NoSubject),
    #[error("cannot ask for the addresses of this host: {0}")]
    System(#[from] SystemError),
    #[error(
        "no tunnel that chooses applications is there, so all goes where this system's routes lead; \
         --conf CONF explains what a file would do"
    )]
    NoTunnel,
    #[error(
        "{0} is locked, and which file it is locked by is written nowhere; --conf CONF says which"
    )]
    Locked(String),
    #[error("which tunnels choose applications only root can see: {0}; --conf CONF names a file")]
    NotRoot(#[from] root::Error),
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Explains it on standard output.
pub(crate) fn main(order: &ExplainOrder) -> ExitCode {
    match run(order) {
        Ok(text) => crate::exit(print(text.as_bytes()), ExitCode::SUCCESS),
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

fn run(order: &ExplainOrder) -> Result<String, Failure> {
    let subject = order.application.as_deref().map(Subject::find);
    let subject = subject.transpose()?;
    let mut text = format!("{}\n", introduce(subject.as_ref(), order.destination));
    if let Some(doubt) = subject.as_ref().and_then(doubt) {
        let _ = writeln!(
            text,
            "[!] {doubt}; what follows is for a program at this path"
        );
    }
    let files = match &order.file {
        Some(word) => vec![Conf::find(word, Personality::Taupe)?],
        None => of_tunnels()?,
    };
    let (addresses, is_one_of_several) = (addresses()?, order.file.is_none());
    for conf in &files {
        let known = Known::read(conf)?;
        if is_one_of_several {
            let _ = writeln!(text, "{} ({}):", conf.interface, conf.shown.display());
        }
        if let Some(sentence) = closed(conf.interface.as_str()) {
            let _ = writeln!(text, "[!] {sentence}");
        }
        let steps = known.steps(subject.as_ref(), order.destination, &addresses);
        for (number, step) in (1..).zip(&steps) {
            let _ = writeln!(text, "{number}  {step}");
            if step.decides && number < steps.len() {
                let _ = writeln!(
                    text,
                    "      decided; without that, what follows would count:"
                );
            }
        }
    }
    Ok(text)
}

/// The files of all tunnels here that choose applications, whether they are up or held
/// back.
fn of_tunnels() -> Result<Vec<Conf>, Failure> {
    root::require(Personality::Taupe, &[])?;
    let names = in_effect()?;
    let headers = State::default().here();
    let file = |name: &String| {
        let written_down = headers.iter().find(|header| header.interface == *name);
        let Some(header) = written_down else {
            // Locked without a tunnel: by its name, most likely.
            return Conf::find(OsStr::new(name), Personality::Taupe).ok();
        };
        Some(Conf {
            interface: header.interface.parse().ok()?,
            path: header.config.clone(),
            shown: header.config.clone(),
        })
    };
    let files: Vec<_> = names.iter().filter_map(file).collect();
    match (files.is_empty(), names.first()) {
        (false, _) => Ok(files),
        (true, Some(name)) => Err(Failure::Locked(name.clone())),
        (true, None) => Err(Failure::NoTunnel),
    }
}

/// What holds now whatever the file says: its tunnel is not up, and locked. Who may not
/// look is not told.
fn closed(interface: &str) -> Option<String> {
    let programs = Programs::open(interface).ok()??;
    (!programs.is_up()).then(|| {
        let meanwhile = meanwhile(programs.lock(), interface);
        format!("{interface} is down: {meanwhile}")
    })
}

/// A tunnel's file, and what else decides.
pub(crate) struct Known {
    interface: String,
    shown: PathBuf,
    text: Zeroizing<Vec<u8>>,
    pub(crate) file: File,
    judge: Judge,
    /// The tunnel is up in adapter mode, by the mark of sockets.
    by_mark: bool,
}

impl Known {
    pub(crate) fn read(conf: &Conf) -> Result<Self, Failure> {
        let checked = check_alone(conf, Personality::Taupe)?;
        let wrong = || Failure::Wrong(conf.shown.display().to_string());
        let mut file = checked.file.ok_or_else(wrong)?;
        file.transparent.apps = resolved(file.transparent.apps);
        Ok(Self {
            judge: Judge::of(conf.interface.as_str()),
            interface: conf.interface.to_string(),
            shown: conf.shown.clone(),
            text: checked.text,
            file,
            // Who may not look is told of transparent mode.
            by_mark: mark_of(conf.interface.as_str()).is_ok_and(|mark| mark.is_some()),
        })
    }

    /// All decisions about a process, or about what is forwarded.
    fn steps(
        &self,
        subject: Option<&Subject>,
        to: Option<Destination>,
        addresses: &[IpAddr],
    ) -> Vec<Step> {
        let from = match subject {
            Some(subject) => Sender::Process {
                process: subject.process(),
                judgement: self.judge.judge(&self.file.transparent.apps, subject),
                is_own: is_device(subject, &self.interface),
                is_elsewhere: subject.is_elsewhere,
            },
            None => Sender::Elsewhere,
        };
        let explanation = Explanation {
            shown: self.shown.clone(),
            text: &self.text,
            file: &self.file,
            by_mark: self.by_mark,
            lack_of_route: families::lack_of_route,
        };
        explanation.steps(&Question {
            from,
            to,
            addresses,
            is_neighbour: to.is_some_and(|to| is_neighbour(to.address)),
        })
    }

    /// Why packets of a process go where they go: of what is in the tunnel, why the
    /// application is; of anything else, the step that decides.
    pub(crate) fn why(
        &self,
        subject: &Subject,
        to: Option<Destination>,
        addresses: &[IpAddr],
        is_inside: bool,
    ) -> Option<String> {
        // It is a socket of this network, wherever who has it may be.
        let steps = self.steps(Some(&subject.clone().of_here()), to, addresses);
        let mut steps = steps.into_iter();
        let step = match is_inside {
            true => steps.find(|step| step.title == APPLICATION && !step.decides),
            false => steps.find(|step| step.decides),
        };
        step.map(|step| step.text)
    }
}

/// What the step about the application is called.
const APPLICATION: &str = "application";

/// Who is asked about.
fn introduce(subject: Option<&Subject>, to: Option<Destination>) -> String {
    let to = to.map_or_else(String::new, |to| format!(" to {to}"));
    let Some(subject) = subject else {
        return format!("what this machine forwards for others{to}:");
    };
    let who = match subject.id {
        Some(id) => format!("process {id}, {},", subject.shown_path()),
        None => format!("{}, started from here", subject.shown_path()),
    };
    format!(
        "{who} as user {} in the control group {}{to}:",
        subject.uid,
        subject.shown_cgroup()
    )
}

/// A script does not run itself.
fn doubt(subject: &Subject) -> Option<Doubt> {
    let path = Path::new(OsStr::from_bytes(&subject.path));
    let interpreter = subject.id.is_none().then(|| interpreter(path))??;
    Some(Doubt::NameOfScript {
        path: subject.shown_path(),
        interpreter,
    })
}

/// The addresses of this host's interfaces.
pub(crate) fn addresses() -> Result<Vec<IpAddr>, SystemError> {
    let addresses = System::open()?.addresses()?.into_iter();
    Ok(addresses.map(|address| address.network.addr()).collect())
}

/// Whether an address is link-local and no router is on the way there. Where the interface
/// has to be known for that, as with IPv6, none is.
pub(crate) fn is_neighbour(address: IpAddr) -> bool {
    let gateway = || {
        let route = System::open().ok()?.route_to(address, 0).ok()?;
        route.gateway
    };
    is_link_local(address) && gateway().is_none()
}

/// Whether a process carries the tunnel: it has its configuration socket.
fn is_device(subject: &Subject, interface: &str) -> bool {
    let socket = format!("{}/{interface}.sock", taupe_sys::run_directory::PATH);
    let table = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let lines = table.lines().filter(|line| line.ends_with(&socket));
    let inodes = lines.filter_map(|line| line.split_whitespace().nth(6)?.parse().ok());
    let inodes: HashSet<u64> = inodes.collect();
    subject.count(&inodes) > 0
}

struct Question<'a> {
    from: Sender<'a>,
    to: Option<Destination>,
    /// This host's.
    addresses: &'a [IpAddr],
    /// The destination is link-local, and is itself the next hop.
    is_neighbour: bool,
}

impl Question<'_> {
    fn is_this_host(&self, address: IpAddr) -> bool {
        address.is_loopback() || address.is_unspecified() || self.addresses.contains(&address)
    }
}

/// Who sends a packet.
enum Sender<'a> {
    Process {
        process: Process<'a>,
        judgement: Judgement<'a>,
        /// It is the tunnel's own.
        is_own: bool,
        /// It is in another network.
        is_elsewhere: bool,
    },
    /// Another machine, through this one.
    Elsewhere,
}

/// One of the decisions, in their order.
#[derive(Debug)]
struct Step {
    title: &'static str,
    text: String,
    /// It is the one that decides.
    decides: bool,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.decides { "=>" } else { "  " };
        write!(f, "{mark} {:<29} {}", self.title, self.text)
    }
}

/// What a step says of a packet.
enum Verdict {
    /// Nothing: the next one is asked.
    Passes(String),
    /// What becomes of it.
    Decides(String),
}

struct Explanation<'a> {
    shown: PathBuf,
    text: &'a [u8],
    file: &'a File,
    /// The tunnel is up in adapter mode, by the mark of sockets.
    by_mark: bool,
    /// [`families::lack_of_route`].
    lack_of_route: fn(IpAddr) -> Option<Lack>,
}

impl Explanation<'_> {
    /// All decisions. After the one that decides, the others say what they would.
    fn steps(&self, question: &Question<'_>) -> Vec<Step> {
        let table = of_peers(&self.file.peers, self.bypasses_lan());
        let (is_own, decision, chosen) = match &question.from {
            Sender::Process {
                process,
                judgement,
                is_own,
                ..
            } => {
                let verdict = self.application(process, judgement, question.to, &table);
                (*is_own, judgement.decision, (APPLICATION, verdict))
            }
            Sender::Elsewhere => {
                let (decision, verdict) = self.forwarded();
                (false, decision, ("forwarded", verdict))
            }
        };
        let is_elsewhere = matches!(
            question.from,
            Sender::Process {
                is_elsewhere: true,
                ..
            }
        );
        let elsewhere = is_elsewhere.then(|| ("network", elsewhere()));
        let steps = [
            ("own packets", own(is_own)),
            (
                "this host and its link",
                host(question, self.is_asked_instead(question, decision)),
            ),
            (
                "questions for names",
                self.names(question, decision, &table),
            ),
            (
                "DisallowedIPs, local networks",
                self.past(question.to, &table),
            ),
            chosen,
            ("AllowedIPs", self.allowed(question.to, &table)),
        ];
        let mut open = true;
        let step = |(title, verdict)| {
            let (text, decides) = match verdict {
                Verdict::Passes(text) => (text, false),
                Verdict::Decides(text) => (text, std::mem::replace(&mut open, false)),
            };
            Step {
                title,
                text,
                decides,
            }
        };
        elsewhere.into_iter().chain(steps).map(step).collect()
    }

    fn bypasses_lan(&self) -> bool {
        self.file.transparent.bypass_lan.unwrap_or(false)
    }

    fn past(&self, to: Option<Destination>, table: &[(Prefix, Class)]) -> Verdict {
        let list = entries(self.text, Key::DisallowedIps);
        let lan = entries(self.text, Key::BypassLanTraffic);
        let lan = lan.first().filter(|_| self.bypasses_lan());
        let Some(Destination { address, .. }) = to else {
            let all = list.iter().map(|entry| self.at(Key::DisallowedIps, entry));
            let lan = lan.map(|entry| self.at(Key::BypassLanTraffic, entry));
            let all: Vec<_> = all.chain(lan).collect();
            return Verdict::Passes(match all.as_slice() {
                [] => "there are none".into(),
                all => format!("past the tunnel: {}", all.join("; ")),
            });
        };
        let by = longest(&list, address);
        match (class_of(table, address), by, lan) {
            (Class::Direct, Some(entry), _) => Verdict::Decides(format!(
                "past the tunnel{} ({})",
                self.meanwhile(to, table),
                self.at(Key::DisallowedIps, entry)
            )),
            (Class::Direct, None, Some(entry)) if is_local(address) => Verdict::Decides(format!(
                "past the tunnel{} ({})",
                self.meanwhile(to, table),
                self.at(Key::BypassLanTraffic, entry)
            )),
            (_, Some(entry), _) => Verdict::Passes(format!(
                "{} does not count: another peer has it",
                self.at(Key::DisallowedIps, entry)
            )),
            _ => Verdict::Passes(format!("{address} is in none")),
        }
    }

    fn forwarded(&self) -> (Decision, Verdict) {
        let entries = entries(self.text, Key::Forwarded);
        let line = entries.first().map(|entry| self.at(Key::Forwarded, entry));
        match (self.file.transparent.forwarded.unwrap_or_default(), line) {
            (Forwarded::Tunnel, line) => {
                let text = format!(
                    "uses the tunnel ({}), but for what goes to networks of this machine's links \
                     without a default route",
                    line.unwrap_or_default()
                );
                (Decision::Tunnel, Verdict::Passes(text))
            }
            (Forwarded::Direct, Some(line)) => {
                let text = format!("past the tunnel ({line})");
                (Decision::Bypass, Verdict::Decides(text))
            }
            (Forwarded::Direct, None) => {
                let text = "past the tunnel: there is no Forwarded = tunnel".into();
                (Decision::Bypass, Verdict::Decides(text))
            }
        }
    }

    fn allowed(&self, to: Option<Destination>, table: &[(Prefix, Class)]) -> Verdict {
        let list = entries(self.text, Key::AllowedIps);
        let Some(Destination { address, .. }) = to else {
            let all: Vec<_> = list
                .iter()
                .map(|entry| self.at(Key::AllowedIps, entry))
                .collect();
            return Verdict::Passes(match all.as_slice() {
                [] => "there are none: all goes past the tunnel".into(),
                all => format!(
                    "{}: {}; other destinations: {}",
                    self.inside(),
                    all.join("; "),
                    others(table)
                ),
            });
        };
        let by = longest(&list, address).map(|entry| self.at(Key::AllowedIps, entry));
        Verdict::Decides(match (class_of(table, address), by) {
            // Where it is direct for another reason, a step before this one has said so.
            (Class::Tunnel | Class::Direct, Some(by)) => match self.refusal(address) {
                Some(why) => format!("refused at once: {why} ({by})"),
                None => format!("{} ({by})", self.inside()),
            },
            (Class::Tunnel | Class::Direct, None) => {
                format!("past the tunnel: {address} is in none")
            }
            (Class::Refuse, _) => {
                let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
                format!(
                    "refused at once: the tunnel has all of the other family and nothing of {family}"
                )
            }
            (Class::Drop, _) => "dropped: multicast and broadcast are past any tunnel, and only \
                            BypassLanTraffic lets them out"
                .into(),
        })
    }

    /// The reason why a packet to an address in the tunnel does not get into it.
    fn refusal(&self, address: IpAddr) -> Option<String> {
        if self.by_mark {
            return None;
        }
        let own = self.file.interface.addresses.iter();
        let is_of_family = |own: &InterfaceAddress| own.address.is_ipv4() == address.is_ipv4();
        if !own.copied().any(|own| is_of_family(&own)) {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            return Some(format!("no Address of the tunnel is of {family}"));
        }
        (self.lack_of_route)(address).map(|lack| lack.to_string())
    }

    /// What becomes of another application's packet while the tunnel is down.
    fn meanwhile(&self, to: Option<Destination>, table: &[(Prefix, Class)]) -> &'static str {
        if self.file.transparent.kill_switch != Some(KillSwitch::All) {
            return "";
        }
        let Some(Destination { address, port }) = to else {
            return ", but while its process is gone only where a chosen one's packets go past it";
        };
        match (class_of(table, address), port) {
            (Class::Direct, port) if port != Some(53) => "",
            _ => ", or nowhere while its process is gone",
        }
    }

    /// What becomes of what is for the tunnel.
    fn inside(&self) -> &'static str {
        match self.file.transparent.kill_switch {
            Some(KillSwitch::Off) => "through the tunnel, or past it while its process is gone",
            _ => "through the tunnel, or nowhere while its process is gone",
        }
    }

    /// An entry, with its file and line.
    fn at(&self, key: Key, entry: &Entry<'_>) -> String {
        let file = self.shown.display();
        format!("{file}:{}: {} = {}", entry.line, key.name(), entry.text)
    }
}

fn elsewhere() -> Verdict {
    Verdict::Decides(
        "wherever its own network leads: it is in another network namespace (a container, `taupe \
         exec`, `ip netns exec`), and these rules are about this one; what comes from there by \
         this machine is forwarded (`taupe explain --forwarded`)"
            .into(),
    )
}

fn own(is_own: bool) -> Verdict {
    if is_own {
        Verdict::Decides("past the tunnel: this is the process that carries it".into())
    } else {
        Verdict::Passes("it is not the process that carries the tunnel".into())
    }
}

fn host(question: &Question<'_>, is_asked_instead: bool) -> Verdict {
    let Some(Destination { address, port }) = question.to else {
        return Verdict::Passes(
            "past the tunnel: loopback, link-local without a router, DHCP, NDP".into(),
        );
    };
    if question.is_this_host(address) {
        if is_asked_instead {
            let text = format!("{address} is this host, but it is a question for a name");
            return Verdict::Passes(text);
        }
        return Verdict::Decides(format!("past the tunnel: {address} is this host"));
    }
    if is_link_local(address) {
        return match port {
            Some(53) => Verdict::Passes("link-local, but a question for a name".into()),
            _ if question.is_neighbour => {
                Verdict::Decides(format!("past the tunnel: {address} is link-local"))
            }
            _ => Verdict::Passes(format!("{address} is link-local, but behind a router")),
        };
    }
    Verdict::Passes(format!("{address} is neither"))
}

/// What becomes of what no list names.
fn others(table: &[(Prefix, Class)]) -> &'static str {
    let refused = table.iter().find(|(_, class)| *class == Class::Refuse);
    match refused {
        Some((network, _)) if network.address().is_ipv4() => "past the tunnel, IPv4 refused",
        Some(_) => "past the tunnel, IPv6 refused",
        None => "past the tunnel",
    }
}

/// The most specific network of a list that has an address.
fn longest<'a, 'b>(list: &'a [Entry<'b>], address: IpAddr) -> Option<&'a Entry<'b>> {
    let network = |entry: &Entry<'_>| prefix::parse(entry.text).ok();
    let fitting = list
        .iter()
        .filter(|entry| network(entry).is_some_and(|network| has(network, address)));
    fitting.max_by_key(|entry| network(entry).map(|network| network.length()))
}

#[cfg(test)]
mod tests;
