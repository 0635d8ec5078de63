//! Properties of the adapters that the driver lists, and connections that it does not cover.

use super::LONGEST_PACKET;
use crate::{Adapter, Medium};
use ndisapi::{FilterFlags, NetworkAdapterInfo};
use taupe_os_windows::connections::{Connection, Kind};

/// `NdisMedium802_3`, and `NdisMediumIP`, which has no link header (ntddndis.h).
const MEDIUM_ETHERNET: u32 = 0;
const MEDIUM_IP: u32 = 19;

/// Returns the connection of a driver's adapter, whose name contains the connection's GUID.
pub(super) fn connection<'a>(
    info: &NetworkAdapterInfo,
    connections: &'a [Connection],
) -> Option<&'a Connection> {
    let mut connections = connections.iter();
    connections.find(|connection| is_named(info.get_name(), connection))
}

/// Returns true if the name of a driver's adapter contains the connection's GUID.
fn is_named(adapter: &str, connection: &Connection) -> bool {
    let guid = connection.guid.to_ascii_uppercase();
    !guid.is_empty() && adapter.to_ascii_uppercase().contains(&guid)
}

/// Returns the display names of connections that lead out and have no adapter in the driver: the
/// filter was removed from them, or the driver does not list all.
pub(super) fn missed(
    connections: &[Connection],
    adapters: &[&str],
    takes_dial_up: impl Fn() -> bool,
) -> Vec<String> {
    let is_taken = |connection: &Connection| match connection.kind {
        Kind::Card => adapters.iter().any(|name| is_named(name, connection)),
        Kind::DialUp => takes_dial_up(),
        // Its packets are seen on the adapter that carries them.
        Kind::Wrapped => true,
    };
    let leading = connections.iter().filter(|it| it.has_gateway);
    let missed = leading.filter(|connection| !is_taken(connection));
    missed.map(|connection| connection.name.clone()).collect()
}

pub(super) fn adapter(
    index: u32,
    info: &NetworkAdapterInfo,
    connection: Option<&Connection>,
) -> Adapter {
    Adapter {
        index,
        name: connection.map_or_else(|| info.get_name().to_owned(), |it| it.name.clone()),
        medium: medium(info.get_medium()),
        mac: *info.get_hw_address(),
        mtu: info.get_mtu().min(LONGEST_PACKET),
        addresses: connection.map_or_else(Vec::new, |it| it.addresses.clone()),
        leads_out: connection.is_some_and(|it| it.has_gateway),
    }
}

pub(super) fn medium(number: u32) -> Medium {
    match number {
        MEDIUM_ETHERNET => Medium::Ethernet,
        MEDIUM_IP => Medium::Ip,
        _ => Medium::Unknown,
    }
}

/// Returns the mode to restore for an adapter.
pub(super) fn mode_after(before: FilterFlags) -> FilterFlags {
    match before.intersects(FilterFlags::MSTCP_FLAG_SENT_RECEIVE_TUNNEL) {
        true => FilterFlags::empty(),
        false => before,
    }
}

#[cfg(test)]
mod tests {
    use super::FilterFlags;
    use super::{Connection, Kind, Medium, medium, missed, mode_after};

    #[test]
    fn a_connection_that_leads_out_and_has_no_adapter_is_missed() {
        let connection = |guid: &str, name: &str, has_gateway, kind| Connection {
            guid: guid.into(),
            name: name.into(),
            index: 1,
            addresses: Vec::new(),
            has_gateway,
            kind,
        };
        let connections = [
            connection("{0A}", "Ethernet", true, Kind::Card),
            connection("{0B}", "Wi-Fi", true, Kind::Card),
            connection("{0C}", "Host only", false, Kind::Card),
            connection("{0D}", "Teredo", true, Kind::Wrapped),
            connection("{0E}", "Broadband", true, Kind::DialUp),
        ];
        let (card, both) = ([r"\DEVICE\{0a}"], [r"\DEVICE\{0a}", r"\DEVICE\{0B}"]);
        assert_eq!(missed(&connections, &both, || true), [""; 0]);
        assert_eq!(missed(&connections, &card, || true), ["Wi-Fi"]);
        assert_eq!(missed(&connections, &both, || false), ["Broadband"]);
        let nameless = [connection("", "Odd", true, Kind::Card)];
        assert_eq!(missed(&nameless, &both, || true), ["Odd"]);
    }

    #[test]
    fn frames_are_read_of_two_mediums_alone() {
        assert_eq!(medium(0), Medium::Ethernet);
        assert_eq!(medium(19), Medium::Ip);
        // A wide-area network, IEEE 1394, and numbers not assigned yet.
        for other in [3, 13, 18, 20, u32::MAX] {
            assert_eq!(medium(other), Medium::Unknown, "{other}");
        }
    }

    #[test]
    fn what_a_killed_process_left_is_not_given_back() {
        let nothing = FilterFlags::empty();
        for left in [
            FilterFlags::MSTCP_FLAG_SENT_RECEIVE_TUNNEL,
            FilterFlags::MSTCP_FLAG_SENT_TUNNEL,
            FilterFlags::MSTCP_FLAG_RECV_TUNNEL | FilterFlags::MSTCP_FLAG_FILTER_DIRECT,
        ] {
            assert_eq!(mode_after(left), nothing, "{left:?}");
        }
        let others = FilterFlags::MSTCP_FLAG_SENT_RECEIVE_LISTEN;
        for before in [nothing, others] {
            assert_eq!(mode_after(before), before);
        }
    }
}
