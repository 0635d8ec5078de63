//! `taupe top`: the live view, and its facts.

use crate::app;
use crate::arguments::{AppPlace, TopOrder};
use crate::console::say;
use crate::flows;
use crate::paint::Paint;
use crate::root;
use crate::status::{NO_TUNNEL, mode, with_advice};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals as CaughtSignals;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Instant;
use taupe_adapter::Compatibility;
use taupe_config::application::{AppRules, Application as Entry};
use taupe_inspect::advice;
use taupe_inspect::app_matcher::AppMatcher;
use taupe_inspect::drops::{self, DeviceDrops, StateWithDrops};
use taupe_inspect::flows::{Flow, Verdict};
use taupe_inspect::processes::Subject;
use taupe_inspect::rules::resolved;
use taupe_inspect::status::{self, Files, Mode, State, now};
use taupe_protocol::DropReason;
use taupe_top::model::{Change, Place, Screen};
use taupe_top::reading::{
    Application, Bytes, Connection, ConnectionKey, DropCounter, Health, List, Path, Peer, Reading,
    Rule, Transport, Tunnel,
};
use taupe_top::terminal::{self, Settings, Signal, Signals, Source};
use taupe_top::text::Text;
use taupe_top::view::Palette;
use taupe_transparent::state::Reason;

/// Reason why there is no view.
#[derive(Debug, thiserror::Error)]
enum TopError {
    #[error(transparent)]
    NotRoot(#[from] root::RootError),
    #[error(
        "standard output is not a terminal; for programs there are `taupe status --json` and \
         `taupe events`"
    )]
    NoTerminal,
    #[error("cannot use the terminal: {0}")]
    Terminal(#[from] io::Error),
    /// A change failed after the view had ended.
    #[error("{0}")]
    Change(Text),
}

/// Shows the view until the user or a signal ends it.
pub(crate) fn main(order: &TopOrder, arguments: &[OsString]) -> ExitCode {
    match run(order, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

fn run(order: &TopOrder, arguments: &[OsString]) -> Result<(), TopError> {
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    root::require(Compatibility::Taupe, arguments)?;
    let settings = Settings {
        interval: order.interval,
        palette: Palette {
            is_coloured: Paint::of_stdout().is_coloured(),
        },
        screen: Screen::Overview,
        without_tunnels: Text::new(NO_TUNNEL),
    };
    // Returns when the process is continued.
    let stop = || drop(signal_hook::low_level::emulate_default_handler(SIGTSTP));
    match terminal::run(settings, Facts::new(), catch, stop)? {
        None => {}
        Some(Ok(result)) => say(&result),
        Some(Err(error)) => return Err(TopError::Change(error)),
    }
    Ok(())
}

/// Passes signals to the view for the rest of the process's life.
fn catch(signals: Signals) -> io::Result<()> {
    let mut caught = CaughtSignals::new([SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT])?;
    let listen = move || {
        for signal in caught.forever() {
            signals.send(match signal {
                SIGCONT => Signal::Continue,
                SIGTSTP => Signal::Stop,
                _ => Signal::End,
            });
        }
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(listen).map(drop)
}

/// The facts of this system.
struct Facts {
    begun: Instant,
    files: Files,
}

/// Rules of the tunnels that select applications, with what decides about processes.
type Deciders = Vec<(Text, AppRules, AppMatcher)>;

impl Facts {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            files: Files::default(),
        }
    }
}

impl Source for Facts {
    fn read(&mut self) -> Result<Reading, Text> {
        let clock = self.begun.elapsed();
        let looked = drops::look(&mut self.files);
        let StateWithDrops {
            status,
            drops,
            rules,
        } = looked.map_err(|error| Text::new(&with_advice(&error)))?;
        let mut remarks = Vec::new();
        let unreadable = &mut |fault: &_| remarks.push(Text::new(&advice::error(fault)));
        let flows = taupe_inspect::flows::look(None, unreadable)
            .map_err(|error| Text::new(&flows::with_advice(&error)))?;
        if flows.truncated {
            remarks.push(Text::new(flows::INCOMPLETE));
        }
        let deciders = deciders(&status.tunnels, rules);
        let mut applications = HashMap::new();
        let connections = flows.flows.iter().map(|flow| {
            let owner = flow.pid.zip(flow.application.as_deref());
            let application = owner.map(|(pid, path)| {
                let known = applications.entry(pid);
                known
                    .or_insert_with(|| application(pid, path, &deciders))
                    .clone()
            });
            connection(flow, application)
        });
        let connections = connections.collect();
        let tunnels = status.tunnels.iter();
        Ok(Reading {
            clock,
            now: now(),
            tunnels: tunnels.map(|one| tunnel(one, &drops)).collect(),
            connections,
            remarks,
        })
    }

    fn change(&mut self, change: &Change) -> Result<Text, Text> {
        let entry: Entry = change
            .entry
            .parse()
            .map_err(|error| Text::new(&format!("{}: {error}", change.entry)))?;
        let place = match change.place {
            Place::Allowed => AppPlace::Allowed,
            Place::Disallowed => AppPlace::Disallowed,
            Place::Nowhere => AppPlace::Nowhere,
        };
        let mut sentences = Vec::new();
        let tell = &mut |sentence: &dyn std::fmt::Display| sentences.push(sentence.to_string());
        let file = OsStr::new(&change.tunnel);
        let changed = app::edit_file(file, place, &[entry], tell);
        changed.map_err(|error| Text::new(&error.to_string()))?;
        Ok(Text::new(&sentences.join("; ")))
    }
}

/// Returns what decides about processes, for each tunnel that selects applications.
fn deciders(tunnels: &[status::Tunnel], mut rules: BTreeMap<String, AppRules>) -> Deciders {
    let selecting = tunnels.iter().filter(|tunnel| selects(tunnel));
    let deciders = selecting.filter_map(|tunnel| {
        let rules = resolved(rules.remove(&tunnel.interface)?);
        let matcher = AppMatcher::of(&tunnel.interface);
        Some((Text::new(&tunnel.interface), rules, matcher))
    });
    deciders.collect()
}

fn selects(tunnel: &status::Tunnel) -> bool {
    matches!(tunnel.mode, Some(Mode::Transparent | Mode::Marks))
}

fn application(pid: u32, path: &str, deciders: &Deciders) -> Application {
    let subject = Subject::of(pid);
    let subject = subject.as_ref();
    // A path that the display escapes is no entry of a file.
    let real = subject.and_then(|subject| std::str::from_utf8(subject.process().path).ok());
    let entry = real.filter(|real| real.parse::<Entry>().is_ok());
    let rules = deciders.iter().filter_map(|(tunnel, rules, matcher)| {
        let by = matcher.decide(rules, subject?).rule?;
        let is_allowed = rules.allowed.iter().any(|rule| std::ptr::eq(rule, by));
        let list = match is_allowed {
            true => List::Allowed,
            false => List::Disallowed,
        };
        Some((tunnel.clone(), rule(list, by.application.to_string())))
    });
    Application {
        shown: Text::new(path),
        process: pid,
        entry: entry.map(str::to_owned),
        rules: rules.collect(),
    }
}

const fn rule(list: List, entry: String) -> Rule {
    Rule { list, entry }
}

fn connection(flow: &Flow, application: Option<Application>) -> Connection {
    let path = match (flow.verdict, &flow.tunnel) {
        (Verdict::Tunnel, Some(tunnel)) => Path::Tunnel(Text::new(tunnel)),
        (Verdict::Tunnel, None) => Path::Tunnel(Text::new("tunnel")),
        (Verdict::Direct, _) => Path::Direct,
        (Verdict::Refused, _) => Path::Blocked,
    };
    let bytes = flow.received_bytes.zip(flow.sent_bytes);
    Connection {
        key: ConnectionKey {
            cookie: flow.cookie,
            transport: match flow.protocol {
                "udp" => Transport::Udp,
                _ => Transport::Tcp,
            },
            local: flow.local,
            remote: flow.remote,
        },
        path,
        application,
        bytes: bytes.map(|(received, sent)| Bytes { received, sent }),
        why: Text::new(flow.why.as_deref().unwrap_or(flows::NO_REASON)),
    }
}

fn tunnel(tunnel: &status::Tunnel, drops: &[DeviceDrops]) -> Tunnel {
    let text = |text: &String| Text::new(text);
    let own = drops.iter().filter(|it| it.interface == tunnel.interface);
    let by_programs = tunnel.counters.iter().filter(|it| is_drop(&it.name));
    let by_programs = by_programs.map(|counter| DropCounter {
        code: format!("programs/{}", counter.name),
        reason: Text::new(counter.text),
        count: counter.count,
    });
    let by_device = own.map(|drops| DropCounter {
        code: format!("device/{}", drops.reason),
        reason: reason(&drops.reason),
        count: drops.count,
    });
    let is_finding = |text: &str| tunnel.findings.iter().any(|finding| finding.text == text);
    let gaps = tunnel.gaps.iter().map(|gap| &gap.text);
    let gaps = gaps.filter(|text| !is_finding(text));
    Tunnel {
        name: Text::new(&tunnel.interface),
        health: match tunnel.state {
            State::Up => Health::Up,
            State::Degraded => Health::Degraded,
            State::Down => Health::Down,
        },
        mode: Text::new(mode(tunnel.mode).unwrap_or_default()),
        selects: selects(tunnel),
        findings: tunnel.findings.iter().map(|it| text(&it.text)).collect(),
        notes: tunnel.notes.iter().chain(gaps).map(text).collect(),
        peers: tunnel.peers.iter().map(peer).collect(),
        rules: tunnel
            .rules
            .iter()
            .map(|line| {
                let list = match line.key {
                    "AllowedApps" => List::Allowed,
                    _ => List::Disallowed,
                };
                rule(list, line.application.clone())
            })
            .collect(),
        drops: by_programs.chain(by_device).collect(),
    }
}

fn peer(peer: &status::Peer) -> Peer {
    let detail = peer.post_quantum.as_ref();
    let detail = detail.map(|state| format!("post-quantum: {}", state.text));
    Peer {
        key: Text::new(&peer.public_key),
        name: peer.name.as_deref().map(Text::new),
        endpoint: peer.endpoint.as_deref().map(Text::new),
        handshake: peer.latest_handshake.map(std::time::Duration::from_secs),
        bytes: Bytes {
            received: peer.received_bytes,
            sent: peer.sent_bytes,
        },
        detail: Text::new(&detail.unwrap_or_default()),
    }
}

/// Returns false for counters of packets that are carried.
fn is_drop(code: &str) -> bool {
    ![Reason::OutTunnel, Reason::InDelivered]
        .map(Reason::code)
        .contains(&code)
}

/// Returns a device's reason in words; its code, if another version of Taupe runs the device.
fn reason(code: &str) -> Text {
    let mut all = DropReason::ALL.into_iter();
    let known = all.find(|reason| reason.code() == code);
    let text = known.map(|reason| reason.to_string());
    Text::new(text.as_deref().unwrap_or(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carried_packets_are_no_drops() {
        assert!(!is_drop("out-tunnel") && !is_drop("in-delivered"));
        assert!(is_drop("out-down"));
        let all = Reason::ALL.iter().filter(|reason| is_drop(reason.code()));
        assert_eq!(all.count(), Reason::ALL.len() - 2);
    }

    #[test]
    fn drops_of_devices_have_words() {
        assert_eq!(
            reason("replayed").as_str(),
            DropReason::Replayed.to_string()
        );
        assert_eq!(reason("of-another-version").as_str(), "of-another-version");
    }

    #[test]
    fn this_process_can_be_an_entry() {
        let id = std::process::id();
        let rules = AppRules {
            allowed: vec![taupe_config::application::Rule::new(
                "/no/such".parse().unwrap(),
                3,
            )],
            ..AppRules::default()
        };
        let deciders = vec![(Text::new("home"), rules, AppMatcher::default())];
        let this = application(id, "shown", &deciders);
        let path = std::env::current_exe().unwrap();
        assert_eq!(this.entry.as_deref(), path.to_str());
        assert_eq!((this.process, this.shown.as_str()), (id, "shown"));
        assert!(this.rules.is_empty());
    }
}
