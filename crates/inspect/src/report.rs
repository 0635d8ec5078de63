//! Network settings and logs for a report to others, and the removal of secrets from it.

pub mod redact;

use std::fmt::Write as _;
use std::process::Command;
use taupe_os_linux::netlink::{Netlink, NetlinkError};

/// Number of log lines in a report.
const LOG_LINES: &str = "200";

/// Lists links, addresses, routes and rules of the kernel.
///
/// # Errors
/// Returns an error if the kernel refuses a list.
pub fn network() -> Result<String, NetlinkError> {
    let mut system = Netlink::open()?;
    let mut text = String::new();
    let links = system.links()?;
    let name = |index: Option<u32>| {
        let link = links.iter().find(|link| Some(link.index) == index);
        link.map_or("-", |link| &*link.name)
    };
    for link in &links {
        let _ = writeln!(
            text,
            "link {} {}: {}, mtu {}, kind {}, part of {}",
            link.index,
            link.name,
            if link.up { "up" } else { "down" },
            link.mtu,
            link.kind.as_deref().unwrap_or("-"),
            name(link.controller)
        );
    }
    for address in system.addresses()? {
        let _ = writeln!(
            text,
            "address {} dev {}",
            address.network,
            name(Some(address.interface))
        );
    }
    for route in system.routes()? {
        let via = route
            .gateway
            .map_or("-".into(), |gateway| gateway.to_string());
        let _ = writeln!(
            text,
            "route {} {} via {via} dev {} table {} metric {}",
            route.kind,
            route.destination,
            name(route.interface),
            route.table,
            route.metric
        );
    }
    for rule in system.rules()? {
        let mark = rule.mark.map_or("-".into(), |mark| {
            format!("{:#x}/{:#x}", mark.value, mark.mask)
        });
        let not = if rule.invert { "not " } else { "" };
        let _ = writeln!(
            text,
            "rule {:?} {}: {not}mark {mark} table {}{}",
            rule.family,
            rule.priority,
            rule.table,
            if rule.is_incomplete { ", and more" } else { "" }
        );
    }
    Ok(text)
}

/// Returns the end of a service's log, or the reason why there is none. A tunnel in the background
/// without a service has no log.
///
/// # Errors
/// Returns the reason as text for the report.
pub fn log(unit: &str) -> Result<String, String> {
    let arguments = [
        "--unit",
        unit,
        "--lines",
        LOG_LINES,
        "--no-pager",
        "--output",
        "short-iso",
    ];
    let output = Command::new("journalctl").args(arguments).output();
    match output {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(_) => Err("this system has no systemd journal\n".into()),
    }
}
