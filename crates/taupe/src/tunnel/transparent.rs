//! What up, down and reload do besides for a tunnel of chosen applications.

use super::Failure;
use crate::arguments::Up;
use crate::capture::{ALL, Plan};
use crate::conf::Conf;
use crate::console::say;
use crate::endpoints::{self, Named};
use crate::{doubts, families, rivals};
use taupe_adapter::{State, UpError};
use taupe_config::file::File;
use taupe_transparent::capture::{is_in_effect, release, replace, reset};
use taupe_transparent::fault::Fault;

/// What is to be made of a file, if no other tunnel has its applications.
pub(super) fn plan(conf: &Conf, file: &mut File) -> Result<Plan, Failure> {
    let plan = Plan::take(file).map_err(|problem| Failure::Unsupported {
        file: conf.shown.display().to_string(),
        problem,
    })?;
    let interface = conf.interface.as_str();
    match rivals::clash(interface, &conf.shown, &plan.choice.rules) {
        Some(clash) => Err(clash.into()),
        None => Ok(plan),
    }
}

/// Likewise, for a tunnel that is up.
pub(super) fn plan_again(conf: &Conf, file: &mut File) -> Result<Plan, Failure> {
    let interface = conf.interface.as_str();
    let plan = plan(conf, file)?;
    // Without such a tunnel the reload itself says so.
    let Some(header) = State::default().of_running(interface) else {
        return Ok(plan);
    };
    if plan.takes_all() && !header.memo.starts_with(ALL) {
        return Err(Failure::NoApplications(interface.to_owned()));
    }
    let fixed = |memo: &str| memo.strip_prefix(ALL).unwrap_or(memo).to_owned();
    let (before, now) = (fixed(&header.memo), fixed(&plan.memo));
    if before == now {
        return Ok(plan);
    }
    Err(Failure::Fixed {
        interface: interface.to_owned(),
        before,
        now,
    })
}

/// Has a tunnel that is up follow its file.
pub(super) fn choose_again(conf: &Conf, plan: &Plan) -> Result<(), Failure> {
    let interface = conf.interface.as_str();
    replace(interface, &plan.choice).map_err(|fault| Failure::NotReplaced {
        interface: interface.to_owned(),
        fault: Box::new(fault),
    })?;
    tell_of(plan);
    Ok(())
}

/// Says what of a plan may not be as one thinks.
fn tell_of(plan: &Plan) {
    let unknown = doubts::unknown_names(&plan.choice.rules);
    if !unknown.is_empty() {
        let names: Vec<_> = unknown.iter().map(ToString::to_string).collect();
        say(&format_args!(
            "[!] no program in PATH, /usr/lib or /opt is called {}; what is so called elsewhere is \
             chosen all the same",
            names.join(" or ")
        ));
    }
    for sentence in families::without_route(&plan.choice.destinations) {
        say(&format_args!("[!] {sentence}"));
    }
}

/// A tunnel that is being brought up for chosen applications.
pub(super) struct Captured<'a> {
    interface: &'a str,
    /// For a reload to compare.
    pub(super) memo: String,
    /// Endpoints that the device's process is to find.
    left: Vec<Named>,
    /// Nothing was held back before.
    is_new: bool,
    reset_existing: bool,
}

impl<'a> Captured<'a> {
    /// The last preparations, which may take as long as name servers do.
    pub(super) fn prepare(
        conf: &'a Conf,
        plan: Plan,
        file: &mut File,
        up: &Up,
    ) -> Result<Self, Failure> {
        let interface = conf.interface.as_str();
        // What a process that was killed has left goes on holding packets back.
        let is_new = !is_in_effect(interface)?;
        tell_of(&plan);
        Ok(Self {
            interface,
            memo: plan.memo,
            left: endpoints::leave(file, !is_new),
            is_new,
            reset_existing: up.reset_existing,
        })
    }

    /// What is to be done when it is up, or is not.
    pub(super) fn settle(&self, brought_up: &Result<(), UpError>) -> Result<(), Fault> {
        match brought_up {
            Ok(()) => {
                if self.reset_existing {
                    close_existing(self.interface);
                }
                for sentence in endpoints::await_addresses(self.interface, &self.left) {
                    say(&format_args!("[!] {sentence}"));
                }
            }
            // If this has not begun to bring it up, it may be another's.
            Err(UpError::Failed { .. }) if self.is_new => {
                release(self.interface)?;
            }
            Err(UpError::AlreadyUp { .. }) => {}
            Err(_) if self.is_new => {}
            Err(_) => say(&format_args!(
                "[!] what the applications chosen for {0} send is still held back; `taupe down {0}` \
                 ends that",
                self.interface
            )),
        }
        Ok(())
    }
}

/// Closes the connections that chosen applications had before, or says why not.
fn close_existing(interface: &str) {
    match reset(interface) {
        Ok(reset) if reset.left == 0 => {}
        Ok(reset) => say(&format_args!(
            "[!] {} connections that chosen applications had open cannot be closed here, and go on",
            reset.left
        )),
        Err(fault) => say(&format_args!(
            "[!] connections that chosen applications had open go on: {fault}"
        )),
    }
}

/// Ends what transparent mode holds back for an interface, or says that it does not:
/// last, so that nothing of the chosen applications leaves in clear while there is a
/// tunnel. Whether there was anything.
pub(super) fn let_go(interface: &str, keep_closed: bool) -> Result<bool, Fault> {
    if keep_closed {
        let captured = is_in_effect(interface)?;
        if captured {
            say(&format_args!(
                "what the applications send that were chosen for {interface} is held back until \
                 `taupe up` or `taupe down {interface}`"
            ));
        }
        return Ok(captured);
    }
    let captured = release(interface)?;
    if captured {
        say(&format_args!(
            "the applications that were chosen for {interface} go past it from now on"
        ));
    }
    Ok(captured)
}
