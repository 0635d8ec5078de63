//! `show` and `showconf`.

use super::{Call, Compatibility, Failed, Outcome, console};
use crate::system;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::{Duration, SystemTime};
use taupe_client::{Device, PublicKey, Suite};
use taupe_uapi::show::{self, Extra, Field, PrettyOptions};

pub(super) fn show(call: &Call<'_>) -> Outcome {
    let word = |index: usize| call.rest.get(index).map(|word| word.to_string_lossy());
    let (which, field) = (word(0), word(1));
    match (which.as_deref(), field.as_deref(), call.rest.len()) {
        (Some("-h" | "--help" | "help"), None, _) => {
            call.print_usage();
            Ok(())
        }
        (_, _, 3..) | (Some("interfaces"), Some(_), _) => Err(call.misused()),
        (None | Some("all"), field, _) => all(call, field),
        (Some("interfaces"), None, _) => interfaces(call),
        (Some(interface), field, _) => {
            if call.compatibility == Compatibility::Taupe && report_killed(|name| name == interface)
            {
                return Err(Failed);
            }
            let device = read(call, interface)?;
            one(call, &device, field, false)
        }
    }
}

pub(super) fn showconf(call: &Call<'_>) -> Outcome {
    let [interface] = call.rest else {
        return Err(call.misused());
    };
    let device = read(call, &interface.to_string_lossy())?;
    let mut output = console::Output::new();
    // `finish` reports errors of the output.
    let more = call.compatibility == Compatibility::Taupe;
    let _ = show::showconf(&mut output, &device, more, &taupe_client::zone::name);
    output.finish()
}

/// Prints a line for each tunnel whose process was killed. Returns true if there are any.
fn report_killed(is_asked_for: impl Fn(&str) -> bool) -> bool {
    let messages = system::killed_tunnels(is_asked_for);
    for message in &messages {
        console::complain(format!("taupe: {message}\n").as_bytes());
    }
    !messages.is_empty()
}

fn read(call: &Call<'_>, interface: &str) -> Result<Device, Failed> {
    taupe_client::read(interface)
        .map_err(|error| call.refused("Unable to access interface", interface, &error))
}

fn names(call: &Call<'_>) -> Result<Vec<String>, Failed> {
    let names = taupe_client::interfaces().map_err(|error| {
        let errno = error.raw_os_error().unwrap_or_default();
        let wg = format!(
            "Unable to list interfaces: {}",
            taupe_client::errno_text(errno)
        );
        call.failed(wg.as_bytes(), || {
            let who = system::ADMINISTRATOR;
            format!("cannot list the interfaces: {error}; only {who} can see all of them")
        })
    })?;
    let is_taupe = call.compatibility == Compatibility::Taupe;
    if names.is_empty() && is_taupe && !system::sees_all_devices() {
        console::complain(b"taupe: only root sees WireGuard devices; run it with sudo\n");
    }
    Ok(names)
}

fn interfaces(call: &Call<'_>) -> Outcome {
    let names = names(call)?;
    if names.is_empty() {
        return Ok(());
    }
    console::print(format!("{}\n", names.join(" ")).into_bytes())
}

/// Fails only if there are interfaces and none of them can be read.
fn all(call: &Call<'_>, field: Option<&str>) -> Outcome {
    if call.compatibility == Compatibility::Taupe {
        report_killed(|_| true);
    }
    let names = names(call)?;
    let mut outcome = if names.is_empty() {
        Ok(())
    } else {
        Err(Failed)
    };
    let mut rest = names.iter();
    while let Some(name) = rest.next() {
        match taupe_client::read(name) {
            Ok(device) => {
                one(call, &device, field, true)?;
                if field.is_none() && rest.len() != 0 {
                    console::print(b"\n".to_vec())?;
                }
                outcome = Ok(());
            }
            Err(error) => {
                let _ = call.refused(&format!("Unable to access interface {name}"), name, &error);
            }
        }
    }
    outcome
}

fn one(call: &Call<'_>, device: &Device, field: Option<&str>, with_name: bool) -> Outcome {
    let mut output = console::Output::new();
    let _ = match field {
        None => pretty(call, &mut output, device),
        Some(word) => {
            let Ok(field) = word.parse::<Field>() else {
                // At this point `wg` has printed the name only for valid fields.
                console::complain(format!("Invalid parameter: `{word}'\n").as_bytes());
                return Err(call.misused());
            };
            show::field(
                &mut output,
                device,
                field,
                with_name,
                &taupe_client::zone::name,
            )
        }
    };
    output.finish()
}

fn pretty(call: &Call<'_>, output: &mut console::Output, device: &Device) -> std::fmt::Result {
    let more = match call.compatibility {
        Compatibility::Taupe => {
            let mut lines = system::tunnel_lines(&device.name);
            lines.extend(fingerprints(device));
            Some((lines, system::peer_names(&device.name)))
        }
        Compatibility::Wg => None,
    };
    let name: &dyn Fn(&PublicKey) -> Option<String> =
        &|key| more.as_ref().and_then(|(_, names)| names.get(key).cloned());
    let how = PrettyOptions {
        colours: console::colours(),
        show_keys: std::env::var_os("WG_HIDE_KEYS").as_deref() == Some(OsStr::new("never")),
        now: SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO),
        boot: taupe_runtime::clock::boot(),
        scopes: &taupe_client::zone::name,
        extra: more.as_ref().map(|(lines, _)| Extra { lines, name }),
    };
    show::pretty(output, device, &how)
}

/// Returns the fingerprints by which peers see this device's ML-KEM key, one for each suite of a
/// peer. Without such peers, returns the fingerprint for the default suite.
fn fingerprints(device: &Device) -> Vec<(&'static str, String)> {
    let Some(seed) = &device.status.pq_private_key else {
        return Vec::new();
    };
    let peers = device.status.peers.iter();
    let keys = peers.filter_map(|peer| peer.pq_public_key.as_ref());
    let mut suites: BTreeSet<Suite> = keys.map(|key| key.suite()).collect();
    if suites.is_empty() {
        suites.insert(Suite::Hybrid768);
    }
    let suites = suites.into_iter().rev();
    let line = |suite: Suite| {
        let fingerprint = show::fingerprint(&taupe_client::pq_public_key(seed, suite));
        let text = format!("{fingerprint} ({})", suite.name());
        ("post-quantum key", text)
    };
    suites.map(line).collect()
}
