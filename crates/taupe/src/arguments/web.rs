//! The command line of `taupe web`.

use super::WebOrder;
use clap::{Args, ValueHint};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Port of the page. That of `taupe metrics` in the documentation is one below.
const PORT: u16 = 9587;

pub(super) const WEB: &str = "\
Taupe prints an address with a token. Paste it into a browser of this machine within 60 seconds: the \
token admits one browser once. Its session lasts until you press Enter or the command ends. Taupe \
prints that a browser has opened the address. On a terminal, Enter prints an address with another \
token, and ends the session of the browser. The page shows the state and reasons that `taupe status` prints, the \
applications in each tunnel, peers, and rates of the last two minutes.

By default the page is read-only. With --switches it adds and removes applications as `taupe app` \
does, for the tunnels in transparent mode that the page shows. Taupe prints each change.

Requests are parsed by the program taupe-web, which has no rights; `taupe web` reads the state for it, \
at most once a second and only while a browser shows the page.

Other machines cannot reach the page. From there, `ssh -L 9587:127.0.0.1:9587 HOST` leads to it. The \
socket of --unix is for root and its group, and takes a token too.";

pub(super) const WEB_STATUS: &str = "\
Exit status:
  1  The address or path cannot be served, taupe-web is missing or has ended.
  2  Wrong usage.
  A signal ends the command.";

pub(super) const WEB_EXAMPLES: &str = "\
Examples:
  sudo taupe web
  sudo taupe web --switches
  sudo taupe web --listen 127.0.0.1:8080
  sudo taupe web --unix /run/taupe-web.sock";

#[derive(Args)]
pub(super) struct WebArguments {
    /// Loopback address [default: 127.0.0.1:9587]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = loopback)]
    listen: Option<SocketAddr>,
    /// Serve the page at a Unix socket
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    unix: Option<PathBuf>,
    /// Let the page change the applications of tunnels
    #[arg(long)]
    switches: bool,
}

impl WebArguments {
    pub(super) fn order(self) -> WebOrder {
        let default = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let listen = match (self.listen, &self.unix) {
            (None, None) => Some(default),
            (listen, _) => listen,
        };
        WebOrder {
            listen,
            unix: self.unix,
            has_switches: self.switches,
        }
    }
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|error| format!("{error}"))?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err(format!(
            "{} is no loopback address, and the page is not encrypted; use 127.0.0.1 or [::1], and \
             `ssh -L` from other machines",
            address.ip()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::loopback;

    #[test]
    fn only_loopback_addresses_are_served() {
        for allowed in ["127.0.0.1:9587", "127.1.2.3:1", "[::1]:0"] {
            assert!(loopback(allowed).is_ok(), "{allowed}");
        }
        for refused in [
            "0.0.0.0:9587",
            "[::]:9587",
            "192.0.2.1:80",
            "[::ffff:127.0.0.1]:1",
            "9587",
        ] {
            assert!(loopback(refused).is_err(), "{refused}");
        }
    }
}
