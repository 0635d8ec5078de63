//! Keeping a tunnel in step with the network.
//!
//! Routes to endpoints name the router of the present network. When it changes, or an endpoint
//! roams, they have to follow: otherwise datagrams go nowhere, or into the tunnel. [`follow()`]
//! compares a tunnel with a new snapshot and returns the changes, and [`keep_up()`] makes them.
//!
//! Routes into the tunnel that another program deletes stay deleted; that is reported once. If this
//! machine enters a network with the addresses of such a route, FreeBSD replaces it by that of the
//! interface (`RTF_PINNED`, `add_route_byinfo` in `sys/net/route/route_ctl.c`). It is added again when
//! that one has gone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use ipnet::IpNet;
use taupe_config::file::MIN_IPV6_MTU;
use taupe_config::mtu::mtu_inside;
use taupe_config::plan_note::PlanNote;
use taupe_os_bsd::System;
use taupe_os_bsd::routing::RouteEntry;
use taupe_uapi::network_set::host;

use crate::dns;
use crate::journal::{Journal, JournalError, LastingChange, Store};
use crate::machine::{Machine, Report, SnapshotRequest, StepError};
use crate::plan::{host_routes, narrowest_path};
use crate::route::{Hop, TunnelRoute};
use crate::snapshot::{ForeignRoutes, NetworkService, Snapshot, describe, hop_of};
use crate::tunnel::Tunnel;
use crate::undo::is_present;

/// A change that keeps a tunnel in step with the network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FollowChange {
    /// Delete a host route that is not needed any more. If it is gone already, forget it.
    Forget(TunnelRoute),
    /// Give a host route another next hop. Between the two calls, datagrams to its destination may
    /// enter the tunnel.
    Replace {
        /// The present route.
        from: TunnelRoute,
        /// The next one.
        to: TunnelRoute,
    },
    /// Add a host route.
    Add(TunnelRoute),
    /// Set the MTU in bytes.
    Mtu(u32),
    /// macOS: give this network service the tunnel's name servers. It has these settings now.
    Service(NetworkService),
    /// Report that the route into the tunnel to this network was deleted.
    Deleted(IpNet),
    /// Report that another route to this network, which is described, has replaced the tunnel's.
    Displaced(IpNet, String),
    /// Add a route into the tunnel that was replaced.
    Restore(TunnelRoute),
}

/// Returns the changes that a tunnel needs in a new state of the system, in order. After they were
/// made, there are none.
#[must_use]
pub fn follow(tunnel: &Tunnel, snapshot: &Snapshot) -> Vec<FollowChange> {
    let foreign = ForeignRoutes::of(snapshot, |entry| tunnel.has_added(snapshot, entry));
    let mut changes = Vec::new();
    let needed = match tunnel.has_hosts {
        true => host_routes(snapshot, &foreign, &tunnel.claimed(snapshot)),
        false => BTreeMap::new(),
    };
    let route = |address, hop: &Hop| TunnelRoute::new(host(address), hop.clone());
    let usual = snapshot.routes.iter().filter(|it| snapshot.is_usual(it));
    let present: HashSet<(IpNet, Hop)> = usual
        .map(|it| (it.route.destination, hop_of(snapshot, it)))
        .collect();
    let is_present = |it: &TunnelRoute| present.contains(&(it.destination, it.hop.clone()));
    let mut replaced = HashSet::new();
    for (address, hop) in &tunnel.hosts {
        let added = route(*address, hop);
        // The kernel has deleted it with its interface, or another program has.
        let is_gone = !is_present(&added);
        match needed.get(address) {
            Some(next) if next == hop && !is_gone => {}
            Some(next) if !is_gone => {
                replaced.insert(*address);
                changes.push(FollowChange::Replace {
                    from: added,
                    to: route(*address, next),
                });
            }
            _ => changes.push(FollowChange::Forget(added)),
        }
    }
    for (address, hop) in &needed {
        let wanted = route(*address, hop);
        let is_made = tunnel.hosts.get(address) == Some(hop) && is_present(&wanted);
        if !is_made && !replaced.contains(address) {
            changes.push(FollowChange::Add(wanted));
        }
    }
    if let Some(before) = tunnel.mtu {
        let least = if tunnel.ipv6 { MIN_IPV6_MTU } else { 0 };
        // Without a path, the present one is as good as any.
        let path = narrowest_path(snapshot, &foreign);
        let mtu = path.map_or(before, |path| mtu_inside(Some(path)).max(least));
        changes.extend((mtu != before).then_some(FollowChange::Mtu(mtu)));
    }
    if let (Some(settings), System::MacOs) = (&tunnel.dns, snapshot.system) {
        let other = snapshot.services.iter();
        let other = other.filter(|service| settings.of_service(&service.name) != **service);
        changes.extend(other.cloned().map(FollowChange::Service));
    }
    changes.extend(changes_of_routes(tunnel, snapshot));
    changes
}

/// Returns the changes for routes into the tunnel that are not there any more. Other FIBs are not
/// listed.
fn changes_of_routes<'a>(
    tunnel: &'a Tunnel,
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = FollowChange> + 'a {
    let usual = snapshot.routes.iter().filter(|it| snapshot.is_usual(it));
    let present: HashMap<IpNet, &RouteEntry> = usual.map(|it| (it.route.destination, it)).collect();
    let main = tunnel.routes.iter().filter(|route| route.fib.is_none());
    main.filter_map(move |route| {
        let network = route.destination;
        let is_displaced = tunnel.displaced.contains(&network);
        match present.get(&network) {
            Some(entry) if entry.interface == tunnel.device.index => None,
            Some(entry) if hop_of(snapshot, entry) == route.hop || is_displaced => None,
            Some(entry) => Some(FollowChange::Displaced(network, describe(snapshot, entry))),
            None if is_displaced => Some(FollowChange::Restore(route.clone())),
            None if tunnel.reported.contains(&network) => None,
            None => Some(FollowChange::Deleted(network)),
        }
    })
}

/// Error of following the network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The system cannot be examined or changed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Makes the changes that a tunnel needs in the present state of the system. Does nothing while
/// another process brings the tunnel up or down, or if the interface is gone. A change that the system refuses is reported, and
/// tried again at the next call.
///
/// # Errors
/// See [`FollowError`].
pub fn keep_up(
    machine: &mut dyn Machine,
    store: &Store,
    interface: &str,
    tunnel: &mut Tunnel,
    report: &mut dyn Report,
) -> Result<(), FollowError> {
    let lock = match store.lock(interface, Duration::ZERO) {
        Ok(lock) => lock,
        Err(JournalError::Busy(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let journal = lock.journal()?;
    let Some(mut journal) = journal.filter(Journal::is_of_this_process) else {
        return Ok(());
    };
    journal.compact()?;
    // Listing services takes many commands, which may fail; routes to endpoints do not wait for it.
    for services in [false, true] {
        let snapshot = machine.snapshot(SnapshotRequest {
            own: Some(tunnel.device.index),
            fib: None,
            services,
        })?;
        if snapshot.interface(tunnel.device.index).is_none() {
            // It ends: its routes have not been deleted by another program.
            return Ok(());
        }
        tunnel.forget_returned(&snapshot);
        let changes = follow(tunnel, &snapshot).into_iter();
        let is_of_pass = |it: &FollowChange| matches!(it, FollowChange::Service(_)) == services;
        for change in changes.filter(is_of_pass) {
            let mut following = Following {
                machine,
                journal: &mut journal,
                tunnel,
                report,
                snapshot: &snapshot,
            };
            match following.make(&change) {
                Err(FollowError::Step(error)) => {
                    let sentence = format!("{interface} cannot follow the network: {error}");
                    report.note(&PlanNote::from(sentence));
                }
                other => other?,
            }
        }
        if tunnel.dns.is_none() || snapshot.system != System::MacOs {
            break;
        }
    }
    Ok(())
}

/// The parts that changes need.
struct Following<'a> {
    machine: &'a mut dyn Machine,
    journal: &'a mut Journal,
    tunnel: &'a mut Tunnel,
    report: &'a mut dyn Report,
    snapshot: &'a Snapshot,
}

impl Following<'_> {
    fn make(&mut self, change: &FollowChange) -> Result<(), FollowError> {
        match change {
            FollowChange::Forget(route) => self.forget(route),
            FollowChange::Add(route) => self.add(route),
            FollowChange::Replace { from, to } => self.replace(from, to),
            FollowChange::Mtu(mtu) => {
                let name = &self.tunnel.device.name;
                self.report.step(&format!("ifconfig {name} mtu {mtu}"));
                self.machine.set_mtu(&self.tunnel.device, *mtu)?;
                self.tunnel.mtu = Some(*mtu);
                Ok(())
            }
            FollowChange::Service(service) => self.set_service(service),
            FollowChange::Deleted(network) => {
                let name = &self.tunnel.device.name;
                let sentence = format!(
                    "the route to {network} through {name} was deleted by another program: its \
                     traffic bypasses the tunnel"
                );
                self.report.note(&PlanNote::from(sentence));
                self.tunnel.reported.insert(*network);
                Ok(())
            }
            FollowChange::Displaced(network, other) => {
                let name = &self.tunnel.device.name;
                let sentence = format!(
                    "{network} is not tunnelled by {name} any more: there is another route, \
                     `{other}`"
                );
                self.report.note(&PlanNote::from(sentence));
                self.tunnel.displaced.insert(*network);
                Ok(())
            }
            FollowChange::Restore(route) => self.restore(route),
        }
    }

    /// Adds a route again that was replaced. One that refuses packets is in the journal still.
    fn restore(&mut self, route: &TunnelRoute) -> Result<(), FollowError> {
        let device = &self.tunnel.device;
        self.report.step(&route.command("add", &device.name));
        self.machine.add_route(device.index, route)?;
        self.tunnel.displaced.remove(&route.destination);
        Ok(())
    }

    fn forget(&mut self, route: &TunnelRoute) -> Result<(), FollowError> {
        if is_present(self.snapshot, route) {
            let command = route.command("delete", &self.tunnel.device.name);
            self.report.step(&command);
            self.machine.delete_route(route)?;
        }
        self.tunnel.hosts.remove(&route.destination.addr());
        let number = self.journal.number_of(&LastingChange::Route(route.clone()));
        if let Some(number) = number {
            self.journal.undone(number)?;
        }
        Ok(())
    }

    /// The journal is written before and after, not between the two calls.
    fn replace(&mut self, from: &TunnelRoute, to: &TunnelRoute) -> Result<(), FollowError> {
        let number = self.journal.record(LastingChange::Route(to.clone()))?;
        self.report
            .step(&from.command("delete", &self.tunnel.device.name));
        if let Err(error) = self.machine.delete_route(from) {
            self.journal.undone(number)?;
            return Err(error.into());
        }
        let added = self.add_recorded(to, number);
        if added.is_err() {
            self.tunnel.hosts.remove(&from.destination.addr());
        }
        let number = self.journal.number_of(&LastingChange::Route(from.clone()));
        if let Some(number) = number {
            self.journal.undone(number)?;
        }
        added
    }

    fn add(&mut self, route: &TunnelRoute) -> Result<(), FollowError> {
        let number = self.journal.record(LastingChange::Route(route.clone()))?;
        self.add_recorded(route, number)
    }

    fn add_recorded(&mut self, route: &TunnelRoute, number: usize) -> Result<(), FollowError> {
        self.report
            .step(&route.command("add", &self.tunnel.device.name));
        match self.machine.add_route(self.tunnel.device.index, route) {
            Ok(()) => {
                let address = route.destination.addr();
                self.tunnel.hosts.insert(address, route.hop.clone());
                Ok(())
            }
            Err(error) => {
                self.journal.undone(number)?;
                Err(error.into())
            }
        }
    }

    fn set_service(&mut self, service: &NetworkService) -> Result<(), FollowError> {
        let Some(settings) = &self.tunnel.dns else {
            return Ok(());
        };
        // The settings from before the tunnel are recorded already, unless the service is new.
        let is_recorded = self.journal.changes().any(|(_, change)| {
            matches!(change, LastingChange::Service(before) if before.name == service.name)
        });
        if !is_recorded {
            self.journal
                .record(LastingChange::Service(service.clone()))?;
        }
        for command in dns::set_service(&settings.of_service(&service.name)) {
            self.report.step(&command);
            let printed = self.machine.run(&command)?;
            if let Some(error) = dns::service_error(&printed) {
                let (command, outcome) = (command.to_string(), error.to_owned());
                return Err(StepError::Command { command, outcome }.into());
            }
        }
        Ok(())
    }
}
