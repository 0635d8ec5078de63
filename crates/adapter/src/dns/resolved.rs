//! systemd-resolved, over D-Bus (`org.freedesktop.resolve1(5)`).

use super::{Paths, Settings};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use zbus::{DynamicType, Message, OwnedObjectPath, Type, as_variant};

/// Time limit of one call.
const LIMIT: Duration = Duration::from_secs(5);

/// Time that systemd-resolved may take to notice a new interface.
const NOTICE: Duration = Duration::from_secs(2);

const SERVICE: &str = "org.freedesktop.resolve1";
const BUS: &str = "org.freedesktop.DBus";

// The address families in Linux's numbers, which the interface uses.
const IPV4: i32 = 2;
const IPV6: i32 = 10;

/// Error of systemd-resolved.
#[derive(Debug, thiserror::Error)]
pub enum ResolvedError {
    /// The message bus cannot be reached, or does not answer.
    #[error("the message bus at {address} does not answer: {why}")]
    Bus {
        /// The D-Bus address.
        address: String,
        /// The error.
        why: String,
    },

    /// No process provides the service, or it does not answer.
    #[error("systemd-resolved does not answer, and the message bus cannot start it: {0}")]
    Absent(String),

    /// systemd-resolved runs in another network namespace, so it knows other interfaces.
    #[error("systemd-resolved runs in another network namespace (process {process})")]
    Elsewhere {
        /// Its process id.
        process: u32,
    },

    /// There is no interface of this name here.
    #[error("there is no interface {interface}: {source}")]
    NoInterface {
        /// The name.
        interface: String,
        /// The system's error.
        source: io::Error,
    },

    /// systemd-networkd manages the interface.
    #[error(
        "systemd-networkd manages {interface}, so that systemd-resolved takes its name servers \
         from there only: add a file /etc/systemd/network/10-{interface}.network with \
         `[Match] Name={interface}` and `[Link] Unmanaged=yes`, and run `networkctl reload`"
    )]
    Managed {
        /// The name.
        interface: String,
    },

    /// systemd-resolved does not know the interface, or not yet.
    #[error("systemd-resolved does not know the interface {interface}: see `resolvectl status`")]
    UnknownInterface {
        /// The name.
        interface: String,
    },

    /// This version of systemd-resolved is too old.
    #[error("this version of systemd-resolved has no {call}")]
    UnknownMethod {
        /// The method.
        call: &'static str,
    },

    /// systemd-resolved refused a call.
    #[error("systemd-resolved refused {call}: {why}")]
    Refused {
        /// The method.
        call: &'static str,
        /// The name and the text of its error.
        why: String,
    },
}

/// Checks that systemd-resolved can be used, starting it if necessary.
pub(super) fn available(paths: &Paths) -> Result<(), ResolvedError> {
    let bus = Bus::open(paths)?;
    // Any call starts the service if the bus can do that.
    let path = "/org/freedesktop/resolve1";
    bus.call((SERVICE, path, "org.freedesktop.DBus.Peer"), "Ping", &())
        .map_err(|error| ResolvedError::Absent(error.to_string()))?;
    let process: u32 = bus.driver("GetConnectionUnixProcessID", &SERVICE)?;
    let theirs = std::fs::read_link(format!("/proc/{process}/ns/net"));
    let own = std::fs::read_link("/proc/thread-self/ns/net");
    match (theirs, own) {
        (Ok(theirs), Ok(own)) if theirs != own => Err(ResolvedError::Elsewhere { process }),
        // If the process cannot be examined, assume that it is in this namespace.
        _ => Ok(()),
    }
}

/// Sets the servers of an interface, and routes all names to them that no other interface claims
/// with a longer suffix, like systemd's own `resolvconf -x`.
pub(super) fn set(
    paths: &Paths,
    interface: &str,
    settings: &Settings,
) -> Result<(), ResolvedError> {
    let index = index(interface)?;
    let bus = Bus::open(paths)?;
    let servers: Vec<(i32, Vec<u8>)> = settings
        .servers
        .iter()
        .map(|server| match server {
            IpAddr::V4(address) => (IPV4, address.octets().to_vec()),
            IpAddr::V6(address) => (IPV6, address.octets().to_vec()),
        })
        .collect();
    let domains: Vec<(&str, bool)> = domains(settings).collect();
    let start = Instant::now();
    loop {
        match bus.manager(interface, "SetLinkDNS", &(index, &servers)) {
            Err(ResolvedError::UnknownInterface { .. }) if start.elapsed() < NOTICE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => break done?,
        }
    }
    let rest = || {
        bus.manager(interface, "SetLinkDomains", &(index, &domains))?;
        match bus.manager(interface, "SetLinkDefaultRoute", &(index, true)) {
            // Versions before 240 lack the call; there the domain `.` has the same effect.
            Err(ResolvedError::UnknownMethod { .. }) => Ok(()),
            done => done,
        }
    };
    rest().inspect_err(|_| {
        let _ = bus.manager(interface, "RevertLink", &(index,));
    })
}

/// Removes the interface's servers. systemd-resolved does so itself when the interface is deleted.
pub(super) fn revert(paths: &Paths, interface: &str) -> Result<(), ResolvedError> {
    let index = match index(interface) {
        Err(ResolvedError::NoInterface { .. }) => return Ok(()),
        index => index?,
    };
    let bus = Bus::open(paths)?;
    if !bus.driver::<_, bool>("NameHasOwner", &SERVICE)? {
        return Ok(());
    }
    match bus.manager(interface, "RevertLink", &(index,)) {
        Err(ResolvedError::UnknownInterface { .. }) => Ok(()),
        done => done,
    }
}

/// The name servers of an interface in systemd-resolved.
pub(super) struct LinkDns {
    pub(super) settings: Settings,
    /// True if they get all names that no other interface claims with a longer suffix.
    pub(super) is_default: bool,
}

/// Returns the name servers of an interface; `None` if there are none.
pub(super) fn current(paths: &Paths, interface: &str) -> Result<Option<LinkDns>, ResolvedError> {
    let index = match index(interface) {
        Err(ResolvedError::NoInterface { .. }) => return Ok(None),
        index => index?,
    };
    let bus = Bus::open(paths)?;
    let link = match bus.ask::<_, OwnedObjectPath>(interface, "GetLink", &(index,)) {
        Err(ResolvedError::UnknownInterface { .. }) => return Ok(None),
        link => link?,
    };
    let servers: Vec<(i32, Vec<u8>)> = bus.property(link.as_str(), "DNS")?;
    let domains: Vec<(String, bool)> = bus.property(link.as_str(), "Domains")?;
    let has_default_route = match bus.property(link.as_str(), "DefaultRoute") {
        // Versions before 240 lack the property.
        Err(ResolvedError::Refused { .. }) => true,
        value => value?,
    };
    let takes_all_names = domains.iter().any(|(name, _)| name == ".");
    let address = |(_, bytes): (i32, Vec<u8>)| match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
    };
    let settings = Settings {
        servers: servers.into_iter().filter_map(address).collect(),
        search: domains
            .into_iter()
            .filter(|(name, _)| name != ".")
            .map(|(name, routing)| if routing { format!("~{name}") } else { name })
            .collect(),
    };
    Ok((!settings.servers.is_empty()).then_some(LinkDns {
        settings,
        is_default: has_default_route && takes_all_names,
    }))
}

/// Returns the domains for the D-Bus call, each with a flag that is true for a routing domain (`~`
/// before it), which is not searched.
fn domains(settings: &Settings) -> impl Iterator<Item = (&str, bool)> {
    let named = settings
        .search
        .iter()
        .map(|name| match name.strip_prefix('~') {
            Some(routing) => (routing, true),
            None => (name.as_str(), false),
        });
    named.chain([(".", true)])
}

/// Returns the index of an interface in the calling thread's network namespace. `/sys/class/net`
/// may show another namespace.
fn index(interface: &str) -> Result<i32, ResolvedError> {
    let look_up = || -> io::Result<i32> {
        let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
        let index = name_to_index(&socket, interface)?;
        index.try_into().map_err(io::Error::other)
    };
    look_up().map_err(|source| ResolvedError::NoInterface {
        interface: interface.to_owned(),
        source,
    })
}

/// A connection to the message bus.
struct Bus {
    address: String,
    connection: zbus::Connection,
}

impl Bus {
    fn open(paths: &Paths) -> Result<Self, ResolvedError> {
        let address = paths.bus().to_owned();
        let failed = |why: String| ResolvedError::Bus {
            address: address.clone(),
            why,
        };
        // The library has a time limit for calls, but not for connecting. A thread that does not
        // finish ends with the process.
        let (sender, receiver) = mpsc::channel();
        let target = address.clone();
        std::thread::spawn(move || {
            let builder = zbus::connection::Builder::address(target.as_str());
            let builder = builder.method_timeout(LIMIT);
            let _ = sender.send(zbus::block_on(builder.build()));
        });
        let connection = match receiver.recv_timeout(LIMIT) {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(_) => return Err(failed(format!("nothing within {LIMIT:?}"))),
        };
        Ok(Self {
            address,
            connection,
        })
    }

    /// Calls the bus itself.
    fn driver<B, R>(&self, call: &'static str, body: &B) -> Result<R, ResolvedError>
    where
        B: Serialize + DynamicType,
        R: DeserializeOwned + Type,
    {
        let to = (BUS, "/org/freedesktop/DBus", BUS);
        self.call(to, call, body)
            .and_then(|answer| answer.body().deserialize())
            .map_err(|error| self.failed("", call, error))
    }

    /// Calls systemd-resolved for an interface, without an answer.
    fn manager<B>(&self, interface: &str, call: &'static str, body: &B) -> Result<(), ResolvedError>
    where
        B: Serialize + DynamicType,
    {
        self.ask(interface, call, body)
    }

    /// Calls systemd-resolved for an interface.
    fn ask<B, R>(&self, interface: &str, call: &'static str, body: &B) -> Result<R, ResolvedError>
    where
        B: Serialize + DynamicType,
        R: DeserializeOwned + Type,
    {
        let to = (
            SERVICE,
            "/org/freedesktop/resolve1",
            "org.freedesktop.resolve1.Manager",
        );
        self.call(to, call, body)
            .and_then(|answer| answer.body().deserialize())
            .map_err(|error| self.failed(interface, call, error))
    }

    /// Reads a property of an interface.
    fn property<R>(&self, link: &str, name: &'static str) -> Result<R, ResolvedError>
    where
        R: DeserializeOwned + Type,
    {
        let to = (SERVICE, link, "org.freedesktop.DBus.Properties");
        let answer = self.call(to, "Get", &("org.freedesktop.resolve1.Link", name));
        answer
            .and_then(|answer| {
                let body = answer.body();
                let value: as_variant::Deserialize<'_, R> = body.deserialize()?;
                Ok(value.0)
            })
            .map_err(|error| self.failed("", name, error))
    }

    fn call<B>(
        &self,
        (service, path, interface): (&str, &str, &str),
        call: &'static str,
        body: &B,
    ) -> zbus::Result<Message>
    where
        B: Serialize + DynamicType,
    {
        let connection = &self.connection;
        let answer = connection.call_method(Some(service), path, Some(interface), call, body);
        zbus::block_on(answer)
    }

    /// Converts an error of a call for `interface`.
    fn failed(&self, interface: &str, call: &'static str, error: zbus::Error) -> ResolvedError {
        let interface = interface.to_owned();
        match &error {
            zbus::Error::MethodError(name, ..) => match name.as_str() {
                "org.freedesktop.resolve1.NoSuchLink" => {
                    ResolvedError::UnknownInterface { interface }
                }
                "org.freedesktop.resolve1.LinkBusy" => ResolvedError::Managed { interface },
                _ => ResolvedError::Refused {
                    call,
                    why: error.to_string(),
                },
            },
            zbus::Error::FDO(known) => match &**known {
                zbus::fdo::Error::UnknownMethod(_) => ResolvedError::UnknownMethod { call },
                _ => ResolvedError::Refused {
                    call,
                    why: error.to_string(),
                },
            },
            _ => ResolvedError::Bus {
                address: self.address.clone(),
                why: format!("{call}: {error}"),
            },
        }
    }
}
