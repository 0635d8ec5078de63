//! Options of a device as a message.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use taupe_engine::{Offloads, Options, StartError, TunSource, UapiSource, Underlay};
use taupe_nat::translate::Settings;
use taupe_os_linux::message_socket::Message;
use taupe_os_linux::watch::LinkWatch;
use taupe_protocol::Lanes;

use crate::link::LinkError;
use crate::message::VERSION;

/// The first message to the packet process: the device to run. The descriptors of [`Options`] come
/// along in the order of its fields.
#[derive(Debug, Serialize, Deserialize)]
pub struct Start {
    version: u32,
    interface: String,
    tun: TunRecord,
    is_behind: bool,
    is_socket_passed: bool,
    offloads: Offloads,
    translation: Option<Settings>,
    /// The most detailed level that is logged, as `tracing` writes it.
    log_level: String,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum TunRecord {
    Create { lanes: Option<usize> },
    Passed,
    Elsewhere,
}

/// A version of [`Start`] that every version can read.
#[derive(Deserialize)]
struct AnyStart {
    version: u32,
}

/// Options of a device in a packet process.
pub struct StartOptions {
    /// The options of the engine.
    pub options: Options,
    /// Settings of the translator between the TUN and the tunnel, if there is one.
    pub translation: Option<Settings>,
    /// The most detailed level that is logged.
    pub log_level: String,
}

impl Start {
    /// Returns the message for some options and its descriptors. `options.tap`, `options.notices`,
    /// `options.state_dir` and `options.outer_mark` are not part of it.
    pub(crate) fn new(
        options: Options,
        translation: Option<Settings>,
        log_level: String,
    ) -> (Self, Vec<OwnedFd>) {
        let mut descriptors = Vec::new();
        let tun = match options.tun {
            TunSource::Create { lanes } => TunRecord::Create {
                lanes: lanes.map(Lanes::count),
            },
            TunSource::Fd(tun) => {
                descriptors.push(tun);
                TunRecord::Passed
            }
            TunSource::Elsewhere { tun, watch } => {
                descriptors.push(tun);
                descriptors.extend(watch.into_sockets());
                TunRecord::Elsewhere
            }
        };
        let is_behind = match options.underlay {
            Underlay::Here => false,
            Underlay::Behind(network) => {
                descriptors.push(network.into());
                true
            }
        };
        let is_socket_passed = match options.uapi {
            UapiSource::Bind => false,
            UapiSource::Fd(socket) => {
                descriptors.push(socket);
                true
            }
        };
        let start = Self {
            version: VERSION,
            interface: options.interface,
            tun,
            is_behind,
            is_socket_passed,
            offloads: options.offloads,
            translation,
            log_level,
        };
        (start, descriptors)
    }

    /// Returns the options in a message.
    ///
    /// # Errors
    /// [`LinkError::Version`], [`LinkError::Invalid`]; [`LinkError::Io`] if descriptors are missing.
    pub(crate) fn read(message: Message) -> Result<StartOptions, LinkError> {
        let AnyStart { version } = serde_json::from_slice(&message.text)?;
        if version != VERSION {
            return Err(LinkError::Version(version, VERSION));
        }
        let start: Self = serde_json::from_slice(&message.text)?;
        let mut descriptors = message.descriptors.into_iter();
        let mut next = || {
            descriptors
                .next()
                .ok_or_else(|| std::io::Error::other("the message lacks a descriptor"))
        };
        let tun = match start.tun {
            TunRecord::Create { lanes } => TunSource::Create {
                lanes: lanes.and_then(Lanes::new),
            },
            TunRecord::Passed => TunSource::Fd(next()?),
            TunRecord::Elsewhere => TunSource::Elsewhere {
                tun: next()?,
                watch: LinkWatch::from_sockets([next()?, next()?])?,
            },
        };
        let underlay = match start.is_behind {
            true => Underlay::Behind(next()?.into()),
            false => Underlay::Here,
        };
        let uapi = match start.is_socket_passed {
            true => UapiSource::Fd(next()?),
            false => UapiSource::Bind,
        };
        Ok(StartOptions {
            options: Options {
                interface: start.interface,
                tun,
                underlay,
                outer_mark: None,
                tap: None,
                uapi,
                offloads: start.offloads,
                state_dir: None,
                notices: None,
            },
            translation: start.translation,
            log_level: start.log_level,
        })
    }
}

/// Returns a [`StartError`] of the broker itself.
pub(crate) fn start_error(what: &'static str) -> impl Fn(std::io::Error) -> StartError {
    move |source| StartError::System { what, source }
}

pub(crate) fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(|it| it.as_fd()).collect()
}

/// Returns the reason for which a process has not received all descriptors of a message.
pub(crate) fn no_room() -> String {
    std::io::Error::from(Errno::MFILE).to_string()
}
