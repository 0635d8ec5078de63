//! The outer device, which runs in the inner device's process.

use crate::arguments::{Beneath, DeviceOrder};
use crate::device::Device;
use crate::endpoint_names;
use crate::endpoints;
use crate::via::names::Inside;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use taupe_adapter::Compatibility;
use taupe_client::SetRequest;
use taupe_config::file::File;
use taupe_engine::{Exit, Options, StartError, SystemResolver, TunSource, UapiSource, Underlay};
use taupe_inspect::check;
use taupe_inspect::conf::Conf;
use taupe_os_linux::namespace::NetworkNamespace;
use taupe_sandbox::{NetworkError, OpenedTun, TunNetwork, set_up_network};

/// Reason why the outer device does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
    #[error("{0} has changed, and has errors now (`taupe check` says which)")]
    Wrong(String),
    #[error("there can be no network namespace for {interface}: {source}; it takes root")]
    Namespace {
        interface: String,
        source: io::Error,
    },
    #[error("{interface}: {source}")]
    Network {
        interface: String,
        source: NetworkError,
    },
    #[error("{interface}: {source}")]
    Start {
        interface: String,
        source: StartError,
    },
    #[error("{interface} takes nothing of its file: {source}")]
    Configure {
        interface: String,
        source: taupe_client::Error,
    },
}

/// A running outer device. It ends when [`Started::end`] is called.
pub(crate) struct Started<D> {
    device: D,
    interface: String,
}

/// A running outer device, with the parts that the inner one uses.
pub(crate) struct Beginning<D> {
    pub(crate) outer: Started<D>,
    pub(crate) underlay: Underlay,
    /// Looks up names of the inner device's endpoints.
    pub(crate) names: Inside,
}

/// Starts and configures the outer device. Looks up its endpoint names, unless this process's
/// traffic is blocked (`is_closed`); [`endpoint_names::serve`] finds the remaining addresses.
pub(crate) fn start<D: Device>(
    beneath: &Beneath,
    order: &DeviceOrder,
    is_closed: bool,
) -> Result<Beginning<D>, Failure> {
    let interface = beneath.interface.to_string();
    let file = read(beneath)?;
    let failed = |source| Failure::Namespace {
        interface: interface.clone(),
        source,
    };
    let network = NetworkNamespace::new().map_err(failed)?;
    let (addresses, routes) = (endpoints::addresses(&file), endpoints::networks(&file));
    let plan = TunNetwork {
        interface: &interface,
        addresses: &addresses,
        routes: &routes,
        mtu: beneath.mtu,
    };
    let mut remarks = Vec::new();
    let opened = network.within(|| set_up_network(&plan, &mut remarks));
    let OpenedTun { tun, watch } = opened.map_err(failed)?.map_err(|source| Failure::Network {
        interface: interface.clone(),
        source,
    })?;
    for remark in remarks {
        tracing::warn!("{interface}: {remark}");
    }
    let inside = network.try_clone().map_err(failed)?;
    let options = Options {
        interface: interface.clone(),
        tun: TunSource::Elsewhere { tun, watch },
        underlay: Underlay::Here,
        tap: None,
        uapi: UapiSource::Bind,
        offloads: order.offloads,
        state_dir: None,
        notices: None,
    };
    let device = D::start(options, Arc::new(SystemResolver::default()));
    let device = device.map_err(|source| Failure::Start {
        interface: interface.clone(),
        source,
    })?;
    let started = Started { device, interface };
    match started.configure(&file, is_closed) {
        Ok(()) => {
            let underlay = started.underlay(network);
            Ok(Beginning {
                outer: started,
                underlay,
                names: Inside::new(&file, inside),
            })
        }
        Err(source) => {
            let interface = started.interface.clone();
            started.end();
            Err(Failure::Configure { interface, source })
        }
    }
}

fn read(beneath: &Beneath) -> Result<File, Failure> {
    let conf = Conf {
        interface: beneath.interface.clone(),
        path: beneath.file.clone(),
        shown: beneath.file.clone(),
    };
    let checked = check::check_alone(&conf, Compatibility::Taupe)?;
    let wrong = || Failure::Wrong(conf.shown.display().to_string());
    checked.file.ok_or_else(wrong)
}

impl<D: Device> Started<D> {
    fn configure(&self, file: &File, is_closed: bool) -> Result<(), taupe_client::Error> {
        let found = file.peers.iter().map(|peer| match is_closed {
            false => super::address(peer).or_else(|| endpoint_names::first_address(peer)),
            true => super::address(peer),
        });
        let found: Vec<_> = found.collect();
        taupe_client::apply(&self.interface, taupe_client::setconf_request(file, &found))?;
        // The request contains no names without addresses.
        endpoint_names::hand_over(&self.interface, &taupe_inspect::endpoint_names::named(file))
    }

    /// Returns the part of the outer tunnel that the inner device uses.
    fn underlay(&self, network: NetworkNamespace) -> Underlay {
        let interface = self.interface.clone();
        let mark = move |mark| {
            let request = SetRequest {
                fwmark: Some(mark),
                ..SetRequest::default()
            };
            taupe_client::apply(&interface, request).map_err(|error| error.to_string())
        };
        Underlay::Behind {
            network,
            mark: Box::new(mark),
        }
    }

    /// Starts to look up endpoints that have no address.
    pub(crate) fn serve_endpoints(&self) {
        endpoint_names::serve(&self.interface, Arc::new(SystemResolver::default()));
    }

    pub(crate) fn end(self) {
        self.device.stopper()();
        let _ = self.device.run();
    }

    /// Lets both devices end together: when one ends, the other is stopped.
    pub(crate) fn join(self, end_inner: impl FnOnce() + Send + 'static) -> io::Result<Joined> {
        let Self { device, interface } = self;
        let (end_outer, give_up) = (Box::new(device.stopper()), device.stopper());
        let is_first = Arc::new(AtomicBool::new(true));
        let ended = Arc::clone(&is_first);
        let wait = move || {
            let exit = device.run();
            // True if the outer device has ended before the inner one.
            let first = ended.swap(false, Ordering::AcqRel);
            end_inner();
            first.then(|| format!("{interface}, which it goes through, has ended ({exit:?})"))
        };
        let thread = thread::Builder::new().name("outer".into()).spawn(wait);
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => {
                give_up();
                return Err(error);
            }
        };
        Ok(Joined {
            end_outer,
            is_first,
            thread,
        })
    }
}

/// An outer device that ends together with the inner one.
pub(crate) struct Joined {
    end_outer: Box<dyn FnOnce() + Send>,
    is_first: Arc<AtomicBool>,
    thread: JoinHandle<Option<String>>,
}

impl Joined {
    /// Must be called when the inner device has ended. Stops the outer device. If the outer one had
    /// ended first, returns that as the reason.
    pub(crate) fn end(self, exit: Exit) -> Exit {
        self.is_first.store(false, Ordering::Release);
        (self.end_outer)();
        match (exit, self.thread.join()) {
            (Exit::Stopped, Ok(Some(why))) => Exit::Failed(why),
            (exit, _) => exit,
        }
    }
}
