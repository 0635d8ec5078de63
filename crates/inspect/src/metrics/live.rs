//! The state at one time, for the page of `taupe web`.

use super::{ApplicationFigures, DeviceFigures, Metrics, TimeFigures};
use crate::flows::{Flow, Flows, Verdict};
use crate::status::{self, Files, Looked, Status, StatusError};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Applications in the list, at most. Those that are blocked come first.
const MAX_APPLICATIONS: usize = 300;

/// Applications of one user, at most, so that a user cannot crowd out those of others.
const MAX_OF_USER: usize = 50;

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
    /// Number of blocked applications that are not in the list.
    pub blocked_left_out: u64,
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

/// Connections of one user's program that have the same path for the same reason.
#[derive(Serialize)]
#[expect(missing_docs, reason = "members of JSON whose names say it")]
pub struct ApplicationFacts {
    pub application: Option<String>,
    /// User of the sockets.
    pub uid: u32,
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
        let (applications, is_truncated, flows_error) = match flows {
            Ok(flows) => (by_application(&flows.flows), flows.truncated, None),
            Err(error) => (Vec::new(), false, Some(error)),
        };
        let Limited {
            applications,
            left_out,
            blocked_left_out,
        } = limited(applications);
        let is_truncated = is_truncated || left_out > 0;
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
            blocked_left_out,
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
            flow.uid,
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

/// Applications of the list, and the number of others.
struct Limited {
    applications: Vec<ApplicationFacts>,
    left_out: u64,
    blocked_left_out: u64,
}

fn limited(all: Vec<ApplicationFacts>) -> Limited {
    let mut of_users: BTreeMap<u32, usize> = BTreeMap::new();
    let mut limited = Limited {
        applications: Vec::new(),
        left_out: 0,
        blocked_left_out: 0,
    };
    for one in all {
        let of_user = of_users.entry(one.uid).or_default();
        if *of_user < MAX_OF_USER && limited.applications.len() < MAX_APPLICATIONS {
            *of_user += 1;
            limited.applications.push(one);
        } else {
            limited.left_out += 1;
            limited.blocked_left_out += u64::from(one.verdict == Verdict::Refused);
        }
    }
    limited
}

impl ApplicationFacts {
    fn of(flows: &[&Flow]) -> Option<Self> {
        let first = flows.first()?;
        let processes: BTreeSet<_> = flows.iter().filter_map(|flow| flow.pid).collect();
        let remotes = flows.iter().filter_map(|flow| flow.remote);
        let remotes: BTreeSet<_> = remotes.collect();
        let sum = |of: fn(&Flow) -> Option<u64>| {
            let mut bytes = flows.iter().map(|flow| of(flow));
            bytes.try_fold(0_u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
        };
        Some(Self {
            application: first.application.clone(),
            uid: first.uid,
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

    #[test]
    fn one_user_does_not_crowd_out_others() {
        let of_user = |uid, count: u32| {
            (0..count).map(move |number| Flow {
                uid,
                ..flow(&format!("/{uid}/{number}"), 1, Verdict::Refused, None)
            })
        };
        let flows: Vec<_> = of_user(1000, 500).chain(of_user(999, 1)).collect();
        let found = limited(by_application(&flows));
        let count = |uid| found.applications.iter().filter(|it| it.uid == uid).count();
        assert_eq!((count(1000), count(999)), (MAX_OF_USER, 1));
        assert_eq!((found.left_out, found.blocked_left_out), (450, 450));
    }

    #[test]
    fn a_sum_of_bytes_does_not_overflow() {
        let flows = [1, 2].map(|pid| flow("/a", pid, Verdict::Direct, Some(u64::MAX)));
        assert_eq!(by_application(&flows)[0].sent_bytes, Some(u64::MAX));
    }
}
