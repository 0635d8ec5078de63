//! `taupe prove`: evidence that an application's traffic goes through its tunnel.
//!
//! ```text
//! prove ─┬─ watch    captures what leaves by every interface, and attributes it
//!        ├─ control  sends a packet that must be seen outside the tunnel
//!        └─ actor    starts the probe: this program in the place of the application's executable
//!             └─ probe   sends packets, each with a nonce
//! ```
//!
//! Nothing that it creates outlives it. The probe's place exists only in the probe's own mount
//! namespace, and the probe ends when its standard input is closed. It adds no rule: the application's
//! own rule selects the probe.

mod actor;
mod control;
mod plan;
pub(crate) mod probe;
mod text;
mod watch;

use crate::arguments::ProveOrder;
use crate::console::{print, say};
use crate::interrupt::Interrupt;
use crate::root;
use control::Control;
use plan::Plan;
use probe::ProbeAnswer;
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use taupe_adapter::Compatibility;
use taupe_inspect::json;
use taupe_inspect::prove::{
    Nonces, ProbeReport, ProbeVerdict, ProofReport, ProofResult, ProofTarget, TargetError,
    TcpProbe, Unobserved,
};
use taupe_inspect::tunnel::{file_argument, file_of};
use taupe_os_linux::netlink::NetlinkError;
use taupe_transparent::state::Lock;
use watch::Watch;

/// Exit status if the observation cannot count as evidence.
const NOT_OBSERVED: u8 = 3;

/// Nonces of the two controls. Those of the probes follow.
const CONTROLS: usize = 2;

/// Time in which the capture must see a control.
const CONTROL_TIME: Duration = Duration::from_secs(2);

/// Time in which packets of the last probe may still come.
const SETTLING: Duration = Duration::from_millis(300);

/// Reason why nothing was observed.
#[derive(Debug, thiserror::Error)]
enum ProveError {
    #[error(transparent)]
    NotRoot(#[from] root::RootError),
    #[error("{}", with_advice(.0))]
    Target(#[from] TargetError),
    #[error(transparent)]
    System(#[from] NetlinkError),
    #[error("cannot capture packets: {0}")]
    Capture(#[source] io::Error),
    #[error("cannot catch signals: {0}")]
    Signals(#[source] io::Error),
}

fn with_advice(error: &TargetError) -> String {
    match error {
        TargetError::Explain(error) => crate::explain::with_advice(error),
        TargetError::NotSelected {
            script: Some(warning),
            ..
        } => format!("{error}: {warning}"),
        TargetError::NotSelected {
            application,
            tunnels,
            script: None,
        } => match tunnels.first() {
            Some(tunnel) => format!(
                "{error}; `sudo taupe app allow {} {application}` selects it",
                file_argument(tunnel, file_of(tunnel).as_deref())
            ),
            None => error.to_string(),
        },
        TargetError::Ambiguous { .. } => format!("{error}; choose one with --tunnel NAME"),
        TargetError::NoSuchTunnel { .. } => {
            format!("{error}; `taupe status` lists the tunnels that are")
        }
        error => error.to_string(),
    }
}

/// Observes, and prints the report.
pub(crate) fn main(order: &ProveOrder, arguments: &[OsString]) -> ExitCode {
    let report = match run(order, arguments) {
        Ok(report) => report,
        Err(error) => return crate::complain(&error, NOT_OBSERVED),
    };
    let text = match order.json {
        true => json::text(&report),
        false => text::text(&report),
    };
    let status = match report.result {
        ProofResult::NothingFound => ExitCode::SUCCESS,
        ProofResult::Leak => crate::FAILED.into(),
        ProofResult::NotObserved => NOT_OBSERVED.into(),
    };
    match print(text.as_bytes()) {
        Ok(()) => status,
        // Exit status 1 would mean a leak.
        Err(error) if error.is_broken_pipe() => NOT_OBSERVED.into(),
        Err(error) => crate::complain(&error, NOT_OBSERVED),
    }
}

fn run(order: &ProveOrder, arguments: &[OsString]) -> Result<ProofReport, ProveError> {
    root::require(Compatibility::Taupe, arguments)?;
    let target = ProofTarget::find(&order.application, order.tunnel.as_deref())?;
    let interrupt = Interrupt::default();
    let set = || {
        let interrupt = interrupt.clone();
        move || interrupt.set(true)
    };
    // The end of the terminal is one of the observation too.
    crate::system::on_signal(set(), set()).map_err(ProveError::Signals)?;
    let uplinks = target.uplinks()?;
    let (is_up, lock) = target.state()?;
    let plan = Plan::new(&uplinks, &target.endpoints(), order.stun, |to| {
        target.has_route(to)
    });
    let mut random = [0; 8];
    taupe_runtime::random::fill(&mut random);
    let nonces = Nonces::new(random);

    // Starting the probe takes the longest, and needs no capture.
    let actor = actor::start(&target.subject);
    let mut reasons = Vec::new();
    let (mut actor, probe) = match actor {
        Ok(actor) => match target.selects(actor.id()) {
            true => {
                let description = actor.description.clone();
                (Some(actor), description)
            }
            false => {
                reasons.push(Unobserved::ProbeNotSelected);
                let why = "the tunnel's rules did not select it, although it had the application's \
                           executable path, user and control group";
                (None, why.to_owned())
            }
        },
        Err(error) => {
            reasons.push(Unobserved::ProbeNotStarted);
            (None, error.to_string())
        }
    };
    let count = CONTROLS + plan.probes.len();
    let own = actor.as_ref().map(actor::Actor::id);
    let begun = Instant::now();
    let mut watch =
        Watch::begin(&target, nonces.clone(), count, own).map_err(ProveError::Capture)?;

    let control = Control::new(
        &target,
        &uplinks,
        order.control,
        !is_up && lock == Lock::All,
    );
    let mut notes = [control.send(&nonces.nonce(0)), None];
    watch.until(CONTROL_TIME.min(order.duration), &interrupt, |watch| {
        !control.is_tried() || watch.has_seen(0)
    });
    let mut outcomes = Vec::new();
    for (number, planned) in (CONTROLS..).zip(&plan.probes) {
        let outcome = match (&planned.skipped, &mut actor) {
            (Some(why), _) => ProbeAnswer::Skipped(why.clone()),
            (None, None) => ProbeAnswer::Skipped("there is no probe".into()),
            (None, Some(_)) if interrupt.is_set() => ProbeAnswer::Skipped("interrupted".into()),
            (None, Some(running)) => match running.ask(planned, &nonces.nonce(number)) {
                Ok(answer) => answer,
                Err(error) => {
                    reasons.push(Unobserved::ProbeEnded);
                    actor = None;
                    ProbeAnswer::Skipped(format!("the probe has ended: {error}"))
                }
            },
        };
        if let (ProbeAnswer::Sent { port: Some(port) }, Some(destination)) =
            (&outcome, planned.destination)
        {
            watch.add_tcp_probe(TcpProbe {
                number,
                port: *port,
                destination,
            });
        }
        watch.turn();
        outcomes.push(outcome);
    }
    watch.until(
        order.duration.saturating_sub(begun.elapsed()),
        &interrupt,
        |_| false,
    );
    // A signal does not end the observation before the packets of the probes could come.
    watch.settle(SETTLING);
    let is_interrupted = interrupt.is_set();
    if is_interrupted {
        reasons.push(Unobserved::Interrupted);
    }
    notes[1] = control.send(&nonces.nonce(1));
    interrupt.set(false);
    watch.until(CONTROL_TIME, &interrupt, |watch| {
        !control.is_tried() || watch.has_seen(1)
    });
    let processes = watch.processes().to_vec();
    // The tunnel may have been taken down meanwhile, which is no reason to withhold the report.
    let flows = target.flows(&processes).unwrap_or_else(|error| {
        say(&format_args!("[!] {}", crate::flows::with_advice(&error)));
        Vec::new()
    });
    drop(actor);
    let elapsed = begun.elapsed();
    let seen = watch.finish();
    if seen.observed.is_incomplete {
        reasons.push(Unobserved::TablesFull);
    }
    if seen.has_failed {
        reasons.push(Unobserved::SocketsUnknown);
    }
    let probes = (CONTROLS..).zip(plan.probes.iter().zip(&outcomes));
    let probes =
        probes.map(|(number, (planned, outcome))| judge(&target, &seen, number, planned, outcome));
    let report = ProofReport {
        schema: 1,
        result: ProofResult::NotObserved,
        reasons,
        application: target.subject.shown_path(),
        tunnel: target.tunnel.clone(),
        is_up,
        kill_switch: (!is_up).then(|| lock.to_string()),
        steps: target.steps(),
        processes,
        flows,
        seconds: elapsed.as_secs_f64(),
        requested_seconds: order.duration.as_secs(),
        uplinks: uplinks
            .links
            .iter()
            .map(|(_, name)| text::escaped(name))
            .collect(),
        probe,
        probes: probes.collect(),
        control: control.report(&seen, notes),
        traffic: seen.traffic(&target),
    };
    Ok(report.conclude())
}

/// Judges a probe by what the capture has seen.
fn judge(
    target: &ProofTarget,
    seen: &watch::Seen,
    number: usize,
    planned: &plan::PlannedProbe,
    outcome: &ProbeAnswer,
) -> ProbeReport {
    let outside = seen.observed.outside.get(&number);
    let verdict = match outside {
        Some(sighting) => match sighting.destination {
            Some(destination) if target.bypasses(destination) => ProbeVerdict::ByFile,
            _ => ProbeVerdict::Leaked,
        },
        None if seen.observed.in_tunnel.contains_key(&number) => ProbeVerdict::Tunnel,
        None => unseen(planned, outcome),
    };
    ProbeReport {
        name: planned.name,
        verdict,
        destination: planned.destination,
        interface: outside.map(|sighting| seen.interface(sighting.interface)),
        seen_destination: outside.and_then(|sighting| sighting.destination),
        after_ms: outside.map(|sighting| watch::milliseconds(sighting.at)),
        note: match outcome {
            ProbeAnswer::Sent { .. } if verdict == ProbeVerdict::NotSeen => Some(LOCAL.into()),
            ProbeAnswer::Sent { .. } => None,
            ProbeAnswer::Refused { why, .. } | ProbeAnswer::Skipped(why) => Some(why.clone()),
        },
    }
}

/// Remark about a query that a resolver on this machine has got.
const LOCAL: &str = "the resolver may have answered itself, or it encrypts its queries";

/// Errors by which the kernel or Taupe's programs there refuse to send. `ENETUNREACH` is one, since a
/// probe is only sent if the system has a route.
const REFUSALS: [Errno; 4] = [
    Errno::PERM,
    Errno::ACCESS,
    Errno::CONNREFUSED,
    Errno::NETUNREACH,
];

/// Judges a probe whose packet the capture has not seen.
fn unseen(planned: &plan::PlannedProbe, outcome: &ProbeAnswer) -> ProbeVerdict {
    // The kernel reports the drop of a ping by a filter at the uplink as a lack of buffers.
    let by_filter = (planned.kind == probe::Kind::Ping).then_some(Errno::NOBUFS);
    let is_refusal = |code: i32| {
        let mut all = REFUSALS.into_iter().chain(by_filter);
        all.any(|one| one.raw_os_error() == code)
    };
    let is_local = planned.destination.is_some_and(|to| to.ip().is_loopback());
    match outcome {
        ProbeAnswer::Sent { .. } if is_local => ProbeVerdict::NotSeen,
        ProbeAnswer::Sent { .. } => ProbeVerdict::Blocked,
        ProbeAnswer::Refused { code, .. } if is_refusal(*code) => ProbeVerdict::Blocked,
        ProbeAnswer::Refused { .. } | ProbeAnswer::Skipped(_) => ProbeVerdict::NotTried,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_means_that_a_packet_was_blocked() {
        let planned = |to: &str| plan::PlannedProbe {
            name: "dns-udp",
            kind: probe::Kind::Dns,
            destination: to.parse().ok(),
            binding: None,
            skipped: None,
        };
        let [remote, local] = ["192.0.2.53:53", "127.0.0.53:53"].map(planned);
        let sent = ProbeAnswer::Sent { port: None };
        assert_eq!(unseen(&remote, &sent), ProbeVerdict::Blocked);
        assert_eq!(unseen(&local, &sent), ProbeVerdict::NotSeen);
        for (error, expected) in [
            (Errno::PERM, ProbeVerdict::Blocked),
            (Errno::ACCESS, ProbeVerdict::Blocked),
            (Errno::CONNREFUSED, ProbeVerdict::Blocked),
            (Errno::NETUNREACH, ProbeVerdict::Blocked),
            (Errno::HOSTUNREACH, ProbeVerdict::NotTried),
            (Errno::INVAL, ProbeVerdict::NotTried),
            (Errno::NOBUFS, ProbeVerdict::NotTried),
        ] {
            let refused = ProbeAnswer::Refused {
                code: error.raw_os_error(),
                why: String::new(),
            };
            assert_eq!(unseen(&local, &refused), expected, "{error}");
        }
        let ping = plan::PlannedProbe {
            kind: probe::Kind::Ping,
            ..planned("192.0.2.1:9")
        };
        let dropped = ProbeAnswer::Refused {
            code: Errno::NOBUFS.raw_os_error(),
            why: String::new(),
        };
        assert_eq!(unseen(&ping, &dropped), ProbeVerdict::Blocked);
    }
}
