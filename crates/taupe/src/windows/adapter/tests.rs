use super::{
    ABSENT_FAMILY_TIMEOUT, AppliedSettings, FAMILY_TIMEOUT, MTU, UplinkRoute, addressing,
    routes_into_tunnel, without_missing,
};
use std::time::Duration;
use taupe_config::file::{Compatibility, parse};
use taupe_os_windows::routes::AdapterSettings;
use taupe_packet::ip::Family::{self, V4, V6};

const PEER: &str =
    "[Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = ";

/// Returns the settings for a file with these lines.
fn of(lines: &str) -> AdapterSettings {
    let text = format!(
        "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
         Address = 10.7.0.2/24\n{lines}\n"
    );
    let parsed = parse(text.as_bytes(), Compatibility::Taupe.dialect());
    addressing(&parsed.file.expect("a file"))
}

fn peer(networks: &str) -> AdapterSettings {
    of(&format!("{PEER}{networks}"))
}

fn routes(addressing: &AdapterSettings) -> Vec<String> {
    let routes = addressing.routes.iter();
    routes.map(ToString::to_string).collect()
}

fn captured(addressing: &AdapterSettings, endpoint: &str) -> Vec<Family> {
    let endpoint = std::iter::once(endpoint.parse().expect("an address"));
    let routes_into_tunnel =
        |family: &Family| routes_into_tunnel(addressing, *family, endpoint.clone());
    Family::ALL.into_iter().filter(routes_into_tunnel).collect()
}

#[test]
fn routes_are_the_peers_networks_and_loops_are_recognised() {
    let everything = peer("::/0, 0.0.0.0/0, 10.7.0.0/24");
    assert_eq!(routes(&everything), ["0.0.0.0/0", "10.7.0.0/24", "::/0"]);
    assert_eq!(captured(&everything, "192.0.2.1:9"), [V4, V6]);
    let halves = peer("0.0.0.0/1, 128.0.0.0/1");
    assert_eq!(captured(&halves, "192.0.2.1:9"), [V4]);
    assert_eq!(captured(&halves, "[2001:db8::1]:9"), []);
    let without = peer("10.0.0.0/8\nDisallowedIPs = 10.128.0.0/9");
    assert_eq!(routes(&without), ["10.0.0.0/9"]);
    let off = of(&format!("Table = off\n{PEER}0.0.0.0/0"));
    assert_eq!(routes(&off), [""; 0]);
    assert_eq!(captured(&off, "192.0.2.1:9"), []);
    // The endpoint is in the network of the address itself.
    assert_eq!(captured(&off, "10.7.0.1:9"), [V4]);
    assert_eq!(
        captured(AppliedSettings::addressing(None), "10.7.0.1:9"),
        []
    );
}

#[test]
fn datagrams_bypass_routes_only_while_these_lead_into_the_tunnel() {
    assert_eq!(UplinkRoute::of(false, Some(7)), UplinkRoute::Routed);
    assert_eq!(UplinkRoute::of(false, None), UplinkRoute::Routed);
    assert_eq!(UplinkRoute::of(true, Some(7)), UplinkRoute::Interface(7));
    assert_eq!(UplinkRoute::of(true, None), UplinkRoute::Unreachable);
}

#[test]
fn a_missing_address_family_is_awaited_and_then_omitted() {
    let second = Duration::from_secs(1);
    let all = peer("0.0.0.0/0, ::/0");
    assert_eq!(
        without_missing(&all, &[], Duration::ZERO),
        Ok(Some(all.clone()))
    );
    assert_eq!(
        without_missing(&all, &[V6], ABSENT_FAMILY_TIMEOUT - second),
        Ok(None)
    );
    let without = without_missing(&all, &[V6], ABSENT_FAMILY_TIMEOUT).expect("no error");
    assert_eq!(routes(&without.expect("ready")), ["0.0.0.0/0"]);
    assert_eq!(
        without_missing(&all, &[V4, V6], FAMILY_TIMEOUT - second),
        Ok(None)
    );
    assert_eq!(
        without_missing(&all, &[V4, V6], FAMILY_TIMEOUT),
        Err(V4),
        "it has an address"
    );
    let v4 = peer("10.0.0.0/8");
    assert_eq!(v4.mtu, MTU);
    assert_eq!(
        without_missing(&v4, &[V6], Duration::ZERO),
        Ok(Some(v4.clone()))
    );
}
