//! Name servers of a tunnel.
//!
//! The first available method is used:
//!
//! 1. systemd-resolved over D-Bus, if it manages `/etc/resolv.conf`;
//! 2. the program `resolvconf`;
//! 3. writing `/etc/resolv.conf` directly, with the original saved beside it.
//!
//! [`choose`] selects the method without changing anything, [`Dns::apply`] sets the servers, and
//! [`Dns::undo`] restores the previous state. `undo` can run in any process and any number of
//! times.

mod file;
mod paths;
mod resolvconf;
mod resolved;
#[cfg(test)]
mod tests;
mod verify;

pub use paths::Paths;
pub use resolved::ResolvedError;
pub use verify::NameServerDeviation;

use file::Owner;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitStatus;

/// The name servers of an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Settings {
    /// The addresses, in order of preference.
    pub servers: Vec<IpAddr>,
    /// Search domains. A domain that begins with `~` is a routing domain: names in it are only sent
    /// to these servers, and it is not searched. Only systemd-resolved supports routing domains.
    pub search: Vec<String>,
}

/// The method and the settings of a tunnel's name servers, with the information to undo them.
/// `Display` shows the equivalent shell command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dns {
    interface: String,
    settings: Settings,
    #[serde(rename = "way")]
    method: Method,
    /// Reasons why preferred methods are not available.
    passed_over: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Method {
    Resolved,
    Resolvconf { program: PathBuf, record: String },
    File,
}

/// A note for the user about the file; not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// Another program replaced the file while a tunnel was up. Taupe left it unchanged.
    Replaced {
        /// The file.
        path: PathBuf,
        /// The saved file from before the tunnel.
        original: PathBuf,
    },
    /// The system was restarted while a tunnel was up, and the file still named that tunnel's
    /// servers. Its previous contents were restored.
    Restarted {
        /// The file.
        path: PathBuf,
    },
}

/// Error of setting or restoring name servers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DnsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}: make it a readable file, or remove it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },

    /// The file cannot be changed. Nothing was changed.
    #[error("cannot change {}: {source}: {remedy}", path.display())]
    Change {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
        /// Advice for the user.
        remedy: String,
    },

    /// The original file cannot be restored, because it is gone.
    #[error(
        "{} was there when the tunnel came up, and has gone: {} still names the tunnel's name \
         servers; write it anew",
        original.display(), path.display()
    )]
    OriginalGone {
        /// The file.
        path: PathBuf,
        /// The name that the original should have.
        original: PathBuf,
    },

    /// Another process has held the lock for seconds.
    #[error(
        "another taupe holds {}: see `fuser {0}` for which, and try again when it has ended",
        path.display()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
    },

    /// `resolvconf` failed.
    #[error(
        "`{command}` ended with {status}; what it said, if anything, is above. Mend that, or \
         remove the program so that /etc/resolv.conf is changed directly"
    )]
    Resolvconf {
        /// The command line.
        command: String,
        /// Its exit status.
        status: ExitStatus,
    },

    /// `resolvconf` could not be run, or did not finish.
    #[error("cannot run `{command}`: {source}")]
    Start {
        /// The command line.
        command: String,
        /// The system's error.
        source: io::Error,
    },

    /// systemd-resolved failed.
    #[error("cannot set the name servers of {interface}: {source}")]
    Resolved {
        /// The tunnel's interface.
        interface: String,
        /// The error.
        source: ResolvedError,
    },

    /// The method failed, and it was used because preferred methods are not available.
    #[error("{source} ({}; so this was the next way)", reasons.join("; "))]
    Next {
        /// The reasons why preferred methods are not available.
        reasons: Vec<String>,
        /// The error.
        source: Box<Self>,
    },
}

/// Selects the method for setting `servers` and `search` of `interface`, which need not exist yet.
/// Changes no settings, but may start systemd-resolved. Returns `None` if there are no servers:
/// like `wg-quick`, Taupe does not set search domains alone.
///
/// # Errors
///
/// [`DnsError::Read`].
pub fn choose(
    paths: &Paths,
    interface: &str,
    servers: &[IpAddr],
    search: &[String],
) -> Result<Option<Dns>, DnsError> {
    if servers.is_empty() {
        return Ok(None);
    }
    let mut passed_over = Vec::new();
    let method = method(paths, interface, &mut passed_over)?;
    // systemd-resolved removes duplicates, so they would look like a deviation.
    let mut distinct: Vec<IpAddr> = Vec::new();
    for server in servers {
        if !distinct.contains(server) {
            distinct.push(*server);
        }
    }
    Ok(Some(Dns {
        interface: interface.to_owned(),
        settings: Settings {
            servers: distinct,
            search: search.to_vec(),
        },
        method,
        passed_over,
    }))
}

/// Repairs `/etc/resolv.conf` after a restart of the system or a killed process. Call this before
/// resolving names: the file may name the servers of a tunnel that does not exist any more.
///
/// # Errors
///
/// [`DnsError::Read`], [`DnsError::Change`], [`DnsError::OriginalGone`],
/// [`DnsError::Locked`].
pub fn recover(paths: &Paths) -> Result<Option<Note>, DnsError> {
    file::recover(paths)
}

/// Returns the name servers that are set for an interface now, by any program, or `None` if none
/// are known.
///
/// # Errors
///
/// [`DnsError::Read`], [`DnsError::Resolved`].
pub fn current(paths: &Paths, interface: &str) -> Result<Option<Settings>, DnsError> {
    if let Some(settings) = file::current(paths, interface)? {
        return Ok(Some(settings));
    }
    let mut failed = None;
    if file::owner(paths)? == Owner::SystemdResolved {
        match resolved::current(paths, interface) {
            Ok(None) => {}
            Ok(Some(link)) => return Ok(Some(link.settings)),
            Err(source) => failed = Some(source),
        }
    }
    let program = resolvconf::find(paths).ok().flatten();
    let settings = resolvconf::current(paths, program.as_deref(), interface);
    match (settings, failed) {
        (None, Some(source)) => Err(DnsError::Resolved {
            interface: interface.to_owned(),
            source,
        }),
        (settings, _) => Ok(settings),
    }
}

impl Dns {
    /// Sets the name servers. With systemd-resolved the interface must exist. After an error
    /// nothing has changed.
    ///
    /// # Errors
    ///
    /// See [`DnsError`].
    pub fn apply(&self, paths: &Paths) -> Result<(), DnsError> {
        let (interface, settings) = (&*self.interface, &self.settings);
        let done = match &self.method {
            Method::Resolved => resolved::set(paths, interface, settings).map_err(self.resolved()),
            Method::Resolvconf { program, record } => resolvconf::add(program, record, settings),
            Method::File => file::apply(paths, interface, settings),
        };
        done.map_err(|error| {
            if self.passed_over.is_empty() {
                return error;
            }
            DnsError::Next {
                reasons: self.passed_over.clone(),
                source: Box::new(error),
            }
        })
    }

    /// Sets the name servers again after another program has changed them.
    ///
    /// # Errors
    ///
    /// See [`DnsError`].
    pub fn restore(&self, paths: &Paths) -> Result<(), DnsError> {
        match &self.method {
            Method::Resolvconf { program, record } => {
                resolvconf::restore(program, record, &self.settings)
            }
            Method::Resolved | Method::File => self.apply(paths),
        }
    }

    /// Returns the same settings for a renamed interface. systemd-resolved identifies an interface
    /// by its index, which is looked up by name. For the other methods the name of the tunnel is
    /// only a key.
    #[must_use]
    pub fn renamed(&self, interface: &str) -> Self {
        let mut dns = self.clone();
        if matches!(self.method, Method::Resolved) {
            interface.clone_into(&mut dns.interface);
        }
        dns
    }

    /// Restores the previous state. Succeeds if it is restored already.
    ///
    /// # Errors
    ///
    /// See [`DnsError`]. The function can be called again.
    pub fn undo(&self, paths: &Paths) -> Result<Option<Note>, DnsError> {
        match &self.method {
            Method::Resolved => {
                let reverted = resolved::revert(paths, &self.interface);
                reverted.map(|()| None).map_err(self.resolved())
            }
            Method::Resolvconf { program, record } => {
                // Without the program, its files have no effect any more.
                if !program.exists() {
                    return Ok(None);
                }
                resolvconf::delete(program, record).map(|()| None)
            }
            Method::File => file::undo(paths, &self.interface),
        }
    }

    /// Returns the equivalent shell command for the present state of the system, in which another
    /// tunnel may have replaced the file already.
    pub fn line_now(&self, paths: &Paths) -> String {
        match &self.method {
            Method::File => file::line(paths, &self.settings),
            Method::Resolved | Method::Resolvconf { .. } => self.to_string(),
        }
    }

    /// Returns the shell command that would undo the settings in the present state of the system,
    /// or `None` if [`Dns::undo`] would change nothing.
    pub fn undo_line_now(&self, paths: &Paths) -> Option<String> {
        match &self.method {
            Method::File => file::undo_line(paths, &self.interface),
            Method::Resolved | Method::Resolvconf { .. } => Some(self.undo_line()),
        }
    }

    /// Returns the shell command that would undo the settings.
    pub fn undo_line(&self) -> String {
        match &self.method {
            Method::Resolved => format!("resolvectl revert {}", self.interface),
            Method::Resolvconf { record, .. } => {
                format!("resolvconf {}", resolvconf::deleting(record).join(" "))
            }
            Method::File => file::putting_back(file::ORIGINAL),
        }
    }

    fn resolved(&self) -> impl FnOnce(ResolvedError) -> DnsError + '_ {
        |source| DnsError::Resolved {
            interface: self.interface.clone(),
            source,
        }
    }
}

impl fmt::Display for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.method {
            Method::Resolved => {
                let interface = &self.interface;
                let servers = self.settings.listed();
                write!(f, "resolvectl dns {interface} {servers}")?;
                write!(f, "; resolvectl domain {interface} ")?;
                for domain in &self.settings.search {
                    write!(f, "{domain} ")?;
                }
                f.write_str("~.")
            }
            Method::Resolvconf { record, .. } => {
                write!(f, "resolvconf {}", resolvconf::adding(record).join(" "))
            }
            Method::File => f.write_str(&file::replacing(&self.settings)),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replaced { path, original } => write!(
                f,
                "another program has replaced {} while the tunnel was up, and it was left as it \
                 is; what was there before is in {} until the next tunnel changes the file: move \
                 it back, or delete it",
                path.display(),
                original.display()
            ),
            Self::Restarted { path } => write!(
                f,
                "{} still named the servers of a tunnel from before the system was restarted, and \
                 is now as before that tunnel",
                path.display()
            ),
        }
    }
}

impl Settings {
    /// Formats the servers as words of a command.
    fn listed(&self) -> String {
        let servers: Vec<_> = self.servers.iter().map(IpAddr::to_string).collect();
        servers.join(" ")
    }

    /// Returns the search domains that can be written as words of a line.
    fn searched(&self) -> impl Iterator<Item = &str> {
        let word = |name: &&str| {
            !name.is_empty()
                && !name.starts_with('~')
                && !name.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        self.search.iter().map(String::as_str).filter(word)
    }
}

/// Returns the first available method.
fn method(
    paths: &Paths,
    interface: &str,
    passed_over: &mut Vec<String>,
) -> Result<Method, DnsError> {
    match file::owner(paths)? {
        Owner::Taupe => return Ok(Method::File),
        Owner::SystemdResolved => match resolved::available(paths) {
            Ok(()) => return Ok(Method::Resolved),
            Err(error) => passed_over.push(format!(
                "systemd-resolved is in charge of /etc/resolv.conf but cannot be asked: {error}"
            )),
        },
        Owner::Other => {}
    }
    match resolvconf::find(paths) {
        Ok(Some(program)) => {
            return Ok(Method::Resolvconf {
                program,
                record: resolvconf::record(paths, interface),
            });
        }
        Ok(None) => {}
        Err(reason) => passed_over.push(reason),
    }
    Ok(Method::File)
}
