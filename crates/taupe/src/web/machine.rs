//! The tunnels of this machine, as the page reads and changes them.

use crate::app::edit_file;
use crate::arguments::AppPlace;
use crate::flows;
use crate::status::with_advice;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use taupe_config::application::Application;
use taupe_inspect::flows as inspect_flows;
use taupe_inspect::metrics::live::Facts;
use taupe_inspect::status::{self, Mode};

/// Files of tunnels whose applications the page may change, by the names of the tunnels.
pub(super) type Files = BTreeMap<String, PathBuf>;

/// Operations on tunnels. Tests have others.
pub(super) trait Machine {
    type Facts: Serialize;

    /// Reads the state of all tunnels, or the reason why it is unknown.
    fn read(&mut self) -> Result<(Self::Facts, Files), String>;

    /// Puts an application into a list of a file. Returns sentences about it, or the reason of the failure
    /// after those.
    fn change(
        &mut self,
        file: &Path,
        place: AppPlace,
        application: &Application,
    ) -> (Vec<String>, Result<(), String>);
}

/// This machine.
#[derive(Default)]
pub(super) struct ThisMachine {
    /// The files of the latest reading.
    parsed: status::Files,
}

impl Machine for ThisMachine {
    type Facts = Facts;

    fn read(&mut self) -> Result<(Facts, Files), String> {
        // A tunnel that cannot be read has a finding.
        let listed = inspect_flows::look(None, &mut |_| {});
        let listed = listed.map_err(|error| flows::with_advice(&error));
        let facts = Facts::read(listed, &mut self.parsed);
        let facts = facts.map_err(|error| with_advice(&error))?;
        let tunnels = facts.status.tunnels.iter();
        let tunnels = tunnels.filter(|it| it.mode == Some(Mode::Transparent));
        let files = tunnels.filter_map(|it| Some((it.interface.clone(), it.file.clone()?)));
        let files = files.collect();
        Ok((facts, files))
    }

    fn change(
        &mut self,
        file: &Path,
        place: AppPlace,
        application: &Application,
    ) -> (Vec<String>, Result<(), String>) {
        let mut sentences = Vec::new();
        let tell = &mut |sentence: &dyn Display| sentences.push(sentence.to_string());
        let one = std::slice::from_ref(application);
        let edited = edit_file(file.as_os_str(), place, one, tell);
        (sentences, edited.map_err(|error| error.to_string()))
    }
}
