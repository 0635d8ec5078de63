//! A request, the class that it needs, and its execution.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use taupe_config::application::Application;

use crate::class::{class_of, cuts_off, is_own, reasons};
use crate::listed::Listed;
use crate::message::{Class, MAX_PATH, Request, Source};
use crate::name::TunnelName;
use crate::passed::{self, Passed};
use crate::registry::{Record, Registry};

/// Tunnels of a user, at most.
const MAX_TUNNELS: usize = 4;

/// Tunnels of all users, at most.
const MAX_ALL_TUNNELS: usize = 32;

/// A tunnel that was brought up and not brought down.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Running {
    /// Its file, if it is known.
    pub file: Option<PathBuf>,
    /// True if it selects applications, also while it is down and blocks them.
    pub selects: bool,
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

/// State that all requests share.
pub(crate) struct Context<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) listed: &'a Listed,
    pub(crate) executor: &'a dyn Executor,
}

/// A valid request with its file.
pub(crate) struct Prepared {
    caller: u32,
    request: Request,
    passed: Option<Passed>,
}

/// Relation of a caller to a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    /// The caller has brought it up from a file of the caller.
    Own(Record),
    /// Root lists it for the caller.
    Listed(Record),
    /// Another user has brought it up by a request.
    OfUser(Record),
    /// No request has brought it up.
    OfRoot,
    /// It is not up.
    Down,
}

impl Prepared {
    /// Checks a request, and reads its descriptors.
    pub(crate) fn new(
        caller: u32,
        request: Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, String> {
        let passed = match &request {
            Request::Up { source, .. } | Request::Reload { source, .. } => match source {
                Source::Passed { key_files } => {
                    let passed = passed::read(key_files, descriptors);
                    Some(passed.map_err(|error| error.to_string())?)
                }
                Source::Listed => without(&descriptors)?,
            },
            Request::AppAllow { application, .. } | Request::AppRemove { application, .. } => {
                parse_application(application)?;
                without(&descriptors)?
            }
            _ => without(&descriptors)?,
        };
        Ok(Self {
            caller,
            request,
            passed,
        })
    }

    pub(crate) fn caller(&self) -> u32 {
        self.caller
    }

    /// Returns the tunnel that the request changes.
    pub(crate) fn changed_tunnel(&self) -> Option<&TunnelName> {
        match &self.request {
            Request::Up { tunnel, .. }
            | Request::Down { tunnel }
            | Request::Reload { tunnel, .. }
            | Request::AppAllow { tunnel, .. }
            | Request::AppRemove { tunnel, .. } => Some(tunnel),
            Request::List | Request::Status { .. } | Request::Flows { .. } => None,
        }
    }

    /// Returns the reasons why the request needs [`Class::Admin`]. Fails if it cannot be executed at all.
    pub(crate) fn reasons(&self, context: &Context<'_>) -> Result<Vec<String>, String> {
        if self.caller == 0 {
            return self.reasons_of_user(context).map(|_| Vec::new());
        }
        self.reasons_of_user(context)
    }

    fn reasons_of_user(&self, context: &Context<'_>) -> Result<Vec<String>, String> {
        let caller = self.caller;
        match &self.request {
            Request::List => Ok(Vec::new()),
            Request::Status { tunnel, all, .. } | Request::Flows { tunnel, all, .. } => {
                if *all {
                    return Ok(vec!["it shows tunnels of everybody".to_owned()]);
                }
                let Some(tunnel) = tunnel else {
                    return Ok(Vec::new());
                };
                Ok(match context.relation(tunnel, caller)? {
                    Relation::Own(_) | Relation::Listed(_) => Vec::new(),
                    // A name that is not up is treated alike: it says nothing about others.
                    Relation::OfUser(_) | Relation::OfRoot | Relation::Down => not_yours(tunnel),
                })
            }
            Request::Up {
                tunnel,
                source: Source::Listed,
            } => match context.listed.for_user(tunnel, caller) {
                None => Err(format!(
                    "no tunnel {tunnel} is listed for you in /etc/taupe/allowed; for a file of yours, give its \
                     path, which ends in .conf; for one in /etc/wireguard, use sudo"
                )),
                Some(_) => context.is_free(tunnel).map(|()| Vec::new()),
            },
            Request::Up { tunnel, .. } => {
                if context.listed.path(tunnel).is_some() {
                    return Err(format!(
                        "{tunnel} is the name of a tunnel that root lists; rename the file"
                    ));
                }
                context.is_free(tunnel)?;
                context.has_room(tunnel, caller)?;
                let mut reasons = self.reasons_of_file(tunnel)?;
                reasons.extend(context.other_selections(tunnel)?);
                Ok(reasons)
            }
            Request::Down { tunnel } => Ok(match context.relation(tunnel, caller)? {
                Relation::Down => return Err(format!("{tunnel} is not up")),
                Relation::Own(_) | Relation::Listed(_) => Vec::new(),
                Relation::OfUser(_) | Relation::OfRoot => not_yours(tunnel),
            }),
            Request::Reload {
                tunnel,
                source: Source::Listed,
            } => match context.relation(tunnel, caller)? {
                Relation::Listed(_) => Ok(Vec::new()),
                _ => Err(format!(
                    "no tunnel {tunnel} is listed for you and up; to apply a file of yours, give its \
                     path, which ends in .conf"
                )),
            },
            Request::Reload { tunnel, .. } => match context.relation(tunnel, caller)? {
                Relation::Own(_) => self.reasons_of_reload(context, tunnel),
                Relation::OfUser(record) if !record.is_listed => {
                    let mut reasons = not_yours(tunnel);
                    reasons.extend(self.reasons_of_reload(context, tunnel)?);
                    Ok(reasons)
                }
                Relation::Down => Err(format!("{tunnel} is not up")),
                Relation::OfUser(_) | Relation::Listed(_) | Relation::OfRoot => Err(format!(
                    "{tunnel} has a file of root, so no other file can be applied to it"
                )),
            },
            Request::AppAllow {
                tunnel,
                application,
            }
            | Request::AppRemove {
                tunnel,
                application,
            } => {
                let application = parse_application(application)?;
                Ok(match context.relation(tunnel, caller)? {
                    Relation::Own(_) if is_own(&application, caller) => Vec::new(),
                    Relation::Own(_) => {
                        vec![format!(
                            "{application} selects processes of other users too"
                        )]
                    }
                    Relation::OfUser(record) if !record.is_listed => {
                        let mut reasons = not_yours(tunnel);
                        reasons.push(format!("{application} becomes part of its rules"));
                        reasons
                    }
                    Relation::Down => return Err(format!("{tunnel} is not up")),
                    // The command would edit root's file.
                    Relation::Listed(_) | Relation::OfUser(_) | Relation::OfRoot => {
                        return Err(format!(
                            "{tunnel} has a file of root, so a request cannot edit its applications; use \
                             sudo taupe app"
                        ));
                    }
                })
            }
        }
    }

    fn reasons_of_file(&self, tunnel: &TunnelName) -> Result<Vec<String>, String> {
        let passed = self.passed.as_ref().ok_or("the request has no file")?;
        if self.caller != 0 && cuts_off(&passed.file, self.caller) {
            return Err(
                "with DNS, the tunnel would cut you off from the message bus, and so from this \
                 service; write SystemBus = allow, or leave DNS out"
                    .to_owned(),
            );
        }
        let reasons = reasons(&passed.file, tunnel, self.caller);
        Ok(reasons.iter().map(ToString::to_string).collect())
    }

    /// Returns the reasons for a file that is applied to a running tunnel.
    fn reasons_of_reload(
        &self,
        context: &Context<'_>,
        tunnel: &TunnelName,
    ) -> Result<Vec<String>, String> {
        let mut reasons = self.reasons_of_file(tunnel)?;
        let running = context.running()?;
        let is_transparent = |running: &Running| running.is_transparent;
        if !running.get(tunnel.as_str()).is_some_and(is_transparent) {
            reasons.push(format!(
                "{tunnel} is not in transparent mode, so its file changes addresses and routes of everybody"
            ));
        }
        reasons.extend(context.other_selections(tunnel)?);
        Ok(reasons)
    }

    /// Executes the request. The caller of this function holds the tunnel that it changes.
    pub(crate) fn execute(&self, context: &Context<'_>, granted: Class) -> Result<Outcome, String> {
        // The state may have changed since the class was reported.
        let reasons = self.reasons(context)?;
        let needed = class_of(&reasons);
        if needed > granted {
            let reasons = reasons.join("; ");
            return Err(format!("an administrator must authorise this: {reasons}"));
        }
        let outcome = self.perform(context, needed);
        if let Some(tunnel) = self.changed_tunnel() {
            context.tidy(tunnel);
        }
        outcome
    }

    fn perform(&self, context: &Context<'_>, needed: Class) -> Result<Outcome, String> {
        let Context {
            registry, executor, ..
        } = context;
        let caller = self.caller;
        match &self.request {
            Request::List => context.list(caller),
            Request::Status { tunnel, all, json } => {
                let names = match (tunnel, all) {
                    (Some(tunnel), _) => Some(BTreeSet::from([tunnel.clone()])),
                    (None, true) => None,
                    (None, false) if caller == 0 => None,
                    (None, false) => Some(context.visible(caller)?),
                };
                Ok(executor.status(names.as_ref(), *json))
            }
            Request::Flows { tunnel, all, json } => {
                // The consent to see another's tunnel includes its connections.
                let is_restricted = !all && needed == Class::User && caller != 0;
                let visible = is_restricted.then(|| context.visible(caller));
                let view = FlowView {
                    user: is_restricted.then_some(caller),
                    tunnel: tunnel.clone(),
                    explained: visible.transpose()?,
                };
                Ok(executor.flows(&view, *json))
            }
            Request::Up {
                tunnel,
                source: Source::Listed,
            } => {
                let file = context
                    .listed
                    .path(tunnel)
                    .ok_or("it is not listed any more")?;
                let record = Record {
                    owner: caller,
                    class: Class::User,
                    is_listed: true,
                };
                registry.write(tunnel, record, None).map_err(not_written)?;
                Ok(executor.up(&file, false))
            }
            Request::Up { tunnel, .. } => {
                let passed = self.passed.as_ref().ok_or("the request has no file")?;
                let record = Record {
                    owner: caller,
                    // Root's file may select applications of everybody.
                    class: if caller == 0 { Class::Admin } else { needed },
                    is_listed: false,
                };
                let text = Some(passed.text.as_bytes());
                registry.write(tunnel, record, text).map_err(not_written)?;
                // An administrator who consents to applications does not consent to routes.
                let is_transparent = passed.file.transparent.first.is_some();
                Ok(executor.up(&registry.copy(tunnel), is_transparent))
            }
            Request::Down { tunnel } => Ok(executor.down(&context.target(tunnel))),
            Request::Reload {
                tunnel,
                source: Source::Listed,
            } => {
                let file = context
                    .listed
                    .path(tunnel)
                    .ok_or("it is not listed any more")?;
                Ok(executor.reload(&file))
            }
            Request::Reload { tunnel, .. } => {
                let passed = self.passed.as_ref().ok_or("the request has no file")?;
                let (Some(record), Some(old)) = (registry.record(tunnel), registry.text(tunnel))
                else {
                    return Err(format!("the file of {tunnel} is unknown"));
                };
                let now = Record {
                    class: needed,
                    ..record
                };
                let text = Some(passed.text.as_bytes());
                registry.write(tunnel, now, text).map_err(not_written)?;
                let outcome = executor.reload(&registry.copy(tunnel));
                if outcome.status != 0 {
                    let back = registry.write(tunnel, record, Some(&old));
                    back.map_err(not_written)?;
                }
                Ok(outcome)
            }
            Request::AppAllow {
                tunnel,
                application,
            } => Ok(context.edit(tunnel, application, true, needed)),
            Request::AppRemove {
                tunnel,
                application,
            } => Ok(context.edit(tunnel, application, false, needed)),
        }
    }
}

impl Context<'_> {
    fn running(&self) -> Result<BTreeMap<String, Running>, String> {
        let tunnels = self.executor.tunnels();
        tunnels.map_err(|error| format!("the tunnels are unknown: {error}"))
    }

    /// Returns the record of a tunnel that is up from the file of the record. Root may have taken the
    /// tunnel down since, and brought another of this name up.
    fn valid_record(&self, tunnel: &TunnelName, running: &Running) -> Option<Record> {
        let record = self.registry.record(tunnel)?;
        let file = match record.is_listed {
            true => self.listed.path(tunnel)?,
            false => self.registry.copy(tunnel),
        };
        (running.file.as_deref() == Some(&file)).then_some(record)
    }

    fn relation(&self, tunnel: &TunnelName, caller: u32) -> Result<Relation, String> {
        let running = self.running()?;
        let Some(running) = running.get(tunnel.as_str()) else {
            return Ok(Relation::Down);
        };
        Ok(match self.valid_record(tunnel, running) {
            None => Relation::OfRoot,
            Some(record) if record.is_listed => match self.listed.for_user(tunnel, caller) {
                Some(_) => Relation::Listed(record),
                None => Relation::OfUser(record),
            },
            Some(record) if record.owner == caller => Relation::Own(record),
            Some(record) => Relation::OfUser(record),
        })
    }

    /// Fails if a tunnel is up, or was killed and not taken down.
    fn is_free(&self, tunnel: &TunnelName) -> Result<(), String> {
        match self.running()?.contains_key(tunnel.as_str()) {
            true => Err(format!("{tunnel} is up already")),
            false => Ok(()),
        }
    }

    /// Fails if a user has as many tunnels as are permitted.
    fn has_room(&self, tunnel: &TunnelName, caller: u32) -> Result<(), String> {
        let running = self.running()?;
        let mut records = self.registry.records();
        records.retain(|(name, _)| name != tunnel && running.contains_key(name.as_str()));
        let own = records.iter().filter(|(_, record)| record.owner == caller);
        match (own.count(), records.len()) {
            (MAX_TUNNELS.., _) => Err(format!("you have {MAX_TUNNELS} tunnels already")),
            (_, MAX_ALL_TUNNELS..) => Err(format!("users have {MAX_ALL_TUNNELS} tunnels already")),
            _ => Ok(()),
        }
    }

    /// Returns the reason why a user's tunnel could take applications from another tunnel, or give them
    /// away. Tunnels of class `user` select only processes of their owners.
    fn other_selections(&self, tunnel: &TunnelName) -> Result<Option<String>, String> {
        let running = self.running()?;
        let mut others = running.iter().filter(|(name, running)| {
            let name = name.parse::<TunnelName>();
            let record = name.ok().and_then(|name| self.valid_record(&name, running));
            let is_of_user = record.is_some_and(|it| it.class == Class::User && !it.is_listed);
            running.selects && !is_of_user
        });
        let other = others.find(|(name, _)| *name != tunnel.as_str());
        Ok(other.map(|(name, _)| format!("{name} selects applications that may be yours")))
    }

    /// Returns the tunnels that a user may see.
    fn visible(&self, caller: u32) -> Result<BTreeSet<TunnelName>, String> {
        let mut visible = BTreeSet::new();
        for (name, _) in self.registry.records() {
            if let Relation::Own(_) | Relation::Listed(_) = self.relation(&name, caller)? {
                visible.insert(name);
            }
        }
        Ok(visible)
    }

    /// Returns the file of a tunnel that a request has brought up, or the tunnel's name.
    fn target(&self, tunnel: &TunnelName) -> Target {
        let running = self.running().unwrap_or_default();
        let running = running.get(tunnel.as_str());
        match running.and_then(|running| self.valid_record(tunnel, running)) {
            Some(record) if !record.is_listed => Target::File(self.registry.copy(tunnel)),
            Some(_) => match self.listed.path(tunnel) {
                Some(path) => Target::File(path),
                None => Target::Name(tunnel.clone()),
            },
            None => Target::Name(tunnel.clone()),
        }
    }

    fn edit(
        &self,
        tunnel: &TunnelName,
        application: &str,
        is_allowed: bool,
        needed: Class,
    ) -> Outcome {
        let target = self.target(tunnel);
        let outcome = self.executor.edit(&target, application, is_allowed);
        // Its rules may match other users from now on.
        if needed == Class::Admin
            && let Some(record) = self.registry.record(tunnel)
        {
            let class = Class::Admin;
            // The owner stays. If the class cannot be written, the tunnel counts as the owner's only.
            let _ = self
                .registry
                .write(tunnel, Record { class, ..record }, None);
        }
        outcome
    }

    fn list(&self, caller: u32) -> Result<Outcome, String> {
        let running = self.running()?;
        let mut text = String::new();
        for name in self.visible(caller)? {
            let is_listed = self.registry.record(&name).is_some_and(|it| it.is_listed);
            let whose = if is_listed { "listed" } else { "yours" };
            let _ = writeln!(text, "{name} up {whose}");
        }
        for name in self.listed.names(caller) {
            if !running.contains_key(name.as_str()) {
                let _ = writeln!(text, "{name} down listed");
            }
        }
        Ok(Outcome {
            output: text.into_bytes(),
            ..Outcome::default()
        })
    }

    /// Removes the copy and the owner of a tunnel that does not exist any more.
    fn tidy(&self, tunnel: &TunnelName) {
        if let Ok(running) = self.running()
            && !running.contains_key(tunnel.as_str())
        {
            self.registry.remove(tunnel);
        }
    }
}

fn without(descriptors: &[OwnedFd]) -> Result<Option<Passed>, String> {
    match descriptors {
        [] => Ok(None),
        _ => Err("this request takes no descriptors".to_owned()),
    }
}

fn not_yours(tunnel: &TunnelName) -> Vec<String> {
    vec![format!("{tunnel} is not your tunnel")]
}

fn not_written(error: io::Error) -> String {
    format!("the copy of the file cannot be written: {error}")
}

fn parse_application(text: &str) -> Result<Application, String> {
    if text.len() > MAX_PATH {
        return Err("an application has too many characters".to_owned());
    }
    let parsed = text.parse::<Application>();
    parsed.map_err(|_| {
        "it is not an application as AllowedApps takes it, such as uid:1000 or /usr/bin/curl"
            .to_owned()
    })
}
