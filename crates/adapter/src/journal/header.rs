//! The first line of a journal.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use taupe_config::file::{Compatibility, File};

use crate::file_stamp::FileStamp;
use crate::namespace::Namespace;
use crate::request::{Options, Outer, Request};
use crate::transparent::TransparentSettings;

pub(super) const VERSION: u32 = 1;

/// The header of a journal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// The version of this format.
    #[serde(rename = "taupe_journal")]
    pub(super) version: u32,
    /// The interface's name.
    pub interface: String,
    /// The file that the tunnel was made from.
    pub config: PathBuf,
    /// The state of the file when it was read.
    #[serde(default)]
    pub(super) seen: Option<FileStamp>,
    /// True if the file has `SaveConfig`.
    #[serde(default)]
    pub save_config: bool,
    /// Start of `up`, in seconds since the Unix epoch.
    pub(super) since: u64,
    /// The network namespace of the tunnel.
    pub namespace: Namespace,
    /// The command whose behaviour `up` followed.
    #[serde(with = "CompatibilityName", rename = "personality")]
    pub compatibility: Compatibility,
    /// The options of `up`.
    pub options: Options,
    /// The file's PreDown commands.
    pub pre_down: Vec<String>,
    /// The file's PostDown commands.
    pub post_down: Vec<String>,
    /// The file's number of lanes when `up` made the interface. A reload cannot change it.
    #[serde(default)]
    pub(super) lanes: Option<usize>,
    /// The settings of transparent mode that a reload cannot change.
    #[serde(default, rename = "memo")]
    pub transparent: TransparentSettings,
    /// The tunnel through which this one is routed.
    #[serde(default)]
    pub outer: Option<Outer>,
    /// The state of that tunnel's file when it was read.
    #[serde(default)]
    pub(super) outer_seen: Option<FileStamp>,
}

/// [`Compatibility`] in the format of a journal.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Compatibility")]
enum CompatibilityName {
    Taupe,
    WgQuick,
}

impl Header {
    /// Returns a header with the present time.
    #[must_use]
    pub fn new(request: &Request<'_>, namespace: Namespace) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let hooks = &request.file.interface.hooks;
        Self {
            version: VERSION,
            interface: request.interface.to_owned(),
            config: request.config.to_owned(),
            seen: request.stamp,
            save_config: request.file.interface.save_config,
            since: now.unwrap_or_default().as_secs(),
            namespace,
            compatibility: request.compatibility,
            options: request.options,
            pre_down: hooks.pre_down.clone(),
            post_down: hooks.post_down.clone(),
            lanes: request.file.interface.lanes.map(|lanes| lanes.count()),
            transparent: request.transparent.cloned().unwrap_or_default(),
            outer: request.outer.cloned(),
            outer_seen: request.outer_stamp,
        }
    }

    /// Returns true if the tunnel was made with the number of lanes in `file`.
    pub(crate) fn has_lanes_of(&self, file: &File) -> bool {
        self.lanes == file.interface.lanes.map(|lanes| lanes.count())
    }

    /// Returns true if the tunnel may have been made from `file`: it has the same path, or the
    /// recorded path does not exist any more.
    pub(crate) fn is_of(&self, file: &Path) -> bool {
        self.config == file || !self.config.exists()
    }

    /// Returns true if the configuration file was written after it was read for the tunnel.
    /// Taupe's own save, recorded by [`Journal::saved`](super::Journal::saved), does not count.
    #[must_use]
    pub fn is_edited(&self) -> bool {
        let now = FileStamp::of(&self.config);
        self.seen.is_some() && now.is_some() && self.seen != now
    }

    /// Like [`Self::is_edited`], for the file of the tunnel through which this one is routed.
    #[must_use]
    pub fn is_outer_edited(&self) -> bool {
        let now = self
            .outer
            .as_ref()
            .and_then(|outer| FileStamp::of(&outer.config));
        self.outer_seen.is_some() && now.is_some() && self.outer_seen != now
    }

    /// Returns the time at which `up` started.
    #[must_use]
    pub fn since(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.since)
    }
}

/// The version alone, which the header of every format has.
#[derive(Deserialize)]
pub(super) struct AnyHeader {
    #[serde(rename = "taupe_journal")]
    pub(super) version: u32,
}
