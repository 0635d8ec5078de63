//! Connections of the front.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use tracing::{debug, info, warn};

use crate::audit::{Audit, one_line};
use crate::class::class_of;
use crate::context::Context;
use crate::executor::{Executor, Outcome};
use crate::link::{Link, LinkError};
use crate::listed::Listed;
use crate::message::{Answer, Class, FromFront, MAX_ERRORS, MAX_OUTPUT, Request};
use crate::name::TunnelName;
use crate::registry::Registry;
use crate::request::Prepared;
use crate::sealed::seal;

/// Connections at one time, at most.
const MAX_CONNECTIONS: usize = 64;

/// Requests of one user at one time, at most.
const MAX_PER_CALLER: usize = 4;

/// Characters of a refusal, at most.
const MAX_REASON: usize = 1000;

/// Settings of the service.
pub struct Settings {
    /// User ID of the front.
    pub front: u32,
    /// Owners of tunnels.
    pub registry: Registry,
    /// Files that root lists.
    pub listed: Listed,
    /// Execution of commands.
    pub executor: Box<dyn Executor>,
    /// Time for the front to send the first message.
    pub patience: Duration,
    /// Time for a user to authenticate.
    pub authentication: Duration,
}

/// The service.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    settings: Settings,
    counts: Mutex<Counts>,
    /// Tunnels that a request changes now.
    changing: Mutex<BTreeSet<TunnelName>>,
    /// See [`Context::admission`].
    admission: Mutex<()>,
}

/// Requests that are in progress.
#[derive(Default)]
struct Counts {
    connections: usize,
    callers: HashMap<u32, usize>,
}

impl Server {
    /// Returns a service. Files of tunnels that root has taken down are removed.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let shared = Shared {
            settings,
            counts: Mutex::default(),
            changing: Mutex::default(),
            admission: Mutex::default(),
        };
        shared.context().tidy_all();
        Self(Arc::new(shared))
    }

    /// Serves connections to a listening socket until it fails.
    ///
    /// # Errors
    /// The system's error.
    pub fn run(&self, listener: &OwnedFd) -> io::Result<()> {
        loop {
            match accept_with(listener, SocketFlags::CLOEXEC) {
                Ok(socket) => self.begin(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // Connections that end make room.
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    warn!(%error, "cannot accept a connection");
                    thread::sleep(Duration::from_millis(100));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Serves a connection in a thread of its own.
    fn begin(&self, socket: OwnedFd) {
        let mut counts = self.0.counts();
        if counts.connections >= MAX_CONNECTIONS {
            return;
        }
        counts.connections += 1;
        drop(counts);
        let server = self.clone();
        let thread = thread::Builder::new().name("request".to_owned());
        let started = thread.spawn(move || {
            server.serve(socket);
            server.0.counts().connections -= 1;
        });
        if let Err(error) = started {
            warn!(%error, "cannot serve a connection");
            self.0.counts().connections -= 1;
        }
    }

    /// Serves a connection.
    pub fn serve(&self, socket: OwnedFd) {
        let link = Link::new(socket);
        if let Err(reason) = self.0.converse(&link) {
            debug!(reason, "refused");
            // The front may have gone.
            let _ = link.send(
                &Answer::Refused {
                    reason: one_line(&reason, MAX_REASON),
                },
                &[],
            );
        }
        link.close();
    }
}

impl Shared {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changing(&self) -> MutexGuard<'_, BTreeSet<TunnelName>> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn context(&self) -> Context<'_> {
        Context {
            registry: &self.settings.registry,
            listed: &self.settings.listed,
            executor: &*self.settings.executor,
            changing: &self.changing,
            admission: &self.admission,
        }
    }

    /// Answers the messages of a connection. Returns the reason of a refusal.
    fn converse(&self, link: &Link) -> Result<(), String> {
        let settings = &self.settings;
        let peer = link.peer().map_err(|error| error.to_string())?;
        if peer != settings.front {
            return Err(format!("user {peer} may not use this socket"));
        }
        link.set_patience(settings.patience)
            .map_err(|error| error.to_string())?;
        let (message, descriptors) = match link.receive() {
            Err(LinkError::Closed) => return Ok(()),
            received => received.map_err(|error| error.to_string())?,
        };
        let FromFront::Prepare { caller, request } = message else {
            return Err("no request is prepared on this connection".to_owned());
        };
        let mut audit = Audit::new(caller, &request);
        let answered = self.answer(link, (caller, request), descriptors, &mut audit);
        if let Err(reason) = &answered {
            info!("{}", audit.refused(reason));
        }
        answered
    }

    /// Prepares and executes a request.
    fn answer(
        &self,
        link: &Link,
        (caller, request): (u32, Request),
        descriptors: Vec<OwnedFd>,
        audit: &mut Audit,
    ) -> Result<(), String> {
        let _place = CallerPlace::take(self, caller)?;
        let prepared = Prepared::new(caller, request, descriptors)?;
        let reasons = prepared.reasons(&self.context())?;
        let class = class_of(&reasons);
        audit.set_needs(class, &reasons);
        send(link, &Answer::Needs { class, reasons })?;

        let authentication = self.settings.authentication;
        link.set_patience(authentication)
            .map_err(|error| error.to_string())?;
        let (message, descriptors): (FromFront, _) = match link.receive() {
            // The user has not been authorised, or has gone.
            Err(LinkError::Closed) => {
                info!("{}", audit.not_authorized());
                return Ok(());
            }
            received => received.map_err(|error| error.to_string())?,
        };
        let FromFront::Execute { caller, granted } = message else {
            return Err("this connection has a request already".to_owned());
        };
        if caller != prepared.caller() || !descriptors.is_empty() {
            return Err("it is not the request that was prepared".to_owned());
        }
        let _changing = ChangePlace::take(self, prepared.changed_tunnel())?;
        let Outcome {
            status,
            output,
            errors,
        } = prepared.execute(&self.context(), granted)?;
        if prepared.changed_tunnel().is_some() || class == Class::Admin {
            info!("{}", audit.executed(status));
        }
        let errors = readable(&errors, MAX_ERRORS);
        let output = seal(output.get(..MAX_OUTPUT).unwrap_or(&output));
        let output = output.map_err(|error| error.to_string())?;
        let done = Answer::Done { status, errors };
        // If the front has gone, the request has been executed nevertheless.
        let _ = link.send(&done, &[output.as_fd()]);
        match link.receive::<FromFront>() {
            Err(_) => Ok(()),
            Ok(_) => Err("the request of this connection was executed already".to_owned()),
        }
    }
}

fn send(link: &Link, answer: &Answer) -> Result<(), String> {
    link.send(answer, &[]).map_err(|error| error.to_string())
}

/// A place among a user's requests.
struct CallerPlace<'a>(&'a Shared, u32);

impl<'a> CallerPlace<'a> {
    fn take(shared: &'a Shared, caller: u32) -> Result<Self, String> {
        let mut counts = shared.counts();
        let count = counts.callers.entry(caller).or_default();
        if *count >= MAX_PER_CALLER {
            return Err(format!(
                "you have {MAX_PER_CALLER} requests already; wait for one to end"
            ));
        }
        *count += 1;
        Ok(Self(shared, caller))
    }
}

impl Drop for CallerPlace<'_> {
    fn drop(&mut self) {
        let mut counts = self.0.counts();
        let left = counts.callers.get(&self.1).map_or(0, |count| count - 1);
        match left {
            0 => counts.callers.remove(&self.1),
            left => counts.callers.insert(self.1, left),
        };
    }
}

/// The right to change a tunnel.
struct ChangePlace<'a>(&'a Shared, TunnelName);

impl<'a> ChangePlace<'a> {
    fn take(shared: &'a Shared, tunnel: Option<&TunnelName>) -> Result<Option<Self>, String> {
        let Some(tunnel) = tunnel else {
            return Ok(None);
        };
        match shared.changing().insert(tunnel.clone()) {
            true => Ok(Some(Self(shared, tunnel.clone()))),
            false => Err(format!(
                "another request changes {tunnel} now; try again later"
            )),
        }
    }
}

impl Drop for ChangePlace<'_> {
    fn drop(&mut self) {
        self.0.changing().remove(&self.1);
    }
}

/// Returns the beginning of a command's output without characters that control a terminal.
fn readable(text: &[u8], most: usize) -> String {
    let text = text.get(..most).unwrap_or(text);
    let text = String::from_utf8_lossy(text);
    let is_shown = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    text.chars().filter(is_shown).collect()
}

#[cfg(test)]
mod tests;
