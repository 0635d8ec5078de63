//! The outer device, which has the same broker as the inner one.

use super::OuterPlan;
use super::names::Inside;
use crate::device::Device;
use crate::endpoint_names;
use crate::start_advice::start_advice;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use taupe_client::SetRequest;
use taupe_engine::{
    Exit, Offloads, Options, OuterMark, StartError, SystemResolver, TunSource, UapiSource, Underlay,
};
use taupe_os_linux::namespace::NetworkNamespace;
use taupe_sandbox::{NetworkError, OpenedTun, TunNetwork, set_up_network};

/// Reason why the outer device does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OuterError {
    #[error("cannot create a network namespace for {interface}: {source}; it takes root")]
    Namespace {
        interface: String,
        source: io::Error,
    },
    #[error("{interface}: {source}")]
    Network {
        interface: String,
        source: NetworkError,
    },
    #[error("{interface}: {source}{}", start_advice(.source))]
    Start {
        interface: String,
        source: StartError,
    },
    #[error("{interface} refuses the settings of its file: {source}")]
    Configure {
        interface: String,
        source: taupe_client::Error,
    },
}

/// A running outer device. It ends when [`OuterDevice::end`] is called.
pub(crate) struct OuterDevice<D> {
    device: D,
    interface: String,
}

/// A running outer device, with the parts that the inner one uses.
pub(crate) struct OuterStart<D> {
    pub(crate) outer: OuterDevice<D>,
    /// The network in which the inner device's sockets are.
    pub(crate) network: NetworkNamespace,
    /// Sets the mark of the outer device's datagrams.
    pub(crate) mark: OuterMark,
    /// Looks up names of the inner device's endpoints.
    pub(crate) names: Inside,
}

/// Starts and configures the outer device. [`endpoint_names::serve`] finds addresses of endpoints
/// that the plan lacks.
pub(crate) fn start<D: Device>(
    mut plan: OuterPlan,
    offloads: Offloads,
) -> Result<OuterStart<D>, OuterError> {
    let interface = plan.interface.to_string();
    let failed = |source| OuterError::Namespace {
        interface: interface.clone(),
        source,
    };
    let network = NetworkNamespace::new().map_err(failed)?;
    let tun_network = TunNetwork {
        interface: &interface,
        addresses: &plan.addresses,
        routes: &plan.routes,
        mtu: plan.mtu,
    };
    let mut remarks = Vec::new();
    let opened = network.within(|| set_up_network(&tun_network, &mut remarks));
    let OpenedTun { tun, watch } =
        opened
            .map_err(failed)?
            .map_err(|source| OuterError::Network {
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
        outer_mark: None,
        tap: None,
        uapi: UapiSource::Bind,
        offloads,
        state_dir: None,
        notices: None,
    };
    let device = D::start(options, None, Arc::new(SystemResolver::default()));
    let device = device.map_err(|source| OuterError::Start {
        interface: interface.clone(),
        source,
    })?;
    let outer = OuterDevice { device, interface };
    let configuration = mem::take(&mut plan.configuration);
    match taupe_client::apply(&outer.interface, configuration) {
        Ok(()) => {
            let mark = outer.mark();
            Ok(OuterStart {
                outer,
                network,
                mark,
                names: Inside::new(&plan, inside),
            })
        }
        Err(source) => {
            let interface = outer.interface.clone();
            outer.end();
            Err(OuterError::Configure { interface, source })
        }
    }
}

impl<D: Device> OuterDevice<D> {
    /// Returns a function that sets the mark of this device's datagrams.
    fn mark(&self) -> OuterMark {
        let interface = self.interface.clone();
        Box::new(move |mark| {
            let request = SetRequest {
                fwmark: Some(mark),
                ..SetRequest::default()
            };
            taupe_client::apply(&interface, request).map_err(|error| error.to_string())
        })
    }

    /// Returns the PID of the process that carries its packets, if that is not this process.
    pub(crate) fn packet_process(&self) -> Option<u32> {
        self.device.packet_process()
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
    pub(crate) fn join(self, end_inner: impl FnOnce() + Send + 'static) -> io::Result<JoinedOuter> {
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
        Ok(JoinedOuter {
            end_outer,
            is_first,
            thread,
        })
    }
}

/// An outer device that ends together with the inner one.
pub(crate) struct JoinedOuter {
    end_outer: Box<dyn FnOnce() + Send>,
    is_first: Arc<AtomicBool>,
    thread: JoinHandle<Option<String>>,
}

impl JoinedOuter {
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
