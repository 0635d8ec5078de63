//! Continuous output of new, changed and ended flows.

use super::{line, look, with_advice};
use crate::arguments::FlowsOrder;
use crate::console::{NotPrinted, print};
use crate::repeat::repeat;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;
use taupe_inspect::flows::{Flow, Flows, FlowsError, Id};
use taupe_inspect::json;

/// Interval between two readings of the flows.
const EVERY: Duration = Duration::from_secs(1);

/// Prints changes until the output is closed.
pub(super) fn follow(order: &FlowsOrder, first: Flows) -> Result<(), NotPrinted> {
    let mut before = BTreeMap::new();
    let handle = |flows: Result<Flows, &FlowsError>| {
        let now = match flows {
            Ok(flows) => by_id(flows),
            // A tunnel that no longer exists has no flows.
            Err(FlowsError::NotUp(_)) => BTreeMap::new(),
            Err(_) => return Ok(()),
        };
        print_changes(order, &before, &now)?;
        before = now;
        Ok(())
    };
    let read = || look(order.file.as_deref());
    repeat(EVERY, first, read, with_advice, handle)
}

fn by_id(flows: Flows) -> BTreeMap<Id, Flow> {
    let flows = flows.flows.into_iter();
    flows.map(|flow| (flow.id(), flow)).collect()
}

fn print_changes(
    order: &FlowsOrder,
    before: &BTreeMap<Id, Flow>,
    now: &BTreeMap<Id, Flow>,
) -> Result<(), NotPrinted> {
    let text: String = changes(before, now)
        .into_iter()
        .map(|(event, flow)| match order.json {
            true => json::line(&FlowEvent { event, flow }),
            false => format!("{} {}\n", event.mark(), line(flow)),
        })
        .collect();
    print(text.as_bytes())
}

/// Returns the changes from one reading to the next.
fn changes<'a>(
    before: &'a BTreeMap<Id, Flow>,
    now: &'a BTreeMap<Id, Flow>,
) -> Vec<(Event, &'a Flow)> {
    let gone = before.iter().filter(|(id, _)| !now.contains_key(*id));
    let gone = gone.map(|(_, flow)| (Event::Ended, flow));
    let others = now.iter().filter_map(|(id, flow)| match before.get(id) {
        None => Some((Event::Begun, flow)),
        Some(old) if (old.verdict, &old.tunnel) != (flow.verdict, &flow.tunnel) => {
            Some((Event::Changed, flow))
        }
        Some(_) => None,
    });
    gone.chain(others).collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Event {
    Begun,
    Changed,
    Ended,
}

impl Event {
    const fn mark(self) -> char {
        match self {
            Self::Begun => '+',
            Self::Changed => '=',
            Self::Ended => '-',
        }
    }
}

/// A line of `--follow --json`.
#[derive(Serialize)]
struct FlowEvent<'a> {
    event: Event,
    #[serde(flatten)]
    flow: &'a Flow,
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_inspect::flows::Verdict;

    fn flow(cookie: u64, verdict: Verdict) -> Flow {
        Flow {
            protocol: "tcp",
            local: "192.0.2.1:1024".parse().unwrap(),
            remote: "198.51.100.1:443".parse().ok(),
            tunnel: None,
            verdict,
            pid: Some(1),
            application: Some("/sbin/init".into()),
            uid: 0,
            sent_bytes: None,
            received_bytes: None,
            why: None,
            cookie,
        }
    }

    #[test]
    fn new_ended_and_changed_flows_are_printed() {
        let by_id = |flows: &[Flow]| -> BTreeMap<Id, Flow> {
            flows.iter().map(|one| (one.id(), one.clone())).collect()
        };
        let before = by_id(&[
            flow(1, Verdict::Direct),
            flow(2, Verdict::Direct),
            flow(3, Verdict::Tunnel),
        ]);
        let mut busy = flow(3, Verdict::Tunnel);
        busy.sent_bytes = Some(7);
        let now = by_id(&[flow(2, Verdict::Tunnel), busy, flow(4, Verdict::Refused)]);
        let changed = changes(&before, &now);
        let changed: Vec<_> = changed
            .iter()
            .map(|(event, flow)| (*event, flow.cookie))
            .collect();
        assert_eq!(
            changed,
            [(Event::Ended, 1), (Event::Changed, 2), (Event::Begun, 4)]
        );
        let line = json::line(&FlowEvent {
            event: Event::Begun,
            flow: &flow(1, Verdict::Direct),
        });
        assert!(
            line.starts_with(r#"{"event":"begun","protocol":"tcp""#),
            "{line}"
        );
        assert_eq!(line.matches('\n').count(), 1);
    }
}
