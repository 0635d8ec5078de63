//! The network of one connection: an interface of smoltcp, and the device on which it sends.

use crate::outgoing::Outgoing;
use crate::send_space::SendSpace;
use smoltcp::iface::{Config, Interface};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use taupe_protocol::time::Instant;

/// Creates a stack with one address and default routes.
pub(crate) fn interface(now: Instant, local: IpAddr, mtu: usize, seed: u64) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut device = StackDevice {
        now,
        incoming: None,
        outgoing: &mut Outgoing::new(mtu),
        send_space: &mut SendSpace::default(),
        mtu,
    };
    let mut interface = Interface::new(config, &mut device, stack_time(now));
    let length = if local.is_ipv4() { 32 } else { 128 };
    // The tables have room for one address and two routes.
    interface.update_ip_addrs(|addresses| {
        let _ = addresses.push(IpCidr::new(local.into(), length));
    });
    let routes = interface.routes_mut();
    let _ = routes.add_default_ipv4_route(Ipv4Addr::UNSPECIFIED);
    let _ = routes.add_default_ipv6_route(Ipv6Addr::UNSPECIFIED);
    interface
}

/// Returns a time as smoltcp counts it.
pub(crate) fn stack_time(now: Instant) -> StackInstant {
    StackInstant::from_micros(i64::try_from(now.0 / 1000).unwrap_or(i64::MAX))
}

/// The device of a stack: one incoming packet, and the queue of outgoing ones.
pub(crate) struct StackDevice<'a> {
    pub(crate) now: Instant,
    pub(crate) incoming: Option<&'a [u8]>,
    pub(crate) outgoing: &'a mut Outgoing,
    pub(crate) send_space: &'a mut SendSpace,
    pub(crate) mtu: usize,
}

pub(crate) struct Receiving<'a>(&'a [u8]);

pub(crate) struct Sending<'a> {
    now: Instant,
    outgoing: &'a mut Outgoing,
    send_space: &'a mut SendSpace,
}

impl StackDevice<'_> {
    fn sending(&mut self) -> Sending<'_> {
        Sending {
            now: self.now,
            outgoing: self.outgoing,
            send_space: self.send_space,
        }
    }
}

impl Device for StackDevice<'_> {
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
        Some((Receiving(packet), self.sending()))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Sending<'_>> {
        self.outgoing.has_room().then(|| self.sending())
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
        self.outgoing.push(length, |packet| {
            let result = fill(packet);
            self.send_space.note_sent(self.now, packet);
            result
        })
    }
}
