//! Devices that the command runs.

use std::sync::Arc;
use taupe_engine::{Engine, Exit, Options, Resolver, StartError};

/// Operations that the command needs of a device. [`Engine`] implements them; tests use another
/// implementation.
pub trait Device: Sized + Send + 'static {
    /// Starts the device, which looks up endpoint names by `resolver`. When this returns, its
    /// configuration socket answers.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    fn start(options: Options, resolver: Arc<dyn Resolver>) -> Result<Self, StartError>;

    /// Returns a function that stops the device from any thread.
    fn stopper(&self) -> impl FnOnce() + Send + 'static;

    /// Waits until the device has ended.
    fn run(self) -> Exit;
}

impl Device for Engine {
    fn start(options: Options, resolver: Arc<dyn Resolver>) -> Result<Self, StartError> {
        Self::start_with(options, resolver)
    }

    fn stopper(&self) -> impl FnOnce() + Send + 'static {
        let stopper = self.stopper();
        move || stopper.stop()
    }

    fn run(self) -> Exit {
        self.run()
    }
}
