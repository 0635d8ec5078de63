//! Two machines and the link between them.

use crate::emulator::{self, Profile};
use crate::side::{PORT, Side};
use crate::tcp::TcpSettings;
use serde::{Deserialize, Serialize};
use std::fmt::{Display, Formatter};
use std::fs;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{self, Host};

/// The link between the two machines. The MTU is 1,500 bytes.
///
/// Its text form is `cable`, `100mbit`, `loss=1%`, `802.11b` or `lte`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Link {
    /// A virtual Ethernet cable, limited only by the machine.
    Cable,
    /// A cable with a token bucket filter at both ends.
    Limited {
        /// Rate in each direction, in bit/s of Ethernet frames.
        rate: u64,
    },
    /// A cable that loses a share of all packets in each direction.
    Lossy {
        /// Lost packets per 10,000.
        loss: u16,
    },
    /// A link of the lab's own emulator.
    Emulated(Profile),
}

impl Link {
    /// Returns the kind of link for the names of machines. Contestants on links of different kinds
    /// can run at the same time.
    pub fn kind(&self) -> String {
        match self {
            Self::Cable | Self::Limited { .. } => self.to_string(),
            Self::Lossy { .. } => "lossy".to_owned(),
            Self::Emulated(_) => "emulated".to_owned(),
        }
    }
}

impl Display for Link {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cable => f.write_str("cable"),
            Self::Limited { rate } => write!(f, "{}mbit", *rate as f64 / 1e6),
            Self::Lossy { loss } => write!(f, "loss={}%", f64::from(*loss) / 100.0),
            Self::Emulated(profile) if *profile == Profile::WIFI_80211B => f.write_str("802.11b"),
            Self::Emulated(profile) if *profile == Profile::LTE => f.write_str("lte"),
            Self::Emulated(_) => f.write_str("emulated"),
        }
    }
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str, range: RangeInclusive<f64>| {
            let number = text.parse::<f64>().ok();
            number.filter(|number| range.contains(number))
        };
        let link = match text {
            "cable" => Some(Self::Cable),
            "802.11b" => Some(Self::Emulated(Profile::WIFI_80211B)),
            "lte" => Some(Self::Emulated(Profile::LTE)),
            _ => match (text.strip_suffix("mbit"), text.strip_prefix("loss=")) {
                (Some(rate), _) => number(rate, 0.1..=100_000.0).map(|rate| Self::Limited {
                    rate: (rate * 1e6).round() as u64,
                }),
                (None, Some(share)) => {
                    let share = share.strip_suffix('%').unwrap_or(share);
                    number(share, 0.01..=50.0).map(|share| Self::Lossy {
                        loss: (share * 100.0).round() as u16,
                    })
                }
                (None, None) => None,
            },
        };
        link.ok_or_else(|| {
            "a link is cable, 802.11b, lte, a rate such as 100mbit (0.1 to 100000), \
             or a loss such as loss=1% (0.01 to 50)"
                .to_owned()
        })
    }
}

impl TryFrom<String> for Link {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Link> for String {
    fn from(link: Link) -> Self {
        link.to_string()
    }
}

/// Two machines of one contestant, with their link.
#[derive(Debug)]
pub struct Pair {
    /// Prefix of the machines' names.
    pub name: String,
    /// The machine that initiates.
    pub client: Host,
    /// The machine that responds.
    pub server: Host,
    /// The emulator, if the link is [`Link::Emulated`]; it stops when it is dropped.
    pub emulator: Option<emulator::Emulator>,
    folder: PathBuf,
    tcp: TcpSettings,
}

impl Pair {
    /// Makes the two machines, called `NAME-client` and `NAME-server`, and the link.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if such machines exist already, or the kernel lacks a feature that the
    /// link needs.
    pub fn new(name: &str, link: &Link) -> Result<Self> {
        let [server, client] = Side::BOTH.map(|side| Host::new(&format!("{name}-{}", side.name())));
        let (client, server) = (client?, server?);
        let tcp = TcpSettings::default();
        for host in [&client, &server] {
            // The kernel's IPv6 housekeeping packets would add to the measured traffic.
            host.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
            tcp.apply(host)?;
        }
        let folder = taupe_lab::sandbox::scratch(name);
        fs::create_dir_all(&folder).map_err(Error::io(folder.display().to_string()))?;
        let mut pair = Self {
            name: name.to_owned(),
            client,
            server,
            emulator: None,
            folder,
            tcp,
        };
        pair.join(link)?;
        Ok(pair)
    }

    /// Sets TCP for later connections.
    ///
    /// # Errors
    ///
    /// As [`TcpSettings::apply`].
    pub fn set_tcp(&mut self, tcp: TcpSettings) -> Result<()> {
        for host in [&self.client, &self.server] {
            tcp.apply(host)?;
        }
        self.tcp = tcp;
        Ok(())
    }

    /// Returns the settings of TCP.
    pub const fn tcp(&self) -> TcpSettings {
        self.tcp
    }

    /// Returns the machine on this side.
    pub const fn host(&self, side: Side) -> &Host {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// Returns the folder for the contestant's files: keys, configurations.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file into [`folder`](Self::folder), readable by root only, and returns its path.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn write(&self, name: &str, content: &str) -> Result<String> {
        taupe_lab::sandbox::scratch_file(&format!("{}/{name}", self.name), content)
    }

    /// Returns the path of a file in [`folder`](Self::folder), as an argument of a program.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Returns the address of the server outside the tunnel.
    pub const fn outer(&self) -> IpAddr {
        IpAddr::V4(Side::Server.outer())
    }

    fn join(&mut self, link: &Link) -> Result<()> {
        if let Link::Emulated(profile) = link {
            self.emulator = Some(emulator::Emulator::start(
                &self.client,
                &self.server,
                profile,
            )?);
            return Ok(());
        }
        let [server, client] = Side::BOTH.map(|side| format!("{}/24", side.outer()));
        host::link(
            self.client.port(PORT, &[&client]),
            self.server.port(PORT, &[&server]),
            1500,
        )?;
        for host in [&self.client, &self.server] {
            match link {
                Link::Limited { rate } => limit_rate(host, *rate)?,
                Link::Lossy { loss } => drop_randomly(host, *loss)?,
                Link::Cable | Link::Emulated(_) => {}
            }
        }
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for host in [&self.client, &self.server] {
            // The sandbox removes whatever remains.
            let _ = host.clone().delete();
        }
    }
}

/// Limits the rate at which a machine sends on the link.
fn limit_rate(host: &Host, rate: u64) -> Result<()> {
    // The burst is large enough for a super-packet. The queue holds half a megabyte: 4 ms at 1
    // Gbit/s.
    let rate = format!("{rate}bit");
    #[rustfmt::skip]
    host.run(&[
        "tc", "qdisc", "add", "dev", PORT, "root", "tbf",
        "rate", &rate, "burst", "128kb", "limit", "512kb",
    ])?;
    Ok(())
}

/// Drops a share of the packets that a machine receives on the link.
fn drop_randomly(host: &Host, loss: u16) -> Result<()> {
    let rules = format!(
        "table netdev lab {{\n chain loss {{\n\
         type filter hook ingress device {PORT} priority 0\n\
         numgen random mod 10000 < {loss} counter drop\n\
         }}\n}}\n"
    );
    host.run_with_input(&["nft", "-f", "-"], &rules)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_as_they_are_written() {
        for text in [
            "cable",
            "100mbit",
            "2.5mbit",
            "loss=1%",
            "loss=0.05%",
            "802.11b",
            "lte",
        ] {
            let link: Link = text.parse().expect(text);
            assert_eq!(link.to_string(), text);
        }
        assert_eq!("loss=1".parse(), Ok(Link::Lossy { loss: 100 }));
        assert_eq!(
            "1000mbit".parse(),
            Ok(Link::Limited {
                rate: 1_000_000_000
            })
        );
    }

    #[test]
    fn malformed_links_are_refused() {
        for text in [
            "", "rope", "mbit", "0mbit", "-1mbit", "NaNmbit", "loss=", "loss=0%", "loss=51%",
        ] {
            assert!(text.parse::<Link>().is_err(), "{text}");
        }
    }
}
