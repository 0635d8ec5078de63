//! A request, the class that it needs, and its execution.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::MutexGuard;

use taupe_config::application::{Application, Rule};
use taupe_config::file::{Dialect, File, parse};

use crate::class::{class_of, cuts_off, excess, is_own, is_restricted, reasons};
use crate::context::{Context, Relation};
use crate::executor::{FlowView, Outcome, Running};
use crate::message::{Class, MAX_PATH, Request, Source};
use crate::name::TunnelName;
use crate::passed::{self, Passed};
use crate::registry::Record;

/// A valid request with its file.
pub(crate) struct Prepared {
    caller: u32,
    request: Request,
    passed: Option<Passed>,
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
                    let passed = passed::read(key_files, descriptors, caller);
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

    /// Returns the file that came with the request, and its text.
    #[cfg(feature = "testing")]
    pub(crate) fn file(&self) -> Option<(&taupe_config::file::File, &str)> {
        self.passed.as_ref().map(|it| (&it.file, it.text.as_str()))
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
                reasons.extend(context.other_selections(tunnel, caller)?);
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
                let is_allowed = matches!(self.request, Request::AppAllow { .. });
                Ok(match context.relation(tunnel, caller)? {
                    Relation::Own(_)
                        if is_own_edit(context, tunnel, &application, is_allowed, caller)? =>
                    {
                        let reason = context.other_selections(tunnel, caller)?;
                        reason.into_iter().collect()
                    }
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
        if self.caller != 0 {
            keeps_bus(&passed.file, self.caller)?;
        }
        let reasons = reasons(&passed.file, tunnel, self.caller);
        // An administrator who consents to a file also consents to its size.
        if self.caller != 0
            && reasons.is_empty()
            && let Some(excess) = excess(&passed.file)
        {
            return Err(excess);
        }
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
        reasons.extend(context.other_selections(tunnel, self.caller)?);
        Ok(reasons)
    }

    /// Executes the request. The caller of this function holds the tunnel that it changes.
    pub(crate) fn execute(&self, context: &Context<'_>, granted: Class) -> Result<Outcome, String> {
        let admission = matches!(self.request, Request::Up { .. }).then(|| context.admit());
        if admission.is_some() {
            context.tidy_all();
        }
        // The state may have changed since the class was reported.
        let reasons = self.reasons(context)?;
        let needed = class_of(&reasons);
        if needed > granted {
            let reasons = reasons.join("; ");
            return Err(format!("an administrator must authorise this: {reasons}"));
        }
        let outcome = self.perform(context, needed, admission);
        if let Some(tunnel) = self.changed_tunnel() {
            context.tidy(tunnel);
        }
        outcome
    }

    fn perform(
        &self,
        context: &Context<'_>,
        needed: Class,
        admission: Option<MutexGuard<'_, ()>>,
    ) -> Result<Outcome, String> {
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
                drop(admission);
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
                drop(admission);
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

/// Fails if a file would cut its owner off from the service.
fn keeps_bus(file: &File, caller: u32) -> Result<(), String> {
    match cuts_off(file, caller) {
        true => Err(
            "with DNS, the tunnel would cut you off from the message bus, and so from this \
             service; write SystemBus = allow, or leave DNS out"
                .to_owned(),
        ),
        false => Ok(()),
    }
}

/// Returns true if a caller's own tunnel selects only the caller's processes, also after this edit. Fails if
/// the edit would cut the caller off.
fn is_own_edit(
    context: &Context<'_>,
    tunnel: &TunnelName,
    application: &Application,
    is_allowed: bool,
    caller: u32,
) -> Result<bool, String> {
    let text = context.registry.text(tunnel);
    let file = text.and_then(|text| parse(&text, Dialect::Taupe).file);
    let mut file = file.ok_or_else(|| format!("the file of {tunnel} is unknown"))?;
    let is_own = is_restricted(&file, caller) || is_own(application, caller);
    // Without AllowedApps, the command removes the application from DisallowedApps.
    if is_allowed && !file.transparent.apps.allowed.is_empty() {
        let rule = Rule::new(application.clone(), 0);
        file.transparent.apps.allowed.push(rule);
        keeps_bus(&file, caller)?;
    }
    Ok(is_own)
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
