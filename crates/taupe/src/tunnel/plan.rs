//! The plan of a `taupe up`: all decisions of the command, made once and before anything changes.
//!
//! `taupe-adapter` plans the steps on the system from it, when it holds the lock of the network.

use super::error::{TunnelError, wrong};
use super::transparent::{
    SelectedApplications, consequences, free_mark, on_this_kernel, selection,
};
use super::{already_up, hand_over, hooks, without_applications};
use crate::arguments::Up;
use crate::console::say;
use crate::endpoint_names::{self, NamesToTake};
use crate::mode::{self, Mode};
use crate::plan::DevicePlan;
use crate::remarks::with_command;
use crate::via::{self, OuterPlan, OuterTunnel, Routed};
use std::ffi::OsStr;
use taupe_adapter::{Compatibility, FileStamp, Options, Request, UpError};
use taupe_config::file::{DiagnosticKind, File};
use taupe_inspect::check::{Checked, Remark, check};
use taupe_inspect::conf::Conf;
use taupe_inspect::endpoint_names::NamedEndpoint;
use taupe_transparent::capture::is_in_effect;

/// Plan of a `taupe up`.
pub(super) struct UpPlan<'a> {
    /// Messages for the user.
    pub(super) notices: Vec<String>,
    /// The part for the process that brings the tunnel up.
    pub(super) tunnel: TunnelPlan<'a>,
    /// The part for the device's process.
    pub(super) device: DevicePlan,
}

/// The part of a plan for the process that brings the tunnel up.
pub(super) struct TunnelPlan<'a> {
    conf: &'a Conf,
    compatibility: Compatibility,
    /// The file, without settings that the device's process applies.
    file: File,
    /// The state of the file when it was read.
    stamp: Option<FileStamp>,
    options: Options,
    /// The outer tunnel, if this one goes through another.
    outer: Option<OuterTunnel>,
    /// The selected applications, if the tunnel selects any.
    selected: Option<SelectedApplications<'a>>,
    /// Endpoint names that the device's process looks up.
    names: Vec<NamedEndpoint>,
}

impl<'a> UpPlan<'a> {
    /// Reads the files and decides.
    pub(super) fn new(
        conf: &'a Conf,
        up: &Up,
        compatibility: Compatibility,
    ) -> Result<Self, TunnelError> {
        let stamp = FileStamp::of(&conf.path);
        let Checked { file, remarks, .. } = check(conf, compatibility)?;
        let Some(mut file) = file else {
            return Err(wrong(conf, &remarks));
        };
        hooks::check(conf, &file)?;
        let interface = conf.interface.as_str();
        via::is_free(interface)?;
        // Names of endpoints are removed from the file below.
        let endpoints = file.peers.iter().map(|peer| peer.endpoint.is_some());
        let endpoints: Vec<_> = endpoints.collect();
        let through = match &up.via {
            None => None,
            Some(word) => Some(through(word, conf, &mut file, compatibility)?),
        };
        let selects = file.transparent.first.is_some();
        let mode = mode::choose(up.mode, compatibility, selects, &endpoints);
        let mode = on_this_kernel(mode)?;
        let selection = match mode {
            Mode::Adapter(_) if selects && compatibility == Compatibility::Taupe => {
                let mark = free_mark(conf, &file)?;
                Some(selection(conf, &mut file, Some(mark))?)
            }
            Mode::Adapter(_) => {
                without_applications(conf, &file)?;
                if is_in_effect(interface)? {
                    return Err(TunnelError::Captured(interface.to_owned()));
                }
                None
            }
            Mode::Transparent(_) => Some(selection(conf, &mut file, None)?),
        };
        already_up(conf, compatibility)?;
        let mut notices = vec![mode.to_string()];
        let mut device = DevicePlan::new(conf.interface.clone(), &up.device);
        // The environment is for this run, so it precedes the file.
        device.lanes = device.lanes.or(file.interface.lanes);
        let mut names = Vec::new();
        let outer = through.map(|(outer, plan, routed)| {
            notices.extend(routed.notices);
            let warning = outer.warning_about(&routed.names);
            notices.extend(warning.map(|warning| format!("[!] {warning}")));
            names = routed.names;
            device.outer = Some(plan);
            outer
        });
        // wg-quick has a warning of its own for this.
        let is_shown = |remark: &&Remark| {
            let kind = &remark.diagnostic.kind;
            compatibility == Compatibility::Taupe
                || !matches!(kind, DiagnosticKind::WorldAccessible { .. })
        };
        let remarks = remarks.iter().filter(is_shown);
        notices.extend(remarks.map(with_command));
        let selected = match &selection {
            None => None,
            Some(selection) => {
                notices.extend(consequences(selection));
                Some(SelectedApplications::new(conf, selection, up)?)
            }
        };
        device.capture = selection.map(|selection| selection.plan);
        let options = Options {
            override_routes: up.override_routes,
            firewall: !up.no_firewall,
            chosen: device.capture.as_ref().and_then(|capture| capture.mark()),
        };
        let tunnel = TunnelPlan {
            conf,
            compatibility,
            file,
            stamp,
            options,
            outer,
            selected,
            names,
        };
        Ok(Self {
            notices,
            tunnel,
            device,
        })
    }
}

/// Finds the outer tunnel, and changes the file of the inner one so that it goes through it.
fn through(
    word: &OsStr,
    conf: &Conf,
    file: &mut File,
    compatibility: Compatibility,
) -> Result<(OuterTunnel, OuterPlan, Routed), TunnelError> {
    already_up(conf, compatibility)?;
    // A kill switch that a killed process left active blocks DNS queries of this process.
    let is_closed = is_in_effect(conf.interface.as_str())?;
    let (outer, plan) = OuterTunnel::find(word, conf, is_closed)?;
    let routed = via::route_through(&outer.outer, conf, file)?;
    Ok((outer, plan, routed))
}

impl TunnelPlan<'_> {
    /// Looks up endpoint names as long as no kill switch blocks this process. The device's process
    /// looks up the others.
    pub(super) fn look_up_names(&mut self) {
        if let Some(selected) = &self.selected {
            let left = match selected.is_new {
                true => NamesToTake::WithoutAddress,
                false => NamesToTake::All,
            };
            self.names
                .extend(endpoint_names::take_names(&mut self.file, left));
        }
    }

    pub(super) fn request(&self) -> Request<'_> {
        Request {
            interface: self.conf.interface.as_str(),
            config: &self.conf.path,
            file: &self.file,
            stamp: self.stamp,
            compatibility: self.compatibility,
            options: self.options,
            transparent: self.selected.as_ref().map(|selected| &selected.fixed),
            outer: self.outer.as_ref().map(|outer| &outer.outer),
            outer_stamp: self.outer.as_ref().and_then(|outer| outer.stamp),
        }
    }

    /// Called once the device runs.
    pub(super) fn device_started(&self) {
        if let Some(selected) = &self.selected {
            selected.device_started();
        }
    }

    /// Completes the work after the tunnel has been brought up, or has failed to be.
    /// `has_device_failed` is true if the device has failed.
    pub(super) fn finish(&self, brought_up: &Result<(), UpError>, has_device_failed: bool) {
        let interface = self.conf.interface.as_str();
        let is_up = brought_up.is_ok();
        if let Some(selected) = &self.selected {
            if is_up && self.outer.is_none() {
                hand_over(interface, &self.names);
            }
            selected.finish(brought_up, has_device_failed);
        }
        if let (Some(outer), true) = (&self.outer, is_up) {
            outer.print_missing_addresses();
            hand_over(interface, &self.names);
        }
        if is_up && self.compatibility == Compatibility::Taupe {
            for sentence in taupe_inspect::status::warnings(interface) {
                say(&format_args!("[!] {sentence}"));
            }
        }
    }
}
