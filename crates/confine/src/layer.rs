//! Layers of confinement, and their state.

use std::fmt;

/// A layer. Landlock and seccomp need `no_new_privs`. Otherwise each works without the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    /// No program that this process could execute gains rights (`no_new_privs`).
    NoNewPrivileges,
    /// Capabilities of the process and of programs that it could execute.
    Capabilities,
    /// No core file; other processes of the user cannot read the memory.
    NotDumpable,
    /// Paths that can be opened, and TCP connections (Landlock).
    Paths,
    /// System calls (seccomp).
    Calls,
}

impl Layer {
    /// Returns the name for logs and `taupe doctor`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoNewPrivileges => "no_new_privs",
            Self::Capabilities => "capabilities",
            Self::NotDumpable => "no core files",
            Self::Paths => "Landlock",
            Self::Calls => "seccomp",
        }
    }
}

/// State of a layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LayerState {
    /// The layer holds.
    Holds,
    /// A part of it holds. The text says which part does not.
    Partly(String),
    /// The layer does not hold. The text is the reason.
    Missing(String),
}

/// A layer with its state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerStatus {
    /// The layer.
    pub layer: Layer,
    /// Its state.
    pub state: LayerState,
}

impl LayerStatus {
    /// Returns true if the whole layer holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.state == LayerState::Holds
    }

    pub(crate) fn new(layer: Layer, state: LayerState) -> Self {
        Self { layer, state }
    }
}

impl fmt::Display for LayerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.layer.name();
        match &self.state {
            LayerState::Holds => f.write_str(name),
            LayerState::Partly(missing) => write!(f, "{name} in part ({missing})"),
            LayerState::Missing(reason) => write!(f, "no {name} ({reason})"),
        }
    }
}

impl LayerState {
    /// Returns the state of a layer that one call sets.
    pub(crate) fn of<E: fmt::Display>(done: Result<(), E>) -> Self {
        match done {
            Ok(()) => Self::Holds,
            Err(error) => Self::Missing(error.to_string()),
        }
    }
}
