//! Debian's `wg` and `wg-quick` configure Taupe like any other implementation.

mod life;
mod quick;
mod session;
mod uapi;
mod wg;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use taupe_lab::host::{Host, neighbours};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::sandbox::{Suite, SystemTest};
use taupe_lab::{Error, Result, ensure};

fn main() {
    Suite::new(vec![
        SystemTest::new("idle_tunnel_sleeps", life::idle_tunnel_sleeps),
        SystemTest::new("many_allowed_ips", wg::many_allowed_ips),
        SystemTest::new("thousand_peers", wg::thousand_peers),
        SystemTest::new("show_in_every_form", wg::show_in_every_form),
        SystemTest::new("set_addconf_and_syncconf", wg::set_addconf_and_syncconf),
        SystemTest::new("setconf_with_a_bad_line", wg::setconf_with_a_bad_line),
        SystemTest::new("uapi_with_a_bad_line", uapi::bad_line_changes_nothing),
        SystemTest::new("hundred_uapi_clients", uapi::hundred_clients),
        SystemTest::new("silent_uapi_clients", uapi::silent_clients),
        SystemTest::new("wg_quick_default_route", quick::default_route),
        SystemTest::new(
            "commands_of_an_article_of_2018",
            session::commands_of_an_article_of_2018,
        ),
        SystemTest::new("killed_and_started_again", life::killed_and_started_again),
        SystemTest::new("ends_with_its_interface", life::ends_with_its_interface),
        SystemTest::new("ends_with_its_socket", life::ends_with_its_socket),
        SystemTest::new("works_without_ipv6", life::works_without_ipv6),
    ])
    .prepare(|| Implementation::Taupe.install().map(drop))
    .main()
}

/// Two connected Taupes, with IPv4 inside and outside.
struct Pair {
    near: Tunnel,
    far: Tunnel,
    keys: [Keys; 2],
}

const NEAR: &str = "10.77.0.1/24";
const FAR: &str = "10.77.0.2/24";
const FAR_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2));

impl Pair {
    fn new(near: &Host, far: &Host) -> Result<Self> {
        let couple = Self {
            near: Implementation::Taupe.start(near, "wgnear")?,
            far: Implementation::Taupe.start(far, "wgfar")?,
            keys: [Keys::new(near)?, Keys::new(far)?],
        };
        couple.configure_near()?;
        couple.far.configure(&Settings {
            private_key: &couple.keys[1].private,
            listen_port: Some(51821),
            addresses: &[FAR],
            peers: &[PeerSettings {
                public_key: &couple.keys[0].public,
                preshared_key: None,
                endpoint: None,
                allowed_ips: "10.77.0.1/32",
            }],
        })?;
        Ok(couple)
    }

    fn configure_near(&self) -> Result<()> {
        self.near.configure(&Settings {
            private_key: &self.keys[0].private,
            listen_port: Some(51820),
            addresses: &[NEAR],
            peers: &[PeerSettings {
                public_key: &self.keys[1].public,
                preshared_key: None,
                endpoint: Some(SocketAddr::from(([192, 0, 2, 2], 51821))),
                allowed_ips: "10.77.0.2/32",
            }],
        })
    }
}

/// Checks a time limit, which includes a margin for a shared machine.
fn ensure_within(what: &str, took: Duration, limit: Duration) -> Result<()> {
    taupe_lab::sandbox::figure(what, took);
    ensure!(took <= limit, "{what} took {took:?}, more than {limit:?}");
    Ok(())
}

/// Returns a Base64 key of 32 bytes that encodes a number, for use as a public key.
fn numbered_key(number: u16) -> String {
    let [high, low] = number.to_be_bytes();
    // The first bytes of the key vary, the rest are zero; 32 bytes take 44 characters, the last one
    // of padding.
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u32::from(high) << 16 | u32::from(low) << 8 | 1;
    let mut text: String = [18, 12, 6, 0]
        .into_iter()
        .map(|shift| char::from(digits[(bits >> shift & 63) as usize]))
        .collect();
    text.push_str(&"A".repeat(39));
    text.push('=');
    text
}

fn missing(what: &str) -> Error {
    Error::unmet(format!("{what} is missing"))
}
