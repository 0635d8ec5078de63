//! Execution of commands as root.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::name::TunnelName;

/// A tunnel that was brought up and not brought down.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Running {
    /// Its file, if it is known.
    pub file: Option<PathBuf>,
    /// True if it selects applications, also while it is down and blocks them.
    pub selects: bool,
    /// The only user whose applications it selects, if its rules are about one user.
    pub only_user: Option<u32>,
    /// True if it is in transparent mode. Otherwise its file changes addresses and routes.
    pub is_transparent: bool,
}

/// The file or the name of a tunnel for a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A copy in the registry, or a listed file.
    File(PathBuf),
    /// A tunnel that no request has brought up.
    Name(TunnelName),
}

/// Result of a command.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// Exit status.
    pub status: u8,
    /// Standard output.
    pub output: Vec<u8>,
    /// Standard error.
    pub errors: Vec<u8>,
}

/// The connections that a caller may see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowView {
    /// Only connections of this user.
    pub user: Option<u32>,
    /// Only connections in this tunnel.
    pub tunnel: Option<TunnelName>,
    /// Tunnels whose rules are shown. `None` means all.
    pub explained: Option<BTreeSet<TunnelName>>,
}

/// Execution of commands as root.
pub trait Executor: Send + Sync {
    /// Returns all tunnels that were brought up and not brought down, by name.
    ///
    /// # Errors
    /// They are unknown.
    fn tunnels(&self) -> io::Result<BTreeMap<String, Running>>;

    /// Brings up the tunnel of a file. With `is_transparent` it must not change addresses and routes, also
    /// on a kernel without the features of transparent mode.
    fn up(&self, file: &Path, is_transparent: bool) -> Outcome;

    /// Takes a tunnel down.
    fn down(&self, target: &Target) -> Outcome;

    /// Applies a file to its tunnel.
    fn reload(&self, file: &Path) -> Outcome;

    /// Selects an application for a tunnel, or removes it.
    fn edit(&self, target: &Target, application: &str, is_allowed: bool) -> Outcome;

    /// Shows these tunnels, or all.
    fn status(&self, names: Option<&BTreeSet<TunnelName>>, json: bool) -> Outcome;

    /// Lists connections.
    fn flows(&self, view: &FlowView, json: bool) -> Outcome;
}
