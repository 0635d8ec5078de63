//! OpenVPN as commonly configured, with one of several kinds of cryptography.
//!
//! Settings not listed here keep OpenVPN's defaults: an MTU of 1,500 bytes with `mssfix`, its own
//! buffers.

mod pki;

use super::{Contestant, End, PackedProgram};
use crate::pair::Pair;
use crate::side::Side;
use std::process::Command;
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_lab::process::{self, Attempt};

/// The server's UDP port.
const PORT: u16 = 1194;

/// Name of the interface; each machine has its own namespace, so the names may be equal.
const INTERFACE: &str = "tun0";

/// OpenVPN in one configuration.
#[derive(Debug)]
pub(super) struct OpenVpn {
    id: &'static str,
    title: &'static str,
    mode: Mode,
    /// The data cipher by OpenVPN's name.
    cipher: &'static str,
    /// The part of OpenSSL that has the cipher.
    provider: Provider,
}

/// Key exchange of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Both sides have a shared static key.
    Static,
    /// TLS with certificates.
    Tls,
}

/// A part of OpenSSL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Provider {
    Default,
    /// Ciphers no longer considered secure.
    Legacy,
}

/// As in guides of 2018 and before, when Blowfish was the default.
pub(super) const STATIC_BF: OpenVpn = OpenVpn {
    id: "openvpn-static-bf",
    title: "OpenVPN, static key, BF-CBC",
    mode: Mode::Static,
    cipher: "BF-CBC",
    provider: Provider::Legacy,
};

/// A static key with the best cipher for this mode.
pub(super) const STATIC_AES: OpenVpn = OpenVpn {
    id: "openvpn-static-aes",
    title: "OpenVPN, static key, AES-256-CBC",
    mode: Mode::Static,
    cipher: "AES-256-CBC",
    provider: Provider::Default,
};

/// Certificates and the usual cipher.
pub(super) const TLS_AES: OpenVpn = OpenVpn {
    id: "openvpn-tls-aes",
    title: "OpenVPN, TLS, AES-256-GCM",
    mode: Mode::Tls,
    cipher: "AES-256-GCM",
    provider: Provider::Default,
};

/// Certificates and WireGuard's cipher.
pub(super) const TLS_CHACHA: OpenVpn = OpenVpn {
    id: "openvpn-tls-chacha",
    title: "OpenVPN, TLS, ChaCha20-Poly1305",
    mode: Mode::Tls,
    cipher: "CHACHA20-POLY1305",
    provider: Provider::Default,
};

impl Contestant for OpenVpn {
    fn id(&self) -> &str {
        self.id
    }

    fn title(&self) -> &str {
        self.title
    }

    fn version(&self) -> Result<Option<String>> {
        let output = ask(&["--version"])?.stdout;
        let version = version(&output).ok_or_else(|| Error::Malformed {
            what: "answer of `openvpn --version`".to_owned(),
            why: output.lines().next().unwrap_or_default().to_owned(),
        })?;
        let ciphers = ask(&[self.providers(), &["--show-ciphers"]].concat())?;
        ensure!(
            offers(&ciphers.stdout, self.cipher),
            "OpenVPN {version} has no {} on this machine",
            self.cipher
        );
        if self.mode == Mode::Tls {
            pki::check()?;
        }
        Ok(Some(version))
    }

    fn packed(&self) -> Result<Vec<PackedProgram>> {
        Err(Error::unmet(
            "packs do not contain OpenVPN, because its certificates need a shell and easy-rsa",
        ))
    }

    fn prepare(&self, pair: &Pair) -> Result<()> {
        match self.mode {
            Mode::Static => {
                let key = pair.path("static.key");
                pair.server.run(&["openvpn", "--genkey", "secret", &key])?;
            }
            Mode::Tls => pki::make()?,
        }
        for side in Side::BOTH {
            pair.write(file(side), &self.configuration(pair, side))?;
        }
        // The server's settings for every client.
        pair.write(
            "DEFAULT",
            &format!("ifconfig-push {} {MASK}\n", Side::Client.inner()),
        )?;
        Ok(())
    }

    fn start(&self, pair: &Pair, side: Side) -> Result<End> {
        let host = pair.host(side);
        let process = host.spawn(&["openvpn", "--config", &pair.path(file(side))])?;
        let mut end = End {
            address: side.inner().into(),
            interface: Some(INTERFACE.to_owned()),
            processes: vec![process],
        };
        if side == Side::Server {
            end.await_port(host, PORT)?;
        }
        Ok(end)
    }
}

const MASK: &str = "255.255.255.0";

/// Returns the name of a side's file for `openvpn --config`.
const fn file(side: Side) -> &'static str {
    match side {
        Side::Client => "client.ovpn",
        Side::Server => "server.ovpn",
    }
}

impl OpenVpn {
    const fn providers(&self) -> &'static [&'static str] {
        match self.provider {
            Provider::Default => &[],
            Provider::Legacy => &["--providers", "legacy", "default"],
        }
    }

    fn configuration(&self, pair: &Pair, side: Side) -> String {
        let mut lines = vec![
            format!("dev {INTERFACE}"),
            "proto udp4".to_owned(),
            // The figures are for user space, even if the kernel supports offload (DCO).
            "disable-dco".to_owned(),
            "persist-tun".to_owned(),
            "persist-key".to_owned(),
            "verb 3".to_owned(),
        ];
        lines.push(match side {
            Side::Server => format!("port {PORT}\nfloat"),
            Side::Client => format!("remote {} {PORT}\nnobind", Side::Server.outer()),
        });
        if self.provider == Provider::Legacy {
            lines.push("providers legacy default".to_owned());
        }
        lines.extend(match self.mode {
            Mode::Static => self.static_key(pair, side),
            Mode::Tls => self.tls(pair, side),
        });
        lines.join("\n") + "\n"
    }

    /// Both sides are equal. `auth` is the default, SHA1.
    fn static_key(&self, pair: &Pair, side: Side) -> Vec<String> {
        let other = match side {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        vec![
            format!("ifconfig {} {}", side.inner(), other.inner()),
            format!("secret {}", pair.path("static.key")),
            // OpenVPN 2.7 requires this option, earlier versions do not know it.
            "ignore-unknown-option allow-deprecated-insecure-static-crypto".to_owned(),
            "allow-deprecated-insecure-static-crypto".to_owned(),
            format!("cipher {}", self.cipher),
            "keepalive 5 15".to_owned(),
        ]
    }

    /// A server for many clients, and one client.
    fn tls(&self, pair: &Pair, side: Side) -> Vec<String> {
        let pki = |name: &str| pki::path(name).display().to_string();
        let mut lines = vec![
            format!("ca {}", pki("ca.crt")),
            format!("cert {}", pki(&format!("issued/{}.crt", side.name()))),
            format!("key {}", pki(&format!("private/{}.key", side.name()))),
            // TLS 1.3 selects its cipher by another option.
            "tls-version-max 1.2".to_owned(),
            "tls-cipher TLS-ECDHE-RSA-WITH-CHACHA20-POLY1305-SHA256".to_owned(),
            format!("data-ciphers {}", self.cipher),
        ];
        lines.extend(match side {
            Side::Server => vec![
                "mode server".to_owned(),
                "tls-server".to_owned(),
                format!("dh {}", pki(pki::DH)),
                "topology subnet".to_owned(),
                "push \"topology subnet\"".to_owned(),
                format!("ifconfig {} {MASK}", side.inner()),
                format!("client-config-dir {}", pair.folder().display()),
                "keepalive 5 15".to_owned(),
            ],
            Side::Client => vec!["client".to_owned(), "remote-cert-tls server".to_owned()],
        });
        lines
    }
}

/// Runs the installed program.
fn ask(arguments: &[&str]) -> Result<Attempt> {
    let mut command = Command::new("openvpn");
    command.args(arguments);
    process::attempt("this machine", command, None).map_err(|error| match error {
        Error::Start { .. } => Error::unmet(
            "the program openvpn is not installed; `scripts/packages bench` installs it",
        ),
        other => other,
    })
}

/// Returns the version and that of the crypto library, from `openvpn --version`.
fn version(result: &str) -> Option<String> {
    let own = result.strip_prefix("OpenVPN ")?.split_whitespace().next()?;
    let library = result.lines().find_map(|line| {
        let library = line.strip_prefix("library versions: ")?.split(',').next()?;
        let mut words = library.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?))
    });
    Some(match library {
        Some(library) => format!("{own} ({library})"),
        None => own.to_owned(),
    })
}

/// Returns true if the output of `openvpn --show-ciphers` lists a cipher.
fn offers(printed: &str, cipher: &str) -> bool {
    let mut first = printed.lines().filter_map(|line| line.split(' ').next());
    first.any(|word| word == cipher)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
OpenVPN 2.6.14 x86_64-pc-linux-gnu [SSL (OpenSSL)] [LZO] [LZ4] [EPOLL] [DCO]
library versions: OpenSSL 3.0.19 27 Jan 2026, LZO 2.10
DCO version: N/A
";

    #[test]
    fn versions_are_read() {
        assert_eq!(version(SAID).as_deref(), Some("2.6.14 (OpenSSL 3.0.19)"));
        assert_eq!(version("OpenVPN 2.4.7 arm").as_deref(), Some("2.4.7"));
        for garbage in [
            "",
            "OpenVPN",
            "OpenVPN \n",
            "bash: openvpn: command not found",
        ] {
            assert_eq!(version(garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn ciphers_are_found_by_their_whole_name() {
        let printed = "AES-256-GCM  (256 bit key, 128 bit block)\nBF-CFB  (128 bit key)\n";
        assert!(offers(printed, "AES-256-GCM"));
        assert!(!offers(printed, "AES-256"));
        assert!(!offers(printed, "BF-CBC"));
    }
}
