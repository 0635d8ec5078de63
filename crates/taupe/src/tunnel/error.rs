//! Errors of tunnel commands.

use super::advice;
use crate::capture;
use crate::console::{NotPrinted, say};
use crate::remarks::with_command;
use crate::{app_conflicts, root, via};
use std::io;
use taupe_adapter as adapter;
use taupe_config::file::Key;
use taupe_inspect::check::{self, Remark, Unreadable};
use taupe_inspect::conf::{self, Conf};
use taupe_os_linux::netlink::NetlinkError;
use taupe_transparent::error::TransparentError;

/// Reason why a tunnel command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    #[error(transparent)]
    NotRoot(#[from] root::RootError),
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The errors have been printed.
    #[error("{file} has {errors}; nothing was changed")]
    Wrong { file: String, errors: String },
    #[error("{file}: {problem}; nothing was changed")]
    Unsupported {
        file: String,
        problem: capture::UnsupportedSetting,
    },
    #[error(
        "{file}:{line}: {key} selects applications, and this tunnel carries the traffic of all \
         applications; delete the line, or take the tunnel down and use `taupe up`; nothing was \
         changed"
    )]
    Applications { file: String, line: usize, key: Key },
    /// A service manager restricts this process.
    #[error(
        "{file} has {keys}, and the unit taupe@{interface} does not permit commands; use the one that does \
         (`systemctl disable taupe@{interface}`, `systemctl enable --now taupe-hooks@{interface}`), or delete \
         them; nothing was changed"
    )]
    Hooks {
        file: String,
        keys: String,
        interface: String,
    },
    #[error(
        "{0} selects no applications, so there is no traffic to block; write AllowedApps or \
         DisallowedApps under [Interface]; nothing was changed"
    )]
    NothingChosen(String),
    #[error(
        "{0} has KillSwitch = off, so traffic of its applications is not blocked; write \
         KillSwitch = app, or do without `taupe lock`; nothing was changed"
    )]
    NoLock(String),
    #[error(
        "{0} is up in adapter mode for all applications; `taupe down` it first; nothing was changed"
    )]
    ForAll(String),
    #[error(
        "all bits of marks from 0x1000000 to 0x40000000 are used by routing rules (`ip rule`) or \
         FwMark: selected applications need one; nothing was changed"
    )]
    NoMark,
    #[error(transparent)]
    System(#[from] NetlinkError),
    #[error("{0}; nothing was changed")]
    Conflict(#[from] app_conflicts::AppConflict),
    #[error(
        "{0} was brought up for selected applications, and its file selects none now; `taupe down` \
         it, and `taupe up`"
    )]
    NoApplications(String),
    #[error(
        "{interface} was brought up with {before}, and its file says {now}, which cannot be changed \
         while it is up in transparent mode; nothing was changed; {remedy}"
    )]
    Fixed {
        interface: String,
        before: String,
        now: String,
        remedy: &'static str,
    },
    #[error(
        "{}; but {interface} may still carry applications that only its changed file selects: {fault}; \
         `taupe down` it, and `taupe up`",
        advice::reload(.error)
    )]
    NotTakenBack {
        error: Box<adapter::ReloadError>,
        interface: String,
        fault: Box<TransparentError>,
    },
    #[error(
        "{interface} is up in transparent mode: its interface has neither Address nor DNS, and {file} \
         would lose them; nothing was written; `taupe reload` applies the file to the tunnel"
    )]
    WouldLose { interface: String, file: String },
    #[error(
        "{0} is still in transparent mode; run `taupe down {0}` before bringing it up in adapter mode; \
         nothing was changed"
    )]
    Captured(String),
    #[error("{}", taupe_inspect::advice::error(.0))]
    Capture(#[from] TransparentError),
    /// The kernel takes no eBPF programs, and the mode needs some.
    #[error("{}; nothing was changed", taupe_inspect::advice::error(.0))]
    NoPrograms(#[source] TransparentError),
    #[error(transparent)]
    Via(#[from] via::ViaError),
    #[error("cannot catch signals: {0}; nothing was changed")]
    Signals(#[source] io::Error),
    #[error("{}", advice::up(.0))]
    Up(#[from] adapter::UpError),
    #[error("{}", advice::down(.0))]
    Down(#[from] adapter::DownError),
    #[error("{}", advice::reload(.0))]
    Reload(#[from] adapter::ReloadError),
    #[error("{}", advice::save(.0))]
    Save(#[from] adapter::NotSaved),
    #[error(
        "another version of Taupe has brought {name} up, and its program did not take it down: {outcome}"
    )]
    OtherVersion { name: String, outcome: String },
    #[error(
        "{0} was brought up and has ended since: its process was ended, or another command has taken it \
         down; `taupe status {0}` shows what is left"
    )]
    GoneMeanwhile(String),
    /// The tunnel stays up.
    #[error(
        "{interface} is up, but at least one peer with an Endpoint did not answer within {seconds} s: \
         {reasons}; to check again, run `taupe status {interface}`; to take the tunnel down, run `taupe \
         down {interface}`"
    )]
    NoAnswer {
        interface: String,
        seconds: u64,
        reasons: String,
    },
    #[error("{0}")]
    Ended(String),
    /// If the tunnel was up, the changes that `up` has made stay.
    #[error("{0}")]
    DeviceFailed(String),
    #[error(transparent)]
    Output(#[from] NotPrinted),
}

/// Prints the errors and warnings of a file.
pub(super) fn wrong(conf: &Conf, remarks: &[Remark]) -> TunnelError {
    for remark in remarks {
        say(&with_command(remark));
    }
    TunnelError::Wrong {
        file: conf.shown.display().to_string(),
        errors: check::count(remarks),
    }
}
