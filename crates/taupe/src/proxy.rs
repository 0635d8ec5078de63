//! `taupe proxy`: runs the tunnel of a file in this process, for clients that connect to a proxy
//! port.

use crate::command_line::proxy::ProxyOrder;
use crate::console::say;
use crate::remarks::with_command;
use crate::system::{self, StateFolderError};
use crate::{logging, peer_notices};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use taupe_client::ResolveError;
use taupe_config::file::{Compatibility, Endpoint, File, Peer, Table};
use taupe_inspect::check::{self, Checked, Unreadable, check};
use taupe_inspect::conf::{self, Conf};
use taupe_proxy::{
    AuthError, Credentials, DEFAULT_MTU, OpenError, Options, Proxy, RunError, StartError,
};

/// Reason why the proxy does not start or has ended.
#[derive(Debug, thiserror::Error)]
enum ProxyCommandError {
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The errors have been printed.
    #[error("{file} has {errors}; nothing was done")]
    Wrong { file: String, errors: String },
    #[error(
        "the endpoint {endpoint} (line {line}) has no address: {source}{}", resolve_advice(.source)
    )]
    Endpoint {
        endpoint: Endpoint,
        line: usize,
        source: ResolveError,
    },
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    StateFolder(#[from] StateFolderError),
    #[error("cannot catch signals: {0}")]
    Signals(#[source] io::Error),
    #[error("{}{}", .0, start_advice(.0))]
    Start(#[from] StartError),
    #[error("cannot read the addresses at which the proxy listens: {0}")]
    Listening(#[source] io::Error),
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Returns advice for an endpoint without an address, or nothing.
fn resolve_advice(error: &ResolveError) -> &'static str {
    match error {
        // The error says which values the variable may have.
        ResolveError::Retries(_) | ResolveError::Interrupted => "",
        ResolveError::Lookup(_) | ResolveError::NoAddress => {
            "; correct the name, see whether the name servers of this machine answer, or write an \
             address in its place"
        }
    }
}

/// Returns advice if the proxy cannot start, or nothing.
fn start_advice(error: &StartError) -> &'static str {
    match error {
        StartError::Unprotected(_) => " (--auth-file)",
        StartError::Listen { .. } => " (--socks5, --http or --forward)",
        StartError::Open(OpenError::NoAddress) => "; add one to the file",
        StartError::Open(OpenError::NotAHost(_)) => "; write another one",
        StartError::Open(OpenError::Mtu(_)) => "; delete the line",
        StartError::Open(OpenError::PortTaken(_)) => {
            ", perhaps by this tunnel, which may already be up: take it down, or delete ListenPort so \
             that the system chooses a port"
        }
        StartError::Open(_) => "",
    }
}

/// Runs the proxy until a signal ends it.
pub(crate) fn main(order: &ProxyOrder) -> ExitCode {
    logging::begin(order.log_level);
    match run(order) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

fn run(order: &ProxyOrder) -> Result<(), ProxyCommandError> {
    system::disable_core_files();
    let conf = Conf::find(&order.file, Compatibility::Taupe)?;
    let Checked { file, remarks, .. } = check(&conf, Compatibility::Taupe)?;
    for remark in &remarks {
        say(&with_command(remark));
    }
    let shown = conf.shown.display();
    let file = file.ok_or_else(|| ProxyCommandError::Wrong {
        file: shown.to_string(),
        errors: check::count(&remarks),
    })?;
    let credentials = order.auth_file.as_deref().map(Credentials::read);
    let credentials = credentials.transpose()?;

    let end = EndRequest::default();
    let request = {
        let end = end.clone();
        move || end.request()
    };
    // SIGHUP ends the proxy too: it has no settings to reload, and the signal means that the
    // terminal was closed.
    system::on_signal_confined(request.clone(), request).map_err(ProxyCommandError::Signals)?;
    let Some(endpoints) = endpoints(&file, &end)? else {
        return Ok(());
    };
    let (state_folder, warning) = system::state_folder(&file)?;
    if let Some(warning) = warning {
        say(&format_args!("[!] {shown}: {warning}"));
    }
    let options = options(order, &file, &endpoints, credentials, state_folder.clone());
    let proxy = Proxy::start(options)?;
    let stopper = proxy.stopper();
    if end.on_request(move || stopper.stop()) {
        return Ok(());
    }
    print_ports(order, &file, &proxy)?;
    let unused = unused(&file);
    if !unused.is_empty() {
        let unused = unused.join(", ");
        say(&format_args!(
            "[!] {shown}: {unused}: not used, because it has no effect for a proxy"
        ));
    }
    let has_names = file.peers.iter().any(has_name);
    system::confine_proxy(state_folder.as_deref(), has_names);
    system::notify_ready();
    proxy.run()?;
    system::notify_stopping();
    Ok(())
}

/// Checks whether an endpoint's name may be looked up again.
fn has_name(peer: &Peer) -> bool {
    matches!(peer.endpoint, Some(Endpoint::Name { .. }))
}

/// Request to end, which may come before there is a proxy to stop. A lock covers the request and what
/// it does: with two independent words, each of two threads could miss what the other has written.
#[derive(Clone, Default)]
struct EndRequest(Arc<Mutex<EndState>>);

#[derive(Default)]
struct EndState {
    is_made: bool,
    stop: Option<Box<dyn FnOnce() + Send>>,
}

impl EndRequest {
    fn request(&self) {
        let mut state = self.lock();
        state.is_made = true;
        if let Some(stop) = state.stop.take() {
            stop();
        }
    }

    fn is_made(&self) -> bool {
        self.lock().is_made
    }

    /// Sets what a request does. Returns true, and does nothing, if the request has been made.
    fn on_request(&self, stop: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.lock();
        if !state.is_made {
            state.stop = Some(Box::new(stop));
        }
        state.is_made
    }

    fn lock(&self) -> MutexGuard<'_, EndState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks up the addresses of endpoints. `None` if a signal came in the meantime.
fn endpoints(
    file: &File,
    end: &EndRequest,
) -> Result<Option<Vec<Option<SocketAddr>>>, ProxyCommandError> {
    let mut endpoints = Vec::new();
    for peer in &file.peers {
        let (host, port) = match &peer.endpoint {
            None => {
                endpoints.push(None);
                continue;
            }
            Some(Endpoint::Address(address)) => {
                endpoints.push(Some(*address));
                continue;
            }
            Some(Endpoint::Name { host, port }) => (host, *port),
        };
        let mut waiting = |line: Option<&str>| {
            if let Some(line) = line {
                say(&line);
            }
            !end.is_made()
        };
        match taupe_client::resolve(host, port, &mut waiting) {
            Ok(address) => endpoints.push(Some(address)),
            Err(ResolveError::Interrupted) => return Ok(None),
            Err(source) => {
                return Err(ProxyCommandError::Endpoint {
                    endpoint: Endpoint::Name {
                        host: host.clone(),
                        port,
                    },
                    line: peer.line,
                    source,
                });
            }
        }
    }
    Ok(Some(endpoints))
}

fn options(
    order: &ProxyOrder,
    file: &File,
    endpoints: &[Option<SocketAddr>],
    credentials: Option<Credentials>,
    state_dir: Option<PathBuf>,
) -> Options {
    let interface = &file.interface;
    let addresses = || interface.addresses.iter().map(|one| one.addr());
    let v4 = addresses().find_map(|address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    let v6 = addresses().find_map(|address| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address),
    });
    Options {
        device: taupe_client::setconf_request(file, endpoints).device,
        listen_port: interface.listen_port.unwrap_or(0),
        v4,
        v6,
        mtu: interface.mtu.map_or(DEFAULT_MTU, |mtu| mtu as usize),
        dns: interface.dns.clone(),
        socks5: order.socks5.clone(),
        http: order.http.clone(),
        forwards: order.forwards.clone(),
        credentials,
        state_dir,
        notices: Some(Box::new(|notice| {
            say(&format_args!("[!] {}", peer_notices::text(&notice)))
        })),
    }
}

/// Prints the ports that are listened on and how to use them.
fn print_ports(order: &ProxyOrder, file: &File, proxy: &Proxy) -> Result<(), ProxyCommandError> {
    let listening = proxy.listening().map_err(ProxyCommandError::Listening)?;
    let (socks5, rest) = listening.split_at(order.socks5.len().min(listening.len()));
    let (http, forwards) = rest.split_at(order.http.len().min(rest.len()));
    let user = match order.auth_file {
        Some(_) => "--proxy-user USER ",
        None => "",
    };
    for (at, what, scheme) in socks5
        .iter()
        .map(|at| (at, "SOCKS 5", "socks5h"))
        .chain(http.iter().map(|at| (at, "HTTP proxy", "http")))
    {
        let local = local_address(*at);
        say(&format_args!(
            "[#] {what} at {at}: curl {user}--proxy {scheme}://{local} https://example.org/"
        ));
    }
    for (at, forward) in forwards.iter().zip(&order.forwards) {
        say(&format_args!("[#] {at} is forwarded to {}", forward.target));
    }
    let servers = proxy.name_servers();
    if servers.is_empty() {
        let reason = match file.interface.dns.is_empty() {
            true => "the file has no DNS",
            false => "no server in DNS is in AllowedIPs and of a family with an Address",
        };
        say(&format_args!(
            "[!] {reason}: names cannot be looked up, so clients have to give addresses"
        ));
    } else {
        let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
        let servers = servers.join(", ");
        say(&format_args!(
            "[#] names are looked up by {servers}, through the tunnel"
        ));
    }
    Ok(())
}

/// Returns the address by which this machine reaches a listening socket, which may listen on all
/// addresses.
fn local_address(listening: SocketAddr) -> SocketAddr {
    let own = match listening.ip() {
        IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(any) if any.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        given => given,
    };
    SocketAddr::new(own, listening.port())
}

/// Returns the settings of a file that have no effect for a proxy.
fn unused(file: &File) -> Vec<&'static str> {
    let interface = &file.interface;
    let hooks = &interface.hooks;
    let all = [
        ("Table", interface.table != Table::Auto),
        ("FwMark", interface.fwmark.is_some_and(|mark| mark != 0)),
        ("PreUp", !hooks.pre_up.is_empty()),
        ("PostUp", !hooks.post_up.is_empty()),
        ("PreDown", !hooks.pre_down.is_empty()),
        ("PostDown", !hooks.post_down.is_empty()),
        ("SaveConfig", interface.save_config),
        ("search domains in DNS", !interface.dns_search.is_empty()),
        ("keys about applications", file.transparent.first.is_some()),
    ];
    let unused = all.into_iter().filter(|(_, is_there)| *is_there);
    unused.map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::{EndRequest, local_address};
    use std::sync::mpsc;

    #[test]
    fn a_request_to_end_is_not_lost_before_or_after_the_start() {
        for is_early in [true, false] {
            let end = EndRequest::default();
            let (stop, stopped) = mpsc::channel();
            if is_early {
                end.request();
            }
            assert_eq!(end.is_made(), is_early);
            assert_eq!(end.on_request(move || stop.send(()).unwrap()), is_early);
            if !is_early {
                end.request();
                end.request();
            }
            assert!(end.is_made());
            assert_eq!(stopped.iter().count(), usize::from(!is_early));
        }
    }

    #[test]
    fn an_example_has_an_address_that_works() {
        for (listening, reached) in [
            ("0.0.0.0:1080", "127.0.0.1:1080"),
            ("[::]:1080", "[::1]:1080"),
            ("192.0.2.1:1080", "192.0.2.1:1080"),
        ] {
            let listening = listening.parse().unwrap();
            assert_eq!(local_address(listening).to_string(), reached);
        }
    }
}
