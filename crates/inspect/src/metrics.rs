//! Figures of tunnels and devices as OpenMetrics text.

pub mod live;

use crate::processes::Subject;
use crate::rules::resolved;
use crate::status::{self, Files, FindingCode, Looked, State, Status, StatusError};
use core::fmt;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::collections::{BTreeMap, HashMap, HashSet};
use taupe_config::application::AppRules;
use taupe_config::file::Key;
use taupe_protocol::Durations;

/// Peers of a device up to which their series have names. Names may change, and each name is a
/// series of its own.
const MAX_NAMED_PEERS: usize = 1000;

/// Rules of a tunnel that have a series each.
const MAX_APPLICATIONS: usize = 1000;

/// Format of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4, which node_exporter reads from files.
    Prometheus,
}

impl Format {
    /// Returns the media type.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Codes of findings about a tunnel whose packets no process carries.
const NOT_CARRIED: [&str; 3] = [
    FindingCode::ProcessEnded.name(),
    FindingCode::ProcessSilent.name(),
    FindingCode::Changing.name(),
];

/// Figures of all tunnels and devices at one time.
#[derive(Debug)]
pub struct Metrics {
    version: &'static str,
    tunnels: Vec<TunnelFigures>,
    devices: Vec<DeviceFigures>,
}

#[derive(Debug)]
struct TunnelFigures {
    interface: String,
    state: State,
    /// Number of findings, by codes.
    findings: Vec<(&'static str, u64)>,
    /// Packets dropped by its eBPF programs, by reasons.
    drops: Vec<(String, u64)>,
    applications: Vec<ApplicationFigures>,
}

/// A rule of a tunnel's file.
#[derive(Debug)]
struct ApplicationFigures {
    key: &'static str,
    application: String,
    /// Number of running processes that it matches.
    processes: u64,
}

#[derive(Debug)]
struct DeviceFigures {
    interface: String,
    /// Group, name and number.
    counters: Vec<(String, String, u64)>,
    peers: Vec<PeerFigures>,
}

#[derive(Debug)]
struct PeerFigures {
    public_key: String,
    name: Option<String>,
    /// Seconds since 1970.
    latest_handshake: Option<u64>,
    unanswered_handshakes: u32,
    received_bytes: u64,
    sent_bytes: u64,
}

impl Metrics {
    /// Reads all tunnels and devices of this network namespace. `files` are those of the previous call.
    ///
    /// # Errors
    /// See [`StatusError`].
    pub fn read(version: &'static str, files: &mut Files) -> Result<Self, StatusError> {
        let Looked {
            status,
            devices,
            rules,
        } = status::look_with_devices(files)?;
        let mut metrics = Self::of(version, &status, devices);
        metrics.count_processes(rules);
        Ok(metrics)
    }

    /// Adds the numbers of running processes that the rules of each tunnel match.
    fn count_processes(&mut self, rules: BTreeMap<String, AppRules>) {
        if rules.is_empty() {
            return;
        }
        let all = Subject::all();
        for (interface, rules) in rules {
            let tunnel = self.tunnels.iter_mut().find(|it| it.interface == interface);
            let Some(tunnel) = tunnel else { continue };
            let rules = resolved(rules);
            let running = || {
                let subjects = all.iter();
                subjects.filter(|it| !rules.is_of_other_user(&it.process()))
            };
            let allowed = rules.allowed.iter().map(|rule| (Key::AllowedApps, rule));
            let disallowed = rules
                .disallowed
                .iter()
                .map(|rule| (Key::DisallowedApps, rule));
            let figures = allowed.chain(disallowed).map(|(key, rule)| {
                let is_matched = |it: &&Subject| rule.application.matches(&it.process());
                let processes = running().filter(is_matched).count();
                ApplicationFigures {
                    key: key.name(),
                    application: rule.application.to_string(),
                    processes: u64::try_from(processes).unwrap_or(u64::MAX),
                }
            });
            // An entry that the file repeats would be the same series again.
            let mut seen = HashSet::new();
            let figures = figures.filter(|it| seen.insert((it.key, it.application.clone())));
            tunnel.applications = figures.take(MAX_APPLICATIONS).collect();
        }
    }

    fn of(
        version: &'static str,
        status: &Status,
        devices: Vec<(String, taupe_client::Device)>,
    ) -> Self {
        let tunnels = status.tunnels.iter();
        Self {
            version,
            tunnels: tunnels.map(TunnelFigures::of).collect(),
            devices: devices
                .into_iter()
                .map(|(interface, device)| DeviceFigures::of(interface, device, status))
                .collect(),
        }
    }

    /// Returns true if a process carries the packets of each tunnel. Peers may be silent.
    #[must_use]
    pub fn carries_all(&self) -> bool {
        let is_carried = |tunnel: &TunnelFigures| {
            let mut findings = tunnel.findings.iter();
            tunnel.state != State::Down && !findings.any(|(code, _)| NOT_CARRIED.contains(code))
        };
        self.tunnels.iter().all(is_carried)
    }

    /// Returns true if there is no tunnel and no device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tunnels.is_empty() && self.devices.is_empty()
    }

    /// Formats them.
    #[must_use]
    pub fn text(self, format: Format) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = match format {
            Format::OpenMetrics => text::encode(&mut text, &registry),
            Format::Prometheus => prometheus_text::encode(&mut text, &registry),
        };
        text
    }
}

impl TunnelFigures {
    fn of(tunnel: &status::Tunnel) -> Self {
        let mut findings: Vec<(&'static str, u64)> = Vec::new();
        for finding in &tunnel.findings {
            let code = finding.code.name();
            match findings.iter_mut().find(|(known, _)| *known == code) {
                Some((_, count)) => *count += 1,
                None => findings.push((code, 1)),
            }
        }
        let counters = tunnel.counters.iter();
        Self {
            interface: tunnel.interface.clone(),
            state: tunnel.state,
            findings,
            drops: counters.map(|it| (it.name.clone(), it.count)).collect(),
            applications: Vec::new(),
        }
    }
}

impl DeviceFigures {
    fn of(interface: String, device: taupe_client::Device, status: &Status) -> Self {
        let tunnel = status.tunnels.iter().find(|it| it.interface == interface);
        let peers = tunnel.map_or(&[][..], |it| &it.peers).iter();
        let names = peers.filter_map(|it| Some((it.public_key.as_str(), it.name.as_deref()?)));
        let names: HashMap<&str, &str> = match device.status.peers.len() {
            ..=MAX_NAMED_PEERS => names.collect(),
            _ => HashMap::new(),
        };
        let figures = |peer: &taupe_client::PeerStatus| {
            let public_key = status::encoded(peer);
            PeerFigures {
                name: names.get(&*public_key).map(|&name| name.to_owned()),
                public_key,
                latest_handshake: peer.latest_handshake.map(|at| at.as_secs()),
                unanswered_handshakes: peer.unanswered.map_or(0, |it| it.initiations),
                received_bytes: peer.rx_bytes,
                sent_bytes: peer.tx_bytes,
            }
        };
        let counters = device.counters.into_iter();
        Self {
            peers: device.status.peers.iter().map(figures).collect(),
            counters: counters
                .map(|it| (it.group.into_owned(), it.name.into_owned(), it.count))
                .collect(),
            interface,
        }
    }

    /// Returns the counters of a group.
    fn group(&self, group: &str) -> impl Iterator<Item = &(String, String, u64)> {
        self.counters.iter().filter(move |it| it.0 == group)
    }
}

/// Durations of a device.
struct TimeFigures {
    /// The greatest durations of the ranges in seconds, and the number of durations in each range.
    ranges: Vec<(f64, u64)>,
    /// Their sum.
    seconds: f64,
}

impl TimeFigures {
    /// Returns the durations of a group of counters, which are in microseconds. A device leaves out
    /// counters that are 0. Returns `None` for devices of other programs.
    fn of(device: &DeviceFigures, group: &str) -> Option<Self> {
        device.group("device").next()?;
        let count = |name: &str| {
            let mut counters = device.group(group);
            let found = counters.find(|counter| counter.1 == name);
            found.map_or(0, |(_, _, count)| *count)
        };
        let bounds = Durations::BOUNDS.iter();
        let ranges = bounds.map(|it| (it.as_secs_f64(), count(&it.as_micros().to_string())));
        Some(Self {
            ranges: ranges.chain([(f64::INFINITY, count("more"))]).collect(),
            seconds: count("sum") as f64 / 1e6,
        })
    }
}

/// A family of metrics, while it is written.
struct Family<'a>(MetricEncoder<'a>);

impl Family<'_> {
    fn counter(&mut self, labels: &[(&str, &str)], count: u64) -> fmt::Result {
        let mut metric = self.0.encode_family(&labels)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&count, None)
    }

    fn histogram(&mut self, labels: &[(&str, &str)], times: &TimeFigures) -> fmt::Result {
        let count = times.ranges.iter().map(|(_, count)| count).sum();
        let mut metric = self.0.encode_family(&labels)?;
        metric.encode_histogram::<NoLabelSet>(times.seconds, count, &times.ranges, None)
    }

    fn gauge(&mut self, labels: &[(&str, &str)], value: impl EncodeGaugeValue) -> fmt::Result {
        self.0.encode_family(&labels)?.encode_gauge(&value)
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.write_tunnels(&mut encoder)?;
        self.write_applications(&mut encoder)?;
        self.write_devices(&mut encoder)?;
        self.write_times(&mut encoder)?;
        self.write_peers(&mut encoder)
    }
}

/// Begins a family of metrics.
fn family<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    kind: MetricType,
    name: &'a str,
    unit: Option<&'a Unit>,
    help: &str,
) -> Result<Family<'a>, fmt::Error> {
    encoder
        .encode_descriptor(name, help, unit, kind)
        .map(Family)
}

impl Metrics {
    fn write_tunnels(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
        family(
            encoder,
            gauge,
            "taupe_build_info",
            None,
            "Version of the program; always 1.",
        )?
        .gauge(&[("version", self.version)], 1)?;
        let help = "1 for the state that the tunnel has, 0 for the others.";
        let mut states = family(encoder, gauge, "taupe_tunnel_state", None, help)?;
        for tunnel in &self.tunnels {
            for (name, state) in [
                ("up", State::Up),
                ("degraded", State::Degraded),
                ("down", State::Down),
            ] {
                let labels = [("tunnel", &*tunnel.interface), ("state", name)];
                states.gauge(&labels, i64::from(tunnel.state == state))?;
            }
        }
        let help = "Reasons why the tunnel is not fully up, by their codes in `taupe status`.";
        let mut findings = family(encoder, gauge, "taupe_tunnel_findings", None, help)?;
        for tunnel in &self.tunnels {
            for (code, count) in &tunnel.findings {
                findings.gauge(&[("tunnel", &tunnel.interface), ("code", code)], *count)?;
            }
        }
        let help = "Packets that the eBPF programs of the tunnel have dropped.";
        let mut drops = family(
            encoder,
            counter,
            "taupe_capture_dropped_packets",
            None,
            help,
        )?;
        for tunnel in &self.tunnels {
            for (reason, count) in &tunnel.drops {
                drops.counter(&[("tunnel", &tunnel.interface), ("reason", reason)], *count)?;
            }
        }
        Ok(())
    }

    fn write_applications(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Running processes that a rule of the tunnel's file matches.";
        let name = "taupe_application_processes";
        let mut processes = family(encoder, MetricType::Gauge, name, None, help)?;
        for tunnel in &self.tunnels {
            for it in &tunnel.applications {
                let labels = [
                    ("tunnel", &*tunnel.interface),
                    ("key", it.key),
                    ("application", &it.application),
                ];
                processes.gauge(&labels, it.processes)?;
            }
        }
        Ok(())
    }

    fn write_times(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (group, name, help) in [
            (
                "handshake-time",
                "taupe_handshake_duration",
                "Time from an initiation of the device to the response.",
            ),
            (
                "queue-time",
                "taupe_queue_wait",
                "Time that delayed packets, or portions of them, spent in the fair queue.",
            ),
        ] {
            let seconds = Some(&Unit::Seconds);
            let mut times = family(encoder, MetricType::Histogram, name, seconds, help)?;
            for device in &self.devices {
                if let Some(histogram) = TimeFigures::of(device, group) {
                    times.histogram(&[("device", &device.interface)], &histogram)?;
                }
            }
        }
        Ok(())
    }

    fn write_devices(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Peers of the device.";
        let mut peers = family(encoder, MetricType::Gauge, "taupe_peers", None, help)?;
        for device in &self.devices {
            let count = u64::try_from(device.peers.len()).unwrap_or(u64::MAX);
            peers.gauge(&[("device", &device.interface)], count)?;
        }
        let help = "Lanes: queues of the device, one thread each.";
        let mut lanes = family(encoder, MetricType::Gauge, "taupe_device_lanes", None, help)?;
        for device in &self.devices {
            for (_, _, count) in device.group("device").filter(|it| it.1 == "lanes") {
                lanes.gauge(&[("device", &device.interface)], *count)?;
            }
        }
        for (group, name, label, help) in [
            (
                "drop",
                "taupe_dropped_packets",
                "reason",
                "Packets and messages that the device has dropped.",
            ),
            (
                "handshake",
                "taupe_handshakes",
                "result",
                "Handshakes that the device began, or answered, with a session as result; and those that no \
                 peer answered.",
            ),
            (
                "queue",
                "taupe_queue_segments",
                "action",
                "Segments that the fair queue has marked or dropped.",
            ),
        ] {
            let mut counters = family(encoder, MetricType::Counter, name, None, help)?;
            for device in &self.devices {
                for (_, value, count) in device.group(group) {
                    counters.counter(&[("device", &device.interface), (label, value)], *count)?;
                }
            }
        }
        Ok(())
    }

    fn write_peers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
        let help = "Bytes of encrypted packets from the peer.";
        let name = "taupe_peer_received";
        let mut family_of = family(encoder, counter, name, Some(&Unit::Bytes), help)?;
        self.for_peers(|labels, peer| family_of.counter(labels, peer.received_bytes))?;
        let help = "Bytes of encrypted packets to the peer.";
        let name = "taupe_peer_sent";
        let mut family_of = family(encoder, counter, name, Some(&Unit::Bytes), help)?;
        self.for_peers(|labels, peer| family_of.counter(labels, peer.sent_bytes))?;
        let help = "Time of the latest handshake, as Unix time.";
        let name = "taupe_peer_latest_handshake_timestamp";
        let mut family_of = family(encoder, gauge, name, Some(&Unit::Seconds), help)?;
        self.for_peers(|labels, peer| match peer.latest_handshake {
            Some(at) => family_of.gauge(labels, at),
            None => Ok(()),
        })?;
        let help = "Initiations since the last packet of the peer.";
        let name = "taupe_peer_unanswered_handshakes";
        let mut family_of = family(encoder, gauge, name, None, help)?;
        self.for_peers(|labels, peer| {
            family_of.gauge(labels, i64::from(peer.unanswered_handshakes))
        })
    }

    fn for_peers(
        &self,
        mut write: impl FnMut(&[(&str, &str)], &PeerFigures) -> fmt::Result,
    ) -> fmt::Result {
        for device in &self.devices {
            for peer in &device.peers {
                let labels = [
                    ("device", &*device.interface),
                    ("public_key", &*peer.public_key),
                    ("name", peer.name.as_deref().unwrap_or_default()),
                ];
                write(&labels, peer)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
