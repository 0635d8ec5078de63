//! Devices that the command runs.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use taupe_broker::PacketProcess;
use taupe_engine::{Engine, Environment, Exit, Options, Resolver, StartError};
use taupe_inspect::traffic::write_report;
use taupe_nat::translate::{Settings, Translator, TranslatorControl};

/// Operations that the command needs of a device. [`CommandDevice`] implements them; tests use another
/// implementation.
pub trait Device: Sized + Send + 'static {
    /// Starts the device, which looks up endpoint names by `resolver`. When this returns, its
    /// configuration socket answers.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    fn start(
        options: Options,
        place: Place,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Self, StartError>;

    /// Returns the device's translator, if it has one.
    fn translation(&self) -> Option<Translation>;

    /// Returns a function that stops the device from any thread.
    fn stopper(&self) -> impl FnOnce() + Send + 'static;

    /// Waits until the device has ended.
    fn run(self) -> Exit;
}

/// The process whose threads carry a device's packets.
#[derive(Clone, Debug)]
pub enum Place {
    /// A packet process, without rights.
    PacketProcess,
    /// This process. The eBPF programs that select applications know the process of a tunnel by its
    /// number, so its sockets must be used by no other process. With settings the device has a
    /// translator between the TUN and the tunnel.
    ThisProcess(Option<Settings>),
}

/// The translator of a device.
pub struct Translation {
    /// Operations of the watchdog of selected applications.
    pub control: Box<dyn TranslatorControl>,
    /// Writes the UDP traffic to a client.
    pub report: Box<dyn Fn(UnixStream) -> io::Result<()> + Send>,
}

/// A device of the command.
pub enum CommandDevice {
    /// In a packet process.
    PacketProcess(PacketProcess),
    /// In this process.
    ThisProcess(InProcess),
}

/// A device whose threads are in this process.
pub struct InProcess {
    engine: Engine,
    translator: Option<Translator>,
}

impl InProcess {
    /// Starts the device, with a translator if there are settings for it.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    pub(crate) fn start(
        mut options: Options,
        translation: Option<Settings>,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Self, StartError> {
        let translator = translation.as_ref().map(Translator::new);
        if let Some(translator) = &translator {
            options.tap = Some(Arc::new(translator.clone()));
        }
        let engine = Engine::start_with(options, resolver)?;
        Ok(Self { engine, translator })
    }

    /// Returns a function that stops the device from any thread.
    pub(crate) fn stopper(&self) -> impl FnOnce() + Send + 'static {
        let stopper = self.engine.stopper();
        move || stopper.stop()
    }

    /// Waits until the device has ended.
    pub(crate) fn run(self) -> Exit {
        self.engine.run()
    }

    fn translation(&self) -> Option<Translation> {
        let translator = self.translator.clone()?;
        Some(Translation {
            control: Box::new(translator.clone()),
            report: Box::new(move |client| write_report(client, &translator)),
        })
    }
}

impl Device for CommandDevice {
    fn start(
        options: Options,
        place: Place,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Self, StartError> {
        match place {
            Place::PacketProcess => in_packet_process(options, resolver).map(Self::PacketProcess),
            Place::ThisProcess(translation) => {
                InProcess::start(options, translation, resolver).map(Self::ThisProcess)
            }
        }
    }

    fn translation(&self) -> Option<Translation> {
        match self {
            Self::PacketProcess(_) => None,
            Self::ThisProcess(device) => device.translation(),
        }
    }

    fn stopper(&self) -> impl FnOnce() + Send + 'static {
        let stopper: Box<dyn FnOnce() + Send> = match self {
            Self::PacketProcess(device) => Box::new(device.stopper()),
            Self::ThisProcess(device) => Box::new(device.stopper()),
        };
        stopper
    }

    fn run(self) -> Exit {
        match self {
            Self::PacketProcess(device) => device.run(),
            Self::ThisProcess(device) => device.run(),
        }
    }
}

fn in_packet_process(
    mut options: Options,
    resolver: Arc<dyn Resolver>,
) -> Result<PacketProcess, StartError> {
    let outer_mark = options.outer_mark.take();
    let state_dir = options.state_dir.take();
    let underlay = options.underlay.try_clone();
    let underlay = underlay.map_err(|source| StartError::System {
        what: "cannot copy the descriptor of a network namespace",
        source,
    })?;
    let environment =
        Environment::of_this_process(underlay, outer_mark, resolver, state_dir.as_deref());
    PacketProcess::start(options, environment)
}
