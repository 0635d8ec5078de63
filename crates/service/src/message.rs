//! The messages. Each is a JSON value in one record of a `SOCK_SEQPACKET` socket.

use serde::{Deserialize, Serialize};
use taupe_os_linux::message_socket;

use crate::name::TunnelName;

/// The version of the messages. It changes with every change of a message. Front and service are parts of
/// one package, so it differs only between an upgrade and the restart of both.
pub const VERSION: u32 = 1;

/// Bytes of text in a message, at most.
pub const MAX_TEXT: usize = message_socket::MAX_TEXT;

/// Descriptors in a request, at most: as many as Debian's configuration of the system bus permits.
pub const MAX_DESCRIPTORS: usize = 16;

/// Key files of a configuration file, at most. The configuration file has a descriptor too.
pub const MAX_KEY_FILES: usize = MAX_DESCRIPTORS - 1;

/// Bytes in the path of a key file, at most (Linux's `PATH_MAX`, less its NUL).
pub const MAX_PATH: usize = 4095;

/// Bytes of standard output in the memory that comes with an [`Answer::Done`], at most.
pub const MAX_OUTPUT: usize = 4 << 20;

/// Bytes of standard error in an answer, at most. In JSON a byte becomes at most two, because control
/// characters are removed.
pub const MAX_ERRORS: usize = 16 << 10;

/// A class of authorisation. A greater one includes the smaller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Class {
    /// Use of the service within the caller's own processes (polkit action `org.taupe.use`).
    User,
    /// Changes that concern everybody (polkit action `org.taupe.administer`).
    Admin,
}

/// Message of the front.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum FromFront {
    /// Read a request and say which class it needs. The descriptors of an [`Source::Passed`] come along:
    /// the configuration file, then its key files.
    Prepare {
        /// User ID of the caller, from the message bus.
        caller: u32,
        /// The request.
        request: Request,
    },
    /// Execute the request that was prepared on this connection.
    Execute {
        /// User ID of the caller: the same as before.
        caller: u32,
        /// The class that polkit has granted.
        granted: Class,
    },
}

/// A request of a caller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Request {
    /// List the caller's tunnels, and those that root lists for the caller.
    List,
    /// Show the state of a tunnel, or of the caller's tunnels.
    Status {
        /// The tunnel. Default: all of the caller, or of everybody with `all`.
        tunnel: Option<TunnelName>,
        /// Everybody's tunnels.
        all: bool,
        /// As JSON.
        json: bool,
    },
    /// List connections: the caller's, or with `all` everybody's.
    Flows {
        /// The tunnel. Default: all connections.
        tunnel: Option<TunnelName>,
        /// Everybody's connections.
        all: bool,
        /// As JSON.
        json: bool,
    },
    /// Bring up a tunnel.
    Up {
        /// Its name.
        tunnel: TunnelName,
        /// Its file.
        source: Source,
    },
    /// Take down a tunnel.
    Down {
        /// Its name.
        tunnel: TunnelName,
    },
    /// Apply an edited file to its tunnel.
    Reload {
        /// Its name.
        tunnel: TunnelName,
        /// Its file.
        source: Source,
    },
    /// Select an application for a tunnel, until the tunnel goes down.
    AppAllow {
        /// The tunnel.
        tunnel: TunnelName,
        /// An entry of `AllowedApps`.
        application: String,
    },
    /// Remove an application from a tunnel's lists, until the tunnel goes down.
    AppRemove {
        /// The tunnel.
        tunnel: TunnelName,
        /// An entry of `AllowedApps` or `DisallowedApps`.
        application: String,
    },
}

/// Origin of a tunnel's file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Source {
    /// The caller passes it.
    Passed {
        /// The paths of its key files as the file has them, in the order of the descriptors. The service
        /// compares them with the file, and opens none.
        key_files: Vec<String>,
    },
    /// Root has listed it for the group.
    Listed,
}

/// Answer of the service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Answer {
    /// The request is valid, and needs this class.
    Needs {
        /// The class.
        class: Class,
        /// Reasons for [`Class::Admin`].
        reasons: Vec<String>,
    },
    /// The request was executed. The command's standard output comes along as sealed memory.
    Done {
        /// Exit status of the command.
        status: u8,
        /// Its standard error.
        errors: String,
    },
    /// Nothing was changed, for this reason: one line.
    Refused {
        /// The reason.
        reason: String,
    },
}
