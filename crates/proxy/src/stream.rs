//! A TCP connection through the tunnel: a stack of its own for each.
//!
//! The library's stack looks at every one of its sockets for every packet, so that a stack
//! with a thousand would take a thousand times as long. Here each has one socket, packets
//! are led to it by their addresses and ports, and only who has something to do is looked at.

use crate::holes::Holes;
use crate::outgoing::Outgoing;
use core::time::Duration;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use taupe_protocol::time::Instant;

/// The shortest MTU that a router may tell of (RFC 791: what every host takes, RFC 8200
/// §5: what every link takes).
const LEAST_MTU: [usize; 2] = [576, 1280];

/// What IPv4 and TCP put around a segment at least, in bytes.
const HEADERS: usize = 40;

/// How much a connection may have on the way, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Windows {
    pub(crate) receive: usize,
    pub(crate) send: usize,
}

/// A connection.
pub(crate) struct Stream {
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    mtu: usize,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) windows: Windows,
    /// When the other side was heard of last.
    pub(crate) heard: Instant,
    holes: Holes,
    /// The last [`Stream::send`] found no room for everything.
    is_stalled: bool,
}

impl Stream {
    /// Begins to connect. `seed` has to be random, as the number of the first segment comes
    /// of it. `None` where nobody can be at one of the addresses.
    pub(crate) fn connect(
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        mtu: usize,
        windows: Windows,
        seed: u64,
    ) -> Option<Self> {
        let buffer = |length| SocketBuffer::new(vec![0; length]);
        let mut socket = Socket::new(buffer(windows.receive), buffer(windows.send));
        socket.set_congestion_control(CongestionControl::Cubic);
        // The client's system has joined small pieces already, if it was to.
        socket.set_nagle_enabled(false);
        let mut interface = interface(now, local.ip(), mtu, seed);
        socket.connect(interface.context(), remote, local).ok()?;
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Some(Self {
            interface,
            sockets,
            handle,
            mtu,
            local,
            remote,
            windows,
            heard: now,
            holes: Holes::default(),
            is_stalled: false,
        })
    }

    pub(crate) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    pub(crate) fn state(&self) -> State {
        self.sockets.get::<Socket<'_>>(self.handle).state()
    }

    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self.state(), State::SynSent | State::SynReceived)
    }

    /// Whether something that has been sent waits for its acknowledgement.
    pub(crate) fn is_waiting(&self) -> bool {
        self.sockets.get::<Socket<'_>>(self.handle).send_queue() > 0
    }

    /// Takes a packet of this connection.
    pub(crate) fn take(&mut self, now: Instant, packet: &[u8], outgoing: &mut Outgoing) {
        self.heard = now;
        self.feed(now, packet, outgoing);
        if let Some(duplicate) = self.holes.look(packet, self.mtu - HEADERS) {
            for _ in 0..Holes::DUPLICATES {
                self.feed(now, &duplicate, outgoing);
            }
        }
    }

    fn feed(&mut self, now: Instant, packet: &[u8], outgoing: &mut Outgoing) {
        let mut wire = Wire {
            incoming: Some(packet),
            outgoing,
            mtu: self.mtu,
        };
        let sockets = &mut self.sockets;
        self.interface
            .poll_ingress_single(stack(now), &mut wire, sockets);
    }

    /// Hands over what is to be sent now, as far as there is room. Whether all of it was.
    pub(crate) fn send(&mut self, now: Instant, outgoing: &mut Outgoing) -> bool {
        let mut wire = Wire {
            incoming: None,
            outgoing,
            mtu: self.mtu,
        };
        self.is_stalled = true;
        while wire.outgoing.has_room() {
            let sockets = &mut self.sockets;
            let sent = self.interface.poll_egress(stack(now), &mut wire, sockets);
            if sent == PollResult::None {
                self.is_stalled = false;
                break;
            }
        }
        !self.is_stalled
    }

    /// When [`Stream::send`] has something to do. Not as long as there is no room: that
    /// would be now, again and again, until the system says that there is some.
    pub(crate) fn deadline(&mut self, now: Instant) -> Option<Instant> {
        if self.is_stalled {
            return None;
        }
        let at = self.interface.poll_at(stack(now), &self.sockets)?;
        Some(Instant(
            u64::try_from(at.total_micros()).unwrap_or(0) * 1000,
        ))
    }

    /// A router has said that the way takes packets of `mtu` bytes.
    pub(crate) fn lower_mtu(&mut self, now: Instant, mtu: usize) {
        let [v4, v6] = LEAST_MTU;
        let least = if self.local.is_ipv4() { v4 } else { v6 };
        let mtu = mtu.max(least);
        if mtu < self.mtu && !self.is_connecting() {
            self.mtu = mtu;
            // The random number is used at connecting only.
            self.interface = interface(now, self.local.ip(), mtu, 0);
        }
    }
}

/// A stack with one address, which sends everything out.
fn interface(now: Instant, local: IpAddr, mtu: usize, seed: u64) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut nothing = Outgoing::new(mtu);
    let mut wire = Wire {
        incoming: None,
        outgoing: &mut nothing,
        mtu,
    };
    let mut interface = Interface::new(config, &mut wire, stack(now));
    let length = if local.is_ipv4() { 32 } else { 128 };
    // There is room for one address and for two routes.
    interface.update_ip_addrs(|addresses| {
        let _ = addresses.push(IpCidr::new(local.into(), length));
    });
    let routes = interface.routes_mut();
    let _ = routes.add_default_ipv4_route(Ipv4Addr::UNSPECIFIED);
    let _ = routes.add_default_ipv6_route(Ipv6Addr::UNSPECIFIED);
    interface
}

fn stack(now: Instant) -> StackInstant {
    StackInstant::from_micros(i64::try_from(now.0 / 1000).unwrap_or(i64::MAX))
}

/// What a stack is connected to.
struct Wire<'a> {
    incoming: Option<&'a [u8]>,
    outgoing: &'a mut Outgoing,
    mtu: usize,
}

struct Receiving<'a>(&'a [u8]);

struct Sending<'a>(&'a mut Outgoing);

impl Device for Wire<'_> {
    type RxToken<'a>
        = Receiving<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Sending<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: StackInstant) -> Option<(Receiving<'_>, Sending<'_>)> {
        let packet = self.incoming.take()?;
        Some((Receiving(packet), Sending(self.outgoing)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Sending<'_>> {
        self.outgoing.has_room().then_some(Sending(self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

impl RxToken for Receiving<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        self.0.push(length, fill)
    }
}

/// What all connections together may take.
pub(crate) struct Memory {
    /// Beyond what is everybody's.
    left: usize,
}

impl Memory {
    /// What every connection has in each direction: enough for 10 Mbit/s over 25 ms.
    const FLOOR: usize = 32 << 10;
    /// What there is beyond that, for all.
    const POOL: usize = 256 << 20;
    /// What one connection gets of that at most: 160 Mbit/s over 75 ms.
    const MOST: usize = 2 << 20;

    pub(crate) fn new() -> Self {
        Self { left: Self::POOL }
    }

    /// Who comes first gets much, and the more there are the less the next one gets.
    pub(crate) fn take(&mut self) -> Windows {
        let extra = (self.left / 16).min(Self::MOST);
        self.left -= extra;
        let send = extra / 4;
        Windows {
            receive: Self::FLOOR + extra - send,
            send: Self::FLOOR + send,
        }
    }

    pub(crate) fn give_back(&mut self, windows: Windows) {
        self.left += windows.receive + windows.send - 2 * Self::FLOOR;
    }
}

/// For how long nothing is heard of somebody before a connection with something on the way
/// is given up (RFC 9293 §3.8.3 R2: at least 100 s).
pub(crate) const UNHEARD: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests;
