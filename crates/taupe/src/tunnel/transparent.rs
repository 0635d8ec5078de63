//! Steps of up, down and reload for a tunnel with selected applications.

use super::error::{TunnelError, wrong};
use crate::app_conflicts;
use crate::arguments::Up;
use crate::capture::Selection;
use crate::console::say;
use crate::mode::{AdapterReason, Mode, TransparentReason};
use crate::remarks::with_command;
use taupe_adapter::{State, Translation, TransparentSettings, UpError};
use taupe_config::application::{AppRules, Rule};
use taupe_config::file::File;
use taupe_inspect::check::{Checked, check_with_available_keys};
use taupe_inspect::conf::Conf;
use taupe_inspect::processes::Subject;
use taupe_inspect::traffic::remove_leftover;
use taupe_inspect::tunnel::{effect_until, effect_while_down};
use taupe_inspect::{dns, families};
use taupe_os_linux::netlink::Netlink;
use taupe_transparent::capture::{self, is_in_effect, release, reset};
use taupe_transparent::error::TransparentError;
use taupe_transparent::marks::{self, mark_of};
use taupe_transparent::programs::Programs;
use taupe_transparent::reset::Reset;
use taupe_transparent::state::Lock;

/// Returns the mode that this kernel supports. If transparent mode lacks a kernel feature,
/// applications are selected in adapter mode, unless the user asked for transparent mode. Fails if
/// the kernel takes no eBPF programs for either mode.
pub(super) fn on_this_kernel(mode: Mode) -> Result<Mode, TunnelError> {
    let Mode::Transparent(reason) = mode else {
        return Ok(mode);
    };
    match Programs::probe() {
        Err(
            error @ (TransparentError::TypeInformation { .. }
            | TransparentError::NarrowKernel { .. }
            | TransparentError::Forbidden { .. }),
        ) => Err(TunnelError::NoPrograms(error)),
        // Other errors occur again when the programs are loaded.
        Err(error) if reason == TransparentReason::Applications => {
            let lacks = |what| Mode::Adapter(AdapterReason::Lacks(what));
            Ok(error.required_features().map_or(mode, lacks))
        }
        _ => Ok(mode),
    }
}

/// Returns a bit for marks that neither routing rules nor the tunnel's own packets use. If a killed
/// process has left marked sockets, their mark is used again.
pub(super) fn free_mark(conf: &Conf, file: &File) -> Result<u32, TunnelError> {
    let own = file.interface.fwmark.unwrap_or_default();
    let before = mark_of(conf.interface.as_str())?;
    if let Some(mark) = before.filter(|mark| own & mark == 0) {
        return Ok(mark);
    }
    let rules = Netlink::open()?.rules()?;
    let marks = rules.iter().filter_map(|rule| rule.mark);
    let taken = marks.fold(own, |taken, mark| match mark.mask {
        u32::MAX => taken | mark.value,
        mask => taken | mask,
    });
    let mut bits = (24..31).map(|bit| 1 << bit);
    bits.find(|bit| taken & bit == 0).ok_or(TunnelError::NoMark)
}

/// Returns the selection of a file. Fails if another tunnel has selected one of its applications.
pub(super) fn selection(
    conf: &Conf,
    file: &mut File,
    mark: Option<u32>,
) -> Result<Selection, TunnelError> {
    let taken = Selection::take(file, &conf.path, mark);
    let selection = taken.map_err(|problem| TunnelError::Unsupported {
        file: conf.shown.display().to_string(),
        problem,
    })?;
    let interface = conf.interface.as_str();
    app_conflicts::check(interface, &conf.shown, &selection.plan.choice.rules)?;
    Ok(selection)
}

/// Like [`selection`], for a tunnel that is up. `None` if it is not up, which the reload itself
/// reports.
pub(super) fn selection_again(
    conf: &Conf,
    file: &mut File,
) -> Result<Option<Selection>, TunnelError> {
    let interface = conf.interface.as_str();
    let selection = selection(conf, file, mark_of(interface)?)?;
    let Some(header) = State::default().of_running(interface) else {
        return Ok(None);
    };
    if selection.for_all && !header.transparent.for_all {
        return Err(TunnelError::NoApplications(interface.to_owned()));
    }
    let (before, now) = (
        header.transparent.translation,
        selection.transparent_settings().translation,
    );
    if before == now {
        return Ok(Some(selection));
    }
    let keys =
        |it: &Option<Translation>| it.as_ref().map_or_else(String::new, Translation::to_string);
    let (before, now) = (keys(&before), keys(&now));
    let remedy = match capture::lock(interface)? {
        Some(Lock::Off) => {
            "run `taupe down`, then `taupe up`; between the two, traffic of the selected applications \
             bypasses the tunnel"
        }
        _ => {
            "run `taupe down --keep-closed`, then `taupe up`; between the two, traffic of the selected \
             applications is blocked"
        }
    };
    Err(TunnelError::Fixed {
        interface: interface.to_owned(),
        before,
        now,
        remedy,
    })
}

/// Checks whether a tunnel is up in transparent mode, or may be. Its interface then lacks addresses
/// and routes of the file, so its state must not be saved to the file.
pub(super) fn is_transparent(interface: &str) -> bool {
    let running = || State::default().of_running(interface);
    is_in_effect(interface).unwrap_or(true)
        || running().is_some_and(|header| !header.transparent.is_empty())
}

/// Returns consequences of a selection that the user may not expect.
pub(super) fn consequences(selection: &Selection) -> Vec<String> {
    if selection.plan.mark().is_some() {
        let dns = match selection.servers.as_slice() {
            [] => "",
            _ => ", and DNS of the file is not used",
        };
        return vec![format!(
            "[!] in adapter mode a socket belongs to the program that creates it: open sockets, and \
             sockets that selected programs inherit, stay as they are; selected programs are \
             reachable only through the tunnel; their DNS queries go to this system's name \
             servers{dns}"
        )];
    }
    let destinations = &selection.plan.choice.destinations;
    // Another message covers IPv6 that is switched off.
    let of_families = families::families_without_route(destinations);
    let of_families = of_families.into_iter().filter(|lack| !lack.is_disabled);
    let of_families = of_families.map(|lack| lack.to_string());
    let of_names = dns::warnings(&selection.servers, &selection.routed);
    let sentences = of_families.chain(of_names);
    sentences
        .map(|sentence| format!("[!] {sentence}"))
        .collect()
}

/// Lists the applications that use the tunnel, with the number of their running processes.
fn listed(rules: &AppRules) -> String {
    let mut running = Subject::all();
    running.retain(|subject| !rules.is_of_other_user(&subject.process()));
    let counted = |rule: &Rule| {
        let runs = running
            .iter()
            .filter(|subject| rule.application.matches(&subject.process()));
        match runs.count() {
            0 => rule.application.to_string(),
            count => format!("{} ({count} running)", rule.application),
        }
    };
    let list = |rules: &[Rule]| rules.iter().map(counted).collect::<Vec<_>>().join(", ");
    let all = match (rules.allowed.as_slice(), rules.disallowed.as_slice()) {
        ([], []) => "all applications".into(),
        ([], others) => format!("all applications but {}", list(others)),
        (selected, _) => list(selected),
    };
    match &rules.of_user {
        Some(only) => format!("{all}, only of user {}", only.user),
        None => all,
    }
}

/// The selected applications of a tunnel that is being brought up.
pub(super) struct SelectedApplications<'a> {
    interface: &'a str,
    /// Settings that a reload compares.
    pub(super) fixed: TransparentSettings,
    /// True if no kill switch was active before.
    pub(super) is_new: bool,
    is_marked: bool,
    reset_existing: bool,
    /// True if `up` waits for the peers.
    waits: bool,
    /// List of the applications, for a message.
    listed: String,
}

impl<'a> SelectedApplications<'a> {
    pub(super) fn new(
        conf: &'a Conf,
        selection: &Selection,
        up: &Up,
    ) -> Result<Self, TransparentError> {
        let interface = conf.interface.as_str();
        Ok(Self {
            interface,
            fixed: selection.transparent_settings(),
            // A kill switch that a killed process left active stays so.
            is_new: !is_in_effect(interface)?,
            is_marked: selection.plan.mark().is_some(),
            reset_existing: up.reset_existing,
            waits: up.wait.is_some(),
            listed: listed(&selection.plan.choice.rules),
        })
    }

    /// Runs after the capture has started and before the device has a peer, while the applications'
    /// packets reach nothing.
    pub(super) fn device_started(&self) {
        if self.reset_existing {
            close_existing(self.interface);
        }
    }

    /// Completes the work after the tunnel has been brought up, or has failed to be. If the device
    /// of a new tunnel has failed (`has_device_failed`), applications stay blocked, as if this
    /// process had been killed.
    pub(super) fn finish(&self, brought_up: &Result<(), UpError>, has_device_failed: bool) {
        let is_undone = self.is_new && !has_device_failed;
        match brought_up {
            Ok(()) => {
                if !self.is_marked {
                    print_missing_features(self.interface);
                }
                let interface = self.interface;
                let next = match self.waits {
                    true => "waiting for its peers".to_owned(),
                    false => format!("`taupe status {interface}` says whether its peer answers"),
                };
                say(&format_args!(
                    "{interface} is up; through the tunnel: {}; {next}",
                    self.listed
                ));
            }
            // Any other error may concern another command's tunnel.
            Err(UpError::Failed { .. }) if is_undone => {
                // The reason why the tunnel is not up matters more than this error, so this one is
                // only printed.
                if let Err(fault) = release(self.interface) {
                    say(&format_args!(
                        "[!] traffic of the applications selected for {0} stays blocked, because \
                         the block cannot be removed: {fault}; `taupe down {0}` tries again",
                        self.interface
                    ));
                }
            }
            Err(UpError::AlreadyUp { .. }) => {}
            Err(_) if is_undone => {}
            Err(_) => {
                let lock = capture::lock(self.interface)
                    .ok()
                    .flatten()
                    .unwrap_or_default();
                let meanwhile = effect_while_down(lock, self.interface);
                say(&format_args!("[!] {} is down: {meanwhile}", self.interface));
            }
        }
    }
}

/// Prints the guarantees of transparent mode that do not hold for a tunnel.
pub(super) fn print_missing_features(interface: &str) {
    for feature in capture::missing_features(interface).unwrap_or_default() {
        let text = taupe_inspect::advice::missing_feature(feature);
        say(&format_args!("[!] {text}"));
    }
}

/// Blocks packets of the file's selected applications until its tunnel is up.
pub(super) fn lock(conf: &Conf) -> Result<(), TunnelError> {
    // While the machine starts, a key file may become available after the lock.
    let Checked { file, remarks, .. } = check_with_available_keys(conf)?;
    let Some(mut file) = file else {
        return Err(wrong(conf, &remarks));
    };
    let shown = conf.shown.display();
    if file.transparent.first.is_none() {
        return Err(TunnelError::NothingChosen(shown.to_string()));
    }
    let interface = conf.interface.as_str();
    if !is_in_effect(interface)? && State::default().of_running(interface).is_some() {
        return Err(TunnelError::ForAll(interface.to_owned()));
    }
    let mark = match on_this_kernel(Mode::Transparent(TransparentReason::Applications))? {
        Mode::Transparent(_) => None,
        Mode::Adapter(_) => Some(free_mark(conf, &file)?),
    };
    let choice = selection(conf, &mut file, mark)?.plan.choice;
    if choice.lock == Lock::Off {
        return Err(TunnelError::NoLock(shown.to_string()));
    }
    for remark in &remarks {
        say(&with_command(remark));
    }
    let closed = match mark {
        None => capture::close(interface, &choice),
        Some(mark) => marks::close(interface, mark, &choice),
    };
    let word = conf.word();
    if closed? {
        let meanwhile = effect_until(choice.lock, interface, &word);
        say(&format_args!("{interface} is locked: {meanwhile}"));
        if mark.is_none() {
            print_missing_features(interface);
        }
    } else {
        say(&format_args!(
            "{interface} is up; when it is down, traffic of its applications will be blocked \
             (`taupe reload {word}` applies its file)"
        ));
    }
    Ok(())
}

/// Closes connections that selected applications opened before, or prints why that failed.
fn close_existing(interface: &str) {
    match reset(interface) {
        Ok(reset) if reset.left == 0 => {}
        Ok(reset) => say(&format_args!(
            "[!] {} connections that selected applications had open cannot be closed here, and \
             continue; to close them, end the applications that have them",
            reset.left
        )),
        Err(fault) => say(&format_args!(
            "[!] connections that selected applications had open continue: {fault}; to close them, \
             end the applications that have them"
        )),
    }
}

/// Releases the selected applications, or keeps them blocked if `keep_closed` is set. This is the
/// last step, so that no packet of theirs leaves unencrypted while the tunnel exists. Returns true
/// if applications had been captured.
pub(super) fn release_applications(
    interface: &str,
    keep_closed: bool,
) -> Result<bool, TransparentError> {
    remove_leftover(interface);
    if keep_closed {
        let captured = is_in_effect(interface)?;
        if captured {
            let lock = match capture::lock(interface) {
                // A lock of another version blocks at least the selected applications.
                Err(TransparentError::Schema { .. }) => None,
                lock => lock?,
            };
            let lock = lock.unwrap_or_default();
            let meanwhile = effect_while_down(lock, interface);
            say(&format_args!("{interface} is down: {meanwhile}"));
        }
        return Ok(captured);
    }
    let released = release(interface).inspect_err(|_| {
        say(&format_args!(
            "[!] traffic of the applications selected for {interface} stays blocked; \
             `taupe down {interface}` tries again to unblock it"
        ));
    });
    let Some(released) = released? else {
        return Ok(false);
    };
    say(&format_args!(
        "the applications selected for {interface} bypass it from now on"
    ));
    if let Some(fault) = released.drain_error {
        say(&format_args!(
            "[!] a few of their packets may have bypassed the tunnel just now: {fault}"
        ));
    }
    match released.ended {
        Ok(Reset { left: 0, .. }) => {}
        Ok(Reset { left, .. }) => say(&format_args!(
            "[!] {left} connections that were in the tunnel cannot be closed here, and continue \
             outside it; to close them, end the applications that have them"
        )),
        Err(fault) => say(&format_args!(
            "[!] connections that were in the tunnel continue outside it: {fault}; to close them, \
             end the applications that have them"
        )),
    }
    Ok(true)
}
