//! The probe: a child that sends packets as the application would. It reads a request from each line
//! of its standard input, answers with a line, and ends with its input.
//!
//! ```text
//!           ready
//! request   KIND DESTINATION NONCE [ADDRESS or INTERFACE]
//! answer    sent [PORT] | refused CODE TEXT | skipped TEXT
//! ```

use rustix::net::{AddressFamily, SocketType, ipproto, sendto, socket};
use rustix::net::{SendFlags, connect};
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;
use taupe_os_linux::interface::index;
use taupe_os_linux::packet_socket::PacketSocket;
use taupe_os_linux::socket_option::{self, IntOption};
use taupe_packet::checksum::Sum;

/// The name by which the program is called as a probe.
pub(crate) const PROGRAM: &str = "taupe";

/// The argument after the name.
pub(crate) const ARGUMENT: &str = "prove-probe";

/// First line of the output. The rules know the process from then on; when the call that starts it
/// returns, the kernel may still be executing the program.
pub(super) const READY: &str = "ready\n";

/// Longest text of an answer.
const MAX_TEXT: usize = 200;

/// Longest request in bytes.
const MAX_REQUEST: u64 = 512;

/// An arbitrary mark.
const MARK: i32 = 0x7a70;

/// `ETH_P_IP`.
const ETHERTYPE_IPV4: u16 = 0x0800;

/// Kind of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Udp,
    Tcp,
    Dns,
    BoundAddress,
    BoundInterface,
    Stun,
    Ping,
    Mark,
    PacketSocket,
}

impl Kind {
    const ALL: [(Self, &str); 9] = [
        (Self::Udp, "udp"),
        (Self::Tcp, "tcp"),
        (Self::Dns, "dns"),
        (Self::BoundAddress, "bound-address"),
        (Self::BoundInterface, "bound-interface"),
        (Self::Stun, "stun"),
        (Self::Ping, "ping"),
        (Self::Mark, "mark"),
        (Self::PacketSocket, "packet-socket"),
    ];

    pub(super) fn word(self) -> &'static str {
        let mut all = Self::ALL.into_iter();
        all.find(|(kind, _)| *kind == self)
            .map_or("", |(_, word)| word)
    }

    fn of(word: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|(_, own)| *own == word).map(|(kind, _)| kind)
    }
}

/// ProbeAnswer of the probe. It only adds to what the capture sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ProbeAnswer {
    /// The socket took the packet. `port` is the local port of a connection.
    Sent { port: Option<u16> },
    /// The system refused to send, with this error (`errno`).
    Refused { code: i32, why: String },
    /// A right or a feature is missing.
    Skipped(String),
}

impl ProbeAnswer {
    /// Parses an answer. A process of the same user may have written it. `None` if it is none.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let text = |text: &str| -> String {
            let shown = |c: char| {
                if c.is_ascii_graphic() || c == ' ' {
                    c
                } else {
                    '?'
                }
            };
            text.chars().take(MAX_TEXT).map(shown).collect()
        };
        let (word, rest) = line
            .trim_end()
            .split_once(' ')
            .unwrap_or((line.trim_end(), ""));
        match word {
            "sent" => Some(Self::Sent {
                port: rest.parse().ok(),
            }),
            "refused" => {
                let (code, why) = rest.split_once(' ')?;
                Some(Self::Refused {
                    code: code.parse().ok()?,
                    why: text(why),
                })
            }
            "skipped" => Some(Self::Skipped(text(rest))),
            _ => None,
        }
    }

    fn line(&self) -> String {
        match self {
            Self::Sent { port: None } => "sent\n".into(),
            Self::Sent { port: Some(port) } => format!("sent {port}\n"),
            Self::Refused { code, why } => format!("refused {code} {why}\n"),
            Self::Skipped(why) => format!("skipped {why}\n"),
        }
    }
}

/// Serves requests until the end of standard input.
pub(crate) fn main() -> ExitCode {
    // From here on, other processes of the application's user cannot trace it. Since `exec` they could.
    crate::system::disable_core_files();
    let mut open = Vec::new();
    let mut input = io::stdin().lock();
    let mut is_read = print(READY);
    while is_read {
        let mut line = String::new();
        match (&mut input).take(MAX_REQUEST).read_line(&mut line) {
            Ok(1..) => is_read = print(&answer(line.trim_end(), &mut open).line()),
            Ok(0) | Err(_) => break,
        }
    }
    ExitCode::SUCCESS
}

/// Returns true if the line could be written.
fn print(line: &str) -> bool {
    let mut output = io::stdout();
    let written = output.write_all(line.as_bytes());
    written.and_then(|()| output.flush()).is_ok()
}

/// Executes a request. Its socket stays open, so that no other process gets its port.
fn answer(line: &str, open: &mut Vec<OwnedFd>) -> ProbeAnswer {
    let words: Vec<&str> = line.split(' ').collect();
    let [kind, destination, nonce, binding @ ..] = &*words else {
        return ProbeAnswer::Skipped("there is no such request".into());
    };
    let (Some(kind), Ok(destination)) = (Kind::of(kind), destination.parse()) else {
        return ProbeAnswer::Skipped("there is no such probe".into());
    };
    let binding = binding.first().copied().unwrap_or_default();
    match send(kind, destination, nonce, binding, open) {
        Ok(port) => ProbeAnswer::Sent { port },
        Err(ProbeFailure::Prepare(error)) => ProbeAnswer::Skipped(error.to_string()),
        Err(ProbeFailure::Send(error)) => ProbeAnswer::Refused {
            code: error.raw_os_error().unwrap_or_default(),
            why: error.to_string(),
        },
    }
}

enum ProbeFailure {
    /// The socket could not be prepared.
    Prepare(io::Error),
    /// The packet could not be sent.
    Send(io::Error),
}

fn send(
    kind: Kind,
    destination: SocketAddr,
    nonce: &str,
    binding: &str,
    open: &mut Vec<OwnedFd>,
) -> Result<Option<u16>, ProbeFailure> {
    use ProbeFailure::{Prepare, Send};
    let any: IpAddr = match destination {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    match kind {
        Kind::Tcp => {
            let family = match destination {
                SocketAddr::V4(_) => AddressFamily::INET,
                SocketAddr::V6(_) => AddressFamily::INET6,
            };
            let connection = socket(family, SocketType::STREAM, None).map_err(io::Error::from);
            let connection = connection.map_err(Prepare)?;
            let listed = prepare_tcp(&connection, any).map_err(Prepare)?;
            open.push(connection);
            let connection = open.last().map(|one| one.as_fd());
            // The connection is opened in the background.
            match connection.map(|one| connect(one, &destination)) {
                None | Some(Ok(()) | Err(rustix::io::Errno::INPROGRESS)) => Ok(Some(listed)),
                Some(Err(error)) => Err(Send(error.into())),
            }
        }
        Kind::Ping => {
            let ping = socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP));
            let ping = ping.map_err(|error| Prepare(error.into()))?;
            // Echo request. The kernel sets the identifier and the checksum.
            let echo = [&[8, 0, 0, 0, 0, 0, 0, 1], nonce.as_bytes()].concat();
            let sent = sendto(&ping, &echo, SendFlags::DONTWAIT, &destination);
            open.push(ping);
            sent.map(|_| None).map_err(|error| Send(error.into()))
        }
        Kind::PacketSocket => {
            // Taupe refuses the socket itself.
            let direct = PacketSocket::sender().map_err(Send)?;
            let IpAddr::V4(to) = destination.ip() else {
                return Ok(None);
            };
            let interface = index(binding).unwrap_or_default();
            let packet = datagram(Ipv4Addr::UNSPECIFIED, to, destination.port(), nonce);
            let sent = direct.send(interface, ETHERTYPE_IPV4, &BROADCAST, &packet);
            sent.map(|()| None).map_err(Send)
        }
        _ => {
            let local = match kind {
                Kind::BoundAddress => binding.parse().unwrap_or(any),
                _ => any,
            };
            let socket = UdpSocket::bind((local, 0)).map_err(Prepare)?;
            match kind {
                Kind::BoundInterface => {
                    socket_option::bind_to_interface(socket.as_fd(), binding).map_err(Prepare)?;
                }
                Kind::Mark => {
                    let set = socket_option::set(socket.as_fd(), IntOption::Mark, MARK);
                    set.map_err(Prepare)?;
                }
                _ => {}
            }
            let payload = match kind {
                Kind::Dns => query(nonce),
                Kind::Stun => binding_request(nonce),
                _ => nonce.as_bytes().to_vec(),
            };
            let sent = socket.send_to(&payload, destination);
            open.push(socket.into());
            sent.map(|_| None).map_err(Send)
        }
    }
}

/// Binds a connection's socket, and returns its port.
fn prepare_tcp(connection: &OwnedFd, any: IpAddr) -> io::Result<u16> {
    rustix::io::ioctl_fionbio(connection, true)?;
    rustix::net::bind(connection, &SocketAddr::new(any, 0))?;
    let local: SocketAddr = rustix::net::getsockname(connection)?.try_into()?;
    Ok(local.port())
}

/// The hardware address of all machines on a link.
pub(super) const BROADCAST: [u8; 6] = [0xff; 6];

/// Makes a query for the address of a name that does not exist (RFC 1035). Resolvers answer names below
/// `invalid` themselves, and look up names below `example` (RFC 6761, sections 6.4 and 6.5).
fn query(nonce: &str) -> Vec<u8> {
    let mut query = vec![0x7a, 0x70, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in [nonce, "example", ""] {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.extend([0, 1, 0, 1]);
    query
}

/// Makes a STUN binding request with the attribute SOFTWARE (RFC 8489).
fn binding_request(nonce: &str) -> Vec<u8> {
    let software = nonce.as_bytes();
    let padding = software.len().next_multiple_of(4) - software.len();
    let length = (4 + software.len() + padding) as u16;
    let mut request = vec![0, 1];
    request.extend(length.to_be_bytes());
    request.extend([0x21, 0x12, 0xa4, 0x42]);
    request.extend(software.get(..12).unwrap_or(&[0; 12]));
    request.extend([0x80, 0x22]);
    request.extend((software.len() as u16).to_be_bytes());
    request.extend(software);
    request.extend(std::iter::repeat_n(0, padding));
    request
}

/// Makes an IPv4 packet with a UDP datagram without checksum.
pub(super) fn datagram(from: Ipv4Addr, to: Ipv4Addr, port: u16, payload: &str) -> Vec<u8> {
    const HEADERS: usize = 28;
    let length = (HEADERS + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0, 0, 1, 17, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = Sum::ZERO.bytes(&packet[..20]).checksum();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(DATAGRAM_PORT.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend((length - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload.bytes());
    packet
}

/// Source port of such a datagram.
const DATAGRAM_PORT: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: &str = "tp00010203040506ff0012";

    #[test]
    fn answers_are_read_back_and_contain_no_control_characters() {
        for answer in [
            ProbeAnswer::Sent { port: None },
            ProbeAnswer::Sent { port: Some(1000) },
            ProbeAnswer::Refused {
                code: 101,
                why: "no route".into(),
            },
            ProbeAnswer::Skipped("no right".into()),
        ] {
            assert_eq!(ProbeAnswer::parse(&answer.line()), Some(answer));
        }
        let hostile = format!("skipped \x1b]0;x\x07\u{e9}{}", "y".repeat(500));
        let Some(ProbeAnswer::Skipped(text)) = ProbeAnswer::parse(&hostile) else {
            panic!("it was skipped");
        };
        assert!(text.starts_with("?]0;x??y"), "{text}");
        assert_eq!(text.len(), MAX_TEXT);
        for wrong in ["", "sending", "refused", "refused x", "refused no route"] {
            assert_eq!(ProbeAnswer::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn requests_that_are_wrong_send_nothing() {
        let mut open = Vec::new();
        for wrong in [
            "",
            "udp",
            "udp x y",
            "other 127.0.0.1:9 x",
            "udp 127.0.0.1 x",
        ] {
            let answer = answer(wrong, &mut open);
            assert!(
                matches!(answer, ProbeAnswer::Skipped(_)),
                "{wrong}: {answer:?}"
            );
        }
        assert!(open.is_empty());
        // A connection has the family of its destination.
        let connected = answer("tcp [::1]:9 x", &mut open);
        let (ProbeAnswer::Sent { .. } | ProbeAnswer::Refused { code: 111, .. }) = connected else {
            panic!("{connected:?}");
        };
        for (kind, word) in Kind::ALL {
            assert_eq!((Kind::of(word), kind.word()), (Some(kind), word));
        }
    }

    #[test]
    fn packets_have_the_nonce_where_their_protocol_allows_it() {
        let query = query(NONCE);
        assert_eq!(query[12], 22);
        assert_eq!(&query[13..35], NONCE.as_bytes());
        assert_eq!(&query[35..44], b"\x07example\0");
        let stun = binding_request(NONCE);
        assert_eq!(stun.len() % 4, 0);
        assert_eq!(usize::from(stun[3]) + 20, stun.len());
        assert_eq!(&stun[24..46], NONCE.as_bytes());
        assert_eq!(binding_request("short").len() % 4, 0);
        let packet = datagram(Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST, 7, NONCE);
        let parsed = taupe_packet::ip::Packet::parse(&packet).expect("a packet");
        assert_eq!(parsed.bytes().len(), packet.len());
        assert_eq!(Sum::ZERO.bytes(&packet[..20]).checksum(), 0);
        assert!(packet.ends_with(NONCE.as_bytes()));
    }
}
