//! Devices that the command runs.

use std::sync::Arc;
use taupe_broker::{PacketProcess, RemoteTranslator};
use taupe_engine::{Environment, Exit, Options, Resolver, StartError};
use taupe_nat::translate::Settings;
use taupe_runtime::saved_state::StateFiles;

/// Operations that the command needs of a device. [`PacketProcess`] implements them; tests use another
/// implementation.
pub trait Device: Sized + Send + 'static {
    /// Starts the device, which looks up endpoint names by `resolver`. With `translation` it has a
    /// translator between the TUN and the tunnel. When this returns, its configuration socket answers.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    fn start(
        options: Options,
        translation: Option<Settings>,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Self, StartError>;

    /// Returns the PID of the process that carries the packets, if that is not this process.
    fn packet_process(&self) -> Option<u32>;

    /// Returns the translator, if the device has one.
    fn translator(&self) -> Option<RemoteTranslator>;

    /// Returns a function that stops the device from any thread.
    fn stopper(&self) -> impl FnOnce() + Send + 'static;

    /// Waits until the device has ended.
    fn run(self) -> Exit;
}

impl Device for PacketProcess {
    fn start(
        mut options: Options,
        translation: Option<Settings>,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Self, StartError> {
        let outer_mark = options.outer_mark.take();
        let state_dir = options.state_dir.take();
        let underlay = options.underlay.try_clone();
        let underlay = underlay.map_err(|source| StartError::System {
            what: "cannot copy the descriptor of a network namespace",
            source,
        })?;
        let folder = state_dir.as_deref();
        let mut environment = Environment::of_this_process(underlay, outer_mark, resolver, folder);
        environment.saved = Box::new(StateFiles::limited(folder));
        Self::start(options, translation, environment)
    }

    fn packet_process(&self) -> Option<u32> {
        Some(self.id())
    }

    fn translator(&self) -> Option<RemoteTranslator> {
        self.translator()
    }

    fn stopper(&self) -> impl FnOnce() + Send + 'static {
        self.stopper()
    }

    fn run(self) -> Exit {
        self.run()
    }
}
