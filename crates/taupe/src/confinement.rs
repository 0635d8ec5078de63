//! Confinement of processes that hold keys: the paths that each of them needs, and messages about
//! layers that do not hold.

use rustix::thread::CapabilitySet;
use std::env;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use taupe_config::file::{Endpoint, File};
use taupe_confine::{
    CallList, LayerState, LayerStatus, OnViolation, Rights, enter_empty_root, lists,
    resolver_paths, restrict_calls, restrict_thread,
};
use taupe_inspect::is_root;
use taupe_os_linux::udp::read_kernel_version;
use taupe_runtime::create_state_dir;

/// The first port that needs no capability, unless the system is configured otherwise
/// (`net.ipv4.ip_unprivileged_port_start`).
const FIRST_FREE_PORT: u16 = 1024;

/// Confines the process of `taupe proxy`, whose sockets are bound. `has_names` is true if it may look
/// up endpoint names later.
pub(crate) fn confine_proxy(state_dir: Option<&Path>, has_names: bool) {
    let rights = Rights {
        state_folders: state_folder(state_dir),
        readable: readable(has_names),
        asks_name_servers: has_names,
        abstract_sockets: notifies_abstract_socket(),
        ..Rights::none()
    };
    let confinement = Confinement {
        layers: restrict_thread(&rights).into(),
        list: &lists::PROXY,
    };
    confinement.finish();
}

/// Confinement of a process whose threads are restricted, and whose calls are not yet.
pub(crate) struct Confinement {
    layers: Vec<LayerStatus>,
    list: &'static CallList,
}

impl Confinement {
    /// Restricts this thread of `taupe exec`, and those that it starts later. `folder` is that of the
    /// rendezvous.
    pub(crate) fn of_threads(file: &File, state_dir: Option<&Path>, folder: &Path) -> Self {
        read_kernel_version();
        let is_name = |endpoint: &Endpoint| matches!(endpoint, Endpoint::Name { .. });
        let mut endpoints = file.peers.iter().filter_map(|peer| peer.endpoint.as_ref());
        let has_names = endpoints.any(is_name);
        let rights = Rights {
            state_folders: state_folder(state_dir),
            readable: readable(has_names),
            removable: vec![folder.to_owned()],
            asks_name_servers: has_names,
            // The command.
            signals_others: true,
            capabilities: needed_capabilities(file),
            ..Rights::none()
        };
        Self {
            layers: restrict_thread(&rights).into(),
            list: &lists::EXEC,
        }
    }

    /// Restricts the only thread of a packet process, and those that it starts later. It may open
    /// nothing.
    pub(crate) fn of_packets() -> Self {
        read_kernel_version();
        Self::without_paths(&lists::PACKETS)
    }

    /// Restricts the only thread of the process that serves metrics, and those that it starts later. It
    /// may open nothing.
    pub(crate) fn of_metrics() -> Self {
        Self::without_paths(&lists::METRICS)
    }

    fn without_paths(list: &'static CallList) -> Self {
        // The list of calls refuses paths too. This takes CAP_SYS_ADMIN, which the systemd units do not
        // give.
        match enter_empty_root() {
            Ok(()) => tracing::debug!("{} has an empty root directory", list.process),
            Err(error) => tracing::debug!(%error, "{} keeps the root directory", list.process),
        }
        Self {
            layers: restrict_thread(&Rights::none()).into(),
            list,
        }
    }

    /// Restricts the calls of all threads, and logs which layers hold.
    pub(crate) fn finish(mut self) {
        let calls = restrict_calls(self.list, OnViolation::from_environment());
        self.layers.push(calls);
        for status in &self.layers {
            let process = self.list.process;
            match &status.state {
                LayerState::Holds => tracing::debug!("{process} is confined: {status}"),
                LayerState::Partly(_) => tracing::info!("{process} is confined: {status}"),
                LayerState::Missing(_) => tracing::warn!("{process} is less confined: {status}"),
            }
        }
    }
}

/// Returns the capabilities that root's device may need again when it replaces its sockets.
fn needed_capabilities(file: &File) -> CapabilitySet {
    let interface = &file.interface;
    let mut needed = CapabilitySet::empty();
    if interface.fwmark.is_some_and(|mark| mark != 0) {
        needed |= CapabilitySet::NET_ADMIN;
    }
    if interface
        .listen_port
        .is_some_and(|port| (1..FIRST_FREE_PORT).contains(&port))
    {
        needed |= CapabilitySet::NET_BIND_SERVICE;
    }
    needed
}

/// Returns the folder of the saved state, which must exist before Landlock can permit it.
fn state_folder(state_dir: Option<&Path>) -> Vec<PathBuf> {
    let created = create_state_dir(state_dir);
    // Saving state fails then too, and warns.
    let created = created.inspect_err(|error| tracing::debug!(%error, "no folder for state"));
    created.into_iter().collect()
}

fn readable(has_names: bool) -> Vec<PathBuf> {
    match has_names {
        true => resolver_paths(is_root()),
        false => Vec::new(),
    }
}

/// Checks whether the service manager is notified at an abstract socket (`sd_notify(3)`).
fn notifies_abstract_socket() -> bool {
    env::var_os("NOTIFY_SOCKET").is_some_and(|path| path.as_bytes().starts_with(b"@"))
}

#[cfg(test)]
mod tests {
    use super::needed_capabilities;
    use rustix::thread::CapabilitySet;
    use taupe_config::file::{Dialect, parse};

    #[test]
    fn capabilities_stay_only_for_marks_and_low_ports() {
        for (lines, expected) in [
            ("", CapabilitySet::empty()),
            ("FwMark = off\nListenPort = 51820", CapabilitySet::empty()),
            ("FwMark = 7", CapabilitySet::NET_ADMIN),
            ("ListenPort = 443", CapabilitySet::NET_BIND_SERVICE),
        ] {
            let text = format!(
                "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n{lines}\n"
            );
            let file = parse(text.as_bytes(), Dialect::Taupe).file.expect("a file");
            assert_eq!(needed_capabilities(&file), expected, "{lines}");
        }
    }
}
