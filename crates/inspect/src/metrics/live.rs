//! The state at one time, for the page of `taupe web`.

use super::{ApplicationFigures, DeviceFigures, Metrics, TimeFigures};
use crate::flows::{Flow, Flows, Verdict};
use crate::status::{self, Files, Looked, Status, StatusError};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Applications in the list, at most. Those that are blocked come first.
const MAX_APPLICATIONS: usize = 300;

/// Remote addresses of an application, at most.
const MAX_REMOTES: usize = 3;

/// Facts of all tunnels. As in `taupe status --json`, members are only ever added while `schema`
/// stays the same.
#[derive(Serialize)]
pub struct Facts {
    /// Version of the format.
    pub schema: u32,
    /// Unix time in seconds.
    pub at: u64,
    /// Content of `taupe status --json`.
    pub status: Status,
    /// Devices of the tunnels, and others.
    pub devices: Vec<DeviceFacts>,
    /// Applications with connections.
    pub applications: Vec<ApplicationFacts>,
    /// True if there are more of them.
    pub applications_truncated: bool,
    /// Reason why there are none.
    pub flows_error: Option<String>,
    /// Rules of tunnels.
    pub rules: Vec<RuleFacts>,
}

/// Figures of a device.
#[derive(Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct DeviceFacts {
    pub interface: String,
    pub handshakes: Option<TimeFacts>,
    pub waits: Option<TimeFacts>,
    pub drops: Vec<DropFacts>,
}

/// Durations, counted by ranges.
#[derive(Serialize)]
pub struct TimeFacts {
    /// Greatest durations of the ranges in seconds. The last range has none.
    pub bounds: Vec<f64>,
    /// Number of durations in each range.
    pub counts: Vec<u64>,
    /// Sum of all durations in seconds.
    pub seconds: f64,
}

/// Number of packets that a device has dropped for one reason.
#[derive(Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct DropFacts {
    pub reason: String,
    pub count: u64,
}

/// Connections of one program that have the same path for the same reason.
#[derive(Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct ApplicationFacts {
    pub application: Option<String>,
    pub tunnel: Option<String>,
    pub verdict: Verdict,
    pub why: Option<String>,
    pub connections: u64,
    pub processes: u64,
    /// The first few.
    pub remotes: Vec<String>,
    /// `None` if not all of them are counted.
    pub sent_bytes: Option<u64>,
    pub received_bytes: Option<u64>,
}

/// Number of running processes that a rule of a tunnel's file matches.
#[derive(Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct RuleFacts {
    pub tunnel: String,
    pub key: &'static str,
    pub application: String,
    pub processes: u64,
}

impl Facts {
    /// Reads all tunnels and devices of this network namespace. `flows` are its connections, or the
    /// reason why they are unknown. `files` are those of the previous call.
    ///
    /// # Errors
    /// See [`StatusError`].
    pub fn read(flows: Result<Flows, String>, files: &mut Files) -> Result<Self, StatusError> {
        let Looked {
            status,
            devices,
            rules,
        } = status::look_with_devices(files)?;
        let mut metrics = Metrics::of("", &status, devices);
        metrics.count_processes(rules);
        let (mut applications, mut is_truncated, flows_error) = match flows {
            Ok(flows) => (by_application(&flows.flows), flows.truncated, None),
            Err(error) => (Vec::new(), false, Some(error)),
        };
        is_truncated |= applications.len() > MAX_APPLICATIONS;
        applications.truncate(MAX_APPLICATIONS);
        let tunnels = metrics.tunnels.into_iter();
        let rules = tunnels.flat_map(|tunnel| {
            let of_rule = move |figures: ApplicationFigures| RuleFacts {
                tunnel: tunnel.interface.clone(),
                key: figures.key,
                application: figures.application,
                processes: figures.processes,
            };
            tunnel.applications.into_iter().map(of_rule)
        });
        Ok(Self {
            schema: 1,
            at: status::now().as_secs(),
            devices: metrics.devices.iter().map(DeviceFacts::of).collect(),
            applications,
            applications_truncated: is_truncated,
            flows_error,
            rules: rules.collect(),
            status,
        })
    }
}

impl DeviceFacts {
    fn of(device: &DeviceFigures) -> Self {
        let drops = device.group("drop").map(|(_, reason, count)| DropFacts {
            reason: reason.clone(),
            count: *count,
        });
        Self {
            interface: device.interface.clone(),
            handshakes: TimeFigures::of(device, "handshake-time").map(TimeFacts::of),
            waits: TimeFigures::of(device, "queue-time").map(TimeFacts::of),
            drops: drops.collect(),
        }
    }
}

impl TimeFacts {
    fn of(figures: TimeFigures) -> Self {
        let bounds = figures.ranges.iter().map(|(bound, _)| *bound);
        Self {
            // JSON has no infinity.
            bounds: bounds.filter(|bound| bound.is_finite()).collect(),
            counts: figures.ranges.iter().map(|(_, count)| *count).collect(),
            seconds: figures.seconds,
        }
    }
}

/// Groups flows by application and path. Blocked ones come first, then those in tunnels.
fn by_application(flows: &[Flow]) -> Vec<ApplicationFacts> {
    let rank = |verdict: Verdict| match verdict {
        Verdict::Refused => 0,
        Verdict::Tunnel => 1,
        Verdict::Direct => 2,
    };
    let mut groups: BTreeMap<_, Vec<&Flow>> = BTreeMap::new();
    for flow in flows {
        let key = (
            rank(flow.verdict),
            &flow.application,
            &flow.tunnel,
            &flow.why,
        );
        groups.entry(key).or_default().push(flow);
    }
    groups
        .into_values()
        .filter_map(|group| ApplicationFacts::of(&group))
        .collect()
}

impl ApplicationFacts {
    fn of(flows: &[&Flow]) -> Option<Self> {
        let first = flows.first()?;
        let processes: BTreeSet<_> = flows.iter().filter_map(|flow| flow.pid).collect();
        let remotes = flows.iter().filter_map(|flow| flow.remote);
        let remotes: BTreeSet<_> = remotes.collect();
        let sum = |of: fn(&Flow) -> Option<u64>| {
            let bytes = flows.iter().map(|flow| of(flow));
            bytes.sum::<Option<u64>>()
        };
        Some(Self {
            application: first.application.clone(),
            tunnel: first.tunnel.clone(),
            verdict: first.verdict,
            why: first.why.clone(),
            connections: u64::try_from(flows.len()).unwrap_or(u64::MAX),
            processes: u64::try_from(processes.len()).unwrap_or(u64::MAX),
            remotes: remotes
                .iter()
                .take(MAX_REMOTES)
                .map(ToString::to_string)
                .collect(),
            sent_bytes: sum(|flow| flow.sent_bytes),
            received_bytes: sum(|flow| flow.received_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(application: &str, pid: u32, verdict: Verdict, sent_bytes: Option<u64>) -> Flow {
        Flow {
            protocol: "tcp",
            local: ([192, 0, 2, 1], 1000).into(),
            remote: Some(([198, 51, 100, 1], 443).into()),
            tunnel: None,
            verdict,
            pid: Some(pid),
            application: Some(application.to_owned()),
            uid: 0,
            sent_bytes,
            received_bytes: Some(1),
            why: None,
            cookie: 0,
        }
    }

    #[test]
    fn flows_are_grouped_by_application_with_blocked_ones_first() {
        let flows = [
            flow("/a", 1, Verdict::Direct, Some(5)),
            flow("/b", 2, Verdict::Tunnel, Some(1)),
            flow("/b", 3, Verdict::Tunnel, None),
            flow("/b", 2, Verdict::Refused, Some(7)),
            flow("/a", 1, Verdict::Direct, Some(6)),
        ];
        let groups = by_application(&flows);
        let shown: Vec<_> = groups
            .iter()
            .map(|it| {
                let name = it.application.as_deref().unwrap_or_default();
                (
                    name,
                    it.verdict,
                    it.connections,
                    it.processes,
                    it.sent_bytes,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("/b", Verdict::Refused, 1, 1, Some(7)),
                ("/b", Verdict::Tunnel, 2, 2, None),
                ("/a", Verdict::Direct, 2, 1, Some(11)),
            ]
        );
        assert_eq!(groups[2].remotes, ["198.51.100.1:443"]);
    }
}
