//! Name servers of a tunnel.
//!
//! Three ways to make them known, the first that fits: systemd-resolved over
//! D-Bus, where it is in charge of `/etc/resolv.conf`; a program `resolvconf`;
//! else that file itself, with the original kept beside it. [`choose`] decides
//! and touches nothing, [`Dns::apply`] does it, and [`Dns::undo`] takes it back,
//! in any process, any number of times.

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
    /// Their addresses, the first to be asked first.
    pub servers: Vec<IpAddr>,
    /// Domains in which names are searched. One that begins with `~` is not
    /// searched: its names are only to be asked of these servers, which is
    /// what systemd-resolved can do and nothing else.
    pub search: Vec<String>,
}

/// How a tunnel's name servers are made known, with all that it takes to undo
/// it. `Display` is the line that a shell would do it with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dns {
    interface: String,
    settings: Settings,
    #[serde(rename = "way")]
    method: Method,
    /// Why the methods before it are not available.
    passed_over: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Method {
    Resolved,
    Resolvconf { program: PathBuf, record: String },
    File,
}

/// What a person should know about the file, although nothing failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// Another program replaced it while a tunnel was up. It was left alone.
    Replaced {
        /// The file.
        path: PathBuf,
        /// Where the one from before the tunnel is.
        original: PathBuf,
    },
    /// The system was restarted, without taking a tunnel down, and the file
    /// still named that tunnel's servers. It is as before the tunnel again.
    Restarted {
        /// The file.
        path: PathBuf,
    },
}

/// Why name servers cannot be set, or not be taken back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: {source}: make it a readable file, or remove it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A file cannot be changed. Nothing was changed.
    #[error("cannot change {}: {source}: {remedy}", path.display())]
    Change {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
        /// What can be done about it.
        remedy: String,
    },

    /// The file cannot be put back.
    #[error(
        "{} was there when the tunnel came up, and has gone: {} still names the tunnel's name \
         servers; write it anew",
        original.display(), path.display()
    )]
    OriginalGone {
        /// The file.
        path: PathBuf,
        /// Where the original should be.
        original: PathBuf,
    },

    /// Another process is changing the file, for seconds.
    #[error(
        "another taupe holds {}: see `fuser {0}` for which, and try again when it has ended",
        path.display()
    )]
    Locked {
        /// The lock.
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
        /// How it ended.
        status: ExitStatus,
    },

    /// `resolvconf` was not run, or not to its end.
    #[error("cannot run `{command}`: {source}")]
    Start {
        /// The command line.
        command: String,
        /// What the system said.
        source: io::Error,
    },

    /// systemd-resolved failed.
    #[error("cannot set the name servers of {interface}: {source}")]
    Resolved {
        /// The tunnel's interface.
        interface: String,
        /// Why.
        source: ResolvedError,
    },

    /// A way failed that was taken because another was not to be had.
    #[error("{source} ({}; so this was the next way)", reasons.join("; "))]
    Next {
        /// Why the others were not taken.
        reasons: Vec<String>,
        /// What failed.
        source: Box<Self>,
    },
}

/// Chooses how `servers` and `search` can be set for `interface`, which need
/// not exist yet. No settings are changed; systemd-resolved may be started.
/// `None` when there are no servers: search domains alone are not set, as
/// `wg-quick` does not.
///
/// # Errors
///
/// [`Error::Read`].
pub fn choose(
    paths: &Paths,
    interface: &str,
    servers: &[IpAddr],
    search: &[String],
) -> Result<Option<Dns>, Error> {
    if servers.is_empty() {
        return Ok(None);
    }
    let mut passed_over = Vec::new();
    let method = method(paths, interface, &mut passed_over)?;
    // systemd-resolved keeps each once, whatever it is told.
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

/// Puts right what a restart of the system or a killed process has left in
/// `/etc/resolv.conf`. To be called before names are looked up: the servers in
/// it may be those of a tunnel that has gone.
///
/// # Errors
///
/// [`Error::Read`], [`Error::Change`], [`Error::OriginalGone`],
/// [`Error::Locked`].
pub fn recover(paths: &Paths) -> Result<Option<Note>, Error> {
    file::recover(paths)
}

/// The name servers that are set for an interface now, by whomever; `None` when
/// nothing knows of any.
///
/// # Errors
///
/// [`Error::Read`], [`Error::Resolved`].
pub fn current(paths: &Paths, interface: &str) -> Result<Option<Settings>, Error> {
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
        (None, Some(source)) => Err(Error::Resolved {
            interface: interface.to_owned(),
            source,
        }),
        (settings, _) => Ok(settings),
    }
}

impl Dns {
    /// Sets them. With systemd-resolved the interface has to exist. If this
    /// fails nothing has changed.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn apply(&self, paths: &Paths) -> Result<(), Error> {
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
            Error::Next {
                reasons: self.passed_over.clone(),
                source: Box::new(error),
            }
        })
    }

    /// Sets them again when another program has changed them.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn restore(&self, paths: &Paths) -> Result<(), Error> {
        match &self.method {
            Method::Resolvconf { program, record } => {
                resolvconf::restore(program, record, &self.settings)
            }
            Method::Resolved | Method::File => self.apply(paths),
        }
    }

    /// The same for an interface that has been renamed: systemd-resolved knows interfaces by
    /// their numbers, which are found by name. Elsewhere the tunnel's name is only a key.
    #[must_use]
    pub fn renamed(&self, interface: &str) -> Self {
        let mut dns = self.clone();
        if matches!(self.method, Method::Resolved) {
            interface.clone_into(&mut dns.interface);
        }
        dns
    }

    /// Puts back what was there. What is gone already counts as put back.
    ///
    /// # Errors
    ///
    /// See [`Error`]. It may be called again.
    pub fn undo(&self, paths: &Paths) -> Result<Option<Note>, Error> {
        match &self.method {
            Method::Resolved => {
                let reverted = resolved::revert(paths, &self.interface);
                reverted.map(|()| None).map_err(self.resolved())
            }
            Method::Resolvconf { program, record } => {
                // Without it, its files mean nothing any more.
                if !program.exists() {
                    return Ok(None);
                }
                resolvconf::delete(program, record).map(|()| None)
            }
            Method::File => file::undo(paths, &self.interface),
        }
    }

    /// The line that a shell would do it with as the system is now: another
    /// tunnel may have replaced the file already.
    pub fn line_now(&self, paths: &Paths) -> String {
        match &self.method {
            Method::File => file::line(paths, &self.settings),
            Method::Resolved | Method::Resolvconf { .. } => self.to_string(),
        }
    }

    /// The line that a shell would undo it with as the system is now; `None` when
    /// [`Dns::undo`] leaves everything as it is.
    pub fn undo_line_now(&self, paths: &Paths) -> Option<String> {
        match &self.method {
            Method::File => file::undo_line(paths, &self.interface),
            Method::Resolved | Method::Resolvconf { .. } => Some(self.undo_line()),
        }
    }

    /// The line that a shell would undo it with.
    pub fn undo_line(&self) -> String {
        match &self.method {
            Method::Resolved => format!("resolvectl revert {}", self.interface),
            Method::Resolvconf { record, .. } => {
                format!("resolvconf {}", resolvconf::deleting(record).join(" "))
            }
            Method::File => file::putting_back(file::ORIGINAL),
        }
    }

    fn resolved(&self) -> impl FnOnce(ResolvedError) -> Error + '_ {
        |source| Error::Resolved {
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
    /// The servers as words of a command.
    fn listed(&self) -> String {
        let servers: Vec<_> = self.servers.iter().map(IpAddr::to_string).collect();
        servers.join(" ")
    }

    /// The domains that names are searched in, where they can be written as
    /// words of a line.
    fn searched(&self) -> impl Iterator<Item = &str> {
        let word = |name: &&str| {
            !name.is_empty()
                && !name.starts_with('~')
                && !name.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        self.search.iter().map(String::as_str).filter(word)
    }
}

/// Returns the first method that is available.
fn method(paths: &Paths, interface: &str, passed_over: &mut Vec<String>) -> Result<Method, Error> {
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
