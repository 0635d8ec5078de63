//! Linux.

mod unix;

pub(crate) use unix::{ADMINISTRATOR, CONF_FOLDER, DENIED, is_world_accessible, on_signal};
pub(crate) use unix::{stdin, stdout};

pub(crate) use crate::confinement::confine_proxy;
pub(crate) use crate::state_dir::PlaceError as StateFolderError;
/// Only root sees the devices of the kernel.
pub(crate) use taupe_inspect::is_root as sees_all_devices;

use crate::state_dir::StateDir;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use sd_notify::{NotifyState, notify};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use taupe_adapter::State;
use taupe_adapter::journal::Header;
use taupe_client::PublicKey;
use taupe_config::file::File;
use taupe_confine::{Rights, restrict_thread};
use taupe_inspect::tunnel::{file_argument, open_maps};
use taupe_transparent::programs::CaptureMode;

/// Disables core files, which would contain keys. If the system refuses, they stay enabled.
pub(crate) fn disable_core_files() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// As [`on_signal`]. The thread that waits for signals opens nothing.
pub(crate) fn on_signal_confined(
    end: impl FnMut() + Send + 'static,
    hangup: impl FnMut() + Send + 'static,
) -> io::Result<()> {
    let (restricted, wait) = mpsc::channel();
    let begin = move || {
        // The process reports the layers when it confines its other thread.
        restrict_thread(&Rights::none());
        let _ = restricted.send(());
    };
    unix::on_signal_after(begin, end, hangup)?;
    // Once the list of calls holds, the thread could not restrict itself.
    let _ = wait.recv();
    Ok(())
}

/// Waits. Returns true immediately if the reader of standard output is gone.
pub(crate) fn is_closed_within(time: Duration) -> bool {
    let output = rustix::stdio::stdout();
    // Without requested events, only an error or the closed reader ends the wait.
    let mut ends = [PollFd::new(&output, PollFlags::empty())];
    let time = time.try_into().ok();
    poll(&mut ends, time.as_ref()).is_ok_and(|ended| ended > 0)
}

/// Tells the service manager that the service can be used.
pub(crate) fn notify_ready() {
    let _ = notify(&[NotifyState::Ready]);
}

/// Tells the service manager that the service ends.
pub(crate) fn notify_stopping() {
    let _ = notify(&[NotifyState::Stopping]);
}

/// Returns the folder for the state of a file's peers, as devices expect it, and a warning if that
/// state will be lost.
pub(crate) fn state_folder(
    file: &File,
) -> Result<(Option<PathBuf>, Option<String>), StateFolderError> {
    let folder = StateDir::find()?;
    Ok((folder.path(), folder.warning(file)))
}

/// Returns a message for each tunnel whose process was killed. The routes and rules that it left
/// may cut off the machine, and no device can report them.
pub(crate) fn killed_tunnels(is_asked_for: impl Fn(&str) -> bool) -> Vec<String> {
    let journals = State::default().read();
    let killed = journals.headers().filter(|header| {
        let name = &header.interface;
        is_asked_for(name) && journals.is_killed(name)
    });
    let message = |header: &Header| {
        let name = &header.interface;
        format!(
            "the process of {name} was killed; traffic for its networks, or of its selected \
             applications, is lost until `taupe up {}` starts it again or `taupe down {name}` undoes \
             its settings",
            file_argument(name, Some(&header.config))
        )
    };
    killed.map(message).collect()
}

/// Returns the names that the file of a tunnel gives to its peers.
pub(crate) fn peer_names(interface: &str) -> HashMap<PublicKey, String> {
    let names = taupe_inspect::status::peer_names(interface).into_iter();
    names.map(|(key, name)| (key, name.to_string())).collect()
}

/// Returns lines about a tunnel that `taupe up` has set up.
pub(crate) fn tunnel_lines(interface: &str) -> Vec<(&'static str, String)> {
    let made = State::default().of_running(interface);
    let mode = match open_maps(interface, made.as_ref()).map(|found| found.map(|maps| maps.mode()))
    {
        Ok(Some(CaptureMode::TrafficControl)) => "transparent",
        Ok(Some(CaptureMode::Fwmark)) => "adapter, for selected applications",
        Ok(None) => "adapter",
        Err(_) => "unknown",
    };
    made.map_or(Vec::new(), |header| {
        vec![
            ("mode", mode.to_owned()),
            ("file", header.config.display().to_string()),
        ]
    })
}
